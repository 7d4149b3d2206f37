"""PUBLISH_NAMESPACE and SUBSCRIBE_NAMESPACE, both sides."""

from __future__ import annotations

import pytest

from moqt.codes import RequestErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError
from moqt.session.access.authorization import AuthToken
from moqt.session.config import Role, SessionConfig
from moqt.session.events import (
    NamespaceFound,
    NamespaceGone,
    NamespaceOffered,
    NamespaceWithdrawn,
    RequestAccepted,
    RequestEnded,
    RequestRejected,
    UpdateAccepted,
    UpdateRejected,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.testing import ScriptedPeer
from moqt.types import FullTrackName, TrackNamespace
from moqt.wire.messages import (
    Namespace,
    NamespaceDone,
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    SubscribeNamespace,
)
from moqt.wire.params import Parameters
from tests.session.receiving import NAMESPACE, one
from tests.session.test_setup import violation

KV = TrackNamespace.of("kv")


def ns(*fields: str) -> TrackNamespace:
    return TrackNamespace.of(*fields)


# Our SUBSCRIBE_NAMESPACE


def watching(config: SessionConfig | None = None) -> tuple[ScriptedPeer, int]:
    peer = ScriptedPeer(config=config)
    request_id = peer.session.subscribe_namespace(KV, now=0.0)
    peer.send(0, RequestOk())
    assert one(peer.take(RequestAccepted)).request_id == request_id
    return peer, request_id


def test_namespaces_come_and_go() -> None:
    peer, request_id = watching()
    peer.send(0, Namespace(ns("a")), Namespace(TrackNamespace()), Namespace(ns("a", "b")))
    assert peer.take(NamespaceFound) == [
        NamespaceFound(request_id, ns("kv", "a")),
        NamespaceFound(request_id, KV),
        NamespaceFound(request_id, ns("kv", "a", "b")),
    ]
    peer.send(0, Namespace(ns("a")))
    assert peer.take(NamespaceFound) == []
    peer.send(0, NamespaceDone(ns("a")))
    assert peer.take(NamespaceGone) == [NamespaceGone(request_id, ns("kv", "a"))]


@pytest.mark.parametrize("how", ["fin", "reset", "cancel"])
def test_the_end_of_the_stream_withdraws_all(how: str) -> None:
    """4.2#8."""
    peer, request_id = watching()
    peer.send(0, Namespace(ns("a")), Namespace(ns("b")), NamespaceDone(ns("a")))
    if how == "fin":
        peer.send_octets(0, b"", fin=True)
        assert 0 in peer.transport.finished
    elif how == "reset":
        peer.reset(0, StreamResetCode.EXCESSIVE_LOAD)
    else:
        peer.cancel(0, StreamResetCode.EXCESSIVE_LOAD)
    gone = peer.take(NamespaceGone)
    assert gone[-1] == NamespaceGone(request_id, ns("kv", "b"))
    assert len(gone) == 2
    reset = None if how == "fin" else StreamResetCode.EXCESSIVE_LOAD
    assert one(peer.take(RequestEnded)) == RequestEnded(request_id, reset)
    assert peer.session.stats.open_requests == 0


def test_namespace_before_the_answer() -> None:
    """4.2#3."""
    peer = ScriptedPeer()
    peer.session.subscribe_namespace(KV, now=0.0)
    peer.send(0, Namespace(ns("a")))
    violation(peer)


def test_done_without_namespace() -> None:
    """4.2#7."""
    peer, _ = watching()
    peer.send(0, NamespaceDone(ns("a")))
    violation(peer)


def test_suffix_that_is_too_long_for_its_prefix() -> None:
    """8.7#2."""
    peer, _ = watching()
    peer.send(0, Namespace(TrackNamespace(tuple(b"x" for _ in range(32)))))
    violation(peer)


def test_too_many_namespaces() -> None:
    peer, request_id = watching(SessionConfig(max_namespaces=2))
    peer.send(0, *(Namespace(ns(str(number))) for number in range(5)))
    assert len(peer.take(NamespaceFound)) == 2
    assert len(peer.take(NamespaceGone)) == 2
    assert one(peer.take(RequestEnded)) == RequestEnded(request_id, StreamResetCode.EXCESSIVE_LOAD)
    assert peer.transport.stops == {0: StreamResetCode.EXCESSIVE_LOAD}
    assert not peer.session.is_closed


def test_rejected_prefix() -> None:
    peer = ScriptedPeer()
    request_id = peer.session.subscribe_namespace(KV, now=0.0)
    peer.send(0, RequestError(code=RequestErrorCode.PREFIX_OVERLAP), fin=True)
    event = one(peer.take(RequestRejected))
    assert (event.request_id, event.code) == (request_id, RequestErrorCode.PREFIX_OVERLAP)


# The peer's SUBSCRIBE_NAMESPACE


def serving() -> tuple[ScriptedPeer, TrackDirectory]:
    directory = TrackDirectory()
    return ScriptedPeer(Role.SERVER, directory=directory), directory


def watch(peer: ScriptedPeer, prefix: TrackNamespace) -> int:
    stream = peer.open_bidi()
    peer.send(stream, SubscribeNamespace(peer.next_request_id(), prefix))
    return stream


def test_reports_now_and_later() -> None:
    """4.2#1, 4.2#2, 4.2#6."""
    peer, directory = serving()
    directory.advertise(ns("kv", "a"))
    directory.advertise(ns("other"))
    stream = watch(peer, KV)
    assert peer.messages(stream) == [RequestOk(), Namespace(ns("a"))]
    woken: list[bool] = []
    peer.session.wake = lambda: woken.append(True)
    directory.advertise(ns("kv", "b"))
    directory.advertise(ns("else"))
    directory.withdraw(ns("kv", "a"))
    assert peer.messages(stream) == [Namespace(ns("b")), NamespaceDone(ns("a"))]
    assert len(woken) == 2
    peer.send_octets(stream, b"", fin=True)
    directory.advertise(KV)
    assert peer.messages(stream) == [Namespace(TrackNamespace())]
    peer.stop(stream)
    directory.advertise(ns("kv", "c"))
    assert peer.messages(stream) == []
    assert peer.session.stats.open_requests == 0


def test_overlapping_prefixes() -> None:
    """4.2#4."""
    peer, _ = serving()
    first = watch(peer, ns("kv", "a"))
    assert peer.messages(first) == [RequestOk()]
    for prefix in (ns("kv", "a"), ns("kv"), ns("kv", "a", "b"), TrackNamespace()):
        stream = watch(peer, prefix)
        answer = one(peer.messages(stream))
        assert isinstance(answer, RequestError)
        assert answer.code is RequestErrorCode.PREFIX_OVERLAP
        assert stream in peer.transport.finished
    assert peer.messages(watch(peer, ns("kv", "b"))) == [RequestOk()]
    peer.cancel(first)
    assert peer.messages(watch(peer, ns("kv", "a", "b"))) == [RequestOk()]


def test_prefix_moves_by_update() -> None:
    peer, directory = serving()
    directory.advertise(ns("kv", "a", "x"))
    directory.advertise(ns("kv", "b", "y"))
    stream = watch(peer, ns("kv", "a"))
    assert peer.messages(stream) == [RequestOk(), Namespace(ns("x"))]
    moved = RequestUpdate(peer.next_request_id(), Parameters(namespace_prefix=ns("kv", "b")))
    peer.send(stream, moved)
    assert peer.messages(stream) == [RequestOk(), Namespace(ns("y"))]
    directory.advertise(ns("kv", "a", "z"))
    directory.advertise(ns("kv", "b", "z"))
    assert peer.messages(stream) == [Namespace(ns("z"))]
    assert peer.messages(watch(peer, ns("kv", "a"))) != []
    peer.send(stream, RequestUpdate(peer.next_request_id()))
    assert peer.messages(stream) == [RequestOk()]


@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        (ns("kv", "b"), RequestErrorCode.PREFIX_OVERLAP),
        (ns(".", "b"), RequestErrorCode.DOES_NOT_EXIST),
    ],
)
def test_prefix_that_cannot_move_there(prefix: TrackNamespace, code: RequestErrorCode) -> None:
    """9.20.20#1, 9.5.1#3."""
    peer, directory = serving()
    watch(peer, ns("kv", "b", "c"))
    stream = watch(peer, ns("kv", "a"))
    peer.messages(stream)
    update = RequestUpdate(peer.next_request_id(), Parameters(namespace_prefix=prefix))
    peer.send(stream, update)
    answer = one(peer.messages(stream))
    assert isinstance(answer, RequestError)
    assert answer.code is code
    assert stream in peer.transport.finished
    directory.advertise(ns("kv", "a", "z"))
    assert peer.messages(stream) == []


def test_an_endpoint_that_publishes_nothing() -> None:
    peer = ScriptedPeer(Role.SERVER)
    answer = one(peer.messages(watch(peer, KV)))
    assert isinstance(answer, RequestError)
    assert answer.code is RequestErrorCode.NOT_SUPPORTED


def test_a_closed_session_listens_no_more() -> None:
    peer, directory = serving()
    stream = watch(peer, KV)
    peer.session.close(now=0.0)
    peer.messages(stream)
    directory.advertise(ns("kv", "a"))
    assert peer.messages(stream) == []


# We move ours


def test_our_prefix_moves() -> None:
    """9.20.20: after the OK suffixes are behind the new prefix; what lies outside is gone."""
    peer, request_id = watching()
    peer.send(0, Namespace(ns("a")), Namespace(ns("a", "x")), Namespace(ns("b")))
    peer.take(NamespaceFound)
    update_id = peer.session.update_prefix(request_id, ns("kv", "a"))
    sent = RequestUpdate(update_id, Parameters(namespace_prefix=ns("kv", "a")))
    assert peer.messages(0)[-1] == sent
    peer.send(0, NamespaceDone(ns("a")), Namespace(ns("c")))  # before the OK: the old prefix
    assert peer.take(NamespaceGone) == [NamespaceGone(request_id, ns("kv", "a"))]
    peer.send(0, RequestOk())
    assert peer.take(NamespaceGone) == [
        NamespaceGone(request_id, ns("kv", "b")),
        NamespaceGone(request_id, ns("kv", "c")),
    ]
    assert one(peer.take(UpdateAccepted)).update_id == update_id
    peer.take(NamespaceFound)
    peer.send(0, Namespace(ns("x")), Namespace(ns("y")), NamespaceDone(ns("x")))
    assert peer.take(NamespaceFound) == [NamespaceFound(request_id, ns("kv", "a", "y"))]
    assert peer.take(NamespaceGone) == [NamespaceGone(request_id, ns("kv", "a", "x"))]
    peer.send(0, NamespaceDone(ns("b")))
    violation(peer)


def test_a_refused_move_of_ours() -> None:
    """9.5.1#3: what is known stays known under the old prefix until the stream ends."""
    peer, request_id = watching()
    peer.send(0, Namespace(ns("a")))
    peer.session.update_prefix(request_id, ns("x"))
    peer.send(0, RequestError(code=RequestErrorCode.PREFIX_OVERLAP), NamespaceDone(ns("a")))
    assert one(peer.take(UpdateRejected)).code is RequestErrorCode.PREFIX_OVERLAP
    assert peer.take(NamespaceGone) == [NamespaceGone(request_id, ns("kv", "a"))]
    peer.send_octets(0, b"", fin=True)
    assert one(peer.take(RequestEnded)) == RequestEnded(request_id)


def test_a_token_alone_moves_nothing() -> None:
    peer, request_id = watching()
    peer.send(0, Namespace(ns("a")))
    peer.session.update_prefix(request_id, tokens=[AuthToken(0, b"renewed")])
    update = peer.messages(0)[-1]
    assert isinstance(update, RequestUpdate)
    assert len(update.parameters.authorization_tokens) == 1
    peer.send(0, RequestOk(), NamespaceDone(ns("a")))
    assert peer.take(NamespaceGone) == [NamespaceGone(request_id, ns("kv", "a"))]


# Our PUBLISH_NAMESPACE


@pytest.mark.parametrize("second", [RequestOk(), RequestError(code=RequestErrorCode.TIMEOUT)])
def test_a_second_answer_to_our_advertisement(second: RequestOk | RequestError) -> None:
    """4.1#2."""
    peer = ScriptedPeer()
    peer.session.publish_namespace(NAMESPACE, now=0.0)
    peer.send(0, RequestOk(), second)
    violation(peer)


def test_accepted_and_refused_advertisement() -> None:
    """4.1#4."""
    peer = ScriptedPeer()
    first = peer.session.publish_namespace(NAMESPACE, now=0.0)
    second = peer.session.publish_namespace(ns("x"), now=0.0)
    assert peer.messages(0) == [PublishNamespace(0, NAMESPACE)]
    peer.send(0, RequestOk(Parameters(expires_ms=7)))
    peer.send(4, RequestError(code=RequestErrorCode.UNINTERESTED), fin=True)
    assert one(peer.take(RequestAccepted)) == RequestAccepted(first, 7)
    assert one(peer.take(RequestRejected)).request_id == second
    peer.send_octets(0, b"", fin=True)
    assert peer.take(RequestEnded) == []
    peer.session.cancel(first, now=0.0)
    assert peer.transport.resets == {0: StreamResetCode.CANCELLED}
    assert peer.session.stats.open_requests == 0


# The peer's PUBLISH_NAMESPACE


def test_offer_accepted_then_withdrawn() -> None:
    """4.1#1."""
    peer = ScriptedPeer()
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(1, NAMESPACE))
    assert one(peer.take(NamespaceOffered)) == NamespaceOffered(1, NAMESPACE)
    assert peer.messages(stream) == []
    peer.session.accept(1, now=0.0)
    assert peer.messages(stream) == [RequestOk()]
    with pytest.raises(LocalProtocolError, match="offer"):
        peer.session.accept(1, now=0.0)
    peer.cancel(stream)
    assert one(peer.take(NamespaceWithdrawn)) == NamespaceWithdrawn(1, NAMESPACE)
    assert peer.session.stats.open_requests == 0


def test_offer_rejected() -> None:
    peer = ScriptedPeer()
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(1, NAMESPACE))
    peer.session.reject(1, RequestErrorCode.UNINTERESTED, "no", retry_interval_ms=50, now=0.0)
    assert peer.messages(stream) == [
        RequestError(code=RequestErrorCode.UNINTERESTED, reason="no", retry_interval_ms=50)
    ]
    assert stream in peer.transport.finished
    with pytest.raises(LocalProtocolError, match="offer"):
        peer.session.reject(1, RequestErrorCode.UNINTERESTED, now=0.0)
    peer.send_octets(stream, b"", fin=True)
    assert peer.take(NamespaceWithdrawn) == []
    assert peer.session.stats.open_requests == 0


def test_acceptance_revoked() -> None:
    peer = ScriptedPeer()
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(1, NAMESPACE))
    peer.session.accept(1, now=0.0)
    peer.session.cancel(1, now=0.0)
    assert set(peer.transport.resets) == set(peer.transport.stops) == {stream}
    assert peer.take(NamespaceWithdrawn) == []


def test_offer_that_is_gone_before_its_answer() -> None:
    peer = ScriptedPeer()
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(1, NAMESPACE))
    peer.cancel(stream)
    assert one(peer.take(NamespaceWithdrawn)).request_id == 1
    with pytest.raises(LocalProtocolError, match="offer"):
        peer.session.accept(1, now=0.0)


def test_redirect_of_an_offer() -> None:
    """9.4.1#3."""
    peer = ScriptedPeer(Role.SERVER)
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(0, NAMESPACE))
    wrong = FullTrackName(KV, b"x")
    with pytest.raises(LocalProtocolError, match="Track Name"):
        peer.session.reject(0, RequestErrorCode.REDIRECT, redirect_name=wrong, now=0.0)
    with pytest.raises(LocalProtocolError, match="redirect_name"):
        peer.session.reject(0, RequestErrorCode.UNINTERESTED, redirect_name=wrong, now=0.0)
    target = FullTrackName(KV, b"")
    peer.session.reject(
        0, RequestErrorCode.REDIRECT, redirect_uri="moqt://x/", redirect_name=target, now=0.0
    )
    answer = one(peer.messages(stream))
    assert isinstance(answer, RequestError)
    assert answer.redirect is not None
    assert answer.redirect.target == target
    client = ScriptedPeer()
    client.send(client.open_bidi(), PublishNamespace(1, NAMESPACE))
    with pytest.raises(LocalProtocolError, match="Connect URI"):
        client.session.reject(
            1, RequestErrorCode.REDIRECT, redirect_uri="x", redirect_name=target, now=0.0
        )
