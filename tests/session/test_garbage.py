"""Whatever a peer sends: no input raises, and the session goes on, waits or ends cleanly."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from moqt.codes import PublishDoneCode, RequestErrorCode
from moqt.session.config import Role, SessionConfig
from moqt.session.events import NamespaceOffered, ObjectReceived, PublicationOffered, SessionEnded
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.session.request.requests import Opener
from moqt.session.request.states import Phase, is_allowed
from moqt.testing import ScriptedPeer
from moqt.types import Location
from moqt.wire.filters import LocationFilter
from moqt.wire.framing import encode_message
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Goaway,
    Namespace,
    NamespaceDone,
    Publish,
    PublishDone,
    PublishNamespace,
    PublishStateNotify,
    RequestError,
    RequestOk,
    RequestUpdate,
    Setup,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    TrackStatus,
)
from moqt.wire.params import FillParameters, Parameters
from tests.session.receiving import ALIAS, NAME, NAMESPACE, RecordingSink, fetched, subgroup

if TYPE_CHECKING:
    from moqt.wire.messages import Message

CONFIG = SessionConfig(
    max_stray_octets=400,
    max_stray_streams=4,
    max_requests=10,
    max_buffered_octets=200,
    max_namespaces=3,
    max_request_stream_octets=300,
    max_object_octets=5000,
)

ONCE = (RequestOk, RequestError, NamespaceDone)
"""What a peer that behaves does not say unasked."""


def messages(rng: Random) -> list[Message]:
    """Return one of every message, with small numbers that collide."""
    number = rng.randrange(8)
    fill = FillParameters(location_filter=LocationFilter.none())
    location = Location(rng.randrange(3), rng.randrange(3))
    error = RequestErrorCode.INTERNAL_ERROR
    return [
        Setup(),
        Goaway("", number),
        Subscribe(number, NAME, Parameters(fill=fill)),
        SubscribeOk(rng.choice((ALIAS, number)), Parameters(largest=location)),
        RequestOk(),
        RequestError(code=error),
        RequestUpdate(number, Parameters(forward=bool(number % 2))),
        PublishDone(code=PublishDoneCode.TRACK_ENDED, stream_count=rng.randrange(3)),
        PublishStateNotify(),
        Publish(number, NAME, ALIAS),
        Fetch(number, NAME),
        FetchOk(bool(number % 2), location),
        TrackStatus(number, NAME),
        PublishNamespace(number, NAMESPACE),
        SubscribeNamespace(number, NAMESPACE),
        SubscribeTracks(number, NAMESPACE),
        Namespace(NAMESPACE),
        NamespaceDone(NAMESPACE),
    ]


def octets_of(rng: Random) -> bytes:
    """Return something that a peer might send on a stream, sound or not."""
    kind = rng.randrange(6)
    if kind < 3:
        octets = b"".join(
            encode_message(rng.choice(messages(rng))) for _ in range(rng.randint(1, 3))
        )
    elif kind == 3:
        octets = subgroup(rng.randrange(3), range(rng.randrange(4)), size=rng.randrange(90))
    elif kind == 4:
        octets = fetched(rng.randrange(8), [(0, 0), (rng.randrange(3), 1)][: rng.randrange(3)])
    else:
        octets = rng.randbytes(rng.randrange(40))
    if rng.random() < 0.2 and octets:
        broken = bytearray(octets)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        octets = bytes(broken)
    return octets


class Chaos:
    """A session with a bit of everything open, and a peer that does anything."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        directory = TrackDirectory()
        self.track = TrackSource(NAME)
        directory.add(self.track)
        self.writer = self.track.open_group(0)
        self.role = self.rng.choice(list(Role))
        self.peer = ScriptedPeer(
            self.role, config=CONFIG, directory=directory, setup=self.rng.random() < 0.9
        )
        if not self.peer.session.is_established:
            self.peer.session.start(0.0)
        self.sink = RecordingSink()
        session = self.peer.session
        session.subscribe(NAME, sink=self.sink, fill=FillParameters(), now=0.0)
        session.fetch(NAME, now=0.0)
        session.subscribe_namespace(NAMESPACE, now=0.0)
        session.publish_namespace(NAMESPACE, now=0.0)
        session.publish(self.track, now=0.0)
        self.written = 0
        self.own_control = 2 if self.role is Role.CLIENT else 3
        self.streams = [one for one in self.peer.transport.sent if one != self.own_control]

    def plausible(self, stream: int) -> bytes:
        """Return what may come on this stream now."""
        rng = self.rng
        if stream & 2:
            if rng.random() < 0.5:
                return fetched(rng.choice((0, 1, 2, 3)), [(0, 0), (1, 1)], size=rng.randrange(90))
            return subgroup(
                rng.randrange(30),
                range(rng.randrange(4)),
                alias=rng.choice((ALIAS, ALIAS, 1)),
                size=50,
            )
        found = self.peer.session._requests.streams.get(stream)
        every = messages(rng)
        if found is None or found.kind is None:
            request_id = self.peer.next_request_id()
            openers = [m for m in every if isinstance(m, Opener)]
            return encode_message(replace(rng.choice(openers), request_id=request_id))
        allowed = [
            message
            for message in every
            if is_allowed(found.kind, is_ours=found.is_ours, phase=found.phase, message=message)
            and not (found.phase is Phase.ESTABLISHED and type(message) in ONCE)
        ]
        if not allowed:
            return b""
        message = rng.choice(allowed)
        if isinstance(message, RequestUpdate):
            return encode_message(RequestUpdate(self.peer.next_request_id()))
        return encode_message(message)

    def step(self) -> None:
        """Do one thing."""
        peer, rng = self.peer, self.rng
        if rng.random() < 0.2 or not self.streams:
            new = peer.open_uni() if rng.random() < 0.5 else peer.open_bidi()
            self.streams.append(new)
        stream = rng.choice(self.streams[-8:])
        what = rng.randrange(200)
        if what < 120:
            octets = self.plausible(stream)
            if octets:
                peer.send_octets(stream, octets, fin=rng.random() < 0.2)
                self.streams.remove(stream) if stream & 2 else None
        elif what < 122:
            peer.send_octets(stream, octets_of(rng), fin=rng.random() < 0.1)
        elif what < 135:
            peer.reset(stream, rng.choice((0, 1, 0x12, 2**62 - 1)))
        elif what < 145:
            if stream != self.own_control:
                peer.stop(stream, rng.choice((0, 1, 0x12, 2**62 - 1)))
        elif what < 147:
            peer.datagram(octets_of(rng))
        elif what < 155:
            peer.advance(rng.choice((0.1, 6.0, 40.0)))
        elif what < 175:
            self.writer.write(self.written, b"x" * rng.randrange(300))
            self.written += 1
        else:
            self.answer()
        peer.after()

    def answer(self) -> None:
        """Let the application answer offers and consume."""
        session = self.peer.session
        for event in self.peer.take(ObjectReceived):
            session.consume(event.request_id, event.object)
        offers = [event.request_id for event in self.peer.take(PublicationOffered)]
        offers += [event.request_id for event in self.peer.take(NamespaceOffered)]
        for request_id in offers:
            handle = session._context.handles.get(request_id)
            if handle is None or session.is_closed:
                continue
            if self.rng.random() < 0.5:
                session.accept(request_id, now=self.peer.now)
            else:
                session.reject(request_id, RequestErrorCode.UNINTERESTED, now=self.peer.now)

    def check(self) -> None:
        """Nothing is left behind, nothing is beyond its bound."""
        session, stats = self.peer.session, self.peer.session.stats
        assert stats.stray_octets_held <= CONFIG.max_stray_octets
        assert 0 <= stats.stray_streams_held <= CONFIG.max_stray_streams
        assert stats.octets_unread >= 0
        assert stats.octets_withheld >= 0
        assert len(self.sink.given_back) <= len(self.sink.placed)
        if not session.is_closed:
            session.close(now=self.peer.now)
            self.peer.after()
        ended = [event for event in self.peer.events if isinstance(event, SessionEnded)]
        assert len(ended) == 1
        assert self.peer.events[-1] is ended[0]
        assert session.next_deadline is None
        for value in (
            stats.stray_octets_held,
            stats.stray_streams_held,
            stats.octets_unread,
            stats.octets_withheld,
            stats.open_requests,
            stats.open_streams_received,
            stats.open_streams_sent,
        ):
            assert value == 0, stats


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**48))
def test_any_peer(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(40):
        if chaos.peer.session.is_closed:
            break
        chaos.step()
    chaos.check()


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60), st.booleans(), st.booleans(), st.sampled_from(list(Role)))
def test_any_octets_on_a_new_stream(
    octets: bytes, unidirectional: bool, fin: bool, role: Role
) -> None:
    peer = ScriptedPeer(role, config=CONFIG, directory=TrackDirectory())
    stream = peer.open_uni() if unidirectional else peer.open_bidi()
    peer.send_octets(stream, octets, fin=fin)
    peer.datagram(octets)
    peer.advance(100.0)
    assert peer.session.is_closed == (peer.transport.closed is not None)
