"""Next Object plus an open fill gives every Object exactly once, whatever happens in between."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from moqt.codes import GroupOrder, PublishDoneCode
from moqt.session.config import SessionConfig
from moqt.session.publish.payloads import EqualPayloads
from moqt.types import Location
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import PublishDone, SubscribeOk
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.streams import SubgroupHeader
from tests.session.sending import MANY, NAME, Got, Sending, payload_of, places

if TYPE_CHECKING:
    from moqt.session.publish.source import SubgroupWriter, TrackSource

OPERATIONS = ["write", "write_many", "next_group", "next_group_whole"]
OPERATIONS += ["subgroup", "room", "flush", "narrow"]
SUBSCRIBING = ["join", "join_descending", "update", "refill"]
DISTURBING = ["pause", "resume", "stop", "cancel"]


@dataclass
class Stage:
    """One track that grows, one session that serves it, and a random script."""

    side: Sending
    track: TrackSource = field(init=False)
    writers: list[SubgroupWriter] = field(default_factory=list)
    group_id: int = 0
    object_id: int = 0
    written: list[tuple[int, int]] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    request_ids: dict[int, int] = field(default_factory=dict)
    orders: dict[int, GroupOrder] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.track = self.side.track()
        self.side.transport.room = 0
        self.side.transport.uni_limit = 3
        self.open()

    def open(self) -> None:
        self.object_id = 0
        self.writers = [self.track.open_group(self.group_id, publisher_priority=self.group_id % 3)]

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def do(self, operation: str, number: int) -> None:
        side, transport = self.side, self.side.transport
        match operation:
            case "write":
                self.write(number)
            case "write_many":
                for _ in range(1 + number % 7):
                    self.write(number)
            case "next_group" | "next_group_whole":
                self.close()
                self.group_id += 1 + number % 2
                self.open()
                if operation == "next_group_whole":
                    self.write_all(1 + number % 7, size=number % 50)
            case "subgroup":
                self.writers.append(
                    self.track.open_group(self.group_id, subgroup_id=len(self.writers))
                )
            case "room":
                transport.room = number * 7
                transport.uni_limit += 1
            case "flush":
                side.flush()
            case "narrow":
                for stream in side.data_streams().values():
                    stream.room = number if stream.room == MANY else MANY
            case "join" | "join_descending":
                order = GroupOrder.ASCENDING if operation == "join" else GroupOrder.DESCENDING
                fill = FillParameters(location_filter=LocationFilter.absolute(Location(0, 0)))
                request = side.subscribe(
                    Parameters(
                        location_filter=LocationFilter.next_object(), fill=fill, group_order=order
                    )
                )
                self.requests.append(request)
                self.request_ids[request] = side.requests.streams[request].request_id
                self.orders[request] = order
            case _ if self.requests:
                self.disturb(operation, number, self.requests[number % len(self.requests)])

    def disturb(self, operation: str, number: int, request: int) -> None:
        side = self.side
        if request in self.cancelled:
            return
        match operation:
            case "update":
                side.update(request, Parameters(subscriber_priority=number % 256))
            case "refill":
                nothing = FillParameters(location_filter=LocationFilter.next_object())
                side.update(request, Parameters(fill=nothing))
            case "pause" | "resume":
                side.update(request, Parameters(forward=operation == "resume"))
            case "stop":
                streams = sorted(s for s, w in side.data_streams().items() if w.is_open)
                if streams:
                    side.publisher.on_data_stop(streams[number % len(streams)], 1, 0.0)
            case "cancel":
                side.cancel(request)
                self.cancelled.add(request)

    def write(self, number: int) -> None:
        writer = self.writers[number % len(self.writers)]
        size = number % 50
        writer.write(self.object_id, payload_of(self.group_id, self.object_id, size))
        self.written.append((self.group_id, self.object_id))
        self.object_id += 1

    def write_all(self, count: int, *, size: int) -> None:
        payloads = [payload_of(self.group_id, number, size) for number in range(count)]
        self.writers[0].write_all(EqualPayloads(count, [b"".join(payloads)]))
        self.written += [(self.group_id, number) for number in range(count)]
        self.object_id = count

    def finish(self) -> None:
        self.close()
        self.track.end()
        self.side.transport.uni_limit = 1 << 20
        for stream in self.side.data_streams().values():
            stream.room = MANY
        self.side.transport.room = MANY
        for _ in range(3):  # a stream that was blocked before frees places for others
            self.side.flush()

    def streams_of(self, request: int) -> list[int]:
        request_id = self.request_ids[request]
        alias = self.side.alias(request)
        found = []
        for stream, written in self.side.data_streams().items():
            head = self.side.head(written)
            if isinstance(head, SubgroupHeader):
                if head.track_alias == alias:
                    found.append(stream)
            elif head.request_id == request_id:
                found.append(stream)
        return found

    def got(self, request: int) -> list[Got]:
        return [
            item
            for stream in self.streams_of(request)
            for item in self.side.read(stream, self.orders[request])
            if isinstance(item, Got) and not item.status
        ]


def scripts(*names: list[str]) -> st.SearchStrategy[list[tuple[str, int]]]:
    operations = [name for group in names for name in group]
    return st.lists(
        st.tuples(st.sampled_from(operations), st.integers(0, 100)), min_size=1, max_size=60
    )


QUANTUM = SessionConfig(write_octets=64, max_active_streams=2)


@settings(max_examples=250, deadline=None)
@given(scripts(OPERATIONS, SUBSCRIBING))
def test_each_object_exactly_once(script: list[tuple[str, int]]) -> None:
    stage = Stage(Sending(QUANTUM))
    for operation, number in script:
        stage.do(operation, number)
    stage.finish()
    for request in stage.requests:
        got = stage.got(request)
        assert Counter(places(got)) == Counter(stage.written)
        for one in got:
            where = one.location
            assert one.payload == payload_of(where.group_id, where.object_id, len(one.payload))
        streams = [stage.side.transport.streams[s] for s in stage.streams_of(request)]
        assert all(stream.fin for stream in streams)
        done = stage.side.replies(request)[-1]
        assert isinstance(done, PublishDone)
        assert (done.code, done.stream_count) == (PublishDoneCode.TRACK_ENDED, len(streams))
    assert stage.side.context.stats.open_streams_sent == 0


@settings(max_examples=250, deadline=None)
@given(scripts(OPERATIONS, SUBSCRIBING, DISTURBING))
def test_disturbed_subscriptions_never_repeat_and_always_end(
    script: list[tuple[str, int]],
) -> None:
    """Pauses, stops and cancels lose Objects, and nothing else: none comes twice."""
    stage = Stage(Sending(QUANTUM))
    for operation, number in script:
        stage.do(operation, number)
    stage.finish()
    for request in stage.requests:
        got = places(stage.got(request))
        assert len(got) == len(set(got))
        assert set(got) <= set(stage.written)
        if request in stage.cancelled:
            continue
        side = stage.side
        last = side.replies(request)[-1]
        if not isinstance(last, PublishDone):  # its fill is paused
            assert not side.ended(request)
            side.update(request, Parameters(forward=True))
            side.flush()
            last = side.replies(request)[-1]
        assert isinstance(last, PublishDone)
        assert last.code is PublishDoneCode.TRACK_ENDED
        assert last.stream_count == len(stage.streams_of(request))
    side = stage.side
    assert not any(stream.is_open for stream in side.data_streams().values())
    assert side.context.stats.open_streams_sent == 0
    assert side.publisher.open_subscriptions == 0
    assert not stage.track._listeners


def test_join_between_two_objects_of_a_layer_at_every_place() -> None:
    for cut in range(13):
        side = Sending()
        track = side.track()
        request = -1
        count = 0
        for group_id in range(3):
            writer = track.open_group(group_id)
            for object_id in range(4):
                if count == cut:
                    request = side.subscribe(
                        Parameters(
                            location_filter=LocationFilter.next_object(),
                            fill=FillParameters(location_filter=LocationFilter.none()),
                        )
                    )
                writer.write(object_id, payload_of(group_id, object_id))
                count += 1
            writer.end_of_group()
            writer.close()
        if cut == 12:
            continue
        track.end()
        side.flush()
        (ok, _) = side.replies(request)
        assert isinstance(ok, SubscribeOk)
        fill, live = side.objects(side.fetches()), side.objects(side.subgroups())
        assert len(fill) == cut
        assert len(live) == 12 - cut
        assert places(fill + live) == [(g, o) for g in range(3) for o in range(4)]
    assert side.directory.find(NAME) is track
