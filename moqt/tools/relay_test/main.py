"""The command line and the environment of a test client."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import warnings
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import moqt
from moqt.tools.relay_test.case import Target
from moqt.tools.relay_test.run import run_cases
from moqt.tools.relay_test.tap import TapWriter
from moqt.wire.draft import ALPN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moqt.tools.relay_test.case import Case

__all__ = ["ExitCode", "Settings", "main", "read_settings"]

DEFAULT_RELAY = "moqt://localhost:4443"

_EPILOG = """\
Without an argument the environment is read: RELAY_URL, TESTCASE, TLS_DISABLE_VERIFY=1, VERBOSE=1,
QLOG_DIR. The result is TAP version 14.

Exit codes: 0 all passed; 1 a test failed, or no relay is there; 127 a test or a transport that this
client does not have; 2 a wrong command line.
"""


class ExitCode(IntEnum):
    """What the runner reads from the exit code."""

    PASSED = 0
    FAILED = 1
    NOT_SUPPORTED = 127


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked for. `test` None: all tests."""

    relay: str
    test: str | None
    lists: bool
    verbose: bool
    tls_disable_verify: bool
    qlog_dir: Path | None


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Read what is asked for: arguments win over the environment, that over the defaults.

    An empty variable counts as not set; of the two switches only "1" sets them.
    Raises: SystemExit 2 for arguments that are none.
    """
    parser = argparse.ArgumentParser(
        "moqt-interop-client",
        description=f"Test a MOQT relay over QUIC ({ALPN}) and report as TAP version 14.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-r", "--relay", metavar="URL", help=f"default {DEFAULT_RELAY}")
    parser.add_argument("-t", "--test", metavar="NAME", help="run one test; default: all")
    parser.add_argument("-l", "--list", action="store_true", help="list the tests and exit")
    parser.add_argument(
        "-v", "--verbose", action="store_true", default=None, help="show each step as a comment"
    )
    parser.add_argument(
        "--tls-disable-verify",
        action="store_true",
        default=None,
        help="trust whatever certificate the relay shows",
    )
    parser.add_argument(
        "--qlog", metavar="DIR", type=Path, help="leave a qlog of every connection there"
    )
    found = parser.parse_args(arguments)
    qlog_dir = environment.get("QLOG_DIR")
    return Settings(
        relay=found.relay or environment.get("RELAY_URL") or DEFAULT_RELAY,
        test=found.test or environment.get("TESTCASE") or None,
        lists=found.list,
        verbose=_switch(found.verbose, environment.get("VERBOSE")),
        tls_disable_verify=_switch(found.tls_disable_verify, environment.get("TLS_DISABLE_VERIFY")),
        qlog_dir=found.qlog or (Path(qlog_dir) if qlog_dir else None),
    )


def _switch(argument: bool | None, variable: str | None) -> bool:
    return variable == "1" if argument is None else argument


def main(cases: Sequence[Case], arguments: Sequence[str] | None = None) -> int:
    """Run a client that has these tests, and return its exit code."""
    settings = read_settings(sys.argv[1:] if arguments is None else arguments, os.environ)
    if settings.lists:
        for case in cases:
            print(case.name)
        return ExitCode.PASSED
    tap = TapWriter(sys.stdout)
    try:
        return _run(cases, settings, tap)
    except KeyboardInterrupt:
        tap.bail_out("interrupted")
        return 130


def _run(cases: Sequence[Case], settings: Settings, tap: TapWriter) -> int:
    comments = (moqt.SessionConfig().implementation, f"Relay: {settings.relay}", f"Draft: {ALPN}")
    chosen = [case for case in cases if settings.test in (None, case.name)]
    if not chosen:
        tap.begin(1, *comments)
        tap.test(settings.test or "", passed=True, skip="this client has no test of this name")
        return ExitCode.NOT_SUPPORTED
    if settings.relay.lower().startswith("https:"):
        tap.begin(0, *comments, skip="no WebTransport here: give a moqt:// address (raw QUIC)")
        return ExitCode.NOT_SUPPORTED
    tap.begin(len(chosen), *comments)
    try:
        moqt.MoqtUri.parse(settings.relay)
        if settings.qlog_dir is not None:
            settings.qlog_dir.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        tap.bail_out(str(error))
        return ExitCode.FAILED
    target = Target(settings.relay, settings.tls_disable_verify, settings.qlog_dir)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", moqt.InsecureConnectionWarning)  # it was asked for
        passed = asyncio.run(run_cases(chosen, target, tap, verbose=settings.verbose))
    return ExitCode.PASSED if passed else ExitCode.FAILED
