"""The command line and the environment of a test client."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import warnings
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import moqt
from moqt.tools import arguments as read
from moqt.tools.relay_test.case import Target
from moqt.tools.relay_test.run import run_cases
from moqt.tools.relay_test.tap import TapWriter
from moqt.wire.draft import ALPN

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from moqt.tools.relay_test.case import Case

__all__ = ["ExitCode", "Settings", "main", "read_settings"]

DEFAULT_RELAY = "moqt://localhost:4443"

_EPILOG = """\
Without an argument the environment is read: RELAY_URL, TESTCASE, TLS_DISABLE_VERIFY=1, VERBOSE=1,
QLOG_DIR. The result is TAP version 14.

Exit codes: 0 all passed; 1 a test failed, or no relay is there; 2 a wrong command line, environment
or address; 127 a test or a transport that this client does not have; 130 interrupted; 143 SIGTERM.
"""

_QUIET = frozenset({"", "0", "1", "false", "no", "off"})
"""Values of a switch that need no remark: only "1" sets it."""


class ExitCode(IntEnum):
    """What the runner reads from the exit code."""

    PASSED = 0
    FAILED = 1
    USAGE = 2
    NOT_SUPPORTED = 127
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked for. No `tests`: all. `remarks`: what of the environment was not heeded."""

    relay: str
    tests: tuple[str, ...]
    lists: bool
    verbose: bool
    tls_disable_verify: bool
    qlog_dir: Path | None
    ca: bytes | None = None
    tokens: tuple[moqt.AuthToken, ...] = ()
    remarks: tuple[str, ...] = ()


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
    parser.add_argument(
        "-t",
        "--test",
        metavar="NAME",
        action="append",
        default=[],
        help="run this test; may be repeated; default: all",
    )
    parser.add_argument("-l", "--list", action="store_true", help="list the tests and exit")
    parser.add_argument(
        "-v", "--verbose", action="store_true", default=None, help="show each step as a comment"
    )
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument(
        "--tls-disable-verify",
        action="store_true",
        default=None,
        help="trust whatever certificate the relay shows",
    )
    trust.add_argument(
        "--ca",
        metavar="FILE",
        type=read.certificates,
        help="certificates to trust, PEM (not of the contract; default: the public CAs)",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        type=read.tokens,
        default=(),
        help="file with the authorization token that the relay asks for (not of the contract)",
    )
    parser.add_argument(
        "--qlog", metavar="DIR", type=Path, help="leave a qlog of every connection there"
    )
    found = parser.parse_args(arguments)
    qlog_dir = environment.get("QLOG_DIR")
    test = environment.get("TESTCASE")
    disable_verify = None if found.ca else environment.get("TLS_DISABLE_VERIFY")
    return Settings(
        relay=found.relay or environment.get("RELAY_URL") or DEFAULT_RELAY,
        tests=tuple(found.test) or ((test,) if test else ()),
        lists=found.list,
        verbose=_switch(found.verbose, environment.get("VERBOSE")),
        tls_disable_verify=_switch(found.tls_disable_verify, disable_verify),
        qlog_dir=found.qlog or (Path(qlog_dir) if qlog_dir else None),
        ca=found.ca,
        tokens=found.token_file,
        remarks=tuple(
            f"{name}={environment[name]} is not heeded: only 1 sets it"
            for name in ("TLS_DISABLE_VERIFY", "VERBOSE")
            if environment.get(name, "").lower() not in _QUIET
        ),
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
        return ExitCode.INTERRUPTED
    except _Terminated:
        tap.bail_out("terminated")
        return ExitCode.TERMINATED


def _run(cases: Sequence[Case], settings: Settings, tap: TapWriter) -> int:
    comments = (
        moqt.SessionConfig().implementation,
        f"Relay: {settings.relay}",
        f"Draft: {ALPN}",
        *settings.remarks,
        *(("The relay's certificate is not verified",) if settings.tls_disable_verify else ()),
    )
    names = {case.name for case in cases}
    unknown = [test for test in settings.tests if test not in names]
    if unknown:
        tap.begin(len(unknown), *comments)
        for test in unknown:
            tap.test(test, passed=True, skip="this client has no test of this name")
        return ExitCode.NOT_SUPPORTED
    if settings.relay.lower().startswith("https:"):
        tap.begin(0, *comments, skip="no WebTransport here: give a moqt:// address (raw QUIC)")
        return ExitCode.NOT_SUPPORTED
    try:
        moqt.MoqtUri.parse(settings.relay)
        if settings.qlog_dir is not None:
            read.folder(str(settings.qlog_dir))
    except (ValueError, argparse.ArgumentTypeError) as error:
        tap.begin(None, *comments)
        tap.bail_out(str(error))
        return ExitCode.USAGE
    chosen = [case for case in cases if not settings.tests or case.name in settings.tests]
    tap.begin(len(chosen), *comments)
    target = Target(
        settings.relay,
        tls_disable_verify=settings.tls_disable_verify,
        qlog_dir=settings.qlog_dir,
        ca=settings.ca,
        tokens=settings.tokens,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", moqt.InsecureConnectionWarning)  # it was asked for
        passed = asyncio.run(
            _until_terminated(run_cases(chosen, target, tap, verbose=settings.verbose))
        )
    return ExitCode.PASSED if passed else ExitCode.FAILED


class _Terminated(Exception):
    """SIGTERM came."""


async def _until_terminated(work: Coroutine[None, None, bool]) -> bool:
    """Do the work; SIGTERM cancels it, so that sessions are closed and the output has an end."""
    task = asyncio.ensure_future(work)
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel()

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, terminate)
    except (NotImplementedError, RuntimeError, ValueError):
        pass  # not on this platform, or not in this thread: SIGTERM ends the process by itself
    try:
        return await task
    except asyncio.CancelledError:
        if not is_terminated:
            raise
        raise _Terminated from None
