"""The demo's output: when each layer was computed, arrived and usable, and whether all agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.demo_roles import Computed, Continued


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the processes reported; times are `time.monotonic()`, one clock for a whole machine."""

    started_at: float
    layers: int
    computed: list[Computed]
    octets: int
    local: Continued
    live: Continued
    late: Continued

    def computed_at(self, segment: int, layer: int) -> float:
        return next(c.at for c in self.computed if (c.segment, c.layer) == (segment, layer))

    @property
    def segments(self) -> int:
        return 1 + max(c.segment for c in self.computed)


def print_table(timeline: Timeline) -> None:
    """One line a layer, in milliseconds since process 1 began."""

    def ms(at: float) -> str:
        return f"{(at - timeline.started_at) * 1000:8.0f}"

    last_computed_at = max(c.at for c in timeline.computed)
    passes = range(timeline.segments)
    print("\nmilliseconds since process 1 began to prefill")
    print(
        f"{'':6}|{'computed by process 1':^{9 * len(passes)}}"
        f"|{'process 2, live':^18}|{'process 3, late':^18}"
    )
    columns = "".join(f" chunk {number + 1}"[:9].rjust(9) for number in passes)
    print(f"layer |{columns}|{'arrived':>9}{'usable':>9}|{'arrived':>9}{'usable':>9}")
    for layer in range(timeline.layers):
        cells = "".join(" " + ms(timeline.computed_at(number, layer)) for number in passes)
        received = "|".join(
            " " + ms(consumer.arrived_at[layer]) + " " + ms(consumer.usable_at[layer])
            for consumer in (timeline.live, timeline.late)
        )
        is_ahead = timeline.live.usable_at[layer] < last_computed_at
        print(f"{layer:5} |{cells}|{received}" + ("  *" if is_ahead else ""))
    ahead = sum(at < last_computed_at for at in timeline.live.usable_at.values())
    print(
        f"* usable at process 2 before process 1 had computed its last layer:"
        f" {ahead} of {timeline.layers}"
    )
    for name, consumer in (("process 2", timeline.live), ("process 3", timeline.late)):
        print(
            f"{name} joined at{ms(consumer.joined_at)} and had its first token"
            f" at{ms(consumer.first_token_at)}"
        )
    print(f"published: {timeline.octets / 1e6:.1f} MB")


def print_verdict(timeline: Timeline, decode: Callable[[list[int]], str]) -> bool:
    """Print each continuation once, and say whether tokens, text and cache are the same."""
    local = timeline.local
    print(f"\nwithout transfer: {decode(local.tokens)}")
    is_same = True
    for name, consumer in (("process 2", timeline.live), ("process 3", timeline.late)):
        same = {
            "tokens": consumer.tokens == local.tokens,
            "text": decode(consumer.tokens) == decode(local.tokens),
            "cache": consumer.cache_digest == local.cache_digest,
        }
        if all(same.values()):
            print(f"{name}: the same {len(local.tokens)} tokens, text and cache (every bit)")
        else:
            differing = ", ".join(part for part, equal in same.items() if not equal)
            print(f"{name}: DIFFERENT {differing}: {decode(consumer.tokens)}")
            is_same = False
    print("OK: all continuations are the same" if is_same else "NOT OK: continuations differ")
    return is_same
