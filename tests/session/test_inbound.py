"""Incoming data streams: placing in any order, credit, strays, padding, datagrams, malformed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moqt.codes import ObjectStatus, SessionErrorCode, StreamResetCode
from moqt.session.config import SessionConfig
from moqt.session.events import (
    FetchEnded,
    ObjectReceived,
    SubgroupEnded,
    SubscriptionEnded,
    TrackMalformed,
)
from moqt.testing import ScriptedPeer
from moqt.types import Location, ObjectHeader
from moqt.wire.datagrams import ObjectDatagram, PaddingDatagram, encode_datagram
from moqt.wire.fields import KeyValue
from moqt.wire.messages import FetchOk, SubscribeOk
from moqt.wire.properties import serialize_pairs
from moqt.wire.streams import PADDING_STREAM, SubgroupHeader
from moqt.wire.subgroup_objects import SubgroupWriter
from moqt.wire.vi64 import encode
from tests.session.receiving import (
    ALIAS,
    NAME,
    RecordingSink,
    established,
    fetched,
    got,
    one,
    payload_of,
    subgroup,
)
from tests.session.test_setup import assert_closed, violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.types import Placement

PADDING = encode(PADDING_STREAM)


def cut(octets: bytes, rng: Random, most: int = 60) -> list[tuple[int, bytes, bool]]:
    """Return ranges of random length that make up a stream, the last with FIN, in any order."""
    ranges = []
    at = 0
    while at < len(octets):
        size = rng.randint(1, most)
        ranges.append((at, octets[at : at + size], at + size >= len(octets)))
        at += size
    rng.shuffle(ranges)
    return ranges


# Placing


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["sink", "memory", "refusing sink"]))
def test_streams_in_any_order_of_octets(seed: int, where: str) -> None:
    """Three subgroup streams and a fetch, all their octets shuffled among each other."""
    rng = Random(seed)
    sinks = {"sink": RecordingSink(), "refusing sink": RecordingSink(refuses=True)}
    peer = ScriptedPeer()
    sink = sinks.get(where)
    request_id = established(peer, sink=sink)
    fetch_id = peer.session.fetch(NAME, sink=sink, now=0.0)
    peer.send(4, FetchOk(False, Location(9, 9)), fin=True)
    streams = [subgroup(group, range(rng.randint(1, 5)), size=50) for group in range(3)]
    streams.append(fetched(fetch_id, [(7, 0), (7, 3), (8, 0)], size=70))
    pieces = [
        (stream_id, *piece)
        for stream_id, octets in ((peer.open_uni(), octets) for octets in streams)
        for piece in cut(octets, rng)
    ]
    rng.shuffle(pieces)
    for stream_id, offset, octets, fin in pieces:
        peer.send_range(stream_id, offset, octets, fin=fin)
    events = peer.take(ObjectReceived)
    places = got(events)
    assert len(places) == len(set(places))
    for group in range(3):
        came = [object_id for group_id, object_id in places if group_id == group]
        assert came == sorted(came)
    assert [p for p in places if p[0] > 2] == [(7, 0), (7, 3), (8, 0)]
    assert len(peer.take(SubgroupEnded)) == 3
    assert one(peer.take(FetchEnded)) == FetchEnded(fetch_id)
    if where == "sink":
        assert sink is not None
        for (group_id, object_id), memory in sink.memory.items():
            assert bytes(memory) == payload_of(group_id, object_id, len(memory))
        assert sink.given_back == []
    for event in events:
        peer.session.consume(event.request_id, event.object)
    assert peer.transport.owed == 0
    assert peer.session.stats.octets_unread == 0
    assert peer.session.stats.stray_octets_held == 0
    assert peer.session.stats.open_streams_received == 0
    peer.session.cancel(request_id, now=0.0)
    assert not peer.session.is_closed


def test_octets_that_run_ahead_of_a_header_are_not_credited() -> None:
    peer = ScriptedPeer()
    established(peer, sink=RecordingSink())
    octets = subgroup(0, [0, 1], size=50)
    stream = peer.open_uni()
    peer.send_range(stream, 60, octets[60:])
    assert peer.transport.owed == len(octets) - 60
    peer.send_range(stream, 20, octets[20:60])
    assert peer.transport.owed == len(octets) - 20
    peer.send_range(stream, 0, octets[:20])
    assert peer.transport.owed == 0


# Credit


def test_credit_stops_when_too_much_lies_unread() -> None:
    peer = ScriptedPeer(config=SessionConfig(max_buffered_octets=100))
    request_id = established(peer)
    stream = peer.open_uni()
    filling = subgroup(0, range(3), size=50)
    peer.send_octets(stream, filling)  # what comes at once and fills it is not credited either
    withheld = len(filling) - 3  # all but the head
    assert peer.transport.owed == withheld
    assert peer.session.stats.octets_unread == 150
    second = peer.open_uni()
    more = subgroup(1, range(3), size=50)
    peer.send_octets(second, more, fin=True)
    withheld += len(more) - 3
    assert peer.transport.owed == withheld
    assert peer.session.stats.octets_withheld == withheld
    events = peer.take(ObjectReceived)
    for event in events[:4]:
        peer.session.consume(request_id, event.object)
    assert peer.transport.owed == withheld
    peer.session.consume(request_id, events[4].object)
    assert peer.transport.owed == 0
    peer.session.consume(request_id, events[5].object)
    assert peer.session.stats.octets_unread == 0
    assert peer.session.stats.octets_withheld == 0


def test_an_object_larger_than_the_buffer_still_comes() -> None:
    peer = ScriptedPeer(config=SessionConfig(max_buffered_octets=10))
    established(peer)
    stream = peer.open_uni()
    octets = subgroup(0, range(1), size=1000)
    peer.send_octets(stream, octets[:-1])
    assert peer.transport.owed == 0
    peer.send_octets(stream, octets[-1:])
    assert got(peer.take(ObjectReceived)) == [(0, 0)]


def test_what_a_sink_placed_is_credited_whatever_lies_unread() -> None:
    class Sometimes(RecordingSink):
        def place(self, header: ObjectHeader, *, from_fill: bool) -> Placement | None:
            return super().place(header, from_fill=from_fill) if header.group_id % 2 else None

    peer = ScriptedPeer(config=SessionConfig(max_buffered_octets=10))
    request_id = established(peer, sink=Sometimes())
    filling = subgroup(0, range(1))
    peer.send_octets(peer.open_uni(), filling, fin=True)
    withheld = len(filling) - 3  # all but the head
    assert peer.transport.owed == withheld
    peer.send_octets(peer.open_uni(), subgroup(1, range(3)), fin=True)
    assert peer.transport.owed == withheld
    more = subgroup(2, range(3))
    peer.send_octets(peer.open_uni(), more)
    assert peer.transport.owed == withheld + len(more) - 3
    peer.session.cancel(request_id, now=0.0)
    assert peer.transport.owed == 0


@pytest.mark.parametrize("how", ["cancel", "reset", "close"])
def test_withheld_credit_returns_at_the_end(how: str) -> None:
    peer = ScriptedPeer(config=SessionConfig(max_buffered_octets=10))
    request_id = established(peer)
    peer.send_octets(peer.open_uni(), subgroup(0, range(1)), fin=True)
    peer.send_octets(peer.open_uni(), subgroup(1, range(2)), fin=True)
    open_stream = peer.open_uni()
    peer.send_octets(open_stream, subgroup(2, range(2)))
    assert peer.transport.owed
    if how == "cancel":
        peer.session.cancel(request_id, now=0.0)
    elif how == "reset":
        peer.reset(0)
        assert len(peer.take(SubscriptionEnded)) == 1
    else:
        peer.session.close(now=0.0)
    if how != "close":
        assert peer.transport.owed == 0
    assert peer.session.stats.octets_withheld == 0
    assert peer.session.stats.octets_unread == 0
    for event in peer.take(ObjectReceived):
        peer.session.consume(request_id, event.object)  # late, and harmless


def test_reset_with_withheld_credit() -> None:
    peer = ScriptedPeer(config=SessionConfig(max_buffered_octets=10))
    established(peer)
    peer.send_octets(peer.open_uni(), subgroup(0, range(1)), fin=True)
    stream = peer.open_uni()
    owed = peer.transport.owed
    peer.send_octets(stream, subgroup(1, range(2)))
    assert peer.transport.owed > owed > 0
    peer.reset(stream)
    assert peer.transport.owed == peer.session.stats.octets_withheld == owed


def test_resets_do_not_buy_a_peer_more_memory() -> None:
    """15.5#1: A reset settles the connection's credit while its Objects still lie unread."""
    peer = ScriptedPeer(config=SessionConfig(max_buffered_octets=10, max_unread_octets=200))
    request_id = established(peer)
    for group in range(20):
        stream = peer.open_uni()
        peer.send_octets(stream, subgroup(group, range(2)))
        peer.reset(stream)
    event = one(peer.take(TrackMalformed))
    assert event.request_id == request_id
    assert "unread" in event.reason
    assert peer.session.stats.octets_received <= 200 + 2 * 40


def test_unfinished_objects_are_bounded_together() -> None:
    peer = ScriptedPeer(config=SessionConfig(max_object_octets=1000))
    request_id = established(peer)
    streams = [peer.open_uni() for _ in range(3)]
    for group, stream in enumerate(streams):
        peer.send_octets(stream, subgroup(group, [0], size=400)[:-1])
    event = one(peer.take(TrackMalformed))
    assert event.request_id == request_id
    assert "together" in event.reason
    assert set(streams) <= set(peer.transport.stops)
    assert peer.transport.owed == 0


# Streams that belong to nobody (yet)


def test_objects_may_overtake_subscribe_ok() -> None:
    """3.1.3.1#1."""
    peer = ScriptedPeer()
    peer.session.subscribe(NAME, now=0.0)
    first, second = peer.open_uni(), peer.open_uni()
    octets = subgroup(0, [0, 1])
    peer.send_octets(first, octets[:25])
    peer.send_octets(second, subgroup(1, [0]), fin=True)
    peer.send_octets(first, octets[25:])
    assert peer.events[1:] == []
    assert peer.session.stats.stray_streams_held == 2
    assert peer.session.stats.stray_octets_held == peer.transport.owed > 0
    peer.send(0, SubscribeOk(ALIAS))
    assert got(peer.take(ObjectReceived)) == [(0, 0), (0, 1), (1, 0)]
    assert peer.session.stats.stray_streams_held == 0
    assert peer.session.stats.stray_octets_held == 0
    assert peer.transport.owed == 0
    peer.send_octets(first, b"", fin=True)
    assert len(peer.take(SubgroupEnded)) == 2
    assert peer.session.next_deadline is None


def test_held_streams_are_bounded_in_number_octets_and_time() -> None:
    config = SessionConfig(max_stray_streams=2, max_stray_octets=300, stray_timeout_s=4.0)
    peer = ScriptedPeer(config=config)
    first, second, third = (peer.open_uni() for _ in range(3))
    for stream in (first, second, third):
        peer.send_octets(stream, subgroup(0, [0]))
    assert peer.transport.stops == {third: StreamResetCode.EXCESSIVE_LOAD}
    peer.send_octets(second, bytes(250))
    assert set(peer.transport.stops) == {second, third}
    peer.advance(4.1)
    assert set(peer.transport.stops) == {first, second, third}
    assert peer.session.stats.stray_streams_held == 0
    assert peer.session.stats.stray_octets_held == 0
    assert peer.transport.owed == 0
    assert not peer.session.is_closed


@pytest.mark.parametrize("is_established", [True, False])
def test_a_windows_worth_waits_for_the_first_packet_of_its_stream(is_established: bool) -> None:
    """The packet with the stream's head is sent again a round trip later."""
    octets = subgroup(0, range(5), size=1 << 20)
    assert len(octets) > 5 << 20
    peer = ScriptedPeer()
    if is_established:
        established(peer)
    else:
        peer.session.subscribe(NAME, now=0.0)
    stream = peer.open_uni()
    step = 1 << 16
    starts = [*range(1, len(octets), step), 0]
    for at in starts:
        stop = min(at + step, len(octets)) if at else 1
        peer.send_range(stream, at, octets[at:stop], fin=stop == len(octets))
    if not is_established:
        peer.send(0, SubscribeOk(ALIAS))
    assert peer.transport.stops == {}
    payloads = [bytes(event.object.payload or b"") for event in peer.take(ObjectReceived)]
    assert payloads == [payload_of(0, object_id, 1 << 20) for object_id in range(5)]
    assert peer.session.stats.stray_octets_held == 0


def test_reset_of_a_held_stream() -> None:
    peer = ScriptedPeer()
    stream = peer.open_uni()
    peer.send_octets(stream, subgroup(0, [0]))
    peer.reset(stream)
    assert peer.session.stats.stray_streams_held == 0
    assert peer.session.stats.open_streams_received == 0
    assert peer.session.next_deadline is None
    established(peer)
    assert peer.take(ObjectReceived) == []


def test_fetch_stream_of_an_unknown_request_is_stopped() -> None:
    peer = ScriptedPeer()
    stream = peer.open_uni()
    peer.send_octets(stream, fetched(40, [(0, 0)]))
    assert peer.transport.stops == {stream: StreamResetCode.CANCELLED}
    assert not peer.session.is_closed


def test_octets_behind_a_stop_are_nobodys() -> None:
    peer = ScriptedPeer()
    stream = peer.open_uni()
    octets = fetched(40, [(0, 0)])
    peer.send_octets(stream, octets[:3])
    peer.send_octets(stream, octets[3:], fin=True)
    peer.reset(stream)
    assert peer.session.stats.open_streams_received == 0
    assert peer.session.stats.streams_received == 1


# Padding


def test_padding_is_credited_and_forgotten() -> None:
    """11.5.1#1."""
    peer = ScriptedPeer()
    stream = peer.open_uni()
    peer.send_octets(stream, PADDING + bytes(100_000))
    peer.send_octets(stream, bytes(100_000))
    assert peer.transport.owed == 0
    assert peer.session.stats.open_streams_received == 1
    peer.send_octets(stream, b"", fin=True)
    assert peer.session.stats.open_streams_received == 0
    other = peer.open_uni()
    peer.send_range(other, 5, bytes(10), fin=True)
    peer.send_range(other, 0, PADDING)
    assert peer.transport.owed == 0
    assert peer.session.stats.open_streams_received == 0
    third = peer.open_uni()
    peer.send_octets(third, PADDING)
    peer.reset(third)
    assert peer.events[1:] == []


# Datagrams


def datagram(
    group_id: int, object_id: int, payload: bytes = b"hi", *, ends_group: bool = False
) -> bytes:
    return encode_datagram(
        ObjectDatagram(
            track_alias=ALIAS,
            group_id=group_id,
            object_id=object_id,
            payload=payload,
            ends_group=ends_group,
        )
    )


def test_objects_in_datagrams() -> None:
    """11.5.2#1."""
    peer = ScriptedPeer()
    peer.datagram(datagram(1, 0))
    request_id = established(peer)
    peer.datagram(datagram(1, 1))
    event = one(peer.take(ObjectReceived))
    assert event.request_id == request_id
    assert event.object.header == ObjectHeader(1, 1, None, 128, 2)
    assert bytes(event.object.payload or b"") == b"hi"
    status = ObjectDatagram(
        track_alias=ALIAS, group_id=1, object_id=2, status=ObjectStatus.END_OF_GROUP
    )
    peer.datagram(encode_datagram(status))
    assert one(peer.take(ObjectReceived)).object.status is ObjectStatus.END_OF_GROUP
    assert peer.session.stats.datagrams_dropped == 1
    peer.datagram(encode_datagram(PaddingDatagram(50)))
    assert peer.events[2:] == []


def test_datagrams_are_dropped_when_nobody_reads() -> None:
    peer = ScriptedPeer(config=SessionConfig(max_buffered_octets=4))
    established(peer)
    for object_id in range(5):
        peer.datagram(datagram(1, object_id))
    assert len(peer.take(ObjectReceived)) == 2
    assert peer.session.stats.datagrams_dropped == 3


def test_datagram_that_breaks_the_draft() -> None:
    """11.2#1, 11.2.1#1."""
    for octets in (b"", b"\x10\x00\x00\x00\x00", b"\x40", datagram(1, 0)[:2]):
        peer = ScriptedPeer()
        peer.datagram(octets)
        violation(peer)


def test_datagram_behind_the_end_of_its_group() -> None:
    peer = ScriptedPeer()
    established(peer)
    peer.datagram(datagram(1, 4, ends_group=True))
    peer.datagram(datagram(1, 5))
    assert len(peer.take(TrackMalformed)) == 1


# Malformed tracks, one test per sign (chapter 14)


def malformed(peer: ScriptedPeer, streams: Sequence[bytes], *, fin: bool = True) -> str:
    for octets in streams:
        assert peer.take(TrackMalformed) == []
        peer.send_octets(peer.open_uni(), octets, fin=fin)
    assert not peer.session.is_closed
    return one(peer.take(TrackMalformed)).reason


def test_subgroup_with_two_priorities() -> None:
    peer = ScriptedPeer()
    established(peer)
    reason = malformed(
        peer, [subgroup(0, [0], priority=1), subgroup(0, [0], priority=2)], fin=False
    )
    assert "priority 2" in reason


def test_object_behind_a_subgroup_that_ended() -> None:
    peer = ScriptedPeer()
    established(peer)
    assert "ended" in malformed(peer, [subgroup(0, [0, 1]), subgroup(0, [2])])


def test_subgroup_that_ended_at_two_objects() -> None:
    peer = ScriptedPeer()
    established(peer)
    assert "ended twice" in malformed(peer, [subgroup(0, [0, 2]), subgroup(0, [0, 1])])


def test_object_behind_the_end_that_a_fin_tells() -> None:
    peer = ScriptedPeer()
    established(peer)
    streams = [subgroup(0, [0, 1], ends_group=True), subgroup(0, [2], subgroup_id=1)]
    assert "behind the end of its Group" in malformed(peer, streams)


def test_group_that_ends_before_an_object_that_came() -> None:
    peer = ScriptedPeer()
    established(peer)
    status = (2, ObjectStatus.END_OF_GROUP)
    streams = [subgroup(0, [5], subgroup_id=1), subgroup(0, [0], end_status=status)]
    assert "ends before Object 2" in malformed(peer, streams)


def test_object_behind_the_end_of_the_track() -> None:
    peer = ScriptedPeer()
    established(peer)
    status = (0, ObjectStatus.END_OF_TRACK)
    streams = [subgroup(3, [], end_status=status), subgroup(2, [0, 9]), subgroup(4, [0])]
    assert "behind the end of the track" in malformed(peer, streams)


def test_properties_that_no_object_may_have() -> None:
    for pair in (KeyValue(0x4001, b""), KeyValue(0x3E, 9)):
        peer = ScriptedPeer()
        established(peer)
        head = SubgroupHeader(track_alias=ALIAS, group_id=2, has_properties=True)
        properties = serialize_pairs([pair])
        octets = SubgroupWriter(head).head + encode(3) + encode(len(properties)) + properties
        reason = malformed(peer, [octets + encode(1) + b"x"])
        assert "Object {2,3}" in reason


def test_a_malformed_object_gives_its_place_back() -> None:
    sink = RecordingSink()
    peer = ScriptedPeer()
    established(peer, sink=sink)
    peer.send_octets(peer.open_uni(), subgroup(0, [0, 1], ends_group=True), fin=True)
    peer.send_octets(peer.open_uni(), subgroup(0, [2, 3, 4], subgroup_id=1), fin=True)
    assert len(peer.take(ObjectReceived)) == 2
    assert len(sink.given_back) == 3
    assert peer.session.stats.octets_unread == 0


def test_broken_object_behind_sound_ones() -> None:
    """What came before the breach is handed over; the session ends."""
    peer = ScriptedPeer()
    established(peer)
    octets = subgroup(0, [0, 1]) + encode(0) + encode(0) + encode(2)
    peer.send_octets(peer.open_uni(), octets)
    assert len(peer.take(ObjectReceived)) == 2
    assert_closed(peer, SessionErrorCode.PROTOCOL_VIOLATION)
