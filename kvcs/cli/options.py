"""Options that several commands share. No option takes a secret: those come from files or
the environment, because arguments are visible to every user of the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvcs.names import NamespaceForm

__all__ = [
    "Authority",
    "Blocks",
    "Debug",
    "DescriptorFile",
    "Force",
    "Form",
    "Insecure",
    "Json",
    "KNames",
    "Layers",
    "Qlog",
    "RecoverFor",
    "ScopeKeyFile",
    "TokenFile",
    "TokensFile",
    "Trust",
    "Url",
    "VNames",
    "Wait",
]

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", envvar="KVCS_URL", help="moqt://HOST:PORT/ of a producer or relay."
    ),
]
DescriptorFile = Annotated[
    Path | None,
    typer.Option(
        "--descriptor",
        metavar="FILE",
        help="Compatibility Descriptor as JSON.",
        envvar="KVCS_DESCRIPTOR",
    ),
]
TokensFile = Annotated[
    str | None,
    typer.Option(
        "--tokens",
        metavar="FILE",
        help="Token ids: a JSON array, whitespace-separated text, or .npy; - is stdin.",
    ),
]
ScopeKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--scope-key-file",
        metavar="FILE",
        envvar="KVCS_SCOPE_KEY_FILE",
        help="Scope key in hexadecimal (`kvcs keygen scope`); or set KVCS_SCOPE_KEY.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="KVCS_TOKEN_FILE",
        help="File with the authorization token that the server or relay asks for.",
    ),
]
Trust = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust",
        metavar="FILE",
        envvar="KVCS_TRUST",
        help="Public key of a trusted producer; then only signed publications count. Repeatable.",
    ),
]
Authority = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", envvar="KVCS_CA", help="CA or certificate to trust, as PEM."
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Do not verify the peer's certificate. For trying out only."),
]
KNames = Annotated[
    str, typer.Option("--k-names", metavar="TEMPLATE", help="Names of the K tensors.")
]
VNames = Annotated[
    str, typer.Option("--v-names", metavar="TEMPLATE", help="Names of the V tensors.")
]
Layers = Annotated[
    str | None,
    typer.Option("--layers", metavar="A-B", help="Layers to take, both inclusive; else all."),
]
Blocks = Annotated[
    int | None,
    typer.Option("--blocks", metavar="N", min=1, help="Blocks to take from the start; else all."),
]
Sessions = Annotated[
    int,
    typer.Option("--sessions", metavar="N", min=1, max=16, help="Connections that share the work."),
]
Wait = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0, help="How long a publication is waited for."),
]
RecoverFor = Annotated[
    float,
    typer.Option(
        "--recover-for", metavar="SECONDS", min=0, help="How long missing Objects are sought."
    ),
]
Form = Annotated[
    NamespaceForm,
    typer.Option(
        "--namespace-form", help="hex for relays that take text alone; both ends must agree."
    ),
]
Qlog = Annotated[
    Path | None,
    typer.Option(
        "--qlog",
        metavar="DIR",
        envvar="KVCS_QLOG_DIR",
        help="Leave a qlog of every connection there; it holds no payloads and no tokens.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what exists.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON, one document a line, for machines.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
