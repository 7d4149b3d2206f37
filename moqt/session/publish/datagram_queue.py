"""Objects of one subscription that wait to be sent in datagrams (MOQT-22 11.2)."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from moqt.codes import GroupOrder
from moqt.session.publish.cursor import Cursor, CursorState
from moqt.session.publish.timeouts import NO_TIMEOUTS
from moqt.wire.datagrams import ObjectDatagram, encode_datagram

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.session.context import SessionContext
    from moqt.session.publish.cursor import CursorOwner, Flow
    from moqt.session.publish.history import StoredObject
    from moqt.session.publish.timeouts import DeliveryTimeouts
    from moqt.types import ObjectHeader

__all__ = ["DatagramQueue"]

_Entry = tuple[int, int, int, "StoredObject"]
"""Publisher Priority, Group ID in Group Order, Object ID: unique, so Objects are not compared."""


class DatagramQueue(Cursor):
    """The waiting Objects in the order in which they go out, `max_waiting_datagrams` at most.

    Of more, the one that would go last is dropped. So is one that is older than a delivery timeout
    when its turn comes, and one that QUIC does not take. `SessionStats.datagrams_unsent` counts
    them all.
    """

    __slots__ = ("_context", "_track_alias", "_track_timeouts", "_waiting", "reverse", "timeouts")

    def __init__(
        self,
        flow: Flow,
        owner: CursorOwner,
        context: SessionContext,
        *,
        track_alias: int,
        track_timeouts: DeliveryTimeouts,
        group_order: GroupOrder,
    ) -> None:
        super().__init__(flow, owner)
        self.is_open = True
        self.timeouts = NO_TIMEOUTS
        """What the subscriber asks for."""
        self.reverse = group_order is GroupOrder.DESCENDING
        self._context = context
        self._track_alias = track_alias
        self._track_timeouts = track_timeouts
        self._waiting: list[_Entry] = []

    @property
    def order(self) -> tuple[int, int, int, int]:
        """By Group Order; in a Group after the fills and before the Subgroups (MOQT-22 5.1.2)."""
        _, group, object_id, _ = self._waiting[0]
        return 0, group, 1, object_id

    def push(self, stored: StoredObject) -> None:
        """Let an Object wait for its turn."""
        header = stored.header
        group = -header.group_id if self.reverse else header.group_id
        insort(self._waiting, (header.publisher_priority, group, header.object_id, stored))
        if len(self._waiting) > self._context.config.max_waiting_datagrams:
            self._waiting.pop()
            self._context.stats.datagrams_unsent += 1
        self._note_first()

    def keep(self, is_wanted: Callable[[ObjectHeader], bool]) -> None:
        """Drop what the subscriber does not want any more."""
        before = len(self._waiting)
        self._waiting = [entry for entry in self._waiting if is_wanted(entry[3].header)]
        self._context.stats.datagrams_unsent += before - len(self._waiting)
        self._note_first()

    def prepare(self) -> CursorState:
        """Say whether anything waits."""
        return CursorState.READY if self._waiting else CursorState.IDLE

    def send_next(self, now: float) -> None:
        """Hand the first Object to QUIC, or drop it."""
        stored = self._waiting.pop(0)[3]
        self._note_first()
        stats = self._context.stats
        if self._is_too_old(stored, now) or not self._context.transport.send_datagram(
            self._encode(stored)
        ):
            stats.datagrams_unsent += 1
            return
        stats.datagrams_sent += 1
        stats.objects_sent += 1
        stats.octets_sent += stored.octets

    def _note_first(self) -> None:
        if self._waiting:
            self.publisher_priority = self._waiting[0][0]

    def _is_too_old(self, stored: StoredObject, now: float) -> bool:
        timeouts = self._track_timeouts
        if stored.header.properties:
            timeouts = timeouts.overridden(stored.header.properties)
        limit_ms = timeouts.datagram_ms(self.timeouts)
        return bool(limit_ms) and now - stored.published_at > limit_ms / 1000

    def _encode(self, stored: StoredObject) -> bytes:
        header = stored.header
        return encode_datagram(
            ObjectDatagram(
                track_alias=self._track_alias,
                group_id=header.group_id,
                object_id=header.object_id,
                # Always said: a subscriber without Track Properties does not know the default.
                publisher_priority=header.publisher_priority,
                ends_group=stored.ends_group,
                properties=header.properties,
                payload=b"".join(stored.payload),
            )
        )
