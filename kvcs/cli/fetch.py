"""`kvcs fetch`: a cache, or a part of one, from the air into a safetensors file."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  Typer reads annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from kvcs.cli import connect, options
from kvcs.cli.describe import DESCRIPTOR_KEY
from kvcs.cli.files import check_output
from kvcs.cli.output import Output, octets_text
from kvcs.cli.retrieving import Wanted, publication_line, retrieving, wanted
from kvcs.cli.summaries import missing_record
from kvcs.cli.tensors import K_NAMES, V_NAMES, NameTemplate, write_tensors
from kvcs.errors import IncompleteRetrieval
from kvcs.names import NamespaceForm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kvcs.assembly import UsableLayer
    from kvcs.consumer import Retrieval
    from kvcs.kvsp.shapes import AnyArray

__all__ = ["fetch"]


def fetch(
    url: options.Url,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The safetensors file to write.")
    ],
    descriptor: options.DescriptorFile = None,
    tokens: options.TokensFile = None,
    scope_key_file: options.ScopeKeyFile = None,
    token_file: options.TokenFile = None,
    layers: options.Layers = None,
    blocks: options.Blocks = None,
    sessions: options.Sessions = 1,
    ca: options.Authority = None,
    insecure: options.Insecure = False,
    trust: options.Trust = None,
    wait: options.Wait = 10.0,
    recover_for: options.RecoverFor = 10.0,
    namespace_form: options.Form = NamespaceForm.BINARY,
    qlog: options.Qlog = None,
    k_names: options.KNames = K_NAMES,
    v_names: options.VNames = V_NAMES,
    force: options.Force = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Retrieve and verify a KV cache, or a part of it, and write it to a safetensors file.

    The file is written whole, at the end. When layers are missing (exit code 4) it holds those that
    are complete and verified; when there are none, nothing is written.
    """
    check_output(out, force=force)
    names = NameTemplate(k_names), NameTemplate(v_names)
    what = wanted(
        url,
        descriptor,
        tokens,
        scope_key_file,
        token_file=token_file,
        layers=layers,
        blocks=blocks,
        sessions=sessions,
        ca=ca,
        insecure=insecure,
        trust=trust,
        form=namespace_form,
        qlog=qlog,
        wait_s=wait,
        recover_for_s=recover_for,
    )
    connect.run(_fetch(what, out, names, Output(as_json=as_json)))


async def _fetch(
    what: Wanted, out: Path, names: tuple[NameTemplate, NameTemplate], output: Output
) -> None:
    k_names, v_names = names
    arrays: dict[str, AnyArray] = {}
    done = 0
    incomplete: IncompleteRetrieval | None = None
    async with retrieving(what) as retrieval:
        output.emit(
            {
                "event": "publication",
                "namespace": str(retrieval.publication),
                "signed": retrieval.is_signed,
                "verified_signature": retrieval.is_signed and what.trusted is not None,
                "kid": None if retrieval.key_id is None else retrieval.key_id.hex(),
                "blocks": retrieval.blocks,
                "tokens": retrieval.tokens,
            },
            publication_line(retrieval, what),
        )
        try:
            async for layer in _layers(retrieval, what, output):
                arrays[k_names.name(layer.index)] = layer.k
                if layer.v is not None:
                    arrays[v_names.name(layer.index)] = layer.v
                done += 1
        except IncompleteRetrieval as error:
            incomplete = error
        stats = retrieval.stats
    if arrays:
        write_tensors(out, arrays, {DESCRIPTOR_KEY: what.descriptor.jcs().decode()})
    octets = sum(array.nbytes for array in arrays.values())
    missing = () if incomplete is None else incomplete.missing
    output.emit(
        {
            "event": "complete" if incomplete is None else "incomplete",
            "file": str(out) if arrays else None,
            "layers": done,
            "tokens": retrieval.tokens,
            "octets": octets,
            "objects": stats.objects,
            "rejected": {reason.value: count for reason, count in stats.rejected.items()},
            "missing": [missing_record(each) for each in missing],
        },
        f"{out}: {done} of {len(what.layers)} layers, {retrieval.tokens} tokens, "
        f"{octets_text(octets)}"
        if arrays
        else "nothing is written: no layer is complete",
    )
    if incomplete is not None:
        raise incomplete


async def _layers(retrieval: Retrieval, what: Wanted, output: Output) -> AsyncIterator[UsableLayer]:
    """Yield the layers as they come, and show it. Raises: IncompleteRetrieval after the last."""
    with output.progress("verified", len(what.layers), "layers") as show:
        done = 0
        async for layer in retrieval:
            yield layer
            done += 1
            output.emit({"event": "layer", "layer": layer.index})
            show(done)
