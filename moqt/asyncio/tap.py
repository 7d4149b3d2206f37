"""MOQT's events of a trace, read where octets pass between session and QUIC.

They are read from the octets of the streams, in both directions, apart from the session: they show
what went over the wire, and cost nothing when there is no trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moqt.asyncio.transport import QuicTransport
from moqt.codes import GroupOrder
from moqt.errors import RemoteProtocolError
from moqt.trace.decoder import Decoded, Malformed, StreamDecoder
from moqt.trace.describe import describe
from moqt.types import Object
from moqt.wire.datagrams import parse_datagram
from moqt.wire.messages import Fetch, Message, RequestUpdate, Subscribe
from moqt.wire.object_reader import EndOfRangeRead, StreamFinished
from moqt.wire.streams import ControlHead, FetchHeader, PaddingHead, SubgroupHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moqt.asyncio.connection import HeldConnection
    from moqt.asyncio.qlog import Trace
    from moqt.codes import StreamResetCode

__all__ = ["MoqtTap", "TappedTransport"]

MAX_DESCENDING = 4096
"""Requests of which it is remembered that they asked for descending Groups; then it is forgotten,
and the Groups of their streams would be shown wrong."""

_UNIDIRECTIONAL = 0x2
_SERVER_INITIATED = 0x1


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
                case Object():
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
