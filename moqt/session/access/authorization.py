"""Who may ask for what: tokens as an application sees them, and the policy that judges them.

A policy gets every token resolved to type and value, whichever way it came (MOQT-22 8.9). Token
values never show in a repr, an error or a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from hmac import compare_digest
from typing import TYPE_CHECKING, Protocol

from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from moqt.types import FullTrackName, TrackNamespace
    from moqt.wire.rules import RequestKind

__all__ = [
    "OUT_OF_BAND",
    "Admission",
    "Allowed",
    "AuthToken",
    "Decision",
    "Denial",
    "Denied",
    "KnownTokens",
    "RequestAccess",
    "SessionAccess",
    "TokenPolicy",
    "checked_tokens",
]

OUT_OF_BAND = 0
"""The Token Type whose meaning both sides have agreed on elsewhere (MOQT-22 8.9)."""


@dataclass(frozen=True, slots=True)
class AuthToken:
    """An authorization token. Its value is a secret of at most some KiB: it travels in messages.

    `is_reusable`: it will be sent again in this session, so the peer is asked to remember it where
    it has room; `Session.drop_token` makes the peer forget it. Two tokens are equal when type and
    value are.
    """

    token_type: int
    value: bytes = field(repr=False)
    is_reusable: bool = field(default=False, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.token_type, int):
            raise TypeError(f"a Token Type is a {type(self.token_type).__name__}, expected an int")
        if not isinstance(self.value, bytes):
            raise TypeError(f"a token's value is a {type(self.value).__name__}, expected bytes")
        if not 0 <= self.token_type <= MAX_VI64:
            raise ValueError(f"Token Type is {self.token_type}, expected 0 to 2**64-1")


def checked_tokens(tokens: Iterable[AuthToken] | AuthToken) -> tuple[AuthToken, ...]:
    """Return an application's tokens. Raises: TypeError for a single one, or what is none."""
    if isinstance(tokens, AuthToken):
        raise TypeError("tokens are a single AuthToken, expected a list of them")
    found = tuple(tokens)
    for one in found:
        if not isinstance(one, AuthToken):
            raise TypeError(f"there is a {type(one).__name__} in tokens, expected AuthToken")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAccess:
    """A peer's SETUP. `path` and `authority` are a client's; what it left out is empty."""

    path: str
    authority: str
    tokens: tuple[AuthToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAccess:
    """A request of the peer's, or an update of one.

    `kind` says what is asked for, in an update too. `target`: the Full Track Name, for the three
    kinds about namespaces the namespace or prefix; in an update that moves a prefix, the new one.
    `tokens`: those of the message; in an update without any, those that the request has had.
    `session_tokens`: those of the peer's SETUP.
    """

    kind: RequestKind
    target: FullTrackName | TrackNamespace
    tokens: tuple[AuthToken, ...]
    session_tokens: tuple[AuthToken, ...]
    is_update: bool = False

    @property
    def all_tokens(self) -> tuple[AuthToken, ...]:
        """The tokens of the message, then those of the session."""
        return self.tokens + self.session_tokens


class Denial(Enum):
    """Why a policy refuses (MOQT-22 8.9, 12.3)."""

    UNAUTHORIZED = "UNAUTHORIZED"
    """The tokens do not give the right, or there is none."""
    MALFORMED_AUTH_TOKEN = "MALFORMED_AUTH_TOKEN"
    """A token is not valid, although it is well formed as MOQT sees it."""
    EXPIRED_AUTH_TOKEN = "EXPIRED_AUTH_TOKEN"
    """A token would have given the right earlier."""

    @property
    def request_code(self) -> RequestErrorCode:
        """The code of the REQUEST_ERROR."""
        return RequestErrorCode[self.value]

    @property
    def session_code(self) -> SessionErrorCode:
        """The code that a session is closed with."""
        return SessionErrorCode[self.value]


@dataclass(frozen=True, slots=True)
class Allowed:
    """The answer yes. `lifetime_ms`: for so long, counted from the request's arrival; None: no end.

    A request that lasts (all but FETCH and TRACK_STATUS) is told its lifetime by EXPIRES, and ends
    when it is over unless an update has renewed it: what an update is answered replaces what was
    before. For a session the lifetime means nothing.
    """

    lifetime_ms: int | None = None

    def __post_init__(self) -> None:
        if self.lifetime_ms is not None and not 0 < self.lifetime_ms <= MAX_VI64:
            raise ValueError(f"lifetime_ms is {self.lifetime_ms}, expected 1 or more")


@dataclass(frozen=True, slots=True)
class Denied:
    """The answer no. `reason` goes to the peer (256 characters at most): put no token into it."""

    denial: Denial = Denial.UNAUTHORIZED
    reason: str = ""


Decision = Allowed | Denied


class TokenPolicy(Protocol):
    """Judges what peers ask for. Called in the session's inputs: it must not block or wait.

    What it fails to judge, because it raises or returns something else, is refused with
    INTERNAL_ERROR, and logged once a session. One policy may serve all sessions of an endpoint. It
    is asked once for each SETUP, each request and each update that brings a token or moves a
    prefix; what is refused is never seen by the application.
    """

    def judge_session(self, access: SessionAccess) -> Decision:
        """Judge a peer's SETUP; Denied closes the session."""
        ...

    def judge_request(self, access: RequestAccess) -> Decision:
        """Judge a request; Denied answers it with REQUEST_ERROR and leaves the session."""
        ...


class KnownTokens:
    """A policy for shared secrets: who shows one of `tokens`, in SETUP or in the request, may.

    With `is_for_session` SETUP must show one already; then requests need none of their own.
    Raises: TypeError for what is no list of AuthToken.
    """

    def __init__(self, tokens: Iterable[AuthToken], *, is_for_session: bool = False) -> None:
        self._tokens = checked_tokens(tokens)
        self._is_for_session = is_for_session

    def judge_session(self, access: SessionAccess) -> Decision:
        """Allow all, or who shows a token."""
        return self._judge(access.tokens) if self._is_for_session else Allowed()

    def judge_request(self, access: RequestAccess) -> Decision:
        """Allow who shows a token."""
        return self._judge(access.all_tokens)

    def _judge(self, shown: tuple[AuthToken, ...]) -> Decision:
        for token in shown:
            for known in self._tokens:
                if token.token_type == known.token_type and compare_digest(
                    token.value, known.value
                ):
                    return Allowed()
        return Denied(Denial.UNAUTHORIZED, "a token of this server is needed" if not shown else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whom an endpoint answers. None: everyone.

    `paths` and `authorities` are a server's: what PATH and AUTHORITY of SETUP may be. A collection
    is compared with PATH without its query, and with AUTHORITY in lower case; a callable gets them
    whole, and must not block or raise. An absent one is read as empty (MOQT-22 9.1.1, 9.1.2).

    Raises: ValueError for a bare string, which would let its own parts in.
    """

    paths: Collection[str] | Callable[[str], bool] | None = None
    authorities: Collection[str] | Callable[[str], bool] | None = None
    token_policy: TokenPolicy | None = None

    def __post_init__(self) -> None:
        for name in ("paths", "authorities"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is a str, expected a collection of them or a callable")

    def serves_path(self, path: str) -> bool:
        """Return whether this server answers for a PATH."""
        if self.paths is None:
            return True
        if callable(self.paths):
            return self.paths(path)
        return path.partition("?")[0] in self.paths

    def serves_authority(self, authority: str) -> bool:
        """Return whether this server answers for an AUTHORITY."""
        if self.authorities is None:
            return True
        if callable(self.authorities):
            return self.authorities(authority)
        return authority.lower() in {one.lower() for one in self.authorities}
