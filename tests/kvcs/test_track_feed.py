"""Requests for one track against publishers that refuse, cut and leave out (KVCS 5.2, 5.3)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import pytest

from kvcs.checks import Checks
from kvcs.config import ConsumerConfig
from kvcs.track_feed import TrackFeed, TrackSink
from kvcs.wanted import Verification
from moqt.codes import PublishDoneCode, RequestErrorCode
from moqt.errors import RequestEnded, RequestRejected
from moqt.types import FullTrackName, Location, TrackNamespace
from tests.kvcs.fakes import FakeSession, FakeTrack, end_of_group, ended
from tests.kvcs.support import Bench, bench, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moqt.asyncio.session import MoqtSession

NAME = FullTrackName(TrackNamespace((b"kvcs-1",)), b"k.raw.s0")
REFUSED = RequestErrorCode.NOT_SUPPORTED


class Notes:
    """Arrivals that remember."""

    def __init__(self) -> None:
        self.came: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int | None]] = []
        self.is_stalled = False

    def progressed(self, track: int, layer: int, block: int) -> None:
        self.came.append((layer, block))

    def lose(self, track: int, layer: int, block: int | None = None) -> None:
        self.lost.append((layer, block))


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Case:
    """A K track of 3 layers and 3 blocks, fed from a fake session."""

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        *,
        published: int | None = None,
        blocks: int | None = None,
        thread_octets: int = 1 << 20,
        max_queued_checks: int = 256,
        codec: str = "raw",
    ) -> None:
        self.table: Bench = bench(describe(v_head_dim=0), blocks=blocks, codec=codec)
        self.notes = Notes()
        objects = {
            Location(one.header.group_id, one.header.object_id): one.payload
            for one in self.table.objects
        }
        self.track = FakeTrack(dict(sorted(objects.items())[:published]))
        self.all = objects
        self.session = FakeSession(self.track)
        self._config = ConsumerConfig(
            thread_octets=thread_octets, max_queued_checks=max_queued_checks
        )
        self.failures: list[BaseException] = []
        self.checks = Checks(self.table.assembly, threads, self._config, self.failures.append)

    def feed(self) -> TrackFeed:
        return TrackFeed(
            cast("MoqtSession", self.session),
            NAME,
            track=0,
            wanted=self.table.assembly._tracks[0].wanted,
            layers=3,
            assembly=self.table.assembly,
            arrivals=self.notes,
            config=self._config,
            slots=asyncio.Semaphore(2),
            checks=self.checks,
            stats=self.table.stats,
        )

    def publish_later(self, *items: object) -> None:
        """Have the subscription bring Objects that were not published before, and events."""
        for item in items:
            if isinstance(item, Location):
                self.track.objects[item] = self.all[item]
            self.track.live.append(item)

    @property
    def is_complete(self) -> bool:
        assert self.table.stats.open_requests == 0
        return self.table.assembly.is_track_complete(0)


def group(layer: int, blocks: range = range(3)) -> list[Location]:
    return [Location(layer, block) for block in blocks]


async def test_a_complete_track_is_one_fetch(threads: ThreadPoolExecutor) -> None:
    case = Case(threads)
    await case.feed().run(is_complete=True)
    assert case.session.log == ["fetch 0.0-2"]
    assert case.is_complete
    assert len(case.notes.came) == 9
    assert not [lost for lost in case.notes.lost if lost[0] > 2]
    await case.feed().run(is_complete=True)  # nothing lacks: nothing is asked
    assert len(case.session.log) == 1


@pytest.mark.parametrize("thread_octets", [0, 1 << 20])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
async def test_a_live_track_comes_by_fill_and_subscription(
    threads: ThreadPoolExecutor, thread_octets: int, codec: str
) -> None:
    case = Case(threads, published=4, thread_octets=thread_octets, codec=codec)
    case.publish_later(*group(1, range(1, 3)), end_of_group(1, 3), ended(1), *group(2))
    await case.feed().run(is_complete=False)
    assert case.session.log == ["subscribe with fill"]
    assert case.is_complete
    assert case.table.usable() == [0, 1, 2]
    assert case.table.stats.objects_received == 9


async def test_the_first_blocks_are_filtered(threads: ThreadPoolExecutor) -> None:
    case = Case(threads, blocks=2)
    await case.feed().run(is_complete=True)
    assert case.session.log == ["fetch filtered 0.0-2"]
    assert case.is_complete
    assert case.table.stats.discarded == 0


async def test_excess_blocks_are_discarded_where_filters_are_refused(
    threads: ThreadPoolExecutor,
) -> None:
    """K5.3#3."""
    case = Case(threads, blocks=2)
    case.track.refuses_filters = RequestErrorCode.INVALID_FILTER
    await case.feed().run(is_complete=True)
    assert case.session.log[:4] == [
        "fetch filtered 0.0-2",
        "fetch filtered 0.0-0.2",
        "fetch filtered 1.0-1.2",
        "fetch filtered 2.0-2.2",
    ]
    assert case.session.log[4:] == ["fetch 0.0-0.2", "fetch 1.0-1.2", "fetch 2.0-2.2"]
    assert case.is_complete
    assert case.table.stats.discarded == 3 - 1  # the last Group's last Object was not awaited


async def test_a_refused_fetch_of_groups_is_made_group_by_group(
    threads: ThreadPoolExecutor,
) -> None:
    case = Case(threads)
    case.track.refuses_groups = REFUSED
    await case.feed().run(is_complete=True)
    assert case.session.log == ["fetch 0.0-2", "fetch 0.0-0.2", "fetch 1.0-1.2", "fetch 2.0-2.2"]
    assert case.is_complete


async def test_a_fetch_that_is_cut_goes_on_group_by_group(threads: ThreadPoolExecutor) -> None:
    case = Case(threads)
    case.track.cuts_fetch_after = 4
    await case.feed().run(is_complete=True)
    assert case.session.log == ["fetch 0.0-2", "fetch 1.0-1.2", "fetch 2.0-2.2"]
    assert case.is_complete
    assert case.table.stats.duplicates == 1


async def test_a_fetch_refused_for_good_raises(threads: ThreadPoolExecutor) -> None:
    case = Case(threads)
    case.track.refuses_fetch = RequestErrorCode.DOES_NOT_EXIST
    with pytest.raises(RequestRejected):
        await case.feed().run(is_complete=True)
    assert case.session.log == ["fetch 0.0-2"]
    assert not case.is_complete


async def test_a_fill_that_is_reset_is_made_good_group_by_group(
    threads: ThreadPoolExecutor,
) -> None:
    case = Case(threads, published=6)
    case.track.resets_fill = True
    case.track.refuses_groups = REFUSED
    case.publish_later(*group(2))
    await case.feed().run(is_complete=False)
    assert case.session.log == ["subscribe with fill", "fetch 0.0-0", "fetch 1.0-1.2"]
    assert case.is_complete
    assert case.table.stats.objects_received == 9


@pytest.mark.parametrize("blocks", [3, 2])
async def test_a_refused_fill_is_left_out_and_made_good(
    threads: ThreadPoolExecutor, blocks: int
) -> None:
    case = Case(threads, published=6, blocks=blocks)
    case.track.refuses_fill = REFUSED
    case.publish_later(*group(2))
    await case.feed().run(is_complete=False)
    filtered = ["subscribe filtered with fill"] if blocks == 2 else []
    assert case.session.log == [
        *filtered,
        "subscribe with fill",
        "subscribe",
        "fetch 0.0-0",
        "fetch 1.0-1.2",
    ]
    assert case.is_complete


async def test_a_track_that_does_not_exist_raises(threads: ThreadPoolExecutor) -> None:
    case = Case(threads)
    case.track.refuses_fill = RequestErrorCode.DOES_NOT_EXIST
    with pytest.raises(RequestRejected):
        await case.feed().run(is_complete=False)
    assert case.session.log == ["subscribe with fill"]


# What is found to be lost


async def test_gaps_of_a_fetch_are_lost_as_soon_as_a_later_layer_comes(
    threads: ThreadPoolExecutor,
) -> None:
    case = Case(threads)
    case.track.leaves_out = {Location(0, 1)}
    await case.feed().run(is_complete=True)
    assert case.notes.lost.index((0, None)) == 0
    assert case.table.assembly.incomplete_layers(0) == [0]


async def test_gaps_of_a_fill_are_lost_when_it_ends(threads: ThreadPoolExecutor) -> None:
    case = Case(threads, published=6)
    case.track.leaves_out = {Location(1, 2)}
    case.publish_later(*group(2))
    await case.feed().run(is_complete=False)
    assert (1, None) in case.notes.lost
    assert case.table.assembly.incomplete_layers(0) == [1]


async def test_a_layer_in_the_making_is_not_lost_when_the_fill_ends(
    threads: ThreadPoolExecutor,
) -> None:
    case = Case(threads, published=4)
    case.track.largest = Location(1, 0)
    case.publish_later(*group(1, range(1, 3)), *group(2))
    await case.feed().run(is_complete=False)
    assert (1, None) not in case.notes.lost
    assert case.is_complete


@pytest.mark.parametrize("reset", [True, False])
async def test_a_stream_that_ends_early_loses_the_rest_of_its_layer(
    threads: ThreadPoolExecutor, reset: bool
) -> None:
    case = Case(threads, published=0)
    case.publish_later(*group(0), ended(0), *group(1, range(2)), ended(1, reset=reset), *group(2))
    await case.feed().run(is_complete=False)
    assert case.table.assembly.incomplete_layers(0) == [1]
    assert (1, None) in case.notes.lost


async def test_a_subscription_cut_off_raises_why(threads: ThreadPoolExecutor) -> None:
    case = Case(threads, published=0)
    behind = RequestEnded(PublishDoneCode.TOO_FAR_BEHIND, "slow")
    case.publish_later(*group(0), behind)
    with pytest.raises(RequestEnded, match="TOO_FAR_BEHIND"):
        await case.feed().run(is_complete=False)
    assert case.table.assembly.incomplete_layers(0) == [1, 2]
    await case.feed().fetch_missing({1: [0, 1, 2]})
    assert case.session.log[-1] == "fetch 1.0-1.2"


async def test_what_lacks_is_fetched_object_by_object_and_failures_are_quiet(
    threads: ThreadPoolExecutor,
) -> None:
    case = Case(threads)
    await case.feed().fetch_missing({0: [1], 2: [0, 2]})
    assert case.session.log == ["fetch 0.1-0.1", "fetch 2.0-2.2"]
    assert sorted(case.notes.came) == [(0, 1), (2, 0), (2, 1), (2, 2)]
    case.track.refuses_fetch = REFUSED
    await case.feed().fetch_missing({1: [0]})
    assert case.table.assembly.missing_blocks(0, 1) == [0, 1, 2]


async def test_a_partly_taken_track_is_resumed_where_it_lacks(threads: ThreadPoolExecutor) -> None:
    case = Case(threads)
    await case.feed().fetch_missing({0: [0, 1, 2], 1: [1]})
    case.session.log.clear()
    await case.feed().run(is_complete=True)
    assert case.session.log == ["fetch 1.0-1.2", "fetch 2.0-2.2"]
    live = Case(threads, published=6)
    await live.feed().fetch_missing({0: [0, 1, 2]})
    live.publish_later(*group(2))
    await live.feed().run(is_complete=False)
    assert live.is_complete
    assert live.table.stats.objects_received == 9  # layer 0 was not filled again


async def test_a_request_that_stands_still_is_ended_once_another_brought_its_object(
    threads: ThreadPoolExecutor,
) -> None:
    case = Case(threads)
    one = next(o for o in case.table.objects if o.header.location == Location(1, 1))
    stuck = TrackSink(case.table.assembly, 0)
    stopped = case.session.fetch(
        NAME, location_filter=_one(Location(1, 1)), range_filters=(), sink=stuck
    )
    stuck.request = cast("object", stopped)  # type: ignore[assignment]
    assert stuck.place(one.header, from_fill=False) is not None
    await case.feed().fetch_missing({1: [0, 1, 2]})
    assert [stopped.is_over, stuck.is_stopped] == [False, False]  # it may still finish
    assert case.table.assembly.missing_blocks(0, 1) == [1]
    case.notes.is_stalled = True
    await case.feed().fetch_missing({1: [1]})
    assert [stopped.is_over, stuck.is_stopped] == [True, True]
    case.table.assembly.release(stuck)
    assert case.table.assembly.missing_blocks(0, 1) == []


def _one(at: Location) -> object:
    from moqt.wire.filters import LocationFilter

    return LocationFilter.range(at, at)


async def test_cancelling_while_a_thread_verifies_keeps_the_place_until_it_is_done(
    threads: ThreadPoolExecutor,
) -> None:
    import threading

    case = Case(threads, thread_octets=0)
    gate = threading.Event()
    threads.submit(gate.wait)
    running = asyncio.create_task(case.feed().run(is_complete=True))
    while not case.table.stats.buffered_octets:  # noqa: ASYNC110
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert case.table.assembly.holders(0, 0, 0)
    gate.set()
    while case.table.stats.buffered_octets:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert case.table.assembly.missing_blocks(0, 0) == [1, 2]
    assert case.table.stats.open_requests == 0


async def test_no_more_is_read_than_may_wait_for_a_thread(threads: ThreadPoolExecutor) -> None:
    import threading

    case = Case(threads, thread_octets=0, max_queued_checks=2)
    gate = threading.Event()
    threads.submit(gate.wait)
    running = asyncio.create_task(case.feed().run(is_complete=True))
    for _ in range(100):
        await asyncio.sleep(0)
    assert case.table.stats.objects_received == 2
    assert case.notes.came == []
    gate.set()
    await running
    assert case.is_complete
    assert sorted(case.notes.came) == [(layer, block) for layer in range(3) for block in range(3)]


async def test_a_failed_digest_in_a_thread_is_lost_as_it_is_here(
    threads: ThreadPoolExecutor,
) -> None:
    case = Case(threads, thread_octets=0)
    octets = bytearray(case.track.objects[Location(1, 1)])
    octets[-1] ^= 1
    case.track.objects[Location(1, 1)] = bytes(octets)
    await case.feed().run(is_complete=True)
    assert case.table.assembly.missing_blocks(0, 1) == [1]
    assert (1, 1) in case.notes.lost
    assert case.table.stats.rejected_objects == 1


async def test_what_is_still_being_verified_is_not_missing(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though something else is, so that no more is to come and yet not all is here."""
    case = Case(threads, thread_octets=0)
    octets = bytearray(case.track.objects[Location(1, 1)])
    octets[-1] ^= 1
    case.track.objects[Location(1, 1)] = bytes(octets)
    rejected, run = threading.Event(), Verification.run

    def run_late(verification: Verification) -> None:
        if verification.where[1:] == (2, 2):
            assert rejected.wait(10)
        run(verification)

    lose = case.notes.lose

    def note(track: int, layer: int, block: int | None = None) -> None:
        lose(track, layer, block)
        if (layer, block) == (1, 1):
            asyncio.get_running_loop().call_later(0.02, rejected.set)

    monkeypatch.setattr(Verification, "run", run_late)
    monkeypatch.setattr(case.notes, "lose", note)
    await case.feed().run(is_complete=True)
    assert case.table.assembly.missing_blocks(0, 2) == []
    assert case.table.assembly.missing_blocks(0, 1) == [1]
