"""What a subscription or fetch asks for beside its track, once for all verbs that make one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moqt.codes import GroupOrder
from moqt.errors import LocalProtocolError
from moqt.session.access.authorization import checked_tokens
from moqt.wire.params import Parameters
from moqt.wire.properties import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moqt.session.access.authorization import AuthToken
    from moqt.wire.filters import LocationFilter, RangeFilter
    from moqt.wire.params import FillParameters

__all__ = ["FetchOptions", "SubscribeOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeOptions:
    """What a SUBSCRIBE asks for (MOQT-22 9.6); the defaults ask for all that comes from now on.

    A fill whose order is named nowhere is asked for in ascending order. The smaller of a delivery
    timeout here and the publisher's own counts, 0 is none (MOQT-22 5.2). `new_group_request` asks
    for a new Group with at least this ID, 0: any; publishers may ignore it. `tokens` authorize this
    request (MOQT-22 8.9); None: those that the session has for all.
    Raises: TypeError for a value of another type, LocalProtocolError for a priority that is none.
    """

    location_filter: LocationFilter | None = None
    range_filters: Sequence[RangeFilter] = ()
    fill: FillParameters | None = None
    priority: int = DEFAULT_PRIORITY
    group_order: GroupOrder | None = None
    forward: bool = True
    rendezvous_timeout_ms: int | None = None
    object_delivery_timeout_ms: int | None = None
    subgroup_delivery_timeout_ms: int | None = None
    new_group_request: int | None = None
    tokens: Sequence[AuthToken] | None = None

    def __post_init__(self) -> None:
        self.parameters()
        if self.tokens is not None:
            checked_tokens(self.tokens)

    def parameters(self) -> Parameters:
        """Return them as the wire has them: what is the default is left out."""
        return Parameters(
            location_filter=self.location_filter,
            range_filters=tuple(self.range_filters),
            fill=self.fill,
            subscriber_priority=_unless_default(self.priority),
            group_order=self.group_order,
            forward=None if self.forward else False,
            rendezvous_timeout_ms=self.rendezvous_timeout_ms,
            object_delivery_timeout_ms=self.object_delivery_timeout_ms,
            subgroup_delivery_timeout_ms=self.subgroup_delivery_timeout_ms,
            new_group_request=self.new_group_request,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """What a FETCH asks for (MOQT-22 9.11); the defaults ask for all that is published.

    `tokens`: as of a subscription. Raises: as of a subscription.
    """

    location_filter: LocationFilter | None = None
    range_filters: Sequence[RangeFilter] = ()
    priority: int = DEFAULT_PRIORITY
    group_order: GroupOrder = GroupOrder.ASCENDING
    fill_timeout_ms: int | None = None
    tokens: Sequence[AuthToken] | None = None

    def __post_init__(self) -> None:
        self.parameters()
        if self.tokens is not None:
            checked_tokens(self.tokens)

    def parameters(self) -> Parameters:
        """Return them as the wire has them."""
        is_default = self.group_order is GroupOrder.ASCENDING
        return Parameters(
            location_filter=self.location_filter,
            range_filters=tuple(self.range_filters),
            subscriber_priority=_unless_default(self.priority),
            group_order=None if is_default else self.group_order,
            fill_timeout_ms=self.fill_timeout_ms,
        )


def _unless_default(priority: int) -> int | None:
    if not 0 <= priority <= 0xFF:
        raise LocalProtocolError(f"priority is {priority}, expected 0 to 255")
    return None if priority == DEFAULT_PRIORITY else priority
