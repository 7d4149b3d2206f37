"""One producer and several consumers: what each further one costs the producer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.bench.case import MEBI, Case, Figures, Metric, Scale, Section
from tests.bench.kvcs_round import DISCOVERED, Workload, kvcs_round

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COUNTERS", "COUNTS", "cases"]

COUNTS = (0, 1, 2, 4, 8)
"""With none, the producer gathers and hashes alone."""

COUNTERS = {
    Metric.DATAGRAMS_SENT: "datagrams_sent",
    Metric.PACKETS_LOST: "packets_lost",
    Metric.DATAGRAMS_RECEIVED: "datagrams_received",
    Metric.WAKEUPS: "wakeups",
}
"""What is shown of the producer's `ConnectionStats`, for each consumer."""


def cases(scale: Scale) -> Sequence[Case]:
    """Return a case for each number of consumers."""
    return [
        Case(
            name=f"consumers-{count}",
            title=f"{count} consumer{'' if count == 1 else 's'}",
            section=Section.CONSUMERS,
            run=partial(
                _run,
                Workload.of(
                    f"consumers-{count}",
                    octets=scale.octets // 2,
                    object_octets=MEBI // 4,
                    datagram=DISCOVERED,
                    consumers=count,
                    profile_dir=scale.profile_dir,
                ),
            ),
        )
        for count in COUNTS
    ]


def _run(workload: Workload) -> Figures:
    outcome = kvcs_round(workload)
    measured = {
        Metric.SENDER_TOTAL_CPU: outcome.producer["cpu_s"] * 1e3,
        Metric.SENDER_PEAK: (outcome.producer["peak_octets"] - workload.octets) / MEBI,
        Metric.SENDER_GROWTH: outcome.producer["growth_octets"] / MEBI,
    }
    if outcome.consumers:
        last_at = max(times[-1] for times in outcome.usable_at)
        moved = workload.octets * len(outcome.consumers)
        measured[Metric.SPEED] = moved / (last_at - outcome.put_at[0]) / 1e6
        measured[Metric.RECEIVER_TOTAL_CPU] = sum(one["cpu_s"] for one in outcome.consumers) * 1e3
        counted = outcome.producer["connections"]
        for metric, name in COUNTERS.items():
            measured[metric] = counted[name] / len(outcome.consumers)
    return measured
