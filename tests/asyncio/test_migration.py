"""Running subscriptions move on GOAWAY, each Object once (MOQT-22 6.6.1, 9.2)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import moqt
from moqt import errors
from moqt.asyncio.roaming import Leg
from moqt.events import (
    FillEnded,
    ObjectReceived,
    SubgroupEnded,
)
from tests.asyncio.endpoints import (
    NAME,
    NAMESPACE,
    directory_with,
    payload,
    poll,
    read_objects,
    serving,
    track_with,
    write_group,
)
from tests.asyncio.roaming import (
    NARROW,
    OTHER,
    SMALL,
    WHOLE,
    client_of,
    full_track,
    hold_back,
    take,
    take_all,
    url,
)

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

both_loops = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@both_loops
async def test_a_running_subscription_moves_and_brings_each_object_once(
    certificate: CertificatePair,
) -> None:
    """9.2#5, #6, #10, 6.6.1#2: to the URI given, the old one is cancelled, then its session ends
    with NO_ERROR; nothing new is asked for there."""
    track = moqt.TrackSource(NAME)
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
        client.subscribe(NAME) as subscription,
    ):
        old, (served,) = client.session, first.sessions
        write_group(track, 0, objects=3)
        writer = track.open_group(1)
        writer.write(0, payload(1, 0, 1000))
        assert sorted(await take(subscription, 4)) == [(0, 0), (0, 1), (0, 2), (1, 0)]
        asked = old.stats.requests_sent
        first.goaway(url(second))
        for object_id in range(1, 5):
            writer.write(object_id, payload(1, object_id, 1000))
        writer.close()
        end = await served.wait_closed()
        assert (end.code, end.by_peer) == (moqt.SessionErrorCode.NO_ERROR, True)
        assert served.stats.open_requests == 0
        assert old.stats.requests_sent == asked
        write_group(track, 2, objects=2)
        track.end()
        places, _ = await take_all(subscription)
        assert sorted(places) == [(1, n) for n in range(1, 5)] + [(2, 0), (2, 1)]
        assert subscription.done is not None
        assert subscription.moves == 1
        assert str(client.uri) == url(second)
        assert subscription.session is client.session
        await poll(lambda: client.session_count == 1)


async def test_the_old_session_stays_while_a_subscription_is_established(
    certificate: CertificatePair,
) -> None:
    """6.6.1#2: one that can't move goes on where it is, and holds its session."""
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with()) as second,
        serving(certificate, directory_with(track)) as first,
        client_of(first, certificate) as client,
        client.subscribe(NAME) as subscription,
    ):
        (served,) = first.sessions
        first.goaway(url(second))
        await poll(lambda: bool(second.sessions) and second.sessions[0].stats.requests_refused > 0)
        write_group(track, 0, objects=2)
        assert await take(subscription, 2) == [(0, 0), (0, 1)]
        assert not served.is_closed
        track.end()
        with pytest.raises(errors.RequestRejected) as refused:
            await take_all(subscription)
        assert refused.value.code is moqt.RequestErrorCode.DOES_NOT_EXIST
        end = await served.wait_closed()
        assert end.code is moqt.SessionErrorCode.NO_ERROR


async def test_new_requests_go_to_the_new_session(certificate: CertificatePair) -> None:
    """9.2#5, 9.2#6: with an empty URI, to a new session with the same address."""
    directory = directory_with(track_with(1, 2))
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate) as client,
    ):
        old = client.session
        server.goaway()
        await poll(lambda: old.goaway_received is not None)
        assert (await client.track_status(NAME)).largest == moqt.Location(0, 1)
        assert old.stats.requests_sent == 0
        assert client.session is not old
        await old.wait_closed()
        assert old.end is not None
        assert (old.end.code, old.end.by_peer) == (moqt.SessionErrorCode.NO_ERROR, False)


async def test_a_subscription_moves_many_times(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate, moqt.FollowConfig(max_moves=3)) as client,
        client.subscribe(NAME) as subscription,
    ):
        places = []
        for group_id in range(8):
            for session in server.sessions:
                if session is server.sessions[-1]:
                    session.goaway()
            write_group(track, group_id, objects=3)
            places += await take(subscription, 3)
            moves = group_id + 1
            await poll(lambda moves=moves: subscription.moves == moves)  # type: ignore[misc]
            await poll(lambda: len(server.sessions) == 1)
        track.end()
        assert sorted(places) == [(g, o) for g in range(8) for o in range(3)]
        assert (await take_all(subscription))[0] == []


@pytest.mark.parametrize("after_request", [True, False])
async def test_moves_that_bring_nothing_are_bounded(
    certificate: CertificatePair, after_request: bool
) -> None:
    """Whether each session is to be left at once, or once the subscription is there."""
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        client_of(server, certificate, moqt.FollowConfig(max_moves=3)) as client,
        client.subscribe(NAME) as subscription,
    ):

        async def send_on() -> None:
            async for session in server:
                if after_request:
                    await poll(lambda s=session: s.served_requests())  # type: ignore[misc]
                session.goaway(timeout_ms=0)

        sending = asyncio.create_task(send_on())
        await poll(lambda: subscription._failure is not None)
        track.end()
        with pytest.raises(errors.FollowFailed, match="more than 3 moves") as failed:
            await take_all(subscription)
        assert set(failed.value.visited) == {url(server)}
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_the_old_session_ends_before_the_next_is_there(certificate: CertificatePair) -> None:
    """What was published in between comes by the fill."""
    track = moqt.TrackSource(NAME)
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
        client.subscribe(NAME) as subscription,
    ):
        write_group(track, 0, objects=2)
        assert await take(subscription, 2) == [(0, 0), (0, 1)]
        may_go = hold_back(client)
        (served,) = first.sessions
        first.goaway(url(second), timeout_ms=1)
        end = await served.wait_closed()
        assert end.code is moqt.SessionErrorCode.GOAWAY_TIMEOUT
        reading = asyncio.create_task(take(subscription, 4))
        write_group(track, 1, objects=2)
        may_go.set()
        await poll(lambda: subscription.moves == 1)
        write_group(track, 2, objects=2)
        assert sorted(await reading) == [(1, 0), (1, 1), (2, 0), (2, 1)]
        track.end()
        assert (await take_all(subscription))[0] == []


async def test_a_request_is_reset_before_the_next_session_is_there(
    certificate: CertificatePair,
) -> None:
    """9.2#7: GOAWAY for one subscription, whose time is over too soon."""
    track = moqt.TrackSource(NAME)
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
        client.subscribe(NAME) as subscription,
    ):
        may_go = hold_back(client)
        (served,) = first.sessions
        (request,) = served.served_requests()
        served.goaway(url(second), timeout_ms=1, request_id=request.request_id)
        await poll(lambda: subscription._legs[0].request.is_over)
        write_group(track, 0, objects=2)
        may_go.set()
        assert await take(subscription, 2) == [(0, 0), (0, 1)]
        assert subscription.moves == 1
        assert not served.is_closed


async def test_a_session_that_is_lost_without_goaway_ends_its_requests(
    certificate: CertificatePair,
) -> None:
    directory = directory_with(moqt.TrackSource(NAME), full_track(OTHER, groups=1))
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate) as client,
        client.subscribe(NAME) as subscription,
        client.subscribe_namespace(NAMESPACE) as found,
        client.fetch(OTHER) as fetch,
    ):
        assert (await anext(found)).namespace == NAMESPACE
        assert len(await read_objects(fetch)) == 3
        for session in server.sessions:
            session.close_now(moqt.SessionErrorCode.INTERNAL_ERROR, "lost")
        for items in (subscription, found):
            with pytest.raises(errors.SessionClosed, match="lost"):
                await anext(items)


def test_a_move_asks_for_no_new_group_again() -> None:
    limits = SimpleNamespace(config=moqt.FollowConfig())
    options = moqt.SubscribeOptions(new_group_request=7, priority=3)
    subscription = moqt.RoamingSubscription(limits, NAME, options)  # type: ignore[arg-type]
    subscription._arrivals.begin(None, location_filter=None, fill=None, forward=True)
    moved = subscription._remainder()
    assert (moved.new_group_request, moved.priority) == (None, 3)


def test_a_stream_that_ends_during_the_fill_is_told_behind_it() -> None:
    """The fill may still bring Objects of a Group whose own stream has ended."""
    limits = SimpleNamespace(config=moqt.FollowConfig())
    options = moqt.SubscribeOptions(fill=WHOLE)
    subscription = moqt.RoamingSubscription(limits, NAME, options)  # type: ignore[arg-type]
    request = SimpleNamespace(largest=moqt.Location(4, 1))
    leg: Any = Leg(None, NAME, request, is_filling=True, cut={(3, 0): 0})  # type: ignore[arg-type]
    ended = [SubgroupEnded(2, group_id, 0) for group_id in (4, 5, 3)]
    for item in ended:
        subscription._deliver(leg, item)
    filled = FillEnded(2, 2)
    subscription._deliver(leg, filled)
    cut = SubgroupEnded(0, 3, 0, reset=moqt.StreamResetCode.GOING_AWAY)
    assert list(subscription._ready) == [ended[1], cut, ended[0], ended[2], filled]
    subscription._deliver(leg, ended[0])
    assert subscription._ready[-1] == ended[0]


def test_ends_of_streams_that_wait_for_a_fill_are_bounded() -> None:
    """A peer whose fill never ends makes nothing grow: the oldest of them is told early."""
    limits = SimpleNamespace(config=moqt.FollowConfig(max_tracked_groups=3))
    subscription = moqt.RoamingSubscription(limits, NAME, moqt.SubscribeOptions())  # type: ignore[arg-type]
    request = SimpleNamespace(largest=moqt.Location(9, 0))
    leg: Any = Leg(None, NAME, request, is_filling=True)  # type: ignore[arg-type]
    ended = [SubgroupEnded(2, group_id, 0) for group_id in range(5)]
    for item in ended:
        subscription._deliver(leg, item)
    assert list(subscription._ready) == ended[:2]
    subscription._deliver(leg, FillEnded(2, 2))
    assert list(subscription._ready) == ended


async def test_a_fill_that_a_move_interrupts_goes_on(certificate: CertificatePair) -> None:
    """9.2#10: what the fill had not brought is filled at the next session; it ends once."""
    track = track_with(groups=6, objects=4, octets=50_000)
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate, config=SMALL, transport_config=NARROW) as client,
        client.subscribe(
            NAME, location_filter=moqt.LocationFilter.next_object(), fill=WHOLE
        ) as subscription,
    ):
        (served,) = first.sessions
        begun = await take(subscription, 3)
        first.goaway(url(second))
        await served.wait_closed()
        assert served.stats.objects_sent < 24
        write_group(track, 6, objects=4, octets=50_000)
        track.end()
        places, others = await take_all(subscription)
        assert sorted(begun + places) == [(g, o) for g in range(7) for o in range(4)]
        assert sum(isinstance(item, FillEnded) for item in others) == 1


async def test_a_stream_that_a_move_cuts_ends_after_its_rest_was_filled(
    certificate: CertificatePair,
) -> None:
    track = moqt.TrackSource(NAME)
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
        client.subscribe(NAME) as subscription,
    ):
        writer = track.open_group(0)
        writer.write(0, payload(0, 0, 100))
        await take(subscription, 1)
        first.goaway(url(second))
        writer.write(1, payload(0, 1, 100))
        await poll(lambda: subscription.moves == 1)
        writer.write(2, payload(0, 2, 100))
        writer.close()
        track.end()
        seen: list[object] = []
        async with asyncio.timeout(20):
            async for item in subscription:
                if isinstance(item, ObjectReceived) and item.object.header.group_id == 0:
                    seen.append(item.object.header.object_id)
                elif isinstance(item, SubgroupEnded) and item.group_id == 0:
                    seen.append("whole" if item.reset is None else item.reset.name)
        assert seen == [1, "GOING_AWAY", 2, "whole"]


async def test_what_an_application_did_not_ask_for_does_not_come_by_a_move(
    certificate: CertificatePair,
) -> None:
    """A fill of Groups 0 to 1 and what is live: not what lies between."""
    track = track_with(groups=5, objects=2)
    directory = directory_with(track)
    fill = moqt.FillParameters(location_filter=moqt.LocationFilter.groups(first=0, last=1))
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
        client.subscribe(
            NAME, location_filter=moqt.LocationFilter.next_object(), fill=fill
        ) as subscription,
    ):
        assert await take(subscription, 4) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        first.goaway(url(second))
        await poll(lambda: subscription.moves == 1)
        write_group(track, 5, objects=2)
        track.end()
        assert (await take_all(subscription))[0] == [(5, 0), (5, 1)]


async def test_a_subscription_with_an_end_keeps_it(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
        client.subscribe(
            NAME, location_filter=moqt.LocationFilter.groups(first=1, last=2)
        ) as subscription,
    ):
        write_group(track, 0, objects=2)
        write_group(track, 1, objects=2)
        assert await take(subscription, 2) == [(1, 0), (1, 1)]
        first.goaway(url(second))
        await poll(lambda: subscription.moves == 1)
        write_group(track, 2, objects=2)
        write_group(track, 3, objects=2)
        track.end()
        assert (await take_all(subscription))[0] == [(2, 0), (2, 1)]


async def test_paused_and_resumed_across_a_move(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
        client.subscribe(NAME) as subscription,
    ):
        write_group(track, 0, objects=2)
        assert await take(subscription, 2) == [(0, 0), (0, 1)]
        await subscription.pause()
        write_group(track, 1, objects=2)
        first.goaway(url(second))
        await poll(lambda: subscription.moves == 1)
        await subscription.update(priority=7)
        await subscription.resume()
        write_group(track, 2, objects=2)
        track.end()
        assert (await take_all(subscription))[0] == [(2, 0), (2, 1)]


async def test_a_sink_gets_each_object_once_across_a_move(certificate: CertificatePair) -> None:
    class Sink:
        def __init__(self) -> None:
            self.memory = [bytearray(40_000) for _ in range(12)]
            self.held: dict[int, int] = {}

        def place(self, header: moqt.ObjectHeader, *, from_fill: bool) -> moqt.Placement:
            number = header.group_id * 4 + header.object_id
            assert number not in self.held, "placed twice"
            self.held[number] = header.payload_length
            return moqt.Placement((memoryview(self.memory[number]),), number)

        def abandoned(self, placement: moqt.Placement) -> None:
            assert isinstance(placement.token, int)
            del self.held[placement.token]

    track = moqt.TrackSource(NAME)
    directory = directory_with(track)
    sink = Sink()
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
        client.subscribe(NAME, sink=sink) as subscription,
    ):
        (served,) = first.sessions
        write_group(track, 0, objects=4, octets=40_000)
        await poll(lambda: len(sink.held) == 4)
        first.goaway(url(second))
        write_group(track, 1, objects=4, octets=40_000)
        await served.wait_closed()
        write_group(track, 2, objects=4, octets=40_000)
        track.end()
        found = set()
        async with asyncio.timeout(20):
            async for item in subscription:
                if not isinstance(item, ObjectReceived) or item.object.header.group_id == 3:
                    continue
                header = item.object.header
                number = header.group_id * 4 + header.object_id
                assert number not in found
                found.add(number)
                if item.object.payload is not None:  # came while the old session was being left
                    assert number not in sink.held
                    sink.memory[number][:] = item.object.payload
                assert bytes(sink.memory[number]) == payload(
                    header.group_id, header.object_id, 40_000
                )
        assert found == set(range(12))
        assert {8, 9, 10, 11} <= sink.held.keys()
        assert subscription.moves == 1
