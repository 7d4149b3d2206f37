"""What commands that retrieve share: `fetch` and `watch` ask for a cache in the same words."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcs.cli import connect, inputs
from kvcs.cli.exits import CommandError, ExitCode
from kvcs.cli.output import counted, printable
from kvcs.cli.summaries import signature_text
from kvcs.config import ConsumerConfig
from kvcs.consumer import Consumer
from kvcs.kvsp.identity import Prefix

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from kvcs.consumer import Retrieval
    from kvcs.keys import TrustedKeys
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens
    from kvcs.names import NamespaceForm
    from moqt.asyncio.config import TransportConfig
    from moqt.session.access.authorization import AuthToken
    from moqt.types import TrackNamespace

__all__ = ["Wanted", "publication_line", "retrieving", "wanted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A cache to retrieve, and from where; all of it checked as far as it can be beforehand."""

    url: str
    publication: TrackNamespace | None
    scope: Scope
    auth_tokens: tuple[AuthToken, ...]
    descriptor: Descriptor
    tokens: Tokens
    layers: range
    blocks: int | None
    sessions: int
    ca: bytes | None
    insecure: bool
    trusted: TrustedKeys | None
    config: ConsumerConfig
    transport_config: TransportConfig


def wanted(
    url: str,
    descriptor: Path | None,
    tokens: str | None,
    scope_key_file: Path | None,
    *,
    token_file: Path | None,
    layers: str | None,
    blocks: int | None,
    ca: Path | None,
    insecure: bool,
    trust: Sequence[Path] | None,
    form: NamespaceForm,
    qlog: Path | None,
    wait_s: float,
    recover_for_s: float,
    sessions: int = 1,
) -> Wanted:
    """Return what the options of a command ask for. Raises: CommandError and what inputs raise."""
    uri = connect.need_url(url)
    described = inputs.need_descriptor(descriptor)
    scope = inputs.need_scope(scope_key_file)
    ids = inputs.need_tokens(tokens)
    wanted_layers = inputs.parse_layers(layers) or range(described.layers)
    if wanted_layers.stop > described.layers:
        raise CommandError(
            ExitCode.USAGE,
            f"--layers {layers}: the descriptor has layers 0 to {described.layers - 1}",
        )
    prefix = Prefix.of(scope, described, ids)
    if blocks is not None and blocks > prefix.blocks:
        raise CommandError(
            ExitCode.USAGE, f"--blocks {blocks}: the tokens have {prefix.blocks} full blocks"
        )
    return Wanted(
        url=url,
        publication=None if uri.fragment is None else _publication(uri.fragment),
        scope=scope,
        auth_tokens=inputs.find_auth_tokens(token_file),
        descriptor=described,
        tokens=ids,
        layers=wanted_layers,
        blocks=blocks,
        sessions=sessions,
        ca=connect.need_authority(ca),
        insecure=insecure,
        trusted=connect.need_trusted(trust),
        config=ConsumerConfig(
            namespace_form=form, discovery_timeout_s=wait_s, recovery_deadline_s=recover_for_s
        ),
        transport_config=connect.tracing(qlog),
    )


def _publication(fragment: str) -> TrackNamespace:
    try:
        return inputs.parse_namespace(fragment)
    except ValueError as error:
        raise CommandError(
            ExitCode.USAGE,
            printable(f"URL fragment: {error}"),
            hint="a publication is named moqt://HOST:PORT/#<namespace>",
        ) from error


def publication_line(retrieval: Retrieval, what: Wanted) -> str:
    """Return what is retrieved: namespace, blocks, signature."""
    signature = signature_text(retrieval.key_id, is_trusted=what.trusted is not None)
    blocks = counted(retrieval.blocks, "block")
    return f"publication {retrieval.publication}, {blocks}, {signature}"


@asynccontextmanager
async def retrieving(what: Wanted) -> AsyncIterator[Retrieval]:
    """Connect, find the publication, and begin. Raises: what `Consumer.retrieve` raises."""
    async with (
        Consumer.connect(
            what.url,
            scope=what.scope,
            ca=what.ca,
            insecure=what.insecure,
            trusted_keys=what.trusted,
            require_signature=what.trusted is not None,
            config=what.config,
            transport_config=what.transport_config,
            auth_tokens=what.auth_tokens,
        ) as consumer,
        await consumer.retrieve(
            what.descriptor,
            what.tokens,
            layers=what.layers,
            blocks=what.blocks,
            publication=what.publication,
            sessions=what.sessions,
        ) as retrieval,
    ):
        yield retrieval
