"""The register as text: for a terminal, and for docs/requirements.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.trace.register import State

if TYPE_CHECKING:
    from tests.trace.register import Register, Row

__all__ = ["markdown", "table"]

DOCUMENTS = {
    "": "MOQT-22 (draft-ietf-moq-transport-22)",
    "AMB": "MOQT-22, where the text is open: what we send and what we accept",
    "K": "KVCS profile",
}
"""The headings, by the letters of the IDs below them."""


def counted(register: Register) -> str:
    """Return one line: how many rows there are, and how many in each state."""
    counts = register.counts()
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"{sum(counts.values())} rows: {states}"


def table(register: Register) -> str:
    """Return a line for each row: section, ID, strength, state and the tests, or the reason."""
    rows = [
        (row.section, row.id, row.strength.value, row.state.value, _shown(register, row))
        for row in register.sorted_rows()
    ]
    head = ("section", "id", "strength", "state", "tests, or why there are none")
    widths = [max(len(line[column]) for line in [head, *rows]) for column in range(4)]
    lines = [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[4]]
        )
        for line in [head, *rows]
    ]
    return "\n".join(lines)


def _shown(register: Register, row: Row) -> str:
    if row.state is not State.TESTED:
        return row.reason
    tests = register.tests.get(row.id, [])
    return tests[0] + (f" and {len(tests) - 1} more" if len(tests) > 1 else "") if tests else "-"


def markdown(register: Register) -> str:
    """Return docs/requirements.md."""
    lines = [
        "# Requirements",
        "",
        "Written by `make trace` from `tests/requirements.toml` and the docstrings of the tests;",
        "change those. A row is `tested` by the tests that name its ID, `implied` by something",
        "else that holds, or an `exception`, with the reason.",
        "",
        f"{counted(register)}.",
    ]
    document = None
    for row in register.sorted_rows():
        if row.order[0] != document:
            document = row.order[0]
            lines += ["", f"## {DOCUMENTS[document]}", ""]
            lines += ["| ID | Section | Strength | Binds | Requirement | State | Shown by |"]
            lines += ["|---|---|---|---|---|---|---|"]
        shown = row.reason
        if row.state is State.TESTED:
            shown = "<br>".join(f"`{test}`" for test in register.tests.get(row.id, []))
        cells = (row.id, row.section, row.strength, row.actor, row.text, row.state, shown)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
