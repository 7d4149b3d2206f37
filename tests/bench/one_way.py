"""One round of something else that moves octets from one process to another.

Both sides do, in turn: warm up with `warm_octets`, say so, begin to measure when told, move
`octets`, stop. The clock runs from the sender's first octet to the receiver's last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.bench.case import MEBI, CaseFailed, Figures, Metric
from tests.bench.identity import certificate_files
from tests.bench.processes import Round

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.bench.link_path import Link

__all__ = ["WARM_OCTETS", "one_way_round"]

WARM_OCTETS = 8 * MEBI


def one_way_round(
    module: str,
    plan: Mapping[str, Any],
    *,
    sender_serves: bool = False,
    python: str | None = None,
    env: Mapping[str, str] | None = None,
    link: Link | None = None,
) -> Figures:
    """Run the roles `send` and `receive` of a module once. `plan` has `octets` and `hashed`.

    Raises: CaseFailed, also when digests or octets of both sides differ.
    """
    whole = {"warm_octets": min(WARM_OCTETS, plan["octets"]), **certificate_files(), **plan}
    if link is not None:
        whole["host"] = link.addresses[0 if sender_serves else 1]
    roles = ("send", "receive") if sender_serves else ("receive", "send")
    with Round(namespaces=None if link is None else link.namespaces) as round_:
        sides = {}
        for role in roles:
            sides[role] = round_.side(
                module, role, whole, is_sender=role == "send", python=python, env=env
            )
            if role == roles[0]:
                whole["port"] = sides[role].expect("serving")["port"]
        sender, receiver = sides["send"], sides["receive"]
        receiver.expect("warm")
        sender.tell(do="go")
        received = receiver.expect("done", timeout_s=120)
        sender.tell(do="end")
        sent = sender.expect("figures")
        receiver.expect("right")
    if plan["hashed"] and received["digest"] != sent["digest"]:
        raise CaseFailed(f"{module}: the digests of both sides differ")
    octets = plan["octets"]
    return {
        Metric.SPEED: octets / (received["ended_at"] - sent["begun_at"]) / 1e6,
        Metric.SENDER_CPU: sent["cpu_s"] / (octets / 1e9),
        Metric.RECEIVER_CPU: received["cpu_s"] / (octets / 1e9),
        Metric.SENDER_PEAK: (sent["peak_octets"] - octets) / MEBI,
        Metric.RECEIVER_PEAK: (received["peak_octets"] - octets) / MEBI,
        Metric.SENDER_GROWTH: sent["growth_octets"] / MEBI,
        Metric.RECEIVER_GROWTH: received["growth_octets"] / MEBI,
    }
