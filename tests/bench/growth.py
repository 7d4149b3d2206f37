"""Growth: what a layer, a block and a publication cost when there are more of them."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

from tests.bench.case import Case, Figures, Metric, Scale, Section
from tests.bench.identity import certificate
from tests.bench.kvcs_round import DISCOVERED, Workload, kvcs_round
from tests.bench.processes import Round

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BLOCKS", "LAYERS", "PUBLICATIONS", "cases"]

LAYERS = (8, 32, 128)
BLOCKS = (16, 128, 1024, 8192)
PUBLICATIONS = (1, 100, 1000, 10_000)

ROUNDS = 3

SMALL_RUN_LAYERS = 128
"""Small caches are moved several times over, until so many layers were."""

SMALL_RUN_BLOCKS = 1024

SOUGHT = 21
"""Caches that are looked for among the others, the first to warm up."""


def cases(scale: Scale) -> Sequence[Case]:
    """Return a case for each size of each kind; the largest are left out when it's to be quick."""
    made: list[Case] = []
    for layers in LAYERS:
        workload = Workload(
            name=f"growth-layers-{layers}",
            layers=layers,
            blocks=4,
            block_tokens=8,
            datagram=DISCOVERED,
            repeats=max(1, SMALL_RUN_LAYERS // layers),
            profile_dir=scale.profile_dir,
        )
        made.append(_case(workload, f"{layers} layers of 8 Objects of 16 KiB", layers))
    for blocks in BLOCKS[:-1] if scale.is_quick else BLOCKS:
        workload = Workload(
            name=f"growth-blocks-{blocks}",
            layers=2,
            blocks=blocks,
            block_tokens=2,
            datagram=DISCOVERED,
            repeats=max(1, SMALL_RUN_BLOCKS // blocks),
            profile_dir=scale.profile_dir,
        )
        made.append(_case(workload, f"{blocks:,} blocks a layer, Objects of 4 KiB", 4 * blocks))
    made += [
        Case(
            name=f"growth-publications-{others}",
            title=f"a cache among {others:,} other publication{'' if others == 1 else 's'}",
            section=Section.GROWTH,
            run=partial(_seek, others),
            rounds=ROUNDS,
        )
        for others in (PUBLICATIONS[:-1] if scale.is_quick else PUBLICATIONS)
    ]
    return made


def _case(workload: Workload, title: str, units: int) -> Case:
    return Case(
        name=workload.name,
        title=title,
        section=Section.GROWTH,
        run=partial(_run, workload, units * workload.repeats),
        rounds=ROUNDS,
    )


def _run(workload: Workload, units: int) -> Figures:
    outcome = kvcs_round(workload)
    (consumer,) = outcome.consumers
    return {
        Metric.UNITS: units,
        Metric.SENDER_UNIT_CPU: outcome.producer["cpu_s"] / units * 1e6,
        Metric.RECEIVER_UNIT_CPU: consumer["cpu_s"] / units * 1e6,
        Metric.SENDER_PEAK: (outcome.producer["peak_octets"] - workload.octets) / (1 << 20),
        Metric.RECEIVER_PEAK: (consumer["peak_octets"] - workload.octets) / (1 << 20),
    }


def _seek(others: int) -> Figures:
    """Find and take small caches among `others`, then have all names listed."""
    pair = certificate()
    plan = {
        "others": others,
        "sought": SOUGHT,
        "digests": True,
        "uvloop": True,
        "scope_key": secrets.token_hex(32),
        "certificate": pair.certificate.decode(),
        "private_key": pair.private_key.decode(),
    }
    module = "tests.bench.side.kvcs_main"
    with Round() as round_:
        producer = round_.side(module, "crowd", plan, is_sender=True)
        serving = producer.expect("serving")
        consumer = round_.side(module, "seek", {**plan, "port": serving["port"]}, is_sender=False)
        consumer.expect("ready")
        spent = []
        for word in ("sought", "listed"):
            producer.tell(do="begin")
            producer.expect("begun")
            consumer.tell(do="go")
            theirs = consumer.expect(word)
            producer.tell(do="report")
            spent.append((producer.expect("figures")["cpu_s"], theirs["cpu_s"]))
        producer.tell(do="end")
    units = SOUGHT - 1
    return {
        Metric.UNITS: units,
        Metric.SENDER_UNIT_CPU: spent[0][0] / units * 1e6,
        Metric.RECEIVER_UNIT_CPU: spent[0][1] / units * 1e6,
        Metric.PUBLISH_CPU: serving["publishing_cpu_s"] / others * 1e6,
        Metric.LISTED_CPU: sum(spent[1]) / (others + SOUGHT) * 1e6,
    }
