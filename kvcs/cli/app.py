"""The Typer application: its commands, and what an error becomes."""

from __future__ import annotations

import logging
import sys
import traceback
import warnings
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from kvcs.cli.conformance import conformance
from kvcs.cli.exits import ExitCode, explain
from kvcs.cli.fetch import fetch
from kvcs.cli.id import identify
from kvcs.cli.inspect import inspect
from kvcs.cli.keygen import keygen
from kvcs.cli.output import print_failure, print_warning
from kvcs.cli.publish import publish
from kvcs.cli.usage import HELP_OPTIONS, Command, Group
from kvcs.cli.watch import watch
from moqt.asyncio.client import InsecureConnectionWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "run"]

app = typer.Typer(
    name="kvcs",
    help="Stream a transformer's KV cache layer by layer over MOQT.",
    no_args_is_help=True,
    cls=Group,
    context_settings=HELP_OPTIONS,
    pretty_exceptions_enable=False,
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"kvcs {version('kvcs')}")
        raise typer.Exit


@app.callback()
def _common(
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Stream a transformer's KV cache layer by layer over MOQT."""


app.command("publish", cls=Command)(publish)
app.command("fetch", cls=Command)(fetch)
app.command("watch", cls=Command)(watch)
app.command("inspect", cls=Command)(inspect)
app.command("id", cls=Command)(identify)
app.command("conformance", cls=Command)(conformance)
app.add_typer(keygen, name="keygen")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print_warning(str(message).replace("(insecure=True)", "(--insecure)"))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are printed, not raised."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        warnings.simplefilter("always", InsecureConnectionWarning)
        # What libraries log is for --debug: without a handler Python prints it.
        logging.basicConfig(level=logging.DEBUG if "--debug" in arguments else logging.CRITICAL + 1)
        try:
            code = app(list(arguments), prog_name="kvcs", standalone_mode=False)
            return code if isinstance(code, int) else ExitCode.OK
        except (Exception, KeyboardInterrupt) as error:
            failure = explain(error)
            if "--debug" in arguments:
                traceback.print_exception(error, file=sys.stderr)
            is_said = failure.code is ExitCode.BROKEN_PIPE or not failure.problem  # help was shown
            if not is_said:
                print_failure(failure, as_json="--json" in arguments)
            return failure.code
