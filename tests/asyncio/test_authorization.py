"""Tokens, policies, paths and authorities over real connections."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import moqt
from moqt import errors
from tests.asyncio.endpoints import NAME, NAMESPACE
from tests.asyncio.quic_pair import QUICK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]

SECRET = b"bearer of the secret"
TOKEN = moqt.AuthToken(0, SECRET, is_reusable=True)


class Judge:
    """A policy of which the test sets the answer."""

    def __init__(self, answer: moqt.Allowed | moqt.Denied) -> None:
        self.answer = answer
        self.asked: list[moqt.RequestAccess] = []

    def judge_session(self, access: moqt.SessionAccess) -> moqt.Allowed | moqt.Denied:
        return moqt.Allowed()

    def judge_request(self, access: moqt.RequestAccess) -> moqt.Allowed | moqt.Denied:
        self.asked.append(access)
        return self.answer


def directory() -> moqt.TrackDirectory:
    made = moqt.TrackDirectory()
    made.add(moqt.TrackSource(NAME))
    return made


@asynccontextmanager
async def serving(certificate: CertificatePair, **how: Any) -> AsyncIterator[moqt.Server]:
    async with moqt.serve(
        "127.0.0.1",
        0,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        directory=directory(),
        transport_config=QUICK,
        **how,
    ) as server:
        yield server


@asynccontextmanager
async def connected(
    server: moqt.Server, certificate: CertificatePair, path: str = "/", **how: Any
) -> AsyncIterator[moqt.MoqtSession]:
    async with moqt.connect(
        f"moqt://127.0.0.1:{server.port}{path}",
        ca=certificate.certificate,
        transport_config=QUICK,
        **how,
    ) as session:
        yield session


async def test_who_shows_no_token_is_refused_request_by_request(
    certificate: CertificatePair, caplog: pytest.LogCaptureFixture
) -> None:
    """4.2#5: and the session goes on; the secret is in no log and no error."""
    caplog.set_level(logging.DEBUG)
    policy = moqt.KnownTokens([TOKEN])
    async with (
        serving(certificate, token_policy=policy) as server,
        connected(server, certificate) as session,
    ):
        for tokens in (None, [moqt.AuthToken(0, SECRET + b"?")]):
            with pytest.raises(errors.RequestRejected) as refused:
                await session.track_status(NAME, tokens=tokens)
            assert refused.value.code is moqt.RequestErrorCode.UNAUTHORIZED
            with pytest.raises(errors.RequestRejected):
                async with session.subscribe_namespace(NAMESPACE, tokens=tokens):
                    pytest.fail("let in")
            with pytest.raises(errors.RequestRejected):
                async with session.subscribe(NAME, tokens=tokens):
                    pytest.fail("let in")
            with pytest.raises(errors.RequestRejected):
                async with session.publish_namespace(NAMESPACE, tokens=tokens):
                    pytest.fail("let in")
            with pytest.raises(errors.RequestRejected):
                async with session.publish(moqt.TrackSource(NAME), tokens=tokens):
                    pytest.fail("let in")
            async with session.fetch(NAME, tokens=tokens) as fetch:
                with pytest.raises(errors.RequestRejected):
                    await fetch.established()
        for _ in range(3):  # by value and REGISTER first, then by alias
            assert (await session.track_status(NAME, tokens=[TOKEN])).largest is None
        async with session.subscribe(NAME, tokens=[TOKEN]) as subscription:
            await subscription.update(priority=1, tokens=[TOKEN])
        session.drop_token(TOKEN)
        assert (await session.track_status(NAME, tokens=[TOKEN])).largest is None
        assert SECRET.decode() not in str(refused.value)
    assert SECRET.decode() not in caplog.text


async def test_a_token_for_the_session(certificate: CertificatePair) -> None:
    policy = moqt.KnownTokens([TOKEN], is_for_session=True)
    async with serving(certificate, token_policy=policy) as server:
        with pytest.raises(errors.SessionClosed) as closed:
            async with connected(server, certificate):
                pytest.fail("let in")
        assert closed.value.code is moqt.SessionErrorCode.UNAUTHORIZED
        async with connected(server, certificate, tokens=[TOKEN]) as session:
            assert (await session.track_status(NAME)).largest is None


async def test_tokens_for_every_request(certificate: CertificatePair) -> None:
    async with (
        serving(certificate, token_policy=moqt.KnownTokens([TOKEN])) as server,
        connected(server, certificate, request_tokens=[TOKEN]) as session,
    ):
        assert (await session.track_status(NAME)).largest is None
        async with session.subscribe(NAME):
            pass
        with pytest.raises(errors.RequestRejected):
            await session.track_status(NAME, tokens=[])


async def test_a_subscription_is_renewed_and_then_expires(certificate: CertificatePair) -> None:
    """9.20.16#1: the application refreshes the token before EXPIRES is over."""
    judge = Judge(moqt.Allowed(lifetime_ms=3_600_000))
    async with (
        serving(certificate, token_policy=judge) as server,
        connected(server, certificate) as session,
        session.subscribe(NAME, tokens=[TOKEN]) as subscription,
    ):
        assert subscription.expires_ms == 3_600_000
        judge.answer = moqt.Allowed(lifetime_ms=50)
        await subscription.refresh([moqt.AuthToken(0, b"new")])
        assert subscription.expires_ms == 50
        assert judge.asked[-1].tokens == (moqt.AuthToken(0, b"new"),)
        assert judge.asked[-1].is_update
        with pytest.raises(errors.RequestEnded) as ended:
            await anext(subscription)
        assert ended.value.code is moqt.PublishDoneCode.EXPIRED


async def test_a_client_judges_what_its_server_asks_for(certificate: CertificatePair) -> None:
    judge = Judge(moqt.Denied(moqt.Denial.UNAUTHORIZED, "not here"))
    async with (
        serving(certificate) as server,
        connected(server, certificate, directory=directory(), token_policy=judge),
    ):
        async for session in server:
            with pytest.raises(errors.RequestRejected, match="not here"):
                await session.track_status(NAME)
            break


async def test_a_client_that_follows_shows_its_tokens_at_home_alone(
    certificate: CertificatePair,
) -> None:
    """Whom a redirect names is not whom the tokens are for; GOAWAY is the same with it."""

    class Seeing(Judge):
        sessions: list[moqt.SessionAccess]

        def judge_session(self, access: moqt.SessionAccess) -> moqt.Allowed | moqt.Denied:
            self.sessions.append(access)
            return moqt.Allowed()

    first, second = Seeing(moqt.Allowed()), Seeing(moqt.Allowed())
    first.sessions, second.sessions = [], []
    async with (
        serving(certificate, token_policy=first) as home,
        serving(certificate, token_policy=second) as other,
        moqt.Client.connect(
            f"moqt://127.0.0.1:{home.port}/",
            ca=certificate.certificate,
            transport_config=QUICK,
            tokens=[TOKEN],
            request_tokens=[TOKEN],
        ) as client,
    ):
        assert (await client.track_status(NAME)).largest is None
        home.goaway(f"moqt://127.0.0.1:{other.port}/")
        await client.session.wait_goaway()
        assert (await client.track_status(NAME)).largest is None
    assert [access.tokens for access in first.sessions] == [(TOKEN,)]
    assert [access.tokens for access in first.asked] == [(TOKEN,)]
    assert [access.tokens for access in second.sessions] == [()]
    assert [access.all_tokens for access in second.asked] == [()]


async def test_paths_and_authorities(certificate: CertificatePair) -> None:
    """9.1.1#3, 9.1.2#3."""
    async with serving(certificate, paths={"/kv"}) as server:
        async with connected(server, certificate, "/kv?x=1") as session:
            assert session.is_established
        with pytest.raises(errors.SessionClosed) as closed:
            async with connected(server, certificate, "/other"):
                pytest.fail("let in")
        assert closed.value.code is moqt.SessionErrorCode.INVALID_PATH
    async with serving(certificate, authorities=lambda one: one == "elsewhere") as server:
        with pytest.raises(errors.SessionClosed) as closed:
            async with connected(server, certificate):
                pytest.fail("let in")
        assert closed.value.code is moqt.SessionErrorCode.INVALID_AUTHORITY
