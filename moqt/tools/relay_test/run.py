"""Runs tests one after the other, each within its time, and reports them as TAP."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from moqt.errors import ConnectFailed, MoqtError
from moqt.tools.hints import connect_hint
from moqt.tools.relay_test.case import CLIENT, CaseFailed, Stage, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.tools.relay_test.case import Case, Target
    from moqt.tools.relay_test.tap import TapWriter

__all__ = ["run_cases"]

SLACK_S = 10.0
"""What a whole run may take beyond the limits of its tests: time for connections to close."""


async def run_cases(
    cases: Sequence[Case], target: Target, tap: TapWriter, *, verbose: bool
) -> bool:
    """Run `cases` against `target` and return whether all passed; the plan is the caller's.

    A relay that no test has reached yet, and that the first does not reach either, is given up:
    the first test fails, and the rest is not tried ("Bail out!").
    """
    limit_s = sum(case.timeout_s for case in cases) + SLACK_S
    all_passed, was_reached = True, False
    try:
        async with asyncio.timeout(limit_s):
            for case in cases:
                stage = Stage(target)
                failure = await _run_case(case, stage)
                _report(tap, case, stage, failure, verbose=verbose)
                all_passed = all_passed and failure is None
                was_reached = was_reached or stage.was_connected
                if failure is not None and not was_reached:
                    tap.bail_out(f"no session with {target.url}: {failure.received}")
                    break
    except TimeoutError:
        all_passed = False
        tap.bail_out(f"not done after {limit_s:g} s")
    return all_passed


async def _run_case(case: Case, stage: Stage) -> CaseFailed | None:
    """Run one test and return how it failed; None: it passed."""
    try:
        async with asyncio.timeout(case.timeout_s):
            await case.run(stage)
    except CaseFailed as failure:
        return failure
    except ConnectFailed as error:
        hint = connect_hint(error, insecure="--tls-disable-verify")
        message = f"{error} (hint: {hint})"
        return CaseFailed(expected=stage.expected, received=error.reason, message=message)
    except MoqtError as error:
        return stage.failed(describe(error))
    except TimeoutError:
        return stage.failed(f"nothing more within {case.timeout_s:g} s")
    return None


def _report(
    tap: TapWriter, case: Case, stage: Stage, failure: CaseFailed | None, *, verbose: bool
) -> None:
    duration_ms = round((time.monotonic() - stage.started_at) * 1000)
    diagnostics: dict[str, int | str] = {"duration_ms": duration_ms}
    if failure is not None:
        diagnostics["expected"] = failure.expected
        diagnostics["received"] = failure.received
        if failure.message:
            diagnostics["message"] = failure.message
    diagnostics.update(stage.facts)
    for role, connection_id in stage.connection_ids.items():
        name = "connection_id" if role == CLIENT else f"{role}_connection_id"
        diagnostics[name] = connection_id
    if verbose:
        tap.comment(f"{case.name}:")
        for note in stage.notes:
            tap.comment(f"  {note}")
    tap.test(case.name, passed=failure is None, diagnostics=diagnostics)
