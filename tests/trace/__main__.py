"""`python -m tests.trace`: the table of requirements; exit code 1 when there is a gap."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.trace.register import Register, find_tests, load_rows
from tests.trace.report import counted, markdown, table

TESTS = Path(__file__).resolve().parents[1]


def read() -> Register:
    """Return the project's register."""
    hf = TESTS / "hf"  # they run in an environment of their own
    paths = [path for path in TESTS.rglob("test_*.py") if hf not in path.parents]
    rows = load_rows((TESTS / "requirements.toml").read_text("utf-8"))
    return Register(rows, find_tests(paths, TESTS.parent))


def main(arguments: list[str] | None = None) -> int:
    """Print the table, the gaps and the counts; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.trace", description=__doc__)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--gaps", action="store_true", help="leave out the table")
    options = parser.parse_args(arguments)
    try:
        register = read()
    except ValueError as error:
        print(f"error: tests/requirements.toml: {error}", file=sys.stderr)
        return 1
    if not options.gaps:
        print(table(register))
        print()
    gaps = register.gaps()
    for gap in gaps:
        print(f"gap: {gap}")
    print(counted(register) + (f"; {len(gaps)} gaps" if gaps else "; no gaps"))
    if options.markdown is not None:
        options.markdown.write_text(markdown(register), "utf-8")
    return 1 if gaps else 0


if __name__ == "__main__":
    sys.exit(main())
