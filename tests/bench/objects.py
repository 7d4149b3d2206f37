"""Object sizes: the same octets in Objects of 4 KiB to 4 MiB."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.bench.case import MEBI, Case, Figures, Scale, Section
from tests.bench.kvcs_round import DISCOVERED, Workload, figures, kvcs_round

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SIZES_KIB", "cases"]

SIZES_KIB = (4, 16, 64, 256, 1024, 4096)

MAX_OBJECTS = 16384
"""So many are enough to know what one costs."""


def cases(scale: Scale) -> Sequence[Case]:
    """Return a case for each size."""
    made = []
    for size_kib in SIZES_KIB:
        name = f"objects-{size_kib}k"
        object_octets = size_kib << 10
        workload = Workload.of(
            name,
            octets=min(scale.octets // 2, MAX_OBJECTS * object_octets),
            object_octets=object_octets,
            datagram=DISCOVERED,
            profile_dir=scale.profile_dir,
        )
        size = f"{size_kib} KiB" if object_octets < MEBI else f"{size_kib >> 10} MiB"
        made.append(
            Case(
                name=name,
                title=f"Objects of {size}",
                section=Section.OBJECTS,
                run=partial(_run, workload),
            )
        )
    return made


def _run(workload: Workload) -> Figures:
    return figures(workload, kvcs_round(workload))
