"""`kvcs watch`: a publication as it comes in, without keeping it."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from kvcs.cli import connect, options
from kvcs.cli.output import Output, counted, octets_text
from kvcs.cli.retrieving import Wanted, publication_line, retrieving, wanted
from kvcs.cli.summaries import descriptor_line, missing_record
from kvcs.errors import IncompleteRetrieval
from kvcs.names import NamespaceForm

if TYPE_CHECKING:
    from kvcs.assembly import UsableLayer
    from kvcs.consumer import Retrieval

__all__ = ["watch"]

INTERVAL_S = 1.0
"""How often the counters are shown while no layer becomes usable."""

RATE_S = 2.0
"""The time that a rate is taken over: layers may come at once, and the next one much later."""


def watch(
    url: options.Url,
    descriptor: options.DescriptorFile = None,
    tokens: options.TokensFile = None,
    scope_key_file: options.ScopeKeyFile = None,
    token_file: options.TokenFile = None,
    layers: options.Layers = None,
    blocks: options.Blocks = None,
    ca: options.Authority = None,
    insecure: options.Insecure = False,
    trust: options.Trust = None,
    wait: options.Wait = 10.0,
    recover_for: options.RecoverFor = 10.0,
    namespace_form: options.Form = NamespaceForm.BINARY,
    qlog: options.Qlog = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Follow a publication: layers as they become usable, rate, and what is wrong with it.

    It retrieves and verifies as `kvcs fetch` does, and keeps nothing.
    """
    what = wanted(
        url,
        descriptor,
        tokens,
        scope_key_file,
        token_file=token_file,
        layers=layers,
        blocks=blocks,
        ca=ca,
        insecure=insecure,
        trust=trust,
        form=namespace_form,
        qlog=qlog,
        wait_s=wait,
        recover_for_s=recover_for,
    )
    connect.run(_watch(what, Output(as_json=as_json)))


class _Report:
    """The counters of a retrieval over time."""

    def __init__(self, retrieval: Retrieval) -> None:
        self._retrieval = retrieval
        self._started = monotonic()
        self._before = deque([(self._started, 0)])
        """When there were how many octets: from `RATE_S` ago, or the start, to the last record."""

    def record(self, event: str) -> dict[str, Any]:
        """Return the counters now; the rate is of the last `RATE_S`, at the end of the whole."""
        now = monotonic()
        stats = self._retrieval.stats
        while len(self._before) > 1 and self._before[1][0] <= now - RATE_S:
            self._before.popleft()
        since, before = self._before[0]
        if event in ("complete", "incomplete"):
            since, before = self._started, 0
        rate = (stats.octets - before) / max(now - since, 1e-6)
        self._before.append((now, stats.octets))
        return {
            "event": event,
            "seconds": round(now - self._started, 3),
            "layers": stats.layers,
            "octets": stats.octets,
            "octets_per_s": round(rate),
            "verified": stats.objects,
            "rejected": {reason.value: count for reason, count in stats.rejected.items()},
            "missing": stats.missing,
            "retries": stats.retries,
        }


def _text(record: dict[str, Any], what: str) -> str:
    rejected = ", ".join(f"{count} {reason}" for reason, count in record["rejected"].items())
    return (
        f"{record['seconds']:8.2f} s  {what}, {octets_text(record['octets'])}, "
        f"{octets_text(record['octets_per_s'])}/s, verified {record['verified']}, "
        f"rejected {sum(record['rejected'].values())}{f' ({rejected})' if rejected else ''}, "
        f"missing {record['missing']}"
    )


async def _watch(what: Wanted, output: Output) -> None:
    async with retrieving(what) as retrieval:
        output.emit(
            {
                "event": "publication",
                "namespace": str(retrieval.publication),
                "signed": retrieval.is_signed,
                "verified_signature": retrieval.is_signed and what.trusted is not None,
                "kid": None if retrieval.key_id is None else retrieval.key_id.hex(),
                "blocks": retrieval.blocks,
                "layers": len(what.layers),
            },
            f"{descriptor_line(what.descriptor)}\n{publication_line(retrieval, what)}",
        )
        report = _Report(retrieval)
        try:
            await _follow(retrieval, report, output)
        except IncompleteRetrieval as error:
            record = report.record("incomplete")
            output.emit(
                {**record, "missing_objects": [missing_record(each) for each in error.missing]},
                _text(record, f"incomplete: {record['layers']} of {len(what.layers)} layers"),
            )
            raise
        record = report.record("complete")
        output.emit(record, _text(record, f"complete: {counted(record['layers'], 'layer')}"))


async def _follow(retrieval: Retrieval, report: _Report, output: Output) -> None:
    """Report each layer as it becomes usable, and the counters while none does."""
    pending: asyncio.Task[UsableLayer] | None = None
    try:
        while True:
            if pending is None:
                pending = asyncio.ensure_future(anext(retrieval))
            done, _ = await asyncio.wait((pending,), timeout=INTERVAL_S)
            if not done:
                record = report.record("progress")
                output.emit(record, _text(record, "waiting"))
                continue
            layer, pending = _result(pending), None
            if layer is None:
                return
            record = report.record("layer")
            output.emit({**record, "layer": layer.index}, _text(record, f"layer {layer.index}"))
    finally:
        if pending is not None:
            pending.cancel()


def _result(task: asyncio.Task[UsableLayer]) -> UsableLayer | None:
    try:
        return task.result()
    except StopAsyncIteration:
        return None
