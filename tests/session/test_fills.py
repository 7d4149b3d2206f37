"""Fills of our subscriptions: what they bring, and how they end (MOQT-22 3.4)."""

from __future__ import annotations

import pytest

from moqt.codes import (
    GroupOrder,
    PublishDoneCode,
    RangeStatus,
    RequestErrorCode,
    StreamResetCode,
)
from moqt.session.config import SessionConfig
from moqt.session.events import (
    EndOfRangeReceived,
    FillEnded,
    ObjectReceived,
    SubscriptionEnded,
    UpdateAccepted,
)
from moqt.testing import ScriptedPeer
from moqt.types import Location
from moqt.wire.fetch_objects import FetchWriter
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import (
    PublishDone,
    RequestError,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeOk,
)
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.streams import FetchHeader
from tests.session.receiving import (
    ALIAS,
    NAME,
    established,
    fetched,
    got,
    one,
    subgroup,
)


def done(count: int | None, code: PublishDoneCode = PublishDoneCode.TRACK_ENDED) -> PublishDone:
    return PublishDone(code=code, stream_count=count, reason="over")


def with_fill(
    peer: ScriptedPeer, fill: FillParameters | None = None, *, forward: bool = True
) -> int:
    return peer.session.subscribe(
        NAME,
        location_filter=LocationFilter.next_object(),
        fill=fill or FillParameters(location_filter=LocationFilter.none()),
        forward=forward,
        now=0.0,
    )


def test_fill_and_live_are_told_apart() -> None:
    peer = ScriptedPeer()
    request_id = with_fill(peer)
    fill = peer.open_uni()
    peer.send_octets(fill, fetched(request_id, [(0, 0), (0, 1)]))
    peer.send(0, SubscribeOk(ALIAS, Parameters(largest=Location(0, 1))))
    peer.send_octets(peer.open_uni(), subgroup(0, [2]), fin=True)
    peer.send_octets(fill, b"", fin=True)
    events = peer.take(ObjectReceived)
    assert [(e.object.location.object_id, e.from_fill) for e in events] == [
        (0, True),
        (1, True),
        (2, False),
    ]
    assert one(peer.take(FillEnded)) == FillEnded(request_id, request_id)
    peer.send(0, done(2))
    assert len(peer.take(SubscriptionEnded)) == 1


def test_fill_order_is_named_where_nothing_names_it() -> None:
    peer = ScriptedPeer()
    with_fill(peer)
    asked = one(peer.messages(0))
    assert isinstance(asked, Subscribe)
    assert asked.parameters.fill is not None
    assert asked.parameters.fill.group_order is GroupOrder.ASCENDING
    assert asked.parameters.group_order is None


def test_fill_in_descending_order() -> None:
    peer = ScriptedPeer()
    fill = FillParameters(group_order=GroupOrder.DESCENDING)
    request_id = with_fill(peer, fill)
    octets = fetched(request_id, [(5, 0), (4, 0), (2, 3)], order=GroupOrder.DESCENDING)
    peer.send_octets(peer.open_uni(), octets, fin=True)
    assert got(peer.take(ObjectReceived)) == [(5, 0), (4, 0), (2, 3)]


def test_reset_fill_spares_the_subscription() -> None:
    """3.4.1#3."""
    peer = ScriptedPeer()
    request_id = with_fill(peer)
    peer.send(0, SubscribeOk(ALIAS, Parameters(largest=Location(3, 0))))
    stream = peer.open_uni()
    peer.send_octets(stream, fetched(request_id, [(0, 0)]))
    peer.reset(stream, StreamResetCode.UNKNOWN_OBJECT_STATUS)
    assert one(peer.take(FillEnded)) == FillEnded(
        request_id, request_id, StreamResetCode.UNKNOWN_OBJECT_STATUS, 6
    )
    peer.send_octets(peer.open_uni(), subgroup(4, [0]), fin=True)
    assert got(peer.take(ObjectReceived)) == [(0, 0), (4, 0)]


@pytest.mark.parametrize(
    ("forward", "largest", "inner"),
    [
        (True, None, LocationFilter.none()),
        (False, Location(3, 0), LocationFilter.none()),
        (True, Location(3, 0), LocationFilter.next_object()),
        (True, Location(3, 0), LocationFilter.absolute(Location(4, 0))),
        (True, Location(3, 0), None),
    ],
)
def test_a_fill_without_a_stream_has_ended(
    forward: bool, largest: Location | None, inner: LocationFilter | None
) -> None:
    """3.4#1; an absent inner filter is the subscription's, here Next Object."""
    peer = ScriptedPeer()
    request_id = with_fill(peer, FillParameters(location_filter=inner), forward=forward)
    peer.send(0, SubscribeOk(ALIAS, Parameters(largest=largest)))
    assert one(peer.take(FillEnded)) == FillEnded(request_id, request_id)
    stream = peer.open_uni()
    peer.send_octets(stream, fetched(request_id, [(0, 0)]))
    assert stream in peer.transport.stops


def test_fill_by_update() -> None:
    """3.4#2."""
    peer = ScriptedPeer()
    request_id = established(peer, largest=Location(2, 0))
    fill = FillParameters(location_filter=LocationFilter.absolute(Location(0, 0)))
    update_id = peer.session.update(request_id, fill=fill)
    asked = peer.messages(0)[-1]
    assert isinstance(asked, RequestUpdate)
    assert asked.parameters.fill is not None
    peer.send_octets(peer.open_uni(), fetched(update_id, [(0, 0), (2, 0)]), fin=True)
    peer.send(0, RequestOk(Parameters(largest=Location(2, 0))))
    assert one(peer.take(FillEnded)) == FillEnded(request_id, update_id)
    assert one(peer.take(UpdateAccepted)).update_id == update_id
    assert all(event.from_fill for event in peer.take(ObjectReceived))


def test_fill_by_update_that_brings_nothing() -> None:
    peer = ScriptedPeer()
    request_id = established(peer, largest=Location(2, 0))
    fill = FillParameters(location_filter=LocationFilter.next_object())
    update_id = peer.session.update(request_id, fill=fill)
    peer.send(0, RequestOk(Parameters(largest=Location(2, 0))))
    assert [type(event).__name__ for event in peer.events[-2:]] == ["UpdateAccepted", "FillEnded"]
    assert one(peer.take(FillEnded)) == FillEnded(request_id, update_id)


def test_fill_whose_stream_never_comes() -> None:
    """It is given up when nothing else comes either; late, its stream is stopped."""
    peer = ScriptedPeer(config=SessionConfig(stream_header_timeout_s=5.0))
    request_id = established(peer, largest=Location(2, 0))
    fill = FillParameters(location_filter=LocationFilter.none())
    update_id = peer.session.update(request_id, fill=fill)
    peer.send(0, RequestOk(Parameters(largest=Location(2, 0))))
    peer.advance(4.0)
    peer.send_octets(peer.open_uni(), subgroup(3, [0]))
    peer.advance(4.0)
    assert peer.take(FillEnded) == []  # something was under way
    peer.advance(5.0)
    assert one(peer.take(FillEnded)) == FillEnded(
        request_id, update_id, StreamResetCode.INTERNAL_ERROR
    )
    stream = peer.open_uni()
    peer.send_octets(stream, fetched(update_id, [(0, 0)]))
    assert peer.transport.stops == {stream: StreamResetCode.CANCELLED}
    assert peer.take(SubscriptionEnded) == []


def test_fill_whose_stream_is_reset_before_its_header() -> None:
    """3.4.1#3: nothing tells whose it was, but nothing else is awaited; live Objects go on."""
    peer = ScriptedPeer()
    request_id = established(peer, largest=Location(2, 0))
    fill = FillParameters(location_filter=LocationFilter.none())
    update_id = peer.session.update(request_id, fill=fill)
    peer.send(0, RequestOk(Parameters(largest=Location(2, 0))))
    assert peer.take(FillEnded) == []
    peer.reset(peer.open_uni(), 0x52E4A40FA8DB)
    assert one(peer.take(FillEnded)) == FillEnded(
        request_id, update_id, StreamResetCode.INTERNAL_ERROR
    )
    peer.send_octets(peer.open_uni(), subgroup(3, [0]))
    assert got(peer.take(ObjectReceived)) == [(3, 0)]


def test_two_fills_one_of_which_is_reset_before_its_header() -> None:
    """Which of them it was shows when the other one's stream comes."""
    peer = ScriptedPeer()
    request_id = established(peer, largest=Location(2, 0))
    fill = FillParameters(location_filter=LocationFilter.none())
    lost, kept = (peer.session.update(request_id, fill=fill) for _ in range(2))
    peer.reset(peer.open_uni())
    for _ in range(2):
        peer.send(0, RequestOk(Parameters(largest=Location(2, 0))))
    assert peer.take(FillEnded) == []
    peer.send_octets(peer.open_uni(), fetched(kept, [(0, 0)]), fin=True)
    ended = peer.take(FillEnded)
    assert {event.fill_id: event.reset for event in ended} == {
        lost: StreamResetCode.INTERNAL_ERROR,
        kept: None,
    }
    peer.send(0, PublishDone(code=PublishDoneCode.TRACK_ENDED, stream_count=2))
    assert one(peer.take(SubscriptionEnded)).streams_missing == 0


def test_fills_that_do_not_come_after_a_reset_are_not_waited_for_long() -> None:
    peer = ScriptedPeer(config=SessionConfig(lost_fill_timeout_s=2.0))
    established(peer, largest=Location(2, 0))
    fill = FillParameters(location_filter=LocationFilter.none())
    fills = [peer.session.update(0, fill=fill) for _ in range(2)]
    for _ in fills:
        peer.send(0, RequestOk(Parameters(largest=Location(2, 0))))
    peer.reset(peer.open_uni())
    peer.advance(1.9)
    assert peer.take(FillEnded) == []
    peer.advance(0.2)
    assert [event.fill_id for event in peer.take(FillEnded)] == fills


def test_refused_fill_by_update() -> None:
    peer = ScriptedPeer()
    request_id = established(peer, largest=Location(2, 0))
    update_id = peer.session.update(request_id, fill=FillParameters())
    peer.send(0, RequestError(code=RequestErrorCode.UNAUTHORIZED))
    stream = peer.open_uni()
    peer.send_octets(stream, fetched(update_id, [(0, 0)]))
    assert stream in peer.transport.stops
    assert peer.take(FillEnded) == []


def test_stop_a_fill_that_runs_and_one_that_has_not_come() -> None:
    for early in (False, True):
        peer = ScriptedPeer()
        request_id = with_fill(peer)
        peer.send(0, SubscribeOk(ALIAS, Parameters(largest=Location(3, 0))))
        stream = peer.open_uni()
        if early:
            peer.session.stop_fill(request_id, request_id, now=0.0)
        peer.send_octets(stream, fetched(request_id, [(0, 0)]))
        if not early:
            peer.session.stop_fill(request_id, request_id, now=0.0)
            peer.session.stop_fill(request_id, request_id, now=0.0)
        assert peer.transport.stops == {stream: StreamResetCode.CANCELLED}
        peer.send_octets(peer.open_uni(), subgroup(4, [0]), fin=True)
        assert (4, 0) in got(peer.take(ObjectReceived))
        assert peer.take(FillEnded) == []
        peer.send(0, done(2))
        assert len(peer.take(SubscriptionEnded)) == 1


def test_markers_on_a_fill() -> None:
    peer = ScriptedPeer()
    request_id = with_fill(peer)
    writer = FetchWriter(FetchHeader(request_id), GroupOrder.ASCENDING)
    octets = writer.head + writer.end_of_range(RangeStatus.UNKNOWN, Location(2, 5))
    peer.send_octets(peer.open_uni(), octets, fin=True)
    assert one(peer.take(EndOfRangeReceived)) == EndOfRangeReceived(
        request_id, RangeStatus.UNKNOWN, Location(2, 5), from_fill=True
    )


def test_second_stream_for_one_fill() -> None:
    peer = ScriptedPeer()
    request_id = with_fill(peer)
    peer.send_octets(peer.open_uni(), fetched(request_id, [(0, 0)]))
    second = peer.open_uni()
    peer.send_octets(second, fetched(request_id, [(0, 0)]))
    assert peer.transport.stops == {second: StreamResetCode.CANCELLED}
    assert len(peer.take(ObjectReceived)) == 1
