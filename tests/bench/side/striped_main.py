"""A striped consumer: `python -m tests.bench.side.striped_main consume PLAN`.

As `kvcs_ends.consume`, with `sessions` of one process, or `processes` with their CPU time.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import uvloop

from kvcs import Consumer, Scope
from kvcs.striping import StripedConsumer, shared_empty
from tests.bench.side.inside import LOOPBACK, Meter, heard, holds_pattern, pattern, pin, plan, say
from tests.bench.side.kvcs_ends import Cache, transport_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TICKS_S = os.sysconf("SC_CLK_TCK")


class SharedCache(Cache):
    """In shared memory, for workers to write to."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given)
        self.tensors = shared_empty(self.tensors.shape, ml_dtypes.bfloat16)


def cpu_s(pids: tuple[int, ...]) -> float:
    """Return the CPU seconds of processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_S


@asynccontextmanager
async def connected(given: dict[str, Any]) -> AsyncIterator[Consumer | StripedConsumer]:
    """Connect the consumer that the plan asks for."""
    url = f"moqt://{LOOPBACK}:{given['port']}/"
    common: dict[str, Any] = {
        "scope": Scope(bytes.fromhex(given["scope_key"])),
        "ca": given["certificate"].encode(),
        "transport_config": transport_config(given),
    }
    if given["processes"]:
        async with StripedConsumer.connect(url, processes=given["processes"], **common) as striped:
            yield striped
    else:
        async with Consumer.connect(url, **common) as consumer:
            yield consumer


async def consume(given: dict[str, Any]) -> None:
    """Retrieve into tensors of our own and report, as the parent says."""
    cache, meter = SharedCache(given), Meter()
    async with connected(given) as consumer:
        pids = consumer.worker_pids if isinstance(consumer, StripedConsumer) else ()
        say("connected")
        workers_before = 0.0
        while (order := await heard())["do"] != "end":
            is_warm_up = order["number"] < 0
            if not is_warm_up:
                workers_before = cpu_s(pids)
                meter.start()
            options: dict[str, Any] = {"into": cache.pairs(is_warm_up=is_warm_up)}
            if isinstance(consumer, Consumer):
                options["sessions"] = given["sessions"]
            retrieval = await consumer.retrieve(
                cache.descriptor(is_warm_up=is_warm_up), cache.prompt(order["number"]), **options
            )
            say("open")
            usable_at = [time.monotonic() async for _layer in retrieval]
            say("done", usable_at=usable_at)
        figures = meter.stop()
        figures["cpu_s"] += cpu_s(pids) - workers_before
        say("figures", **figures, retries=0)
        if not holds_pattern(cache.flat.data, pattern()):
            raise RuntimeError("the tensors received are not those that were put")
        say("right")


def main() -> None:
    """Be what the plan says."""
    given = plan()
    pin(given["core"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(consume(given))


if __name__ == "__main__":
    main()
