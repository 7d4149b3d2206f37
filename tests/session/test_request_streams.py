"""Request streams: FIN and cancel, REQUEST_UPDATE, limits, flow control."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moqt.codes import PublishDoneCode, RequestErrorCode, SessionErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, ResourceBusy
from moqt.session.config import Role, SessionConfig
from moqt.session.events import (
    NamespaceOffered,
    RequestEnded,
    RequestRejected,
    SubscriptionEnded,
    SubscriptionEstablished,
    UpdateAccepted,
    UpdateRejected,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.testing import ScriptedPeer
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.filters import IdRange, RangeFilter, RangeFilterKind
from moqt.wire.framing import encode_message
from moqt.wire.messages import (
    Namespace,
    NamespaceDone,
    PublishDone,
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    SubscribeNamespace,
    SubscribeOk,
    TrackStatus,
)
from moqt.wire.options import SetupOptions
from moqt.wire.params import FillParameters, Parameters
from tests.session.receiving import NAME, NAMESPACE, established, one
from tests.session.test_setup import assert_closed, violation

if TYPE_CHECKING:
    from collections.abc import Callable


def server(config: SessionConfig | None = None) -> ScriptedPeer:
    return ScriptedPeer(Role.SERVER, config=config, directory=TrackDirectory())


# FIN and cancel


def test_fin_before_the_answer_fails_the_request() -> None:
    """6.4.2.2#5."""
    peer = ScriptedPeer()
    request_id = peer.session.subscribe(NAME, now=0.0)
    peer.send_octets(0, b"", fin=True)
    event = one(peer.take(RequestRejected))
    assert event.request_id == request_id
    assert not event.timed_out
    assert peer.session.stats.open_requests == 0


def test_fin_of_a_requester_is_no_cancel() -> None:
    """6.4.2.2#6."""
    peer = server()
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(0, NAMESPACE), fin=True)
    peer.session.accept(0, now=0.0)
    assert isinstance(one(peer.messages(stream)), RequestOk)
    assert stream not in peer.transport.resets


def test_cancel_uses_both_directions() -> None:
    """6.4.2.3#1."""
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.session.cancel(request_id, now=0.0)
    assert peer.transport.resets == {0: StreamResetCode.CANCELLED}
    assert peer.transport.stops == {0: StreamResetCode.CANCELLED}
    peer.session.cancel(request_id, now=0.0)
    peer.send_octets(0, b"\x00")
    assert peer.session.stats.open_requests == 0
    assert not peer.session.is_closed


def test_cancel_behind_our_fin_only_stops() -> None:
    """6.4.2.3#1."""
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.send(0, PublishDone(code=PublishDoneCode.TRACK_ENDED, stream_count=1))
    assert 0 in peer.transport.finished
    peer.session.cancel(request_id, now=0.0)
    assert 0 not in peer.transport.resets
    assert 0 in peer.transport.stops


@pytest.mark.parametrize("how", ["reset", "stop", "both"])
def test_cancel_by_the_peer_before_the_answer(how: str) -> None:
    peer = ScriptedPeer()
    request_id = peer.session.subscribe(NAME, now=0.0)
    if how in ("reset", "both"):
        peer.reset(0, 0x52E4A40FA8DB)
    if how in ("stop", "both"):
        peer.stop(0, 0x52E4A40FA8DB)
    assert one(peer.take(RequestRejected)).request_id == request_id
    assert peer.session.stats.open_requests == 0
    assert 0 in peer.transport.resets


def test_cancel_by_the_publisher_ends_the_subscription() -> None:
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.reset(0, StreamResetCode.TOO_FAR_BEHIND)
    event = one(peer.take(SubscriptionEnded))
    assert (event.request_id, event.code) == (request_id, PublishDoneCode.TOO_FAR_BEHIND)


def test_fin_of_the_publisher_without_publish_done() -> None:
    peer = ScriptedPeer()
    established(peer)
    peer.send_octets(0, b"", fin=True)
    event = one(peer.take(SubscriptionEnded))
    assert event.code is PublishDoneCode.INTERNAL_ERROR
    assert "PUBLISH_DONE" in event.reason


# Updates


def test_update_and_its_answers_in_order() -> None:
    """9.5#2."""
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.messages(0)
    first = peer.session.update(request_id, forward=False)
    second = peer.session.update(request_id, priority=3)
    assert peer.messages(0) == [
        RequestUpdate(first, Parameters(forward=False)),
        RequestUpdate(second, Parameters(subscriber_priority=3)),
    ]
    peer.send(0, RequestOk(Parameters(largest=Location(5, 6))))
    peer.send(0, RequestError(code=RequestErrorCode.UNAUTHORIZED, reason="no"))
    assert one(peer.take(UpdateAccepted)) == UpdateAccepted(request_id, first, Location(5, 6))
    assert one(peer.take(UpdateRejected)) == UpdateRejected(
        request_id, second, RequestErrorCode.UNAUTHORIZED, "no"
    )
    peer.send(0, RequestOk())
    violation(peer)


def test_our_updates_keep_the_peers_limit() -> None:
    """9.1.7#1."""
    peer = ScriptedPeer(options=SetupOptions(max_request_updates=2))
    request_id = established(peer)
    peer.session.update(request_id, forward=False)
    peer.session.update(request_id, forward=True)
    with pytest.raises(ResourceBusy, match="MAX_REQUEST_UPDATES"):
        peer.session.update(request_id, forward=False)
    peer.send(0, RequestOk())
    peer.session.update(request_id, forward=False)


def test_updates_of_the_peer_beyond_our_limit() -> None:
    """9.1.7#2."""
    peer = server(SessionConfig(max_request_updates=2))
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(0, NAMESPACE))
    peer.send(stream, RequestUpdate(2), RequestUpdate(4))
    assert not peer.session.is_closed
    peer.session.accept(0, now=0.0)
    assert peer.messages(stream) == [RequestOk()] * 3
    peer.send(stream, RequestUpdate(6), RequestUpdate(8))
    assert peer.messages(stream) == [RequestOk()] * 2
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(10, NAMESPACE))
    peer.send(stream, RequestUpdate(12), RequestUpdate(14), RequestUpdate(16))
    assert_closed(peer, SessionErrorCode.TOO_MANY_REQUEST_UPDATES)


def test_update_from_the_wrong_side_or_of_a_track_status() -> None:
    """9.5#1."""
    peer = ScriptedPeer()
    established(peer)
    peer.send(0, RequestUpdate(1))
    violation(peer)
    peer = server()
    stream = peer.open_bidi()
    peer.send(stream, TrackStatus(0, NAME), RequestUpdate(2))
    violation(peer)


def test_update_with_a_parameter_of_another_request() -> None:
    """9.20.1#1."""
    peer = server()
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(0, NAMESPACE))
    peer.send(stream, RequestUpdate(2, Parameters(forward=False)))
    violation(peer)


def test_update_that_cannot_be() -> None:
    peer = ScriptedPeer()
    pending = peer.session.subscribe(NAME, now=0.0)
    fetch = peer.session.fetch(NAME, now=0.0)
    for request_id in (pending, 99):
        with pytest.raises(LocalProtocolError):
            peer.session.update(request_id, forward=False)
    with pytest.raises(LocalProtocolError, match="priority"):
        peer.session.update(fetch, forward=False)
    assert peer.session.update(fetch, priority=1) == 4


# Our own limits


def test_update_that_the_kind_of_request_does_not_have() -> None:
    peer = ScriptedPeer()
    request_id = established(peer)
    peer.messages(0)
    session = peer.session
    watch = session.subscribe_namespace(NAMESPACE, now=0.0)
    peer.send(4, RequestOk())
    advertised = session.publish_namespace(NAMESPACE, now=0.0)
    peer.send(8, RequestOk())
    wrong: list[tuple[Callable[[], int], str]] = [
        (lambda: session.update_prefix(request_id, NAMESPACE), "about a track, not a prefix"),
        (lambda: session.update(watch, priority=3), "only tokens"),
        (lambda: session.update(watch, forward=False), "no Forward State"),
        (lambda: session.update(advertised, priority=3), "only tokens"),
        (lambda: session.update_prefix(advertised, NAMESPACE), "only tokens"),
        (lambda: session.update_prefix(40, NAMESPACE), "request 40 is no open one"),
    ]
    for update, reason in wrong:
        with pytest.raises(LocalProtocolError, match=reason):
            update()
    assert all(RequestUpdate not in map(type, peer.messages(stream)) for stream in (0, 4, 8))


def test_requests_beyond_our_and_the_peers_limits() -> None:
    peer = ScriptedPeer(config=SessionConfig(max_pending_requests=2))
    peer.session.track_status(NAME, now=0.0)
    peer.session.track_status(NAME, now=0.0)
    with pytest.raises(ResourceBusy, match="max_pending_requests"):
        peer.session.track_status(NAME, now=0.0)
    peer = ScriptedPeer()
    peer.transport.max_bidirectional = 0
    with pytest.raises(ResourceBusy, match="limit of bidirectional streams"):
        peer.session.fetch(NAME, now=0.0)
    assert peer.session.stats.open_requests == 0
    peer.transport.max_bidirectional = 1
    assert peer.session.fetch(NAME, now=0.0) == 0


def test_reserved_names_are_not_asked_for() -> None:
    """2.4.3#1."""
    peer = ScriptedPeer()
    name = FullTrackName(TrackNamespace.of(".x"), b"")
    session = peer.session
    commands: list[Callable[[], int]] = [
        lambda: session.subscribe(name, now=0.0),
        lambda: session.fetch(name, now=0.0),
        lambda: session.track_status(name, now=0.0),
        lambda: session.publish_namespace(name.namespace, now=0.0),
        lambda: session.subscribe_namespace(name.namespace, now=0.0),
    ]
    for command in commands:
        with pytest.raises(LocalProtocolError, match="reserved"):
            command()
    assert peer.session.stats.requests_sent == 0


def test_a_priority_that_is_none() -> None:
    peer = ScriptedPeer()
    with pytest.raises(LocalProtocolError, match="priority"):
        peer.session.subscribe(NAME, priority=256, now=0.0)
    request_id = established(peer)
    with pytest.raises(LocalProtocolError):
        peer.session.update(request_id, fill=FillParameters(subscriber_priority=300))
    assert peer.session.update(request_id, priority=0) == 2


# Flow control on request streams


def test_messages_wait_for_flow_control_and_keep_their_order() -> None:
    peer = server()
    stream = peer.open_bidi()
    peer.transport.stream_rooms[stream] = 0
    peer.send(stream, PublishNamespace(0, NAMESPACE))
    peer.session.reject(0, RequestErrorCode.UNINTERESTED, now=0.0)
    peer.after()
    assert peer.messages(stream) == []
    assert stream not in peer.transport.finished
    peer.send_octets(stream, b"", fin=True)
    assert peer.session.stats.open_requests == 1
    peer.transport.stream_rooms[stream] = 100
    peer.after()
    answer = one(peer.messages(stream))
    assert isinstance(answer, RequestError)
    assert stream in peer.transport.finished
    assert peer.session.stats.open_requests == 0


def test_a_backlog_beyond_its_limit_cancels_the_request() -> None:
    """15.5#1, 15.5#2."""
    directory = TrackDirectory()
    for number in range(50):
        directory.advertise(TrackNamespace.of("kv", f"publication-{number}"))
    config = SessionConfig(max_request_stream_octets=200)
    peer = ScriptedPeer(Role.SERVER, config=config, directory=directory)
    stream = peer.open_bidi()
    peer.transport.stream_rooms[stream] = 30
    peer.send(stream, SubscribeNamespace(0, TrackNamespace.of("kv")))
    assert peer.transport.resets == {stream: StreamResetCode.EXCESSIVE_LOAD}
    directory.advertise(TrackNamespace.of("kv", "new"))
    assert peer.session.stats.open_requests == 0
    assert not peer.session.is_closed
    other = peer.open_bidi()
    peer.send(other, SubscribeNamespace(2, TrackNamespace.of("kv", "new")))
    assert peer.messages(other) == [RequestOk(), Namespace(TrackNamespace())]


def test_request_octets_are_credited_in_order_only() -> None:
    peer = ScriptedPeer()
    peer.session.subscribe(NAME, now=0.0)
    octets = encode_message(SubscribeOk(3, Parameters(largest=Location(1, 2))))
    peer.send_range(0, 4, octets[4:])
    assert peer.transport.owed == len(octets) - 4
    peer.send_range(0, 0, octets[:4])
    assert peer.transport.owed == 0
    assert one(peer.take(SubscriptionEstablished)).largest == Location(1, 2)


def test_namespace_done_on_a_subscription() -> None:
    peer = ScriptedPeer()
    established(peer)
    peer.send(0, NamespaceDone(NAMESPACE))
    violation(peer)


def test_nothing_behind_publish_done() -> None:
    peer = ScriptedPeer()
    established(peer)
    peer.send(0, PublishDone(code=PublishDoneCode.TRACK_ENDED, stream_count=1))
    peer.send(0, PublishDone(code=PublishDoneCode.TRACK_ENDED, stream_count=1))
    violation(peer)


def test_accepted_namespace_that_the_peer_gives_up() -> None:
    peer = ScriptedPeer()
    request_id = peer.session.publish_namespace(NAMESPACE, now=0.0)
    peer.send(0, RequestOk())
    peer.cancel(0, StreamResetCode.GOING_AWAY)
    assert one(peer.take(RequestEnded)) == RequestEnded(request_id, StreamResetCode.GOING_AWAY)


def test_what_comes_late_on_a_stream_that_is_over() -> None:
    """A stream of the peer's that we cancelled is not taken for a new one."""
    peer = server()
    stream = peer.open_bidi()
    octets = encode_message(PublishNamespace(0, NAMESPACE))
    peer.send_octets(stream, octets)
    peer.session.cancel(0, now=0.0)
    peer.send_octets(stream, octets, fin=True)
    peer.reset(stream)
    peer.stop(stream)
    assert not peer.session.is_closed
    assert peer.session.stats.open_requests == 0
    assert len(peer.take(NamespaceOffered)) == 1


def test_filters_that_an_update_keeps_count_too() -> None:
    """9.3 of the reference, 9.1.6#1."""
    peer = ScriptedPeer(options=SetupOptions(max_filter_ranges=2))
    one_range = RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 3),))
    two_ranges = RangeFilter(RangeFilterKind.SUBGROUP, (IdRange(0, 1), IdRange(3, 4)))
    request_id = peer.session.subscribe(NAME, range_filters=[one_range], now=0.0)
    peer.send(0, SubscribeOk(1))
    fill = FillParameters(range_filters=(two_ranges,))
    with pytest.raises(LocalProtocolError, match="ranges"):
        peer.session.update(request_id, fill=fill)
    peer.session.update(request_id, range_filters=[two_ranges])
    update = peer.messages(0)[-1]
    assert isinstance(update, RequestUpdate)
    assert update.parameters.removed_range_filters == {RangeFilterKind.OBJECT_ID}
