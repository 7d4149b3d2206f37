"""SUBSCRIBE_TRACKS of the peer: what is offered, what is skipped (MOQT-22 3.6, 9.18, 9.19)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moqt.codes import GroupOrder, PublishDoneCode, RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError
from moqt.session.config import Role, SessionConfig
from moqt.session.discover.tracks_subscription import ServedTracksSubscription
from moqt.session.events import (
    RequestRejected,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.publisher import Publisher
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer
from moqt.types import FullTrackName, TrackNamespace
from moqt.wire.fields import KeyValue
from moqt.wire.filters import (
    IdRange,
    LocationFilter,
    LocationFilterType,
    RangeFilter,
    RangeFilterKind,
)
from moqt.wire.messages import (
    Goaway,
    Message,
    Publish,
    PublishSkipped,
    RequestError,
    RequestOk,
    RequestUpdate,
    SubscribeNamespace,
    SubscribeTracks,
)
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import TrackProperties
from moqt.wire.tokens import AliasType, AuthorizationToken
from tests.session.receiving import one

KV = TrackNamespace.of("kv")
A = TrackNamespace.of("kv", "a")
B = TrackNamespace.of("kv", "b")
EVERYTHING = TrackNamespace()


def named(namespace: TrackNamespace, name: str) -> FullTrackName:
    return FullTrackName(namespace, name.encode())


# The peer's


def serving(
    *names: FullTrackName, config: SessionConfig | None = None
) -> tuple[ScriptedPeer, TrackDirectory]:
    directory = TrackDirectory()
    for name in names:
        directory.add(TrackSource(name))
    return ScriptedPeer(Role.SERVER, directory=directory, config=config), directory


def ask(peer: ScriptedPeer, prefix: TrackNamespace, parameters: Parameters | None = None) -> int:
    stream = peer.open_bidi()
    message = SubscribeTracks(peer.next_request_id(), prefix, parameters or Parameters())
    peer.send(stream, message)
    return stream


def published(peer: ScriptedPeer) -> dict[int, Publish]:
    """Return the PUBLISHes that were sent since the last call, by stream."""
    found: dict[int, Publish] = {}
    for stream in peer.transport.sent:
        if stream % 4 == 1:  # bidirectional, opened by the server under test
            for message in peer.messages(stream):
                if isinstance(message, Publish):
                    found[stream] = message
    return found


def names_of(publishes: dict[int, Publish]) -> list[FullTrackName]:
    return [message.name for message in publishes.values()]


def refused(messages: list[Message]) -> RequestErrorCode:
    answer = one(messages)
    assert isinstance(answer, RequestError)
    return answer.code


def test_tracks_are_offered_now_and_later() -> None:
    """AMB#4, 3.6: OK first, then a PUBLISH for each track below the prefix; no Object is lost."""
    peer, directory = serving(named(A, "1"), named(TrackNamespace.of("x"), "1"), named(KV, "2"))
    stream = ask(peer, KV)
    assert peer.messages(stream) == [RequestOk()]
    assert peer.transport.order.index(stream) < peer.transport.order.index(1)
    assert names_of(published(peer)) == [named(A, "1"), named(KV, "2")]

    late = TrackSource(named(B, "3"))
    directory.add(late)
    writer = late.open_group(0)
    writer.write(0, b"first")
    writer.close()
    directory.add(TrackSource(named(TrackNamespace.of("y"), "4")))
    peer.after()
    ((_, publish),) = published(peer).items()
    assert (publish.name, publish.parameters) == (late.name, Parameters())
    data = [bytes(sent) for sent in peer.transport.sent.values() if b"first" in bytes(sent)]
    assert len(data) == 1
    assert peer.messages(stream) == []


def test_parameters_become_the_state_of_the_subscriptions() -> None:
    """AMB#6: 3.6.2: both of the draft's lists are accepted; FORWARD and GROUP_ORDER come back."""
    peer, directory = serving(named(A, "1"))
    track = one(list(directory.tracks()))
    start = LocationFilter.next_object()
    wish = Parameters(
        forward=False,
        group_order=GroupOrder.DESCENDING,
        subscriber_priority=3,
        location_filter=start,
        object_delivery_timeout_ms=40,
        subgroup_delivery_timeout_ms=50,
        range_filters=(RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(1),)),),
    )
    unused = replace(wish, fill=FillParameters(), rendezvous_timeout_ms=9, new_group_request=1)
    ask(peer, KV, unused)
    ((stream, publish),) = published(peer).items()
    assert publish.parameters == replace(wish, range_filters=())
    peer.send(stream, RequestOk(), RequestUpdate(peer.next_request_id(), Parameters(forward=True)))
    writer = track.open_group(0)
    writer.write(0, b"filtered out")
    writer.write(1, b"wanted")
    peer.after()
    data = b"".join(bytes(s) for i, s in peer.transport.sent.items() if i % 4 == 3)
    assert b"wanted" in data
    assert b"filtered" not in data


def test_properties_can_be_left_out() -> None:
    """9.20.21#1: INCLUDE_PROPERTIES 0 (MOQT-22 9.20.21)."""
    properties = TrackProperties.of(default_publisher_priority=9)
    for include, expected in ((True, properties), (False, TrackProperties())):
        peer, directory = serving()
        directory.add(TrackSource(named(A, "1"), properties=properties))
        ask(peer, KV, Parameters(include_properties=include))
        assert one(list(published(peer).values())).properties == expected


def test_a_filter_chooses_tracks_by_their_properties() -> None:
    """9.20.14: TRACK_PROPERTY_FILTER; what does not pass is neither offered nor skipped."""
    kind = 0x7FFE0
    peer, directory = serving(named(A, "none"))
    for value in (1, 2):
        properties = TrackProperties.of(other=[KeyValue(kind, value)])
        directory.add(TrackSource(named(A, str(value)), properties=properties))

    def wanting(value: int) -> Parameters:
        chosen = (IdRange(value, value),)
        one_of_track = RangeFilter(RangeFilterKind.TRACK_PROPERTY, chosen, property_type=kind)
        return Parameters(range_filters=(one_of_track,))

    stream = ask(peer, KV, wanting(2))
    assert names_of(published(peer)) == [named(A, "2")]
    peer.send(stream, RequestUpdate(peer.next_request_id(), wanting(1)))
    directory.add(
        TrackSource(named(A, "later"), properties=TrackProperties.of(other=[KeyValue(kind, 1)]))
    )
    directory.add(TrackSource(named(A, "bare")))
    assert names_of(published(peer)) == [named(A, "later")]
    assert peer.messages(stream) == [RequestOk(), RequestOk()]


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        (
            Parameters(
                range_filters=(RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 1),) * 9),)
            ),
            RequestErrorCode.INVALID_FILTER,
        ),
        (
            Parameters(location_filter=LocationFilter(LocationFilterType.END_OBJECT, 0, 5, 0, 4)),
            RequestErrorCode.INVALID_RANGE,
        ),
    ],
)
def test_filters_that_are_refused(parameters: Parameters, code: RequestErrorCode) -> None:
    """3.3.2#2: 3.3.2: as for a SUBSCRIBE; nothing is offered."""
    peer, _ = serving(named(A, "1"), config=SessionConfig(max_filter_ranges=8))
    stream = ask(peer, KV, _as_sent(parameters))
    assert refused(peer.messages(stream)) is code
    assert stream in peer.transport.finished
    assert not published(peer)


def _as_sent(parameters: Parameters) -> Parameters:
    """Ranges that rise, since others cannot be written."""
    filters = tuple(
        replace(one, ranges=tuple(IdRange(3 * n, 3 * n + 1) for n in range(len(one.ranges))))
        for one in parameters.range_filters
    )
    return replace(parameters, range_filters=filters)


def test_tokens_are_not_passed_on() -> None:
    """9.20.2#1: the token of SUBSCRIBE_TRACKS is in no PUBLISH."""
    peer, _ = serving(named(A, "1"))
    token = AuthorizationToken(AliasType.USE_VALUE, token_type=7, value=b"secret-value")
    ask(peer, KV, Parameters(authorization_tokens=(token,)))
    ((stream, publish),) = published(peer).items()
    assert publish.parameters.authorization_tokens == ()
    assert b"secret-value" not in bytes(peer.transport.sent[stream])


def test_overlap_is_judged_for_each_kind_by_itself() -> None:
    """3.6#2: equal and nested prefixes are refused, disjoint ones and the other kind are not."""
    peer, _ = serving()
    namespaces = peer.open_bidi()
    peer.send(namespaces, SubscribeNamespace(peer.next_request_id(), A))
    first = ask(peer, A)
    assert peer.messages(first) == [RequestOk()]
    for prefix in (A, KV, A + TrackNamespace.of("deep"), EVERYTHING):
        stream = ask(peer, prefix)
        assert refused(peer.messages(stream)) is RequestErrorCode.PREFIX_OVERLAP
        assert stream in peer.transport.finished
    assert peer.messages(ask(peer, B)) == [RequestOk()]
    other = peer.open_bidi()
    peer.send(other, SubscribeNamespace(peer.next_request_id(), B))
    assert peer.messages(other) == [RequestOk()]
    peer.cancel(first)
    assert peer.messages(ask(peer, A)) == [RequestOk()]


def test_skipped_tracks_are_not_offered_later() -> None:
    """3.6.3#1: no stream is free, then many are; the track stays skipped, a new one does not."""
    peer, directory = serving(named(A, "1"), named(A, "2"))
    peer.transport.max_bidirectional = 1
    stream = ask(peer, KV)
    assert names_of(published(peer)) == [named(A, "1")]
    suffix = TrackNamespace.of("a")
    assert peer.messages(stream) == [RequestOk(), PublishSkipped(suffix, b"2")]
    peer.transport.max_bidirectional = 100
    peer.advance(1.0)
    second = directory.find(named(A, "2"))
    assert second is not None
    second.open_group(0).write(0, b"x")
    peer.after()
    wider = RequestUpdate(peer.next_request_id(), Parameters(namespace_prefix=EVERYTHING))
    peer.send(stream, wider)
    assert not published(peer)
    assert peer.messages(stream) == [RequestOk()]
    directory.remove(second)
    directory.add(TrackSource(named(A, "2")))  # another track of that name
    assert names_of(published(peer)) == [named(A, "2")]


def test_what_else_is_skipped() -> None:
    """Tracks offered already, aborted, or of no use to the peer; and all after a GOAWAY."""
    property_type = 0x4002
    peer, directory = serving(
        named(A, "offered"),
        named(A, "aborted"),
        config=SessionConfig(peer_lacks=frozenset({property_type})),
    )
    mandatory = TrackProperties.of(other=[KeyValue(property_type, 1)])
    directory.add(TrackSource(named(A, "mandatory"), properties=mandatory))
    offered, aborted = directory.find(named(A, "offered")), directory.find(named(A, "aborted"))
    assert offered is not None
    assert aborted is not None
    peer.session.publish(offered, now=0.0)
    aborted.abort(PublishDoneCode.INTERNAL_ERROR, "no")
    published(peer)
    stream = ask(peer, A)
    skipped = [m for m in peer.messages(stream) if isinstance(m, PublishSkipped)]
    assert {m.name for m in skipped} == {b"offered", b"aborted", b"mandatory"}
    peer.send(peer.control, Goaway())
    directory.add(TrackSource(named(A, "late")))
    assert peer.messages(stream) == [PublishSkipped(EVERYTHING, b"late")]
    assert not published(peer)


def test_a_mistake_of_ours_is_no_skipped_track(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, directory = serving()
    stream = ask(peer, A)
    peer.messages(stream)

    def broken(*_: object, **__: object) -> int:
        raise LocalProtocolError("a mistake")

    monkeypatch.setattr(Publisher, "publish", broken)
    with pytest.raises(LocalProtocolError, match="a mistake"):
        directory.add(TrackSource(named(A, "1")))
    assert peer.messages(stream) == []


def test_offers_outlive_their_request() -> None:
    """A PUBLISH is a request of its own: the end of SUBSCRIBE_TRACKS ends no subscription."""
    peer, directory = serving(named(A, "1"))
    stream = ask(peer, KV)
    ((offer, _),) = published(peer).items()
    peer.cancel(stream)
    directory.add(TrackSource(named(A, "2")))
    assert not published(peer)
    peer.send(offer, RequestOk())
    track = directory.find(named(A, "1"))
    assert track is not None
    track.open_group(0).write(0, b"still sent")
    peer.after()
    assert any(b"still sent" in bytes(sent) for sent in peer.transport.sent.values())


def test_a_requesters_fin_ends_nothing() -> None:
    """6.4.2.2#6: FIN is no cancellation; offers go on."""
    peer, directory = serving()
    stream = ask(peer, KV)
    peer.send_octets(stream, b"", fin=True)
    directory.add(TrackSource(named(A, "1")))
    assert names_of(published(peer)) == [named(A, "1")]


def test_updates_count_for_later_offers_only() -> None:
    """9.5: FORWARD and the prefix; what was offered under the old prefix is left alone."""
    peer, directory = serving(named(A, "1"), named(B, "2"))
    stream = ask(peer, A)
    ((first, _),) = published(peer).items()
    update = Parameters(namespace_prefix=B, forward=False)
    peer.send(stream, RequestUpdate(peer.next_request_id(), update))
    assert peer.messages(stream) == [RequestOk(), RequestOk()]
    ((_, publish),) = published(peer).items()
    assert (publish.name, publish.parameters.forward) == (named(B, "2"), False)
    directory.add(TrackSource(named(A, "3")))
    assert not published(peer)
    assert first not in peer.transport.resets
    assert peer.messages(ask(peer, A)) != []


@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        (KV, RequestErrorCode.PREFIX_OVERLAP),
        (TrackNamespace.of(".", "x"), RequestErrorCode.DOES_NOT_EXIST),
    ],
)
def test_a_prefix_that_cannot_move_ends_the_request(
    prefix: TrackNamespace, code: RequestErrorCode
) -> None:
    """9.20.20#1, 9.5.1#3: REQUEST_ERROR and the end of the stream."""
    peer, directory = serving()
    ask(peer, B)
    stream = ask(peer, A)
    peer.messages(stream)
    peer.send(stream, RequestUpdate(peer.next_request_id(), Parameters(namespace_prefix=prefix)))
    assert refused(peer.messages(stream)) is code
    assert stream in peer.transport.finished
    directory.add(TrackSource(named(A, "1")))
    assert not published(peer)


def test_reserved_prefixes_do_not_exist() -> None:
    """2.4.3#2: (".") as the prefix of either kind."""
    peer, _ = serving()
    assert refused(peer.messages(ask(peer, TrackNamespace.of(".")))) is (
        RequestErrorCode.DOES_NOT_EXIST
    )
    stream = peer.open_bidi()
    peer.send(stream, SubscribeNamespace(peer.next_request_id(), TrackNamespace.of(".")))
    assert refused(peer.messages(stream)) is RequestErrorCode.DOES_NOT_EXIST


def test_too_many_skipped_tracks_end_the_request() -> None:
    """`max_request_stream_octets` bounds what waits for a peer that reads nothing."""
    names = [named(A, f"track {number}") for number in range(50)]
    peer, directory = serving(*names, config=SessionConfig(max_request_stream_octets=200))
    peer.transport.max_bidirectional = 0
    stream = peer.open_bidi()
    peer.transport.stream_rooms[stream] = 0
    peer.send(stream, SubscribeTracks(peer.next_request_id(), KV))
    assert peer.transport.resets[stream] is StreamResetCode.EXCESSIVE_LOAD
    directory.add(TrackSource(named(A, "more")))
    peer.after()
    assert peer.session.stats.open_requests == 0


def test_a_closed_session_is_not_told_of_tracks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory outlives its sessions, and must not keep them."""
    peer, directory = serving()
    ask(peer, KV)
    told: list[TrackSource] = []
    monkeypatch.setattr(
        ServedTracksSubscription, "track_added", lambda _, track: told.append(track)
    )
    directory.add(TrackSource(named(A, "1")))
    assert len(told) == 1
    peer.session.close(now=0.0)
    directory.add(TrackSource(named(A, "2")))
    assert len(told) == 1


def test_a_track_whose_offer_is_over_is_offered_to_the_next_request() -> None:
    """As long as its offer is open it is skipped, whatever request brought it."""
    peer, directory = serving(named(A, "1"))
    first = ask(peer, KV)
    ((offered, _),) = published(peer).items()
    peer.cancel(first)
    second = ask(peer, KV)
    assert peer.messages(second)[-1] == PublishSkipped(TrackNamespace.of("a"), b"1")
    peer.cancel(second)
    peer.send(offered, RequestError(code=RequestErrorCode.UNINTERESTED), fin=True)
    ask(peer, KV)
    assert names_of(published(peer)) == [named(A, "1")]
    assert len(directory) == 1


def test_an_unanswered_offer_times_out() -> None:
    """`request_timeout_s` counts from when the track was added."""
    peer, _ = serving(named(A, "1"), config=SessionConfig(request_timeout_s=2.0))
    ask(peer, KV)
    ((offer, _),) = published(peer).items()
    peer.advance(3.0)
    assert offer in peer.transport.resets
    assert peer.take(RequestRejected)[0].timed_out
