"""Our tokens on the wire: when they are registered, used by alias and deleted."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.errors import LocalProtocolError
from moqt.session.access.authorization import Admission, AuthToken, KnownTokens
from moqt.session.access.token_sender import MAX_ALIASES, MAX_DELETES
from moqt.session.config import Role, SessionConfig
from moqt.session.events import (
    NamespaceOffered,
    NamespaceWithdrawn,
    RequestAccepted,
    RequestRejected,
    SessionEnded,
    UpdateAccepted,
    UpdateRejected,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer, SessionPair
from moqt.wire.messages import (
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    Setup,
    SubscribeOk,
)
from moqt.wire.options import SetupOptions
from moqt.wire.tokens import AliasType, AuthorizationToken
from tests.session.receiving import NAME, NAMESPACE, one

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKEN = AuthToken(5, b"a secret", is_reusable=True)
OTHER = AuthToken(5, b"another secret", is_reusable=True)
ONCE = AuthToken(5, b"once")
OCTETS = 16 + len(TOKEN.value)

REGISTER, VALUE = AliasType.REGISTER, AliasType.USE_VALUE
ALIAS, DELETE = AliasType.USE_ALIAS, AliasType.DELETE


class Sender:
    """A client under test, and a server with a cache that reads what it sends."""

    def __init__(self, limit: int = 4096, session_tokens: Sequence[AuthToken] = ()) -> None:
        self.peer = ScriptedPeer(setup=False, session_tokens=session_tokens)
        self.peer.session.start(0.0)
        self.limit = limit
        self._streams: dict[int, int] = {}

    def setup(self) -> list[AliasType]:
        """Send the server's SETUP; return how the tokens of ours were sent."""
        self.peer.send_setup(
            SetupOptions(max_auth_token_cache_size=self.limit, max_request_updates=0)
        )
        message = one(self.peer.messages(2))
        assert isinstance(message, Setup)
        return [token.alias_type for token in message.options.authorization_tokens]

    def ask(self, *tokens: AuthToken) -> int:
        """Send a request with tokens; return its Request ID."""
        request_id = self.peer.session.publish_namespace(
            NAMESPACE, now=self.peer.now, tokens=tokens
        )
        self._streams[request_id] = max(i for i in self.peer.transport.sent if i % 4 == 0)
        return request_id

    def sent(self, request_id: int) -> list[AliasType]:
        """Return how the tokens of the message that was sent last for a request were sent."""
        return [token.alias_type for token in self.tokens(request_id)]

    def tokens(self, request_id: int) -> tuple[AuthorizationToken, ...]:
        message = self.peer.messages(self._streams.setdefault(request_id, 0))[-1]
        assert isinstance(message, PublishNamespace | RequestUpdate)
        return message.parameters.authorization_tokens

    def accept(self, request_id: int) -> None:
        self.peer.send(self._streams[request_id], RequestOk())

    def refuse(
        self, request_id: int, code: RequestErrorCode = RequestErrorCode.UNAUTHORIZED
    ) -> None:
        self.peer.send(self._streams[request_id], RequestError(code=code), fin=True)


@pytest.fixture
def sender() -> Sender:
    made = Sender()
    made.setup()
    return made


def registered(sender: Sender, token: AuthToken = TOKEN) -> int:
    """Have `token` registered; return the request that did it."""
    request_id = sender.ask(token)
    assert sender.sent(request_id) == [REGISTER]
    sender.accept(request_id)
    return request_id


# Registering


def test_only_a_token_for_reuse_is_registered(sender: Sender) -> None:
    """8.9#11."""
    assert sender.sent(sender.ask(ONCE, TOKEN)) == [VALUE, REGISTER]


def test_an_alias_is_used_elsewhere_once_its_register_is_answered(sender: Sender) -> None:
    """8.9#9: until then other streams carry the value; a refusal is an answer too."""
    first = sender.ask(TOKEN)
    assert sender.sent(first) == [REGISTER]
    assert sender.sent(sender.ask(TOKEN)) == [VALUE]
    sender.refuse(first)
    assert sender.sent(sender.ask(TOKEN)) == [ALIAS]


def test_an_alias_is_used_on_its_own_stream_at_once(sender: Sender) -> None:
    """8.9#9: an update of the request that registered it need not wait."""
    session = sender.peer.session
    request_id = session.subscribe(NAME, now=0.0)
    sender.peer.send(2 * request_id, SubscribeOk(1))
    session.refresh(request_id, [TOKEN])
    assert sender.sent(request_id) == [REGISTER]
    session.update(request_id, priority=3, tokens=[TOKEN])
    assert sender.sent(request_id) == [ALIAS]
    assert sender.sent(sender.ask(TOKEN)) == [VALUE]
    sender.peer.send(2 * request_id, RequestOk())
    assert sender.sent(sender.ask(TOKEN)) == [ALIAS]


def test_without_a_cache_at_the_peer_only_values_are_sent() -> None:
    sender = Sender(0)
    sender.setup()
    assert sender.sent(sender.ask(TOKEN)) == [VALUE]


def test_before_the_peers_setup_only_values_are_sent() -> None:
    """Its limit has its default then, which is 0 (MOQT-22 6.4)."""
    sender = Sender()
    assert sender.sent(sender.ask(TOKEN)) == [VALUE]


@pytest.mark.parametrize(("limit", "how"), [(OCTETS, REGISTER), (OCTETS - 1, VALUE)])
def test_what_does_not_fit_the_peers_cache_is_sent_as_value(limit: int, how: AliasType) -> None:
    """9.1.3#1."""
    sender = Sender(limit)
    sender.setup()
    assert sender.sent(sender.ask(TOKEN)) == [how]


def test_a_register_without_answer_counts_and_is_never_used() -> None:
    """Nobody knows whether the peer read it before the stream was reset."""
    sender = Sender(OCTETS)
    sender.setup()
    request_id = sender.ask(TOKEN)
    sender.peer.session.cancel(request_id, now=0.0)
    assert sender.sent(sender.ask(TOKEN)) == [VALUE]
    sender.peer.session.drop_token(TOKEN)
    assert sender.sent(sender.ask()) == []


def test_a_token_whose_register_was_lost_is_registered_anew(sender: Sender) -> None:
    request_id = sender.ask(TOKEN)
    (lost,) = sender.tokens(request_id)
    sender.peer.session.cancel(request_id, now=0.0)
    (again,) = sender.tokens(sender.ask(TOKEN))
    assert (lost.alias_type, again.alias_type) == (REGISTER, REGISTER)
    assert lost.alias != again.alias


def test_a_message_that_was_cancelled_holds_no_alias(sender: Sender) -> None:
    """8.9#10: nobody answers it any more."""
    registered(sender)
    user = sender.ask(TOKEN)
    sender.peer.session.drop_token(TOKEN)
    assert sender.sent(sender.ask()) == []
    sender.peer.session.cancel(user, now=0.0)
    assert sender.sent(sender.ask()) == [DELETE]


def test_a_peer_that_forgot_an_alias_gets_the_value(sender: Sender) -> None:
    registered(sender)
    request_id = sender.ask(TOKEN)
    assert sender.sent(request_id) == [ALIAS]
    sender.refuse(request_id, RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS)
    assert sender.sent(sender.ask(TOKEN)) == [REGISTER]


def test_how_many_are_registered_is_bounded() -> None:
    sender = Sender(1 << 40)
    sender.setup()
    many = [AuthToken(1, b"%d" % count, is_reusable=True) for count in range(MAX_ALIASES + 1)]
    assert sender.sent(sender.ask(*many)) == [REGISTER] * MAX_ALIASES + [VALUE]


def test_a_token_twice_in_a_message_is_an_error(sender: Sender) -> None:
    with pytest.raises(LocalProtocolError, match="twice"):
        sender.ask(TOKEN, AuthToken(TOKEN.token_type, TOKEN.value))


def test_a_request_that_could_not_be_sent_registers_nothing(sender: Sender) -> None:
    with pytest.raises(LocalProtocolError, match="PUBLISH_NAMESPACE"):
        sender.ask(TOKEN, AuthToken(5, bytes(1 << 16)))
    assert sender.sent(sender.ask(TOKEN)) == [REGISTER]


# Deleting


def test_a_dropped_token_is_deleted_with_the_next_message(sender: Sender) -> None:
    """8.9#11."""
    alias = sender.tokens(sender.ask(TOKEN))[0].alias
    sender.accept(0)
    sender.peer.session.drop_token(TOKEN)
    (token,) = sender.tokens(sender.ask())
    assert (token.alias_type, token.alias) == (DELETE, alias)
    assert sender.sent(sender.ask()) == []


def test_no_delete_while_a_message_with_the_alias_is_unanswered(sender: Sender) -> None:
    """8.9#10: neither the one that registers it nor one that uses it."""
    first = sender.ask(TOKEN)
    sender.peer.session.drop_token(TOKEN)
    assert sender.sent(sender.ask()) == []
    sender.accept(first)
    assert sender.sent(sender.ask()) == [DELETE]

    registered(sender, OTHER)
    users = [sender.ask(OTHER), sender.ask(OTHER)]
    sender.peer.session.drop_token(OTHER)
    assert sender.sent(sender.ask()) == []
    sender.accept(users[0])
    assert sender.sent(sender.ask()) == []
    sender.refuse(users[1])
    assert sender.sent(sender.ask()) == [DELETE]


def test_no_delete_while_an_update_with_the_alias_is_unanswered(sender: Sender) -> None:
    """8.9#10."""
    request_id = registered(sender)
    sender.peer.session.refresh(request_id, [TOKEN])
    sender.peer.session.drop_token(TOKEN)
    assert sender.sent(sender.ask()) == []
    sender.accept(request_id)
    assert one(sender.peer.take(UpdateAccepted)).request_id == request_id
    assert sender.sent(sender.ask()) == [DELETE]


def test_a_dropped_token_is_not_used_by_alias(sender: Sender) -> None:
    registered(sender)
    sender.peer.session.drop_token(TOKEN)
    tokens = sender.tokens(sender.ask(TOKEN))
    assert [token.alias_type for token in tokens] == [DELETE, REGISTER]
    assert tokens[0].alias != tokens[1].alias


def test_room_is_free_once_the_delete_is_answered() -> None:
    """Streams overtake each other: the peer may read a REGISTER before an earlier DELETE."""
    sender = Sender(OCTETS)
    sender.setup()
    registered(sender)
    sender.peer.session.drop_token(TOKEN)
    request_id = sender.ask()
    assert sender.sent(request_id) == [DELETE]
    assert sender.sent(sender.ask(TOKEN)) == [VALUE]
    sender.accept(request_id)
    assert sender.sent(sender.ask(TOKEN)) == [REGISTER]


def test_deletes_of_one_message_are_bounded(sender: Sender) -> None:
    many = [AuthToken(1, b"%d" % count, is_reusable=True) for count in range(MAX_DELETES + 1)]
    sender.accept(sender.ask(*many))
    for token in many:
        sender.peer.session.drop_token(token)
    assert sender.sent(sender.ask()) == [DELETE] * MAX_DELETES
    assert sender.sent(sender.ask()) == [DELETE]


# SETUP


def test_aliases_of_setup_are_used_when_they_fit() -> None:
    sender = Sender(session_tokens=(TOKEN, ONCE))
    assert sender.setup() == [REGISTER, VALUE]
    assert sender.sent(sender.ask(TOKEN, ONCE)) == [ALIAS, VALUE]


@pytest.mark.parametrize("limit", [0, OCTETS - 1])
def test_aliases_of_setup_that_did_not_fit_are_dropped(limit: int) -> None:
    """9.1.4#2."""
    sender = Sender(limit, session_tokens=(TOKEN,))
    assert sender.setup() == [REGISTER]
    assert sender.sent(sender.ask(TOKEN)) == [VALUE]


def test_behind_one_that_did_not_fit_none_is_used() -> None:
    """9.1.4#2: whether the peer has taken a smaller one is not said, so it counts nevertheless."""
    large = AuthToken(1, bytes(100), is_reusable=True)
    sender = Sender(OCTETS + 10, session_tokens=(large, TOKEN))
    assert sender.setup() == [REGISTER, REGISTER]
    assert sender.sent(sender.ask(large, TOKEN)) == [VALUE, VALUE]


# Both ends


def test_every_verb_takes_tokens() -> None:
    """The server lets nobody in without one, and remembers what it may."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    pair = SessionPair(
        server_directory=directory,
        server_admission=Admission(token_policy=KnownTokens([AuthToken(5, TOKEN.value)])),
    )
    client = pair.client
    offered = TrackSource(NAME)
    for tokens in ((), (ONCE,), (TOKEN,), (TOKEN,)):
        client.subscribe(NAME, tokens=tokens, now=pair.now)
        client.fetch(NAME, tokens=tokens, now=pair.now)
        client.track_status(NAME, now=pair.now, tokens=tokens)
        client.subscribe_namespace(NAMESPACE, now=pair.now, tokens=tokens)
        client.publish_namespace(NAMESPACE, now=pair.now, tokens=tokens)
        client.publish(offered, tokens=tokens, now=pair.now)
        pair.run()
        refused = pair.take(Role.CLIENT, RequestRejected)
        codes = [event.code for event in refused if event.code is RequestErrorCode.UNAUTHORIZED]
        assert len(codes) == (0 if tokens == (TOKEN,) else 6)
        assert not client.is_closed


def test_request_tokens_go_with_every_request_until_they_are_dropped() -> None:
    pair = SessionPair(
        server_directory=TrackDirectory(),
        server_admission=Admission(token_policy=KnownTokens([TOKEN])),
        client_request_tokens=(TOKEN,),
    )
    pair.client.subscribe_namespace(NAMESPACE, now=pair.now)
    pair.run()
    assert len(pair.take(Role.CLIENT, RequestAccepted)) == 1
    pair.client.drop_token(TOKEN)
    pair.client.track_status(NAME, now=pair.now)
    pair.run()
    (event,) = pair.take(Role.CLIENT, RequestRejected)
    assert event.code is RequestErrorCode.UNAUTHORIZED


@pytest.mark.parametrize("seed", range(20))
def test_a_small_cache_never_overflows(seed: int) -> None:
    """8.9#8, 8.9#9, 8.9#10, 9.1.3#1: more tokens than fit, dropped and cancelled, out of order.

    The server closes for what it must not see: an overflow, an alias registered twice; it refuses
    an alias that it does not know.
    """
    rng = Random(seed)
    tokens = [AuthToken(1, b"token %d" % count, is_reusable=True) for count in range(6)]
    pair = SessionPair(
        server_directory=TrackDirectory(),
        server_config=SessionConfig(max_auth_token_cache_octets=3 * 23),
        server_admission=Admission(token_policy=KnownTokens(tokens)),
        rng=rng,
    )
    client = pair.client
    accepted: list[int] = []
    for _ in range(150):
        some = rng.sample(tokens, rng.randrange(1, 3))
        request_id = client.publish_namespace(NAMESPACE, now=pair.now, tokens=some)
        client.track_status(NAME, now=pair.now, tokens=[rng.choice(tokens)])
        if accepted and rng.random() < 0.5:
            client.refresh(accepted[-1], [rng.choice(tokens)])
        if rng.random() < 0.3:
            client.drop_token(rng.choice(tokens))
        pair.run(rng.randrange(12))
        gone = {event.request_id for event in pair.take(Role.SERVER, NamespaceWithdrawn)}
        for offer in pair.take(Role.SERVER, NamespaceOffered):
            if offer.request_id not in gone:
                pair.server.accept(offer.request_id, now=pair.now)
        pair.run(rng.randrange(4))
        if rng.random() < 0.1:
            client.cancel(request_id, now=pair.now)
        accepted = [event.request_id for event in pair.take(Role.CLIENT, RequestAccepted)]
        accepted = [one for one in accepted if one != request_id]
    pair.run()
    assert pair.take(Role.CLIENT, SessionEnded) == pair.take(Role.SERVER, SessionEnded) == []
    refused = pair.take(Role.CLIENT, RequestRejected)
    assert {event.code for event in refused} == {RequestErrorCode.DOES_NOT_EXIST}
    assert pair.take(Role.CLIENT, UpdateRejected) == []


def test_refresh_of_a_request_that_is_not_there() -> None:
    peer = ScriptedPeer()
    with pytest.raises(LocalProtocolError, match="request 4"):
        peer.session.refresh(4, [TOKEN])
    request_id = peer.session.publish_namespace(NAMESPACE, now=0.0)
    with pytest.raises(LocalProtocolError, match="request 0 is not accepted yet"):
        peer.session.refresh(request_id, [TOKEN])
    peer.send(0, RequestOk())
    peer.session.refresh(request_id, [TOKEN])
    assert isinstance(peer.messages(0)[-1], RequestUpdate)
    peer.session.close(SessionErrorCode.NO_ERROR, now=0.0)
