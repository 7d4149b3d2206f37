"""What each case must give: the file expected.toml of each peer."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from interop.harness.cases import Outcome, Result
from interop.harness.stage import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Expected", "load"]

KINDS = ("control", "setup", "request", "subgroup", "fetch", "datagram")
"""Those of `python -m moqt.tools.dump`."""

SENDERS = ("the peer", "us")


@dataclass(frozen=True, slots=True)
class Expected:
    """The outcome that a case must have. `reason`: what a limit means and what ours does then.

    `evidence_kind`: what `python -m moqt.tools.dump --kind` takes the evidence for;
    `evidence_from`: who sent it. Both are empty where there is none.
    """

    outcome: Outcome
    reason: str = ""
    evidence_kind: str = ""
    evidence_from: str = ""


def load(peer: str, names: Iterable[str]) -> Mapping[str, Expected]:
    """Return what is expected of each case.

    Raises: ValueError when the file and the cases do not name the same, or an entry lacks a part.
    """
    path = ROOT / peer / "expected.toml"
    with path.open("rb") as file:
        entries = tomllib.load(file)
    if set(entries) != set(names):
        raise ValueError(
            f"{path.name} of {peer}: unknown cases {sorted(set(entries) - set(names))}, "
            f"missing cases {sorted(set(names) - set(entries))}"
        )
    return {name: _read(f"{path.name} of {peer}: {name}", entry) for name, entry in entries.items()}


def _read(where: str, entry: Mapping[str, str]) -> Expected:
    if entry == {"result": "pass"}:
        return Expected(Outcome(Result.PASS))
    described = {"evidence", "evidence_kind", "evidence_from"}
    members = entry.keys() - described
    results = (Result.LIMIT.value, Result.NOT_APPLICABLE.value)
    if members != {"result", "observed", "reason"} or entry["result"] not in results:
        raise ValueError(
            f'{where}: expected result = "pass", or result = "limit" or "n/a" with observed, '
            "reason and, where octets show it, evidence"
        )
    is_told = entry.get("evidence_kind") in KINDS and entry.get("evidence_from") in SENDERS
    if described & entry.keys() and not (described <= entry.keys() and is_told):
        raise ValueError(
            f"{where}: evidence has evidence_kind, one of {', '.join(KINDS)}, and evidence_from, "
            f"one of {', '.join(SENDERS)}"
        )
    outcome = Outcome(Result(entry["result"]), entry["observed"], entry.get("evidence", ""))
    kind, sender = (entry.get(name, "") for name in ("evidence_kind", "evidence_from"))
    return Expected(outcome, entry["reason"], kind, sender)
