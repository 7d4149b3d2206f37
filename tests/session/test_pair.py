"""Two sessions on one link: disorder, cuts, cancels, tight windows; accounts balance at rest."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moqt.codes import PublishDoneCode, RequestErrorCode, SessionErrorCode
from moqt.session.config import Role, SessionConfig
from moqt.session.events import (
    FetchEnded,
    NamespaceFound,
    NamespaceGone,
    NamespaceOffered,
    ObjectReceived,
    PublicationOffered,
    RequestAccepted,
    RequestRejected,
    SessionEnded,
    SubscriptionEnded,
    SubscriptionEstablished,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import LinkConditions, SessionPair
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.params import FillParameters
from tests.session.receiving import NAME, NAMESPACE, OTHER, RecordingSink, got, one, payload_of

if TYPE_CHECKING:
    from collections.abc import Iterable

JOIN = LocationFilter.next_object()
ALL = FillParameters(location_filter=LocationFilter.none())


def track(
    groups: Iterable[int] = (), objects: int = 4, size: int = 3000, name: FullTrackName = NAME
) -> TrackSource:
    """Return a track with whole Groups."""
    source = TrackSource(name)
    for group_id in groups:
        write_group(source, group_id, objects, size)
    return source


def write_group(source: TrackSource, group_id: int, objects: int = 4, size: int = 3000) -> None:
    writer = source.open_group(group_id)
    for object_id in range(objects):
        writer.write(object_id, payload_of(group_id, object_id, size))
    writer.end_of_group()
    writer.close()


def directory(*tracks: TrackSource) -> TrackDirectory:
    made = TrackDirectory()
    for source in tracks:
        made.add(source)
    return made


def consume(pair: SessionPair, role: Role = Role.CLIENT) -> list[tuple[int, int]]:
    """Take all Objects with a payload, and let the session know."""
    session = pair.client if role is Role.CLIENT else pair.server
    events = pair.take(role, ObjectReceived)
    for event in events:
        session.consume(event.request_id, event.object)
    return got(event for event in events if event.object.header.payload_length)


def at_rest(pair: SessionPair) -> None:
    pair.link.assert_at_rest()
    for session in pair.sessions:
        stats = session.stats
        assert stats.open_streams_received == stats.open_streams_sent == 0
        assert stats.octets_withheld == stats.stray_octets_held == stats.stray_streams_held == 0


def every(groups: Iterable[int], objects: int = 4) -> list[tuple[int, int]]:
    return [(group_id, object_id) for group_id in groups for object_id in range(objects)]


# Whole exchanges


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_join_live_in_any_order_of_packets(seed: int, placed: bool) -> None:
    rng = Random(seed)
    source = track(range(2))
    sink = RecordingSink(5) if placed else None
    conditions = LinkConditions(
        piece=rng.choice((50, 700, 1200, 9000, 65536)),
        stream_window=rng.choice((4000, 1 << 20)),
        connection_window=rng.choice((80_000, 1 << 22)),
    )
    pair = SessionPair(server_directory=directory(source), conditions=conditions, rng=rng)
    request_id = pair.client.subscribe(NAME, location_filter=JOIN, fill=ALL, sink=sink, now=0.0)
    came: list[tuple[int, int]] = []
    writer = source.open_group(2)
    for object_id in range(4):
        writer.write(object_id, payload_of(2, object_id, 3000))
        pair.run(rng.randrange(60))
        came += consume(pair)
    writer.end_of_group()
    writer.close()
    source.end(Location(3, 0))
    while pair.run():
        came += consume(pair)
    came += consume(pair)
    assert sorted(came) == every(range(3))
    assert one(pair.take(Role.CLIENT, SubscriptionEnded)) == SubscriptionEnded(
        request_id, PublishDoneCode.TRACK_ENDED, ""
    )
    if sink is not None:
        assert sink.given_back == []
        for place, memory in sink.memory.items():
            assert bytes(memory) == payload_of(*place, 3000)
    at_rest(pair)
    assert pair.client.stats.open_requests == pair.server.stats.open_requests == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
@example(4301491)
def test_cancel_at_any_moment_leaves_nothing(seed: int) -> None:
    rng = Random(seed)
    sink = RecordingSink()
    conditions = LinkConditions(piece=500, connection_window=100_000, stream_window=6000)
    pair = SessionPair(server_directory=directory(track(range(4))), conditions=conditions, rng=rng)
    subscription = pair.client.subscribe(NAME, location_filter=JOIN, fill=ALL, sink=sink, now=0.0)
    fetch = pair.client.fetch(NAME, now=0.0)
    for request_id in rng.sample((subscription, fetch), 2):
        pair.run(rng.randrange(1, 60))
        consume(pair)
        pair.client.cancel(request_id, now=pair.now)
    placed = len(sink.placed)
    pair.run()
    consume(pair)
    assert len(sink.placed) == placed
    assert pair.client.stats.open_requests == pair.server.stats.open_requests == 0
    at_rest(pair)
    assert pair.client.next_deadline is None
    assert not pair.client.is_closed


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_cut_at_any_moment_gives_places_back(seed: int) -> None:
    rng = Random(seed)
    sink = RecordingSink()
    pair = SessionPair(server_directory=directory(track(range(3))), rng=rng)
    pair.client.subscribe(NAME, location_filter=JOIN, fill=ALL, sink=sink, now=0.0)
    pair.run(rng.randrange(1, 50))
    events = [e for e in pair.take(Role.CLIENT, ObjectReceived) if e.object.placement]
    pair.cut()
    events += [e for e in pair.take(Role.CLIENT, ObjectReceived) if e.object.placement]
    assert len(events) + len(sink.given_back) == len(sink.placed)
    for role in Role:
        assert isinstance(pair.events[role][-1], SessionEnded)
    for session in pair.sessions:
        assert session.is_closed
        assert session.next_deadline is None


def test_slow_reader_holds_the_publisher_back() -> None:
    """Memory of the receiver is bounded by its setting and the windows."""
    config = SessionConfig(max_buffered_octets=10_000)
    conditions = LinkConditions(
        piece=1000, stream_window=8000, connection_window=90_000, reserve=1000
    )
    source = track(range(10), objects=10, size=2000)
    pair = SessionPair(
        client_config=config, server_directory=directory(source), conditions=conditions
    )
    pair.client.fetch(NAME, now=0.0)
    pair.run()
    stats = pair.client.stats
    assert 10_000 <= stats.octets_unread <= 10_000 + 2000 + 8000
    assert stats.octets_withheld <= 8000
    assert pair.link.server.pending == pair.link.client.pending
    other = pair.client.fetch(NAME, location_filter=LocationFilter.groups(first=9, last=9), now=0.0)
    pair.run()
    found = [e for e in pair.events[Role.CLIENT] if isinstance(e, ObjectReceived)]
    assert any(event.request_id == other for event in found)
    came: list[tuple[int, int]] = []
    while part := consume(pair):
        came += part
        pair.run()
    assert sorted(set(came)) == every(range(10), 10)
    assert len(came) == 110
    at_rest(pair)


def test_stalled_link_then_everything() -> None:
    conditions = LinkConditions(stalled={Role.SERVER})
    pair = SessionPair(server_directory=directory(track(range(2))), conditions=conditions)
    assert not pair.client.is_established
    pair.client.fetch(NAME, now=0.0)
    pair.run()
    conditions.stalled.clear()
    pair.run()
    assert consume(pair) == every(range(2))
    assert len(pair.take(Role.CLIENT, FetchEnded)) == 1
    at_rest(pair)


def test_stream_limits_of_the_peer_are_waited_for() -> None:
    conditions = LinkConditions(max_unidirectional=2)
    source = track(range(3))
    pair = SessionPair(server_directory=directory(source), conditions=conditions)
    first, second = (pair.client.fetch(NAME, now=0.0) for _ in range(2))
    pair.run()
    assert one(pair.take(Role.CLIENT, FetchEnded)).request_id == first
    conditions.max_unidirectional = 3
    pair.run()
    assert one(pair.take(Role.CLIENT, FetchEnded)).request_id == second
    assert len(consume(pair)) == 24
    at_rest(pair)


# Both directions


def test_both_ends_publish_and_subscribe() -> None:
    pair = SessionPair(
        client_directory=directory(track(range(2), name=OTHER)),
        server_directory=directory(track(range(3))),
    )
    assert (pair.client.fetch(NAME, now=0.0), pair.server.fetch(OTHER, now=0.0)) == (0, 1)
    pair.run()
    assert consume(pair) == every(range(3))
    assert consume(pair, Role.SERVER) == every(range(2))
    at_rest(pair)


def test_publication_is_offered_accepted_and_ends() -> None:
    source = track(range(2))
    pair = SessionPair()
    request_id = pair.client.publish(source, forward=False, now=0.0)
    pair.run()
    offer = one(pair.take(Role.SERVER, PublicationOffered))
    assert (offer.request_id, offer.name, offer.forward) == (request_id, NAME, False)
    assert offer.largest is not None
    sink = RecordingSink()
    pair.server.accept(offer.request_id, forward=True, fill=ALL, sink=sink, now=0.0)
    pair.run()
    assert len(pair.take(Role.CLIENT, RequestAccepted)) == 1
    write_group(source, 2)
    source.end(Location(3, 0))
    pair.run()
    assert sorted(sink.memory) == every(range(3))
    assert one(pair.take(Role.SERVER, SubscriptionEnded)).code is PublishDoneCode.TRACK_ENDED
    at_rest(pair)
    assert pair.client.stats.open_requests == pair.server.stats.open_requests == 0


def test_refused_publication() -> None:
    pair = SessionPair()
    request_id = pair.client.publish(track(range(2)), now=0.0)
    pair.run()
    offer = one(pair.take(Role.SERVER, PublicationOffered))
    pair.server.reject(offer.request_id, RequestErrorCode.UNINTERESTED, "no", now=0.0)
    pair.run()
    event = one(pair.take(Role.CLIENT, RequestRejected))
    assert (event.request_id, event.code) == (request_id, RequestErrorCode.UNINTERESTED)
    assert pair.take(Role.SERVER, ObjectReceived) == []
    at_rest(pair)
    assert pair.client.stats.open_requests == pair.server.stats.open_requests == 0


def test_namespaces_come_and_go() -> None:
    served = directory(track())
    pair = SessionPair(server_directory=served)
    request_id = pair.client.subscribe_namespace(TrackNamespace.of("kv"), now=0.0)
    pair.run()
    assert one(pair.take(Role.CLIENT, NamespaceFound)) == NamespaceFound(request_id, NAMESPACE)
    more = track(name=FullTrackName(TrackNamespace.of("kv", "b"), b"x"))
    served.add(more)
    pair.run()
    assert len(pair.take(Role.CLIENT, NamespaceFound)) == 1
    served.remove(more)
    pair.run()
    assert len(pair.take(Role.CLIENT, NamespaceGone)) == 1
    pair.client.cancel(request_id, now=0.0)
    pair.run()
    assert pair.client.stats.open_requests == pair.server.stats.open_requests == 0
    at_rest(pair)


def test_namespace_is_offered_and_withdrawn() -> None:
    pair = SessionPair()
    request_id = pair.client.publish_namespace(NAMESPACE, now=0.0)
    pair.run()
    offer = one(pair.take(Role.SERVER, NamespaceOffered))
    pair.server.accept(offer.request_id, now=0.0)
    pair.run()
    assert one(pair.take(Role.CLIENT, RequestAccepted)).request_id == request_id
    pair.client.cancel(request_id, now=0.0)
    pair.run()
    assert type(pair.events[Role.SERVER][-1]).__name__ == "NamespaceWithdrawn"
    assert pair.client.stats.open_requests == pair.server.stats.open_requests == 0


# Filters that both sides know


@pytest.mark.parametrize("live", [False, True])
def test_objectid_filter(live: bool) -> None:
    first_two = [RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 1),))]
    source = track(range(2))
    pair = SessionPair(server_directory=directory(source))
    if live:
        pair.client.subscribe(
            NAME, location_filter=JOIN, fill=ALL, range_filters=first_two, now=0.0
        )
        pair.run()
        write_group(source, 2)
    else:
        pair.client.fetch(NAME, range_filters=first_two, now=0.0)
    pair.run()
    assert sorted(consume(pair)) == every(range(3 if live else 2), 2)


def test_update_then_pause() -> None:
    source = track(range(1))
    pair = SessionPair(server_directory=directory(source))
    request_id = pair.client.subscribe(NAME, location_filter=JOIN, now=0.0)
    pair.run()
    assert len(pair.take(Role.CLIENT, SubscriptionEstablished)) == 1
    pair.client.update(request_id, forward=False)
    pair.run()
    write_group(source, 1)
    pair.run()
    assert consume(pair) == []
    pair.client.update(request_id, forward=True)
    pair.run()
    write_group(source, 2)
    pair.run()
    assert consume(pair) == every([2])


def test_close_reaches_the_other_end() -> None:
    pair = SessionPair(server_directory=directory(track(range(3))))
    pair.client.fetch(NAME, now=0.0)
    pair.run(5)
    pair.client.close(SessionErrorCode.NO_ERROR, "enough", now=0.0)
    pair.run()
    ended = pair.events[Role.SERVER][-1]
    assert ended == SessionEnded(SessionErrorCode.NO_ERROR, "enough", True)
    assert pair.server.stats.open_streams_sent == 0
