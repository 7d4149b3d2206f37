"""SUBSCRIBE_TRACKS, ours and the peer's (MOQT-22 3.6, 9.18, 9.19)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moqt.codes import SessionErrorCode
from moqt.errors import RemoteProtocolError, ResourceBusy, SessionLeaving
from moqt.session.discover.prefixes import OwnPrefix, OwnPrefixes, ServedPrefix, ServedPrefixes
from moqt.session.events import TrackSkipped
from moqt.types import FullTrackName, ObjectHeader
from moqt.wire.filters import FilterRejected, RangeFilterKind, RangeFilters
from moqt.wire.messages import PublishSkipped, RequestError

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.publish.directory import TrackDirectory
    from moqt.session.publish.publisher import Publisher
    from moqt.session.publish.source import TrackSource
    from moqt.session.request.requests import RequestStream
    from moqt.types import TrackNamespace
    from moqt.wire.messages import Message
    from moqt.wire.params import Parameters

__all__ = ["ServedTracksSubscription", "TracksSubscription", "checked_wish"]

_NO_OBJECT = ObjectHeader(0, 0, 0, 0, 0)


class TracksSubscription(OwnPrefix):
    """A SUBSCRIBE_TRACKS of ours."""

    has_forward = True

    def __init__(self, context: SessionContext, prefix: TrackNamespace, table: OwnPrefixes) -> None:
        super().__init__(context, prefix, table)
        self._before: TrackNamespace | None = None

    def covers(self, namespace: TrackNamespace) -> bool:
        """Return whether a PUBLISH in `namespace` comes because of this.

        Streams overtake each other: so it is before the OK too, for a prefix that a move asked for,
        and still for the one that it was moved from last.
        """
        return any(
            prefix is not None and namespace.starts_with(prefix)
            for prefix in (self.prefix, self.moving_to, self._before)
        )

    def moved(self, old: TrackNamespace) -> None:
        """PUBLISHes for the old prefix may be on their way."""
        self._before = old

    def on_more(self, message: Message, now: float) -> None:
        """A track will not be offered."""
        assert isinstance(message, PublishSkipped)
        try:
            name = FullTrackName(self.prefix + message.suffix, message.name)
        except ValueError as error:
            raise RemoteProtocolError(SessionErrorCode.PROTOCOL_VIOLATION, str(error)) from error
        self.context.emit(TrackSkipped(self.request_id, name))


def checked_wish(parameters: Parameters, max_ranges: int) -> Parameters:
    """Return what of a SUBSCRIBE_TRACKS is the initial state of the subscriptions (MOQT-22 3.6.2).

    Tokens are for this request alone (MOQT-22 9.20.2). A fill, a rendezvous and a new Group are
    about one track that is asked for, so they have no meaning here.
    Raises: FilterRejected for filters that have to be refused.
    """
    wanted = replace(
        parameters,
        authorization_tokens=(),
        fill=None,
        rendezvous_timeout_ms=None,
        new_group_request=None,
        namespace_prefix=None,
    )
    wanted.check_filters(max_ranges)
    if wanted.location_filter is not None:
        wanted.location_filter.resolve_subscription(None)
    return wanted


class ServedTracksSubscription(ServedPrefix):
    """A SUBSCRIBE_TRACKS of the peer's: a PUBLISH for each track, or PUBLISH_SKIPPED.

    A PUBLISH is a request of its own and outlives this one; its events name a request that the
    application has not made. Each track that is served gets one of the two once, so what is kept is
    no more than the directory holds.
    """

    def __init__(
        self,
        stream: RequestStream,
        prefix: TrackNamespace,
        table: ServedPrefixes,
        *,
        wanted: Parameters,
        directory: TrackDirectory,
        publisher: Publisher,
    ) -> None:
        """`wanted`: see `checked_wish`."""
        super().__init__(stream, prefix, table)
        self._wanted = wanted
        self._directory = directory
        self._publisher = publisher
        self._context = publisher.context
        self._told: set[FullTrackName] = set()
        self._now = 0.0

    def begin(self, now: float) -> None:
        """Offer all that is there, and listen for what comes."""
        self._now = now
        self._told = {name for name in self._told if name.namespace.starts_with(self.prefix)}
        for track in self._directory.tracks(self.prefix):
            if not self.stream.is_send_open:
                return  # its end is reported when this input is over
            self._tell(track, now)
        self._directory.listen_for_tracks(self.prefix, self)

    def stop(self) -> None:
        """Listen no more."""
        self._directory.unlisten_for_tracks(self.prefix, self)

    def updated(self, parameters: Parameters) -> RequestError | None:
        """FORWARD and the filter count for the offers that follow (MOQT-22 9.5)."""
        old = self._wanted
        filters = RangeFilters(old.range_filters).updated(
            parameters.range_filters, parameters.removed_range_filters
        )
        try:
            filters.check(self._context.config.max_filter_ranges)
        except FilterRejected as error:
            return RequestError(code=error.code, reason=error.reason)
        forward = old.forward if parameters.forward is None else parameters.forward
        self._wanted = replace(old, forward=forward, range_filters=filters.filters)
        return None

    def _tell(self, track: TrackSource, now: float) -> None:
        if track.name in self._told:
            return
        # Filters of the track decide here, those of its Objects in its subscription.
        filters, kind = self._wanted.range_filters, RangeFilterKind.TRACK_PROPERTY
        of_track = RangeFilters(tuple(one for one in filters if one.kind is kind))
        if not of_track.passes(_NO_OBJECT, track.properties):
            return
        self._told.add(track.name)
        of_objects = tuple(one for one in filters if one.kind is not kind)
        wanted = replace(self._wanted, range_filters=of_objects)
        if self._publisher.is_offered(track) or not self._offer(track, wanted, now):
            suffix = track.name.namespace.suffix_after(self.prefix)
            self.stream.send(PublishSkipped(suffix, track.name.name))

    def _offer(self, track: TrackSource, wanted: Parameters, now: float) -> bool:
        if track.abort_code is not None or self._publisher.lacking(track):
            return False
        try:
            self._publisher.publish(track, wanted=wanted, now=now)
        except (FilterRejected, SessionLeaving, ResourceBusy):
            return False  # filters that don't fit the track, GOAWAY, no stream
        return True

    # TrackListener

    def track_added(self, track: TrackSource) -> None:
        """Offer it at once: from its first Object on."""
        clock = self._context.clock
        self._tell(track, self._now if clock is None else clock())
        self._context.wake()

    def track_removed(self, track: TrackSource) -> None:
        """Another track of its name would be a new one."""
        self._told.discard(track.name)

    def on_message(self, stream: RequestStream, message: Message, now: float) -> None:
        """Take an update."""
        self._now = now
        super().on_message(stream, message, now)
