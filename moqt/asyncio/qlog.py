"""qlog: aioquic's trace of a connection with MOQT's events in it, one file for each connection.

What a file never holds: payloads, values of authorization tokens, and what would let anyone reset
the connection. Events are kept in memory and written when the connection is over, so both kinds,
QUIC's and MOQT's, are bounded by `qlog_max_events`: the first half of them and the newest are kept,
and what was left out in between is said.

The MOQT events are read from the octets of the streams, in both directions, apart from the session:
they show what went over the wire, and cost nothing when there is no trace.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from aioquic.quic.logger import QuicLogger, QuicLoggerTrace

from moqt.asyncio.transport import QuicTransport
from moqt.codes import GroupOrder
from moqt.errors import RemoteProtocolError
from moqt.session.decoder import Decoded, Malformed, StreamDecoder
from moqt.wire.datagrams import parse_datagram
from moqt.wire.describe import describe
from moqt.wire.messages import Fetch, Message, RequestUpdate, Subscribe
from moqt.wire.object_reader import EndOfRangeRead, ObjectRead, StreamFinished
from moqt.wire.streams import ControlHead, FetchHeader, PaddingHead, SubgroupHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from aioquic.quic.packet import QuicTransportParameters

    from moqt.asyncio.connection import HeldConnection
    from moqt.codes import StreamResetCode

__all__ = ["MoqtTap", "QlogDirectory", "TappedTransport", "Trace"]

logger = logging.getLogger(__name__)

SUFFIX = ".qlog"
VANTAGE_POINT = "kvcs-moqt"
MAX_DESCENDING = 4096
"""Requests of which it is remembered that they asked for descending Groups; then it is forgotten,
and the Groups of their streams would be shown wrong."""

_UNIDIRECTIONAL = 0x2
_SERVER_INITIATED = 0x1


class _Events:
    """Keeps the first half of `limit` events and the newest, in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit // 2
        self._first: list[dict[str, Any]] = []
        self._newest: deque[dict[str, Any]] = deque(maxlen=limit - self._limit)
        self._dropped = 0

    def add(self, event: dict[str, Any]) -> None:
        if len(self._first) < self._limit:
            self._first.append(event)
            return
        self._dropped += len(self._newest) == self._newest.maxlen
        self._newest.append(event)

    def all(self, kind: str) -> list[dict[str, Any]]:
        gap = []
        if self._dropped:
            message = f"{self._dropped} {kind} events left out here (qlog_max_events)"
            time_ms = self._newest[0]["time"]
            gap = [{"time": time_ms, "name": "loglevel:warning", "data": {"message": message}}]
        return [*self._first, *gap, *self._newest]


class Trace(QuicLoggerTrace):
    """The trace of one connection, of QUIC and MOQT together."""

    def __init__(self, directory: Path, *, is_client: bool, odcid: bytes, max_events: int) -> None:
        super().__init__(is_client=is_client, odcid=odcid)
        self._directory = directory
        self.is_client = is_client
        self._quic = _Events(max_events)
        self._moqt = _Events(max_events)
        self._vantage_point = {
            "name": VANTAGE_POINT,
            "type": "client" if is_client else "server",
        }

    @property
    def path(self) -> Path:
        """Its file. Both ends of a connection have the same ID, so the name says which it is."""
        return self._directory / f"{self._odcid.hex()}_{self._vantage_point['type']}{SUFFIX}"

    def write(self) -> None:
        """Write its file. One that cannot be written is warned of, and nothing else suffers."""
        content = {"qlog_format": "JSON", "qlog_version": "0.3", "traces": [self.to_dict()]}
        try:
            self.path.write_text(json.dumps(content), encoding="utf-8")
        except OSError as error:
            logger.warning("qlog %s is lost: %s", self.path, error)

    def log_event(self, *, category: str, event: str, data: dict[str, Any]) -> None:
        """Take an event of aioquic's, or of ours with category "moqt"."""
        events = self._moqt if category == "moqt" else self._quic
        time_ms = self.encode_time(time.time())
        events.add({"time": time_ms, "name": f"{category}:{event}", "data": data})

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as qlog has it, in order of time."""
        events = self._quic.all("QUIC") + self._moqt.all("MOQT")
        return {
            "common_fields": {"ODCID": self._odcid.hex(), "time_format": "absolute"},
            "events": sorted(events, key=lambda event: event["time"]),
            "vantage_point": self._vantage_point,
        }

    # What lets anyone end or take over the connection stays out.

    def encode_transport_parameters(
        self, owner: str, parameters: QuicTransportParameters
    ) -> dict[str, Any]:
        """Leave the stateless reset token out."""
        found = super().encode_transport_parameters(owner, parameters)
        found.pop("stateless_reset_token", None)
        return found

    def encode_new_connection_id_frame(
        self,
        connection_id: bytes,
        retire_prior_to: int,
        sequence_number: int,
        stateless_reset_token: bytes,
    ) -> dict[str, Any]:
        """Leave the stateless reset token out."""
        found = super().encode_new_connection_id_frame(
            connection_id, retire_prior_to, sequence_number, stateless_reset_token
        )
        del found["reset_token"]
        return found

    def encode_new_token_frame(self, token: bytes) -> dict[str, Any]:
        """Leave the address validation token out."""
        return {"frame_type": "new_token", "length": len(token)}


class QlogDirectory(QuicLogger):
    """Writes each trace to a file of its own when its connection is over.

    Raises: OSError when the directory is not there and cannot be made.
    """

    def __init__(self, directory: Path, *, max_events: int) -> None:
        super().__init__()
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._max_events = max_events

    def start_trace(self, is_client: bool, odcid: bytes) -> Trace:
        """Begin the trace of a connection."""
        return Trace(self._directory, is_client=is_client, odcid=odcid, max_events=self._max_events)

    def end_trace(self, trace: QuicLoggerTrace) -> None:
        """Write the trace."""
        assert isinstance(trace, Trace)  # start_trace made it
        trace.write()


class MoqtTap:
    """Reads the MOQT of one connection, in both directions, into its trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._ours = 0 if trace.is_client else _SERVER_INITIATED
        self._received: dict[int, StreamDecoder] = {}
        self._sent: dict[int, tuple[StreamDecoder, int]] = {}
        self._descending: set[int] = set()

    def received(self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool) -> None:
        """Octets of a stream came."""
        decoder = self._received.get(stream_id)
        if decoder is None:
            decoder = self._received[stream_id] = self._decoder(stream_id)
        self._log(stream_id, decoder, decoder.receive(offset, data, fin), is_sent=False)
        if decoder.is_complete or (fin and decoder.is_over):
            self._received.pop(stream_id, None)

    def sent(self, stream_id: int, buffers: Sequence[memoryview | bytes], fin: bool) -> None:
        """Octets were handed to QUIC for a stream."""
        decoder, offset = self._sent.get(stream_id) or (self._decoder(stream_id), 0)
        for position, buffer in enumerate(buffers or (b"",)):
            is_last = fin and position + 1 >= len(buffers)
            self._log(stream_id, decoder, decoder.receive(offset, buffer, is_last), is_sent=True)
            offset += len(buffer)
        if fin:
            self._sent.pop(stream_id, None)
        else:
            self._sent[stream_id] = decoder, offset

    def gone(self, stream_id: int, *, is_sent: bool) -> None:
        """A direction of a stream was reset or stopped; aioquic's own events say so."""
        (self._sent if is_sent else self._received).pop(stream_id, None)

    def datagram(self, data: memoryview | bytes, *, is_sent: bool) -> None:
        """A datagram came, or was handed to QUIC."""
        try:
            fields = describe(parse_datagram(data))
        except RemoteProtocolError as error:
            self._event("malformed", {"reason": error.reason, "length": len(data)})
            return
        self._event(_suffixed("object_datagram", is_sent=is_sent), fields)

    def _decoder(self, stream_id: int) -> StreamDecoder:
        return StreamDecoder(
            is_request=not stream_id & _UNIDIRECTIONAL, group_order_of=self._group_order_of
        )

    def _group_order_of(self, request_id: int) -> GroupOrder:
        is_reverse = request_id in self._descending
        return GroupOrder.DESCENDING if is_reverse else GroupOrder.ASCENDING

    def _note_order(self, message: Fetch | Subscribe | RequestUpdate) -> None:
        parameters = message.parameters
        order = parameters.group_order
        if parameters.fill is not None and parameters.fill.group_order is not None:
            order = parameters.fill.group_order
        if order is GroupOrder.DESCENDING and len(self._descending) < MAX_DESCENDING:
            self._descending.add(message.request_id)

    def _log(
        self, stream_id: int, decoder: StreamDecoder, found: list[Decoded], *, is_sent: bool
    ) -> None:
        for decoded in found:
            value = decoded.value
            kind = "fetch" if isinstance(decoder.head, FetchHeader) else "subgroup"
            data: dict[str, Any] = {"stream_id": stream_id}
            match value:
                case Message():
                    if isinstance(value, Fetch | Subscribe | RequestUpdate):
                        self._note_order(value)
                    name = value.TYPE.name.lower()
                    data |= {"message_type": name, "message": {"type": name} | describe(value)}
                    event = "control_message"
                case SubgroupHeader() | FetchHeader():
                    self._stream_type(stream_id, f"{kind}_header", is_sent=is_sent)
                    data |= describe(value)
                    event = f"{kind}_header"
                case ControlHead() | PaddingHead():
                    is_control = isinstance(value, ControlHead)
                    what = "control" if is_control else "padding"
                    self._stream_type(stream_id, what, is_sent=is_sent)
                    continue
                case ObjectRead():
                    data |= describe(value.header)
                    event = f"{kind}_object"
                case EndOfRangeRead():
                    data |= describe(value)
                    event = "fetch_end_of_range"
                case StreamFinished():
                    continue  # QUIC's own events show the FIN
                case Malformed():
                    self._event("malformed", data | {"offset": decoded.offset} | describe(value))
                    continue
            self._event(_suffixed(event, is_sent=is_sent), data)

    def _stream_type(self, stream_id: int, kind: str, *, is_sent: bool) -> None:
        owner = "local" if is_sent else "remote"
        self._event(
            "stream_type_set", {"owner": owner, "stream_id": stream_id, "stream_type": kind}
        )

    def _event(self, name: str, data: dict[str, Any]) -> None:
        self._trace.log_event(category="moqt", event=name, data=data)


def _suffixed(name: str, *, is_sent: bool) -> str:
    return f"{name}_created" if is_sent else f"{name}_parsed"


class TappedTransport(QuicTransport):
    """A transport that shows a tap what is sent."""

    def __init__(self, connection: HeldConnection, wake: Callable[[], None], tap: MoqtTap) -> None:
        super().__init__(connection, wake)
        self._tap = tap

    def write(self, stream_id: int, buffers: Sequence[memoryview | bytes], fin: bool) -> None:
        """Show it and write it."""
        self._tap.sent(stream_id, buffers, fin)
        super().write(stream_id, buffers, fin)

    def reset(self, stream_id: int, code: StreamResetCode) -> None:
        """Forget the stream and reset it."""
        self._tap.gone(stream_id, is_sent=True)
        super().reset(stream_id, code)

    def stop(self, stream_id: int, code: StreamResetCode) -> None:
        """Forget the stream and stop it."""
        self._tap.gone(stream_id, is_sent=False)
        super().stop(stream_id, code)

    def send_datagram(self, data: bytes) -> bool:
        """Send it, and show it when QUIC took it."""
        is_taken = super().send_datagram(data)
        if is_taken:
            self._tap.datagram(data, is_sent=True)
        return is_taken
