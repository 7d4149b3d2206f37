"""`kvcs conformance`: does a publisher keep to the KVCS profile? A report by section."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvcs.cli import connect, inputs, options
from kvcs.cli.exits import CommandError, ExitCode, explain
from kvcs.cli.output import Output, counted
from kvcs.conformance import Limits, Verdict, collect, find, judge
from kvcs.errors import KvcsError
from kvcs.names import PROFILE, NamespaceForm, scope_prefix
from moqt.asyncio.client import connect as open_session
from moqt.errors import MoqtError
from moqt.types import TrackNamespace

if TYPE_CHECKING:
    from kvcs.conformance import CheckResult, PublicationReport

__all__ = ["FAILED", "conformance"]

FAILED = 1
"""The exit code when a check failed; 0: all passed; 2: there was nothing to check."""

REPORT_WIDTH = 110
"""Columns of the table for people."""


def conformance(
    url: options.Url,
    scope_key_file: options.ScopeKeyFile = None,
    token_file: options.TokenFile = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            metavar="NAMESPACE",
            help="The one publication to check, as `kvcs inspect` prints it; else all found.",
        ),
    ] = None,
    ca: options.Authority = None,
    insecure: options.Insecure = False,
    trust: options.Trust = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1,
            help="How long a publication in production is followed, and a FETCH waited for.",
        ),
    ] = Limits().timeout_s,
    namespace_form: options.Form = NamespaceForm.BINARY,
    qlog: options.Qlog = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> int:
    """Check a publisher against the KVCS profile: pass, fail or not applicable, by section.

    Without the scope key all publications under kvcs-1 are checked. One in production is followed
    to its end: only then can the ends of its Groups and tracks be seen.

    Exit code: 0 when all checks pass, 1 when one fails, 2 when nothing could be checked.
    """
    output = Output(as_json=as_json)
    connect.need_url(url)
    named = None if namespace is None else _named(namespace)
    scope = inputs.find_scope(scope_key_file)
    prefix = TrackNamespace((PROFILE,))
    if scope is not None:
        prefix = scope_prefix(scope.scope_id, namespace_form)
    authority = connect.need_authority(ca)
    trusted = connect.need_trusted(trust)
    limits = Limits(timeout_s=timeout)
    auth_tokens = inputs.find_auth_tokens(token_file)
    transport_config = connect.tracing(qlog)
    reports: list[PublicationReport] = []

    async def work() -> None:
        async with open_session(
            url,
            ca=authority,
            insecure=insecure,
            transport_config=transport_config,
            tokens=auth_tokens,
            request_tokens=auth_tokens,
        ) as session:
            found = (named,) if named is not None else await find(session, prefix, limits)
            for each in found:
                output.note(f"checking {each}")
                evidence = await collect(
                    session, each, form=namespace_form, trusted=trusted, limits=limits
                )
                if evidence.is_absent:
                    raise CommandError(
                        ExitCode.USAGE,
                        f"nothing is published under {each}",
                        hint="`kvcs inspect URL` lists what is",
                    )
                reports.append(judge(evidence))

    try:
        connect.run(work())
    except (MoqtError, KvcsError, OSError) as error:
        failure = explain(error)
        raise CommandError(ExitCode.USAGE, failure.problem, hint=failure.hint) from error
    if not reports:
        raise CommandError(ExitCode.USAGE, f"no publication under {prefix} was found to check")
    _show(url, reports, output)
    return FAILED if any(report.failed() for report in reports) else ExitCode.OK


def _named(text: str) -> TrackNamespace:
    try:
        return inputs.parse_namespace(text)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--namespace: {error}") from error


def _show(url: str, reports: list[PublicationReport], output: Output) -> None:
    failed = sum(bool(report.failed()) for report in reports)
    record = {
        "url": url,
        "verdict": (Verdict.FAIL if failed else Verdict.PASS).value,
        "publications": [_record(report) for report in reports],
    }
    fail = "fails" if failed == 1 else "fail"
    lines = [line for report in reports for line in _lines(report)]
    lines.append(f"{counted(len(reports), 'publication')} checked, {failed} of them {fail}")
    output.emit(record, "\n".join(lines))


def _record(report: PublicationReport) -> dict[str, Any]:
    return {
        "namespace": str(report.namespace),
        "verdict": (Verdict.FAIL if report.failed() else Verdict.PASS).value,
        "cut": report.cut,
        "checks": [_check_record(result) for result in report.results],
    }


def _check_record(result: CheckResult) -> dict[str, Any]:
    finding = result.finding
    return {
        "id": result.check.id,
        "section": result.check.section,
        "title": result.check.title,
        "verdict": finding.verdict.value,
        "looked_at": finding.looked_at,
        "wrong": finding.wrong,
        "problems": list(finding.problems),
        "note": finding.note,
    }


def _lines(report: PublicationReport) -> list[str]:
    table = Table(title=None, expand=False)
    for column in ("section", "check", "verdict", "looked at", "what"):
        table.add_column(column, overflow="fold")
    for result in report.results:
        finding = result.finding
        table.add_row(
            result.check.section,
            result.check.id,
            finding.verdict.value,
            str(finding.looked_at),
            finding.note or result.check.title,
        )
    page = io.StringIO()
    Console(file=page, width=REPORT_WIDTH, color_system=None, markup=False).print(table)
    lines = [f"publication {report.namespace}", *page.getvalue().splitlines()]
    if report.cut:
        lines.append(f"observed in part: {report.cut}")
    for result in report.results:
        finding = result.finding
        lines += [f"{result.check.section} {result.check.id}: {each}" for each in finding.problems]
        if finding.wrong > len(finding.problems):
            more = finding.wrong - len(finding.problems)
            lines.append(f"{result.check.section} {result.check.id}: and {more} more")
    counts = ", ".join(f"{len(report.ids(verdict))} {verdict.value}" for verdict in Verdict)
    return [*lines, counts, ""]
