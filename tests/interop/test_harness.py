"""The harness of interop/: what it compares, what it kills, and what is committed."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import moqt
from interop import __main__ as main_module
from interop.__main__ import (
    MOST_AGAIN,
    PEERS,
    Run,
    beside_bulk,
    bulk_summary,
    chosen,
    clear_logs,
    pinned_versions,
    run_all,
    summary,
    tell,
)
from interop.content.track_content import (
    DATAGRAM_SIZE,
    GROUPS,
    Collected,
    CollectedDatagrams,
    payload,
    properties,
    whole,
)
from interop.harness import expected as expectations
from interop.harness import matrix, processes
from interop.harness.bulk_count import BulkCount, BulkPackets
from interop.harness.cases import (
    Case,
    CaseFailed,
    Direction,
    Outcome,
    PeerLimit,
    Registry,
    Result,
    check,
)
from interop.harness.expected import Expected, load
from interop.harness.one import registry, run_case
from interop.harness.ours import BINARY, collect, named, url_of, whole_track
from interop.harness.processes import PeerProcess
from interop.harness.stage import ROOT, Stage
from interop.harness.tap import failure
from interop.harness.wiretap import Wiretap
from moqt.asyncio.bulk.connection import BulkConnection
from moqt.asyncio.config import TransportConfig
from moqt.tools.dump import main as dump

PASS = Outcome(Result.PASS)
LIMIT = Outcome(Result.LIMIT, "NOT_SUPPORTED", "0500")
LIMIT_TEXT = '[fetch]\nresult = "limit"\nobserved = "x"\nreason = "y"\n'


async def nothing(stage: Stage) -> None:
    """Do nothing."""


CASE = Case("fetch", "FETCH", Direction.TO_PEER, "9.11", nothing)


async def started(tmp_path: Path, code: str) -> PeerProcess:
    return await PeerProcess.start("peer", [sys.executable, "-c", code], cwd=tmp_path, env={})


@pytest.mark.parametrize("peer", PEERS)
def test_committed_matrix_is_that_of_the_cases_and_what_they_must_give(peer: str) -> None:
    document = json.loads((ROOT / "matrix.json").read_text())
    (entry,) = (entry for entry in document["peers"] if entry["name"] == peer)
    cases = registry(peer).cases
    expected = load(peer, (case.name for case in cases))
    assert [case["name"] for case in entry["cases"]] == [case.name for case in cases]
    for case, written in zip(cases, entry["cases"], strict=True):
        outcome = expected[case.name].outcome
        assert written["title"] == case.title
        assert written["result"] == outcome.result.value
        assert written.get("observed", "") == outcome.observed
        assert written.get("evidence", "") == outcome.evidence
        assert written.get("evidence_kind", "") == expected[case.name].evidence_kind
        assert written.get("evidence_from", "") == expected[case.name].evidence_from
        assert written.get("reason", "") == expected[case.name].reason
    page = (ROOT / "matrix.md").read_text()
    assert all(f"| {case.name} |" in page for case in cases)


def test_matrix_is_the_same_for_the_same_results(tmp_path: Path) -> None:
    report = matrix.PeerReport(
        "peer",
        {"peer": "1.0"},
        [(CASE, Expected(LIMIT, "It has no FETCH.", "request", "the peer"))],
    )
    matrix.write(tmp_path, [report])
    first = [(tmp_path / name).read_bytes() for name in ("matrix.md", "matrix.json")]
    matrix.write(tmp_path, [report])
    assert first == [(tmp_path / name).read_bytes() for name in ("matrix.md", "matrix.json")]
    assert b"It has no FETCH." in first[0]
    assert b"- octets (`request`, from the peer): `0500`\n" in first[0]
    assert json.loads(first[1])["peers"][0]["cases"][0]["evidence"] == "0500"


@pytest.mark.parametrize(
    "outcome",
    [
        PASS,
        Outcome(Result.FAIL, "timed out"),
        Outcome(Result.LIMIT, "NOT_SUPPORTED", "0501"),
        Outcome(Result.LIMIT, "DOES_NOT_EXIST", "0500"),
    ],
)
def test_anything_else_than_expected_is_told(
    outcome: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run("aiomoqt", CASE, Expected(LIMIT, "no FETCH"), outcome, 1.0)
    assert not run.is_expected
    tell(run, verbose=False)
    printed = capsys.readouterr().out
    assert printed.startswith("! ")
    assert "expected: limit NOT_SUPPORTED 0500" in printed
    assert Run("aiomoqt", CASE, Expected(LIMIT, "no FETCH"), LIMIT, 1.0).is_expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"missing cases \['fetch'\]"),
        ('[fetch]\nresult = "pass"\n[other]\nresult = "pass"\n', r"unknown cases \['other'\]"),
        ('[fetch]\nresult = "limit"\n', 'expected result = "pass"'),
        ('[fetch]\nresult = "fail"\nobserved = "x"\nreason = "y"\n', 'expected result = "pass"'),
        ('[fetch]\nresult = "pass"\nreason = "y"\n', 'expected result = "pass"'),
        (f"{LIMIT_TEXT}evidence = '00'\n", "evidence has evidence_kind"),
        (f"{LIMIT_TEXT}evidence_kind = 'request'\n", "evidence has evidence_kind"),
        (
            f"{LIMIT_TEXT}evidence = '00'\nevidence_kind = 'x'\nevidence_from = 'us'\n",
            "evidence has evidence_kind",
        ),
    ],
)
def test_expected_results_must_be_whole(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expectations, "ROOT", tmp_path)
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "expected.toml").write_text(text)
    with pytest.raises(ValueError, match=problem):
        load("peer", ["fetch"])


@pytest.mark.parametrize("peer", PEERS)
def test_evidence_reads_as_what_it_is_said_to_be(
    peer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [case.name for case in registry(peer).cases]
    found = [each for each in load(peer, names).values() if each.outcome.evidence]
    assert found
    for each in found:
        assert dump(["--kind", each.evidence_kind, each.outcome.evidence]) == 0, each
        assert capsys.readouterr().out.startswith("@0 ")


def test_the_summary_counts_each_result() -> None:
    def run(outcome: Outcome, expected: Outcome) -> Run:
        return Run("aiomoqt", CASE, Expected(expected), outcome, 1.0)

    not_applicable = Outcome(Result.NOT_APPLICABLE, "x")
    runs = [
        run(PASS, PASS),
        run(PASS, PASS),
        run(LIMIT, LIMIT),
        run(not_applicable, not_applicable),
    ]
    assert summary(runs) == "4 cases: 2 pass, 1 limit, 1 not applicable; all as expected"
    runs = [run(PASS, PASS), run(PASS, LIMIT), run(Outcome(Result.FAIL, "x"), PASS)]
    assert summary(runs) == "3 cases: 2 pass, 1 fail; 2 otherwise than expected"
    runs = [run(PASS, PASS), replace(run(PASS, PASS), is_second=True)]
    assert summary(runs) == "2 cases: 2 pass; all as expected, at the second try aiomoqt/fetch"


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("failing", [1, MOST_AGAIN, MOST_AGAIN + 1])
async def test_few_cases_that_fail_are_run_once_more(
    steady: bool, failing: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries: Counter[str] = Counter()

    folders: list[Path] = []

    async def run_case(
        _peer: str, case: Case, _python: Path, folder: Path
    ) -> tuple[Outcome, BulkPackets]:
        folders.append(folder)
        tries[case.name] += 1
        fails = case.name.startswith("bad") and (steady or tries[case.name] == 1)
        return Outcome(Result.FAIL, "late") if fails else PASS, BulkPackets()

    monkeypatch.setattr(main_module, "run_case", run_case)
    names = ["good", *(f"bad-{number}" for number in range(failing))]
    todo = [("aiomoqt", replace(CASE, name=name), Expected(PASS)) for name in names]
    runs = await run_all(todo, Path("python"), verbose=False)
    assert [run.case.name for run in runs] == names
    is_tried_again = failing <= MOST_AGAIN
    assert tries == {name: 1 + (is_tried_again and name != "good") for name in names}
    assert [run.is_expected for run in runs] == [True] + [is_tried_again and not steady] * failing
    assert capsys.readouterr().out.count("once more, alone:") == failing * is_tried_again
    assert len(set(folders)) == len(folders)


async def test_a_case_that_fails_twice_leaves_the_logs_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process fails at once, since no case has that name."""
    monkeypatch.setattr(main_module, "LOGS", tmp_path / "build" / "interop")
    case = replace(CASE, name="unheard-of")
    todo = [("aiomoqt", case, Expected(PASS))]
    (run,) = await run_all(todo, Path(sys.executable), verbose=False)
    assert run.outcome.result is Result.FAIL
    assert run.is_second
    told = capsys.readouterr().out
    for name in ("unheard-of", "unheard-of.again"):
        folder = Path("build", "interop", "aiomoqt", name)
        assert "unheard-of" in (tmp_path / folder / "case.log").read_text()
        assert f"logs: {folder}\n" in told


def test_where_the_bulk_path_was_not_at_work_is_told() -> None:
    def run(peer: str, bulk: BulkPackets) -> Run:
        return Run(peer, CASE, Expected(PASS), PASS, 1.0, bulk)

    runs = [
        run("aiomoqt", BulkPackets(written=3)),
        run("aiomoqt", BulkPackets(opened=4, left=20)),
        run("moq_rs", BulkPackets(opened=5)),
        run("moq_rs", BulkPackets(left=1)),
    ]
    assert beside_bulk(runs) == ["moq_rs"]
    told = "the bulk path: 3 packets written, 9 opened, 21 left to aioquic"
    assert bulk_summary(runs) == told
    runs.append(run("moq_rs", BulkPackets(written=1, opened=30, left=31)))
    assert beside_bulk(runs) == ["moq_rs/fetch"]


@pytest.mark.parametrize("fast_path", [True, False])
async def test_packets_of_the_bulk_path_are_counted(fast_path: bool, tmp_path: Path) -> None:
    stage = Stage("aiomoqt", Path(sys.executable), tmp_path)
    config = TransportConfig(fast_path=fast_path)
    directory = moqt.TrackDirectory()
    directory.add(whole_track(BINARY))
    with BulkCount() as count:
        async with (
            moqt.serve(
                "127.0.0.1",
                0,
                certificate=stage.certificate,
                private_key=stage.private_key,
                directory=directory,
                transport_config=config,
            ) as server,
            moqt.connect(
                url_of(server.port), ca=stage.certificate, transport_config=config
            ) as session,
            session.fetch(named(BINARY)) as fetch,
        ):
            got = await collect(fetch)
    assert got.live.summary == whole(range(GROUPS))
    assert bool(count.packets.written) == bool(count.packets.opened) == fast_path
    assert BulkConnection.note_sent is count._note_sent


def test_cases_are_chosen_by_parts_of_their_names() -> None:
    some = chosen(PEERS, ["fetch-range", "cache-late"])
    assert {peer for peer, _, _ in some} == set(PEERS)
    assert all("fetch-range" in case.name or "cache-late" in case.name for _, case, _ in some)
    assert len(chosen(PEERS, [])) > len(some) > 2
    with pytest.raises(ValueError, match=r"--case nosuch: no case of aiomoqt .*--list"):
        chosen(["aiomoqt"], ["fetch", "nosuch"])


def test_only_the_logs_of_cases_that_run_go(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    clear_logs([tmp_path / "one", tmp_path / "none"])
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_named_python_is_looked_at_whatever_is_built_already() -> None:
    make = subprocess.run(
        ["make", "--no-print-directory", "peers-python", "PYTHON312=/nowhere/python3.12"],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert make.returncode == 2
    assert "error: PYTHON312=/nowhere/python3.12 is no Python 3.12" in make.stderr


def test_a_python_without_the_pinned_packages_is_refused() -> None:
    with pytest.raises(ValueError, match="needs"):
        pinned_versions("aiomoqt", Path(sys.executable))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, PASS),
        (PeerLimit("NOT_SUPPORTED", b"\x05\x00"), LIMIT),
        (CaseFailed("no"), Outcome(Result.FAIL, "CaseFailed: no")),
        (RuntimeError("ours"), Outcome(Result.FAIL, "RuntimeError: ours")),
    ],
)
async def test_each_end_of_a_case_has_its_outcome(
    error: Exception | None, outcome: Outcome, tmp_path: Path
) -> None:
    async def run(stage: Stage) -> None:
        if error is not None:
            raise error

    case = Case("fetch", "FETCH", Direction.TO_PEER, "9.11", run)
    assert await run_case("aiomoqt", case, Path(sys.executable), tmp_path) == outcome


async def test_a_case_that_hangs_fails(tmp_path: Path) -> None:
    async def hang(stage: Stage) -> None:
        await asyncio.Event().wait()

    case = Case("fetch", "FETCH", Direction.TO_PEER, "9.11", hang, timeout_s=0.05)
    outcome = await run_case("aiomoqt", case, Path(sys.executable), tmp_path)
    assert outcome == Outcome(Result.FAIL, "not done after 0.05 s")


async def test_a_peers_lines_are_waited_for_and_kept(tmp_path: Path) -> None:
    peer = await started(
        tmp_path, "print('READY'); print('got ' + input()); print('RESULT [1, 2]')"
    )
    await peer.line("READY")
    await peer.tell("this")
    await peer.line("got this")
    assert await peer.result() == [1, 2]
    await peer.end()
    assert (tmp_path / "peer.log").read_text() == "READY\ngot this\nRESULT [1, 2]\n"


async def test_a_peer_that_ends_or_is_silent_fails_the_case(tmp_path: Path) -> None:
    peer = await started(tmp_path, "print('Traceback: no such option')")
    with pytest.raises(CaseFailed, match="its last line: Traceback: no such option"):
        await peer.line("READY")
    await peer.end()
    peer = await started(tmp_path, "input()")
    with pytest.raises(CaseFailed, match=r"no line with 'READY' in 0\.05 s"):
        await peer.line("READY", timeout_s=0.05)
    await peer.end()


async def test_a_peer_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('READY'); input()"
    peer = await started(tmp_path, code)
    await peer.line("READY")
    await peer.end(timeout_s=0.05)
    assert peer.returncode == -9


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("ok 1 - fetch", None),
        ('not ok 1 - fetch\n  message: "none came"', "none came"),
    ],
)
async def test_tap_is_read(output: str, reason: str | None, tmp_path: Path) -> None:
    peer = await started(tmp_path, f"print({output!r})")
    assert await failure(peer, "fetch") == reason
    await peer.end()


async def test_no_tap_fails_the_case(tmp_path: Path) -> None:
    peer = await started(tmp_path, "print('1..0 # SKIP')")
    with pytest.raises(CaseFailed, match="no TAP result of fetch"):
        await failure(peer, "fetch")
    await peer.end()


def test_wiretap_puts_octets_in_their_places_and_is_bounded() -> None:
    tap = Wiretap()
    tap.take(1, 3, 0, b"setup")
    tap.take(1, 0, 2, b"cd")
    tap.take(1, 0, 0, b"ab")
    tap.take(1, 4, 0, bytes(5000))
    tap.take(1, 4, 5000, b"beyond")
    assert tap.setup() == b"setup"
    assert [len(reply) for reply in tap.replies()] == [4, 4096]
    assert tap.reply(0) == b"abcd"


def test_collected_objects_are_compared_octet_by_octet() -> None:
    collected = Collected(64)
    for object_id in (0, 1, 1):
        collected.add(0, object_id, payload(0, object_id, 64))
    collected.add(0, 2, payload(0, 3, 64))
    assert collected.summary == {
        "groups": {"0": [0, 1]},
        "repeated": [[0, 1]],
        "wrong": [[0, 2]],
    }
    with pytest.raises(CaseFailed, match="what we got: expected"):
        check("what we got", collected.summary, whole(range(1), range(2)))


def test_collected_datagrams_have_their_mode_and_their_properties() -> None:
    collected = CollectedDatagrams()
    octets = payload(1, 0, DATAGRAM_SIZE)
    collected.take(1, 0, octets, properties(1, 0), is_datagram=True)
    assert collected.summary == whole(range(1, 2), range(1))
    collected.take(1, 0, octets, properties(1, 1), is_datagram=True)
    collected.take(1, 0, octets, properties(1, 0), is_datagram=False)
    collected.take(1, 0, octets[1:], properties(1, 0), is_datagram=True)
    assert collected.summary["wrong"] == [[1, 0]] * 3


def test_names_of_cases_are_unique() -> None:
    cases = Registry()
    cases.add(CASE)
    with pytest.raises(ValueError, match="two cases are called fetch"):
        Registry.joined(cases, cases)


EARLY = """
import socket, time
port = PORT
print("READY", flush=True)
time.sleep(0.2)
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.bind(("127.0.0.1", port))
time.sleep(60)
"""


async def test_a_peer_that_says_ready_before_it_has_its_port_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    peer = await started(tmp_path, EARLY.replace("PORT", str(port)))
    try:
        await peer.serving("READY", port)
        assert await processes._is_taken(port)
    finally:
        await peer.end()
    silent = await started(tmp_path, "print('READY', flush=True); import time; time.sleep(60)")
    monkeypatch.setattr("interop.harness.processes.READY_TIMEOUT_S", 0.2)
    try:
        with pytest.raises(CaseFailed, match=f"said 'READY', but port {port} is closed"):
            await silent.serving("READY", port)
    finally:
        await silent.end()
