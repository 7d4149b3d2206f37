"""One subscription that the peer has to a track here: its cursors, fills and Forward State."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moqt.codes import PublishDoneCode, RequestErrorCode, StreamResetCode
from moqt.session.publish.cursor import CursorState, Flow
from moqt.session.publish.datagram_queue import DatagramQueue
from moqt.session.publish.linger import Linger
from moqt.session.publish.outbound import FetchCursor, SubgroupCursor
from moqt.session.publish.timeouts import DeliveryTimeouts
from moqt.session.request.endings import cut_reason, reset_code_for
from moqt.session.request.request_stream import ServedHandler
from moqt.session.request.states import Phase
from moqt.wire.filters import FilterRejected
from moqt.wire.messages import (
    PublishDone,
    PublishStateNotify,
    RequestError,
    RequestOk,
    RequestUpdate,
)
from moqt.wire.params import Parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.session.context import SessionContext
    from moqt.session.publish.cursor import Cursor
    from moqt.session.publish.history import StoredObject, StoredSubgroup
    from moqt.session.publish.publisher import Publisher
    from moqt.session.publish.source import TrackSource
    from moqt.session.publish.subscription_state import SubscriptionState
    from moqt.session.request.requests import RequestStream
    from moqt.types import ObjectHeader
    from moqt.wire.filters import RangeFilters
    from moqt.wire.messages import Message
    from moqt.wire.params import FillParameters

__all__ = ["ServedSubscription"]

_SWEEP_FROM: Final = 16
"""Subgroups without a stream from which on those that were closed are forgotten."""


class _Fill:
    """The owner of one fill's cursor."""

    __slots__ = ("_priority", "subscription")

    def __init__(self, subscription: ServedSubscription, priority: int | None) -> None:
        self.subscription = subscription
        self._priority = priority

    @property
    def subscriber_priority(self) -> int:
        """Its own, else that of the subscription."""
        if self._priority is None:
            return self.subscription.subscriber_priority
        return self._priority

    def cursor_left(self, cursor: Cursor, state: CursorState) -> None:
        """Tell the subscription."""
        self.subscription.cursor_left(cursor, state)

    def stopped(self, cursor: Cursor) -> None:
        """The peer stopped the fill; the subscription lives on (MOQT-22 3.4.1)."""
        self.subscription.stopped(cursor)


class ServedSubscription(ServedHandler):
    """Sends a track's Objects from one moment on, and fills from before it.

    Objects that exist when it starts are never sent by itself: its cursors start at the end of each
    open Subgroup. A fill resolves against the same Largest Object in the same call, so that Next
    Object plus an open fill gives each Object exactly once (MOQT-22 3.4).

    One cursor stands for each Subgroup that may still grow or is not sent yet, one for each fill,
    one queue for all datagrams.
    """

    def __init__(
        self,
        publisher: Publisher,
        track: TrackSource,
        *,
        track_alias: int,
        state: SubscriptionState,
        is_offer: bool = False,
    ) -> None:
        self.track = track
        self.track_alias = track_alias
        self.state = state
        self.flow = Flow()
        self.streams_closed = 0
        """Data streams opened and closed again: the Stream Count when none is open."""
        self.is_over = False
        self.on_done: Callable[[], None] | None = None
        """Called once PUBLISH_DONE is sent."""
        self.stream: RequestStream
        self._publisher = publisher
        self._context: SessionContext = publisher.context
        self._scheduler = publisher.scheduler
        self._deadlines = publisher.deadlines
        self._datagrams = DatagramQueue(
            self.flow,
            self,
            self._context,
            track_alias=track_alias,
            track_timeouts=DeliveryTimeouts.of_track(track.properties),
            group_order=state.group_order,
        )
        self._datagrams.timeouts = state.timeouts
        self._cursors: dict[StoredSubgroup, SubgroupCursor] = {}
        self._fills: dict[Cursor, None] = {}
        self._live: set[Cursor] = set()
        """All cursors, those included that are about to be cut; the datagrams if any wait."""
        self._left: dict[StoredSubgroup, bool] = {}
        """Open Subgroups that get no stream any more; True: since the peer stopped it."""
        self._linger = Linger(self._context, self.end_if_complete)
        self._is_behind = False
        self._owes_notify = False
        self._done: tuple[PublishDoneCode, str] | None = None
        self._keeps_open = is_offer and not state.forward
        """An offered track that was never forwarded waits for its fill, even if it has ended."""

    @property
    def subscriber_priority(self) -> int:
        """The Subscriber Priority of all but fills with their own."""
        return self.state.priority

    # Beginning

    def start(self, stream: RequestStream) -> None:
        """Deliver from now on."""
        self.stream = stream
        if self.track.clock is None:
            self.track.clock = self._context.clock
        self.track.add_listener(self)
        if self.state.forward:
            self._attach_all()

    def fill(self, fill: FillParameters, request_id: int) -> None:
        """Open a fill for the message `request_id`, unless there is nothing to fill."""
        state = self.state
        wanted = state.fill_range(fill, self.track.largest)
        if wanted is None:
            return
        filters = state.range_filters.updated(fill.range_filters, fill.removed_range_filters)
        cursor = FetchCursor(
            self.flow,
            _Fill(self, fill.subscriber_priority),
            self._context.stats,
            self.track,
            request_id=request_id,
            wanted=wanted,
            range_filters=filters if filters.filters else None,
            group_order=fill.group_order or state.group_order,
            fill_of=state.group_order,
        )
        self._fills[cursor] = None
        self._live.add(cursor)
        self._scheduler.add(cursor)

    # RequestHandler, for a SUBSCRIBE of the peer's

    def on_message(self, stream: RequestStream, message: Message, now: float) -> None:
        """Take a REQUEST_UPDATE, the only message that may come."""
        assert isinstance(message, RequestUpdate)  # by the transition table
        self.update(message)
        self.end_if_complete()

    def refuse_update(self, stream: RequestStream, error: RequestError, now: float) -> None:
        """Answer so, and end the subscription."""
        if not self.is_over:
            self._fail_update(error)

    def _fail_update(self, error: RequestError) -> None:
        self.stream.send(error)
        self.end(PublishDoneCode.UPDATE_FAILED, error.reason)

    def on_cancelled(self, stream: RequestStream, raw_code: int, now: float) -> None:
        """The subscriber has enough: reset every data stream, no PUBLISH_DONE."""
        self.release(StreamResetCode.CANCELLED)

    # Updates

    def update(self, message: RequestUpdate) -> None:
        """Apply and answer a REQUEST_UPDATE (MOQT-22 9.5)."""
        if self.is_over:
            return  # it crossed our PUBLISH_DONE
        parameters = message.parameters
        limit = self._context.config.max_fills
        if parameters.fill is not None and len(self._fills) >= limit:
            reason = f"{limit} fills are open"
            self._fail_update(RequestError(code=RequestErrorCode.EXCESSIVE_LOAD, reason=reason))
            return
        try:
            state = self.state.updated(
                parameters,
                largest=self.track.largest,
                max_ranges=self._context.config.max_filter_ranges,
            )
        except FilterRejected as error:
            self._fail_update(RequestError(code=error.code, reason=error.reason))
            return
        old, self.state = self.state, state
        if state.priority != old.priority:
            self._scheduler.reprioritize(self.flow)
        if state.timeouts != old.timeouts:
            self._set_timeouts()
        if (state.location_range, state.range_filters) != (old.location_range, old.range_filters):
            self._limit_cursors()
        if old.forward and not state.forward:
            self._pause()
        if state.forward:
            if not old.forward:
                self._resume()
            self._keeps_open = False
            self._attach_all()
        self.stream.send(RequestOk(Parameters(largest=self.track.largest)))
        if parameters.fill is not None:
            self.fill(parameters.fill, message.request_id)
        if parameters.new_group_request is not None:
            self.track.request_new_group(parameters.new_group_request)

    def _set_timeouts(self) -> None:
        self._datagrams.timeouts = self.state.timeouts
        for subgroup, cursor in self._cursors.items():
            cursor.timeouts = self.state.timeouts
            if subgroup.is_closed:
                self._deadlines.watch(cursor)

    def _limit_cursors(self) -> None:
        filters = self._range_filters()
        outside = []
        for subgroup, cursor in self._cursors.items():
            wanted = self.state.object_ids(subgroup.group_id)
            if wanted is None:
                outside.append(cursor)
            else:
                cursor.limit(*wanted, filters)
        self._cut(outside)
        self._keep_datagrams(self.state.passes)

    def _pause(self) -> None:
        """Send no Object any more; a stream with nothing to send may stay (MOQT-22 11.3.2)."""
        self._cut([c for c in self._cursors.values() if c.prepare() is CursorState.READY])
        self._keep_datagrams(lambda _: False)
        for fill in self._fills:
            self._scheduler.suspend(fill)

    def _keep_datagrams(self, is_wanted: Callable[[ObjectHeader], bool]) -> None:
        queue = self._datagrams
        if queue in self._live:
            self._scheduler.suspend(queue)
            queue.keep(is_wanted)
            if queue.prepare() is CursorState.READY:
                self._scheduler.add(queue)
            else:
                self._live.discard(queue)

    def _resume(self) -> None:
        self._left = {subgroup: False for subgroup, stopped in self._left.items() if not stopped}
        for fill in self._fills:
            self._scheduler.add(fill)

    def _cut(self, cursors: list[SubgroupCursor]) -> None:
        self._scheduler.discard(cursors)
        for cursor in cursors:
            cursor.subgroup.waiters.pop(cursor, None)
            self._scheduler.reset(cursor, StreamResetCode.CANCELLED)
            self._forget(cursor)

    # Cursors

    def _range_filters(self) -> RangeFilters | None:
        return self.state.range_filters if self.state.range_filters.filters else None

    def _attach_all(self) -> None:
        for subgroup in self.track.open_subgroups():
            self._attach(subgroup)

    def _attach(self, subgroup: StoredSubgroup) -> None:
        wanted = self.state.object_ids(subgroup.group_id)
        if wanted is None or subgroup in self._cursors or subgroup in self._left:
            return
        cursor = SubgroupCursor(
            self.flow,
            self,
            self._context.stats,
            subgroup,
            track_alias=self.track_alias,
            group_order=self.state.group_order,
        )
        cursor.limit(*wanted, self._range_filters())
        cursor.timeouts = self.state.timeouts
        self._cursors[subgroup] = cursor
        self._live.add(cursor)
        subgroup.waiters[cursor] = None

    def _forget(self, cursor: Cursor) -> None:
        self._live.discard(cursor)
        self._fills.pop(cursor, None)
        if cursor.stream_id is not None:
            self.streams_closed += 1
        if isinstance(cursor, SubgroupCursor):
            if self._cursors.get(cursor.subgroup) is cursor:
                del self._cursors[cursor.subgroup]
            if not cursor.is_finished or cursor.stream_id is None:
                self._deadlines.drop(cursor)

    def _leave(self, subgroup: StoredSubgroup, *, stopped: bool) -> None:
        if subgroup.is_closed:
            return
        self._left[subgroup] = stopped
        if len(self._left) > _SWEEP_FROM:  # most of them are closed by now
            self._left = {s: stopped for s, stopped in self._left.items() if not s.is_closed}

    def cursor_left(self, cursor: Cursor, state: CursorState) -> None:
        """The scheduler let go of a cursor."""
        if state is CursorState.IDLE and isinstance(cursor, SubgroupCursor):
            cursor.subgroup.waiters[cursor] = None
            return
        if isinstance(cursor, SubgroupCursor):
            cursor.is_finished = state is CursorState.FINISHED
        self._forget(cursor)
        if state is CursorState.IDLE:
            pass  # all datagrams are sent; a fill is never idle
        elif state is CursorState.FINISHED:
            if isinstance(cursor, SubgroupCursor):
                self._leave(cursor.subgroup, stopped=False)
        elif state is CursorState.LATE:
            assert isinstance(cursor, SubgroupCursor)  # a fill has no delivery timeout
            self._give_up(cursor)
        elif state is CursorState.BEHIND:
            self._scheduler.reset(cursor, StreamResetCode.TOO_FAR_BEHIND)
            self.end(PublishDoneCode.TOO_FAR_BEHIND, "the next Object is not retained any more")
        else:
            self._scheduler.reset(cursor, StreamResetCode.CANCELLED)
        self.end_if_complete()

    def stopped(self, cursor: Cursor) -> None:
        """The peer stopped one data stream: reset it, and open none for the same Subgroup."""
        self._scheduler.discard([cursor])
        self._scheduler.reset(cursor, StreamResetCode.CANCELLED)
        self._forget(cursor)
        if isinstance(cursor, SubgroupCursor):
            cursor.subgroup.waiters.pop(cursor, None)
            self._leave(cursor.subgroup, stopped=True)
        self.end_if_complete()

    def cursor_expired(self, cursor: SubgroupCursor) -> None:
        """SUBGROUP_DELIVERY_TIMEOUT: what is not acknowledged is given up (MOQT-22 5.2)."""
        if cursor in self._live:
            self._scheduler.discard([cursor])
            cursor.subgroup.waiters.pop(cursor, None)
            self._forget(cursor)
            self._give_up(cursor)
            self.end_if_complete()
        elif cursor.stream_id is not None:
            self._scheduler.reset_unacknowledged(cursor.stream_id)

    def _give_up(self, cursor: SubgroupCursor) -> None:
        self._scheduler.reset(cursor, StreamResetCode.DELIVERY_TIMEOUT)
        self._leave(cursor.subgroup, stopped=False)

    # What the track tells

    def subgroup_opened(self, subgroup: StoredSubgroup) -> None:
        """Wait for its Objects."""
        if self.state.forward:
            self._attach(subgroup)

    def cursor_grew(self, cursor: SubgroupCursor) -> None:
        """An idle cursor has something to do."""
        if not self.state.forward and not cursor.subgroup.is_closed:
            # An Object was published while paused: it is left out, so the stream ends by reset.
            cursor.is_over = cursor.is_cut = True
            del self._cursors[cursor.subgroup]
        self._scheduler.add(cursor)
        self._context.wake()

    def subgroup_closed(self, subgroup: StoredSubgroup) -> None:
        """The time for its delivery begins to run."""
        cursor = self._cursors.get(subgroup)
        if cursor is not None:
            self._deadlines.watch(cursor)

    def datagram_published(self, stored: StoredObject) -> None:
        """Let an Object for datagrams wait for its turn."""
        if not self.state.forward or not self.state.passes(stored.header):
            return
        queue = self._datagrams
        queue.push(stored)
        if queue in self._live:
            self._scheduler.requeue(self.flow)
        else:
            self._live.add(queue)
            self._scheduler.add(queue)
        self._context.wake()

    def state_changed(self) -> None:
        """The publisher has news of the track's state."""
        self._owes_notify = True
        self._publisher.note(self)

    def track_finished(self) -> None:
        """The track was ended or aborted."""
        self._publisher.note(self)

    def measure_lag(self) -> int:
        """Find out whether it is too far behind; return what may be published before next time."""
        limit = self._context.config.max_lag_octets
        lag = sum(cursor.lag for cursor in self._cursors.values())
        if lag > limit:
            self._is_behind = True
            self._publisher.note(self)
        return max(limit - lag, limit >> 6, 1)

    # End

    def attend(self) -> None:
        """Do what was noted while the track was written to."""
        if self.is_over:
            return
        if self._owes_notify and self.stream.phase is Phase.ESTABLISHED:
            self._owes_notify = False
            # LARGEST_OBJECT alone: the rest of what it may carry is the subscriber's to control.
            self.stream.send(PublishStateNotify(Parameters(largest=self.track.largest)))
        if self.track.abort_code is not None:
            self.end(self.track.abort_code, self.track.abort_reason)
        elif self._is_behind:
            limit = self._context.config.max_lag_octets
            self.end(PublishDoneCode.TOO_FAR_BEHIND, f"more than {limit} octets behind")
        else:
            self.end_if_complete()

    def end_if_complete(self) -> None:
        """End with TRACK_ENDED when the track has ended and everything is sent."""
        if not self.track.is_ended or self.is_over or self._live or self._keeps_open:
            return
        if not self._linger.holds():
            self._finish(PublishDoneCode.TRACK_ENDED, "")

    def end(self, code: PublishDoneCode, reason: str) -> None:
        """Reset what is open, then PUBLISH_DONE (MOQT-22 9.9)."""
        self._close(reset_code_for(code), fails=True)
        self._finish(code, reason)

    def expire(self, stream: RequestStream, now: float) -> None:
        """The authorization has run out: say so by PUBLISH_DONE (MOQT-22 9.20.16)."""
        if not self.is_over:
            self.end(PublishDoneCode.EXPIRED, "the authorization has expired")

    def accepted(self) -> None:
        """The peer took our offer: say now what had to wait for that."""
        if self._done is not None:
            self._say_done(*self._done)
        elif self._owes_notify:
            self._publisher.note(self)

    def _finish(self, code: PublishDoneCode, reason: str) -> None:
        self._done = code, reason
        self.is_over = True
        self._linger.cancel()
        self.track.remove_listener(self)
        if self.stream.phase is not Phase.PENDING:
            self._say_done(code, reason)

    def _say_done(self, code: PublishDoneCode, reason: str) -> None:
        self.stream.send(
            PublishDone(code=code, stream_count=self.streams_closed, reason=cut_reason(reason))
        )
        self.stream.finish()
        self._publisher.forget(self)
        if self.on_done is not None:
            self.on_done()

    def release(self, code: StreamResetCode | None) -> None:
        """End without PUBLISH_DONE: reset what is open, with None touch no stream."""
        self.is_over = True
        self._linger.cancel()
        self.track.remove_listener(self)
        self._close(code)
        self._publisher.forget(self)

    def _close(self, code: StreamResetCode | None, *, fails: bool = False) -> None:
        """`fails`: it is our doing, so a fill without a stream gets one to say so."""
        cursors = list(self._live)
        self._scheduler.discard(cursors)
        for cursor in cursors:
            if isinstance(cursor, SubgroupCursor):
                cursor.subgroup.waiters.pop(cursor, None)
            if code is not None and fails and isinstance(cursor, FetchCursor):
                self._scheduler.fail(cursor, code)
            elif code is not None:
                self._scheduler.reset(cursor, code)
            self._forget(cursor)
