"""What the ends of a plain transfer of octets have in common. The standard library alone."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.bench.side.inside import Meter, faulted, hear, holds_pattern, pattern, pieces, say


class Digest:
    """SHA-256 of all octets, or of each Object and then of those digests, or of nothing."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._is_wanted = given["hashed"]
        self._by_object = given.get("by_object", False)
        self._whole = hashlib.sha256()
        self._objects: dict[int, bytes] = {}

    def add(self, number: int, data: bytes | memoryview) -> None:
        """Take an Object, in any order, or else the next octets."""
        if self._by_object:
            self._objects[number] = hashlib.sha256(data).digest()
        elif self._is_wanted:
            self._whole.update(data)

    def text(self) -> str:
        """Return it in hexadecimal."""
        for _, digest in sorted(self._objects.items()):
            self._whole.update(digest)
        return self._whole.hexdigest()


class Sending:
    """The octets to send, in pieces, hashed as they are handed out if the plan says so."""

    def __init__(self, given: dict[str, Any]) -> None:
        source = pattern()
        self.warm = pieces(given["warm_octets"], given["piece_octets"], source)
        self._pieces = pieces(given["octets"], given["piece_octets"], source)
        self._digest = Digest(given)
        self._meter = Meter()
        self._at = 0

    def begin(self) -> None:
        """Start to measure."""
        self._meter.start()

    def next(self) -> memoryview | None:
        """Return the next piece; None: that was all."""
        if self._at == len(self._pieces):
            return None
        piece = self._pieces[self._at]
        self._digest.add(self._at, piece)
        self._at += 1
        return piece

    def report(self) -> None:
        """Tell the parent what was measured."""
        digest = self._digest.text()
        say("figures", digest=digest, **self._meter.stop())


class Receiving:
    """The place for what comes, in order: first the warm-up, whose octets are overwritten."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._total: int = given["octets"]
        self._object_octets = given["piece_octets"]
        self._memory = faulted(self._total)
        self._view = memoryview(self._memory)
        self._warm_left: int = given["warm_octets"]
        self._digest = Digest(given)
        self._meter = Meter()
        self._at = 0
        self._came = 0

    @property
    def is_done(self) -> bool:
        """Whether everything is there."""
        return self._warm_left == 0 and self._came == self._total

    def room(self, octets: int) -> memoryview:
        """Return the place for what comes next, up to `octets`; `took` says how much came."""
        left = self._warm_left or self._total - self._at
        return self._view[self._at : self._at + min(octets, left)]

    def took(self, octets: int) -> None:
        """Octets came and are in their place."""
        if self._is_warming_up(octets):
            return
        self._digest.add(0, self._view[self._at : self._at + octets])
        self._at += octets
        self._count(octets)

    def put_object(self, number: int | None, data: bytes | memoryview) -> None:
        """Copy an Object to its place; None: it warms up. For plans with `by_object`."""
        if number is None:
            self._is_warming_up(len(data))
            return
        at = number * self._object_octets
        self._view[at : at + len(data)] = data
        self._digest.add(number, self._view[at : at + len(data)])
        self._count(len(data))

    def _is_warming_up(self, octets: int) -> bool:
        if not self._warm_left:
            return False
        self._warm_left -= octets
        if not self._warm_left:
            self._meter.start()
            say("warm")
        return True

    def _count(self, octets: int) -> None:
        self._came += octets
        if self._came == self._total:
            say("done", digest=self._digest.text(), **self._meter.stop())

    def put(self, data: bytes | memoryview) -> None:
        """Copy what came to its place."""
        left = memoryview(data)
        while len(left):
            room = self.room(len(left))
            room[:] = left[: len(room)]
            self.took(len(room))
            left = left[len(room) :]

    def check(self) -> None:
        """Compare with what was sent, and say so."""
        if not holds_pattern(self._memory, pattern()):
            raise RuntimeError("what was received is not what was sent")
        say("right")


def wait_for_go() -> None:
    """Wait until the parent wants the measured part."""
    hear()
