"""What a command prints: results on stdout, progress and errors on stderr.

Text from a peer (a model's name, a reason phrase) is printed with its control characters escaped,
so that no publication can move the reader's cursor or colour the terminal.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvcs.cli.exits import CommandError, ExitCode
from moqt.tools.pipes import drop_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kvcs.cli.exits import Failure

__all__ = ["Output", "counted", "octets_text", "print_failure", "print_warning", "printable"]


def printable(text: str) -> str:
    """Return `text` with what is not printable escaped, newlines included."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, what: str) -> str:
    """Return a number of things: "1 layer", "2 layers"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def octets_text(octets: int) -> str:
    """Return a length in octets as people read it: "512 B", "12.3 MiB"."""
    if octets < 1024:
        return f"{octets} B"
    size = octets / 1024
    units = ["KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f} {units[0]}"


class Output:
    """Prints for people, or with `as_json` for machines: one JSON document a line on stdout."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(stderr=True, highlight=False)

    def emit(self, record: Mapping[str, Any], text: str = "") -> None:
        """Print a result: `record` for machines, the lines of `text` for people (none if empty)."""
        if self.as_json:
            lines = [json.dumps(record)]
        else:
            lines = [printable(line) for line in text.split("\n")] if text else []
        try:
            for line in lines:
                print(line)
            sys.stdout.flush()
        except BrokenPipeError as error:
            drop_output()
            raise CommandError(ExitCode.BROKEN_PIPE, "the output was closed") from error

    def note(self, text: str) -> None:
        """Print a line beside the results, on stderr; nothing with `as_json`."""
        if not self.as_json:
            print(printable(text), file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Show how far `what` is; yields a function that takes the number done.

        A bar on a terminal; else a line on stderr each time; nothing with `as_json`.
        """
        if self.as_json:
            yield lambda done: None
        elif not self.console.is_terminal:
            yield lambda done: self.note(f"{what}: {done} of {total} {unit}")
        else:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(unit),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self.console) as bar:
                task = bar.add_task(what, total=total)
                yield lambda done: bar.update(task, completed=done)


def print_failure(failure: Failure, *, as_json: bool) -> None:
    """Print how a command ended as one line on stderr; what the user ended is no error."""
    if as_json:
        record = {
            "error": failure.code.name.lower(),
            "code": int(failure.code),
            "problem": failure.problem,
            "hint": failure.hint,
        }
        print(json.dumps(record), file=sys.stderr)
        return
    hint = f" (hint: {failure.hint})" if failure.hint else ""
    is_ended = failure.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
    kind = "" if is_ended else "error: "
    print(printable(f"kvcs: {kind}{failure.problem}{hint}"), file=sys.stderr)


def print_warning(text: str) -> None:
    """Print a warning as one line on stderr."""
    print(printable(f"kvcs: warning: {text}"), file=sys.stderr)
