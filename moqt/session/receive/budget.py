"""Flow-control credit of one request: how much may lie unread (docs/architecture.md, Border 1).

Octets that a sink placed are credited as they arrive: their memory exists already. So are those of
an Object that is not whole, for as long as it is not, the application has nothing to consume and
credit withheld would never come back. Credit stops once `max_buffered_octets` or more lie in whole
Objects that the application has not consumed: what fills the budget is the first that is withheld.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moqt.session.context import SessionContext


class ReadBudget:
    """What one request holds in memory of the session, and the credit it withholds for that."""

    __slots__ = ("_context", "_limit", "_withheld", "unconsumed", "unfinished")

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._limit = context.config.max_buffered_octets
        self.unconsumed = 0
        """Payload octets of whole Objects that wait for `consumed`."""
        self.unfinished = 0
        """Payload lengths of the Objects in the making."""
        self._withheld: dict[int, int] = {}

    @property
    def is_full(self) -> bool:
        """True while credit is withheld."""
        return self.unconsumed >= self._limit

    def begin(self, octets: int) -> bool:
        """An Object of `octets` begins; False when it would pass a limit.

        `max_object_octets` counts the Objects in the making, `max_unread_octets` the whole ones
        that wait: a reset gives the peer its window back while they still lie here.
        """
        config = self._context.config
        if self.unfinished + octets > config.max_object_octets:
            return False
        if self.unconsumed > config.max_unread_octets:
            return False
        self.unfinished += octets
        return True

    def drop_unfinished(self, octets: int) -> None:
        """An Object in the making will not be whole."""
        self.unfinished -= octets

    def complete(self, octets: int) -> None:
        """An Object in the making is whole and waits for the application."""
        self.unfinished -= octets
        self.hold(octets)

    def hold(self, octets: int) -> None:
        """A whole Object of `octets` waits for the application."""
        self.unconsumed += octets
        self._context.stats.octets_unread += octets

    def withhold(self, stream_id: int, octets: int) -> None:
        """Owe a stream its credit until the application has consumed."""
        self._withheld[stream_id] = self._withheld.get(stream_id, 0) + octets
        self._context.stats.octets_withheld += octets

    def forget_stream(self, stream_id: int) -> None:
        """The stream was reset or stopped: the transport settles its credit by itself."""
        self._context.stats.octets_withheld -= self._withheld.pop(stream_id, 0)

    def consumed(self, octets: int) -> None:
        """The application is done with an Object of `octets` in memory of the session."""
        octets = min(octets, self.unconsumed)
        self.unconsumed -= octets
        self._context.stats.octets_unread -= octets
        if self._withheld and self.unconsumed < self._limit:
            self._credit_all()

    def _credit_all(self) -> None:
        withheld, self._withheld = self._withheld, {}
        for stream_id, octets in withheld.items():
            self._context.stats.octets_withheld -= octets
            self._context.transport.credit(stream_id, octets)

    def close(self) -> None:
        """The request is over: credit what was withheld; what lies unread is the caller's."""
        self._credit_all()
        self._context.stats.octets_unread -= self.unconsumed
        self.unconsumed = 0
