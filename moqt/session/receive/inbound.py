"""All incoming unidirectional streams, and which request each belongs to (MOQT-22 4, 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moqt.codes import StreamResetCode
from moqt.session.receive.data_stream import DataStream
from moqt.session.receive.feeds import FetchFeed, SubgroupFeed
from moqt.session.seen import SeenNumbers
from moqt.wire.fetch_objects import FetchReader
from moqt.wire.streams import ControlHead, FetchHeader, PaddingHead, SubgroupHeader
from moqt.wire.subgroup_objects import SubgroupReader

if TYPE_CHECKING:
    from moqt.session.context import SessionContext
    from moqt.session.control import Control
    from moqt.session.receive.aliases import TrackAlias
    from moqt.session.receive.feeds import FetchTarget
    from moqt.session.receive.subscriber import Subscriber

__all__ = ["Inbound"]


if TYPE_CHECKING:

    class _Stream(Protocol):
        def receive(self, offset: int, data: memoryview | bytes, fin: bool, now: float) -> None:
            """Take octets."""

        def receive_reset(self, raw_code: int, now: float) -> None:
            """Take a reset."""


class Inbound:
    """The table of incoming unidirectional streams.

    Streams whose Track Alias is not known yet are held without credit: at most
    `max_stray_streams` of them, `max_stray_octets` in all, `stray_timeout_s` each.
    """

    def __init__(self, context: SessionContext, control: Control, subscriber: Subscriber) -> None:
        self.context = context
        self._control = control
        self._subscriber = subscriber
        self._streams: dict[int, _Stream] = {}
        self._seen = SeenNumbers()
        self._strays: dict[int, list[DataStream]] = {}
        self._stray_count = 0
        self._nameless_resets = 0

    # Inputs

    def receive(
        self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool, now: float
    ) -> None:
        """Take octets of a stream; those of one that is over are nobody's."""
        stream = self._streams.get(stream_id)
        if stream is None:
            if not self._seen.add(stream_id >> 2):
                return
            stream = self._streams[stream_id] = DataStream(self, stream_id)
            self.context.stats.open_streams_received += 1
            self.context.stats.streams_received += 1
        stream.receive(offset, data, fin, now)

    def receive_reset(self, stream_id: int, raw_code: int, now: float) -> None:
        """Take a reset. What a stream was that has not said whose it is stays unknown."""
        stream = self._streams.get(stream_id)
        if stream is None:
            is_nameless = self._seen.add(stream_id >> 2)
        else:
            is_nameless = isinstance(stream, DataStream) and stream.is_nameless
            self.context.stats.streams_reset += 1
            stream.receive_reset(raw_code, now)
        if is_nameless:
            self._nameless_resets += 1
            self._subscriber.on_nameless_reset(now)

    def take_nameless_resets(self, count: int) -> bool:
        """Account for `count` streams of a subscription by those that never said whose they are.

        False when there were fewer. Each is taken once.
        """
        if count > self._nameless_resets:
            return False
        self._nameless_resets -= count
        return True

    # What a stream turned out to be

    def route(self, stream: DataStream, now: float) -> None:
        """The head of a stream is known: read it, hold it, or stop it."""
        head = stream.head
        if isinstance(head, SubgroupHeader):
            self._route_subgroup(stream, head, now)
        elif isinstance(head, FetchHeader):
            self._route_fetch(stream, head, now)
        elif isinstance(head, PaddingHead):
            stream.discard()
        else:
            assert isinstance(head, ControlHead)
            self._adopt_control(stream, now)

    def _adopt_control(self, stream: DataStream, now: float) -> None:
        self._control.adopt(stream.stream_id)
        self.context.stats.open_streams_received -= 1
        self.context.stats.streams_received -= 1
        self._streams[stream.stream_id] = self._control
        for offset, data, fin in stream.hand_on():
            self._control.receive(offset, data, fin, now)

    def _route_subgroup(self, stream: DataStream, head: SubgroupHeader, now: float) -> None:
        alias = self._subscriber.aliases.find(head.track_alias)
        if alias is not None:
            self._read_subgroup(stream, head, alias, now)
        elif self._subscriber.aliases.is_retired(head.track_alias):
            stream.stop(StreamResetCode.CANCELLED)
        elif self._stray_count >= self.context.config.max_stray_streams:
            stream.stop(StreamResetCode.EXCESSIVE_LOAD)
        else:
            self._strays.setdefault(head.track_alias, []).append(stream)
            self._stray_count += 1
            self.context.stats.stray_streams_held += 1
            stream.hold()
            if not stream.is_over:
                stream.wait(self.context.config.stray_timeout_s, now)

    def _read_subgroup(
        self, stream: DataStream, head: SubgroupHeader, alias: TrackAlias, now: float
    ) -> None:
        owner = alias.owner_of(head)
        owner.count_stream()
        feed = SubgroupFeed(self.context, stream, head, alias, owner)
        reader = SubgroupReader(
            head,
            start=stream.head_octets,
            place=feed.place,
            max_object_octets=self.context.config.max_object_octets,
            default_priority=alias.properties.default_publisher_priority,
        )
        stream.read(reader, feed, now)

    def _route_fetch(self, stream: DataStream, head: FetchHeader, now: float) -> None:
        target = self._subscriber.fetch_targets.get(head.request_id)
        if target is None or target.stream is not None:
            # The request is over, or never was, or has its stream.
            stream.stop(StreamResetCode.CANCELLED)
            return
        target.owner.on_fetch_stream(target)
        if target.is_stopped:
            stream.stop(StreamResetCode.CANCELLED)
        else:
            self._read_fetch(stream, head, target, now)
        # Not before: a subscription whose last stream this is would end without it.
        self._subscriber.settle_lost_fills(now)

    def _read_fetch(
        self, stream: DataStream, head: FetchHeader, target: FetchTarget, now: float
    ) -> None:
        feed = FetchFeed(self.context, stream, target)
        reader = FetchReader(
            head,
            start=stream.head_octets,
            place=feed.place,
            max_object_octets=self.context.config.max_object_octets,
            group_order=target.group_order,
        )
        stream.read(reader, feed, now)

    # Streams that wait for their alias

    def bind_strays(self, alias: int, now: float) -> None:
        """An alias is known now: read what was held for it, the oldest stream first."""
        for stream in self._take_strays(alias):
            if not stream.is_over:
                self.route(stream, now)

    def stop_strays(self, alias: int) -> None:
        """Nobody will want the streams of this alias."""
        for stream in self._take_strays(alias):
            stream.stop(StreamResetCode.CANCELLED)

    def _take_strays(self, alias: int) -> list[DataStream]:
        streams = self._strays.pop(alias, [])
        self._stray_count -= len(streams)
        self.context.stats.stray_streams_held -= len(streams)
        return streams

    def note_held(self, octets: int) -> bool:
        """Count octets that are held uncredited; False when they are too many."""
        stats = self.context.stats
        stats.stray_octets_held += octets
        return stats.stray_octets_held <= self.context.config.max_stray_octets

    # Upkeep

    def forget(self, stream: DataStream) -> None:
        """A stream is over."""
        if self._streams.get(stream.stream_id) is stream:
            del self._streams[stream.stream_id]
            self.context.stats.open_streams_received -= 1
        head = stream.head
        if isinstance(head, SubgroupHeader):
            strays = self._strays.get(head.track_alias)
            if strays is not None and stream in strays:
                strays.remove(stream)
                self._stray_count -= 1
                self.context.stats.stray_streams_held -= 1
                if not strays:
                    del self._strays[head.track_alias]

    def close(self) -> None:
        """The session is over: places are given back, everything is forgotten."""
        for stream in list(self._streams.values()):
            if isinstance(stream, DataStream):
                stream.session_over()
        self._streams.clear()
        self._strays.clear()
