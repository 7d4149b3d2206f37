"""Malformed tracks: what two Objects together show, duplicates and gaps (MOQT-22 7.1, 10, 12.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moqt.codes import GroupOrder, StreamResetCode
from moqt.session.events import ObjectReceived, TrackMalformed
from moqt.session.receive import duplicates, track_state
from moqt.session.receive.sink import COMPARED_OCTETS
from moqt.testing import ScriptedPeer
from moqt.types import ObjectHeader
from moqt.wire.datagrams import ObjectDatagram, encode_datagram
from moqt.wire.fetch_objects import FetchWriter
from moqt.wire.fields import KeyValue
from moqt.wire.messages import FetchOk
from moqt.wire.properties import ObjectProperties
from moqt.wire.streams import FetchHeader, SubgroupHeader
from moqt.wire.subgroup_objects import SubgroupWriter
from tests.session.receiving import ALIAS, NAME, OTHER, RecordingSink, established, fetched, one
from tests.session.receiving import subgroup as whole_subgroup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moqt.session.receive.sink import ObjectSink

IMMUTABLE = 0xB
PRIORITY = 128


def subgroup(
    group_id: int,
    objects: Iterable[tuple[int, bytes, ObjectProperties | None]],
    *,
    subgroup_id: int = 0,
    priority: int = PRIORITY,
) -> bytes:
    """Return a subgroup stream of (Object ID, payload, properties)."""
    head = SubgroupHeader(
        track_alias=ALIAS,
        group_id=group_id,
        subgroup_id=subgroup_id,
        publisher_priority=priority,
        has_properties=True,
    )
    writer = SubgroupWriter(head)
    octets = bytearray(writer.head)
    for object_id, payload, properties in objects:
        listed = properties.serialize() if properties is not None else b""
        octets += writer.encode(
            ObjectHeader(
                group_id, object_id, subgroup_id, priority, len(payload), properties=listed
            )
        )
        octets += payload
    return bytes(octets)


def a_fetch(
    request_id: int,
    header: ObjectHeader,
    payload: bytes,
) -> bytes:
    writer = FetchWriter(FetchHeader(request_id), GroupOrder.ASCENDING)
    return bytes(writer.head) + writer.encode(header) + payload


def immutable(octets: bytes) -> ObjectProperties:
    """Return properties with one private, immutable pair."""
    inner = ObjectProperties((KeyValue(0x3D3D, octets),)).serialize()
    return ObjectProperties((KeyValue(IMMUTABLE, inner),))


class Track:
    """A subscription and a fetch of one track, to which the peer sends."""

    def __init__(self, *, sink: ObjectSink | None = None) -> None:
        self.peer = ScriptedPeer()
        self.subscription = established(self.peer, sink=sink)
        self.fetch = self.peer.session.fetch(NAME, sink=sink, now=0.0)
        self.peer.send(4, FetchOk(end_of_track=False, end=ObjectHeader(9, 0, 0, 0, 0).location))
        self.other = established(self.peer, name=OTHER, alias=ALIAS + 1, stream_id=8)

    def bring(self, *streams: bytes) -> list[str]:
        """Let streams come; return the reasons why the track is malformed, one a request."""
        for octets in streams:
            self.peer.send_octets(self.peer.open_uni(), octets)
        return [event.reason for event in self.peer.take(TrackMalformed)]


@pytest.mark.parametrize(
    ("header", "payload", "what"),
    [
        (ObjectHeader(3, 5, None, PRIORITY, 4), b"same", "Delivery Mode"),
        (ObjectHeader(3, 5, 1, PRIORITY, 4), b"same", "Subgroup ID"),
        (ObjectHeader(3, 5, 0, 7, 4), b"same", "priority"),
        (ObjectHeader(3, 5, 0, PRIORITY, 4), b"size"[::-1], "payload"),
        (ObjectHeader(3, 5, 0, PRIORITY, 5), b"same.", "payload length"),
        (
            ObjectHeader(3, 5, 0, PRIORITY, 4, properties=immutable(b"x").serialize()),
            b"same",
            "immutable properties",
        ),
    ],
    ids=["mode", "subgroup", "priority", "payload", "length", "immutable"],
)
def test_object_that_comes_twice_and_differs(
    header: ObjectHeader, payload: bytes, what: str
) -> None:
    """7.1#1, 12.1#1, 12.1#2, 12.1#3: subscription and fetch end, others and the session go on."""
    track = Track()
    assert track.bring(subgroup(3, [(5, b"same", None)])) == []
    reasons = track.bring(a_fetch(track.fetch, header, payload))

    assert len(reasons) == 2
    assert all(f"Object {{3,5}} came twice, with another {what}" in reason for reason in reasons)
    transport = track.peer.transport
    assert transport.resets[0] is transport.stops[0] is StreamResetCode.MALFORMED_TRACK
    assert transport.stops[4] is StreamResetCode.MALFORMED_TRACK
    assert 8 not in transport.stops
    assert not track.peer.session.is_closed
    received = one(track.peer.take(ObjectReceived))  # the second one is not handed over
    assert bytes(received.object.payload or b"") == b"same"

    track.peer.send_octets(track.peer.open_uni(), whole_subgroup(3, [5], alias=ALIAS + 1))
    assert one(track.peer.take(ObjectReceived)).request_id == track.other


def test_object_that_comes_twice_and_is_the_same() -> None:
    """7.1#1: no sign of a malformed track."""
    track = Track()
    again = ObjectHeader(3, 5, 0, PRIORITY, 4, properties=immutable(b"x").serialize())
    streams = (subgroup(3, [(5, b"same", immutable(b"x"))]), a_fetch(track.fetch, again, b"same"))
    assert track.bring(*streams) == []
    assert len(track.peer.take(ObjectReceived)) == 2


def test_datagram_that_comes_twice_and_differs() -> None:
    """7.1#1: in a datagram and then on a stream, then with another payload."""
    for octets, what in ((b"other", "Delivery Mode"), (b"moved", "Delivery Mode")):
        track = Track()
        track.peer.datagram(
            encode_datagram(
                ObjectDatagram(track_alias=ALIAS, group_id=3, object_id=5, payload=b"other")
            )
        )
        (reason, _) = track.bring(subgroup(3, [(5, octets, None)]))
        assert what in reason
    track = Track()
    for octets in (b"one", b"two"):
        track.peer.datagram(
            encode_datagram(
                ObjectDatagram(track_alias=ALIAS, group_id=3, object_id=5, payload=octets)
            )
        )
    assert "another payload" in track.bring()[0]


def test_what_is_compared_of_an_object_in_a_place() -> None:
    """7.1#1: its first octets; the rest of a place is for the application to check."""
    alike = bytes(COMPARED_OCTETS)
    for cut, first, second, is_malformed in (
        (1 << 20, b"ab", b"ac", True),
        (1, b"ab", b"ac", True),
        (1, b"ab", b"ab", False),
        (1 << 20, alike + b"b", alike + b"c", False),
        (7, alike + b"b", alike + b"c", False),
    ):
        track = Track(sink=RecordingSink(cut=cut))
        header = ObjectHeader(3, 5, 0, PRIORITY, len(second))
        streams = (subgroup(3, [(5, first, None)]), a_fetch(track.fetch, header, second))
        assert bool(track.bring(*streams)) is is_malformed


def test_objects_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "MAX_OBJECTS", 4)
    track = Track()
    objects = [(number, b"%d" % number, None) for number in range(6)]
    assert track.bring(subgroup(1, objects)) == []
    forgotten = ObjectHeader(1, 0, 0, PRIORITY, 1)
    assert track.bring(a_fetch(track.fetch, forgotten, b"x")) == []


def gaps(*, group: int | None = None, objects: int | None = None) -> ObjectProperties:
    return ObjectProperties.of(prior_group_id_gap=group, prior_object_id_gap=objects)


@pytest.mark.parametrize(
    ("streams", "reason"),
    [
        (
            [subgroup(7, [(0, b"x", gaps(group=2))]), subgroup(5, [(0, b"x", None)])],
            "Group 5 came, and Group 7 says that it does not exist",
        ),
        (
            [subgroup(5, [(0, b"x", None)]), subgroup(7, [(0, b"x", gaps(group=2))])],
            "Group 7 says that Group 5 does not exist, but it came",
        ),
        (
            [subgroup(7, [(0, b"x", gaps(group=2)), (1, b"x", gaps(group=1))])],
            "Group 7 has PRIOR_GROUP_ID_GAP 1, and had 2",
        ),
    ],
    ids=["group in an announced gap", "gap over a group", "two values"],
)
def test_gaps_of_groups_that_are_contradicted(streams: list[bytes], reason: str) -> None:
    """10.8#1, 12.1#1."""
    assert Track().bring(*streams)[0] == reason


@pytest.mark.parametrize(
    ("streams", "reason"),
    [
        (
            [subgroup(7, [(5, b"x", gaps(objects=3))]), fetched(2, [(7, 3)])],
            "Object {7,3} came, in a gap of its Group",
        ),
        (
            [subgroup(7, [(3, b"x", None), (5, b"x", gaps(objects=2))])],
            "Object 5 says that 3 to 4 do not exist, but of these some came",
        ),
    ],
    ids=["object in an announced gap", "gap over an object"],
)
def test_gaps_of_objects_that_are_contradicted(streams: list[bytes], reason: str) -> None:
    """10.9#1, 12.1#1."""
    assert Track().bring(*streams)[0] == reason


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([(0x3C, 1), (0x3C, 1)], "PRIOR_GROUP_ID_GAP occurs twice"),
        ([(0x3E, 1), (0x3E, 1)], "PRIOR_OBJECT_ID_GAP occurs twice"),
        ([(0x3C, 8)], "PRIOR_GROUP_ID_GAP is 8, larger than the ID 7"),
        ([(0x3E, 6)], "PRIOR_OBJECT_ID_GAP is 6, larger than the ID 5"),
    ],
)
def test_gaps_that_one_object_shows_to_be_wrong(pairs: list[tuple[int, int]], reason: str) -> None:
    """10.8#1, 10.9#1."""
    properties = ObjectProperties(tuple(KeyValue(kind, value) for kind, value in pairs))
    assert reason in Track().bring(subgroup(7, [(5, b"x", properties)]))[0]


def test_gaps_that_are_kept() -> None:
    """10.8#1, 10.9#1: said again by other Objects, and around what came."""
    track = Track()
    streams = (
        subgroup(4, [(0, b"x", gaps(group=0, objects=0))]),
        subgroup(7, [(2, b"x", gaps(group=2, objects=1)), (5, b"x", gaps(group=2, objects=2))]),
        subgroup(7, [(0, b"x", gaps(group=2))], subgroup_id=1),
    )
    assert track.bring(*streams) == []
    assert len(track.peer.take(ObjectReceived)) == 4


def test_gaps_beyond_what_is_remembered_are_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_state, "MAX_GAPS", 1)
    track = Track()
    objects = [(2, b"x", gaps(objects=1)), (5, b"x", gaps(objects=1))]
    assert track.bring(subgroup(7, objects), fetched(track.fetch, [(7, 4)])) == []
