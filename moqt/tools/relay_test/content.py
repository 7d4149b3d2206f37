"""A small track whose every octet is known, and the check of what came of it."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from typing import TYPE_CHECKING

import moqt
from moqt.events import ObjectReceived
from moqt.tools.relay_test.case import CaseFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GROUPS", "OBJECTS", "Received", "locations", "new_namespace", "payload", "write_group"]

GROUPS = 5
OBJECTS = 4
OCTETS = 4096
SHOWN = 4
"""Locations that a diagnosis names of each kind."""


def new_namespace(*more: str) -> moqt.TrackNamespace:
    """Return a namespace of this run alone: relays may remember what earlier runs published."""
    return moqt.TrackNamespace.of("moq-test", f"interop-{secrets.token_hex(4)}", *more)


def payload(group_id: int, object_id: int) -> bytes:
    """Return the payload of an Object: it tells its place, and no two are alike."""
    seed = hashlib.sha256(b"%d.%d" % (group_id, object_id)).digest()
    return seed * (OCTETS // len(seed))


def write_group(track: moqt.TrackSource, group_id: int) -> None:
    """Publish a whole Group."""
    writer = track.open_group(group_id)
    for object_id in range(OBJECTS):
        writer.write(object_id, payload(group_id, object_id))
    writer.close()


def locations(groups: Iterable[int], objects: Iterable[int] = range(OBJECTS)) -> set[moqt.Location]:
    """Return the Locations of these Objects of these Groups."""
    wanted = tuple(objects)
    return {moqt.Location(g, o) for g in groups for o in wanted}


class Received:
    """Counts what came against what was wanted."""

    def __init__(self, wanted: set[moqt.Location]) -> None:
        self._wanted = wanted
        self._count: Counter[moqt.Location] = Counter()
        self._wrong: list[moqt.Location] = []

    def take(self, item: object) -> None:
        """Take what a subscription or fetch yields; status Objects and ends count for nothing."""
        if not isinstance(item, ObjectReceived):
            return
        if item.object.status is not moqt.ObjectStatus.NORMAL:
            return
        at = item.object.location
        self._count[at] += 1
        if bytes(item.object.payload or b"") != payload(at.group_id, at.object_id):
            self._wrong.append(at)

    def has(self, wanted: set[moqt.Location] | None = None) -> bool:
        """Return whether all of `wanted` came; None: all that there is to come."""
        return (self._wanted if wanted is None else wanted) <= self._count.keys()

    def summary(self) -> str:
        """Return what came, in one line."""
        faults = self._faults()
        counted = f"{len(self._count.keys() & self._wanted)} of {len(self._wanted)} Objects"
        return "; ".join([counted, *faults])

    def check(self, meaning: str) -> None:
        """Raise CaseFailed unless all came, once, unchanged, and nothing else."""
        if self._faults():
            raise CaseFailed(
                expected=f"{len(self._wanted)} Objects, each once",
                received=self.summary(),
                message=meaning,
            )

    def _faults(self) -> list[str]:
        kinds = {
            "missing": self._wanted - self._count.keys(),
            "twice": {at for at, count in self._count.items() if count > 1},
            "not asked for": self._count.keys() - self._wanted,
            "other octets": set(self._wrong),
        }
        return [f"{kind}: {_listed(found)}" for kind, found in kinds.items() if found]


def _listed(found: set[moqt.Location]) -> str:
    ordered = sorted(found)
    text = ", ".join(f"{{{at.group_id},{at.object_id}}}" for at in ordered[:SHOWN])
    return text if len(ordered) <= SHOWN else f"{text} and {len(ordered) - SHOWN} more"
