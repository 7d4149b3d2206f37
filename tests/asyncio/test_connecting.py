"""How sessions come to be, why they don't, and how they end."""

from __future__ import annotations

import asyncio
import socket
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from aioquic.quic.connection import QuicConnection

import moqt
from moqt import errors
from moqt.asyncio import connection as connection_module
from moqt.asyncio.connection import quic_configuration
from moqt.session.control import Control
from moqt.tls import CertificatePair, generate_certificate
from tests.asyncio.endpoints import NAME, connected, directory_with, poll, serving, track_with
from tests.asyncio.quic_pair import QUICK

if TYPE_CHECKING:
    from pathlib import Path


async def test_setups_are_exchanged(certificate: CertificatePair) -> None:
    config = moqt.SessionConfig(max_filter_ranges=7)
    async with (
        serving(certificate, config=config) as server,
        connected(server, certificate) as session,
    ):
        assert session.is_established
        assert session.peer_options is not None
        assert session.peer_options.max_filter_ranges == 7
        (served,) = server.sessions
        assert served.peer_options is not None
        assert served.peer_options.authority == f"127.0.0.1:{server.port}"
        assert f":{server.port}" in session.remote_address


async def test_files_and_server_names_work(tmp_path: Path, certificate: CertificatePair) -> None:
    (tmp_path / "cert.pem").write_bytes(certificate.certificate)
    (tmp_path / "key.pem").write_bytes(certificate.private_key)
    async with moqt.serve(
        "localhost",
        0,
        certificate=tmp_path / "cert.pem",
        private_key=str(tmp_path / "key.pem"),
        transport_config=QUICK,
    ) as server:
        async with moqt.connect(
            f"moqt://localhost:{server.port}", ca=tmp_path / "cert.pem", transport_config=QUICK
        ) as session:
            assert session.is_established


async def test_ipv6(certificate: CertificatePair) -> None:
    async with serving(certificate, host="::1") as server:
        async with moqt.connect(
            f"moqt://[::1]:{server.port}/",
            ca=certificate.certificate,
            transport_config=QUICK,
        ) as session:
            assert session.remote_address == f"[::1]:{server.port}"


async def test_an_untrusted_certificate_is_refused(certificate: CertificatePair) -> None:
    """15.2#1."""
    async with serving(certificate) as server:
        other = generate_certificate(["127.0.0.1"])
        with pytest.raises(errors.ConnectFailed, match="not trusted by what `ca` names") as failed:
            async with connected(server, other):
                pytest.fail("connected")
        assert failed.value.address == f"127.0.0.1:{server.port}"
        assert failed.value.problem is errors.ConnectProblem.UNTRUSTED
        with pytest.raises(errors.ConnectFailed, match="not trusted by the public CAs"):
            async with moqt.connect(f"moqt://127.0.0.1:{server.port}", transport_config=QUICK):
                pytest.fail("connected")
        with pytest.raises(errors.ConnectFailed, match="is not for 'elsewhere") as failed:
            async with moqt.connect(
                f"moqt://127.0.0.1:{server.port}",
                ca=certificate.certificate,
                server_name="elsewhere.example",
                transport_config=QUICK,
            ):
                pytest.fail("connected")
        assert failed.value.problem is errors.ConnectProblem.CERTIFICATE
        await poll(lambda: not server._reception.driver_of)


async def test_insecure_warns_and_connects(certificate: CertificatePair) -> None:
    async with serving(certificate) as server:
        url = f"moqt://127.0.0.1:{server.port}"
        with pytest.warns(moqt.InsecureConnectionWarning, match="not verified") as caught:
            async with moqt.connect(url, insecure=True, transport_config=QUICK) as session:
                assert session.is_established
        assert caught[0].filename == __file__


async def test_another_alpn_is_a_clear_error(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6.2#2."""
    async with serving(certificate) as server:
        monkeypatch.setattr(connection_module, "ALPN", "moqt-16")
        with pytest.raises(errors.ConnectFailed, match="does not speak moqt-22") as failed:
            async with connected(server, certificate):
                pytest.fail("connected")
    assert failed.value.problem is errors.ConnectProblem.PROTOCOL


async def test_nobody_there_is_refused_at_once(certificate: CertificatePair) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(
        errors.ConnectFailed, match=f"127.0.0.1:{port}: Connection refused"
    ) as failed:
        async with moqt.connect(f"moqt://127.0.0.1:{port}", ca=certificate.certificate):
            pytest.fail("connected")
    assert failed.value.problem is errors.ConnectProblem.UNREACHABLE


async def test_a_server_that_sends_no_setup_times_out(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit is for SETUP too, and the error says that QUIC was up."""
    quick = replace(QUICK, handshake_timeout_s=0.5)
    progress = moqt.ConnectProgress()
    async with serving(certificate) as server:
        monkeypatch.setattr(Control, "flush", lambda _self: None)
        with pytest.raises(errors.TimedOut, match="QUIC handshake was done") as failed:
            async with moqt.connect(
                f"moqt://127.0.0.1:{server.port}",
                ca=certificate.certificate,
                transport_config=quick,
                progress=progress,
            ):
                pytest.fail("connected")
    assert failed.value.after_s == 0.5
    assert progress.is_quic_ready
    assert progress.connection_id is not None


async def test_a_silent_host_times_out(certificate: CertificatePair) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        quick = replace(QUICK, handshake_timeout_s=0.2)
        with pytest.raises(errors.TimedOut, match=f"127.0.0.1:{port}"):
            async with moqt.connect(
                f"moqt://127.0.0.1:{port}", ca=certificate.certificate, transport_config=quick
            ):
                pytest.fail("connected")


async def test_malformed_input_is_a_value_error(certificate: CertificatePair) -> None:
    for url, ca in (("https://x", None), ("moqt://127.0.0.1", b"nonsense")):
        with pytest.raises(ValueError, match=r"expected|found"):
            moqt.connect(url, ca=ca)
    with pytest.raises(OSError, match="cannot listen on"):
        async with moqt.serve(
            "192.0.2.1",
            1,
            certificate=certificate.certificate,
            private_key=certificate.private_key,
        ):
            pytest.fail("listening")


@pytest.mark.parametrize(
    "tokens", [[moqt.AuthToken(0, bytes(70_000))], [moqt.AuthToken(0, b"twice")] * 2]
)
async def test_tokens_that_no_setup_can_carry(
    certificate: CertificatePair, tokens: list[moqt.AuthToken]
) -> None:
    """It is said before anything is sent, and no socket is left."""
    async with serving(certificate) as server:
        with pytest.raises(errors.LocalProtocolError, match=r"SETUP|given twice"):
            async with moqt.connect(
                f"moqt://127.0.0.1:{server.port}/", ca=certificate.certificate, tokens=tokens
            ):
                pytest.fail("connected")


async def test_a_reason_that_utf8_cannot_say(certificate: CertificatePair) -> None:
    async with serving(certificate) as server, connected(server, certificate) as session:
        (served,) = server.sessions
        await session.close(moqt.SessionErrorCode.INTERNAL_ERROR, "caf\udce9")
        assert (await served.wait_closed()).reason == "caf?"


async def test_an_unknown_host_is_named(certificate: CertificatePair) -> None:
    with pytest.raises(errors.ConnectFailed, match=r"nonesuch\.invalid:443"):
        async with moqt.connect("moqt://nonesuch.invalid", ca=certificate.certificate):
            pytest.fail("connected")


async def test_closing_tells_the_peer_code_and_reason(certificate: CertificatePair) -> None:
    async with serving(certificate) as server, connected(server, certificate) as session:
        (served,) = server.sessions
        await session.close(moqt.SessionErrorCode.UNAUTHORIZED, "go away")
        ended = await served.wait_closed()
        assert (ended.code, ended.reason) == (moqt.SessionErrorCode.UNAUTHORIZED, "go away")
        assert ended.by_peer
        assert session.end is not None
        assert not session.end.by_peer
        with pytest.raises(errors.SessionClosed):
            session.raise_if_closed()
        with pytest.raises(errors.SessionClosed):
            await session.track_status(NAME)
        await poll(lambda: not server.sessions)


async def test_leaving_closes_with_no_error(certificate: CertificatePair) -> None:
    async with serving(certificate) as server:
        async with connected(server, certificate):
            (served,) = server.sessions
        ended = await served.wait_closed()
        assert ended.code is moqt.SessionErrorCode.NO_ERROR
        assert ended.by_peer


async def test_a_server_that_leaves_wakes_all_that_wait(certificate: CertificatePair) -> None:
    directory = directory_with(track_with(1, 1))
    async with serving(certificate, directory) as server:
        async with connected(server, certificate) as session, session.subscribe(NAME) as waiting:
            reading = asyncio.create_task(anext(waiting))
            namespaces = session.subscribe_namespace(moqt.TrackNamespace())
            async with namespaces:
                watching = asyncio.create_task(_drain(namespaces))
                await asyncio.sleep(0.01)
                await server.close()
                for task in (reading, watching):
                    with pytest.raises(errors.SessionClosed) as closed:
                        await task
                    assert closed.value.code is moqt.SessionErrorCode.NO_ERROR
                    assert closed.value.by_peer


async def _drain(items: moqt.NamespaceSubscription) -> None:
    async for _ in items:
        pass


async def test_a_killed_peer_is_lost_by_the_idle_timeout(certificate: CertificatePair) -> None:
    short = replace(QUICK, idle_timeout_s=0.5)
    async with serving(certificate, directory_with(track_with(1, 1))) as server:
        async with connected(server, certificate, transport_config=short) as session:
            async with session.subscribe(NAME) as subscription:
                server.abort()  # says nothing
                with pytest.raises(errors.SessionClosed, match="idle timeout"):
                    await anext(subscription)


async def test_goaway_reaches_the_client(certificate: CertificatePair) -> None:
    async with serving(certificate) as server, connected(server, certificate) as session:
        server.goaway("moqt://other.example/")
        await poll(lambda: session.goaway_received is not None)
        assert session.goaway_received is not None
        assert session.goaway_received.new_session_uri == "moqt://other.example/"


async def test_a_server_yields_its_sessions(certificate: CertificatePair) -> None:
    async with serving(certificate) as server:
        arrivals = aiter(server)
        async with connected(server, certificate):
            first = await anext(arrivals)
            async with connected(server, certificate):
                second = await anext(arrivals)
                assert server.sessions == (first, second)
        await server.close()
        with pytest.raises(StopAsyncIteration):
            await anext(arrivals)


async def test_many_sessions_share_one_socket(certificate: CertificatePair) -> None:
    directory = directory_with(track_with(1, 2, 50_000))
    async with serving(certificate, directory) as server:

        async def one() -> None:
            async with connected(server, certificate) as session:
                async with session.fetch(NAME) as fetch:
                    assert len([item async for item in fetch]) == 2

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(one())
        await poll(lambda: not server._reception.listener.drivers)


async def test_no_warning_is_raised_when_verified(certificate: CertificatePair) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with serving(certificate) as server, connected(server, certificate):
            pass


async def test_a_closing_server_takes_nobody_in(certificate: CertificatePair) -> None:
    """Whoever comes while the last farewells are repeated would be dropped unheard."""
    lingering = replace(QUICK, close_linger_s=0.5)
    hasty = replace(QUICK, handshake_timeout_s=0.2)
    async with (
        serving(certificate, transport_config=lingering) as server,
        connected(server, certificate),
    ):
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        with pytest.raises(errors.MoqtError):
            async with connected(server, certificate, transport_config=hasty):
                pass
        await closing


async def test_a_server_closes_while_a_handshake_times_out(certificate: CertificatePair) -> None:
    """The deadline of an unfinished handshake falls into the time that closing takes."""
    config = replace(QUICK, handshake_timeout_s=0.2, close_linger_s=0.6)
    async with serving(certificate, transport_config=config) as server:
        client = QuicConnection(configuration=quic_configuration(QUICK, is_client=True))
        client.connect(("127.0.0.1", server.port), now=time.monotonic())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for datagram, address in client.datagrams_to_send(now=time.monotonic()):
                udp.sendto(datagram, address)
        await poll(lambda: bool(server._reception.driver_of))
        async with asyncio.timeout(20):
            await server.close()
        assert not server._reception.driver_of
