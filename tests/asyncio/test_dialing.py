"""Who is trusted with what, wherever a peer sends an application (MOQT-22 8.9, 9.4)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

import moqt
from moqt import errors
from moqt.asyncio import dialing
from moqt.asyncio.dialing import dialer
from moqt.asyncio.token_scope import TokenScope
from moqt.session.access.authorization import Allowed, Denied, KnownTokens, SessionAccess
from moqt.uri import MoqtUri
from tests.asyncio.endpoints import NAME, directory_with, poll, read_objects, serving
from tests.asyncio.quic_pair import QUICK
from tests.asyncio.roaming import OTHER, client_of, full_track, url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from moqt.tls import CertificatePair

HOME = MoqtUri.parse("moqt://Home.example:4433/kv")
TOKEN = moqt.AuthToken(0, b"for home", is_reusable=True)
REQUEST_TOKEN = moqt.AuthToken(0, b"for requests to home", is_reusable=True)


@pytest.fixture
def dialed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each connection, none of which is made."""
    calls: list[dict[str, Any]] = []

    def connect(url: str, **arguments: Any) -> AbstractAsyncContextManager[None]:
        calls.append({"url": url, **arguments})
        return nullcontext()

    monkeypatch.setattr(dialing, "connect", connect)
    return calls


@pytest.mark.parametrize(
    ("uri", "is_unverified", "has_server_name", "has_tokens"),
    [
        ("moqt://home.example:4433/kv", True, True, True),
        ("moqt://HOME.EXAMPLE:4433/other", True, True, True),
        ("moqt://home.example:4434/kv", True, True, False),
        ("moqt://home.example/kv", True, True, False),
        ("moqt://named.example:4433/kv", True, False, False),
        ("moqt://NAMED.example/", True, False, False),
        ("moqt://elsewhere.example:4433/kv", False, False, False),
        ("moqt://sub.home.example:4433/kv", False, False, False),
        ("moqt://127.0.0.1:4433/kv", False, False, False),
    ],
)
def test_trust_by_address(
    dialed: list[dict[str, Any]],
    uri: str,
    is_unverified: bool,
    has_server_name: bool,
    has_tokens: bool,
) -> None:
    """`insecure`: hosts that the application named. A server's name: home's host. Tokens: home's
    host and port."""
    dial = dialer(
        HOME,
        insecure=True,
        server_name="inner.example",
        tokens=[TOKEN],
        request_tokens=[REQUEST_TOKEN],
        trusted_hosts={"named.example"},
    )
    dial(MoqtUri.parse(uri))
    (call,) = dialed
    assert MoqtUri.parse(call["url"]).authority == MoqtUri.parse(uri).authority
    assert call["insecure"] is is_unverified
    assert call["server_name"] == ("inner.example" if has_server_name else None)
    assert list(call["tokens"]) == ([TOKEN] if has_tokens else [])
    assert list(call["request_tokens"]) == ([REQUEST_TOKEN] if has_tokens else [])


def test_hosts_that_the_application_names_later_are_trusted_from_then_on(
    dialed: list[dict[str, Any]],
) -> None:
    named: set[str] = set()
    dial = dialer(HOME, insecure=True, trusted_hosts=named)
    other = MoqtUri.parse("moqt://other.example/")
    dial(other)
    named.add("other.example")
    dial(other)
    assert [call["insecure"] for call in dialed] == [False, True]


def test_whom_the_application_named_is_verified_unless_it_is_insecure(
    dialed: list[dict[str, Any]],
) -> None:
    dial = dialer(HOME, trusted_hosts=["named.example"])
    dial(HOME)
    dial(MoqtUri.parse("moqt://named.example/"))
    assert [call["insecure"] for call in dialed] == [False, False]


def test_the_first_session_has_its_own_timeout(dialed: list[dict[str, Any]]) -> None:
    config = moqt.TransportConfig(handshake_timeout_s=7.0, idle_timeout_s=9.0)
    dial = dialer(HOME, transport_config=config, later_timeout_s=2.0)
    for _ in range(3):
        dial(HOME)
    assert [call["transport_config"].handshake_timeout_s for call in dialed] == [7.0, 2.0, 2.0]
    assert {call["transport_config"].idle_timeout_s for call in dialed} == {9.0}
    dialed.clear()
    dial = dialer(HOME, transport_config=config)
    dial(HOME)
    dial(HOME)
    assert [call["transport_config"] for call in dialed] == [config, config]
    with pytest.raises(ValueError, match="handshake_timeout_s is 0"):
        dialer(HOME, later_timeout_s=0)


async def test_tokens_are_shown_to_home_alone(certificate: CertificatePair) -> None:
    seen: list[tuple[moqt.AuthToken, ...]] = []

    class Seeing(KnownTokens):
        def judge_session(self, access: SessionAccess) -> Allowed | Denied:
            seen.append(access.tokens)
            return Allowed()

    async with moqt.serve(
        "127.0.0.1",
        0,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        transport_config=QUICK,
        token_policy=Seeing([]),
    ) as server:
        dial = dialer(
            MoqtUri.parse(url(server)),
            ca=certificate.certificate,
            transport_config=QUICK,
            tokens=[TOKEN],
        )
        for address in (url(server), f"moqt://localhost:{server.port}/", url(server) + "other"):
            async with dial(MoqtUri.parse(address)):
                pass
    assert seen == [(TOKEN,), (), (TOKEN,)]


async def test_tokens_of_a_request_are_shown_to_home_alone(certificate: CertificatePair) -> None:
    """The same server by the address that the application gave, then where its REDIRECT leads."""
    seen: list[tuple[str, tuple[moqt.AuthToken, ...]]] = []

    class Seeing(KnownTokens):
        def judge_session(self, access: SessionAccess) -> Allowed | Denied:
            return Allowed()

        def judge_request(self, access: moqt.RequestAccess) -> Allowed | Denied:
            seen.append((access.kind.name, access.tokens))
            return Allowed()

    directory = moqt.TrackDirectory()
    directory.add(full_track(OTHER))
    directory.advertise(OTHER.namespace)
    async with moqt.serve(
        "127.0.0.1",
        0,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        transport_config=QUICK,
        directory=directory,
        token_policy=Seeing([]),
    ) as server:
        directory.refuse(
            NAME,
            errors.RequestRejected(
                moqt.RequestErrorCode.REDIRECT,
                "moved",
                redirect_uri=f"moqt://localhost:{server.port}/",
                redirect_name=OTHER,
            ),
        )
        async with client_of(server, certificate) as client:
            tokens = [REQUEST_TOKEN]
            async with client.subscribe(NAME, tokens=tokens, new_group_request=0):
                pass
            async with client.fetch(NAME, tokens=tokens):
                pass
            await client.track_status(NAME, tokens=tokens)
            async with client.subscribe_namespace(OTHER.namespace, tokens=tokens):
                pass
    twice = [tokens, []]
    assert [(kind, list(shown)) for kind, shown in seen] == [
        *(("SUBSCRIBE", shown) for shown in twice),
        *(("FETCH", shown) for shown in twice),
        *(("TRACK_STATUS", shown) for shown in twice),
        ("SUBSCRIBE_NAMESPACE", tokens),
    ]


@pytest.mark.parametrize(
    ("uri", "has_tokens"),
    [
        ("moqt://home.example:4433/kv", True),
        ("moqt://SECOND.example:4433/other", True),
        ("moqt://third.example/", True),
        ("moqt://third.example:443/", True),
        ("moqt://second.example:4434/", False),
        ("moqt://third.example:4433/", False),
        ("moqt://fourth.example/", False),
    ],
)
def test_authorities_that_the_application_trusts_see_tokens(
    dialed: list[dict[str, Any]], uri: str, has_tokens: bool
) -> None:
    scope = TokenScope(HOME, ["second.example:4433", "third.example"])
    dial = dialer(HOME, tokens=[TOKEN], request_tokens=[REQUEST_TOKEN], token_scope=scope)
    dial(MoqtUri.parse(uri))
    (call,) = dialed
    assert list(call["tokens"]) == ([TOKEN] if has_tokens else [])
    assert list(call["request_tokens"]) == ([REQUEST_TOKEN] if has_tokens else [])
    assert str(scope) == "Home.example:4433, second.example:4433, third.example"


@pytest.mark.parametrize(
    ("authorities", "message"),
    [
        ("home.example", "is a str, expected a collection"),
        (["home.example/kv"], "'home.example/kv', expected host or host:port"),
        (["moqt://home.example"], "'moqt://home.example', expected host or host:port"),
        ([""], "not host"),
    ],
)
def test_what_is_no_authority_is_not_trusted(authorities: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenScope(HOME, authorities)


@asynccontextmanager
async def asking_for_tokens(
    certificate: CertificatePair, directory: moqt.TrackDirectory, *, is_for_session: bool = False
) -> AsyncIterator[moqt.Server]:
    async with moqt.serve(
        "127.0.0.1",
        0,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        transport_config=QUICK,
        directory=directory,
        token_policy=KnownTokens([TOKEN], is_for_session=is_for_session),
    ) as server:
        yield server


@asynccontextmanager
async def two_that_ask_for_tokens(
    certificate: CertificatePair, *, is_for_session: bool
) -> AsyncIterator[tuple[str, str]]:
    """The addresses of two servers that want TOKEN; the first redirects NAME to the second."""
    first, second = moqt.TrackDirectory(), directory_with(full_track(OTHER))
    async with (
        asking_for_tokens(certificate, first, is_for_session=is_for_session) as home,
        asking_for_tokens(certificate, second, is_for_session=is_for_session) as other,
    ):
        code = moqt.RequestErrorCode.REDIRECT
        first.refuse(
            NAME,
            errors.RequestRejected(code, "", redirect_uri=url(other), redirect_name=OTHER),
        )
        yield url(home), url(other)


@pytest.mark.parametrize("is_session_judged", [False, True])
async def test_who_is_refused_elsewhere_learns_where_and_why(
    certificate: CertificatePair, is_session_judged: bool
) -> None:
    async with two_that_ask_for_tokens(certificate, is_for_session=is_session_judged) as urls:
        home, other = urls
        async with moqt.Client.connect(
            home,
            ca=certificate.certificate,
            transport_config=QUICK,
            tokens=[TOKEN],
            request_tokens=[TOKEN],
        ) as client:
            with pytest.raises((errors.RequestRejected, errors.SessionClosed)) as caught:
                await client.track_status(NAME)
    error = caught.value
    assert isinstance(error, errors.RequestRejected | errors.SessionClosed)
    assert isinstance(error, errors.SessionClosed) is is_session_judged
    text = str(error)
    assert text.startswith(f"at {other}: ")
    assert "UNAUTHORIZED" in text
    assert text.endswith(f": tokens are shown only at {MoqtUri.parse(home).authority}")
    assert error.address == other


@pytest.mark.parametrize("is_session_judged", [False, True])
async def test_who_is_trusted_with_tokens_serves_where_a_redirect_leads(
    certificate: CertificatePair, is_session_judged: bool
) -> None:
    async with two_that_ask_for_tokens(certificate, is_for_session=is_session_judged) as urls:
        home, other = urls
        async with moqt.Client.connect(
            home,
            ca=certificate.certificate,
            transport_config=QUICK,
            tokens=[TOKEN],
            trusted_authorities=[MoqtUri.parse(other).authority],
        ) as client:
            status = await client.track_status(NAME, tokens=[TOKEN])
    assert status.largest is not None


async def test_a_subscription_that_is_refused_where_goaway_leads_says_where(
    certificate: CertificatePair,
) -> None:
    """It goes on at the old session to the end, and only then says so."""
    live = moqt.TrackSource(NAME)
    async with (
        asking_for_tokens(certificate, directory_with(live)) as home,
        asking_for_tokens(certificate, directory_with(full_track(NAME))) as other,
        moqt.Client.connect(
            url(home),
            ca=certificate.certificate,
            transport_config=QUICK,
            request_tokens=[TOKEN],
        ) as client,
        client.subscribe(NAME) as subscription,
    ):
        home.goaway(url(other), timeout_ms=60_000)
        await poll(lambda: subscription._failure is not None)
        live.end()
        where = f"at {url(other)}: .*UNAUTHORIZED.*shown only at 127.0.0.1:{home.port}"
        with pytest.raises(errors.RequestRejected, match=where):
            await read_objects(subscription)


async def test_an_unverified_home_does_not_make_others_unverified(
    certificate: CertificatePair,
) -> None:
    """The same server by the name that the application gave, and by one that it did not."""
    async with serving(certificate) as server:
        named: set[str] = set()
        dial = dialer(
            MoqtUri.parse(url(server)),
            insecure=True,
            transport_config=QUICK,
            trusted_hosts=named,
        )
        other = MoqtUri.parse(f"moqt://localhost:{server.port}/")
        with pytest.warns(moqt.InsecureConnectionWarning):
            async with dial(MoqtUri.parse(url(server))):
                pass
        with pytest.raises(errors.ConnectFailed, match="not trusted"):
            async with dial(other):
                pytest.fail("connected")
        named.add("localhost")
        with pytest.warns(moqt.InsecureConnectionWarning):
            async with asyncio.timeout(10), dial(other):
                pass
