"""Running requests move on GOAWAY, each Object once (MOQT-22 6.6.1, 9.2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from moqt.session.events import (
    FillEnded,
    NamespaceFound,
    NamespaceGone,
    ObjectReceived,
    SubgroupEnded,
)
from moqt.wire.messages import Goaway
from tests.asyncio.endpoints import (
    NAME,
    NAMESPACE,
    directory_with,
    expected,
    payload,
    poll,
    read_objects,
    serving,
    track_with,
    write_group,
)
from tests.asyncio.test_following import WHOLE, client_of, url

if TYPE_CHECKING:
    from moqt.asyncio.tracks import SubscriptionItem
    from moqt.tls import CertificatePair

SMALL = moqt.SessionConfig(max_buffered_octets=100_000)
NARROW = moqt.TransportConfig(
    close_linger_s=0.01, connection_window_octets=200_000, stream_window_octets=100_000
)
"""Together they let a publisher send little more than was read."""

both_loops = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


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


async def test_moves_that_bring_nothing_are_bounded(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        client_of(server, certificate, moqt.FollowConfig(max_moves=3)) as client,
        client.subscribe(NAME) as subscription,
    ):

        async def send_on() -> None:
            async for session in server:
                session.goaway(timeout_ms=50)

        sending = asyncio.create_task(send_on())
        with pytest.raises(errors.FollowFailed, match="more than 3 moves"):
            await take_all(subscription)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


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


# GOAWAY for one request


def ask_to_move(session: moqt.MoqtSession, uri: str) -> None:
    """Send GOAWAY for the one request that a server's session serves."""
    (request,) = session.served_requests()
    session.goaway(uri, timeout_ms=10_000, request_id=request.request_id)


@pytest.mark.parametrize("is_elsewhere", [True, False], ids=["with a URI", "in the session"])
async def test_a_subscription_that_is_asked_to_move_is_issued_again(
    certificate: CertificatePair, is_elsewhere: bool
) -> None:
    """9.2#7: at the URI, else in the same session; the old stream is closed."""
    track = moqt.TrackSource(NAME)
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
        client.subscribe(NAME) as subscription,
    ):
        (served,) = first.sessions
        (old,) = served._session._requests.streams.values()
        write_group(track, 0, objects=2)
        assert await take(subscription, 2) == [(0, 0), (0, 1)]
        ask_to_move(served, url(second) if is_elsewhere else "")
        await poll(lambda: not old.is_receive_open and not old.is_send_open)
        await poll(lambda: subscription.moves == 1)
        write_group(track, 1, objects=2)
        track.end()
        assert sorted((await take_all(subscription))[0]) == [(1, 0), (1, 1)]
        assert not served.is_closed
        assert client.session.goaway_received is None
        assert subscription.session.remote_address == (
            f"127.0.0.1:{second.port if is_elsewhere else first.port}"
        )
        assert client.session_count == 1 + is_elsewhere


@pytest.mark.parametrize("is_elsewhere", [True, False], ids=["with a URI", "in the session"])
async def test_a_fetch_that_is_asked_to_move_is_issued_again(
    certificate: CertificatePair, is_elsewhere: bool
) -> None:
    """9.2#7: for what has not come."""
    directory = directory_with(track_with(groups=3, objects=4, octets=50_000))
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate, config=SMALL, transport_config=NARROW) as client,
        client.fetch(NAME) as fetch,
    ):
        (served,) = first.sessions
        await anext(fetch)
        (old,) = served._session._requests.streams.values()
        ask_to_move(served, url(second) if is_elsewhere else "")
        await poll(lambda: not old.is_receive_open and not old.is_send_open)
        found = await read_objects(fetch)
        assert list(found) == [(g, o) for g in range(3) for o in range(4)][1:]
        assert fetch.moves == 1


async def test_a_namespace_subscription_that_is_asked_to_move_is_issued_again(
    certificate: CertificatePair,
) -> None:
    """9.2#7: in the same session; what is known is not told twice."""
    directory = moqt.TrackDirectory()
    directory.announce(NAMESPACE)
    async with (
        serving(certificate, directory) as server,
        client_of(server, certificate) as client,
        client.subscribe_namespace(moqt.TrackNamespace.of("kv")) as found,
    ):
        (served,) = server.sessions
        first = await anext(found)
        assert first.namespace == NAMESPACE
        (stream,) = served._session._requests.streams.values()
        stream.send(Goaway("", 0))
        served._driver.wake()
        await poll(lambda: found.moves == 1)
        directory.withdraw(NAMESPACE)
        item = await anext(found)
        assert isinstance(item, NamespaceGone)


# Fetches


async def test_a_fetch_ends_where_it_began_if_there_is_time(
    certificate: CertificatePair,
) -> None:
    """6.6.1#2: the old session is closed once the fetch is over."""
    track = track_with(groups=3, objects=4, octets=50_000)
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate, config=SMALL, transport_config=NARROW) as client,
        client.fetch(NAME) as fetch,
    ):
        (served,) = first.sessions
        await anext(fetch)
        first.goaway(url(second), timeout_ms=60_000)
        await poll(lambda: str(client.uri) == url(second))
        assert len(await read_objects(fetch)) == 11
        assert fetch.moves == 0
        end = await served.wait_closed()
        assert end.code is moqt.SessionErrorCode.NO_ERROR


@pytest.mark.parametrize("order", [moqt.GroupOrder.ASCENDING, moqt.GroupOrder.DESCENDING])
@pytest.mark.parametrize("timeout_ms", [0, 400])
async def test_a_fetch_brings_its_rest_from_the_next_session(
    certificate: CertificatePair, timeout_ms: int, order: moqt.GroupOrder
) -> None:
    """9.2#12: with a Timeout of 0 at once, else when most of it is over."""
    track = track_with(groups=5, objects=4, octets=50_000)
    track.end()
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate, config=SMALL, transport_config=NARROW) as client,
        client.fetch(
            NAME,
            location_filter=moqt.LocationFilter.range(moqt.Location(0, 1), moqt.Location(4, 2)),
            group_order=order,
        ) as fetch,
    ):
        (served,) = first.sessions
        item = await anext(fetch)
        assert isinstance(item, ObjectReceived)
        begun = (item.object.header.group_id, item.object.header.object_id)
        first.goaway(url(second), timeout_ms=timeout_ms)
        await served.wait_closed()  # nobody reads meanwhile
        found = await read_objects(fetch)
        wanted = expected(range(5), 4, 50_000)
        for left_out in ((0, 0), (4, 3), begun):
            del wanted[left_out]
        assert found == wanted
        groups = [group_id for group_id, _ in found]
        assert groups == sorted(groups, reverse=order is moqt.GroupOrder.DESCENDING)
        assert fetch.moves == 1


async def test_a_fetch_that_has_come_whole_does_not_move(certificate: CertificatePair) -> None:
    track = track_with(groups=1, objects=3)
    track.end()
    directory = directory_with(track)
    async with (
        serving(certificate, directory) as second,
        serving(certificate, directory) as first,
        client_of(first, certificate) as client,
        client.fetch(NAME) as fetch,
    ):
        (served,) = first.sessions
        first.goaway(url(second), timeout_ms=0)
        await served.wait_closed()
        assert await read_objects(fetch) == expected(range(1), 3)


# Namespaces


async def test_namespaces_go_on_from_the_next_session(certificate: CertificatePair) -> None:
    both, old, new = (moqt.TrackNamespace.of("kv", name) for name in ("both", "old", "new"))
    one, two = moqt.TrackDirectory(), moqt.TrackDirectory()
    for namespace in (both, old):
        one.announce(namespace)
    for namespace in (both, new):
        two.announce(namespace)
    quick = moqt.FollowConfig(namespace_settle_s=0.05)
    async with (
        serving(certificate, two) as second,
        serving(certificate, one) as first,
        client_of(first, certificate, quick) as client,
        client.subscribe_namespace(moqt.TrackNamespace.of("kv")) as found,
    ):
        (served,) = first.sessions
        items = [await anext(found) for _ in range(2)]
        assert {item.namespace for item in items} == {both, old}
        first.goaway(url(second))
        await served.wait_closed()
        items = [await anext(found) for _ in range(2)]
        assert isinstance(items[0], NamespaceFound)
        assert items[0].namespace == new
        assert isinstance(items[1], NamespaceGone)
        assert items[1].namespace == old
        two.withdraw(both)
        item = await anext(found)
        assert isinstance(item, NamespaceGone)
        assert item.namespace == both


async def test_who_sends_goaway_keeps_the_scheme(certificate: CertificatePair) -> None:
    """9.2#11: the New Session URI is a moqt:// address."""
    async with (
        serving(certificate) as server,
        client_of(server, certificate) as client,
    ):
        for uri in ("https://127.0.0.1/", "other.example", "moqt://"):
            with pytest.raises(errors.LocalProtocolError, match="New Session URI"):
                server.goaway(uri)
        assert client.session.goaway_received is None
        (served,) = server.sessions
        served.goaway(url(server))
        await served.wait_closed()


async def test_leaving_everything_in_the_middle_of_a_move(certificate: CertificatePair) -> None:
    """Cancelled while the next server does not answer: no task, no socket is left."""
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as second,
        serving(certificate, directory_with(track)) as first,
    ):
        async with client_of(first, certificate) as client, client.subscribe(NAME) as subscription:
            second._listener.stop_accepting()
            first.goaway(url(second))
            await poll(lambda: client.session.goaway_received is not None)
            write_group(track, 0, objects=1)
            assert await take(subscription, 1) == [(0, 0)]
        assert client.session_count == 0
        assert NAMESPACE == NAME.namespace
