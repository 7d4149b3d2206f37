"""One subscription of ours, asked for by SUBSCRIBE or offered by PUBLISH (MOQT-22 3.1, 3.4)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moqt.codes import GroupOrder, PublishDoneCode, SessionErrorCode, StreamResetCode
from moqt.errors import LocalProtocolError, RemoteProtocolError
from moqt.session.events import (
    FillEnded,
    SubscriptionEnded,
    SubscriptionEstablished,
)
from moqt.session.receive.delivery import Delivery
from moqt.session.receive.feeds import FetchTarget, SubgroupFeed
from moqt.session.receive.stream_wait import StreamWait
from moqt.session.receive.track_request import TrackRequest
from moqt.session.request.states import Phase
from moqt.session.seen import SeenNumbers
from moqt.wire.filters import LocationFilter, RangeFilters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moqt.session.context import SessionContext
    from moqt.session.receive.aliases import TrackAlias
    from moqt.session.receive.sink import ObjectSink
    from moqt.session.receive.subscriber import Subscriber
    from moqt.session.receive.track_state import TrackState
    from moqt.session.request.requests import RequestStream
    from moqt.session.timers import Timer
    from moqt.types import Location, ObjectHeader
    from moqt.wire.filters import LocationRange
    from moqt.wire.messages import PublishDone
    from moqt.wire.params import FillParameters, Parameters
    from moqt.wire.properties import TrackProperties
    from moqt.wire.streams import SubgroupHeader

__all__ = ["Subscription"]

MAX_DONE_WAIT_S: Final = 3600.0
"""After PUBLISH_DONE streams are waited for as long as a delivery timeout says, but no longer: the
timeout may be 2^64-1 ms, and a request that is over counts against no limit."""

MAX_COPY_GROUPS: Final = 1024
"""Groups for which copies on a shared alias are told apart; older ones are forgotten."""


@dataclass(slots=True)
class _Fill:
    """A fill that was asked for."""

    target: FetchTarget
    parameters: FillParameters
    wait: StreamWait | None = None
    is_counted: bool = False
    """True once its stream counts, there or lost."""


class Subscription(TrackRequest):
    """What we know of a subscription, and where its Objects go.

    It does not read its request stream: `SubscribeRequest` and `PublicationOffer` do.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        context: SessionContext,
        stream: RequestStream,
        track: TrackState,
        sink: ObjectSink | None,
    ) -> None:
        self.stream = stream
        self.request_id = stream.request_id
        self.track = track
        self.delivery = Delivery(context, stream.request_id, sink)
        self.forward = True
        self.group_order: GroupOrder | None = None
        self.location_filter: LocationFilter | None = None
        self.range_filters = RangeFilters()
        self.properties: TrackProperties | None = None
        """The track's, once Established."""
        self._subscriber = subscriber
        self.context = context
        self._range: LocationRange | None = None
        self._alias: TrackAlias | None = None
        self._fills: dict[int, _Fill] = {}
        self._streams_seen = 0
        self._streams_guessed = 0
        """Of these, fills that are given up and may yet come."""
        self._done: PublishDone | None = None
        self._done_timer: Timer | None = None
        self._timeout_ms = 0
        self._subgroups: OrderedDict[tuple[int, int | None], None] = OrderedDict()
        self._copies: OrderedDict[int, SeenNumbers] = OrderedDict()
        self._is_over = False

    @property
    def is_established(self) -> bool:
        """True from SUBSCRIBE_OK or our PUBLISH_OK on."""
        return self._alias is not None

    @property
    def is_done(self) -> bool:
        """True once PUBLISH_DONE is there."""
        return self._done is not None

    @property
    def is_unfiltered(self) -> bool:
        """True when a Subgroup that ends by FIN is known to be all there."""
        return not self.range_filters.filters and self.location_filter is None

    def check_update(self, parameters: Parameters) -> Parameters:
        """See `Updatable`."""
        if not self.is_established or self.is_done:
            raise LocalProtocolError(f"request {self.request_id} is not Established")
        if parameters.namespace_prefix is not None:
            raise LocalProtocolError(f"request {self.request_id} is about a track, not a prefix")
        properties = self.properties
        if parameters.new_group_request is not None and not (
            properties and properties.dynamic_groups
        ):
            raise LocalProtocolError(
                f"{self.track.name}: NEW_GROUP_REQUEST in an update needs a track with "
                "DYNAMIC_GROUPS (MOQT-22 9.20.19)"
            )
        return self._subscriber.checked(self.track.name, parameters, self)

    def apply(self, parameters: Parameters) -> None:
        """Take over what a request or an accepted update says (MOQT-22 9.5)."""
        if parameters.forward is not None:
            self.forward = parameters.forward
        if parameters.group_order is not None:
            self.group_order = parameters.group_order
        if parameters.location_filter is not None:
            self.location_filter = parameters.location_filter
        self.range_filters = self.range_filters.updated(
            parameters.range_filters, parameters.removed_range_filters
        )
        self._timeout_ms = max(
            self._timeout_ms,
            parameters.object_delivery_timeout_ms or 0,
            parameters.subgroup_delivery_timeout_ms or 0,
        )

    # Becoming Established

    def establish(
        self,
        alias: int,
        largest: Location | None,
        properties: TrackProperties,
        expires_ms: int | None,
        now: float,
    ) -> None:
        """Objects that name `alias` are ours from now on, those that came early first."""
        self.properties = properties
        self._alias = self._subscriber.aliases.establish(alias, self, properties)
        self._timeout_ms = max(
            self._timeout_ms,
            properties.object_delivery_timeout_ms or 0,
            properties.subgroup_delivery_timeout_ms or 0,
        )
        self._resolve(largest)
        self.context.emit(
            SubscriptionEstablished(self.request_id, alias, largest, properties, expires_ms)
        )
        self.settle_fill(self.request_id, largest, now)
        self._subscriber.bind_strays(alias, now)

    def refuse(self, alias: int) -> None:
        """SUBSCRIBE_OK names a track that must not be used: what comes for it is not held."""
        self._subscriber.drop_alias(alias)

    def narrow(self, parameters: Parameters, largest: Location | None) -> None:
        """An update with these parameters was accepted at this Largest Object."""
        if parameters.location_filter is not None:
            self._resolve(largest)

    def _resolve(self, largest: Location | None) -> None:
        if self.location_filter is not None:
            self._range = self.location_filter.resolve_subscription(largest)

    # Fills

    def expect_fill(self, fill_id: int, parameters: FillParameters) -> None:
        """A message with Request ID `fill_id` asks for a fill."""
        order = parameters.group_order or self.group_order or GroupOrder.ASCENDING
        target = FetchTarget(
            fill_id,
            self,
            delivery=self.delivery,
            track=self.track,
            group_order=order,
            is_fill=True,
        )
        self._fills[fill_id] = _Fill(target, parameters)
        self._subscriber.fetch_targets[fill_id] = target
        self._subscriber.awaited_fills[fill_id] = self

    def settle_fill(self, fill_id: int, largest: Location | None, now: float) -> None:
        """The message that asked was accepted: a fill for which no stream is opened has ended.

        The publisher opens none while paused, and for an empty range (MOQT-22 3.4). Else one is
        waited for, as long as anything is under way.
        """
        fill = self._fills.get(fill_id)
        if fill is None or fill.target.stream is not None:
            return
        if not self.forward or not self._fills_something(fill.parameters, largest):
            self.forget_fill(fill_id)
            if not fill.target.is_stopped:
                self.context.emit(FillEnded(self.request_id, fill_id))
        elif fill.wait is None and not fill.target.is_stopped:
            fill.wait = StreamWait(self.context, lambda later: self._give_up_fill(fill_id), now=now)
            self._subscriber.settle_lost_fills(now)

    def _give_up_fill(self, fill_id: int) -> None:
        """Its stream does not come, and will be stopped if it does; the subscription goes on."""
        fill = self._fills[fill_id]
        fill.target.is_stopped = True
        self._stop_waiting(fill_id, fill)
        self.context.emit(FillEnded(self.request_id, fill_id, StreamResetCode.INTERNAL_ERROR))

    def _stop_waiting(self, fill_id: int, fill: _Fill) -> None:
        if fill.wait is not None:
            fill.wait.cancel()
            fill.wait = None
        self._subscriber.stop_awaiting(fill_id)

    def is_fill_accepted(self, fill_id: int) -> bool:
        """Return whether the publisher accepted the message that asked for a fill."""
        return self._fills[fill_id].wait is not None

    def lose_fill(self, fill_id: int, now: float) -> None:
        """Its stream was reset before it said what it is."""
        self._fills[fill_id].is_counted = True
        self._streams_seen += 1
        self._streams_guessed += 1
        self._give_up_fill(fill_id)
        self.on_stream_over(now)

    def _fills_something(self, fill: FillParameters, largest: Location | None) -> bool:
        if fill.location_filter is None and self._range is not None:
            # The subscription's own range, as it was resolved then (MOQT-22 9.20.9).
            return largest is not None and self._range.start <= largest
        wanted = fill.location_filter or LocationFilter.none()
        return wanted.resolve_fill(largest) is not None

    def forget_fill(self, fill_id: int) -> None:
        """A fill is over, or was refused."""
        fill = self._fills.pop(fill_id, None)
        if fill is not None:
            self._stop_waiting(fill_id, fill)
        self._subscriber.fetch_targets.pop(fill_id, None)

    def stop_fill(self, fill_id: int, now: float) -> None:
        """Stop one fill, now or when its stream comes (MOQT-22 3.4.1)."""
        fill = self._fills.get(fill_id)
        if fill is None:
            return
        stream = fill.target.stream
        if stream is None:
            fill.target.is_stopped = True
            self._stop_waiting(fill_id, fill)
        else:
            self.forget_fill(fill_id)
            stream.stop(StreamResetCode.CANCELLED)
            self.on_stream_over(now)

    def on_fetch_stream(self, target: FetchTarget) -> None:
        """A fill stream is there."""
        fill = self._fills.get(target.request_id)
        if fill is not None:
            self._stop_waiting(target.request_id, fill)
        if fill is not None and fill.is_counted:
            self._streams_guessed -= 1
        else:
            self.count_stream()
        if target.is_stopped:
            self.forget_fill(target.request_id)

    def on_fetch_over(
        self,
        target: FetchTarget,
        reset: StreamResetCode | None,
        raw_code: int | None,
        now: float,
    ) -> None:
        """A fill stream is over; the subscription goes on."""
        self.forget_fill(target.request_id)
        self.context.emit(FillEnded(self.request_id, target.request_id, reset, raw_code))
        self.on_stream_over(now)

    # Copies on a shared alias

    def take_subgroup(self, head: SubgroupHeader) -> bool:
        """Return whether this is the first stream of its Subgroup here."""
        key = (head.group_id, head.subgroup_id)
        if key in self._subgroups:
            return False
        self._subgroups[key] = None
        if len(self._subgroups) > MAX_COPY_GROUPS:
            self._subgroups.popitem(last=False)
        return True

    def take_copy(self, header: ObjectHeader) -> bool:
        """Return whether this Object passes our filters and has not come before; it has, then."""
        if self._range is not None and header.location not in self._range:
            return False
        if not self.range_filters.passes(header, self.properties):
            return False
        seen = self._copies.get(header.group_id)
        if seen is None:
            seen = self._copies[header.group_id] = SeenNumbers()
            if len(self._copies) > MAX_COPY_GROUPS:
                self._copies.popitem(last=False)
        return seen.add(header.object_id)

    # Data streams

    def count_stream(self) -> None:
        """A data stream of ours is there."""
        self._streams_seen += 1
        done = self._done
        if (
            done is not None
            and done.stream_count is not None
            and self._streams_seen - self._streams_guessed > done.stream_count
            and self._alias is not None
            and not self._alias.is_shared
        ):
            raise RemoteProtocolError(
                SessionErrorCode.PROTOCOL_VIOLATION,
                f"request {self.request_id}: more streams than the {done.stream_count} of "
                "PUBLISH_DONE",
            )

    def on_stream_over(self, now: float) -> None:
        """A data stream ended in whatever way."""
        if self._done is not None:
            self._end_if_complete()

    # The end

    def on_publish_done(self, message: PublishDone, now: float) -> None:
        """End once all streams that it counts are over, or no longer come (MOQT-22 9.9)."""
        self._done = message
        self.stream.phase = Phase.ENDED
        self.stream.finish()
        self._end_if_complete()
        if not self._is_over:
            self._subscriber.ending[self] = None
            self._wait_for_streams(now)

    def _end_if_complete(self) -> None:
        done = self._done
        if done is None or done.stream_count is None or self.delivery.streams:
            return
        missing = max(0, done.stream_count - self._streams_seen)
        if not missing:
            self.end(done.code, done.reason)
        elif (
            # A publisher that gives up resets streams of which nothing has left it yet. When the
            # track itself has ended it does not, so then its streams are waited for.
            done.code is not PublishDoneCode.TRACK_ENDED
            and self._subscriber.take_nameless_resets(missing)
        ):
            self.end(done.code, done.reason, missing)

    def _wait_for_streams(self, now: float) -> None:
        timeout_s = min(self._timeout_ms / 1000, MAX_DONE_WAIT_S)
        seconds = max(self.context.config.done_timeout_s, timeout_s)
        received = self._progress()
        self._done_timer = self.context.timers.at(
            now + seconds, lambda later: self._give_up(received, later)
        )

    def _progress(self) -> tuple[int, int]:
        return self._streams_seen, sum(
            stream.octets_read for stream in self.delivery.streams.values()
        )

    def _give_up(self, before: tuple[int, int], now: float) -> None:
        """End without the missing streams, unless something came since, or waits for the reader."""
        self._done_timer = None
        if self.delivery.streams and (self._progress() != before or self.delivery.budget.is_full):
            self._wait_for_streams(now)
            return
        done = self._done
        assert done is not None  # the timer is set by on_publish_done
        count = done.stream_count
        missing = 0 if count is None else max(0, count - self._streams_seen)
        missing += len(self.delivery.streams)
        self.end(done.code, done.reason, missing)

    def end(self, code: PublishDoneCode, reason: str, missing: int = 0) -> None:
        """The publisher ended it; what has not come will not."""
        if not self._is_over:
            self.release(StreamResetCode.CANCELLED)
            self.context.emit(SubscriptionEnded(self.request_id, code, reason, missing))

    def end_by_peer(self, raw_code: int) -> None:
        """The publisher cancelled the request instead of PUBLISH_DONE."""
        code = _DONE_CODES.get(StreamResetCode.from_wire(raw_code), PublishDoneCode.INTERNAL_ERROR)
        self.end(code, f"the publisher cancelled the subscription (0x{raw_code:x})")

    def release(self, code: StreamResetCode) -> None:
        """Drop everything that belongs to it; streams that are still open are stopped."""
        if self._is_over:
            return
        self._is_over = True
        if self._done_timer is not None:
            self._done_timer.cancel()
        for fill_id in list(self._fills):
            self.forget_fill(fill_id)
        if self._alias is not None:
            self._subscriber.aliases.release(self._alias, self)
            self._hand_over(self._alias.subscriptions)
        self.delivery.stop_all(code)
        self.delivery.close()
        self._subscriber.forget(self)

    def _hand_over(self, others: Iterable[Subscription]) -> None:
        """On a shared alias, let our streams go on for another: whose copy they are is unknown."""
        other = next(iter(others), None)
        if other is not None:
            for stream in list(self.delivery.streams.values()):
                feed = stream.feed
                if isinstance(feed, SubgroupFeed):
                    feed.hand_over(other)

    def session_over(self) -> None:
        """The session is over; places are given back by the streams."""
        self._is_over = True
        self.delivery.close()


_DONE_CODES: Final = {
    StreamResetCode.GOING_AWAY: PublishDoneCode.GOING_AWAY,
    StreamResetCode.TOO_FAR_BEHIND: PublishDoneCode.TOO_FAR_BEHIND,
    StreamResetCode.EXCESSIVE_LOAD: PublishDoneCode.EXCESSIVE_LOAD,
    StreamResetCode.MALFORMED_TRACK: PublishDoneCode.MALFORMED_TRACK,
}
