"""Heads of incoming data streams, and of their Objects: in pieces, late, broken or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moqt.codes import StreamResetCode
from moqt.session.config import SessionConfig
from moqt.session.events import ObjectReceived, SubgroupEnded
from moqt.session.receive.held import MAX_PIECES, HeldOctets
from moqt.testing import ScriptedPeer
from moqt.types import ObjectHeader
from moqt.wire.streams import SubgroupHeader
from moqt.wire.subgroup_objects import SubgroupWriter
from moqt.wire.vi64 import encode
from tests.session.receiving import ALIAS, established, got, one, subgroup
from tests.session.test_setup import violation

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_head_octet_by_octet() -> None:
    peer = ScriptedPeer()
    established(peer)
    stream = peer.open_uni()
    for octet in subgroup(300, [0], subgroup_id=200, priority=7):
        peer.send_octets(stream, bytes([octet]))
    assert got(peer.take(ObjectReceived)) == [(300, 0)]
    assert peer.session.next_deadline is None


def test_head_that_does_not_come() -> None:
    peer = ScriptedPeer(config=SessionConfig(stream_header_timeout_s=3.0))
    established(peer)
    stream = peer.open_uni()
    peer.send_octets(stream, subgroup(300, [0])[:2])
    peer.advance(3.1)
    assert peer.transport.stops == {stream: StreamResetCode.CANCELLED}
    assert peer.session.stats.open_streams_received == 0


def test_object_header_that_does_not_come() -> None:
    """Its stream is stopped in DATA_STREAM_TIMEOUT's place; subscription and session go on."""
    peer = ScriptedPeer(config=SessionConfig(stream_header_timeout_s=3.0))
    request_id = established(peer)
    octets = subgroup(300, [0, 200], size=40)  # two octets give the second one's length of 40
    header = len(octets) - 40 - len(encode(199)) - len(encode(40))
    stream = peer.open_uni()
    peer.send_octets(stream, octets[: header + 1])
    peer.advance(2.9)
    assert peer.transport.stops == {}
    peer.advance(0.2)
    assert peer.transport.stops == {stream: StreamResetCode.CANCELLED}
    assert one(peer.take(SubgroupEnded)) == SubgroupEnded(
        request_id, 300, 0, reset=StreamResetCode.CANCELLED, reset_code=1
    )
    assert not peer.session.is_closed
    assert peer.session.next_deadline is None


def test_stream_that_rests_between_objects_or_in_a_payload_is_left_alone() -> None:
    peer = ScriptedPeer(config=SessionConfig(stream_header_timeout_s=3.0))
    established(peer)
    for octets in (subgroup(300, [0, 1]), subgroup(301, [0, 1])[:-5]):
        peer.send_octets(peer.open_uni(), octets)
    peer.advance(100.0)
    assert peer.transport.stops == {}


def test_object_header_that_comes_slowly_is_waited_for() -> None:
    peer = ScriptedPeer(config=SessionConfig(stream_header_timeout_s=3.0))
    established(peer)
    octets = subgroup(300, [200, 401], size=300)  # headers of four octets
    head = len(octets) - 2 * (4 + 300)
    stream = peer.open_uni()
    peer.send_octets(stream, octets[:head])
    for at in range(head, len(octets), 2):
        peer.send_octets(stream, octets[at : at + 2])
        peer.advance(2.0)
    assert got(peer.take(ObjectReceived)) == [(300, 200), (300, 401)]
    assert peer.transport.stops == {}


def test_fin_inside_a_head() -> None:
    peer = ScriptedPeer()
    peer.send_octets(peer.open_uni(), subgroup(300, [0])[:2], fin=True)
    violation(peer)


@pytest.mark.parametrize("flags", [0x16, 0x17, 0x80, 0x06])
def test_invalid_flags(flags: int) -> None:
    """11.3.1#1."""
    peer = ScriptedPeer()
    peer.send_octets(peer.open_uni(), encode(flags) + bytes(9))
    violation(peer)


def test_stream_with_a_head_and_no_object() -> None:
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.send_octets(peer.open_uni(), subgroup(3, []), fin=True)
    assert one(peer.take(SubgroupEnded)) == SubgroupEnded(request_id, 3, 0)


def test_subgroup_named_by_its_first_object() -> None:
    peer = ScriptedPeer()
    request_id = established(peer)
    writer = SubgroupWriter(SubgroupHeader(track_alias=ALIAS, group_id=2, subgroup_id=None))
    octets = writer.head + writer.encode(ObjectHeader(2, 6, 6, 128, 0))
    peer.send_octets(peer.open_uni(), octets, fin=True)
    assert one(peer.take(ObjectReceived)).object.header.subgroup_id == 6
    assert one(peer.take(SubgroupEnded)) == SubgroupEnded(request_id, 2, 6)
    empty = SubgroupWriter(SubgroupHeader(track_alias=ALIAS, group_id=3, subgroup_id=None))
    peer.send_octets(peer.open_uni(), empty.head, fin=True)
    assert one(peer.take(SubgroupEnded)).subgroup_id is None


def test_pieces_far_from_a_head_are_held_without_looking_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of a peer's octets would cost a look at all that came before."""
    looks = 0

    def looked_at(held: HeldOctets) -> Iterator[tuple[int, memoryview, bool]]:
        nonlocal looks
        looks += 1
        return held_octets(held)

    held_octets = HeldOctets.__iter__
    peer = ScriptedPeer(config=SessionConfig(stream_header_timeout_s=3.0))
    established(peer)
    stream = peer.open_uni()
    monkeypatch.setattr(HeldOctets, "__iter__", looked_at)
    for piece in range(MAX_PIECES):
        peer.send_range(stream, 100 + 2 * piece, b"x")
    assert looks == 0
    assert peer.transport.stops == {}
    peer.advance(3.1)
    assert peer.transport.stops == {stream: StreamResetCode.CANCELLED}
