"""`python -m interop.harness.one PEER CASE PYTHON FOLDER`: run one case in this process.

It's a process of its own, in a process group of its own, so that whoever runs it can end it and all
that it started. The outcome goes to outcome.json in FOLDER.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from interop.harness.bulk_count import BulkCount
from interop.harness.cases import Case, NotApplicable, Outcome, PeerLimit, Registry, Result
from interop.harness.stage import Stage

__all__ = ["registry", "run_case"]


def registry(peer: str) -> Registry:
    """Return the cases of a peer."""
    found: object = import_module(f"interop.{peer}.cases").CASES
    assert isinstance(found, Registry)
    return found


async def run_case(peer: str, case: Case, python: Path, folder: Path) -> Outcome:
    """Run a case and return its outcome, whatever goes wrong in it."""
    try:
        async with Stage(peer, python, folder) as stage, asyncio.timeout(case.timeout_s):
            await case.run(stage)
    except PeerLimit as limit:
        evidence = "" if limit.evidence is None else limit.evidence.hex()
        return Outcome(Result.LIMIT, limit.observed, evidence)
    except NotApplicable as finding:
        return Outcome(Result.NOT_APPLICABLE, str(finding))
    except TimeoutError:
        traceback.print_exc()
        return Outcome(Result.FAIL, f"not done after {case.timeout_s:g} s")
    except Exception as error:  # whatever it is, it is this case's failure
        traceback.print_exc()
        return Outcome(Result.FAIL, f"{type(error).__name__}: {error}")
    return Outcome(Result.PASS)


def main(peer: str, name: str, python: str, folder: str) -> None:
    """Run it."""
    logging.basicConfig(
        level=logging.DEBUG, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s"
    )
    with BulkCount() as count:
        outcome = asyncio.run(run_case(peer, registry(peer).find(name), Path(python), Path(folder)))
    Path(folder, "outcome.json").write_text(
        json.dumps(
            {
                "result": outcome.result.value,
                "observed": outcome.observed,
                "evidence": outcome.evidence,
                "bulk": asdict(count.packets),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
