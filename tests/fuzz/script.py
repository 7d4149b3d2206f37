"""Octets as what a peer does in a session, within what QUIC lets a peer do.

The first octet says which role the session under test has, and whether SETUPs are done. Then
operations: one octet for what, one for which stream, one for a length, and so many octets. QUIC
brings each octet once and no stream goes on behind its end, so a script cannot say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from moqt.codes import RequestErrorCode
from moqt.session.config import Role, SessionConfig
from moqt.session.events import NamespaceOffered, ObjectReceived, PublicationOffered, SessionEnded
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer
from moqt.types import FullTrackName, TrackNamespace
from moqt.wire.params import FillParameters

__all__ = ["NAME", "NAMESPACE", "Step", "Verb", "run_script", "write_script"]

NAMESPACE = TrackNamespace.of("kv", "a")
NAME = FullTrackName(NAMESPACE, b"k")

CONFIG = SessionConfig(
    max_stray_octets=400,
    max_stray_streams=4,
    max_requests=10,
    max_buffered_octets=200,
    max_namespaces=3,
    max_request_stream_octets=300,
    max_object_octets=5000,
)

MAX_STEPS = 64
"""Further octets of a script are ignored."""


class Verb(IntEnum):
    """What a step does; the octet modulo their number."""

    OPEN_UNI = 0
    """Octets on a new unidirectional stream."""
    OPEN_BIDI = 1
    SEND = 2
    """Octets on a stream that is open."""
    SEND_AND_END = 3
    SEND_SWAPPED = 4
    """The second half before the first."""
    RESET = 5
    STOP = 6
    DATAGRAM = 7
    WAIT = 8
    """The stream octet is seconds."""
    TAKE = 9
    """The application consumes, accepts and rejects, and writes an Object."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation. `stream`: which of those that the peer may send on, modulo their number."""

    verb: Verb
    stream: int = 0
    octets: bytes = b""


def write_script(role: Role, steps: list[Step], *, setup: bool = True) -> bytes:
    """Return a script as octets, for seeds."""
    out = bytearray(((role is Role.SERVER) | (not setup) << 1,))
    for step in steps:
        out += bytes((step.verb, step.stream, len(step.octets))) + step.octets
    return bytes(out)


def _read_script(data: bytes) -> list[Step]:
    steps: list[Step] = []
    at = 1
    while at + 3 <= len(data) and len(steps) < MAX_STEPS:
        verb, stream, length = data[at : at + 3]
        at += 3
        steps.append(Step(Verb(verb % len(Verb)), stream, data[at : at + length]))
        at += length
    return steps


class _Play:
    """A session with a bit of everything open, and the peer that plays a script against it."""

    def __init__(self, first: int) -> None:
        directory = TrackDirectory()
        self.track = TrackSource(NAME)
        directory.add(self.track)
        self.writer = self.track.open_group(0)
        self.written = 0
        role = Role.SERVER if first & 1 else Role.CLIENT
        self.peer = ScriptedPeer(role, config=CONFIG, directory=directory, setup=not first & 2)
        session = self.peer.session
        if first & 2:
            session.start(0.0)
        session.subscribe(NAME, fill=FillParameters(), now=0.0)
        session.fetch(NAME, now=0.0)
        session.subscribe_namespace(NAMESPACE, now=0.0)
        session.publish_namespace(NAMESPACE, now=0.0)
        session.publish(self.track, now=0.0)
        self.peer.after()
        self.open = [stream for stream in self.peer.transport.sent if not stream & 2]
        """Streams that the peer may still send on."""
        if self.peer.control >= 0:
            self.open.append(self.peer.control)

    def step(self, step: Step) -> None:
        peer = self.peer
        match step.verb:
            case Verb.OPEN_UNI | Verb.OPEN_BIDI:
                is_uni = step.verb is Verb.OPEN_UNI
                stream = peer.open_uni() if is_uni else peer.open_bidi()
                self.open.append(stream)
                peer.send_octets(stream, step.octets)
            case Verb.DATAGRAM:
                peer.datagram(step.octets)
            case Verb.WAIT:
                peer.advance(step.stream)
            case Verb.TAKE:
                self._take(accepts=bool(step.stream & 1))
            case _ if self.open:
                self._on_stream(self.open[step.stream % len(self.open)], step)

    def _on_stream(self, stream: int, step: Step) -> None:
        peer = self.peer
        match step.verb:
            case Verb.SEND:
                peer.send_octets(stream, step.octets)
            case Verb.SEND_AND_END:
                peer.send_octets(stream, step.octets, fin=True)
                self.open.remove(stream)
            case Verb.SEND_SWAPPED:
                middle = len(step.octets) // 2
                at = peer._offsets.get(stream, 0)
                peer.send_range(stream, at + middle, step.octets[middle:])
                peer.send_range(stream, at, step.octets[:middle])
            case Verb.RESET:
                peer.reset(stream, len(step.octets))
                self.open.remove(stream)
            case _ if not stream & 2:
                peer.stop(stream, len(step.octets))

    def _take(self, *, accepts: bool) -> None:
        peer, session = self.peer, self.peer.session
        for event in peer.take(ObjectReceived):
            session.consume(event.request_id, event.object)
        offers = [event.request_id for event in peer.take(PublicationOffered)]
        offers += [event.request_id for event in peer.take(NamespaceOffered)]
        for request_id in offers:
            if session.is_closed or session._context.handles.get(request_id) is None:
                continue
            if accepts:
                session.accept(request_id, now=peer.now)
            else:
                session.reject(request_id, RequestErrorCode.UNINTERESTED, now=peer.now)
        self.writer.write(self.written, b"x" * 100)
        self.written += 1
        peer.after()

    def check(self) -> None:
        """Nothing is beyond its bound, and nothing is left behind."""
        session, stats = self.peer.session, self.peer.session.stats
        assert stats.stray_octets_held <= CONFIG.max_stray_octets
        assert 0 <= stats.stray_streams_held <= CONFIG.max_stray_streams
        assert stats.octets_unread >= 0
        assert stats.octets_withheld >= 0
        if not session.is_closed:
            session.close(now=self.peer.now)
            self.peer.after()
        ended = [event for event in self.peer.events if isinstance(event, SessionEnded)]
        assert len(ended) == 1
        assert self.peer.events[-1] is ended[0]
        assert session.next_deadline is None
        held = (
            stats.stray_octets_held,
            stats.stray_streams_held,
            stats.octets_unread,
            stats.octets_withheld,
            stats.open_requests,
            stats.open_streams_received,
            stats.open_streams_sent,
        )
        assert not any(held), stats


def run_script(data: bytes) -> None:
    """Play a script. AssertionError, or whatever a session raises, is a finding."""
    play = _Play(data[0] if data else 0)
    for step in _read_script(data):
        if play.peer.session.is_closed:
            break
        play.step(step)
    play.check()
