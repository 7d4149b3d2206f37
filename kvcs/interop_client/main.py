"""The program, and all its tests."""

from __future__ import annotations

from functools import partial

from kvcs.interop_client.roundtrip import kvcs_roundtrip
from moqt.tools.pipes import until_reader_goes
from moqt.tools.relay_test import cases
from moqt.tools.relay_test.case import Case
from moqt.tools.relay_test.main import main

__all__ = ["CASES", "run"]

CASES = (*cases.CASES, Case("kvcs-roundtrip", 15.0, kvcs_roundtrip))
"""All tests, in the order they are run."""


def run() -> int:
    """Run the client as a program and return its exit code."""
    return until_reader_goes(partial(main, CASES))
