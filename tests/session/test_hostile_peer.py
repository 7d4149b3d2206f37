"""A peer that stays within the protocol and asks for as much work as it can."""

from __future__ import annotations

from moqt.codes import ObjectStatus, PublishDoneCode, RequestErrorCode
from moqt.session.config import Role, SessionConfig
from moqt.session.directory import TrackDirectory
from moqt.session.source import TrackSource
from moqt.session.track_state import GroupState, TrackState
from moqt.testing import ScriptedPeer
from moqt.types import Location, ObjectHeader
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import (
    PublishDone,
    RequestError,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeOk,
)
from moqt.wire.object_reader import ObjectRead
from moqt.wire.params import FillParameters, Parameters
from tests.session.receiving import NAME


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
        track.see(ObjectRead(end, None))
    assert groups.looks == 1
    assert track.end == Location(9, 0)
