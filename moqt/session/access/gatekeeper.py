"""Lets the peer's SETUP and requests in or not: path, authority, tokens, policy, and for how long.

Tokens are read from every message, whatever becomes of it (MOQT-22 8.9). Without a policy all who
come with known aliases are let in.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.session.access.authorization import (
    Admission,
    Allowed,
    Denied,
    RequestAccess,
    SessionAccess,
)
from moqt.session.access.token_cache import TokenCache
from moqt.session.config import Role
from moqt.session.request.endings import cut_reason
from moqt.session.request.request_stream import ServedHandler
from moqt.session.request.states import Phase
from moqt.wire.messages import RequestError, RequestOk, SubscribeOk
from moqt.wire.rules import RequestKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.session.access.authorization import AuthToken, Decision
    from moqt.session.context import SessionContext
    from moqt.session.request.request_stream import RequestStream
    from moqt.session.timers import Timer
    from moqt.types import FullTrackName, TrackNamespace
    from moqt.wire.messages import Message
    from moqt.wire.options import SetupOptions
    from moqt.wire.params import Parameters

__all__ = ["Gatekeeper"]

_log = logging.getLogger(__name__)

_LASTING: Final = frozenset(RequestKind) - {
    RequestKind.FETCH,
    RequestKind.TRACK_STATUS,
    RequestKind.REQUEST_UPDATE,
}
"""What a lifetime applies to: the OK of the others has no EXPIRES (MOQT-22 9.20.16)."""

_POLICY_FAILED: Final = "the token policy failed"

AccessT = TypeVar("AccessT", SessionAccess, RequestAccess)


@dataclass(slots=True)
class _Grant:
    """What was allowed to one request of the peer's."""

    access: RequestAccess
    timer: Timer | None = None
    expires_ms: int | None = None
    """EXPIRES of the next OK; None: said already, or no end."""


class Gatekeeper:
    """Judges everything of one peer."""

    def __init__(self, context: SessionContext, admission: Admission | None = None) -> None:
        self._context = context
        self._admission = admission or Admission()
        self._policy = self._admission.token_policy
        self._cache = TokenCache(context.config.max_auth_token_cache_octets)
        self._session_tokens: tuple[AuthToken, ...] = ()
        self._grants: dict[int, _Grant] = {}
        """By stream ID; only with a policy, and as long as the request's stream is open."""
        self._has_policy_failed = False

    def admit_session(self, options: SetupOptions) -> None:
        """Judge the peer's SETUP; RemoteProtocolError with the code to close with (9.1)."""
        admission = self._admission
        path, authority = options.path or "", options.authority or ""
        if self._context.role is Role.SERVER:
            if not admission.serves_path(path):
                raise RemoteProtocolError(
                    SessionErrorCode.INVALID_PATH, "this server does not serve the path"
                )
            if not admission.serves_authority(authority):
                raise RemoteProtocolError(
                    SessionErrorCode.INVALID_AUTHORITY, "this server is not that authority"
                )
        resolved = self._cache.resolve(options.authorization_tokens, in_setup=True)
        if resolved.unknown_alias is not None:
            raise RemoteProtocolError(
                SessionErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS, "SETUP uses an alias of nothing"
            )
        if self._policy is None:
            return
        self._session_tokens = resolved.tokens
        access = SessionAccess(path=path, authority=authority, tokens=resolved.tokens)
        decision = self._ask("judge_session", self._policy.judge_session, access)
        if decision is None:
            raise RemoteProtocolError(SessionErrorCode.INTERNAL_ERROR, _POLICY_FAILED)
        if isinstance(decision, Denied):
            raise RemoteProtocolError(decision.denial.session_code, cut_reason(decision.reason))

    def read_tokens(self, parameters: Parameters) -> tuple[AuthToken, ...] | RequestError:
        """Take the tokens of a message, which registers and deletes aliases.

        Returns what refuses a message with an unknown alias. Raises: see `TokenCache.resolve`.
        """
        if not parameters.authorization_tokens:
            return ()
        resolved = self._cache.resolve(parameters.authorization_tokens)
        if resolved.unknown_alias is not None:
            return RequestError(
                code=RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS,
                reason=f"token alias {resolved.unknown_alias} is not registered",
            )
        return resolved.tokens

    def admit_request(
        self,
        stream: RequestStream,
        target: FullTrackName | TrackNamespace,
        tokens: tuple[AuthToken, ...],
        now: float,
    ) -> RequestError | None:
        """Judge a request; return what refuses it, or None."""
        if self._policy is None:
            return None
        assert stream.kind is not None  # set with the first message
        access = RequestAccess(
            kind=stream.kind, target=target, tokens=tokens, session_tokens=self._session_tokens
        )
        return self._judge(stream, access, now)

    def admit_update(
        self,
        stream: RequestStream,
        parameters: Parameters,
        tokens: tuple[AuthToken, ...],
        now: float,
    ) -> RequestError | None:
        """Judge an update if it brings a token or moves a prefix; return what refuses it, or None.

        What is allowed replaces what was, the lifetime above all.
        """
        grant = self._grants.get(stream.stream_id)
        prefix = parameters.namespace_prefix
        if grant is None or (not tokens and prefix is None):
            return None
        access = replace(
            grant.access,
            target=grant.access.target if prefix is None else prefix,
            tokens=tokens or grant.access.tokens,
            is_update=True,
        )
        return self._judge(stream, access, now)

    def _judge(
        self, stream: RequestStream, access: RequestAccess, now: float
    ) -> RequestError | None:
        assert self._policy is not None
        decision = self._ask("judge_request", self._policy.judge_request, access)
        if decision is None:
            return RequestError(code=RequestErrorCode.INTERNAL_ERROR, reason=_POLICY_FAILED)
        if isinstance(decision, Denied):
            return RequestError(
                code=decision.denial.request_code, reason=cut_reason(decision.reason)
            )
        self.forget(stream)
        self._grants[stream.stream_id] = self._grant(stream, access, decision, now)
        return None

    def _ask(
        self, verb: str, judge: Callable[[AccessT], Decision], access: AccessT
    ) -> Decision | None:
        """Ask the policy; None: it raised, or its answer is none, which is logged once a session.

        The policy is the application's code: its fault costs what was asked for and no more.
        """
        try:
            decision: object = judge(access)
            if isinstance(decision, Allowed | Denied):
                return decision
            kind = type(decision).__name__
            raise TypeError(f"{verb} returned a {kind}, expected Allowed or Denied")
        except Exception:
            if not self._has_policy_failed:
                _log.exception("the token policy failed; what it was asked about is refused")
            self._has_policy_failed = True
            return None

    def _grant(
        self, stream: RequestStream, access: RequestAccess, decision: Allowed, now: float
    ) -> _Grant:
        lifetime_ms = decision.lifetime_ms
        if lifetime_ms is None or access.kind not in _LASTING:
            return _Grant(access)
        timer = self._context.timers.at(now + lifetime_ms / 1000, partial(self._expire, stream))
        return _Grant(access, timer, lifetime_ms)

    def with_expiry(self, stream: RequestStream, answer: Message) -> Message:
        """Return an answer to the peer as it is sent: with EXPIRES where a lifetime was given."""
        grant = self._grants.get(stream.stream_id)
        if (
            grant is None
            or grant.expires_ms is None
            or not isinstance(answer, RequestOk | SubscribeOk)
        ):
            return answer
        parameters = replace(answer.parameters, expires_ms=grant.expires_ms)
        grant.expires_ms = None
        return replace(answer, parameters=parameters)

    def _expire(self, stream: RequestStream, now: float) -> None:
        handler = stream.handler
        if stream.phase is not Phase.ENDED and isinstance(handler, ServedHandler):
            handler.expire(stream, now)

    def forget(self, stream: RequestStream) -> None:
        """The request is over, or judged anew."""
        grant = self._grants.pop(stream.stream_id, None)
        if grant is not None and grant.timer is not None:
            grant.timer.cancel()

    def close(self) -> None:
        """The session is over."""
        self._grants.clear()
