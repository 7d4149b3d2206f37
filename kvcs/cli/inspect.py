"""`kvcs inspect`: what is published at an address, or what is in a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from kvcs.cli import connect, inputs, options
from kvcs.cli.describe import stored_descriptor
from kvcs.cli.exits import CommandError, ExitCode
from kvcs.cli.output import Output
from kvcs.cli.summaries import descriptor_line, manifest_lines, manifest_record, name_record
from kvcs.cli.survey import Surveyed, survey
from kvcs.cli.tensors import K_NAMES, CacheFile, NameTemplate
from kvcs.config import ConsumerConfig
from kvcs.cose import MAX_COSE_OCTETS, SignedManifest
from kvcs.errors import InvalidName, PublicationGone, PublicationUnusable
from kvcs.manifest import Manifest
from kvcs.names import NamespaceForm
from kvcs.trust import Trust
from moqt.asyncio.client import connect as open_session

if TYPE_CHECKING:
    from kvcs.keys import TrustedKeys
    from kvcs.kvsp.identity import Scope

__all__ = ["inspect"]

MAX_PUBLICATIONS = 1024
"""Publications that are looked at; further ones are left out."""


def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="URL|FILE",
            help="moqt://HOST:PORT/, or a safetensors, manifest (JSON) or manifest.cose file.",
        ),
    ],
    scope_key_file: options.ScopeKeyFile = None,
    token_file: options.TokenFile = None,
    ca: options.Authority = None,
    insecure: options.Insecure = False,
    trust: options.Trust = None,
    listen_for: Annotated[
        float,
        typer.Option(
            "--listen-for", metavar="SECONDS", min=0, help="How long publications are listed."
        ),
    ] = 1.0,
    namespace_form: options.Form = NamespaceForm.BINARY,
    qlog: options.Qlog = None,
    k_names: options.KNames = K_NAMES,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show publications with manifests and signatures, or the content of a file.

    With the scope key only that scope's publications are shown, else all. With --trust signatures
    are verified.
    """
    output = Output(as_json=as_json)
    trusted = connect.need_trusted(trust)
    if "://" not in target:
        _inspect_file(Path(target), NameTemplate(k_names), trusted, output)
        return
    connect.need_url(target)
    config = ConsumerConfig(namespace_form=namespace_form, max_publications=MAX_PUBLICATIONS)
    scope = inputs.find_scope(scope_key_file)
    authority = connect.need_authority(ca)
    auth_tokens = inputs.find_auth_tokens(token_file)
    transport_config = connect.tracing(qlog)

    async def work() -> None:
        async with open_session(
            target,
            ca=authority,
            insecure=insecure,
            transport_config=transport_config,
            tokens=auth_tokens,
            request_tokens=auth_tokens,
        ) as session:
            found = await survey(
                session, scope=scope, trust=Trust(trusted), config=config, listen_s=listen_for
            )
        _show_publications(target, found, scope, trusted, output)

    connect.run(work())


class Signature(StrEnum):
    """What is known about a manifest's signature."""

    UNSIGNED = "unsigned"
    UNCHECKED = "unchecked"
    """Signed, but no --trust to check it against."""
    VERIFIED = "verified"
    REFUSED = "refused"

    @classmethod
    def of(cls, *, is_signed: bool, trusted: TrustedKeys | None, problem: object = None) -> Self:
        """Return what is known, from whether there is one, who is trusted, and what went wrong."""
        if not is_signed:
            return cls.UNSIGNED
        if trusted is None:
            return cls.UNCHECKED
        return cls.VERIFIED if problem is None else cls.REFUSED


def _show_publications(
    url: str,
    found: list[Surveyed],
    scope: Scope | None,
    trusted: TrustedKeys | None,
    output: Output,
) -> None:
    records, lines = [], []
    for each in found:
        signature = Signature.of(is_signed=each.is_signed, trusted=trusted, problem=each.problem)
        record: dict[str, Any] = {"namespace": str(each.namespace), "signature": signature}
        lines.append(f"publication {each.namespace}")
        if each.name is not None:
            record |= name_record(each.name) | {"namespace": str(each.namespace)}
        if each.problem is not None:
            record["problem"] = str(each.problem)
            lines.append(f"  {each.problem}")
        if each.manifest is not None:
            record["manifest"] = manifest_record(each.manifest)
            record["kid"] = None if each.key_id is None else each.key_id.hex()
            said = f"signature {signature}" + (f", kid {record['kid']}" if record["kid"] else "")
            lines += [f"  {line}" for line in (*manifest_lines(each.manifest), said)]
        records.append(record)
    if not found:
        whose = "this scope's" if scope is not None else "any scope's"
        lines.append(f"no publication of {whose}")
    output.emit({"url": url, "publications": records}, "\n".join(lines))
    if not found:
        raise CommandError(ExitCode.NOT_FOUND, "nothing is published there")
    refused = [
        each
        for each in found
        if isinstance(each.problem, (PublicationUnusable, InvalidName))
        and not isinstance(each.problem, PublicationGone)
    ]
    if refused:
        raise CommandError(
            ExitCode.UNVERIFIED, f"{len(refused)} of {len(found)} publications do not hold"
        )


def _inspect_file(
    path: Path, names: NameTemplate, trusted: TrustedKeys | None, output: Output
) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise CommandError(ExitCode.FILE, f"{path}: {error.strerror or error}") from error
    if head.lstrip()[:1] == b"{":
        manifest = Manifest.load(inputs.read_file(path, MAX_COSE_OCTETS))
        _show_manifest(path, manifest, Signature.UNSIGNED, None, output)
    elif head[8:9] == b"{":  # an 8-octet length, then the JSON header
        _show_tensors(path, names, output)
    else:
        signed = SignedManifest.parse(inputs.read_file(path, MAX_COSE_OCTETS))
        payload = signed.payload if trusted is None else signed.verify(trusted)
        signature = Signature.of(is_signed=True, trusted=trusted)
        _show_manifest(path, Manifest.load(payload), signature, signed.key_id, output)


def _show_manifest(
    path: Path, manifest: Manifest, signature: Signature, key_id: bytes | None, output: Output
) -> None:
    kind = "manifest" if key_id is None else "manifest.cose"
    kid = None if key_id is None else key_id.hex()
    said = f"signature {signature}" + (f", kid {kid}" if kid else "")
    output.emit(
        {
            "file": str(path),
            "kind": kind,
            "signature": signature,
            "kid": kid,
            "manifest": manifest_record(manifest),
        },
        "\n".join((f"{path}: {kind}, {said}", *manifest_lines(manifest))),
    )


def _show_tensors(path: Path, names: NameTemplate, output: Output) -> None:
    file = CacheFile.open(path)
    descriptor = stored_descriptor(file.metadata)
    layers = names.layers(file.names)
    lines = [f"{path}: safetensors, {len(file.names)} tensors, {len(layers)} layers of K"]
    if descriptor is not None:
        lines.append(descriptor_line(descriptor))
    lines += [f"{name} {file.dtype_name(name)} {list(file.shape(name))}" for name in file.names]
    output.emit(
        {
            "file": str(path),
            "kind": "safetensors",
            "descriptor": None if descriptor is None else descriptor.to_dict(),
            "layers": layers,
            "tensors": [
                {"name": name, "dtype": file.dtype_name(name), "shape": list(file.shape(name))}
                for name in file.names
            ],
        },
        "\n".join(lines),
    )
