"""`kvcs publish`: the K and V tensors of a safetensors file, on the air."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  Typer reads annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from kvcs.cli import connect, inputs, options
from kvcs.cli.describe import CacheLayers, Said, describe
from kvcs.cli.exits import CommandError, ExitCode
from kvcs.cli.files import check_output, create, writing
from kvcs.cli.output import Output, counted, octets_text
from kvcs.cli.summaries import descriptor_line, name_record
from kvcs.cli.tensors import K_NAMES, V_NAMES, CacheFile, NameTemplate
from kvcs.config import ProducerConfig
from kvcs.errors import InvalidTokens
from kvcs.kvsp.codecs import CODECS
from kvcs.kvsp.identity import Prefix
from kvcs.kvsp.shapes import Layout  # noqa: TC001  as above
from kvcs.names import NamespaceForm
from kvcs.publisher import Producer
from moqt.session.access.authorization import KnownTokens
from moqt.tls import load_identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractAsyncContextManager

    from kvcs.keys import ProducerKey
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens
    from kvcs.kvsp.shapes import AnyArray
    from kvcs.publisher import Publication, Segment
    from moqt.asyncio.config import TransportConfig
    from moqt.session.access.authorization import AuthToken

__all__ = ["publish"]

FOREVER_S = 10 * 365 * 86400.0
"""How long what this command publishes is kept: as long as it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What to publish, all of it checked."""

    layers: CacheLayers
    descriptor: Descriptor
    tokens: Tokens
    blocks: int
    segment_blocks: int
    codec: str
    joint: bool
    deterministic: bool
    serve_for_s: float | None

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield first block and number of blocks of each segment."""
        for first in range(0, self.blocks, self.segment_blocks):
            yield first, min(self.segment_blocks, self.blocks - first)


def publish(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A safetensors file.")],
    tokens: options.TokensFile = None,
    scope_key_file: options.ScopeKeyFile = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Serve consumers there; port 0: any."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate",
            metavar="FILE",
            envvar="KVCS_CERTIFICATE",
            help="Certificate to serve with, PEM.",
        ),
    ] = None,
    private_key: Annotated[
        Path | None,
        typer.Option(
            "--private-key", metavar="FILE", envvar="KVCS_PRIVATE_KEY", help="Its key, PEM."
        ),
    ] = None,
    relay: Annotated[
        str | None, typer.Option("--relay", metavar="URL", help="Publish through this relay.")
    ] = None,
    ca: options.Authority = None,
    insecure: options.Insecure = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            envvar="KVCS_TOKEN_FILE",
            help="Authorization token: --listen serves only who shows it, --relay is shown it.",
        ),
    ] = None,
    descriptor: options.DescriptorFile = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Identity of the weights.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="NAME", help="Their revision.")
    ] = None,
    block_tokens: Annotated[
        int | None, typer.Option("--block-tokens", metavar="N", min=1, help="Tokens in a block.")
    ] = None,
    layout: Annotated[
        Layout | None,
        typer.Option(
            "--layout", help="Axes of the tensors: tokens, heads, dim or heads, tokens, dim."
        ),
    ] = None,
    write_descriptor: Annotated[
        Path | None,
        typer.Option(
            "--write-descriptor", metavar="FILE", help="Write the descriptor for consumers."
        ),
    ] = None,
    k_names: options.KNames = K_NAMES,
    v_names: options.VNames = V_NAMES,
    sign: Annotated[
        Path | None,
        typer.Option(
            "--sign",
            metavar="FILE",
            envvar="KVCS_SIGNING_KEY_FILE",
            help="Sign manifests with this producer key (`kvcs keygen producer`).",
        ),
    ] = None,
    codec: Annotated[
        str, typer.Option("--codec", metavar="NAME", help="raw, zstd, bszstd.")
    ] = "raw",
    joint: Annotated[bool, typer.Option("--joint", help="K and V in one track.")] = False,
    segment_size: Annotated[
        int | None,
        typer.Option(
            "--segment-size",
            metavar="BLOCKS",
            min=1,
            help="Blocks of one segment; else all in one.",
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic", help="Declare that other publications have the same octets."
        ),
    ] = False,
    serve_for: Annotated[
        float | None,
        typer.Option(
            "--serve-for",
            metavar="SECONDS",
            min=0,
            help="End so long after the last layer; else on Ctrl-C.",
        ),
    ] = None,
    namespace_form: options.Form = NamespaceForm.BINARY,
    qlog: options.Qlog = None,
    force: options.Force = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Publish the KV cache in a safetensors file, layer by layer.

    The descriptor is read (--descriptor, or what `kvcs fetch` stored in FILE) or made from the
    tensors' shapes and --model, --block-tokens and --layout.
    """
    output = Output(as_json=as_json)
    scope = inputs.need_scope(scope_key_file)
    if codec not in CODECS:
        raise CommandError(ExitCode.USAGE, f"--codec: there is no codec {codec!r}")
    signing_key = connect.need_signing_key(sign)
    producer = _producer(
        listen,
        certificate,
        private_key,
        relay,
        ca,
        insecure=insecure,
        scope=scope,
        auth_tokens=inputs.find_auth_tokens(token_file),
        signing_key=signing_key,
        config=ProducerConfig(retain_s=FOREVER_S, namespace_form=namespace_form),
        transport_config=connect.tracing(qlog),
    )
    layers = CacheLayers(CacheFile.open(file), NameTemplate(k_names), NameTemplate(v_names))
    said = Said(model=model, revision=revision, block_tokens=block_tokens, layout=layout)
    if descriptor is not None and not said.is_empty:
        raise CommandError(
            ExitCode.USAGE, "--descriptor says --model, --revision, --block-tokens and --layout"
        )
    described = (
        inputs.need_descriptor(descriptor) if descriptor is not None else describe(layers, said)
    )
    ids = inputs.need_tokens(tokens)
    blocks = _check_tokens(output, layers, described, scope, ids)
    if write_descriptor is not None:
        _write_descriptor(write_descriptor, described, force=force)
    work = _Work(
        layers=layers,
        descriptor=described,
        tokens=ids,
        blocks=blocks,
        segment_blocks=segment_size or blocks,
        codec=codec,
        joint=joint,
        deterministic=deterministic,
        serve_for_s=serve_for,
    )
    connect.run(_publish(producer, work, output))


def _write_descriptor(path: Path, descriptor: Descriptor, *, force: bool) -> None:
    """Write it; a file that already says the same stays, so that a command can be repeated."""
    text = descriptor.jcs() + b"\n"
    if path.is_file() and path.stat().st_size == len(text) and path.read_bytes() == text:
        return
    check_output(path, force=force)
    create(path, writing(text, 0o644), force=force)


def _producer(
    listen: str | None,
    certificate: Path | None,
    private_key: Path | None,
    relay: str | None,
    ca: Path | None,
    *,
    insecure: bool,
    scope: Scope,
    auth_tokens: tuple[AuthToken, ...],
    signing_key: ProducerKey | None,
    config: ProducerConfig,
    transport_config: TransportConfig,
) -> AbstractAsyncContextManager[Producer]:
    """Return the producer that the options ask for, not begun yet."""
    if (listen is None) == (relay is None):
        raise CommandError(
            ExitCode.USAGE,
            "expected either --listen or --relay",
            hint="--listen 127.0.0.1:4443 serves consumers directly",
        )
    if relay is not None:
        return Producer.connect(
            str(connect.need_url(relay)),
            scope=scope,
            ca=connect.need_authority(ca),
            insecure=insecure,
            signing_key=signing_key,
            config=config,
            transport_config=transport_config,
            auth_tokens=auth_tokens,
        )
    assert listen is not None
    host, port = inputs.parse_address(listen)
    if certificate is None or private_key is None:
        raise CommandError(
            ExitCode.USAGE,
            "--listen needs --certificate and --private-key",
            hint="to try it out, `kvcs keygen certificate CERTIFICATE KEY` makes both",
        )
    try:
        load_identity(certificate, private_key)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, str(error)) from error
    return Producer.serve(
        host,
        port,
        scope=scope,
        certificate=certificate,
        private_key=private_key,
        signing_key=signing_key,
        config=config,
        transport_config=transport_config,
        token_policy=KnownTokens(auth_tokens) if auth_tokens else None,
    )


def _check_tokens(
    output: Output, layers: CacheLayers, descriptor: Descriptor, scope: Scope, tokens: Tokens
) -> int:
    """Return how many blocks there are to publish; the file must hold all their tokens."""
    held = layers.check(descriptor)
    prefix = Prefix.of(scope, descriptor, tokens)
    if held < prefix.tokens:
        raise InvalidTokens(
            f"{layers.file.path} holds {counted(held, 'token')}, the {len(tokens)} given have "
            f"{counted(prefix.blocks, 'block')} of {descriptor.block_tokens}: "
            f"{counted(prefix.tokens, 'token')}"
        )
    if held != len(tokens):
        what = f"{layers.file.path} holds {counted(held, 'token')}, {len(tokens)} given"
        output.note(f"{what}: published are the first {prefix.tokens}, the whole blocks")
    return prefix.blocks


async def _publish(
    producing: AbstractAsyncContextManager[Producer], work: _Work, output: Output
) -> None:
    async with producing as producer:
        if producer.port is not None:
            output.emit(
                {"event": "serving", "port": producer.port}, f"serving on port {producer.port}"
            )
        publication = await producer.publish(
            work.descriptor, work.tokens, deterministic=work.deterministic
        )
        output.emit(
            {
                "event": "publication",
                **name_record(publication.name),
                "blocks": publication.blocks,
                "descriptor": work.descriptor.to_dict(),
            },
            f"{descriptor_line(work.descriptor)}\n"
            f"publication {publication.namespace}, {counted(publication.blocks, 'block')}",
        )
        spans = list(work.spans())
        total = len(spans) * work.descriptor.layers
        with output.progress("published", total, "layers") as show:
            for first, blocks in spans:
                segment = publication.segment(first, blocks, work.codec, work.joint)
                async for layer in _publish_layers(segment, work):
                    output.emit({"event": "layer", "first_block": first, "layer": layer})
                    show(publication.stats.layers)
                await segment.complete()
        _say_complete(publication, output)
        if work.serve_for_s is None:
            output.note("serving until Ctrl-C")
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(work.serve_for_s)


async def _publish_layers(segment: Segment, work: _Work) -> AsyncIterator[int]:
    """Publish a segment's layers, and yield the index of each when it is on its way."""
    for layer in range(work.descriptor.layers):
        k = _cut(work, layer, work.layers.k(layer), segment.tokens)
        v = work.layers.v(layer, work.descriptor)
        await segment.put_layer(
            layer, k, None if v is None else _cut(work, layer, v, segment.tokens)
        )
        yield layer


def _cut(work: _Work, layer: int, tensor: AnyArray, tokens: slice) -> AnyArray:
    """Return the tokens of a tensor that are a segment's."""
    axis = work.descriptor.geometry(layer).token_axis()
    return tensor[tokens] if axis == 0 else tensor[:, tokens]


def _say_complete(publication: Publication, output: Output) -> None:
    stats = publication.stats
    output.emit(
        {
            "event": "complete",
            "layers": stats.layers,
            "objects": stats.objects,
            "octets": stats.octets,
            "manifest_versions": stats.manifest_versions,
        },
        f"complete: {counted(stats.layers, 'layer')}, {counted(stats.objects, 'Object')}, "
        f"{octets_text(stats.octets)}",
    )
