"""This project's side of the cases: the test track as ours publishes it, and what came of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import moqt
from interop.content.track_content import GROUPS, OBJECTS, SIZE, Collected, payload
from interop.harness.cases import CaseFailed
from moqt.events import FillEnded, ObjectReceived

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from interop.harness.stage import Stage
    from moqt.asyncio.requests import ItemStream

__all__ = [
    "BINARY",
    "TEXT",
    "TRACK",
    "Collection",
    "TestTrack",
    "collect",
    "dial",
    "first_session",
    "hex_fields",
    "named",
    "serving",
    "url_of",
    "whole_track",
]

TEXT = moqt.TrackNamespace.of("kvcs", "model-a", "run-1")
BINARY = moqt.TrackNamespace.of(
    b"kvcs", bytes.fromhex("00ff2f2e2d5f80c0fe0d0a") + bytes(range(200, 221)), b"run-1"
)
"""One field has 32 octets: NUL, 0xff, '/', '.', and what is no UTF-8."""

TRACK = b"layers"


def named(namespace: moqt.TrackNamespace) -> moqt.FullTrackName:
    """Return the test track's name in a namespace."""
    return moqt.FullTrackName(namespace, TRACK)


def hex_fields(namespace: Iterable[bytes]) -> str:
    """Return a namespace as the peers' scripts read it."""
    return ",".join(field.hex() for field in namespace)


def url_of(port: int) -> str:
    """Return the address of a peer's server on this machine."""
    return f"moqt://127.0.0.1:{port}/"


class TestTrack(moqt.TrackSource):
    """The test track, published as far as a case wants it."""

    def __init__(self, namespace: moqt.TrackNamespace, *, size: int = SIZE) -> None:
        super().__init__(named(namespace))
        self._size = size
        self._published = 0
        self._writer: moqt.SubgroupWriter | None = None

    def publish(self, objects: int) -> None:
        """Publish until so many Objects are there."""
        for number in range(self._published, objects):
            group_id, object_id = divmod(number, OBJECTS)
            if self._writer is None:
                self._writer = self.open_group(group_id, ends_group=True)
            self._writer.write(object_id, payload(group_id, object_id, self._size))
            if object_id == OBJECTS - 1:
                self._writer.close()
                self._writer = None
        self._published = objects

    def publish_all(self) -> None:
        """Publish the rest, and the end."""
        self.publish(GROUPS * OBJECTS)
        self.end()


def whole_track(namespace: moqt.TrackNamespace) -> TestTrack:
    """Return the test track with all its Objects."""
    track = TestTrack(namespace)
    track.publish_all()
    return track


@asynccontextmanager
async def serving(
    stage: Stage, *tracks: moqt.TrackSource, takes_offers: bool = False
) -> AsyncIterator[moqt.Server]:
    """Serve tracks."""
    directory = moqt.TrackDirectory()
    for track in tracks:
        directory.add(track)
    async with moqt.serve(
        "127.0.0.1",
        0,
        certificate=stage.certificate,
        private_key=stage.private_key,
        directory=directory,
        takes_offers=takes_offers,
    ) as server:
        yield server


@asynccontextmanager
async def dial(
    stage: Stage,
    port: int,
    *tracks: moqt.TrackSource,
    takes_offers: bool = False,
) -> AsyncIterator[moqt.MoqtSession]:
    """Connect to a peer's server, whose certificate is the stage's."""
    directory = moqt.TrackDirectory()
    for track in tracks:
        directory.add(track)
    async with moqt.connect(
        url_of(port), ca=stage.certificate, directory=directory, takes_offers=takes_offers
    ) as session:
        yield session


async def first_session(server: moqt.Server) -> moqt.MoqtSession:
    """Wait for a client."""
    async for session in server:
        return session
    raise CaseFailed("the server ended before a client came")


class Collection:
    """What a subscription or fetch of ours brought."""

    def __init__(self, size: int = SIZE) -> None:
        self.live = Collected(size)
        self.fill = Collected(size)
        self.is_fill_over = False
        self.is_fill_whole = False

    def __len__(self) -> int:
        return len(self.live) + len(self.fill)


async def collect(
    stream: ItemStream[moqt.Subscription] | moqt.Subscription | moqt.Fetch,
    *,
    objects: int | None = None,
    has_fill: bool = False,
    size: int = SIZE,
    into: Collection | None = None,
) -> Collection:
    """Take what comes: until so many Objects are there (and the fill is over), or to the end.

    `into`: what is filled, and has what came when this is cancelled.
    """
    got = Collection(size) if into is None else into
    async for item in stream:
        if isinstance(item, ObjectReceived) and item.object.payload:
            header = item.object.header
            objects_of = got.fill if item.from_fill else got.live
            objects_of.add(header.group_id, header.object_id, item.object.payload)
        elif isinstance(item, FillEnded):
            got.is_fill_over = True
            got.is_fill_whole = item.reset is None
        if objects is not None and len(got) >= objects and got.is_fill_over == has_fill:
            break
    return got
