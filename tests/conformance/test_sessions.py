"""Chapters 6, 9.1 and 12.2: addresses, SETUP, streams of a session, and how they end."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.session.config import Role, SessionConfig
from moqt.session.core import Session
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer, ScriptedTransport
from moqt.types import FullTrackName, TrackNamespace
from moqt.uri import MoqtUri
from moqt.wire.cursor import Reader
from moqt.wire.fields import read_pairs
from moqt.wire.framing import MessageReader
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Goaway,
    PublishDone,
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    Setup,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    TrackStatus,
)
from moqt.wire.rules import REQUEST_KINDS
from tests.session.receiving import NAME as ASKED
from tests.session.receiving import NAMESPACE, one, subgroup
from tests.session.sending import NAME, publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.wire.messages import Message

ANSWERS = (SubscribeOk, FetchOk, RequestOk, RequestError)


def test_a_fragment_is_typed_and_stays_here() -> None:
    """6.1.1#1."""
    uri = MoqtUri.parse("moqt://h.example:4443/kv?a=1#kv-1:secret")
    assert (uri.fragment_type, uri.fragment_value) == ("kv-1", "secret")
    for untyped in ("secret", "KV:secret", "k_v:secret", ":secret"):
        assert MoqtUri.parse(f"moqt://h/#{untyped}").fragment_type is None
    transport = ScriptedTransport(Role.CLIENT)
    session = Session(
        role=Role.CLIENT,
        transport=transport,
        config=SessionConfig(),
        path=uri.path_and_query,
        authority=uri.authority,
    )
    session.start(0.0)
    setup = one(MessageReader().feed(bytes(transport.sent[2])))
    assert isinstance(setup, Setup)
    assert (setup.options.path, setup.options.authority) == ("/kv?a=1", "h.example:4443")
    assert b"secret" not in transport.sent[2]


@pytest.mark.parametrize("role", list(Role))
def test_own_setup_repeats_no_option_and_has_what_is_required(role: Role) -> None:
    """9.1#2, 6.3.2#1."""
    peer = ScriptedPeer(role, setup=False)
    peer.session.start(0.0)
    octets = bytes(peer.transport.sent[2 if role is Role.CLIENT else 3])
    body = octets[4:]  # behind the type 0x2F00 and the Length
    assert len(body) == int.from_bytes(octets[2:4], "big")
    types = Counter(pair.type for pair in read_pairs(Reader(body, "SETUP")))
    assert set(types.values()) == {1}
    assert {0x01, 0x05} <= types.keys() if role is Role.CLIENT else not {0x01, 0x05} & types.keys()


def test_the_implementation_says_product_and_version_only() -> None:
    """9.1.5#2."""
    product, _, version = SessionConfig().implementation.partition("/")
    assert product == "kvcs-moqt"
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", version)
    peer = ScriptedPeer(config=SessionConfig(implementation=""), setup=False)
    peer.session.start(0.0)
    setup = one(peer.messages(2))
    assert isinstance(setup, Setup)
    assert setup.options.implementation is None


def test_our_requests_begin_with_a_request_and_the_control_stream_stays() -> None:
    """6.3#1, 6.3#4: whatever is asked for, answered, cancelled, and at the end."""
    peer = ScriptedPeer()
    session = peer.session
    subscription = session.subscribe(ASKED, now=0.0)
    fetch = session.fetch(ASKED, now=0.0)
    session.track_status(ASKED, now=0.0)
    session.publish_namespace(NAMESPACE, now=0.0)
    session.subscribe_namespace(NAMESPACE, now=0.0)
    session.subscribe_tracks(NAMESPACE, now=0.0)
    session.publish(TrackSource(FullTrackName(TrackNamespace.of("ours"), b"t")), now=0.0)
    peer.send(0, SubscribeOk(7))
    peer.send_octets(peer.open_uni(), subgroup(0, range(2)), fin=True)
    session.update(subscription, forward=False)
    session.cancel(fetch, now=0.0)
    session.goaway(now=0.0)
    peer.after()
    first = [peer.messages(stream)[0] for stream in peer.transport.sent if stream % 4 == 0]
    assert {type(message) for message in first} == set(REQUEST_KINDS)  # all seven
    assert [type(m) for m in peer.messages(2)] == [Setup, Goaway]
    session.close(now=0.0)
    assert 2 not in peer.transport.finished
    assert 2 not in peer.transport.resets


# The ends of request streams


class Watching(ScriptedTransport):
    """Notes what was on a stream at its FIN."""

    def __init__(self, role: Role) -> None:
        super().__init__(role)
        self.at_fin: dict[int, list[Message]] = {}

    def write(self, stream_id: int, buffers: Sequence[memoryview | bytes], fin: bool) -> None:
        super().write(stream_id, buffers, fin)
        if fin and stream_id % 4 < 2:
            self.at_fin[stream_id] = MessageReader().feed(bytes(self.sent[stream_id]))


def watched(directory: TrackDirectory | None = None) -> tuple[ScriptedPeer, Watching]:
    """Return a server and a peer that sees the moment of each FIN."""
    peer = ScriptedPeer(Role.SERVER, directory=directory, setup=False)
    transport = Watching(Role.SERVER)
    peer.transport = transport
    peer.session = Session(
        role=Role.SERVER, transport=transport, config=SessionConfig(), directory=directory
    )
    peer.session.start(0.0)
    peer.send_setup()
    return peer, transport


def test_no_direction_is_finished_before_all_that_is_owed() -> None:
    """6.4.2.2#1, 6.4.2.2#2, 6.4.2.2#3: each kind, whose sender has ended its own side at once."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    publish(track, [0], 2)
    peer, transport = watched(directory)
    messages: list[Message] = [
        Subscribe(0, NAME),
        Fetch(2, NAME),
        TrackStatus(4, NAME),
        SubscribeNamespace(6, NAME.namespace),
        PublishNamespace(8, NAMESPACE),
        Subscribe(10, ASKED),
        Fetch(12, ASKED),
    ]
    streams = [peer.open_bidi() for _ in messages]
    for stream, message in zip(streams, messages, strict=True):
        peer.send(stream, message, fin=True)
    assert streams[0] not in transport.at_fin
    assert streams[4] not in transport.at_fin  # the application has not said anything yet
    peer.session.accept(8, now=0.0)
    track.end()
    peer.after()
    for stream, found in transport.at_fin.items():
        assert isinstance(found[0], ANSWERS), stream
        if isinstance(found[0], SubscribeOk):
            assert isinstance(found[-1], PublishDone)
    assert set(streams) - transport.at_fin.keys() <= {streams[3], streams[4]}


def test_the_sender_of_publish_owes_publish_done() -> None:
    """6.4.2.2#1, 6.4.2.2#3."""
    track = TrackSource(NAME)
    peer, transport = watched()
    peer.session.publish(track, now=0.0)
    peer.after()
    peer.send(1, RequestOk(), fin=True)
    publish(track, [0], 1)
    peer.after()
    assert 1 not in transport.finished
    track.end()
    peer.after()
    assert isinstance(transport.at_fin[1][-1], PublishDone)


def test_a_direction_without_anything_to_come_is_finished_promptly() -> None:
    """6.4.2.2#7, 6.4.2.2#4: by the responder with its last word, by the requester behind it."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    publish(track, [0], 2)
    peer, transport = watched(directory)
    for message in (Subscribe(0, ASKED), TrackStatus(2, NAME), Fetch(4, NAME)):
        stream = peer.open_bidi()
        peer.send(stream, message)
        assert stream in transport.finished
    client = ScriptedPeer()
    client.session.track_status(ASKED, now=0.0)
    client.session.subscribe(ASKED, now=0.0)
    client.session.fetch(ASKED, now=0.0)
    client.send(0, RequestOk(), fin=True)
    client.send(4, RequestError(code=RequestErrorCode.DOES_NOT_EXIST), fin=True)
    client.send(8, RequestError(code=RequestErrorCode.DOES_NOT_EXIST), fin=True)
    assert {0, 4, 8} <= client.transport.finished


# Codes


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([Subscribe(1, NAME)], SessionErrorCode.INVALID_REQUEST_ID),
        ([PublishNamespace(0, NAMESPACE), RequestUpdate(0)], SessionErrorCode.INVALID_REQUEST_ID),
        ([RequestOk()], SessionErrorCode.PROTOCOL_VIOLATION),
        (
            [PublishNamespace(0, NAMESPACE), *(RequestUpdate(2 * n) for n in range(1, 20))],
            SessionErrorCode.TOO_MANY_REQUEST_UPDATES,
        ),
    ],
)
def test_the_termination_code_fits_the_fault(
    messages: list[Message], code: SessionErrorCode
) -> None:
    """6.6#1."""
    peer = ScriptedPeer(Role.SERVER, directory=TrackDirectory())
    peer.send(peer.open_bidi(), *messages)
    assert peer.transport.closed is not None
    assert peer.transport.closed[0] is code


def test_the_termination_code_of_what_does_not_come() -> None:
    """6.6#1: a clean end has NO_ERROR, a missing SETUP and a GOAWAY without effect their own."""
    peer = ScriptedPeer(setup=False)
    peer.session.start(0.0)
    peer.advance(20)
    assert peer.transport.closed is not None
    assert peer.transport.closed[0] is SessionErrorCode.CONTROL_MESSAGE_TIMEOUT
    peer = ScriptedPeer()
    peer.session.subscribe(ASKED, now=0.0)
    peer.send(0, SubscribeOk(7))
    peer.session.goaway(timeout_ms=1000, now=0.0)
    peer.advance(2)
    assert peer.transport.closed is not None
    assert peer.transport.closed[0] is SessionErrorCode.GOAWAY_TIMEOUT
    peer = ScriptedPeer()
    peer.session.close(now=0.0)
    assert peer.transport.closed is not None
    assert peer.transport.closed[0] is SessionErrorCode.NO_ERROR
