"""GOAWAY for single requests, fetches and namespace subscriptions (MOQT-22 6.6.1, 9.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from moqt.events import (
    NamespaceFound,
    NamespaceGone,
    ObjectReceived,
)
from moqt.wire.messages import Goaway
from tests.asyncio.endpoints import (
    NAME,
    NAMESPACE,
    directory_with,
    expected,
    poll,
    read_objects,
    serving,
    track_with,
    write_group,
)
from tests.asyncio.roaming import (
    NARROW,
    SMALL,
    client_of,
    take,
    take_all,
    url,
)

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

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
    directory.advertise(NAMESPACE)
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
        one.advertise(namespace)
    for namespace in (both, new):
        two.advertise(namespace)
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
            second._reception.listener.stop_accepting()
            first.goaway(url(second))
            await poll(lambda: client.session.goaway_received is not None)
            write_group(track, 0, objects=1)
            assert await take(subscription, 1) == [(0, 0)]
        assert client.session_count == 0
        assert NAMESPACE == NAME.namespace
