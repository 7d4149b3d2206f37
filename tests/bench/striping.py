"""Striping: one retrieval by 1, 2, 4 sessions of one process, or by as many worker processes.

`python -m tests.bench.striping [ROUNDS]` prints medians. On two cores no gain is to be expected:
producer and consumer have one core each, and one session fills it. What is to be seen is the price.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from typing import TYPE_CHECKING

from tests.bench.case import MEBI, Case, Figures, Metric, Scale, Section
from tests.bench.kvcs_round import DISCOVERED, MODULE, Workload, transfer
from tests.bench.processes import Round

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COUNTS", "cases", "striped"]

COUNTS = (1, 2, 4)

DATAGRAMS = (1452, DISCOVERED)


def cases(scale: Scale) -> Sequence[Case]:
    """Return a case for each number and kind, and each datagram size."""
    return [
        Case(
            name=f"striping-{datagram}-{count}-{kind}",
            title=f"{count} {kind}, datagrams {datagram}",
            section=Section.BULK,
            run=partial(
                striped,
                Workload.of(
                    f"striping-{datagram}-{count}-{kind}",
                    octets=scale.octets // 2,
                    object_octets=MEBI // 4,
                    datagram=datagram,
                ),
                **{kind: count},
            ),
        )
        for datagram in DATAGRAMS
        for kind in ("sessions", "processes")
        for count in COUNTS
    ]


def striped(workload: Workload, *, sessions: int = 1, processes: int = 0) -> Figures:
    """Run one round with so many sessions, or worker processes if any. Raises: CaseFailed."""
    plan = workload.plan() | {"sessions": sessions, "processes": processes}
    with Round() as round_:
        producer = round_.side(MODULE, "produce", plan, is_sender=True)
        port = producer.expect("serving")["port"]
        consumer = round_.side(
            "tests.bench.side.striped_main", "consume", {**plan, "port": port}, is_sender=False
        )
        consumer.expect("connected")
        transfer(producer, [consumer], -1)
        put_at, (usable_at,) = transfer(producer, [consumer], 0)
        consumer.tell(do="end")
        consumed = consumer.expect("figures")
        producer.tell(do="end")
        produced = producer.expect("figures")
        consumer.expect("right")
        producer.tell(do="end")
    took_s = usable_at[-1] - put_at[0]
    return {
        Metric.SPEED: workload.octets / took_s / 1e6,
        Metric.LAYER_TIME: took_s / workload.layers * 1e3,
        Metric.SENDER_CPU: produced["cpu_s"] / workload.octets * 1e9,
        Metric.RECEIVER_CPU: consumed["cpu_s"] / workload.octets * 1e9,
    }


def main(rounds: int) -> None:
    """Run all cases, interleaved, and print the medians."""
    found = cases(Scale())
    figures: list[list[Figures]] = [[] for _ in found]
    for _ in range(rounds):
        for case, of_case in zip(found, figures, strict=True):
            of_case.append(case.run())
    columns = (Metric.SPEED, Metric.SENDER_CPU, Metric.RECEIVER_CPU)
    print(f"{'case':40}" + "".join(f"{column.value:>20}" for column in columns))
    for case, of_case in zip(found, figures, strict=True):
        medians = (statistics.median(one[column] for one in of_case) for column in columns)
        print(f"{case.title:40}" + "".join(f"{median:20.2f}" for median in medians))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 5)
