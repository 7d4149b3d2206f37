"""From `put_layer` to the layer in the consumer's hands, paced and at full speed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.bench.case import MEBI, Case, Figures, Scale, Section
from tests.bench.kvcs_round import Workload, figures, kvcs_round

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["cases"]

LAYER_OCTETS = MEBI
OBJECT_OCTETS = 64 << 10

PACE_S = 0.01
"""Between layers of a paced producer."""


def cases(scale: Scale) -> Sequence[Case]:
    """Return the paced producer and the one at full speed, in two datagram sizes."""
    layers = 128 if scale.octets >= 128 * MEBI else 16
    made = []
    for datagram, size in ((1452, "1,452"), (None, "default")):
        for pace_s, pace in ((PACE_S, "one each 10 ms"), (0.0, "at full speed")):
            name = f"latency-{datagram or 'default'}-{'paced' if pace_s else 'full'}"
            workload = Workload(
                name=name,
                layers=layers,
                blocks=LAYER_OCTETS // (2 * OBJECT_OCTETS),
                block_tokens=32,
                datagram=datagram,
                pace_s=pace_s,
                profile_dir=scale.profile_dir,
            )
            made.append(
                Case(
                    name=name,
                    title=f"layers of 1 MiB {pace}, datagrams {size}",
                    section=Section.LATENCY,
                    run=partial(_run, workload),
                )
            )
    return made


def _run(workload: Workload) -> Figures:
    return figures(workload, kvcs_round(workload))
