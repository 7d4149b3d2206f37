"""Objects in datagrams, as a subscriber (MOQT-22 11.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.codes import StreamResetCode
from moqt.session.receive.malformed import MalformedTrack
from moqt.types import Object, ObjectHeader
from moqt.wire.datagrams import PaddingDatagram, parse_datagram

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.receive.aliases import Aliases, TrackAlias
    from moqt.wire.datagrams import ObjectDatagram

__all__ = ["Datagrams"]


class Datagrams:
    """Hands Objects of Delivery Mode Datagram to their subscription.

    Dropped are those of an unknown alias, and those for which `max_buffered_octets` leaves no room:
    datagrams may be lost at any time. A sink is not asked for a place; their octets are here.
    """

    def __init__(self, context: SessionContext, aliases: Aliases) -> None:
        self._context = context
        self._aliases = aliases

    def receive(self, data: memoryview | bytes) -> None:
        """Take a datagram; raises RemoteProtocolError."""
        datagram = parse_datagram(data)
        if isinstance(datagram, PaddingDatagram):
            return
        stats = self._context.stats
        stats.datagrams_received += 1
        alias = self._aliases.find(datagram.track_alias)
        if alias is None:
            stats.datagrams_dropped += 1
            return
        try:
            self._deliver(datagram, alias)
        except MalformedTrack as error:
            alias.subscriptions[0].on_fault(error.reason, StreamResetCode.MALFORMED_TRACK)

    def _deliver(self, datagram: ObjectDatagram, alias: TrackAlias) -> None:
        priority = datagram.publisher_priority
        if priority is None:
            priority = alias.properties.default_publisher_priority
        header = ObjectHeader(
            datagram.group_id,
            datagram.object_id,
            None,
            priority,
            len(datagram.payload),
            datagram.status,
            datagram.properties,
        )
        read = Object(header, memoryview(datagram.payload))
        alias.track.see(read)
        if datagram.ends_group:
            alias.track.end_group(datagram.group_id, datagram.object_id + 1)
        subscription = alias.subscriptions[0]
        if alias.is_shared:
            chosen = alias.choose(subscription, header)
            if chosen is None:
                return
            subscription = chosen
        budget = subscription.delivery.budget
        if budget.is_full or not budget.begin(header.payload_length):
            self._context.stats.datagrams_dropped += 1
            return
        subscription.delivery.deliver(read, from_fill=False)
