"""SETUP, control streams, and what happens before and without them."""

from __future__ import annotations

import pytest

from moqt.codes import RequestErrorCode, SessionErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, SessionLeaving
from moqt.session.config import Role, SessionConfig
from moqt.session.core import Session
from moqt.session.events import NamespaceOffered, SessionEnded, SessionEstablished
from moqt.session.publish.directory import TrackDirectory
from moqt.testing import ScriptedPeer, ScriptedTransport
from moqt.wire.framing import MessageReader, encode_message
from moqt.wire.messages import (
    Goaway,
    PublishNamespace,
    RequestError,
    RequestOk,
    Setup,
    Subscribe,
    SubscribeTracks,
)
from moqt.wire.options import SetupOptions
from moqt.wire.tokens import AuthorizationToken
from tests.session.receiving import NAME, NAMESPACE, one


def violation(peer: ScriptedPeer) -> None:
    assert_closed(peer, SessionErrorCode.PROTOCOL_VIOLATION)


def assert_closed(peer: ScriptedPeer, code: SessionErrorCode) -> None:
    assert peer.transport.closed is not None
    assert peer.transport.closed[0] is code, peer.transport.closed
    ended = peer.events[-1]
    assert isinstance(ended, SessionEnded)
    assert (ended.code, ended.by_peer) == (code, False)
    assert peer.session.is_closed
    assert peer.session.next_deadline is None


def test_client_says_who_and_where_it_is() -> None:
    """9.1.1#1, 9.1.2#1, 9.1.5#1, 9.1.6."""
    peer = ScriptedPeer(setup=False)
    peer.session.start(0.0)
    setup = one(peer.messages(2))
    assert isinstance(setup, Setup)
    assert setup.options == SetupOptions(
        path="/kv",
        authority="host.example",
        max_auth_token_cache_size=4096,
        max_filter_ranges=32,
        max_request_updates=16,
        implementation="kvcs-moqt/0.1",
    )
    assert not peer.session.is_established


def test_server_sends_neither_path_nor_authority() -> None:
    """9.1.1#2, 9.1.2#2."""
    peer = ScriptedPeer(Role.SERVER, setup=False)
    peer.session.start(0.0)
    setup = one(peer.messages(3))
    assert isinstance(setup, Setup)
    assert setup.options.path is None
    assert setup.options.authority is None
    with pytest.raises(LocalProtocolError, match="PATH"):
        Session(
            role=Role.SERVER,
            transport=ScriptedTransport(Role.SERVER),
            config=SessionConfig(),
            path="/x",
        )


def test_established_when_the_peers_setup_is_read() -> None:
    peer = ScriptedPeer(options=SetupOptions(max_filter_ranges=5, implementation="x/1"))
    event = one(peer.take(SessionEstablished))
    assert event.peer_options.max_filter_ranges == 5
    assert peer.session.is_established
    assert peer.session.peer_options == event.peer_options
    assert peer.transport.owed == 0


def test_setup_octet_by_octet() -> None:
    peer = ScriptedPeer(setup=False)
    peer.session.start(0.0)
    stream = peer.open_uni()
    for octet in encode_message(Setup(SetupOptions(implementation="x/1"))):
        assert not peer.session.is_established
        peer.send_octets(stream, bytes([octet]))
    assert peer.session.is_established
    assert peer.transport.owed == 0


def test_setup_in_any_order_of_octets() -> None:
    peer = ScriptedPeer(setup=False)
    peer.session.start(0.0)
    stream = peer.open_uni()
    octets = encode_message(Setup(SetupOptions(implementation="x/1")))
    peer.send_range(stream, 6, octets[6:])
    peer.send_range(stream, 1, octets[1:6])
    peer.send_range(stream, 0, octets[:1])
    assert peer.session.is_established
    assert peer.transport.owed == 0


def test_setup_waits_for_the_peers_stream_limit() -> None:
    peer = ScriptedPeer(setup=False)
    peer.transport.max_unidirectional = 0
    peer.session.start(0.0)
    assert peer.messages(2) == []
    peer.transport.max_unidirectional = 1
    peer.after()
    assert isinstance(one(peer.messages(2)), Setup)
    peer.after()
    assert peer.messages(2) == []


def test_no_setup_in_time() -> None:
    peer = ScriptedPeer(setup=False, config=SessionConfig(setup_timeout_s=3.0))
    peer.session.start(0.0)
    peer.advance(2.9)
    assert not peer.session.is_closed
    peer.advance(0.2)
    assert_closed(peer, SessionErrorCode.CONTROL_MESSAGE_TIMEOUT)


@pytest.mark.parametrize(
    ("role", "options", "code"),
    [
        (Role.CLIENT, SetupOptions(path="/x"), SessionErrorCode.INVALID_PATH),
        (Role.CLIENT, SetupOptions(authority="h"), SessionErrorCode.INVALID_AUTHORITY),
        (Role.SERVER, SetupOptions(path="kv"), SessionErrorCode.MALFORMED_PATH),
        (Role.SERVER, SetupOptions(authority="a b"), SessionErrorCode.MALFORMED_AUTHORITY),
        (
            Role.SERVER,
            SetupOptions(authorization_tokens=(AuthorizationToken.use_alias(1),)),
            SessionErrorCode.PROTOCOL_VIOLATION,
        ),
    ],
)
def test_wrong_setup(role: Role, options: SetupOptions, code: SessionErrorCode) -> None:
    """9.1.1#3, 9.1.1#4, 9.1.2#3, 9.1.2#4, 9.1.4#3."""
    assert_closed(ScriptedPeer(role, options=options), code)


def test_register_in_setup_is_no_overflow() -> None:
    """9.1.4#1."""
    token = AuthorizationToken.register(1, 0, b"x" * 100)
    peer = ScriptedPeer(Role.SERVER, options=SetupOptions(authorization_tokens=(token,)))
    assert peer.session.is_established


@pytest.mark.parametrize("how", ["fin", "reset", "stop"])
def test_control_streams_live_as_long_as_the_session(how: str) -> None:
    """6.3#5."""
    peer = ScriptedPeer()
    if how == "fin":
        peer.send_octets(peer.control, b"", fin=True)
    elif how == "reset":
        peer.reset(peer.control)
    else:
        peer.stop(2)
    violation(peer)


def test_second_control_stream() -> None:
    peer = ScriptedPeer()
    peer.send(peer.open_uni(), Setup())
    violation(peer)


def test_second_setup() -> None:
    peer = ScriptedPeer()
    peer.send(peer.control, Setup())
    violation(peer)


def test_request_message_on_the_control_stream() -> None:
    peer = ScriptedPeer()
    peer.send(peer.control, Subscribe(1, NAME))
    violation(peer)


def test_fin_inside_a_control_message() -> None:
    peer = ScriptedPeer()
    peer.send_octets(peer.control, encode_message(Goaway())[:2], fin=True)
    violation(peer)


@pytest.mark.parametrize("kind", [b"\x3f", b"\x9d\x00", b"\x01", b"\x80\x9d"])
def test_unknown_stream_type(kind: bytes) -> None:
    """6.4.1#1."""
    peer = ScriptedPeer()
    peer.send_octets(peer.open_uni(), kind + bytes(20))
    violation(peer)


def test_requests_before_setup_wait_for_it() -> None:
    """6.3#3."""
    peer = ScriptedPeer(Role.SERVER, setup=False, directory=TrackDirectory())
    peer.session.start(0.0)
    stream = peer.open_bidi()
    octets = encode_message(PublishNamespace(0, NAMESPACE))
    peer.send_octets(stream, octets[:3])
    peer.send_octets(stream, octets[3:])
    assert peer.take(NamespaceOffered) == []
    assert peer.transport.owed == len(octets)
    peer.send_setup()
    assert one(peer.take(NamespaceOffered)).namespace == NAMESPACE
    assert peer.transport.owed == 0


def test_answer_before_setup_waits_for_it() -> None:
    peer = ScriptedPeer(setup=False)
    peer.session.start(0.0)
    request_id = peer.session.publish_namespace(NAMESPACE, now=0.0)
    peer.send(0, RequestOk())
    assert peer.events == []
    peer.send_setup()
    assert [type(event).__name__ for event in peer.events] == [
        "SessionEstablished",
        "RequestAccepted",
    ]
    assert request_id == 0


def test_what_waits_for_setup_is_bounded() -> None:
    """6.3#3, 15.5#1, 15.5#2."""
    config = SessionConfig(max_stray_octets=100, max_stray_streams=2)
    peer = ScriptedPeer(Role.SERVER, setup=False, config=config)
    peer.session.start(0.0)
    streams = [peer.open_bidi() for _ in range(3)]
    for stream in streams:
        peer.send_octets(stream, b"\x06\x00")
    assert peer.transport.stops == {streams[2]: StreamResetCode.CANCELLED}
    peer.send_octets(streams[0], bytes(99))
    assert set(peer.transport.stops) == {streams[2], streams[0]}
    assert set(peer.transport.resets) == {streams[2], streams[0]}
    assert not peer.session.is_closed


def test_reset_before_setup() -> None:
    peer = ScriptedPeer(Role.SERVER, setup=False)
    peer.session.start(0.0)
    stream = peer.open_bidi()
    peer.send(stream, PublishNamespace(0, NAMESPACE))
    peer.cancel(stream)
    peer.send_setup()
    assert peer.take(NamespaceOffered) == []
    assert peer.session.stats.open_requests == 0
    assert peer.transport.owed == 0


def test_close_is_told_once_and_last() -> None:
    peer = ScriptedPeer()
    peer.session.close(SessionErrorCode.NO_ERROR, "done", now=0.0)
    peer.session.close(SessionErrorCode.INTERNAL_ERROR, "again", now=0.0)
    peer.after()
    assert one(peer.take(SessionEnded)) == SessionEnded(SessionErrorCode.NO_ERROR, "done", False)
    assert peer.transport.closed == (SessionErrorCode.NO_ERROR, "done")
    peer.send(peer.open_bidi(), PublishNamespace(1, NAMESPACE))
    peer.reset(0)
    peer.stop(0)
    peer.datagram(b"\x00")
    peer.session.handle_timeout(1e9)
    peer.after()
    assert peer.take(NamespaceOffered) == []
    with pytest.raises(SessionLeaving, match="closed"):
        peer.session.subscribe(NAME, now=0.0)


def test_lost_connection_is_not_closed_again() -> None:
    peer = ScriptedPeer()
    peer.session.connection_lost(SessionErrorCode.INTERNAL_ERROR, "timeout", by_peer=True, now=0.0)
    peer.after()
    assert one(peer.take(SessionEnded)).by_peer
    assert peer.transport.closed is None
    assert peer.session.is_closed


def test_unread_events_are_bounded() -> None:
    """15.5#1."""
    config = SessionConfig(max_events=50, max_requests=1000)
    peer = ScriptedPeer(Role.SERVER, config=config)
    session = peer.session
    for count in range(60):
        stream = peer.open_bidi()
        octets = encode_message(PublishNamespace(2 * count, NAMESPACE))
        peer.transport.received[stream] = len(octets)
        session.receive_stream_data(stream, 0, octets, False, 0.0)
    assert session.is_closed
    peer.after()
    assert isinstance(peer.events[-1], SessionEnded)
    assert len(peer.events) <= 53


def test_start_twice() -> None:
    with pytest.raises(LocalProtocolError, match="started"):
        ScriptedPeer().session.start(0.0)


def test_refused_request_type_says_so() -> None:
    """1.6#1."""
    peer = ScriptedPeer(Role.SERVER)
    stream = peer.open_bidi()
    peer.send(stream, SubscribeTracks(0, NAMESPACE))
    answer = one(MessageReader().feed(bytes(peer.transport.sent[stream])))
    assert isinstance(answer, RequestError)
    assert answer.code is RequestErrorCode.NOT_SUPPORTED
    assert stream in peer.transport.finished
