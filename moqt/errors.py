"""Everything that moqt raises.

MoqtError
|- LocalProtocolError            we were asked for what the protocol or our state forbids
|  `- SessionLeaving             no new requests: the session is over, or is to be left
|- NotSupported                  a part of the protocol that this package does not implement
|- ConnectFailed        .address no session came to be
|- RemoteProtocolError  .code    the peer broke the protocol            ends the session
|- SessionClosed        .code    the session is over                    ends the session
|- RequestRejected      .code    the peer refused one request           ends the request
|- RequestEnded         .code    the publisher ended a subscription     ends the request
|- StreamReset          .code    one stream was cut                     ends the stream
|- FollowFailed         .visited redirects or moves that lead nowhere   ends the request
|- ResourceBusy                  a named limit of ours is reached       ends nothing
`- TimedOut             .after_s the peer did not answer in time        ends the request
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moqt.codes import PublishDoneCode, RequestErrorCode, SessionErrorCode, StreamResetCode
    from moqt.types import FullTrackName


_QUERY = re.compile(r"\?\S*")
"""Of an address: it may carry a secret."""

MAX_PRINTED = 256
"""Characters of a peer's text that a message shows."""


def printable(text: str) -> str:
    """Return a peer's text for a log or message: cut, control characters escaped (MOQT-22 15.9)."""
    shown = text if len(text) <= MAX_PRINTED else text[:MAX_PRINTED] + "..."
    if shown.isprintable():
        return shown
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown
    )


class MoqtError(Exception):
    """Base of all errors of this package."""


class LocalProtocolError(MoqtError):
    """Nothing ended: the call asked for what the protocol or the session's state forbids."""


class SessionLeaving(LocalProtocolError):
    """Nothing ended: no request is opened in a session that is over, or once GOAWAY was said.

    The same request may succeed in another session.
    """


class NotSupported(MoqtError):
    """Nothing ended: the call asked for a part of MOQT that this package does not implement."""


class ConnectProblem(Enum):
    """What kept a session from coming to be."""

    NAME = "name"
    """The host's name leads to no address."""
    UNREACHABLE = "unreachable"
    """Nobody answers there."""
    UNTRUSTED = "untrusted"
    """Nobody whom we trust vouches for the server's certificate."""
    CERTIFICATE = "certificate"
    """The server's certificate is for another name or another time."""
    PROTOCOL = "protocol"
    """The server does not speak our draft."""
    HANDSHAKE = "handshake"
    """It answered, and the QUIC or TLS handshake failed for another reason."""


class ConnectFailed(MoqtError):
    """No session came to be: refused, not trusted, or no common protocol.

    `address` is host:port.
    """

    def __init__(
        self, address: str, reason: str, problem: ConnectProblem = ConnectProblem.UNREACHABLE
    ) -> None:
        super().__init__(f"cannot connect to {address}: {printable(reason)}")
        self.address = address
        self.reason = reason
        self.problem = problem


class RemoteProtocolError(MoqtError):
    """Ends the session: the peer broke the protocol; `code` is what we close with."""

    def __init__(self, code: SessionErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {printable(reason)}")
        self.code = code
        self.reason = reason


class SessionClosed(MoqtError):
    """Ends the session: it was closed, by us or by the peer, or the connection was lost.

    `address` and `hint`: as of RequestRejected.
    """

    def __init__(
        self,
        code: SessionErrorCode,
        reason: str,
        *,
        by_peer: bool,
        address: str | None = None,
        hint: str = "",
    ) -> None:
        how = "ended by the peer or the network" if by_peer else "closed here"
        super().__init__(
            (f"at {printable(address)}: " if address is not None else "")
            + f"session {how}: {code.name}"
            + (f" ({printable(reason)})" if reason else "")
            + (f": {hint}" if hint else "")
        )
        self.code = code
        self.reason = reason
        self.address = address
        self.by_peer = by_peer


class RequestRejected(MoqtError):
    """Ends the request: the peer answered REQUEST_ERROR (MOQT-22 9.4).

    `retry_interval_ms` is None when the same request should not be sent again.
    `redirect_uri` and `redirect_name` are set for code REDIRECT. `address` is set when a client
    was refused elsewhere than where it began; `hint` goes into the message.
    """

    def __init__(
        self,
        code: RequestErrorCode,
        reason: str,
        *,
        retry_interval_ms: int | None = None,
        redirect_uri: str | None = None,
        redirect_name: FullTrackName | None = None,
        address: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(
            (f"at {printable(address)}: " if address is not None else "")
            + f"request rejected: {code.name}"
            + (f" ({printable(reason)})" if reason else "")
            + (f": {hint}" if hint else "")
        )
        self.code = code
        self.reason = reason
        self.address = address
        self.retry_interval_ms = retry_interval_ms
        self.redirect_uri = redirect_uri
        self.redirect_name = redirect_name


class RequestEnded(MoqtError):
    """Ends the request: the publisher ended it for another reason than the track's end."""

    def __init__(self, code: PublishDoneCode, reason: str) -> None:
        super().__init__(
            f"publisher ended it: {code.name}" + (f" ({printable(reason)})" if reason else "")
        )
        self.code = code
        self.reason = reason


class StreamReset(MoqtError):
    """Ends the stream: its sender reset it. `raw_code` is the number on the wire (62 bits)."""

    def __init__(self, code: StreamResetCode, raw_code: int) -> None:
        super().__init__(f"stream reset: {code.name} (0x{raw_code:x})")
        self.code = code
        self.raw_code = raw_code


class FollowFailed(MoqtError):
    """Ends the request: redirects or moves lead in a circle, too far, or to no usable address.

    `visited` are the addresses and names on the way, the first one first.
    """

    def __init__(self, reason: str, visited: tuple[str, ...]) -> None:
        way = " -> ".join(_QUERY.sub("?...", step) for step in visited)
        super().__init__(f"cannot follow: {printable(reason)} ({printable(way)})")
        self.reason = reason
        self.visited = visited


class ResourceBusy(MoqtError):
    """Nothing ended: a named limit is reached; the message says which and its value."""


class TimedOut(MoqtError):
    """Ends the request: the peer did not answer within `after_s` seconds."""

    def __init__(self, what: str, after_s: float) -> None:
        super().__init__(f"{what}: no answer within {round(after_s, 3):g} s")
        self.after_s = after_s
