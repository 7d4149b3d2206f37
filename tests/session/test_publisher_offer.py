"""PUBLISH of ours: offered, accepted, refused, updated, ended."""

from __future__ import annotations

import pytest

from moqt.codes import PublishDoneCode, RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError
from moqt.session.config import Role
from moqt.session.events import RequestAccepted, RequestEnded, RequestRejected
from moqt.session.publish.source import TrackSource
from moqt.testing.scripted import ScriptedPeer
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import (
    Publish,
    PublishDone,
    RequestError,
    RequestOk,
    RequestUpdate,
)
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.streams import FetchHeader, SubgroupHeader, parse_stream_head

NAME = FullTrackName(TrackNamespace.of("n"), b"t")
FIRST_REQUEST = 0
"""The stream, and the Request ID, of the client's first request."""


def offering(*, forward: bool = True, objects: int = 2) -> tuple[ScriptedPeer, TrackSource]:
    peer = ScriptedPeer(Role.CLIENT)
    track = TrackSource(NAME)
    if objects:
        writer = track.open_group(0)
        for object_id in range(objects):
            writer.write(object_id, b"old")
        writer.close()
    assert peer.session.publish(track, forward=forward, now=peer.now) == FIRST_REQUEST
    return peer, track


def write_group(peer: ScriptedPeer, track: TrackSource, group_id: int) -> None:
    writer = track.open_group(group_id)
    writer.write(0, b"new")
    writer.close()
    peer.after()


def heads(peer: ScriptedPeer) -> dict[int, SubgroupHeader | FetchHeader]:
    found = {}
    for stream_id, octets in peer.transport.sent.items():
        if stream_id % 4 == 2 and octets:
            parsed = parse_stream_head(octets)
            assert parsed is not None
            if isinstance(parsed[0], SubgroupHeader | FetchHeader):
                found[stream_id] = parsed[0]
    return found


def groups(peer: ScriptedPeer) -> list[int]:
    return [h.group_id for h in heads(peer).values() if isinstance(h, SubgroupHeader)]


def test_objects_flow_before_the_answer() -> None:
    peer, track = offering()
    (publish,) = peer.messages(FIRST_REQUEST)
    assert isinstance(publish, Publish)
    assert publish.name == NAME
    assert publish.parameters == Parameters(largest=Location(0, 1))
    write_group(peer, track, 1)
    assert groups(peer) == [1]
    assert all(
        h.track_alias == publish.track_alias
        for h in heads(peer).values()
        if isinstance(h, SubgroupHeader)
    )
    peer.send(FIRST_REQUEST, RequestOk(Parameters(expires_ms=5)))
    assert peer.take(RequestAccepted) == [RequestAccepted(FIRST_REQUEST, 5)]
    track.end()
    peer.after()
    (done,) = peer.messages(FIRST_REQUEST)
    assert isinstance(done, PublishDone)
    assert (done.code, done.stream_count) == (PublishDoneCode.TRACK_ENDED, 2)
    assert FIRST_REQUEST in peer.transport.finished
    peer.send_octets(FIRST_REQUEST, b"", fin=True)
    assert peer.session.stats.open_requests == 0
    assert not track._listeners


def test_done_waits_for_the_answer() -> None:
    """9.9#3: PUBLISH_DONE belongs to an Established subscription."""
    peer, track = offering()
    write_group(peer, track, 1)
    track.end()
    peer.after()
    peer.messages(FIRST_REQUEST)
    assert FIRST_REQUEST not in peer.transport.finished
    peer.send(FIRST_REQUEST, RequestOk())
    (done,) = peer.messages(FIRST_REQUEST)
    assert isinstance(done, PublishDone)
    assert done.stream_count == 2


def test_refused_offer_resets_its_streams() -> None:
    peer, track = offering()
    writer = track.open_group(1)
    writer.write(0, b"new")
    peer.after()
    peer.send(FIRST_REQUEST, RequestError(code=RequestErrorCode.UNINTERESTED), fin=True)
    (rejected,) = peer.take(RequestRejected)
    assert (rejected.request_id, rejected.code) == (FIRST_REQUEST, RequestErrorCode.UNINTERESTED)
    (stream,) = heads(peer)
    assert peer.transport.resets == {stream: StreamResetCode.CANCELLED}
    writer.write(1, b"newer")
    write_group(peer, track, 2)
    assert groups(peer) == [1]
    assert not track._listeners
    assert peer.session.stats.open_requests == 0


def test_paused_offer_of_a_finished_track_waits_for_its_fill() -> None:
    """The push with consent of chapter 21."""
    peer, track = offering(forward=False)
    (publish,) = peer.messages(FIRST_REQUEST)
    assert isinstance(publish, Publish)
    assert publish.parameters == Parameters(largest=Location(0, 1), forward=False)
    track.end()
    peer.after()
    peer.send(FIRST_REQUEST, RequestOk())
    assert not peer.messages(FIRST_REQUEST)
    assert not heads(peer)
    update_id = peer.next_request_id()
    fill = FillParameters(location_filter=LocationFilter.none())
    peer.send(FIRST_REQUEST, RequestUpdate(update_id, Parameters(forward=True, fill=fill)))
    ok, done = peer.messages(FIRST_REQUEST)
    assert ok == RequestOk(Parameters(largest=Location(0, 1)))
    assert isinstance(done, PublishDone)
    assert (done.code, done.stream_count) == (PublishDoneCode.TRACK_ENDED, 1)
    assert list(heads(peer).values()) == [FetchHeader(update_id)]


def test_subscriber_cancels_an_accepted_offer() -> None:
    peer, track = offering()
    track.open_group(1).write(0, b"new")
    peer.after()
    peer.send(FIRST_REQUEST, RequestOk())
    peer.cancel(FIRST_REQUEST)
    (ended,) = peer.take(RequestEnded)
    assert (ended.request_id, ended.reset) == (FIRST_REQUEST, StreamResetCode.CANCELLED)
    (stream,) = heads(peer)
    assert peer.transport.resets[stream] is StreamResetCode.CANCELLED
    assert not track._listeners


def test_we_cancel_an_offer() -> None:
    peer, track = offering()
    track.open_group(1).write(0, b"new")
    peer.after()
    peer.send(FIRST_REQUEST, RequestOk())
    peer.session.cancel(FIRST_REQUEST, now=peer.now)
    peer.after()
    (stream,) = heads(peer)
    assert stream in peer.transport.resets
    assert FIRST_REQUEST in peer.transport.resets
    assert FIRST_REQUEST in peer.transport.stops
    write_group(peer, track, 2)
    assert groups(peer) == [1]
    assert not track._listeners


def test_unanswered_offer_times_out() -> None:
    peer, track = offering()
    peer.advance(1000)
    (rejected,) = peer.take(RequestRejected)
    assert rejected.timed_out
    assert not track._listeners


def test_aborted_track_is_not_offered_and_ends_what_was() -> None:
    peer, track = offering()
    peer.send(FIRST_REQUEST, RequestOk())
    peer.messages(FIRST_REQUEST)
    track.abort(PublishDoneCode.GOING_AWAY, "moving")
    peer.after()
    (done,) = peer.messages(FIRST_REQUEST)
    assert isinstance(done, PublishDone)
    assert (done.code, done.reason) == (PublishDoneCode.GOING_AWAY, "moving")
    with pytest.raises(LocalProtocolError, match="aborted"):
        peer.session.publish(track, now=peer.now)


def test_end_of_the_session_lets_go_of_the_track() -> None:
    peer, track = offering()
    writer = track.open_group(1)
    writer.write(0, b"new")
    peer.after()
    peer.session.close(now=peer.now)
    sent = {stream: len(octets) for stream, octets in peer.transport.sent.items()}
    writer.write(1, b"late")
    peer.after()
    assert {stream: len(octets) for stream, octets in peer.transport.sent.items()} == sent
    assert not track._listeners
    assert not writer._subgroup.waiters
