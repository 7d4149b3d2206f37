"""What the ends of a plain transfer of octets have in common. The standard library alone."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.bench.side.inside import Meter, faulted, hear, holds_pattern, pattern, pieces, say


class Sending:
    """The octets to send, in pieces, hashed as they are handed out if the plan says so."""

    def __init__(self, given: dict[str, Any]) -> None:
        source = pattern()
        self.warm = pieces(given["warm_octets"], given["piece_octets"], source)
        self._pieces = pieces(given["octets"], given["piece_octets"], source)
        self._digest = hashlib.sha256() if given["hashed"] else None
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
        self._at += 1
        if self._digest is not None:
            self._digest.update(piece)
        return piece

    def report(self) -> None:
        """Tell the parent what was measured."""
        digest = None if self._digest is None else self._digest.hexdigest()
        say("figures", digest=digest, **self._meter.stop())


class Receiving:
    """The place for what comes, in order: first the warm-up, whose octets are overwritten."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._total: int = given["octets"]
        self._memory = faulted(self._total)
        self._view = memoryview(self._memory)
        self._warm_left: int = given["warm_octets"]
        self._digest = hashlib.sha256() if given["hashed"] else None
        self._meter = Meter()
        self._at = 0

    @property
    def is_done(self) -> bool:
        """Whether everything is there."""
        return self._warm_left == 0 and self._at == self._total

    def room(self, octets: int) -> memoryview:
        """Return the place for what comes next, up to `octets`; `took` says how much came."""
        left = self._warm_left or self._total - self._at
        return self._view[self._at : self._at + min(octets, left)]

    def took(self, octets: int) -> None:
        """Octets came and are in their place."""
        if self._warm_left:
            self._warm_left -= octets
            if not self._warm_left:
                self._meter.start()
                say("warm")
            return
        if self._digest is not None:
            self._digest.update(self._view[self._at : self._at + octets])
        self._at += octets
        if self._at == self._total:
            digest = None if self._digest is None else self._digest.hexdigest()
            say("done", digest=digest, **self._meter.stop())

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
