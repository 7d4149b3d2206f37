"""A peer that stays within the protocol and asks for as much work as it can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import ObjectStatus, PublishDoneCode, RequestErrorCode
from moqt.session.config import Role, SessionConfig
from moqt.session.events import SubscriptionEnded
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.session.receive.subscription import Subscription
from moqt.session.receive.track_state import GroupState, TrackState
from moqt.testing import ScriptedPeer
from moqt.types import FullTrackName, Location, Object, ObjectHeader
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    PublishDone,
    RequestError,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeOk,
)
from moqt.wire.params import FillParameters, Parameters
from tests.session.receiving import NAME, NAMESPACE, established, one

if TYPE_CHECKING:
    import pytest


def test_fills_of_a_subscription_are_bounded() -> None:
    track = TrackSource(NAME)
    writer = track.open_group(0)
    writer.write(0, bytes(1000))
    directory = TrackDirectory()
    directory.add(track)
    peer = ScriptedPeer(Role.SERVER, config=SessionConfig(max_fills=3), directory=directory)
    peer.transport.room = 0  # nothing leaves, so no fill ends
    fill = FillParameters(location_filter=LocationFilter.absolute(Location(0, 0)))
    stream = peer.open_bidi()
    peer.send(stream, Subscribe(peer.next_request_id(), NAME, Parameters(fill=fill)))
    for _ in range(2):
        peer.send(stream, RequestUpdate(peer.next_request_id(), Parameters(fill=fill)))
    assert [type(one) for one in peer.messages(stream)] == [SubscribeOk, RequestOk, RequestOk]

    peer.send(stream, RequestUpdate(peer.next_request_id(), Parameters(fill=fill)))

    refusal, done = peer.messages(stream)
    assert isinstance(refusal, RequestError)
    assert refusal.code is RequestErrorCode.EXCESSIVE_LOAD
    assert isinstance(done, PublishDone)
    assert done.code is PublishDoneCode.UPDATE_FAILED
    assert peer.transport.closed is None


def test_fetches_whose_streams_wait_are_bounded() -> None:
    """Their request streams are over by FIN both ways, so these count against no limit."""
    track = TrackSource(NAME)
    track.open_group(0).write(0, bytes(1000))
    directory = TrackDirectory()
    directory.add(track)
    peer = ScriptedPeer(Role.SERVER, config=SessionConfig(max_requests=3), directory=directory)
    peer.transport.max_unidirectional = 1  # our control stream
    answers = []
    for _ in range(5):
        stream = peer.open_bidi()
        peer.send(stream, Fetch(peer.next_request_id(), NAME), fin=True)
        answers += peer.messages(stream)
    assert [type(one) for one in answers] == [FetchOk] * 3 + [RequestError] * 2
    refusal = answers[-1]
    assert isinstance(refusal, RequestError)
    assert refusal.code is RequestErrorCode.EXCESSIVE_LOAD
    assert refusal.retry_interval_ms is not None
    peer.transport.max_unidirectional = 10
    peer.after()
    peer.send(stream := peer.open_bidi(), Fetch(peer.next_request_id(), NAME), fin=True)
    assert isinstance(peer.messages(stream)[0], FetchOk)


def test_a_reset_that_says_nothing_costs_no_look_at_all_subscriptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only those are looked at that have PUBLISH_DONE and wait for a stream."""
    looked_at: list[int] = []
    on_stream_over = Subscription.on_stream_over

    def count(subscription: Subscription, now: float) -> None:
        looked_at.append(subscription.request_id)
        on_stream_over(subscription, now)

    monkeypatch.setattr(Subscription, "on_stream_over", count)
    peer = ScriptedPeer()
    for alias in range(20):
        established(
            peer, name=FullTrackName(NAMESPACE, b"%d" % alias), alias=alias, stream_id=4 * alias
        )
    peer.reset(peer.open_uni())
    assert looked_at == []
    ending = PublishDone(code=PublishDoneCode.GOING_AWAY, stream_count=3)
    peer.send(4 * 7, ending, fin=True)
    peer.reset(peer.open_uni())
    assert looked_at == [14]
    peer.reset(peer.open_uni())
    assert one(peer.take(SubscriptionEnded)).request_id == 14
    peer.reset(peer.open_uni())
    assert looked_at == [14, 14]


def test_end_of_track_said_again_costs_no_look_at_all_groups() -> None:
    class Counting(dict[int, GroupState]):
        looks = 0

        def items(self) -> object:  # type: ignore[override]
            self.looks += 1
            return super().items()

    track = TrackState(NAME)
    groups = track._groups = Counting()
    for object_id in range(100):
        end = ObjectHeader(9, object_id, 0, 128, 0, ObjectStatus.END_OF_TRACK)
        track.see(Object(end, None))
    assert groups.looks == 1
    assert track.end == Location(9, 0)
