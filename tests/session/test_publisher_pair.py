"""Two real sessions: what one serves, the other receives, over a link that a test controls."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from moqt.codes import GroupOrder, ObjectStatus, PublishDoneCode
from moqt.session.config import Role, SessionConfig
from moqt.session.events import (
    EndOfRangeReceived,
    FetchEnded,
    FetchEstablished,
    FillEnded,
    ObjectReceived,
    SubscriptionEnded,
    SubscriptionEstablished,
    UpdateAccepted,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing.link import LinkConditions
from moqt.testing.pair import SessionPair
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.filters import LocationFilter
from moqt.wire.params import FillParameters
from tests.session.sending import payload_of, publish

NAME = FullTrackName(TrackNamespace.of("n"), b"t")
WHOLE = FillParameters(location_filter=LocationFilter.absolute(Location(0, 0)))


def tight() -> LinkConditions:
    return LinkConditions(
        piece=97, stream_window=700, connection_window=4000, reserve=1000, send_buffer=600
    )


class Consumer:
    """The client of a pair, and all that it got."""

    def __init__(
        self,
        track: TrackSource,
        *,
        conditions: LinkConditions | None = None,
        seed: int | None = None,
        server_config: SessionConfig | None = None,
    ) -> None:
        directory = TrackDirectory()
        directory.add(track)
        self.pair = SessionPair(
            server_directory=directory,
            conditions=conditions,
            server_config=server_config,
            rng=None if seed is None else Random(seed),
        )
        self.got: list[ObjectReceived] = []

    def join(self, order: GroupOrder | None = None) -> int:
        return self.pair.client.subscribe(
            NAME,
            location_filter=LocationFilter.next_object(),
            fill=WHOLE,
            group_order=order,
            now=self.pair.now,
        )

    def run(self, max_pieces: int | None = None) -> None:
        while True:
            moved = self.pair.run(max_pieces)
            new = self.pair.take(Role.CLIENT, ObjectReceived)
            for event in new:
                self.pair.client.consume(event.request_id, event.object)
            self.got += new
            if max_pieces is not None or not (moved or new):
                return

    def places(self, request_id: int) -> list[tuple[int, int]]:
        out = []
        for event in self.got:
            header = event.object.header
            if event.request_id == request_id and header.status is ObjectStatus.NORMAL:
                payload = event.object.payload
                assert payload is not None
                assert payload == payload_of(header.group_id, header.object_id, len(payload))
                out.append((header.group_id, header.object_id))
        return out

    def ended(self, request_id: int) -> SubscriptionEnded:
        (event,) = [
            e for e in self.pair.take(Role.CLIENT, SubscriptionEnded) if e.request_id == request_id
        ]
        return event


@pytest.mark.parametrize("seed", range(12))
def test_join_in_the_middle_of_a_layer_exactly_once(seed: int) -> None:
    rng = Random(seed)
    track = TrackSource(NAME)
    consumer = Consumer(track, conditions=tight(), seed=seed)
    expected: list[tuple[int, int]] = []
    requests: list[int] = []
    join_at = {rng.randrange(60) for _ in range(2)}
    for group_id in range(6):
        writer = track.open_group(group_id, publisher_priority=20 * group_id)
        for object_id in range(10):
            if len(expected) in join_at:
                requests.append(consumer.join(rng.choice([None, GroupOrder.DESCENDING])))
            writer.write(object_id, payload_of(group_id, object_id, rng.randrange(400)))
            expected.append((group_id, object_id))
            consumer.run(rng.randrange(1, 12))
        writer.end_of_group()
        writer.close()
    track.end(Location(6, 0))
    consumer.run()
    ended = {e.request_id: e for e in consumer.pair.take(Role.CLIENT, SubscriptionEnded)}
    for request_id in requests:
        assert Counter(consumer.places(request_id)) == Counter(expected)
        assert ended[request_id].code is PublishDoneCode.TRACK_ENDED
        assert ended[request_id].streams_missing == 0
    assert consumer.pair.server.stats.open_streams_sent == 0
    assert not consumer.pair.client.is_closed
    consumer.pair.link.assert_at_rest()


def test_fetch_over_a_tight_link() -> None:
    track = TrackSource(NAME)
    publish(track, range(4), 8, 300)
    consumer = Consumer(track, conditions=tight(), seed=5)
    request_id = consumer.pair.client.fetch(
        NAME, location_filter=LocationFilter.groups(first=1, last=2), now=0.0
    )
    consumer.run()
    assert consumer.places(request_id) == [(g, o) for g in (1, 2) for o in range(8)]
    (established,) = consumer.pair.take(Role.CLIENT, FetchEstablished)
    assert (established.end_of_track, established.end) == (False, Location(2, 7))
    (ended,) = consumer.pair.take(Role.CLIENT, FetchEnded)
    assert ended.reset is None
    assert consumer.pair.server.stats.open_requests == 0


def test_fetch_of_an_evicted_part_names_it() -> None:
    track = TrackSource(NAME)
    publish(track, range(3), 4)
    track.evict_before(Location(1, 2))
    consumer = Consumer(track)
    request_id = consumer.pair.client.fetch(NAME, now=0.0)
    consumer.run()
    (marker,) = consumer.pair.take(Role.CLIENT, EndOfRangeReceived)
    assert marker.last == Location(1, 1)
    assert consumer.places(request_id)[0] == (1, 2)


def test_stalled_subscriber_ends_too_far_behind_and_others_do_not_notice() -> None:
    track = TrackSource(NAME)
    slow = Consumer(track, conditions=tight(), server_config=SessionConfig(max_lag_octets=20_000))
    fast = Consumer(track)
    late, live = slow.join(), fast.join()
    slow.run()
    fast.run()
    slow.pair.link.conditions.stalled.add(Role.SERVER)
    for group_id in range(10):
        publish(track, [group_id], 10, 400)
        slow.run()
        fast.run()
    assert len(fast.places(live)) == 100
    slow.pair.link.conditions.stalled.clear()
    slow.run()
    # What was reset before its header came cannot be counted by the subscriber: its timer ends it.
    slow.pair.advance(SessionConfig().done_timeout_s)
    assert slow.ended(late).code is PublishDoneCode.TOO_FAR_BEHIND
    assert len(slow.places(late)) < 100
    assert slow.pair.server.stats.streams_reset_by_us > 0
    assert slow.pair.server.stats.open_streams_sent == 0
    assert not slow.pair.client.is_closed
    slow.pair.link.assert_at_rest()


def test_pause_and_resume_with_a_fill_for_the_gap() -> None:
    track = TrackSource(NAME)
    consumer = Consumer(track)
    request_id = consumer.join()
    publish(track, [0], 3)
    consumer.run()
    client = consumer.pair.client
    client.update(request_id, forward=False)
    consumer.run()
    publish(track, [1], 3)
    consumer.run()
    assert len(consumer.places(request_id)) == 3
    gap = FillParameters(location_filter=LocationFilter.absolute(Location(1, 0)))
    client.update(request_id, forward=True, fill=gap)
    publish(track, [2], 3)
    consumer.run()
    assert [u.largest for u in consumer.pair.take(Role.CLIENT, UpdateAccepted)] == [
        Location(0, 2),
        Location(2, 2),
    ]
    assert sorted(consumer.places(request_id)) == [(g, o) for g in range(3) for o in range(3)]
    assert [f.reset for f in consumer.pair.take(Role.CLIENT, FillEnded)] == [None, None]


def test_track_without_an_end_stays_subscribed() -> None:
    track = TrackSource(NAME)
    consumer = Consumer(track)
    request_id = consumer.join()
    consumer.run()
    (established,) = consumer.pair.take(Role.CLIENT, SubscriptionEstablished)
    assert established.largest is None
    consumer.pair.client.cancel(request_id, now=0.0)
    consumer.run()
    publish(track, [0], 1)
    consumer.run()
    assert not consumer.got
    assert not track._listeners
    assert consumer.pair.server.stats.open_requests == 0
