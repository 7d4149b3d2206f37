"""The peer's tokens: aliases, the cache's account, and what a policy is shown of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.session.access.authorization import (
    Admission,
    Allowed,
    AuthToken,
    Decision,
    Denial,
    Denied,
    RequestAccess,
    SessionAccess,
)
from moqt.session.access.token_cache import TokenCache
from moqt.session.config import Role, SessionConfig
from moqt.session.events import NamespaceOffered
from moqt.session.publish.directory import TrackDirectory
from moqt.testing import ScriptedPeer
from moqt.wire.messages import PublishNamespace, RequestError, RequestOk, RequestUpdate, Setup
from moqt.wire.options import SetupOptions
from moqt.wire.params import Parameters
from moqt.wire.rules import RequestKind
from moqt.wire.tokens import AuthorizationToken as Wire
from tests.session.receiving import NAMESPACE, one

SECRET = b"very secret"


@dataclass
class Recorder:
    """A policy that keeps what it was asked, and answers what the test says."""

    answer: Decision = field(default_factory=Allowed)
    session_answer: Decision = field(default_factory=Allowed)
    requests: list[RequestAccess] = field(default_factory=list)
    sessions: list[SessionAccess] = field(default_factory=list)

    def judge_session(self, access: SessionAccess) -> Decision:
        self.sessions.append(access)
        return self.session_answer

    def judge_request(self, access: RequestAccess) -> Decision:
        self.requests.append(access)
        return self.answer

    @property
    def shown(self) -> list[tuple[int, bytes]]:
        """Type and value of the tokens of the last request."""
        return [(token.token_type, token.value) for token in self.requests[-1].tokens]


class Asking:
    """A server under test, and a client that asks it with tokens."""

    def __init__(
        self, limit: int = 4096, *, setup: tuple[Wire, ...] = (), policy: Recorder | None = None
    ) -> None:
        self.policy = policy or Recorder()
        self.peer = ScriptedPeer(
            Role.SERVER,
            config=SessionConfig(max_auth_token_cache_octets=limit),
            directory=TrackDirectory(),
            options=SetupOptions(authorization_tokens=setup),
            admission=Admission(token_policy=self.policy),
        )

    def ask(self, *tokens: Wire) -> int:
        """Send a request with these tokens; return its stream."""
        stream = self.peer.open_bidi()
        message = PublishNamespace(
            self.peer.next_request_id(), NAMESPACE, Parameters(authorization_tokens=tokens)
        )
        self.peer.send(stream, message)
        return stream

    def update(self, stream: int, *tokens: Wire) -> None:
        request_id = self.peer.next_request_id()
        self.peer.send(stream, RequestUpdate(request_id, Parameters(authorization_tokens=tokens)))

    def refusal(self, stream: int) -> RequestErrorCode | None:
        """Return the code of the REQUEST_ERROR that came, None when the request was let in."""
        for message in self.peer.messages(stream):
            if isinstance(message, RequestError):
                return message.code
        return None

    @property
    def closed(self) -> SessionErrorCode | None:
        closed = self.peer.transport.closed
        return closed[0] if closed is not None else None


# Aliases


def test_an_alias_stands_for_its_token_until_it_is_deleted() -> None:
    """8.9#2: on other streams and in updates, in whatever order type and value are given."""
    asking = Asking()
    stream = asking.ask(Wire.register(7, 3, SECRET))
    assert asking.policy.shown == [(3, SECRET)]
    asking.ask(Wire.use_alias(7))
    assert asking.policy.shown == [(3, SECRET)]
    asking.peer.session.accept(one(asking.peer.take(NamespaceOffered)[:1]).request_id, now=0.0)
    asking.update(stream, Wire.use_alias(7))
    assert asking.policy.shown == [(3, SECRET)]
    asking.ask(Wire.delete(7), Wire.use_value(0, b"other"))
    assert asking.policy.shown == [(0, b"other")]
    assert asking.refusal(asking.ask(Wire.use_alias(7))) is (
        RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
    )
    asking.ask(Wire.register(7, 4, b"next"))
    assert asking.policy.shown == [(4, b"next")]


def test_register_of_an_alias_in_use_closes() -> None:
    """8.9#3: even with the same token."""
    asking = Asking()
    asking.ask(Wire.register(7, 3, SECRET))
    assert asking.closed is None
    asking.ask(Wire.register(7, 3, SECRET))
    assert asking.closed is SessionErrorCode.DUPLICATE_AUTH_TOKEN_ALIAS


def test_register_of_an_alias_in_use_closes_in_an_update_too() -> None:
    """8.9#3."""
    asking = Asking()
    asking.update(asking.ask(Wire.register(7, 3, SECRET)), Wire.register(7, 3, SECRET))
    assert asking.closed is SessionErrorCode.DUPLICATE_AUTH_TOKEN_ALIAS


@pytest.mark.parametrize("token", [Wire.use_alias(9), Wire.delete(9)])
def test_an_unknown_alias_refuses_the_message_alone(token: Wire) -> None:
    """8.9#4: the policy is not asked, the other tokens of the message count."""
    asking = Asking()
    stream = asking.ask(token, Wire.register(7, 3, SECRET))
    assert asking.refusal(stream) is RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
    assert asking.closed is None
    assert asking.policy.requests == []
    asking.ask(Wire.use_alias(7))
    assert asking.policy.shown == [(3, SECRET)]


def test_an_unknown_alias_in_an_update_ends_its_request_alone() -> None:
    """8.9#4."""
    asking = Asking()
    stream = asking.ask()
    asking.peer.session.accept(0, now=0.0)
    asking.update(stream, Wire.use_alias(9))
    assert asking.refusal(stream) is RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS
    assert asking.closed is None


@pytest.mark.parametrize("denial", Denial)
def test_an_alias_is_registered_although_the_message_is_refused(denial: Denial) -> None:
    """8.9#5, 8.9#6."""
    asking = Asking(policy=Recorder(Denied(denial, "no")))
    stream = asking.ask(Wire.register(7, 3, SECRET))
    answer = one(asking.peer.messages(stream))
    assert isinstance(answer, RequestError)
    assert answer.code.name == denial.name
    assert answer.reason == "no"
    assert asking.peer.take(NamespaceOffered) == []
    asking.policy.answer = Allowed()
    asking.ask(Wire.use_alias(7))
    assert asking.policy.shown == [(3, SECRET)]
    assert len(asking.peer.take(NamespaceOffered)) == 1


def test_an_expired_alias_stays_until_it_is_deleted() -> None:
    """8.9#7: its size counts, its number is taken."""

    class Clocked(Recorder):
        now = 0.0

        def judge_request(self, access: RequestAccess) -> Decision:
            super().judge_request(access)
            return Allowed() if self.now < 10 else Denied(Denial.EXPIRED_AUTH_TOKEN)

    policy = Clocked()
    asking = Asking(16 + len(SECRET), policy=policy)
    assert asking.refusal(asking.ask(Wire.register(7, 3, SECRET))) is None
    policy.now = 11.0
    for _ in range(2):
        stream = asking.ask(Wire.use_alias(7))
        assert asking.refusal(stream) is RequestErrorCode.EXPIRED_AUTH_TOKEN
    asking.ask(Wire.delete(7), Wire.register(8, 3, SECRET))
    assert asking.closed is None
    asking.ask(Wire.register(7, 3, b""))
    assert asking.closed is SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW


# The account


@pytest.mark.parametrize(("octets", "does_fit"), [(84, True), (85, False)])
def test_an_entry_counts_sixteen_octets_and_its_value(octets: int, does_fit: bool) -> None:
    """9.1.3#1, 8.9#8."""
    asking = Asking(100)
    asking.ask(Wire.register(7, 3, bytes(octets)))
    assert asking.closed is (None if does_fit else SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW)


def test_entries_count_together_and_deletes_give_back() -> None:
    """9.1.3#1, 8.9#2."""
    cache = TokenCache(100)
    cache.resolve([Wire.register(1, 0, bytes(34)), Wire.register(2, 0, bytes(34))])
    assert cache.octets == 100
    with pytest.raises(RemoteProtocolError) as caught:
        cache.resolve([Wire.register(3, 0, b"")])
    assert caught.value.code is SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW
    cache.resolve([Wire.delete(1)])
    assert cache.octets == 50
    cache.resolve([Wire.register(1, 0, bytes(34))])
    assert cache.octets == 100


def test_what_is_announced_is_what_counts() -> None:
    """9.1.3#1: MAX_AUTH_TOKEN_CACHE_SIZE in SETUP is the configured limit; 0 is not sent."""
    for limit in (0, 100):
        peer = ScriptedPeer(setup=False, config=SessionConfig(max_auth_token_cache_octets=limit))
        peer.session.start(0.0)
        setup = one(peer.messages(2))
        assert isinstance(setup, Setup)
        assert setup.options.max_auth_token_cache_size == limit


# SETUP


def test_register_in_setup_counts_if_it_fits_and_is_a_value_if_not() -> None:
    """9.1.4#1: never an overflow; the alias of what did not fit is unknown."""
    asking = Asking(100, setup=(Wire.register(1, 3, bytes(84)), Wire.register(2, 4, SECRET)))
    assert asking.closed is None
    access = one(asking.policy.sessions)
    assert [token.token_type for token in access.tokens] == [3, 4]
    asking.ask(Wire.use_alias(1))
    assert asking.policy.shown == [(3, bytes(84))]
    assert asking.policy.requests[-1].session_tokens == access.tokens
    stream = asking.ask(Wire.use_alias(2))
    assert asking.refusal(stream) is RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS


def test_register_in_setup_without_a_cache() -> None:
    """9.1.4#1."""
    asking = Asking(0, setup=(Wire.register(1, 3, SECRET),))
    assert asking.closed is None
    assert one(asking.policy.sessions).tokens == (AuthToken(3, SECRET),)


def test_an_alias_twice_in_setup_closes() -> None:
    """8.9#3."""
    token = Wire.register(1, 3, SECRET)
    assert Asking(setup=(token, token)).closed is SessionErrorCode.DUPLICATE_AUTH_TOKEN_ALIAS


@pytest.mark.parametrize("token", [Wire.use_alias(1), Wire.delete(1)])
def test_a_server_that_uses_an_alias_in_setup_is_left(token: Wire) -> None:
    """The draft gives a client no rule: no message can be refused, so the session is over."""
    peer = ScriptedPeer(options=SetupOptions(authorization_tokens=(token,)))
    assert peer.transport.closed is not None
    assert peer.transport.closed[0] is SessionErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS


# Secrets


def test_no_value_shows() -> None:
    """In no repr, reason or event, whether the token is let in, refused or one too many."""
    token = AuthToken(3, SECRET)
    access = RequestAccess(
        kind=RequestKind.FETCH,
        target=NAMESPACE,
        tokens=(token,),
        session_tokens=(token,),
    )
    asking = Asking(40)
    asking.ask(Wire.register(7, 3, SECRET))
    asking.policy.answer = Denied()
    asking.ask(Wire.use_alias(7), Wire.use_value(3, SECRET + b"2"))
    asking.ask(Wire.register(8, 3, SECRET))
    assert asking.closed is SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW
    sent = b"".join(map(bytes, asking.peer.transport.sent.values()))
    said = repr((token, access, asking.peer.events, asking.peer.transport.closed, sent))
    assert "secret" not in said


def test_accepted_update_is_answered_once() -> None:
    asking = Asking()
    stream = asking.ask()
    asking.peer.session.accept(0, now=0.0)
    asking.update(stream, Wire.use_value(1, SECRET))
    assert [type(message) for message in asking.peer.messages(stream)] == [RequestOk, RequestOk]
