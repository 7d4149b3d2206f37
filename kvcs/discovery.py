"""Which publications of a prompt's prefixes there are, and which to take next (KVCS 5.1).

No I/O: the caller opens the SUBSCRIBE_NAMESPACE requests that `take_due` names and reports what
comes. Longer prefixes go first. MOQT marks no end of the list of what exists already, so a prefix
counts as heard out `settle_s` after its answer; a shorter one is taken only then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcs.errors import InvalidName
from kvcs.names import NamespaceForm, PublicationName, anchor_prefix

if TYPE_CHECKING:
    from kvcs.kvsp.identity import Prefix
    from moqt.types import TrackNamespace

__all__ = ["Candidate", "Discovery", "Found"]

FIRST_BATCH = 1
BATCH_GROWTH = 4
"""Prefixes are asked for in batches of 1, 4, 16, ...: the longest mostly suffices."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prefix to ask for: where all publications of the first `blocks` blocks are."""

    blocks: int
    namespace_prefix: TrackNamespace


@dataclass(frozen=True, slots=True)
class Found:
    """A publication: of so many blocks, by this name and namespace."""

    blocks: int
    namespace: TrackNamespace
    name: PublicationName


@dataclass(slots=True)
class _Prefix:
    candidate: Candidate
    settled_at: float | None = None
    """When it counts as heard out; None before its answer."""
    is_over: bool = False
    """Refused or failed: nothing will come."""
    found: dict[TrackNamespace, Found] = field(default_factory=dict)

    def is_settled(self, now: float) -> bool:
        return self.is_over or (self.settled_at is not None and now >= self.settled_at)


class Discovery:
    """The publications found so far for one prompt, best first.

    `max_prefixes`: how many prefixes are asked for at most, `max_publications`: how many
    publications of one prefix are remembered. Times are seconds of one clock.
    """

    def __init__(
        self,
        prefix: Prefix,
        *,
        form: NamespaceForm = NamespaceForm.BINARY,
        max_prefixes: int = 64,
        max_publications: int = 32,
        settle_s: float = 0.25,
    ) -> None:
        self._form = form
        self._settle_s = settle_s
        self._max_publications = max_publications
        shortest = max(prefix.blocks - max_prefixes, 0)
        self._prefixes = [
            _Prefix(Candidate(blocks, anchor_prefix(prefix, blocks, form)))
            for blocks in range(prefix.blocks, shortest, -1)
        ]
        self._opened = 0
        self._batch = FIRST_BATCH
        self._tried: set[TrackNamespace] = set()
        self._taken: int | None = None

    # Commands and inputs

    def take_due(self, now: float) -> tuple[Candidate, ...]:
        """Return the prefixes to ask for now; each is returned once.

        The next batch is due when all prefixes asked for so far are heard out and none of them has
        a publication to try.
        """
        opened = self._prefixes[: self._opened]
        if not all(prefix.is_settled(now) for prefix in opened) or self.next(now) is not None:
            return ()
        batch = self._prefixes[self._opened : self._opened + self._batch]
        self._opened += len(batch)
        self._batch *= BATCH_GROWTH
        return tuple(prefix.candidate for prefix in batch)

    def answered(self, candidate: Candidate, now: float) -> None:
        """Take note of REQUEST_OK: what exists already is being reported."""
        self._of(candidate.blocks).settled_at = now + self._settle_s

    def failed(self, candidate: Candidate) -> None:
        """Take note that the request was refused or is over: nothing more will be reported."""
        self._of(candidate.blocks).is_over = True

    def found(self, candidate: Candidate, namespace: TrackNamespace) -> bool:
        """Take note of NAMESPACE. False: not a publication of this prefix, or one too many."""
        prefix = self._of(candidate.blocks)
        if namespace in prefix.found:
            return True
        if len(prefix.found) >= self._max_publications:
            return False
        if not namespace.starts_with(candidate.namespace_prefix):
            return False
        try:
            name = PublicationName.parse(namespace, self._form)
        except InvalidName:
            return False
        prefix.found[namespace] = Found(candidate.blocks, namespace, name)
        return True

    def gone(self, candidate: Candidate, namespace: TrackNamespace) -> None:
        """Take note of NAMESPACE_DONE."""
        self._of(candidate.blocks).found.pop(namespace, None)

    def tried(self, found: Found) -> None:
        """Do not offer `found` by `next` again; it is tried now."""
        self._tried.add(found.namespace)
        self._taken = found.blocks

    # Queries

    def next(self, now: float) -> Found | None:
        """Return the publication to try next: the longest prefix's, oldest first.

        None while a longer prefix that was asked for may still report one, or when there is none.
        """
        for prefix in self._prefixes[: self._opened]:
            for found in prefix.found.values():
                if found.namespace not in self._tried:
                    return found
            if not prefix.is_settled(now):
                return None
        return None

    def others(self) -> tuple[Found, ...]:
        """Return publications of the prefix taken that were not tried, for recovery (KVCS 5.4)."""
        if self._taken is None:
            return ()
        known = self._of(self._taken).found.values()
        return tuple(found for found in known if found.namespace not in self._tried)

    @property
    def is_exhausted(self) -> bool:
        """Whether every prefix was asked for and none will report anything any more."""
        return self._opened == len(self._prefixes) and all(p.is_over for p in self._prefixes)

    def next_deadline(self, now: float) -> float | None:
        """Return when `take_due` or `next` may change by time alone; None: never."""
        waiting = [
            prefix.settled_at
            for prefix in self._prefixes[: self._opened]
            if not prefix.is_over and prefix.settled_at is not None and prefix.settled_at > now
        ]
        return min(waiting, default=None)

    def _of(self, blocks: int) -> _Prefix:
        return self._prefixes[self._prefixes[0].candidate.blocks - blocks]
