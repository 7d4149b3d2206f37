"""What to ask for one data track, and what instead when it is refused (KVCS 5.2, 5.3).

No I/O: a `TrackPlan` names requests; the caller makes them and reports how they ended.

A track in production is asked for by one subscription from Next Object on with a fill of all that
was published before, so each Object comes once. A complete one is asked for by one FETCH of all
layers. Peers that cannot do one or the other get one FETCH a Group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcs.geometry import group_id_of, location_of
from moqt.codes import RequestErrorCode
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moqt.types import Location

__all__ = ["FetchRequest", "LiveRequest", "Request", "TrackPlan", "manifest_fill"]

_HOPELESS = frozenset(
    {
        RequestErrorCode.DOES_NOT_EXIST,
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.EXPIRED_AUTH_TOKEN,
        RequestErrorCode.MALFORMED_AUTH_TOKEN,
        RequestErrorCode.MALFORMED_TRACK,
        RequestErrorCode.GOING_AWAY,
        RequestErrorCode.TIMEOUT,
    }
)
"""Refusals that no other form of the same request would change."""


def manifest_fill() -> LocationFilter:
    """Return the fill that brings the current manifest: Relative Start, StartGroup 1 (KVCS 5.2)."""
    return LocationFilter.relative(1)


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """SUBSCRIBE from Next Object on; `fill` None: without FILL_PARAMETERS."""

    fill: LocationFilter | None
    filters: tuple[RangeFilter, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """FETCH of what `location` names: within the layers `first_layer` to `last_layer`."""

    first_layer: int
    last_layer: int
    location: LocationFilter
    filters: tuple[RangeFilter, ...] = ()

    @property
    def is_one_group(self) -> bool:
        """Whether it asks for one Group alone."""
        return self.first_layer == self.last_layer


Request = LiveRequest | FetchRequest


class TrackPlan:
    """The requests for the layers `first_layer` to `last_layer`, first `blocks` blocks, of a track.

    `span_blocks`: how many blocks the segment has; with fewer wanted and a peer that takes
    `max_filter_ranges` Ranges or more, an OBJECTID_FILTER keeps the rest away; else they are
    discarded on arrival (KVCS 5.3). `is_part`: those from `first_block` on, as others bring the
    rest.
    """

    def __init__(
        self,
        *,
        first_layer: int,
        last_layer: int,
        layers: int,
        blocks: int,
        span_blocks: int,
        max_filter_ranges: int,
        first_block: int = 0,
        is_part: bool = False,
    ) -> None:
        self._first = first_layer
        self._last = last_layer
        self._layers = layers
        self._last_block = (blocks if is_part else span_blocks) - 1
        self._first_block = first_block
        self._filters: tuple[RangeFilter, ...] = ()
        if (is_part or blocks < span_blocks) and max_filter_ranges > 0:
            wanted = IdRange(first_block, blocks - 1)
            self._filters = (RangeFilter(RangeFilterKind.OBJECT_ID, (wanted,)),)

    def live(self, *, first_layer: int | None = None) -> LiveRequest:
        """Return the request for a track in production (KVCS 5.2).

        `first_layer`: what was published of earlier layers is not asked for again.
        """
        first = self._first if first_layer is None else first_layer
        start = location_of(first, 0)
        if self._last == self._layers - 1:
            fill = LocationFilter.absolute(start)
        else:
            fill = LocationFilter.until_group(start, group_id_of(self._last))
        return LiveRequest(fill, self._filters)

    def completed(self) -> FetchRequest:
        """Return the request for a complete track (KVCS 5.3)."""
        return self._fetch(self._first, self._last)

    def live_refused(self, request: LiveRequest, code: RequestErrorCode) -> LiveRequest | None:
        """Return what to try after SUBSCRIBE was refused; None: nothing of this track will come.

        First without the OBJECTID_FILTER, then without the fill.
        """
        if code in _HOPELESS:
            return None
        if request.filters:
            self._filters = ()
            return LiveRequest(request.fill)
        if request.fill is not None:
            return LiveRequest(None)
        return None

    def fill_failed(
        self, largest: Location | None, incomplete_layers: Iterable[int]
    ) -> tuple[FetchRequest, ...]:
        """Return what to ask for when a fill was refused, reset, or not asked for.

        `largest` is SUBSCRIBE_OK's: what lies above it comes by the subscription. Of its Group no
        more is asked for, since some relays answer for a whole Group only once it has ended.
        """
        if largest is None:
            return ()
        requests = []
        for layer in incomplete_layers:
            group_id = group_id_of(layer)
            if group_id < largest.group_id:
                requests.append(self._fetch(layer, layer))
            elif group_id == largest.group_id and largest.object_id >= self._first_block:
                requests.append(self._fetch_up_to(layer, largest))
        return tuple(requests)

    def fetch_failed(
        self,
        request: FetchRequest,
        code: RequestErrorCode | None,
        incomplete_layers: Iterable[int],
    ) -> tuple[FetchRequest, ...]:
        """Return what to try after a FETCH was refused with `code`, or reset (None).

        Several Groups are asked for one by one; one Group is tried without the OBJECTID_FILTER.
        """
        if code in _HOPELESS:
            return ()
        if not request.is_one_group:
            # Up to the last block, not to the end of the Group: some relays wait for the latter.
            return tuple(
                self._fetch_up_to(layer, location_of(layer, self._last_block))
                for layer in incomplete_layers
                if request.first_layer <= layer <= request.last_layer
            )
        if request.filters and code is not None:
            self._filters = ()
            return (FetchRequest(request.first_layer, request.last_layer, request.location),)
        return ()

    def missing(self, blocks_by_layer: Mapping[int, Iterable[int]]) -> tuple[FetchRequest, ...]:
        """Return one FETCH a layer that spans its missing blocks, exactly as far as needed."""
        requests = []
        for layer in sorted(blocks_by_layer):
            blocks = tuple(blocks_by_layer[layer])
            if blocks:
                location = LocationFilter.range(
                    location_of(layer, min(blocks)), location_of(layer, max(blocks))
                )
                requests.append(FetchRequest(layer, layer, location))
        return tuple(requests)

    def _fetch_up_to(self, layer: int, last: Location) -> FetchRequest:
        last = min(last, location_of(layer, self._last_block))
        location = LocationFilter.range(location_of(layer, self._first_block), last)
        return FetchRequest(layer, layer, location, self._filters)

    def _fetch(self, first_layer: int, last_layer: int) -> FetchRequest:
        location = LocationFilter.groups(
            first=group_id_of(first_layer), last=group_id_of(last_layer)
        )
        return FetchRequest(first_layer, last_layer, location, self._filters)
