"""What a subscriber controls of a subscription that is served here (MOQT-22 3.1, 9.5)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from moqt.session.publish.timeouts import NO_TIMEOUTS, DeliveryTimeouts
from moqt.wire.filters import LocationFilter, LocationFilterType, LocationRange, RangeFilters
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from moqt.codes import GroupOrder
    from moqt.types import Location, ObjectHeader
    from moqt.wire.params import FillParameters, Parameters

__all__ = ["SubscriptionState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """What the subscriber controls. `location_range` is resolved; None: unfiltered."""

    forward: bool
    priority: int
    group_order: GroupOrder
    location_range: LocationRange | None = None
    is_range_given: bool = True
    """False: nobody named a filter, and the range is what PUBLISH implies (MOQT-22 9.8)."""
    range_filters: RangeFilters = field(default_factory=RangeFilters)
    timeouts: DeliveryTimeouts = NO_TIMEOUTS
    """The subscriber's delivery timeouts; the publisher's are the track's."""

    def updated(
        self, parameters: Parameters, *, largest: Location | None, max_ranges: int
    ) -> SubscriptionState:
        """Return the state after a message with these parameters; what is absent is kept.

        Raises: FilterRejected for filters that have to be refused (MOQT-22 3.3).
        """
        parameters.check_filters(max_ranges)
        kept = self.range_filters.updated(
            parameters.range_filters, parameters.removed_range_filters
        )
        inner = RangeFilters(parameters.fill.range_filters if parameters.fill else ())
        kept.check(max_ranges, also=inner.range_count)
        location = parameters.location_filter
        if location is None:
            location_range = self.location_range
        elif location.type is LocationFilterType.NONE:
            location_range = None
        else:
            location_range = location.resolve_subscription(largest)
        forward, priority = parameters.forward, parameters.subscriber_priority
        return replace(
            self,
            forward=self.forward if forward is None else forward,
            priority=self.priority if priority is None else priority,
            location_range=location_range,
            is_range_given=self.is_range_given or location is not None,
            range_filters=kept,
            timeouts=self.timeouts.updated(
                parameters.object_delivery_timeout_ms, parameters.subgroup_delivery_timeout_ms
            ),
        )

    def object_ids(self, group_id: int) -> tuple[int, int] | None:
        """Return the first and last Object ID wanted of a Group, None when it is outside."""
        wanted = self.location_range
        if wanted is None:
            return 0, MAX_VI64
        start, end = wanted.start, wanted.end
        if group_id < start.group_id or (end is not None and group_id > end.group_id):
            return None
        first = start.object_id if group_id == start.group_id else 0
        last = end.object_id if end is not None and group_id == end.group_id else MAX_VI64
        return first, last

    def passes(self, header: ObjectHeader) -> bool:
        """Return whether an Object is wanted, by Location and by range filters."""
        wanted = self.object_ids(header.group_id)
        return (
            wanted is not None
            and wanted[0] <= header.object_id <= wanted[1]
            and self.range_filters.passes(header)
        )

    def fill_range(self, fill: FillParameters, largest: Location | None) -> LocationRange | None:
        """Return what a fill covers at this moment; None: it opens no stream (MOQT-22 3.4)."""
        if not self.forward or largest is None:
            return None
        if fill.location_filter is not None:
            return fill.location_filter.resolve_fill(largest)
        if self.location_range is None or not self.is_range_given:
            return LocationFilter.none().resolve_fill(largest)
        start, end = self.location_range.start, self.location_range.end
        end = largest if end is None else min(end, largest)
        return LocationRange(start, end) if start <= end else None
