"""Rules of draft 22 on data streams, found by reading the code against the text."""

from __future__ import annotations

import pytest

from moqt.codes import PublishDoneCode, RequestErrorCode, StreamResetCode
from moqt.session.events import RequestRejected, SubscriptionEnded
from moqt.testing import ScriptedPeer
from moqt.types import Location
from moqt.wire.fields import KeyValue
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import PublishDone
from moqt.wire.params import Parameters
from moqt.wire.properties import TrackProperties
from tests.session.receiving import established, one, subgroup
from tests.session.sending import Sending, payload_of, places

NARROWED = [
    Parameters(range_filters=(RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 1),)),)),
    Parameters(location_filter=LocationFilter.absolute(Location(0, 9))),
]


@pytest.mark.parametrize("narrowed", NARROWED, ids=["object ids", "start"])
def test_stream_that_promised_the_end_of_its_group_does_not_fin_before_it(
    narrowed: Parameters,
) -> None:
    """END_OF_GROUP and FIN: the last Object here is the Group's last (MOQT-22 11.3.1, 11.3.2)."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    writer = track.open_group(0, ends_group=True)
    for object_id in range(2):
        writer.write(object_id, payload_of(0, object_id))
    side.flush()
    side.update(request, narrowed)
    for object_id in range(2, 4):
        writer.write(object_id, payload_of(0, object_id))
    writer.close()
    side.flush()
    ((stream_id, head),) = side.subgroups().items()
    assert head.ends_group
    assert places(side.objects([stream_id])) == [(0, 0), (0, 1)]
    written = side.transport.streams[stream_id]
    assert (written.fin, written.reset) == (False, StreamResetCode.CANCELLED)


def test_stream_that_promised_the_end_of_its_group_ends_by_fin_with_all_of_it() -> None:
    side = Sending()
    track = side.track()
    side.subscribe(Parameters(location_filter=LocationFilter.absolute(Location(0, 1))))
    writer = track.open_group(0, ends_group=True)
    for object_id in range(3):
        writer.write(object_id, payload_of(0, object_id))
    writer.close()
    side.flush()
    ((stream_id, head),) = side.subgroups().items()
    assert head.ends_group
    assert places(side.objects([stream_id])) == [(0, 1), (0, 2)]
    assert side.transport.streams[stream_id].fin


def test_streams_of_a_track_that_must_not_be_used_are_stopped_at_once() -> None:
    """An unknown Mandatory Track Property (MOQT-22 3.7); late Objects are discarded (3.1.3)."""
    peer = ScriptedPeer()
    early, late = peer.open_uni(), peer.open_uni()
    peer.send_octets(early, subgroup(0, [0]))
    established(peer, properties=TrackProperties((KeyValue(0x4001, b"x"),)))
    peer.send_octets(late, subgroup(1, [0]))
    assert set(peer.transport.stops) >= {early, late}
    assert peer.session.stats.stray_streams_held == 0
    assert one(peer.take(RequestRejected)).code is RequestErrorCode.UNSUPPORTED_EXTENSION


@pytest.mark.parametrize("reset_first", [True, False])
@pytest.mark.parametrize("octets", [b"", b"\x50"], ids=["unseen", "half a header"])
def test_stream_reset_before_its_header_counts_for_a_subscription_that_was_given_up(
    reset_first: bool, octets: bytes
) -> None:
    """A publisher that gives up resets streams of which nothing has left it yet (MOQT-22 9.9)."""
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.send_octets(peer.open_uni(), subgroup(0, [0]), fin=True)
    stream = peer.open_uni()
    if octets:
        peer.send_octets(stream, octets)
    if reset_first:
        peer.reset(stream, StreamResetCode.TOO_FAR_BEHIND)
    peer.send(
        0, PublishDone(code=PublishDoneCode.TOO_FAR_BEHIND, stream_count=2, reason="slow"), fin=True
    )
    if not reset_first:
        assert not peer.take(SubscriptionEnded)
        peer.reset(stream, StreamResetCode.TOO_FAR_BEHIND)
    assert one(peer.take(SubscriptionEnded)) == SubscriptionEnded(
        request_id, PublishDoneCode.TOO_FAR_BEHIND, "slow", streams_missing=1
    )


def test_stream_reset_before_its_header_does_not_end_a_track_early() -> None:
    """Whose it was is unknown, and a track that ended by itself is waited for."""
    peer = ScriptedPeer()
    established(peer)
    peer.reset(peer.open_uni())
    peer.send(0, PublishDone(code=PublishDoneCode.TRACK_ENDED, stream_count=1), fin=True)
    assert not peer.take(SubscriptionEnded)
    peer.send_octets(peer.open_uni(), subgroup(0, [0]), fin=True)
    assert one(peer.take(SubscriptionEnded)).streams_missing == 0


def test_stream_reset_before_its_header_counts_once() -> None:
    peer = ScriptedPeer()
    first = established(peer)
    second = established(peer, alias=8, stream_id=4)
    peer.reset(peer.open_uni())
    done = PublishDone(code=PublishDoneCode.EXCESSIVE_LOAD, stream_count=1)
    peer.send(0, done, fin=True)
    peer.send(4, done, fin=True)
    assert one(peer.take(SubscriptionEnded)).request_id == first
    peer.reset(peer.open_uni())
    assert one(peer.take(SubscriptionEnded)).request_id == second
