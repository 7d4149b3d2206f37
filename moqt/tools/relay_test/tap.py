"""TAP version 14: a plan, a line a test, and YAML diagnostics (testanything.org)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TextIO

from moqt.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TapWriter"]


class TapWriter:
    """Writes one TAP stream, each test as soon as it is over.

    What a relay said goes into comments and diagnostics with its control characters escaped, so it
    can break neither a line nor the YAML.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._number = 0

    def begin(self, tests: int | None, *comments: str, skip: str = "") -> None:
        """Write the version, comments and the plan; `skip` says why there is no test at all.

        `tests` None: no plan, since nothing can be tested.
        """
        self._line("TAP version 14")
        for comment in comments:
            self.comment(comment)
        if tests is not None:
            self._line(f"1..{tests}" + (f" # SKIP {printable(skip)}" if skip else ""))

    def comment(self, text: str) -> None:
        """Write a comment; harnesses ignore it."""
        self._line(f"# {printable(text)}")

    def test(
        self,
        name: str,
        *,
        passed: bool,
        skip: str = "",
        diagnostics: Mapping[str, int | str] | None = None,
    ) -> None:
        """Write one test point. `skip`: why it was not run; it counts as passed then."""
        self._number += 1
        verdict = "ok" if passed else "not ok"
        directive = f" # SKIP {printable(skip)}" if skip else ""
        self._line(f"{verdict} {self._number} - {_escaped(name)}{directive}")
        if diagnostics:
            self._line("  ---")
            for key, value in diagnostics.items():
                # a JSON string is a YAML string, and a number stays one
                self._line(f"  {key}: {json.dumps(_shown(value))}")
            self._line("  ...")

    def bail_out(self, reason: str) -> None:
        """Say that nothing more will be tested."""
        self._line(f"Bail out! {printable(reason)}")

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


def _escaped(name: str) -> str:
    return printable(name).replace("\\", "\\\\").replace("#", "\\#")


def _shown(value: int | str) -> int | str:
    return printable(value) if isinstance(value, str) else value
