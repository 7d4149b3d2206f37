"""Who may retrieve what: ("kvcs-1", Scope ID) is the unit of authorization (KVCS 3.1)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvcs.blocking import Consumer as BlockingConsumer
from kvcs.blocking import Producer as BlockingProducer
from kvcs.consumer import Consumer
from kvcs.names import NamespaceForm, scope_prefix
from kvcs.publisher import Producer
from moqt.asyncio.client import InsecureConnectionWarning
from moqt.asyncio.server import serve
from moqt.codes import RequestErrorCode
from moqt.errors import ConnectFailed, RequestRejected
from moqt.session.access.authorization import (
    Allowed,
    AuthToken,
    Denied,
    KnownTokens,
    SessionAccess,
)
from moqt.uri import MoqtUri
from tests.kvcs.stage import CONSUMING, PRODUCING, QUICK, Stage, take
from tests.kvcs.support import SCOPE, describe, prompt

if TYPE_CHECKING:
    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]

TOKEN = AuthToken(0, b"for this scope", is_reusable=True)


DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "authorization.md"


def documented(*tokens: AuthToken) -> KnownTokens:
    """Return the policy that the documentation shows, for SCOPE."""
    _, _, rest = DOCUMENT.read_text("utf-8").partition("```python\n")
    names: dict[str, Any] = {}
    exec(rest.partition("```")[0], names)
    made = names["ScopePolicy"](scope_prefix(SCOPE.scope_id, NamespaceForm.BINARY), list(tokens))
    assert isinstance(made, KnownTokens)
    return made


async def test_a_scope_is_served_to_who_shows_its_token(certificate: CertificatePair) -> None:
    descriptor = describe(layers=2)
    async with Producer.serve(
        "127.0.0.1",
        0,
        scope=SCOPE,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        config=PRODUCING,
        transport_config=QUICK,
        token_policy=documented(TOKEN),
    ) as producer:
        stage = Stage(producer, certificate, descriptor)
        await stage.publish_all(2)
        async with Consumer.connect(
            stage.url,
            scope=SCOPE,
            ca=certificate.certificate,
            config=CONSUMING,
            transport_config=QUICK,
            auth_tokens=[TOKEN],
        ) as consumer:
            retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 2))
            assert await take(retrieval, descriptor) == [0, 1]
        for wrong in ((), (AuthToken(0, b"for another scope"),)):
            async with Consumer.connect(
                stage.url,
                scope=SCOPE,
                ca=certificate.certificate,
                config=CONSUMING,
                transport_config=QUICK,
                auth_tokens=wrong,
            ) as consumer:
                with pytest.raises(RequestRejected) as refused:
                    await consumer.retrieve(descriptor, prompt(descriptor, 2))
                assert refused.value.code is RequestErrorCode.UNAUTHORIZED


async def test_tokens_go_to_no_other_endpoint(certificate: CertificatePair) -> None:
    """A source that recovery asks, or a redirect, gets none of them."""
    seen: list[SessionAccess] = []

    class Seeing(KnownTokens):
        def judge_session(self, access: SessionAccess) -> Allowed | Denied:
            seen.append(access)
            return Allowed()

    async with (
        serve(
            "127.0.0.1",
            0,
            certificate=certificate.certificate,
            private_key=certificate.private_key,
            transport_config=QUICK,
            token_policy=Seeing([]),
        ) as server,
        Consumer.connect(
            f"moqt://127.0.0.1:{server.port}/",
            scope=SCOPE,
            ca=certificate.certificate,
            transport_config=QUICK,
            auth_tokens=[TOKEN],
        ) as consumer,
    ):
        assert seen[0].tokens == (TOKEN,)
        await consumer._endpoints.place(f"moqt://localhost:{server.port}/")
        assert seen[1].tokens == ()
        await consumer._endpoints.place(f"moqt://127.0.0.1:{server.port}/other")
        assert seen[2].tokens == (TOKEN,)
        async with Consumer.connect(
            f"moqt://127.0.0.1:{server.port}/",
            scope=SCOPE,
            ca=certificate.certificate,
            transport_config=QUICK,
            auth_tokens=[TOKEN],
            trusted_authorities=[f"localhost:{server.port}"],
        ) as trusting:
            await trusting._endpoints.place(f"moqt://localhost:{server.port}/")
        assert [one.tokens for one in seen[3:]] == [(TOKEN,), (TOKEN,)]


async def test_only_endpoints_that_the_caller_names_may_go_unverified(
    certificate: CertificatePair,
) -> None:
    """The same host as a redirect would name it, and then as a source of recovery."""
    async with serve(
        "127.0.0.1",
        0,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        transport_config=QUICK,
    ) as server:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureConnectionWarning)
            async with Consumer.connect(
                f"moqt://127.0.0.1:{server.port}/",
                scope=SCOPE,
                insecure=True,
                transport_config=QUICK,
            ) as consumer:
                other = f"moqt://localhost:{server.port}/"
                with pytest.raises(ConnectFailed, match="not trusted"):
                    await consumer._endpoints._sessions.at(MoqtUri.parse(other))
                place = await consumer._endpoints.place(other)
                assert not place.session.is_closed


async def test_a_relay_is_shown_the_producers_token(certificate: CertificatePair) -> None:
    async with (
        serve(
            "127.0.0.1",
            0,
            certificate=certificate.certificate,
            private_key=certificate.private_key,
            transport_config=QUICK,
            takes_offers=True,
            token_policy=KnownTokens([TOKEN], is_for_session=True),
        ) as relay,
        Producer.connect(
            f"moqt://127.0.0.1:{relay.port}/",
            scope=SCOPE,
            ca=certificate.certificate,
            config=PRODUCING,
            transport_config=QUICK,
            auth_tokens=[TOKEN],
        ),
    ):
        (session,) = relay.sessions
        assert session.peer_options is not None
        (shown,) = session.peer_options.authorization_tokens
        assert shown.value == TOKEN.value


def test_blocking_consumers_take_tokens_too() -> None:
    """The call reaches the connection: the address is what is wrong."""
    with pytest.raises(ValueError, match="not an address"):
        BlockingConsumer.connect("nowhere", scope=SCOPE, auth_tokens=[TOKEN])


def test_further_authorities_are_taken_by_all_that_connect() -> None:
    """The call reaches what judges them: a bare string is none."""
    url = "moqt://127.0.0.1:1/"
    with pytest.raises(ValueError, match="trusted_authorities is a str"):
        BlockingConsumer.connect(url, scope=SCOPE, trusted_authorities="localhost")
    with pytest.raises(ValueError, match="trusted_authorities is a str"):
        BlockingProducer.connect(url, scope=SCOPE, trusted_authorities="localhost")
