"""Clients that follow, tracks for them, and what they took."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import moqt
from moqt.events import (
    ObjectReceived,
)
from tests.asyncio.endpoints import (
    payload,
)
from tests.asyncio.quic_pair import QUICK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from moqt.asyncio.tracks import SubscriptionItem
    from moqt.tls import CertificatePair
    from moqt.uri import MoqtUri

SMALL = moqt.SessionConfig(max_buffered_octets=100_000)
NARROW = moqt.TransportConfig(
    close_linger_s=0.01, connection_window_octets=200_000, stream_window_octets=100_000
)
"""Together they let a publisher send little more than was read."""


OTHER = moqt.FullTrackName(moqt.TrackNamespace.of("kv", "moved"), b"k.raw.s0")
WHOLE = moqt.FillParameters(location_filter=moqt.LocationFilter.absolute(moqt.Location(0, 0)))


def url(server: moqt.Server, host: str = "127.0.0.1") -> str:
    return f"moqt://{host}:{server.port}/"


@asynccontextmanager
async def client_of(
    server: moqt.Server,
    certificate: CertificatePair,
    follow_config: moqt.FollowConfig | None = None,
    config: moqt.SessionConfig | None = None,
    transport_config: moqt.TransportConfig = QUICK,
) -> AsyncIterator[moqt.Client]:
    async with moqt.Client.connect(
        url(server),
        ca=certificate.certificate,
        follow_config=follow_config,
        config=config,
        transport_config=transport_config,
    ) as client:
        yield client


def full_track(name: moqt.FullTrackName, groups: int = 2) -> moqt.TrackSource:
    track = moqt.TrackSource(name)
    for group_id in range(groups):
        writer = track.open_group(group_id)
        for object_id in range(3):
            writer.write(object_id, f"{group_id}.{object_id}.".encode().ljust(1000, b"-"))
        writer.close()
    track.end()
    return track


async def take(items: moqt.RoamingSubscription, objects: int) -> list[tuple[int, int]]:
    """Take items until so many Objects have come; return their places."""
    found: list[tuple[int, int]] = []
    async with asyncio.timeout(20):
        while len(found) < objects:
            item = await anext(items)
            if isinstance(item, ObjectReceived):
                header = item.object.header
                assert item.object.payload is not None
                octets = len(item.object.payload)
                assert bytes(item.object.payload) == payload(
                    header.group_id, header.object_id, octets
                )
                found.append((header.group_id, header.object_id))
    return found


async def take_all(
    items: moqt.RoamingSubscription,
) -> tuple[list[tuple[int, int]], list[SubscriptionItem]]:
    places: list[tuple[int, int]] = []
    others: list[SubscriptionItem] = []
    async with asyncio.timeout(20):
        async for item in items:
            if isinstance(item, ObjectReceived):
                if item.object.status is moqt.ObjectStatus.NORMAL:
                    places.append((item.object.header.group_id, item.object.header.object_id))
            else:
                others.append(item)
    return places, others


def hold_back(client: moqt.Client) -> asyncio.Event:
    """Have new sessions of a client wait until the event is set."""
    may_go = asyncio.Event()
    dial = client._sessions._dial

    @asynccontextmanager
    async def held(uri: MoqtUri) -> AsyncIterator[moqt.MoqtSession]:
        await may_go.wait()
        async with dial(uri) as session:
            yield session

    client._sessions._dial = held
    return may_go
