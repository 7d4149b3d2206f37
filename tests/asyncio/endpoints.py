"""A server and clients of it on loopback, and small tracks to move between them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import moqt
from moqt.events import ObjectReceived
from tests.asyncio.quic_pair import QUICK

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable

    from moqt.tls import CertificatePair

NAMESPACE = moqt.TrackNamespace.of("kv", b"\x00\xff")
NAME = moqt.FullTrackName(NAMESPACE, b"k.raw.s0")


@asynccontextmanager
async def serving(
    certificate: CertificatePair,
    directory: moqt.TrackDirectory | None = None,
    *,
    config: moqt.SessionConfig | None = None,
    transport_config: moqt.TransportConfig = QUICK,
    takes_offers: bool = False,
    host: str = "127.0.0.1",
    token_policy: moqt.TokenPolicy | None = None,
) -> AsyncIterator[moqt.Server]:
    async with moqt.serve(
        host,
        0,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        directory=directory,
        config=config,
        transport_config=transport_config,
        takes_offers=takes_offers,
        token_policy=token_policy,
    ) as server:
        yield server


@asynccontextmanager
async def connected(
    server: moqt.Server,
    certificate: CertificatePair,
    *,
    config: moqt.SessionConfig | None = None,
    transport_config: moqt.TransportConfig = QUICK,
    directory: moqt.TrackDirectory | None = None,
    takes_offers: bool = False,
) -> AsyncIterator[moqt.MoqtSession]:
    async with moqt.connect(
        f"moqt://127.0.0.1:{server.port}/",
        ca=certificate.certificate,
        config=config,
        transport_config=transport_config,
        directory=directory,
        takes_offers=takes_offers,
    ) as session:
        yield session


def payload(group_id: int, object_id: int, octets: int) -> bytes:
    return f"{group_id}.{object_id}.".encode().ljust(octets, b"-")


def write_group(track: moqt.TrackSource, group_id: int, objects: int, octets: int = 1000) -> None:
    writer = track.open_group(group_id)
    for object_id in range(objects):
        writer.write(object_id, payload(group_id, object_id, octets))
    writer.close()


def track_with(groups: int, objects: int, octets: int = 1000) -> moqt.TrackSource:
    track = moqt.TrackSource(NAME)
    for group_id in range(groups):
        write_group(track, group_id, objects, octets)
    return track


def directory_with(*tracks: moqt.TrackSource) -> moqt.TrackDirectory:
    directory = moqt.TrackDirectory()
    for track in tracks:
        directory.add(track)
    return directory


async def read_objects(items: AsyncIterable[object]) -> dict[tuple[int, int], bytes]:
    """Read to the end and return the payloads; an Object that comes twice is an error."""
    found: dict[tuple[int, int], bytes] = {}
    async with asyncio.timeout(20):
        async for item in items:
            if isinstance(item, ObjectReceived):
                header = item.object.header
                if header.status is not moqt.ObjectStatus.NORMAL:
                    continue
                place = (header.group_id, header.object_id)
                assert place not in found
                assert item.object.payload is not None
                found[place] = bytes(item.object.payload)
    return found


def expected(groups: range, objects: int, octets: int = 1000) -> dict[tuple[int, int], bytes]:
    return {(g, o): payload(g, o, octets) for g in groups for o in range(objects)}


async def poll(condition: Callable[[], bool]) -> None:
    """Wait for what nobody signals."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
