"""Track Aliases: what an incoming subgroup stream belongs to (MOQT-22 3.1.3)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from moqt.codes import SessionErrorCode
from moqt.errors import RemoteProtocolError

if TYPE_CHECKING:
    from moqt.session.receive.subscription import Subscription
    from moqt.session.receive.track_state import TrackState
    from moqt.types import FullTrackName, ObjectHeader
    from moqt.wire.properties import TrackProperties
    from moqt.wire.streams import SubgroupHeader

__all__ = ["Aliases", "TrackAlias"]

MAX_RETIRED: Final = 1024
"""Aliases of past subscriptions that are remembered, so that late Objects are not taken for those
of a subscription to come."""


class TrackAlias:
    """An alias in use, and the subscriptions that share it: nearly always one."""

    __slots__ = ("alias", "is_shared", "properties", "subscriptions", "track")

    def __init__(self, alias: int, track: TrackState, properties: TrackProperties) -> None:
        self.alias = alias
        self.track = track
        self.properties = properties
        self.subscriptions: list[Subscription] = []
        self.is_shared = False
        """True once two subscriptions had it: then copies have to be told apart."""

    def owner_of(self, head: SubgroupHeader) -> Subscription:
        """Return the subscription that a new stream is counted for."""
        if not self.is_shared:
            return self.subscriptions[0]
        for subscription in self.subscriptions:
            if subscription.take_subgroup(head):
                return subscription
        return self.subscriptions[0]

    def choose(self, owner: Subscription, header: ObjectHeader) -> Subscription | None:
        """Return whom an Object on a shared alias is for; None: all that want it have it.

        The publisher sends one copy for each subscription that it passes. Which copy is whose it
        does not say, so each goes to one that wants it and has none yet.
        """
        if owner.take_copy(header):
            return owner
        for subscription in self.subscriptions:
            if subscription is not owner and subscription.take_copy(header):
                return subscription
        return None


class Aliases:
    """All Track Aliases of one session that the peer gave out as a publisher."""

    def __init__(self) -> None:
        self._by_alias: dict[int, TrackAlias] = {}
        self._reserved: dict[int, FullTrackName] = {}
        self._retired: OrderedDict[int, None] = OrderedDict()

    def find(self, alias: int) -> TrackAlias | None:
        """Return the alias if a subscription is Established with it."""
        return self._by_alias.get(alias)

    def is_retired(self, alias: int) -> bool:
        """Return whether its subscriptions are over, so that its Objects are late."""
        return alias in self._retired

    def reserve(self, alias: int, name: FullTrackName) -> None:
        """A PUBLISH that is not answered yet names the alias."""
        self._check(alias, name)
        self._retired.pop(alias, None)
        self._reserved[alias] = name

    def cancel_reserved(self, alias: int) -> None:
        """That PUBLISH is answered or gone."""
        self._reserved.pop(alias, None)

    def establish(
        self, alias: int, subscription: Subscription, properties: TrackProperties
    ) -> TrackAlias:
        """Bind a subscription; DUPLICATE_TRACK_ALIAS when the alias means another track."""
        track = subscription.track
        self._check(alias, track.name)
        self._reserved.pop(alias, None)
        self._retired.pop(alias, None)
        found = self._by_alias.get(alias)
        if found is None:
            found = self._by_alias[alias] = TrackAlias(alias, track, properties)
        found.subscriptions.append(subscription)
        found.is_shared = found.is_shared or len(found.subscriptions) > 1
        return found

    def _check(self, alias: int, name: FullTrackName) -> None:
        found = self._by_alias.get(alias)
        used_by = found.track.name if found is not None else self._reserved.get(alias)
        if used_by is not None and used_by != name:
            raise RemoteProtocolError(
                SessionErrorCode.DUPLICATE_TRACK_ALIAS,
                f"Track Alias {alias} means {used_by} and {name}",
            )

    def release(self, alias: TrackAlias, subscription: Subscription) -> None:
        """A subscription is over; with the last one the alias is retired."""
        alias.subscriptions.remove(subscription)
        if not alias.subscriptions:
            self._by_alias.pop(alias.alias, None)
            self.retire(alias.alias)

    def retire(self, alias: int) -> None:
        """Remember that what still comes for this alias is late."""
        self._retired[alias] = None
        if len(self._retired) > MAX_RETIRED:
            self._retired.popitem(last=False)
