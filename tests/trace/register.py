"""The register of requirements, the tests that name its rows, and what does not fit together.

`tests/requirements.toml` has one table for each row, named by its ID: `["3.1#1"]` for MOQT-22,
`["K3.5#1"]` for the KVCS profile, `["AMB#1"]` for a place that the draft leaves open. A test shows
a row by naming the ID in its docstring, or in that of its class. `3.1#1, #4` names two rows of 3.1.
"""

from __future__ import annotations

import ast
import enum
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["Actor", "Register", "Row", "State", "Strength", "find_tests", "load_rows"]

ID = re.compile(r"(?:K?\d+(?:\.\d+)*|AMB)#\d+")
MENTION = re.compile(r"(?:(?<![\w.])(?P<section>K?\d+(?:\.\d+)*|AMB))?#(?P<number>\d+)\b")


class Strength(enum.StrEnum):
    """How strongly the draft asks for it; a plain statement that binds an endpoint is a MUST."""

    MUST = "MUST"
    MUST_NOT = "MUST NOT"
    SHOULD = "SHOULD"
    SHOULD_NOT = "SHOULD NOT"
    MAY = "MAY"


class Actor(enum.StrEnum):
    """Whom a row binds."""

    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"
    CLIENT = "client"
    SERVER = "server"
    ENDPOINT = "endpoint"


class State(enum.StrEnum):
    """How a row is met."""

    TESTED = "tested"
    IMPLIED = "implied"
    EXCEPTION = "exception"


@dataclass(frozen=True, slots=True)
class Row:
    """One obligation: what the document asks, of whom, and how it is met."""

    id: str
    section: str
    strength: Strength
    actor: Actor
    text: str
    state: State
    reason: str

    @property
    def order(self) -> tuple[str, tuple[int, ...], int]:
        """Sort key: MOQT-22 first, then AMB, then KVCS; each by section and number."""
        document = re.sub(r"[^A-Z]", "", self.id)
        section, _, number = self.id.lstrip("AKMB").partition("#")
        return document, tuple(map(int, section.split("."))) if section else (), int(number)


FIELDS = {"section", "strength", "actor", "text", "state"}


def load_rows(source: str) -> dict[str, Row]:
    """Return the rows of `requirements.toml` by ID.

    Raises: ValueError that names the row and what is wrong with it. A row that is there twice is
    an error of TOML itself (tomllib.TOMLDecodeError, a ValueError too).
    """
    return {row_id: _row(row_id, table) for row_id, table in tomllib.loads(source).items()}


def _row(row_id: str, table: Any) -> Row:
    if not ID.fullmatch(row_id):
        raise ValueError(f"row {row_id!r}: not an ID like 3.1#1, K3.5#1 or AMB#1")
    if not isinstance(table, dict) or not FIELDS <= table.keys() <= FIELDS | {"reason"}:
        raise ValueError(f"row {row_id}: expected {', '.join(sorted(FIELDS))} and maybe reason")
    for key, value in table.items():
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"row {row_id}: {key} is {value!r}, expected text")
    try:
        return Row(
            id=row_id,
            section=table["section"],
            strength=Strength(table["strength"]),
            actor=Actor(table["actor"]),
            text=table["text"],
            state=State(table["state"]),
            reason=table.get("reason", ""),
        )
    except ValueError as error:
        raise ValueError(f"row {row_id}: {error}") from error


def mentions(docstring: str) -> Iterator[str]:
    """Yield the IDs that a docstring names; `#4` alone counts for the section named before it."""
    section = None
    for match in MENTION.finditer(docstring):
        section = match["section"] or section
        if section is not None:
            yield f"{section}#{match['number']}"


def find_tests(paths: Iterable[Path], root: Path) -> dict[str, list[str]]:
    """Return for each ID the tests that name it, as `folder/test_file.py::Class::test_name`.

    The files are parsed and not imported. An ID outside of the docstring of a test function or of
    a test class shows nothing, and is not reported.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        for test, ids in _tests_of(ast.parse(path.read_bytes(), name).body, name):
            for row_id in dict.fromkeys(ids):
                found.setdefault(row_id, []).append(test)
    return found


def _tests_of(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Iterator[str]]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_class = isinstance(node, ast.ClassDef)
            if not node.name.startswith("Test" if is_class else "test"):
                continue
            name = f"{prefix}::{node.name}"
            yield name, mentions(ast.get_docstring(node) or "")
            if is_class:
                yield from _tests_of(node.body, name)


@dataclass(frozen=True, slots=True)
class Register:
    """Rows and tests side by side."""

    rows: Mapping[str, Row]
    tests: Mapping[str, list[str]]

    def sorted_rows(self) -> list[Row]:
        """Return the rows in the order of their documents."""
        return sorted(self.rows.values(), key=lambda row: row.order)

    def counts(self) -> dict[State, int]:
        """Return how many rows are in each state."""
        counted = Counter(row.state for row in self.rows.values())
        return {state: counted[state] for state in State}

    def gaps(self) -> list[str]:
        """Return what is wrong, one line each; none when every row is met as it says."""
        found = []
        for row in self.sorted_rows():
            tests = self.tests.get(row.id, [])
            if row.state is State.TESTED:
                if not tests:
                    found.append(f"{row.id}: tested, but no test names it ({row.text})")
                if row.reason:
                    found.append(f"{row.id}: tested, but has a reason; drop one of the two")
            else:
                if tests:
                    found.append(f"{row.id}: {row.state}, but {tests[0]} names it")
                if not row.reason:
                    found.append(f"{row.id}: {row.state} without a reason")
        found += [
            f"{row_id}: named by {tests[0]}, but no such row"
            for row_id, tests in sorted(self.tests.items())
            if row_id not in self.rows
        ]
        return found
