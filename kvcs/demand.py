"""What a retrieval is asked for, checked before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcs.kvsp.identity import Prefix
from moqt.errors import ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcs.config import ConsumerConfig
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens

__all__ = ["Demand", "require_room"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The longest prefix that is wanted, and how much of it."""

    prefix: Prefix
    layers: range
    """Consecutive ones, at least one."""
    blocks: int | None
    """So many from the start; None: all that the publication has."""

    @classmethod
    def checked(
        cls,
        scope: Scope,
        descriptor: Descriptor,
        tokens: Tokens,
        *,
        layers: range | tuple[int, int] | None,
        blocks: int | None,
        extras: Mapping[int, bytes] | None,
    ) -> Demand:
        """Return what the arguments of `Consumer.retrieve` ask for.

        Raises: InvalidTokens, ValueError for layers or blocks out of range.
        """
        wanted = _layer_range(layers, descriptor.layers)
        prefix = Prefix.of(scope, descriptor, tokens, extras)
        if blocks is not None and not 1 <= blocks <= prefix.blocks:
            raise ValueError(f"blocks is {blocks}, expected 1 to {prefix.blocks}")
        return cls(prefix=prefix, layers=wanted, blocks=blocks)

    def taken(self, covered: int) -> int:
        """Return how many blocks are taken of a publication that has `covered` of them."""
        return covered if self.blocks is None else min(self.blocks, covered)


def require_room(open_retrievals: int, config: ConsumerConfig) -> None:
    """Raises: ResourceBusy when as many retrievals are open as may be."""
    if open_retrievals >= config.max_retrievals:
        raise ResourceBusy(
            f"{open_retrievals} retrievals are open (max_retrievals is {config.max_retrievals})"
        )


def _layer_range(layers: range | tuple[int, int] | None, count: int) -> range:
    if layers is None:
        return range(count)
    if not isinstance(layers, range | tuple):
        raise ValueError(f"layers is {layers!r}, expected a range, or (first, last)")
    if isinstance(layers, range):
        if layers.step != 1 or not layers:
            raise ValueError(f"layers is {layers}, expected a range of consecutive layers")
        first, last = layers.start, layers.stop - 1
    else:
        first, last = layers
    if not 0 <= first <= last < count:
        raise ValueError(f"layers {first}..{last} are not among the {count} layers 0..{count - 1}")
    return range(first, last + 1)
