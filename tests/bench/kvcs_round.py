"""One round of KVCS: a producer and consumers, in processes of their own, from tensor to tensor.

What is timed is a live production: the consumers have found the publication and wait; then the
producer puts layer after layer. Every octet is hashed on both sides within that time, and compared
with what was put after it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from tests.bench.case import MEBI, CaseFailed, Figures, Metric
from tests.bench.identity import certificate
from tests.bench.processes import Round, Side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.link_path import Link

__all__ = ["DISCOVERED", "MODULE", "Workload", "figures", "kvcs_round", "transfer"]

MODULE = "tests.bench.side.kvcs_main"

DISCOVERED = "discovered"
"""For `datagram`: up to what the path carries."""

HEAD_DIM = 128
ELEMENT_OCTETS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is moved and how. `datagram`: octets, DISCOVERED, or None for the default.

    `repeats` publications are put and retrieved one after the other, and measured together.
    `block_tokens` * `kv_heads` * 256 octets are one Object.
    """

    name: str
    layers: int
    blocks: int
    block_tokens: int
    kv_heads: int = 8
    datagram: int | str | None = None
    fast_path: bool | None = None
    digests: bool = True
    uvloop: bool = True
    pace_s: float = 0.0
    consumers: int = 1
    repeats: int = 1
    warm_octets: int = 8 * MEBI
    """What is moved before anything is measured, at most; a layer at least."""
    profile_dir: str | None = None

    @classmethod
    def of(cls, name: str, *, octets: int, object_octets: int, **options: Any) -> Workload:
        """Return a cache of about `octets` in Objects of `object_octets`, 16 MiB a layer or less.

        Few or many layers as fit: at least 4, if there are Objects enough.
        """
        kv_heads = 8 if object_octets >= 8 * HEAD_DIM * ELEMENT_OCTETS else 1
        pairs = max(1, octets // (2 * object_octets))  # Objects come in pairs, K and V
        layers = min(pairs, max(4, octets // (16 * MEBI)))
        return cls(
            name=name,
            layers=layers,
            blocks=max(1, pairs // layers),
            block_tokens=object_octets // (kv_heads * HEAD_DIM * ELEMENT_OCTETS),
            kv_heads=kv_heads,
            **options,
        )

    @property
    def objects(self) -> int:
        """Objects of one publication."""
        return 2 * self.layers * self.blocks

    @property
    def octets(self) -> int:
        """Tensor octets of one publication."""
        object_octets = self.block_tokens * self.kv_heads * HEAD_DIM * ELEMENT_OCTETS
        return self.objects * object_octets

    def plan(self) -> dict[str, Any]:
        """Return what both sides are told."""
        pair = certificate()
        return {
            "name": self.name,
            "layers": self.layers,
            "blocks": self.blocks,
            "block_tokens": self.block_tokens,
            "kv_heads": self.kv_heads,
            "head_dim": HEAD_DIM,
            "datagram": self.datagram,
            "fast_path": self.fast_path,
            "digests": self.digests,
            "uvloop": self.uvloop,
            "pace_s": self.pace_s,
            "warm_octets": self.warm_octets,
            "max_publications": self.repeats + 1024,
            "profile_dir": self.profile_dir,
            "scope_key": secrets.token_hex(32),
            "certificate": pair.certificate.decode(),
            "private_key": pair.private_key.decode(),
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the sides of one round said. Times are of one clock."""

    put_at: Sequence[float]
    """By layer, of the last publication."""
    usable_at: Sequence[Sequence[float]]
    """By consumer and layer, of the last publication."""
    producer: dict[str, Any]
    consumers: Sequence[dict[str, Any]]


def kvcs_round(workload: Workload, *, link: Link | None = None) -> Outcome:
    """Run one round, over an emulated link if there is one. Raises: CaseFailed."""
    plan = workload.plan()
    if link is not None:
        plan["host"] = link.addresses[0]
    with Round(namespaces=None if link is None else link.namespaces) as round_:
        producer = round_.side(MODULE, "produce", plan, is_sender=True)
        port = producer.expect("serving")["port"]
        consumers = [
            round_.side(MODULE, "consume", {**plan, "port": port}, is_sender=False)
            for _ in range(workload.consumers)
        ]
        for consumer in consumers:
            consumer.expect("connected")
        put_at: list[float] = []
        usable_at: list[list[float]] = []
        for number in range(-1, workload.repeats):  # -1: to warm up
            put_at, usable_at = transfer(producer, consumers, number)
        ends = []
        for side in (*consumers, producer):
            side.tell(do="end")
            ends.append(side.expect("figures"))
        for consumer in consumers:
            consumer.expect("right")
        producer.tell(do="end")
    if not workload.digests:
        for end in ends:
            if end["skipped_octets"] < workload.octets:
                raise CaseFailed("the digests were not taken out: this would measure nothing")
    return Outcome(put_at, usable_at, ends[-1], ends[:-1])


def transfer(
    producer: Side, consumers: Sequence[Side], number: int
) -> tuple[list[float], list[list[float]]]:
    """Publish, have it found by all, put, and wait until all have it."""
    producer.tell(do="publish", number=number)
    producer.expect("published")
    for consumer in consumers:
        consumer.tell(do="retrieve", number=number)
    for consumer in consumers:
        consumer.expect("open")
    producer.tell(do="put", number=number)
    put_at = producer.expect("put")["put_at"]
    return put_at, [consumer.expect("done")["usable_at"] for consumer in consumers]


def figures(workload: Workload, outcome: Outcome) -> Figures:
    """Return what a transfer to one consumer was like."""
    (usable_at,) = outcome.usable_at
    (consumer,) = outcome.consumers
    producer = outcome.producer
    took_s = usable_at[-1] - outcome.put_at[0]
    gigaoctets = workload.octets * workload.repeats / 1e9
    waits = [usable - put for put, usable in zip(outcome.put_at, usable_at, strict=True)]
    cuts = quantiles(waits, n=100, method="inclusive") if len(waits) > 1 else waits * 99
    return {
        Metric.SPEED: workload.octets / took_s / 1e6,
        Metric.OBJECTS: workload.objects / took_s,
        Metric.LAYER_TIME: took_s / workload.layers * 1e3,
        Metric.P50: cuts[49] * 1e3,
        Metric.P99: cuts[98] * 1e3,
        Metric.SENDER_CPU: producer["cpu_s"] / gigaoctets,
        Metric.RECEIVER_CPU: consumer["cpu_s"] / gigaoctets,
        Metric.SENDER_PEAK: (producer["peak_octets"] - workload.octets) / MEBI,
        Metric.RECEIVER_PEAK: (consumer["peak_octets"] - workload.octets) / MEBI,
        Metric.SENDER_GROWTH: producer["growth_octets"] / MEBI,
        Metric.RECEIVER_GROWTH: consumer["growth_octets"] / MEBI,
        Metric.DATAGRAM: max(producer["datagram_octets"], default=0),
        Metric.RETRIES: consumer["retries"],
    }
