"""What is published at an address: namespaces and their manifests, for `kvcs inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcs.errors import InvalidName, KvcsError
from kvcs.manifest_feed import ManifestFeed
from kvcs.names import PROFILE, PublicationName, scope_prefix
from moqt.errors import MoqtError
from moqt.types import TrackNamespace

if TYPE_CHECKING:
    from kvcs.config import ConsumerConfig
    from kvcs.kvsp.identity import Scope
    from kvcs.manifest import Manifest
    from kvcs.trust import Trust
    from moqt.asyncio.session import MoqtSession

__all__ = ["Surveyed", "survey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """One publication. `problem`: why there is no name or no manifest."""

    namespace: TrackNamespace
    name: PublicationName | None = None
    manifest: Manifest | None = None
    is_signed: bool = False
    key_id: bytes | None = None
    problem: KvcsError | MoqtError | None = None


async def survey(
    session: MoqtSession,
    *,
    scope: Scope | None,
    trust: Trust,
    config: ConsumerConfig,
    listen_s: float,
) -> list[Surveyed]:
    """Return what is published, of one scope or of all, each with its current manifest.

    It listens for `listen_s` (MOQT marks no end of the list), and looks at `max_publications`.
    Raises: MoqtError when the namespaces cannot be asked for or the session is lost.
    """
    form = config.namespace_form
    prefix = TrackNamespace((PROFILE,)) if scope is None else scope_prefix(scope.scope_id, form)
    async with session.subscribe_namespace(prefix) as subscription:
        found = await subscription.listing(listen_s=listen_s, limit=config.max_publications)
    return [await _look(session, namespace, trust, config) for namespace in found.namespaces]


async def _look(
    session: MoqtSession, namespace: TrackNamespace, trust: Trust, config: ConsumerConfig
) -> Surveyed:
    try:
        name = PublicationName.parse(namespace, config.namespace_form)
    except InvalidName as error:
        return Surveyed(namespace=namespace, problem=error)
    is_signed = False
    try:
        async with ManifestFeed(
            session,
            namespace,
            compatibility_id=name.compatibility_id,
            trust=trust,
            config=config,
        ) as feed:
            is_signed = feed.is_signed
            manifest = await feed.first()
            key_id = feed.key_id
    except (KvcsError, MoqtError) as error:
        session.raise_if_closed()
        return Surveyed(namespace=namespace, name=name, is_signed=is_signed, problem=error)
    return Surveyed(
        namespace=namespace, name=name, manifest=manifest, is_signed=is_signed, key_id=key_id
    )
