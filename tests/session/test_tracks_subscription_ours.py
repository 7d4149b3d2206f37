"""Our SUBSCRIBE_TRACKS: what is sent, what its offers and skipped tracks become."""

from __future__ import annotations

import pytest

from moqt.codes import GroupOrder, RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, ResourceBusy
from moqt.session.config import Role
from moqt.session.events import (
    ObjectReceived,
    PublicationOffered,
    RequestAccepted,
    RequestEnded,
    TrackSkipped,
    UpdateAccepted,
    UpdateRejected,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer, SessionPair
from moqt.types import FullTrackName, TrackNamespace
from moqt.wire.filters import (
    IdRange,
    RangeFilter,
    RangeFilterKind,
)
from moqt.wire.messages import (
    Message,
    Publish,
    PublishSkipped,
    RequestError,
    RequestOk,
    RequestUpdate,
    SubscribeTracks,
)
from moqt.wire.options import SetupOptions
from moqt.wire.params import Parameters
from tests.session.receiving import one
from tests.session.test_setup import violation

KV = TrackNamespace.of("kv")
A = TrackNamespace.of("kv", "a")
B = TrackNamespace.of("kv", "b")
EVERYTHING = TrackNamespace()


def named(namespace: TrackNamespace, name: str) -> FullTrackName:
    return FullTrackName(namespace, name.encode())


def watching() -> tuple[ScriptedPeer, int]:
    peer = ScriptedPeer()
    request_id = peer.session.subscribe_tracks(KV, now=0.0)
    peer.send(0, RequestOk())
    assert one(peer.take(RequestAccepted)).request_id == request_id
    return peer, request_id


def offer(peer: ScriptedPeer, name: FullTrackName, alias: int = 1) -> int:
    stream = peer.open_bidi()
    peer.send(stream, Publish(peer.next_request_id(), name, alias))
    return stream


def test_what_is_sent() -> None:
    """AMB#6: 9.18: of the two parameter lists the short one, and nothing that is the default."""
    peer = ScriptedPeer()
    peer.session.subscribe_tracks(KV, now=0.0)
    assert peer.messages(0) == [SubscribeTracks(0, KV)]
    chosen = (RangeFilter(RangeFilterKind.TRACK_PROPERTY, (IdRange(1),), property_type=2),)
    peer.session.subscribe_tracks(
        A,
        forward=False,
        group_order=GroupOrder.DESCENDING,
        range_filters=chosen,
        include_properties=False,
        now=0.0,
    )
    parameters = Parameters(
        forward=False,
        group_order=GroupOrder.DESCENDING,
        range_filters=chosen,
        include_properties=False,
    )
    assert peer.messages(4) == [SubscribeTracks(2, A, parameters)]


@pytest.mark.parametrize(
    "first", [PublishSkipped(TrackNamespace.of("a"), b"1"), RequestUpdate(1, Parameters())]
)
def test_the_first_reply_is_an_answer(first: Message) -> None:
    """3.6#1: anything else closes the session."""
    peer = ScriptedPeer()
    peer.session.subscribe_tracks(KV, now=0.0)
    peer.send(0, first)
    violation(peer)


def test_offers_and_skipped_tracks_arrive() -> None:
    peer, request_id = watching()
    offer(peer, named(A, "1"))
    offer(peer, named(TrackNamespace.of("x"), "2"), alias=2)
    assert [event.tracks_id for event in peer.take(PublicationOffered)] == [
        request_id,
        None,
    ]
    peer.send(0, PublishSkipped(TrackNamespace.of("a"), b"3"), PublishSkipped(EVERYTHING, b""))
    assert peer.take(TrackSkipped) == [
        TrackSkipped(request_id, named(A, "3")),
        TrackSkipped(request_id, named(KV, "")),
    ]


def test_an_offer_may_overtake_the_answer_and_be_taken_back() -> None:
    peer = ScriptedPeer()
    request_id = peer.session.subscribe_tracks(KV, now=0.0)
    stream = offer(peer, named(A, "1"))
    offered = one(peer.take(PublicationOffered))
    assert offered.tracks_id == request_id
    peer.cancel(stream)
    assert one(peer.take(RequestEnded)) == RequestEnded(
        offered.request_id, StreamResetCode.from_wire(1), request_id
    )


def test_skipped_name_that_is_too_long_for_its_prefix() -> None:
    peer, _ = watching()
    peer.send(0, PublishSkipped(TrackNamespace(tuple(b"x" for _ in range(32))), b"1"))
    violation(peer)


@pytest.mark.parametrize("how", ["fin", "reset", "cancel"])
def test_after_its_end_no_offer_belongs_to_it(how: str) -> None:
    peer, request_id = watching()
    if how == "fin":
        peer.send_octets(0, b"", fin=True)
        assert one(peer.take(RequestEnded)) == RequestEnded(request_id)
    elif how == "reset":
        peer.reset(0)
        assert one(peer.take(RequestEnded)).reset is StreamResetCode.from_wire(1)
    else:
        peer.session.cancel(request_id, now=0.0)
    offer(peer, named(A, "1"))
    assert one(peer.take(PublicationOffered)).tracks_id is None


def test_our_prefix_moves_and_late_offers_still_belong_to_it() -> None:
    """Streams overtake each other: offers for the old prefix may come behind the OK."""
    peer, request_id = watching()
    other = TrackNamespace.of("other")
    update_id = peer.session.update_prefix(request_id, other, forward=False)
    sent = RequestUpdate(update_id, Parameters(namespace_prefix=other, forward=False))
    assert peer.messages(0)[-1] == sent
    offer(peer, named(other, "1"), alias=1)
    peer.send(0, RequestOk(), PublishSkipped(EVERYTHING, b"2"))
    assert one(peer.take(UpdateAccepted)).update_id == update_id
    assert one(peer.take(TrackSkipped)).name == named(other, "2")
    offer(peer, named(A, "3"), alias=3)
    assert [e.tracks_id for e in peer.take(PublicationOffered)] == [
        request_id,
        request_id,
    ]


def test_a_refused_move_keeps_the_prefix_until_the_end() -> None:
    """9.5.1#3: the responder ends the stream behind its REQUEST_ERROR."""
    peer, request_id = watching()
    peer.session.update_prefix(request_id, TrackNamespace.of("other"))
    peer.send(0, RequestError(code=RequestErrorCode.PREFIX_OVERLAP), fin=True)
    assert one(peer.take(UpdateRejected)).code is RequestErrorCode.PREFIX_OVERLAP
    assert one(peer.take(RequestEnded)).request_id == request_id
    with pytest.raises(LocalProtocolError, match="no open one"):
        peer.session.update_prefix(request_id, A)


def test_moving_onto_another_prefix_of_ours_is_refused_here() -> None:
    """9.5.2#1: equal and nested, also one that is only being moved to; each kind by itself."""
    peer = ScriptedPeer()
    session = peer.session
    first, second, namespaces = (
        session.subscribe_tracks(A, now=0.0),
        session.subscribe_tracks(B, now=0.0),
        session.subscribe_namespace(TrackNamespace.of("n"), now=0.0),
    )
    with pytest.raises(LocalProtocolError, match="not accepted yet"):
        session.update_prefix(first, TrackNamespace.of("z"))  # it has no answer yet
    for stream in (0, 4, 8):
        peer.send(stream, RequestOk())
        peer.messages(stream)
    for prefix in (B, KV, B + TrackNamespace.of("deep"), EVERYTHING):
        with pytest.raises(LocalProtocolError, match=r"overlaps .*9\.5\.2"):
            session.update_prefix(first, prefix)
    assert peer.messages(0) == []
    session.update_prefix(first, TrackNamespace.of("n"))  # the other kind has that one
    with pytest.raises(ResourceBusy, match="moved"):
        session.update_prefix(first, TrackNamespace.of("z"))
    with pytest.raises(LocalProtocolError, match="overlaps"):
        session.update_prefix(second, TrackNamespace.of("n", "deep"))
    with pytest.raises(LocalProtocolError, match="reserved"):
        session.update_prefix(second, TrackNamespace.of(".x"))
    with pytest.raises(LocalProtocolError, match="Forward State"):
        session.update_prefix(namespaces, forward=False)
    with pytest.raises(LocalProtocolError, match="request 99 is no open one"):
        session.update_prefix(99, A)


def test_filters_that_the_peer_does_not_take_are_not_sent() -> None:
    """9.1.6#1: SUBSCRIBE_TRACKS too is refused here when the peer allows no Ranges."""
    peer = ScriptedPeer(options=SetupOptions())
    chosen = (RangeFilter(RangeFilterKind.TRACK_PROPERTY, (IdRange(1),), property_type=2),)
    with pytest.raises(LocalProtocolError, match="INVALID_FILTER"):
        peer.session.subscribe_tracks(KV, range_filters=chosen, now=0.0)
    assert peer.session.stats.open_requests == 0
    with pytest.raises(LocalProtocolError, match="reserved"):
        peer.session.subscribe_tracks(TrackNamespace.of(".x"), now=0.0)


def test_both_ends() -> None:
    """Tracks of a server, before and after; one Object each, once, from offers that forward."""
    directory = TrackDirectory()
    early = TrackSource(named(A, "early"))
    directory.add(early)
    pair = SessionPair(server_directory=directory)
    watch = pair.client.subscribe_tracks(KV, now=pair.now)
    pair.run()
    late = TrackSource(named(B, "late"))
    directory.add(late)
    for track in (early, late):
        writer = track.open_group(0)
        writer.write(0, track.name.name)
        writer.close()
        track.end()
    pair.run()
    offers = pair.take(Role.CLIENT, PublicationOffered)
    assert [(event.name, event.tracks_id) for event in offers] == [
        (early.name, watch),
        (late.name, watch),
    ]
    for event in offers:
        pair.client.accept(event.request_id, now=pair.now)
    pair.run()
    got = {
        bytes(event.object.payload)
        for event in pair.take(Role.CLIENT, ObjectReceived)
        if event.object.payload
    }
    assert got == {b"early", b"late"}
    pair.client.cancel(watch, now=pair.now)
    pair.run()
    assert pair.client.stats.open_requests == pair.server.stats.open_requests == 0
