"""Our tokens on their way to the peer: which are registered there, and when an alias may be used.

MOQT-22 8.9: an alias serves other streams only once the message that registered it is answered,
and is deleted only when no message that uses it is unanswered. Streams overtake each other, so
that what a DELETE frees counts as taken until its message is answered, and no number is used twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Final

from moqt.codes import RequestErrorCode
from moqt.errors import LocalProtocolError
from moqt.session.access.authorization import checked_tokens
from moqt.session.access.token_cache import cache_octets
from moqt.wire.messages import RequestError
from moqt.wire.tokens import AuthorizationToken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.session.access.authorization import AuthToken
    from moqt.session.context import SessionContext
    from moqt.wire.messages import Message

__all__ = ["MAX_ALIASES", "MAX_DELETES", "TokenPlan", "TokenSender"]

MAX_ALIASES: Final = 1024
"""Tokens that we have registered with one peer at once, however much it offers to remember."""

MAX_DELETES: Final = 16
"""DELETEs that one message takes along; further ones wait for the next."""


class _State(Enum):
    REGISTERING = "sent, not answered"
    READY = "known to the peer"
    LOST = "nobody knows whether the peer has it; it counts as taken and is never used"


@dataclass(slots=True, eq=False)
class _Alias:
    number: int
    token: AuthToken
    stream_id: int | None = None
    """Where it was registered; None: in SETUP."""
    state: _State = _State.REGISTERING
    users: int = 0
    """Messages with it that are unanswered."""
    is_dropped: bool = False

    @property
    def octets(self) -> int:
        return cache_octets(self.token.value)


@dataclass(slots=True, eq=False)
class TokenPlan:
    """What one message says of tokens; `TokenSender.sent` makes it count."""

    wire: tuple[AuthorizationToken, ...]
    registered: list[_Alias]
    used: list[_Alias]
    deleted: list[_Alias]


class TokenSender:
    """The aliases that we gave tokens at one peer.

    `session_tokens` go into SETUP, `request_tokens` into every request that is given none.
    """

    def __init__(
        self,
        context: SessionContext,
        session_tokens: Sequence[AuthToken] = (),
        request_tokens: Sequence[AuthToken] = (),
    ) -> None:
        _check_distinct(session_tokens)
        _check_distinct(request_tokens)
        self.request_tokens = tuple(request_tokens)
        self._session_tokens = tuple(session_tokens)
        self._context = context
        self._next_number = 0
        self._octets = 0
        """What the peer may hold of ours, by its count."""
        self._aliases: dict[AuthToken, _Alias] = {}
        """Those that may be used, now or soon."""
        self._taken = 0
        """Aliases that the peer may hold."""
        self._deletable: deque[_Alias] = deque()
        self._unanswered: dict[int, TokenPlan] = {}
        """By Request ID of the message."""

    # SETUP

    def setup_tokens(self) -> tuple[AuthorizationToken, ...]:
        """Return what SETUP carries; called once."""
        tokens = []
        for token in self._session_tokens:
            if token.is_reusable and len(self._aliases) < MAX_ALIASES:
                alias = self._new_alias(token)
                self._aliases[token] = alias
                tokens.append(_register(alias))
            else:
                tokens.append(AuthorizationToken.use_value(token.token_type, token.value))
        return tuple(tokens)

    def peer_is_known(self) -> None:
        """The peer's SETUP is read: aliases of ours that did not fit are dropped (9.1.4).

        From the first one that did not fit, none is used: what a peer does with a smaller one
        behind it is not said.
        """
        room = self._limit
        does_fit = True
        for alias in list(self._aliases.values()):
            does_fit = does_fit and alias.octets <= room
            if alias.octets <= room:
                room -= alias.octets
                self._octets += alias.octets
                self._taken += 1
            if does_fit:
                self._settle(alias, _State.READY)
            else:
                self._lose(alias)

    @property
    def _limit(self) -> int:
        options = self._context.peer_options
        return options.max_auth_token_cache_size if options is not None else 0

    def _new_alias(self, token: AuthToken) -> _Alias:
        self._next_number += 1
        return _Alias(self._next_number, token)

    # Messages

    def plan(self, tokens: Sequence[AuthToken], stream_id: int | None) -> TokenPlan:
        """Say how a message on `stream_id` (None: a new stream) names these tokens.

        Nothing counts until `sent`. Raises: LocalProtocolError for a token given twice.
        """
        _check_distinct(tokens)
        deleted = list(islice(self._deletable, MAX_DELETES))
        plan = TokenPlan((), [], [], deleted)
        wire = [AuthorizationToken.delete(alias.number) for alias in deleted]
        room = self._limit - self._octets
        for token in tokens:
            alias = self._aliases.get(token)
            if alias is not None and (
                alias.state is _State.READY
                or (stream_id is not None and alias.stream_id == stream_id)
            ):
                wire.append(AuthorizationToken.use_alias(alias.number))
                plan.used.append(alias)
            elif alias is None and token.is_reusable and self._has_room(token, room, plan):
                alias = self._new_alias(token)
                wire.append(_register(alias))
                plan.registered.append(alias)
                room -= alias.octets
            else:
                wire.append(AuthorizationToken.use_value(token.token_type, token.value))
        plan.wire = tuple(wire)
        return plan

    def _has_room(self, token: AuthToken, room: int, plan: TokenPlan) -> bool:
        taken = self._taken + len(plan.registered)
        return cache_octets(token.value) <= room and taken < MAX_ALIASES

    def sent(self, plan: TokenPlan, request_id: int, stream_id: int) -> None:
        """The message `request_id` with this plan was sent."""
        if not (plan.registered or plan.used or plan.deleted):
            return
        self._unanswered[request_id] = plan
        for alias in plan.registered:
            alias.stream_id = stream_id
            alias.users = 1
            self._aliases[alias.token] = alias
            self._octets += alias.octets
            self._taken += 1
        for alias in plan.used:
            alias.users += 1
        for alias in plan.deleted:
            self._deletable.remove(alias)

    def answered(self, request_id: int, answer: Message) -> None:
        """The message was answered, with an OK or an error: a REGISTER counts in both cases."""
        plan = self._unanswered.pop(request_id, None)
        if plan is None:
            return
        for alias in plan.deleted:
            self._octets -= alias.octets
            self._taken -= 1
        for alias in plan.registered:
            alias.users -= 1
            self._settle(alias, _State.READY)
        is_unknown = (
            isinstance(answer, RequestError)
            and answer.code is RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
        )
        for alias in plan.used:
            alias.users -= 1
            if is_unknown:
                self._lose(alias)  # the peer forgot it: send the value from now on
            else:
                self._settle(alias, alias.state)

    def lost(self, request_id: int) -> None:
        """The stream of the message is over without an answer: nothing is sure of its tokens."""
        plan = self._unanswered.pop(request_id, None)
        if plan is None:
            return
        for alias in (*plan.registered, *plan.deleted):
            self._lose(alias)
        for alias in plan.used:
            alias.users -= 1
            self._settle(alias, alias.state)

    # The application

    def drop(self, token: AuthToken) -> None:
        """The token is needed no more: the next message that can takes its DELETE along."""
        self.request_tokens = tuple(one for one in self.request_tokens if one != token)
        alias = self._aliases.pop(token, None)
        if alias is not None:
            alias.is_dropped = True
            self._settle(alias, alias.state)

    def _settle(self, alias: _Alias, state: _State) -> None:
        if alias.state is _State.LOST:
            return
        alias.state = state
        if alias.is_dropped and state is _State.READY and not alias.users:
            self._deletable.append(alias)

    def _lose(self, alias: _Alias) -> None:
        alias.state = _State.LOST
        if self._aliases.get(alias.token) is alias:
            del self._aliases[alias.token]


def _register(alias: _Alias) -> AuthorizationToken:
    token = alias.token
    return AuthorizationToken.register(alias.number, token.token_type, token.value)


def _check_distinct(tokens: Sequence[AuthToken]) -> None:
    checked_tokens(tokens)
    if len(set(tokens)) != len(tokens):
        raise LocalProtocolError("the same authorization token is given twice (MOQT-22 8.9)")
