"""Drives one session over one QUIC connection: what arrives goes in, what is to be sent goes out.

All work happens in `_pump`, once a wake-up of the loop: QUIC's events go to the session, the
session fills QUIC from its queues, QUIC's datagrams go to the socket, one timer is set, and the
session's events go to its owner. A batch of datagrams, a timer and `wake` each lead to one pump, so
nothing is done once a datagram but aioquic's own work. ACKs leave with the pump once
`acknowledge_octets` have arrived since the last one, else after aioquic's millisecond; those of
control frames alone at once, but seldom.

The clock is `time.monotonic`, not the loop's: uvloop's time stands still within one wake-up and has
milliseconds only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

from aioquic.quic import events as quic

from moqt.asyncio.ending import Loss, describe_end, silence
from moqt.asyncio.traffic import Traffic
from moqt.asyncio.transport import QuicTransport
from moqt.codes import SessionErrorCode
from moqt.wire.draft import ALPN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioquic.quic.events import QuicEvent

    from moqt.asyncio.connection import HeldConnection
    from moqt.asyncio.endpoint import Address, Datagram, UdpEndpoint
    from moqt.asyncio.tap import MoqtTap
    from moqt.session.events import Event

logger = logging.getLogger(__name__)

SMALLEST_DELAY_S = 0.001
"""No timer is set for less, unless it's due: uvloop would spin on it."""

LONGEST_SILENCE = 2
"""So many idle timeouts end a connection, however long its round trips seem: aioquic waits for 3
probe timeouts, and one that was measured while this process was stopped may be minutes."""


if TYPE_CHECKING:

    class DrivenSession(Protocol):
        """What the driver needs of `moqt.session.core.Session`."""

        wake: Callable[[], None]
        """What it calls when it wants a `flush` outside of its inputs."""

        @property
        def is_closed(self) -> bool:
            """Whether its end is decided."""

        @property
        def next_deadline(self) -> float | None:
            """When `handle_timeout` is due."""

        def start(self, now: float) -> None:
            """The connection is ready."""

        def receive_stream_data(
            self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool, now: float
        ) -> None:
            """Octets of a stream."""

        def receive_reset(self, stream_id: int, raw_code: int, now: float) -> None:
            """RESET_STREAM."""

        def receive_stop(self, stream_id: int, raw_code: int, now: float) -> None:
            """STOP_SENDING."""

        def receive_datagram(self, data: memoryview | bytes, now: float) -> None:
            """An unreliable datagram."""

        def handle_timeout(self, now: float) -> None:
            """`next_deadline` has come."""

        def connection_lost(
            self, code: SessionErrorCode, reason: str, *, by_peer: bool, now: float
        ) -> None:
            """The connection is over."""

        def flush(self, now: float) -> None:
            """Send what can be sent soon."""

        def next_event(self) -> Event | None:
            """Take one event."""

    class DriverOwner(Protocol):
        """Whom a driver reports to. No method may raise."""

        def on_event(self, event: Event) -> None:
            """An event of the session."""

        def on_finished(self) -> None:
            """The connection is over and nothing is to be sent any more."""

    class ConnectionIds(Protocol):
        """Who finds a server's connections by their IDs; a client has no need of it."""

        def on_id_issued(self, connection_id: bytes, driver: Driver) -> None:
            """The peer may use it from now on."""

        def on_id_retired(self, connection_id: bytes, driver: Driver) -> None:
            """The peer doesn't use it any more."""


class Driver:
    """One QUIC connection with its session, timer and share of a socket."""

    def __init__(
        self,
        connection: HeldConnection,
        endpoint: UdpEndpoint,
        *,
        connection_ids: ConnectionIds | None = None,
    ) -> None:
        self.connection = connection
        connection.on_arrival = self._take_arrival
        connection.announce_receivable(endpoint.receivable_octets)
        connection.begin_within(endpoint.waiting_octets)
        self._tap: MoqtTap | None = None
        self.transport = QuicTransport(connection, self.wake)
        if connection.trace is not None:
            # Here, as few endpoints are traced, and it has readers of all of MOQT of its own.
            from moqt.asyncio.tap import MoqtTap, TappedTransport

            self._tap = MoqtTap(connection.trace)
            self.transport = TappedTransport(connection, self.wake, self._tap)
        self.loss: Loss | None = None
        """Set once the connection is closing or lost."""
        self.is_ready = False
        """Whether the QUIC handshake is done."""
        self.ready_at: float | None = None
        """When it was done, by `time.monotonic`."""
        self.traffic = Traffic()
        """What came and went so far."""
        self._endpoint = endpoint
        self._connection_ids = connection_ids
        self._config = connection.transport_config
        self._loop = asyncio.get_running_loop()
        self._session: DrivenSession | None = None
        self._owner: DriverOwner | None = None
        self._pump_handle: asyncio.Handle | None = None
        self._is_pumping = False
        self._is_fed = False
        self._is_finished = False
        self._finished_waiters: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        now = time.monotonic()
        self._handshake_at: float | None = now + self._config.handshake_timeout_s
        self._heard_at = now
        self._fed_at = now
        self._pinged_at = now
        self._keep_alive_s: float | None = None
        self._linger_at: float | None = None
        self._unacknowledged_octets = 0
        self._farewell: list[Datagram] = []
        self._late_batches = 0

    def attach(self, session: DrivenSession, owner: DriverOwner) -> None:
        """Name the session to drive; before the first datagram."""
        session.wake = self.wake
        self._session = session
        self._owner = owner

    # --- inputs ---

    def connect(self, address: Address, *, timeout_s: float | None = None) -> None:
        """Send a client's first flight."""
        now = time.monotonic()
        if timeout_s is not None:
            self._handshake_at = now + timeout_s
        self.connection.connect(address, now=now)
        self._pump()

    def feed(
        self, datagrams: memoryview, segment_octets: int, address: Address, now: float
    ) -> None:
        """Give received datagrams to QUIC, of so many octets each, one after another, the last may
        be shorter; `pump_now` follows the last of a batch."""
        self._heard_at = self._fed_at = now
        self._unacknowledged_octets += len(datagrams)
        self.traffic.note_received(len(datagrams), segment_octets)
        self._is_fed = True
        is_whole = False
        try:
            self.connection.receive_segments(datagrams, segment_octets, address, now)
            is_whole = True
        finally:
            self._is_fed = False
            if not is_whole:
                self._break_off(now)

    def on_datagrams(self, datagrams: memoryview, segment_octets: int, address: Address) -> None:
        """Give received datagrams to QUIC."""
        self.feed(datagrams, segment_octets, address, time.monotonic())

    def on_overflow(self) -> None:
        """The socket's buffer was full."""
        self.traffic.overflows += 1

    def on_batch_end(self) -> None:
        """Act on what was received."""
        self.pump_now()

    def on_writable(self) -> None:
        """The socket takes datagrams again."""
        self._pump()

    def on_error(self, error: OSError) -> None:
        """Nobody is there. Once there was someone, that is left to the idle timeout: anyone could
        have sent the message that says so (RFC 9000 21.1.1.1)."""
        if not self.is_ready:  # not now: it may be our own `_transmit` that found out
            self._loop.call_soon(self.fail, error.strerror or str(error))

    def on_too_large(self, address: Address, octets: int | None) -> None:
        """The path doesn't take datagrams of this size."""
        self.connection.on_too_large(octets)
        self.wake()

    def pump_now(self) -> None:
        """Act on what was fed."""
        if self._farewell:
            self._repeat_farewell()
        if self._unacknowledged_octets >= self.connection.acknowledge_octets:
            self._unacknowledged_octets = 0
            self.connection.acknowledge_soon(time.monotonic())
        self._pump()

    def wake(self) -> None:
        """Pump once, soon. It costs nothing when that is about to happen anyway."""
        is_about_to = self._is_pumping or self._is_fed or self._pump_handle is not None
        if not is_about_to and not self._is_finished:
            self._pump_handle = self._loop.call_soon(self._pump)

    def fail(self, reason: str, *, timed_out: bool = False) -> None:
        """Give up: the network, or time, ended it."""
        if self.loss is None:
            code = SessionErrorCode.INTERNAL_ERROR
            self._lose(Loss(code, reason, by_peer=True, timed_out=timed_out))
            self.connection.close(error_code=int(code), reason_phrase="")
            self._pump()

    def abort(self) -> None:
        """Drop everything at once: no timer and no callback is left. The socket is its owner's."""
        if self.loss is None:
            self._lose(Loss(SessionErrorCode.NO_ERROR, "dropped", by_peer=False))
        self._finish()

    async def wait_finished(self) -> None:
        """Wait until nothing more is to be sent or repeated. It takes `close_linger_s` at most once
        the connection is over. Cancelling leaves no trace."""
        if self._is_finished:
            return
        waiter = self._loop.create_future()
        self._finished_waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._finished_waiters:
                self._finished_waiters.remove(waiter)

    # --- the pump ---

    def _pump(self) -> None:
        if self._pump_handle is not None:
            self._pump_handle.cancel()
            self._pump_handle = None
        if self._is_finished:
            return
        self.traffic.wakeups += 1
        now = time.monotonic()
        self._is_pumping = True
        is_whole = False
        try:
            self._take_quic_events(now)
            self.connection.settle_arrivals()
            self._note_end(now)
            is_full = False
            if self.loss is None and self.is_ready and self._session is not None:
                self._session.flush(now)
                is_full = self.transport.send_room() <= 0
            self._transmit(now, goes_on=is_full)
            if is_full and self.transport.send_room() > 0 and self._pump_handle is None:
                self._pump_handle = self._loop.call_soon(self._pump)  # there may be more to send
            self._note_end(now)
            is_whole = True
        finally:
            self._is_pumping = False
            if not is_whole:  # a bug of ours: it ends this session, and is reported by the loop
                self._break_off(now)
        self._hand_out_events()
        if self._linger_at is not None and (
            now >= self._linger_at or self.connection.is_terminated
        ):
            self._finish()
        else:
            self._set_timer(now)

    def _break_off(self, now: float) -> None:
        if self.loss is None:
            reason = "internal error"
            self._lose(Loss(SessionErrorCode.INTERNAL_ERROR, reason, by_peer=False))
            self.transport.close(SessionErrorCode.INTERNAL_ERROR, reason)
            self._transmit(now)
        self._finish()

    def _take_quic_events(self, now: float) -> None:
        next_event = self.connection.next_event
        while (event := next_event()) is not None:
            if type(event) is quic.StreamDataReceived:
                self._take_data(event, now)
            else:
                self._take_quic_event(event, now)

    def _take_data(self, event: quic.StreamDataReceived, now: float) -> None:
        session = self._session
        offset = self.connection.deliver(event.stream_id, len(event.data))
        if offset is None or session is None or session.is_closed:
            return
        if self._tap is not None:
            self._tap.received(event.stream_id, offset, event.data, event.end_stream)
        session.receive_stream_data(event.stream_id, offset, event.data, event.end_stream, now)
        if event.end_stream:
            self.connection.finish_delivery(event.stream_id)

    def _take_arrival(
        self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool
    ) -> None:
        now = self._fed_at
        if self.connection.has_events:
            self._take_quic_events(now)  # what came before: the handshake's end, for one
        session = self._session
        if session is None or session.is_closed or not self.connection.is_wanted(stream_id):
            return
        session.receive_stream_data(stream_id, offset, data, fin, now)
        self.connection.finish_delivery(stream_id)

    def _take_quic_event(self, event: QuicEvent, now: float) -> None:
        match event:
            case quic.ConnectionIdIssued():
                if self._connection_ids is not None:
                    self._connection_ids.on_id_issued(event.connection_id, self)
                return
            case quic.ConnectionIdRetired():
                if self._connection_ids is not None:
                    self._connection_ids.on_id_retired(event.connection_id, self)
                return
        session = self._session
        if session is None or session.is_closed:
            return
        match event:
            case quic.HandshakeCompleted():
                self._start(event.alpn_protocol, session, now)
            case quic.StreamReset():
                if self._tap is not None:
                    self._tap.gone(event.stream_id, is_sent=False)
                session.receive_reset(event.stream_id, event.error_code, now)
                self.connection.settle(event.stream_id)
            case quic.StopSendingReceived():
                session.receive_stop(event.stream_id, event.error_code, now)
            case quic.DatagramFrameReceived():
                if self._tap is not None:
                    self._tap.datagram(event.data, is_sent=False)
                session.receive_datagram(event.data, now)

    def _start(self, alpn: str | None, session: DrivenSession, now: float) -> None:
        self._handshake_at = None
        if alpn != ALPN:
            refusal = f"ALPN {alpn!r} was negotiated, expected {ALPN!r} (MOQT-22 6.1)"
        elif not self.connection.peer_takes_datagrams:
            refusal = "max_datagram_frame_size is 0, expected more (RFC 9221, MOQT-22 6.1)"
        else:
            self.is_ready = True
            self.ready_at = now
            session.start(now)
            return
        self.transport.close(SessionErrorCode.PROTOCOL_VIOLATION, refusal)

    def _transmit(self, now: float, *, goes_on: bool = False) -> None:
        """Send. `goes_on`: the session most likely has more than it could write."""
        connection = self.connection
        if self._endpoint.is_blocked or not connection.has_path:
            return
        connection.adapt_datagram_size(now)
        was_over = connection.is_over
        datagrams = connection.datagrams_to_send(now=now)
        if datagrams:
            self._send(datagrams)
            if connection.is_over and not was_over:
                self._farewell = datagrams  # CONNECTION_CLOSE
        while not self._endpoint.is_blocked and (probe := connection.next_probe(now)) is not None:
            octets = len(probe[0])
            if self._endpoint.send_probe(probe):
                self.traffic.note_sent(octets, octets)
            else:  # so another one is due at once
                connection.on_too_large(octets)
        if connection.write_bulk(now, self._send_run, goes_on=goes_on):
            self._pump_handle = self._loop.call_soon(
                self._pump
            )  # once what has arrived meanwhile is read
        if self._connection_ids is not None:
            self._take_quic_events(now)  # IDs issued in these datagrams may be used at once

    def _send(self, datagrams: Sequence[Datagram]) -> None:
        self.traffic.note_list_sent(datagrams)
        self._endpoint.send(datagrams)

    def _send_run(self, datagrams: memoryview, segment_octets: int, address: Address) -> bool:
        self.traffic.note_sent(len(datagrams), segment_octets)
        return self._endpoint.send_segments(datagrams, segment_octets, address)

    def _repeat_farewell(self) -> None:
        """CONNECTION_CLOSE again, ever more rarely, for a peer that missed it (RFC 9000 10.2.1)."""
        self._late_batches += 1
        if self._late_batches & (self._late_batches - 1) == 0:
            self._send(self._farewell)

    # --- the end ---

    def _note_end(self, now: float) -> None:
        event = self.connection.close_event
        if event is not None and self.loss is None:
            self._lose(describe_end(event, self.connection, self._config.idle_timeout_s))
        if self.loss is not None and self._linger_at is None:
            # a connection that the peer closed, or that timed out, has nothing to repeat
            linger_s = 0.0 if self.connection.is_over else self._config.close_linger_s
            self._linger_at = now + linger_s

    def _lose(self, loss: Loss) -> None:
        self.loss = loss
        logger.debug("connection over: %s", loss)
        if self._session is not None and not self._session.is_closed:
            self._session.connection_lost(
                loss.code, loss.reason, by_peer=loss.by_peer, now=time.monotonic()
            )

    def _finish(self) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pump_handle is not None:
            self._pump_handle.cancel()
            self._pump_handle = None
        self._hand_out_events()
        self.connection.end_trace()
        self.connection.let_go()
        for waiter in self._finished_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._finished_waiters.clear()
        if self._owner is not None:
            self._owner.on_finished()

    def _hand_out_events(self) -> None:
        session, owner = self._session, self._owner
        if session is None or owner is None:
            return
        while (event := session.next_event()) is not None:
            owner.on_event(event)

    # --- time ---

    def _set_timer(self, now: float) -> None:
        wanted = self._next_time(now)
        if wanted is None:
            return
        if self._timer is not None:
            if self._timer_at <= wanted:
                return  # it fires early, and is set again then
            self._timer.cancel()
        self._timer_at = wanted
        delay_s = wanted - time.monotonic()  # packets were built meanwhile, that took its time
        if delay_s > 0:
            delay_s = max(SMALLEST_DELAY_S, delay_s)
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _next_time(self, now: float) -> float | None:
        at = self._linger_at
        for other in (
            self._handshake_at,
            None if self._endpoint.is_blocked else self.connection.get_timer(),
            self._session.next_deadline if self.loss is None and self._session else None,
            self._keep_alive_at(),
            self._given_up_at(),
        ):
            if other is not None and (at is None or other < at):
                at = other
        return at

    def _keep_alive_at(self) -> float | None:
        if not self.is_ready or self.loss is not None or self._config.keep_alive_s <= 0:
            return None
        if self._keep_alive_s is None:  # the peer's idle timeout is known by now
            self._keep_alive_s = min(self._config.keep_alive_s, self.connection.idle_timeout_s / 3)
        return max(self._heard_at, self._pinged_at) + self._keep_alive_s

    def _given_up_at(self) -> float | None:
        if not self.is_ready or self.loss is not None:
            return None
        return self._heard_at + LONGEST_SILENCE * self._config.idle_timeout_s

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic()
        due_at = self._next_time(now)
        if due_at is None or due_at > now:  # what it was set for has been done meanwhile
            self._set_timer(now)
            return
        if not self._endpoint.is_blocked and (ack := self.connection.ack_alone(due_at, now)):
            self._send(ack)
            self._set_timer(now)
            return
        if self.connection.get_timer() is not None:
            self.connection.handle_timer(now=now)
        if self._handshake_at is not None and now >= self._handshake_at:
            self._handshake_at = None
            self.fail("no answer to the QUIC handshake", timed_out=True)
        given_up_at = self._given_up_at()
        if given_up_at is not None and now >= given_up_at:
            self.fail(silence(self._config.idle_timeout_s), timed_out=True)
        session = self._session
        if session is not None and self.loss is None:
            deadline = session.next_deadline
            if deadline is not None and now >= deadline:
                session.handle_timeout(now)
            keep_alive_at = self._keep_alive_at()
            if keep_alive_at is not None and now >= keep_alive_at:
                self._pinged_at = now
                self.connection.send_ping(0)
        self._pump()
