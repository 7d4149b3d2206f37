"""A relay for tests: as soon as a namespace comes it copies the tracks that it expects there."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import moqt
from moqt import errors
from moqt.events import NamespaceOffered, ObjectReceived, SubgroupEnded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from moqt.session.publish.source import SubgroupWriter
    from moqt.tls import CertificatePair

TRACK_NAMES = (b"objects", b"test-track")
KVCS_NAMES = (b"manifest", b"k.raw.s0", b"v.raw.s0")
RETRY_S = 0.005


@dataclass
class EagerRelay:
    """A relay that works, but for what is set here."""

    drops: frozenset[moqt.Location] = frozenset()
    garbles: frozenset[moqt.Location] = frozenset()
    is_mute: bool = False
    """No PUBLISH_NAMESPACE is answered."""
    keeps_namespaces: bool = False
    """Those that are withdrawn are still reported."""
    directory: moqt.TrackDirectory = field(default_factory=moqt.TrackDirectory)
    port: int = 0

    @property
    def url(self) -> str:
        return f"moqt://127.0.0.1:{self.port}"

    async def serve(self, server: moqt.Server) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for session in server:
                tasks.create_task(self._serve_one(session))

    async def _serve_one(self, session: moqt.MoqtSession) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for offer in session.offers():
                if not self.is_mute and isinstance(offer, NamespaceOffered):
                    tasks.create_task(self._take(session, offer))

    async def _take(self, session: moqt.MoqtSession, offer: NamespaceOffered) -> None:
        namespace = offer.namespace
        async with asyncio.TaskGroup() as tasks:
            copying = []
            is_kvcs = namespace.fields[0] == b"kvcs-1"
            for name in KVCS_NAMES if is_kvcs else TRACK_NAMES:
                ready = asyncio.Event()
                track = moqt.FullTrackName(namespace, name)
                if is_kvcs:  # its tracks come later than their namespace
                    copying.append(tasks.create_task(self._await(session, track)))
                    continue
                copying.append(tasks.create_task(self._copy(session, track, ready)))
                await ready.wait()
            self.directory.advertise(namespace)
            with suppress(errors.SessionClosed):
                await session.accept_namespace(offer).wait_withdrawn()
            if not self.keeps_namespaces:
                self.directory.withdraw(namespace)
            for task in copying:
                task.cancel()

    async def _await(self, session: moqt.MoqtSession, name: moqt.FullTrackName) -> None:
        """Offer a track that may not be there yet, and copy it once it is."""
        source = moqt.TrackSource(name)
        self.directory.add(source)
        try:
            while not await self._follow(session, source, asyncio.Event()):  # noqa: ASYNC110
                await asyncio.sleep(RETRY_S)
            # Whoever comes late, or misses Objects, asks for it until its namespace is withdrawn.
            await asyncio.get_running_loop().create_future()
        finally:
            self.directory.remove(source)

    async def _copy(
        self, session: moqt.MoqtSession, name: moqt.FullTrackName, ready: asyncio.Event
    ) -> None:
        """Copy a track for as long as its namespace is there; `ready`: what there was is copied."""
        source = moqt.TrackSource(name)
        try:
            await self._follow(session, source, ready, lambda: self.directory.add(source))
        finally:
            ready.set()
            if not self.keeps_namespaces:
                self.directory.remove(source)

    async def _follow(
        self,
        session: moqt.MoqtSession,
        source: moqt.TrackSource,
        ready: asyncio.Event,
        begin: Callable[[], None] = lambda: None,
    ) -> bool:
        """Copy a track to its end; False when it is not there."""
        writers: dict[int, SubgroupWriter] = {}
        fill = moqt.FillParameters(location_filter=moqt.LocationFilter.none())
        try:
            async with session.subscribe(
                source.name, location_filter=moqt.LocationFilter.next_object(), fill=fill
            ) as upstream:
                largest = upstream.largest
                begin()
                if largest is None:
                    ready.set()
                async for item in upstream:
                    if isinstance(item, ObjectReceived):
                        self._store(source, writers, item.object)
                        if item.object.location == largest:
                            ready.set()
                    elif isinstance(item, SubgroupEnded) and item.group_id in writers:
                        writers[item.group_id].close()
        except errors.RequestRejected:
            return False
        except errors.SessionClosed:
            pass
        return True

    def _store(
        self, source: moqt.TrackSource, writers: dict[int, SubgroupWriter], obj: moqt.Object
    ) -> None:
        at = obj.location
        if at in self.drops or obj.status is not moqt.ObjectStatus.NORMAL:
            return
        if at.group_id not in writers:
            priority = obj.header.publisher_priority
            writers[at.group_id] = source.open_group(at.group_id, publisher_priority=priority)
        octets = bytes(obj.payload or b"")
        if at in self.garbles:
            octets = octets[::-1]
        writers[at.group_id].write(at.object_id, octets)


@asynccontextmanager
async def relaying(
    certificate: CertificatePair,
    relay: EagerRelay | None = None,
    config: moqt.SessionConfig | None = None,
) -> AsyncIterator[EagerRelay]:
    """Run a relay on loopback."""
    relay = relay or EagerRelay()
    async with moqt.serve(
        "127.0.0.1",
        0,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        directory=relay.directory,
        config=config,
        takes_offers=True,
    ) as server:
        relay.port = server.port
        serving = asyncio.create_task(relay.serve(server))
        try:
            yield relay
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
