"""Caches through a relay made of moq-rs's server, with names in hexadecimal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kvcs
from interop.harness.caches import Cache, fanned_out, from_middle, late, live
from interop.harness.cases import Direction, Registry

if TYPE_CHECKING:
    from interop.harness.stage import Stage

CASES = Registry()
FORM = kvcs.NamespaceForm.HEX
DEEP = Cache(layers=30)
SHALLOW = Cache(layers=6)


async def relay(stage: Stage) -> int:
    """Start the relay and return its port."""
    port = stage.port()
    await (await stage.script("relay", port)).serving("READY", port)
    return port


@CASES.case("cache-live", Direction.THROUGH_PEER, "KVCS 5.2, 5.4")
async def cache_live(stage: Stage) -> None:
    """A cache of 30 layers, waited for before its first layer; what the relay drops is fetched."""
    await live(stage, DEEP, await relay(stage), form=FORM)


@CASES.case("cache-middle", Direction.THROUGH_PEER, "KVCS 5.2, 5.4")
async def cache_middle(stage: Stage) -> None:
    """A cache of 30 layers, joined after 12: the fill is reset, so Group by Group."""
    await from_middle(stage, DEEP, await relay(stage), form=FORM)


@CASES.case("cache-late", Direction.THROUGH_PEER, "KVCS 5.3")
async def cache_late(stage: Stage) -> None:
    """A complete cache of 30 layers: FETCH of all is refused, so Group by Group."""
    await late(stage, DEEP, await relay(stage), form=FORM)


@CASES.case("fan-out", Direction.THROUGH_PEER, "KVCS 5.2, 5.4")
async def fan_out(stage: Stage) -> None:
    """Four consumers that join at different times, each with the whole cache."""
    steps = (range(1), range(1, 3), range(3, SHALLOW.layers), range(0))
    await fanned_out(stage, SHALLOW, await relay(stage), steps, form=FORM)
