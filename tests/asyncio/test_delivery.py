"""What only a real QUIC connection can show of datagrams, acknowledgements and notices."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from moqt.asyncio.transport import DATAGRAMS_AHEAD
from moqt.events import ObjectReceived, SubgroupEnded
from moqt.session.publish.source import MAX_DATAGRAM_OBJECT_OCTETS
from moqt.wire.properties import TrackProperties
from tests.asyncio.endpoints import NAME, connected, directory_with, poll, serving, write_group
from tests.asyncio.quic_pair import quic_pair

if TYPE_CHECKING:
    from moqt.tls import CertificatePair


async def test_objects_in_datagrams_arrive_up_to_the_largest(certificate: CertificatePair) -> None:
    """2.1.1#1: between real endpoints, beside a Subgroup of the same track."""
    track = moqt.TrackSource(NAME)
    sizes = [0, 1, 500, MAX_DATAGRAM_OBJECT_OCTETS]
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME) as subscription,
        asyncio.timeout(20),
    ):
        for object_id, size in enumerate(sizes):
            track.write_datagram(7, object_id, bytes(size))
        write_group(track, 8, objects=1)
        got: dict[int | None, list[int]] = {None: [], 0: []}
        async for item in subscription:
            if isinstance(item, ObjectReceived):
                header = item.object.header
                got[header.subgroup_id].append(header.payload_length)
            if got == {None: sizes, 0: [1000]}:
                break


async def test_few_datagrams_are_worth_handing_over(certificate: CertificatePair) -> None:
    """5.2#8: QUIC's own queue is kept short; there is room again once they have left."""
    async with quic_pair(certificate) as (near, far):
        room = near.transport.datagram_room()
        assert DATAGRAMS_AHEAD <= room <= 2 * DATAGRAMS_AHEAD
        for _ in range(room):
            assert near.transport.send_datagram(b"x")
        assert near.transport.datagram_room() == 0
        await far.until(lambda: len(far.datagrams) == room)
        await poll(lambda: near.transport.datagram_room() >= DATAGRAMS_AHEAD)


async def test_a_stream_is_acknowledged_when_the_peer_has_all_of_it(
    certificate: CertificatePair,
) -> None:
    """5.2#4: what SUBGROUP_DELIVERY_TIMEOUT asks of the transport."""
    async with quic_pair(certificate) as (near, far):
        stream_id = near.transport.open(bidirectional=False)
        assert stream_id is not None
        near.transport.write(stream_id, [b"first"], False)
        await far.until(partial(far.received.__contains__, stream_id))
        assert not near.transport.is_acknowledged(stream_id)  # no FIN yet
        near.transport.write(stream_id, [b"last"], True)
        assert not near.transport.is_acknowledged(stream_id)  # not even sent
        await poll(lambda: near.transport.is_acknowledged(stream_id))
        assert bytes(far.received[stream_id]) == b"firstlast"


async def test_a_subgroup_that_was_acknowledged_is_not_reset(certificate: CertificatePair) -> None:
    """5.2#4: the timer of a delivered Subgroup does nothing."""
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME, subgroup_delivery_timeout_ms=300) as subscription,
        asyncio.timeout(20),
    ):
        write_group(track, 0, objects=1)
        publishing = next(iter(server.sessions))
        await poll(lambda: publishing.stats.open_streams_sent == 0)
        async for item in subscription:
            if isinstance(item, SubgroupEnded):
                assert item.reset is None
                break
        await poll(lambda: publishing._session.next_deadline is None)  # it has run
        assert publishing.stats.streams_reset_by_us == 0


async def test_the_clock_of_a_track_is_that_of_its_sessions(certificate: CertificatePair) -> None:
    """5.2#1: an application says nothing of clocks, and Objects have their age all the same."""
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME),
    ):
        assert track.clock is not None
        before = asyncio.get_running_loop().time()
        assert before <= track.now() <= asyncio.get_running_loop().time()


async def test_news_of_the_state_reach_a_paused_subscriber(certificate: CertificatePair) -> None:
    """9.10#2: LARGEST_OBJECT, by PUBLISH_STATE_NOTIFY."""
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME, forward=False) as subscription,
    ):
        assert (subscription.largest, subscription.notified) == (None, None)
        write_group(track, 4, objects=2)
        track.notify_state()
        news = moqt.Location(4, 1)
        await poll(lambda: bool(subscription.notified and subscription.notified.largest == news))


async def test_a_new_group_is_asked_for_and_begun(certificate: CertificatePair) -> None:
    """9.20.19#1, #2: in SUBSCRIBE and in an update; not where the track has no DYNAMIC_GROUPS."""
    track = moqt.TrackSource(NAME, properties=TrackProperties.of(dynamic_groups=True))
    fixed = moqt.TrackSource(moqt.FullTrackName(NAME.namespace, b"fixed"))
    directory = directory_with(track)
    directory.add(fixed)
    wishes: list[int] = []

    def begin_group(group_id: int) -> None:
        wishes.append(group_id)
        write_group(track, len(wishes), objects=1)

    track.on_new_group_request = begin_group
    async with (
        serving(certificate, directory) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME, new_group_request=0) as subscription,
        session.subscribe(fixed.name, new_group_request=0) as other,
        asyncio.timeout(20),
    ):
        assert await subscription.update(new_group_request=2) == moqt.Location(1, 0)
        await poll(lambda: wishes == [0, 2])
        with pytest.raises(errors.LocalProtocolError, match="DYNAMIC_GROUPS"):
            await other.update(new_group_request=0)
        groups = []
        async for item in subscription:
            if isinstance(item, ObjectReceived):
                groups.append(item.object.location.group_id)
            if groups == [1, 2]:
                break
