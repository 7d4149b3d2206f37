"""Subscriptions, fetches, fills, namespaces and offers between real endpoints."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from moqt.events import (
    NamespaceFound,
    NamespaceGone,
    NamespaceOffered,
    ObjectReceived,
    PublicationOffered,
)
from tests.asyncio.endpoints import (
    NAME,
    NAMESPACE,
    connected,
    directory_with,
    expected,
    poll,
    read_objects,
    serving,
    track_with,
    write_group,
)

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

both_loops = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@both_loops
async def test_a_live_track_arrives_whole_and_ends(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME) as subscription,
    ):
        assert subscription.largest is None
        reading = asyncio.create_task(read_objects(subscription))
        for group_id in range(4):
            write_group(track, group_id, objects=5)
            await asyncio.sleep(0)
        track.end()
        assert await reading == expected(range(4), 5)
        assert subscription.done is not None
        assert subscription.done.code is moqt.PublishDoneCode.TRACK_ENDED
        assert subscription.is_over
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)


async def test_objects_are_sent_when_they_are_written_and_nothing_else_happens(
    certificate: CertificatePair,
) -> None:
    track = moqt.TrackSource(NAME)
    quiet = moqt.TransportConfig(idle_timeout_s=300, keep_alive_s=200, close_linger_s=0.01)
    async with (
        serving(certificate, directory_with(track), transport_config=quiet) as server,
        connected(server, certificate, transport_config=quiet) as session,
        session.subscribe(NAME) as subscription,
    ):
        await asyncio.sleep(0.2)  # until everything is acknowledged
        write_group(track, 0, objects=1)
        async with asyncio.timeout(20):
            item = await anext(subscription)
        assert isinstance(item, ObjectReceived)


@both_loops
async def test_a_late_joiner_gets_every_object_once(certificate: CertificatePair) -> None:
    """Next Object and a fill from {0,0}: the exactly-once pattern."""
    track = track_with(groups=3, objects=4)
    writer = track.open_group(3)
    writer.write(0, b"3.0.".ljust(1000, b"-"))
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.subscribe(
            NAME,
            location_filter=moqt.LocationFilter.next_object(),
            fill=moqt.FillParameters(
                location_filter=moqt.LocationFilter.absolute(moqt.Location(0, 0))
            ),
        ) as subscription,
    ):
        assert subscription.largest == moqt.Location(3, 0)
        for object_id in range(1, 4):
            writer.write(object_id, f"3.{object_id}.".encode().ljust(1000, b"-"))
        writer.close()
        track.end()
        assert await read_objects(subscription) == expected(range(4), 4)


async def test_a_fetch_brings_the_range_and_ends(certificate: CertificatePair) -> None:
    track = track_with(groups=5, objects=3, octets=70_000)
    track.end()
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.fetch(NAME, location_filter=moqt.LocationFilter.groups(first=1, last=3)) as fetch,
    ):
        assert await read_objects(fetch) == expected(range(1, 4), 3, 70_000)
        established = await fetch.established()
        assert established.end.group_id == 3
        assert fetch.is_over


async def test_refusals_raise_with_their_code(certificate: CertificatePair) -> None:
    async with (
        serving(certificate, moqt.TrackDirectory()) as server,
        connected(server, certificate) as session,
    ):
        with pytest.raises(errors.RequestRejected) as refused:
            async with session.subscribe(NAME):
                pytest.fail("accepted")
        assert refused.value.code is moqt.RequestErrorCode.DOES_NOT_EXIST
        async with session.fetch(NAME) as fetch:
            with pytest.raises(errors.RequestRejected):
                await read_objects(fetch)
            with pytest.raises(errors.RequestRejected):
                await fetch.established()
        with pytest.raises(errors.RequestRejected):
            await session.track_status(NAME)
        assert not session.is_closed
        assert session.stats.open_requests == 0


async def test_the_status_of_a_track(certificate: CertificatePair) -> None:
    async with (
        serving(certificate, directory_with(track_with(2, 3))) as server,
        connected(server, certificate) as session,
    ):
        status = await session.track_status(NAME)
        assert status.largest == moqt.Location(1, 2)


async def test_pause_and_resume(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME) as subscription,
    ):
        await subscription.pause()
        write_group(track, 0, objects=2)
        await subscription.resume()
        write_group(track, 1, objects=2)
        track.end()
        assert await read_objects(subscription) == expected(range(1, 2), 2)


async def test_a_stopped_track_raises_why(certificate: CertificatePair) -> None:
    track = track_with(1, 1)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME) as subscription,
    ):
        track.abort(moqt.PublishDoneCode.UNAUTHORIZED, "wrong")
        with pytest.raises(errors.RequestEnded) as ended:
            await read_objects(subscription)
        assert ended.value.code is moqt.PublishDoneCode.UNAUTHORIZED


async def test_leaving_a_subscription_ends_it_at_the_publisher(
    certificate: CertificatePair,
) -> None:
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
    ):
        (served,) = server.sessions
        async with session.subscribe(NAME) as subscription:
            write_group(track, 0, objects=1)
            item = await anext(subscription)
            assert isinstance(item, ObjectReceived)
            assert served.stats.open_requests == 1
        await poll(lambda: served.stats.open_requests == 0)
        with pytest.raises(errors.LocalProtocolError, match="second time"):
            await subscription.__aenter__()


async def test_namespaces_come_and_go(certificate: CertificatePair) -> None:
    directory = moqt.TrackDirectory()
    directory.advertise(NAMESPACE)
    other = moqt.TrackNamespace.of("kv", "later")
    async with (
        serving(certificate, directory) as server,
        connected(server, certificate) as session,
        session.subscribe_namespace(moqt.TrackNamespace.of("kv")) as found,
    ):
        first = await anext(found)
        assert isinstance(first, NamespaceFound)
        assert first.namespace == NAMESPACE
        directory.advertise(other)
        second = await anext(found)
        assert isinstance(second, NamespaceFound)
        assert second.namespace == other
        directory.withdraw(NAMESPACE)
        third = await anext(found)
        assert isinstance(third, NamespaceGone)
        assert third.namespace == NAMESPACE


async def test_namespaces_are_listed(certificate: CertificatePair) -> None:
    """The list ends at its limit, or with its time; what is gone meanwhile is not in it."""
    directory = moqt.TrackDirectory()
    names = [moqt.TrackNamespace.of("kv", name) for name in "abcd"]
    directory.advertise(names[0])
    directory.advertise(names[1])
    async with (
        serving(certificate, directory) as server,
        connected(server, certificate) as session,
        session.subscribe_namespace(moqt.TrackNamespace.of("kv")) as found,
    ):
        directory.withdraw(names[0])
        directory.advertise(names[2])
        directory.advertise(names[3])
        listing = await found.listing(listen_s=60, limit=3)
        assert listing.namespaces == tuple(names[1:])
        assert listing.first_at is not None
        nothing = moqt.NamespaceListing((), None)
        assert await found.listing(listen_s=0, limit=1) == nothing
        assert await found.listing(listen_s=60, limit=1, settle_s=0) == nothing


async def test_offers_are_refused_unless_asked_for(certificate: CertificatePair) -> None:
    async with (
        serving(certificate) as server,
        connected(server, certificate) as session,
    ):
        with pytest.raises(errors.RequestRejected) as refused:
            async with session.publish_namespace(NAMESPACE):
                pytest.fail("accepted")
        assert refused.value.code is moqt.RequestErrorCode.UNINTERESTED
        with pytest.raises(errors.LocalProtocolError, match="takes_offers"):
            session.offers()


async def test_an_offered_namespace_is_accepted_and_withdrawn(
    certificate: CertificatePair,
) -> None:
    async with (
        serving(certificate, takes_offers=True) as server,
        connected(server, certificate) as session,
    ):
        (served,) = server.sessions
        announcing = session.publish_namespace(NAMESPACE)
        entering = asyncio.create_task(announcing.__aenter__())
        offer = await anext(served.offers())
        assert isinstance(offer, NamespaceOffered)
        assert offer.namespace == NAMESPACE
        accepted = served.accept_namespace(offer)
        await entering
        await announcing.__aexit__(None, None, None)
        async with asyncio.timeout(5):
            await accepted.wait_withdrawn()


async def test_an_offered_track_is_accepted_and_read(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    async with (
        serving(certificate, takes_offers=True) as server,
        connected(server, certificate, directory=directory_with(track)) as session,
    ):
        (served,) = server.sessions
        publication = session.publish(track)
        entering = asyncio.create_task(publication.__aenter__())
        offer = await anext(served.offers())
        assert isinstance(offer, PublicationOffered)
        assert offer.name == NAME
        async with served.accept(offer) as subscription:
            await entering
            write_group(track, 0, objects=3)
            track.end()
            assert await read_objects(subscription) == expected(range(1), 3)
        async with asyncio.timeout(5):
            await publication.wait_ended()


async def test_a_rejected_offer_raises_the_code_given(certificate: CertificatePair) -> None:
    async with (
        serving(certificate, takes_offers=True) as server,
        connected(server, certificate) as session,
    ):
        (served,) = server.sessions
        publication = session.publish(moqt.TrackSource(NAME))
        entering = asyncio.create_task(publication.__aenter__())
        offer = await anext(served.offers())
        served.reject(offer, moqt.RequestErrorCode.UNINTERESTED, "no")
        with pytest.raises(errors.RequestRejected) as refused:
            await entering
        assert refused.value.code is moqt.RequestErrorCode.UNINTERESTED


async def test_a_sink_gets_the_payloads_in_its_own_memory(certificate: CertificatePair) -> None:
    class Sink:
        def __init__(self) -> None:
            self.memory = bytearray(3 * 100_000)

        def place(self, header: moqt.ObjectHeader, *, from_fill: bool) -> moqt.Placement:
            start = header.object_id * 100_000
            view = memoryview(self.memory)[start : start + header.payload_length]
            return moqt.Placement((view[:68], view[68:]))

        def abandoned(self, placement: moqt.Placement) -> None:
            pytest.fail("nothing was cut")

    track = track_with(1, 3, 100_000)
    sink = Sink()
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
        session.fetch(NAME, sink=sink) as fetch,
    ):
        count = 0
        async for item in fetch:
            assert isinstance(item, ObjectReceived)
            assert item.object.payload is None
            count += 1
        assert count == 3
        assert bytes(sink.memory) == b"".join(expected(range(1), 3, 100_000).values())


async def test_a_stream_reset_with_a_foreign_code_is_reported_as_such(
    certificate: CertificatePair,
) -> None:
    """moq-rs resets raw QUIC streams with WebTransport's codes: 62 bits are legal."""
    track = track_with(groups=1, objects=64, octets=64 * 1024)
    small = moqt.SessionConfig(max_buffered_octets=64 * 1024)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate, config=small) as session,
    ):
        (served,) = server.sessions
        async with session.fetch(NAME) as fetch:
            await anext(fetch)
            held = served._driver.connection
            data_stream = max(s for s in held._streams if s & 2 and s & 1)
            held.drop(data_stream, 0x52E4A40FA8DB)
            served._driver.wake()
            with pytest.raises(errors.StreamReset) as reset:
                await read_objects(fetch)
            assert reset.value.raw_code == 0x52E4A40FA8DB
            assert reset.value.code is moqt.StreamResetCode.INTERNAL_ERROR
        connection = session._driver.connection
        await poll(lambda: connection.credited_octets == connection.received_octets)
        assert not session.is_closed


async def test_a_refused_update_changes_nothing(certificate: CertificatePair) -> None:
    track = moqt.TrackSource(NAME)
    config = moqt.SessionConfig(max_filter_ranges=1)
    async with (
        serving(certificate, directory_with(track), config=config) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME) as subscription,
    ):
        two = moqt.RangeFilter(
            moqt.RangeFilterKind.OBJECT_ID, (moqt.IdRange(0, 1), moqt.IdRange(5, 6))
        )
        with pytest.raises((errors.RequestRejected, errors.LocalProtocolError)):
            await subscription.update(range_filters=[two])
        write_group(track, 0, objects=3)
        track.end()
        assert await read_objects(subscription) == expected(range(1), 3)
