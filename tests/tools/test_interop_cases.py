"""The tests of moqt-interop-client against relays that work, and against some that don't."""

from __future__ import annotations

import io
import os
import re
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import moqt
from kvcs.interop_client import roundtrip
from kvcs.interop_client.main import CASES
from kvcs.names import NamespaceForm
from moqt.events import ObjectReceived
from moqt.session.control import Control
from moqt.tools.relay_test.case import Case, CaseFailed, Stage, Target
from moqt.tools.relay_test.content import Received, locations, new_namespace, payload
from moqt.tools.relay_test.run import run_cases
from moqt.tools.relay_test.tap import TapWriter
from tests.asyncio.endpoints import serving
from tests.tools.eager_relay import EagerRelay, relaying

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from moqt.tls import CertificatePair

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore::moqt.asyncio.client.InsecureConnectionWarning"),
]

SHORT_S = 1.5
"""The limit of tests that wait for what never comes."""


AMPLE_S = 60.0
"""The limit of tests that are to pass, on a machine however busy."""


def select(name: str) -> Case:
    (found,) = (case for case in CASES if case.name == name)
    return found


async def run(
    url: str, *cases: Case, limit_s: float | None = None, verbose: bool = False
) -> tuple[bool, str]:
    chosen: Sequence[Case] = cases
    if limit_s is not None:
        chosen = [replace(case, timeout_s=limit_s) for case in cases]
    out = io.StringIO()
    passed = await run_cases(chosen, Target(url, True), TapWriter(out), verbose=verbose)
    return passed, out.getvalue()


async def diagnosis(url: str, name: str, limit_s: float | None = None) -> dict[str, str]:
    """Run one test that must fail, and return its diagnostics."""
    passed, text = await run(url, select(name), limit_s=limit_s)
    assert not passed
    assert text.startswith(f"not ok 1 - {name}\n  ---\n")
    return dict(re.findall(r"^  (\w+): (.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_passes_at_a_relay_that_works(case: Case, certificate: CertificatePair) -> None:
    async with relaying(certificate) as relay:
        passed, text = await run(relay.url, case, limit_s=AMPLE_S)
    assert passed, text
    assert text.startswith(f"ok 1 - {case.name}\n  ---\n  duration_ms: ")


async def test_connections_leave_qlogs_when_asked_for(
    certificate: CertificatePair, tmp_path: Path
) -> None:
    out = io.StringIO()
    async with relaying(certificate) as relay:
        target = Target(relay.url, True, tmp_path)
        case = select("announce-subscribe")
        assert await run_cases([case], target, TapWriter(out), verbose=False)
    ids = re.findall(r'connection_id: "(\w+)"', out.getvalue())
    expected = sorted(f"{connection_id}_client.qlog" for connection_id in ids)
    assert sorted(os.listdir(tmp_path)) == expected


async def test_connections_are_reported_by_their_roles(certificate: CertificatePair) -> None:
    async with relaying(certificate) as relay:
        _, text = await run(relay.url, select("setup-only"), select("announce-subscribe"))
    ids = dict(re.findall(r'^  (\w*connection_id): "([0-9a-f]{16})"$', text, re.MULTILINE))
    assert list(ids) == ["connection_id", "publisher_connection_id", "subscriber_connection_id"]
    assert len(set(ids.values())) == 3


async def test_steps_are_comments_when_asked_for(certificate: CertificatePair) -> None:
    async with relaying(certificate) as relay:
        _, quiet = await run(relay.url, select("announce-only"))
        _, verbose = await run(relay.url, select("announce-only"), verbose=True)
    assert "#" not in quiet
    assert "waiting for REQUEST_OK to PUBLISH_NAMESPACE\n" in verbose
    assert verbose.index("# announce-only:") < verbose.index("ok 1 - announce-only")


async def test_a_relay_that_says_nothing_fails_in_time(certificate: CertificatePair) -> None:
    async with relaying(certificate, EagerRelay(is_mute=True)) as relay:
        found = await diagnosis(relay.url, "announce-only", SHORT_S)
    assert found["expected"] == '"REQUEST_OK to PUBLISH_NAMESPACE"'
    assert found["received"] == '"nothing more within 1.5 s"'
    assert found["message"] == '"the relay takes no PUBLISH_NAMESPACE"'
    assert "connection_id" in found


async def test_how_far_connecting_came_is_said(
    certificate: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relaying(certificate) as relay:
        monkeypatch.setattr(Control, "flush", lambda _self: None)
        found = await diagnosis(relay.url, "setup-only", SHORT_S)
    assert found["received"] == '"nothing more within 1.5 s (QUIC handshake done, no SETUP)"'
    assert "connection_id" in found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"moqt://127.0.0.1:{silent.getsockname()[1]}"
        found = await diagnosis(url, "setup-only", SHORT_S)
    assert found["received"] == '"nothing more within 1.5 s (QUIC handshake not done)"'
    assert "connection_id" in found


async def test_a_certificate_that_is_not_trusted_comes_with_the_options(
    certificate: CertificatePair,
) -> None:
    out = io.StringIO()
    async with relaying(certificate) as relay:
        await run_cases([select("setup-only")], Target(relay.url), TapWriter(out), verbose=False)
        assert "not trusted by the public CAs" in out.getvalue()
        assert "hint: --ca FILE names what to trust; --tls-disable-verify" in out.getvalue()
        target = Target(relay.url, ca=certificate.certificate)
        case = replace(select("kvcs-roundtrip"), timeout_s=AMPLE_S)
        assert await run_cases([case], target, TapWriter(out), verbose=False), out.getvalue()


async def test_tokens_go_with_sessions_and_requests(certificate: CertificatePair) -> None:
    policy = moqt.KnownTokens([moqt.AuthToken(0, b"s3cret")])
    case = replace(select("subscribe-error"), timeout_s=AMPLE_S)
    found = []
    async with serving(certificate, token_policy=policy) as server:
        url = f"moqt://127.0.0.1:{server.port}"
        for tokens in ((), (moqt.AuthToken(0, b"s3cret"),)):
            out = io.StringIO()
            target = Target(url, ca=certificate.certificate, tokens=tokens)
            assert await run_cases([case], target, TapWriter(out), verbose=False)
            found += re.findall(r'request_error: "(\w+) ', out.getvalue())
    assert found == ["UNAUTHORIZED", "DOES_NOT_EXIST"]


async def test_a_refusal_is_named_with_its_code(certificate: CertificatePair) -> None:
    async with moqt.serve(
        "127.0.0.1",
        0,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
    ) as server:  # a server that is no relay: it takes no offers
        found = await diagnosis(f"moqt://127.0.0.1:{server.port}", "announce-only")
    assert found["received"].startswith('"REQUEST_ERROR UNINTERESTED (0x20)')


async def test_a_track_that_nobody_has_must_not_be_accepted(certificate: CertificatePair) -> None:
    relay = EagerRelay()
    namespace = moqt.TrackNamespace.of("nonexistent", "namespace")
    relay.directory.add(moqt.TrackSource(moqt.FullTrackName(namespace, b"test-track")))
    async with relaying(certificate, relay):
        found = await diagnosis(relay.url, "subscribe-error")
    assert found["received"] == '"SUBSCRIBE_OK"'


async def test_a_lost_object_is_named(certificate: CertificatePair) -> None:
    relay = EagerRelay(drops=frozenset({moqt.Location(1, 2)}))
    async with relaying(certificate, relay):
        found = await diagnosis(relay.url, "fetch-range")
    assert found["received"] == '"7 of 8 Objects; missing: {1,2}"'


async def test_other_octets_are_named(certificate: CertificatePair) -> None:
    relay = EagerRelay(garbles=frozenset({moqt.Location(2, 0)}))
    async with relaying(certificate, relay):
        found = await diagnosis(relay.url, "fetch-range")
    assert found["received"] == '"8 of 8 Objects; other octets: {2,0}"'


async def test_a_layer_that_does_not_come_is_named(certificate: CertificatePair) -> None:
    relay = EagerRelay(garbles=frozenset({moqt.Location(2, 1)}))
    async with relaying(certificate, relay):
        found = await diagnosis(relay.url, "kvcs-roundtrip", AMPLE_S)
    assert "layer 2 k block 1" in found["received"]
    assert "(layers [0, 1" in found["received"]
    assert found["namespace_form"] == '"binary"'
    assert found["message"] == '"the cache does not come whole through the relay"'


async def test_what_a_fill_leaves_out_is_named(certificate: CertificatePair) -> None:
    relay = EagerRelay(drops=frozenset({moqt.Location(4, 1)}))
    async with relaying(certificate, relay):
        found = await diagnosis(relay.url, "fill-exactly-once", SHORT_S)
    assert found["received"].startswith('"nothing more within 1.5 s (19 of 20 Objects; missing:')
    assert (
        found["message"] == '"the relay does not fill a subscription from the start of its track"'
    )
    assert {"subscriber_1_connection_id", "subscriber_2_connection_id"} < found.keys()


async def test_a_relay_without_range_filters_is_told_from_its_setup(
    certificate: CertificatePair,
) -> None:
    async with relaying(certificate, config=moqt.SessionConfig(max_filter_ranges=0)) as relay:
        found = await diagnosis(relay.url, "objectid-filter")
    assert found["received"] == '"MAX_FILTER_RANGES 0"'


async def test_a_namespace_that_stays_is_found_out(certificate: CertificatePair) -> None:
    async with relaying(certificate, EagerRelay(keeps_namespaces=True)) as relay:
        found = await diagnosis(relay.url, "namespace-discovery", SHORT_S)
    assert found["expected"] == '"NAMESPACE_DONE"'


async def test_a_session_that_the_relay_ends_is_a_failure(certificate: CertificatePair) -> None:
    async with relaying(certificate) as relay:
        stage = Stage(Target(relay.url, True))
        with pytest.raises(CaseFailed, match="lasts until the test closes it"):
            async with stage.connect() as session:
                session.close_now(moqt.SessionErrorCode.INTERNAL_ERROR, "as a relay might")


async def test_a_relay_that_was_never_reached_is_given_up(certificate: CertificatePair) -> None:
    async with relaying(certificate) as relay:
        url = relay.url  # its port is free again when it is closed
    passed, text = await run(url, *CASES, limit_s=SHORT_S)
    assert not passed
    assert text.count("not ok") == 1
    assert re.search(rf"^Bail out! no session with {url}: .+\n\Z", text, re.MULTILINE)


async def test_a_relay_that_was_reached_is_not_given_up(certificate: CertificatePair) -> None:

    async with relaying(certificate) as relay:

        async def leave(stage: Stage) -> None:
            async with stage.connect():
                pass
            stage.target = Target("moqt://127.0.0.1:1", True)
            async with stage.connect():
                raise AssertionError("nobody is there")

        case = Case("leave", 5.0, leave)
        _, text = await run(relay.url, case, select("setup-only"))
    assert "not ok 1 - leave" in text
    assert "ok 2 - setup-only" in text
    assert "Bail out!" not in text


def test_all_tests_have_a_time_limit_and_a_name_of_their_own() -> None:
    assert all(0 < case.timeout_s <= 15 for case in CASES)
    assert len({case.name for case in CASES}) == len(CASES) == 11


def test_an_object_that_comes_twice_or_unasked_is_a_fault() -> None:
    received = Received(locations([0], [0, 1]))
    for object_id in (0, 1, 1, 3):
        header = moqt.ObjectHeader(0, object_id, 0, 128, 4096)
        body = memoryview(payload(0, object_id))
        received.take(ObjectReceived(0, moqt.Object(header, body)))
    assert received.has()
    assert received.summary() == "2 of 2 Objects; twice: {0,1}; not asked for: {0,3}"
    with pytest.raises(CaseFailed):
        received.check("it must not")


def test_text_only_relays_get_hexadecimal_fields() -> None:
    assert roundtrip.namespace_form("moq-rs/0.5") is NamespaceForm.HEX
    assert roundtrip.namespace_form("aiomoqt/0.13.3") is NamespaceForm.BINARY
    assert roundtrip.namespace_form(None) is NamespaceForm.BINARY


def test_namespaces_of_two_runs_differ() -> None:
    assert new_namespace() != new_namespace()
