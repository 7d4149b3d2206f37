"""aioquic's connection with receive windows in our hands.

Stock aioquic doubles a receive window as soon as half of it is used, whether or not anyone has read
the data, so a slow reader gets unbounded memory. Here a window moves by `credit` alone:

- The limit of a stream is a window plus what was credited on it; that of the connection is a
  window plus what was credited on all streams. The windows begin with `stream_window_octets` and
  `connection_window_octets`, and grow as bandwidth x delay demands (`moqt.asyncio.windows`). What
  one stream has shown holds for all: one that comes later is granted as much with its first credit.
- A window that may grow begins with what the socket's buffer holds (`begin_within`), and grows by
  at most twice the shortest round trip there was: what waits in that buffer makes round trips
  longer, and is no reason to let more come. On a short path, as within a machine, it grows no
  further than that buffer, where all that is under way may wait. So one peer that is faster than
  this process loses nothing in a buffer of 2 MiB or more.
- `_write_connection_limits` and `_write_stream_limits`, where aioquic raises its limits, are
  overridden: they write a frame when `credit` has raised a limit, or when a frame was lost, and
  raise nothing themselves.
- A limit is raised once a quarter of the window can be granted, or more than the peer has left.
  So a fast reader costs a few frames a window, and a blocked peer learns of any credit at once.
- The account of a stream that was reset or stopped is settled: what arrived and was not credited,
  and what still arrives up to the final size, is credited to the connection. At rest
  `credited == received`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aioquic.quic.connection import (
    CONNECTION_LIMIT_FRAME_CAPACITY,
    MAX_STREAM_DATA_FRAME_CAPACITY,
    QuicConnection,
)
from aioquic.quic.packet import QuicFrameType

from moqt.asyncio.windows import ReceiveWindow

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.connection import Limit
    from aioquic.quic.packet_builder import QuicPacketBuilder
    from aioquic.quic.recovery import QuicPacketSpace
    from aioquic.quic.stream import QuicStream

    from moqt.asyncio.config import TransportConfig


LEAST_FIRST_WINDOW_OCTETS = 1 << 20
"""A system that grants small buffers doesn't make the first round trips of a far peer slow."""


WAITING_ROUNDS = 2
"""The window grows by no longer round trip than so many of the shortest one."""


SHORT_PATH_S = 0.005
"""A path with a shorter round trip counts as short: 1 MiB each 5 ms are 200 MB/s."""


class _Account:
    """What of one receiving direction went to the session, and what was credited."""

    __slots__ = ("credited", "delivered", "is_ended", "is_settled", "stream")

    def __init__(self, stream: QuicStream) -> None:
        self.stream = stream
        self.delivered = 0
        self.credited = 0
        self.is_ended = False
        """FIN went to the session: no event of the stream is left."""
        self.is_settled = False

    @property
    def is_done(self) -> bool:
        return self.is_ended and self.credited >= self.stream.receiver.highest_offset


class CreditedConnection(QuicConnection):
    """A QUIC connection that grants nothing by itself."""

    def __init__(
        self,
        *,
        configuration: QuicConfiguration,
        transport_config: TransportConfig,
        original_destination_connection_id: bytes | None = None,
    ) -> None:
        super().__init__(
            configuration=configuration,
            original_destination_connection_id=original_destination_connection_id,
        )
        self.transport_config = transport_config
        self.credited_octets = 0
        """Receive octets credited over all streams."""
        self._most_waiting_octets = LEAST_FIRST_WINDOW_OCTETS
        """What the socket's buffer may hold."""
        self._connection_window = ReceiveWindow(
            transport_config.connection_window_octets,
            max_octets=transport_config.largest_connection_window_octets,
        )
        self._stream_window = ReceiveWindow(
            transport_config.stream_window_octets,
            max_octets=transport_config.largest_stream_window_octets,
        )
        self._accounts: dict[int, _Account] = {}
        self._settling: dict[int, _Account] = {}
        for limit, streams in (
            (self._local_max_streams_bidi, transport_config.max_bidirectional_streams),
            (self._local_max_streams_uni, transport_config.max_unidirectional_streams),
        ):
            limit.value = limit.sent = streams

    def begin_within(self, octets: int) -> None:
        """Let the peer send no more at first, over all streams, than so many octets that wait in
        the socket's buffer, which holds half as much again if they are in large datagrams; before
        the handshake. No less than `LEAST_FIRST_WINDOW_OCTETS`, and a window that may not grow
        stays as it is."""
        self._most_waiting_octets = octets + octets // 2
        window = self._connection_window
        if window.octets < self.transport_config.largest_connection_window_octets:
            window.octets = min(window.octets, max(octets, LEAST_FIRST_WINDOW_OCTETS))
            limit = self._local_max_data
            limit.value = limit.sent = window.octets

    @property
    def is_path_short(self) -> bool:
        """Whether all that is under way may wait in the socket's buffer."""
        return self._loss._rtt_min < SHORT_PATH_S

    @property
    def received_octets(self) -> int:
        """Receive octets counted against the connection's window, over all streams."""
        return self._local_max_data.used

    def credit(self, stream_id: int, octets: int) -> bool:
        """Grant the peer `octets` more, on the stream and on the connection.

        Nothing happens for a stream that was settled: its octets have been granted. Returns whether
        a limit was raised by it, so that a frame is to be sent.
        """
        account = self._account(stream_id)
        if account is None or account.is_settled:
            return False
        account.credited += octets
        is_raised = self._credit_connection(octets)
        stream = account.stream
        highest = stream.receiver.highest_offset
        if stream.receiver._final_size is not None:
            if account.is_done:
                del self._accounts[stream_id]
            return is_raised
        limit = stream.max_stream_data_local
        window = self._stream_window.octets
        target = window + account.credited
        if _is_worth_granting(target - limit, limit - highest, window):
            stream.max_stream_data_local = target
            is_raised = True
        return is_raised

    def settle(self, stream_id: int) -> None:
        """The session is done with this receiving direction: grant the rest by ourselves."""
        account = self._account(stream_id)
        if account is None or account.is_settled:
            return
        account.is_settled = True
        self._settling[stream_id] = account
        self.settle_arrivals()

    def stop(self, stream_id: int, code: int) -> bool:
        """STOP_SENDING, then `settle`; False when the stream is gone, or can't be received on."""
        stream = self._streams.get(stream_id)
        if stream is None or not self._stream_can_receive(stream_id):
            return False
        if not stream.receiver.is_finished:
            stream.receiver.stop(code)
        self.settle(stream_id)
        return True

    def settle_arrivals(self) -> None:
        """Credit what has arrived on settled streams; call it after each batch of input."""
        for stream_id, account in list(self._settling.items()):
            receiver = account.stream.receiver
            arrived = receiver.highest_offset - account.credited
            if arrived > 0:
                account.credited = receiver.highest_offset
                self._credit_connection(arrived)
            if stream_id not in self._streams:  # not before: events of it may still be queued
                del self._settling[stream_id]
                del self._accounts[stream_id]

    def deliver(self, stream_id: int, octets: int) -> int | None:
        """Return the offset of the next `octets` in order; None: nobody wants them (settled)."""
        account = self._account(stream_id)
        if account is None or account.is_settled:
            return None
        offset = account.delivered
        account.delivered = offset + octets
        return offset

    def is_wanted(self, stream_id: int) -> bool:
        """Whether octets of it should go to the session: it is not settled."""
        account = self._account(stream_id)
        return account is not None and not account.is_settled

    def finish_delivery(self, stream_id: int) -> None:
        """Octets went to the session. If those were the last ones, the account closes, now or with
        the last credit."""
        account = self._accounts.get(stream_id)
        if account is None or account.is_settled or not account.stream.receiver.is_finished:
            return
        account.is_ended = True
        if account.is_done:
            del self._accounts[stream_id]

    def _account(self, stream_id: int) -> _Account | None:
        account = self._accounts.get(stream_id)
        if account is None:
            stream = self._streams.get(stream_id)
            if stream is None or not self._stream_can_receive(stream_id):
                return None
            account = self._accounts[stream_id] = _Account(stream)
        return account

    def _credit_connection(self, octets: int) -> bool:
        self.credited_octets += octets
        for growing in (self._connection_window, self._stream_window):
            if growing.is_due(octets):
                loss = self._loss
                growing.look(
                    time.monotonic(),
                    min(loss._rtt_smoothed, WAITING_ROUNDS * loss._rtt_min),
                    most_octets=self._most_waiting_octets if self.is_path_short else None,
                )
        limit = self._local_max_data
        window = self._connection_window.octets
        target = window + self.credited_octets
        if not _is_worth_granting(target - limit.value, limit.value - limit.used, window):
            return False
        limit.value = target
        return True

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        for limit in (
            self._local_max_data,
            self._local_max_streams_bidi,
            self._local_max_streams_uni,
        ):
            if limit is self._local_max_data:
                if limit.value == limit.sent:
                    continue
            elif not is_stream_limit_due(limit):
                continue
            buf = builder.start_frame(
                limit.frame_type,
                capacity=CONNECTION_LIMIT_FRAME_CAPACITY,
                handler=self._on_connection_limit_delivery,
                handler_args=(limit,),
            )
            buf.push_uint_var(limit.value)
            limit.sent = limit.value

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        if stream.max_stream_data_local_sent == stream.max_stream_data_local:
            return
        buf = builder.start_frame(
            QuicFrameType.MAX_STREAM_DATA,
            capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
            handler=self._on_max_stream_data_delivery,
            handler_args=(stream,),
        )
        buf.push_uint_var(stream.stream_id or 0)
        buf.push_uint_var(stream.max_stream_data_local)
        stream.max_stream_data_local_sent = stream.max_stream_data_local


def _is_worth_granting(grant: int, left: int, window: int) -> bool:
    return grant > 0 and (grant * 4 >= window or grant > left)


def is_stream_limit_due(limit: Limit) -> bool:
    """Whether MAX_STREAMS is worth a frame, as aioquic judges it."""
    return limit.value != limit.sent and limit.sent - limit.used < limit.value - limit.sent
