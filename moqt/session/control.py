"""The two control streams: SETUP both ways, then GOAWAY (MOQT-22 6.3, 9.1, 9.2)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moqt.codes import SessionErrorCode
from moqt.errors import LocalProtocolError, RemoteProtocolError
from moqt.session.config import Role
from moqt.session.events import GoawayReceived, SessionEstablished
from moqt.session.request.reassembly import Reassembly
from moqt.wire.framing import MessageReader, encode_message
from moqt.wire.messages import Goaway, Setup
from moqt.wire.rules import validate_goaway, validate_setup

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.session.context import SessionContext
    from moqt.session.request.requests import Requests
    from moqt.session.timers import Timer
    from moqt.wire.messages import Message
    from moqt.wire.options import SetupOptions


class Control:
    """Our control stream, the peer's, and what was said on them."""

    def __init__(
        self,
        context: SessionContext,
        requests: Requests,
        *,
        options: SetupOptions,
        is_busy: Callable[[], bool],
    ) -> None:
        """`options` are ours; `is_busy` says whether subscriptions or fetches are open.

        Raises: LocalProtocolError for options that no SETUP can carry.
        """
        self._context = context
        self._requests = requests
        self.options = options
        try:
            self._setup = encode_message(Setup(options))
        except ValueError as error:
            raise LocalProtocolError(f"SETUP: {error}") from error
        self._is_busy = is_busy
        self._is_server = context.role is Role.SERVER
        self._stream_id: int | None = None
        self._peer_stream_id: int | None = None
        self._setup_timer: Timer | None = None
        self._reassembly = Reassembly()
        self._reader = MessageReader()
        self.is_started = False

    # Sending

    def start(self, now: float) -> None:
        """Send SETUP and wait for the peer's, `setup_timeout_s` at most."""
        if self.is_started:
            raise LocalProtocolError("the session was started already")
        self.is_started = True
        limit = self._context.config.setup_timeout_s
        self._setup_timer = self._context.timers.at(
            now + limit,
            lambda _now: self._context.fatal(
                SessionErrorCode.CONTROL_MESSAGE_TIMEOUT, f"no SETUP within {limit:g} s"
            ),
        )
        self.flush()

    def flush(self) -> None:
        """Send SETUP if the peer's stream limit has not let it out yet."""
        if self.is_started and self._stream_id is None:
            self._stream_id = self._context.transport.open(bidirectional=False)
            if self._stream_id is not None:
                self._context.transport.write(self._stream_id, [self._setup], False)

    def send_goaway(self, uri: str, timeout_ms: int, now: float) -> None:
        """Ask the peer to move; with a time, close with GOAWAY_TIMEOUT if it does not (9.2)."""
        if self._requests.goaway_sent:
            raise LocalProtocolError("GOAWAY was sent already (MOQT-22 9.2)")
        if uri and not self._is_server:
            raise LocalProtocolError("a client sends GOAWAY without a URI (MOQT-22 9.2)")
        if self._stream_id is None:
            raise LocalProtocolError("no GOAWAY before SETUP is sent")
        try:
            octets = encode_message(Goaway(uri, timeout_ms))
        except ValueError as error:
            raise LocalProtocolError(f"GOAWAY: {error}") from error
        self._context.transport.write(self._stream_id, [octets], False)
        self._requests.goaway_sent = True
        if timeout_ms:
            self._context.timers.at(now + timeout_ms / 1000, partial(self._check_moved, timeout_ms))

    def _check_moved(self, timeout_ms: int, _now: float) -> None:
        if self._is_busy():
            self._context.fatal(
                SessionErrorCode.GOAWAY_TIMEOUT, f"still in use {timeout_ms} ms after GOAWAY"
            )

    def is_stream(self, stream_id: int) -> bool:
        """Return whether this is our control stream."""
        return stream_id == self._stream_id

    # Receiving

    def adopt(self, stream_id: int) -> None:
        """A stream of the peer's begins with SETUP; a second one breaks the protocol."""
        if self._peer_stream_id is not None:
            raise _violation("second control stream")
        self._peer_stream_id = stream_id

    def receive(self, offset: int, data: memoryview | bytes, fin: bool, now: float) -> None:
        """Take octets of the peer's control stream."""
        octets = self._reassembly.push(offset, data, fin)
        if len(octets):
            assert self._peer_stream_id is not None
            self._context.transport.credit(self._peer_stream_id, len(octets))
            for message in self._reader.feed(octets):
                self._receive_message(message)
        if self._reassembly.is_complete:
            raise _violation("the peer ended its control stream")

    def receive_reset(self, raw_code: int, now: float) -> None:
        """The peer reset its control stream."""
        raise _violation(f"the peer reset its control stream (0x{raw_code:x})")

    def _receive_message(self, message: Message) -> None:
        if self._context.peer_options is None:
            if not isinstance(message, Setup):
                raise _violation(f"{message.TYPE.name} before SETUP")
            self._receive_setup(message)
        elif isinstance(message, Goaway):
            if self._requests.goaway_received:
                raise _violation("second GOAWAY on the control stream")
            validate_goaway(message, receiver_is_server=self._is_server)
            self._requests.goaway_received = True
            self._context.emit(GoawayReceived(message.new_session_uri, message.timeout_ms))
        else:
            raise _violation(f"{message.TYPE.name} on the control stream")

    def _receive_setup(self, message: Setup) -> None:
        validate_setup(message.options, receiver_is_server=self._is_server)
        self._requests.gate.admit_session(message.options)
        self._context.peer_options = message.options
        self._requests.tokens.peer_is_known()
        if self._setup_timer is not None:
            self._setup_timer.cancel()
        self._context.emit(SessionEstablished(message.options))


def _violation(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(SessionErrorCode.PROTOCOL_VIOLATION, reason)
