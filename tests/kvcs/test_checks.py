"""Verification in worker threads: bounded, and over when the retrieval is (KVCS 3.5)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvcs.assembly import Outcome
from kvcs.checks import Checks
from kvcs.config import ConsumerConfig
from kvcs.errors import RejectReason
from kvcs.losses import Losses
from kvcs.wanted import Verification
from tests.kvcs.stage import CONSUMING, staged, until
from tests.kvcs.support import Bench, TestObject, bench, describe, octets_of, prompt, tensors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from moqt.tls import CertificatePair


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


class Case:
    """A K track of 3 layers and 3 blocks whose Objects are verified in threads."""

    def __init__(self, threads: ThreadPoolExecutor, *, most: int = 256, workers: int = 2) -> None:
        self.table: Bench = bench(describe(v_head_dim=0))
        self.failures: list[BaseException] = []
        config = ConsumerConfig(thread_octets=0, worker_threads=workers, max_queued_checks=most)
        self.checks = Checks(self.table.assembly, threads, config, self.failures.append)
        self.outcomes: list[Outcome] = []

    def arrive(self, one: TestObject, *, flip: int | None = None) -> Verification:
        """Bring an Object whole, and put it to be verified."""
        octets = bytearray(one.payload)
        if flip is not None:
            octets[flip // 8] ^= 1 << flip % 8
        lease = self.table.assembly.lease(one.track, one.header, self)
        assert lease is not None
        at = 0
        for buffer in lease.buffers:
            buffer[:] = octets[at : at + len(buffer)]
            at += len(buffer)
        verification = self.table.assembly.receive(one.track, one.header, lease=lease)
        assert isinstance(verification, Verification)
        self.checks.put(verification, self.outcomes.append)
        return verification


@pytest.fixture
async def case(threads: ThreadPoolExecutor) -> AsyncIterator[Case]:
    case = Case(threads)
    yield case
    await case.checks.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds every verification back until it is set."""
    gate = threading.Event()
    run = Verification.run

    def wait(verification: Verification) -> None:
        assert gate.wait(20)
        run(verification)

    monkeypatch.setattr(Verification, "run", wait)
    yield gate
    gate.set()


async def test_a_layer_is_usable_only_when_all_its_digests_were_compared(
    case: Case, gate: threading.Event
) -> None:
    """K5.4#2."""
    for one in case.table.objects:
        case.arrive(one)
    assert case.table.usable() == []
    assert case.checks.is_full is False
    gate.set()
    await case.checks.wait_track(0)
    assert case.outcomes == [Outcome.VERIFIED] * 9
    assert case.table.usable() == [0, 1, 2]
    assert case.table.stats.buffered_octets == 0


async def test_what_is_being_verified_is_missing_but_not_lost(
    case: Case, gate: threading.Event
) -> None:
    losses = Losses(case.table.assembly)
    for one in case.table.objects[:3]:
        case.arrive(one)
    assembly = case.table.assembly
    assert assembly.missing_blocks(0, 0) == [0, 1, 2]
    assert assembly.lacking_blocks(0, 0) == []
    assert losses.add(0, 0) is False  # no request is to bring it again
    assert losses.is_all_given_up() is False  # nor is it given up
    assert not assembly.is_all_here(0)
    for one in case.table.objects[3:]:
        case.arrive(one)
    assert assembly.is_all_here(0)
    assert not assembly.is_track_complete(0)
    gate.set()
    await case.checks.wait_all()
    assert assembly.is_track_complete(0)


async def test_a_failed_digest_is_a_missing_object_with_its_reason(case: Case) -> None:
    """K3.5#7."""
    first, *others = case.table.objects
    case.arrive(first, flip=68 * 8)
    for one in others:
        case.arrive(one)
    await case.checks.wait_all()
    assert case.outcomes.count(Outcome.REJECTED) == 1
    (missing,) = case.table.assembly.missing()
    assert (missing.layer, missing.block) == (0, 0)
    assert missing.reason is RejectReason.DATA_DIGEST
    assert case.table.assembly.lacking_blocks(0, 0) == [0]
    case.arrive(first)
    await case.checks.wait_all()
    assert case.table.usable() == [0, 1, 2]


async def test_objects_are_verified_in_several_threads_at_once(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)
    run = Verification.run

    def meet(verification: Verification) -> None:
        both.wait(20)
        run(verification)

    monkeypatch.setattr(Verification, "run", meet)
    for one in case.table.objects[:2]:
        case.arrive(one)
    await case.checks.wait_all()
    assert case.outcomes == [Outcome.VERIFIED] * 2


async def test_no_more_threads_work_than_allowed(
    threads: ThreadPoolExecutor, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(threads, workers=1)
    names: set[str] = set()
    run = Verification.run

    def note(verification: Verification) -> None:
        names.add(threading.current_thread().name)
        run(verification)

    monkeypatch.setattr(Verification, "run", note)
    for one in case.table.objects:
        case.arrive(one)
    gate.set()
    await case.checks.wait_all()
    assert len(names) == 1
    await case.checks.close()


async def test_who_brings_more_than_may_wait_is_held_back(
    threads: ThreadPoolExecutor, gate: threading.Event
) -> None:
    case = Case(threads, most=2)
    for one in case.table.objects[:2]:
        case.arrive(one)
    assert case.checks.is_full
    waiting = asyncio.create_task(case.checks.wait_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    await waiting
    assert case.outcomes
    await case.checks.close()


async def test_objects_that_are_not_in_their_places_are_bounded_by_their_octets(
    threads: ThreadPoolExecutor, gate: threading.Event
) -> None:
    table = bench(describe(v_head_dim=0), codec="zstd")
    sizes = [len(one.payload) - 68 for one in table.objects]
    config = ConsumerConfig(thread_octets=0, max_queued_check_octets=sizes[0] + 1)
    checks = Checks(table.assembly, threads, config, print)
    outcomes: list[Outcome] = []
    for one, is_full in zip(table.objects[:2], (False, True), strict=True):
        payload = memoryview(one.payload)
        verification = table.assembly.receive(one.track, one.header, payload=payload)
        assert isinstance(verification, Verification)
        checks.put(verification, outcomes.append)
        assert checks.is_full is is_full
    gate.set()
    await checks.wait_room()
    await checks.wait_all()
    assert outcomes == [Outcome.VERIFIED] * 2
    assert not checks.is_full
    await checks.close()


async def test_closing_gives_up_what_waits_and_waits_for_what_is_being_verified(
    threads: ThreadPoolExecutor, gate: threading.Event
) -> None:
    case = Case(threads, workers=1)
    for one in case.table.objects:
        case.arrive(one)
    closing = asyncio.create_task(case.checks.close())
    await asyncio.sleep(0)
    assert not closing.done()
    assert case.table.assembly.holders(0, 0, 0)  # its place is in use
    gate.set()
    await closing
    assembly = case.table.assembly
    assert not any(assembly.holders(0, layer) for layer in range(3))
    assert case.outcomes.count(Outcome.VERIFIED) <= 1
    assert case.outcomes.count(Outcome.UNCHECKED) >= 8  # never taken for verified
    assert len(assembly.missing()) == case.outcomes.count(Outcome.UNCHECKED)
    assert case.table.stats.buffered_octets == 0
    assert not case.table.stats.rejected
    assert assembly.lease(0, case.table.objects[8].header, case) is not None


async def test_closing_when_the_pool_never_came_to_it(gate: threading.Event) -> None:
    pool = ThreadPoolExecutor(1)
    busy = pool.submit(gate.wait)
    case = Case(pool)
    for one in case.table.objects:
        case.arrive(one)
    pool.shutdown(wait=False, cancel_futures=True)
    await case.checks.close()
    assert case.outcomes == [Outcome.UNCHECKED] * 9
    assert len(case.table.assembly.missing()) == 9
    gate.set()
    assert busy.result(20)


async def test_an_error_that_is_no_verdict_is_told_and_gives_the_place_back(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Verification) -> None:
        raise RuntimeError("a codec broke down")

    monkeypatch.setattr(Verification, "run", fail)
    case.arrive(case.table.objects[0])
    await case.checks.wait_all()
    await case.checks.close()
    assert [str(error) for error in case.failures] == ["a codec broke down"]
    assert case.outcomes == [Outcome.UNCHECKED]
    assert not case.table.assembly.holders(0, 0)


async def test_the_copy_kept_aside_is_used_when_the_one_being_verified_fails(
    case: Case, gate: threading.Event
) -> None:
    first = case.table.objects[0]
    case.arrive(first, flip=68 * 8)
    copy = case.table.assembly.receive(first.track, first.header, payload=memoryview(first.payload))
    assert isinstance(copy, Verification)
    gate.set()
    copy.run()
    kept = case.table.assembly.finish(copy)
    await case.checks.wait_all()
    assert {kept, *case.outcomes} <= {Outcome.SPARE, Outcome.VERIFIED, Outcome.REJECTED}
    assert case.outcomes == [Outcome.REJECTED]
    assert case.table.assembly.missing_blocks(0, 0) == [1, 2]


async def test_what_a_thread_takes_while_checks_are_closed_is_judged_once(
    case: Case, gate: threading.Event
) -> None:
    class Contested(deque[Any]):
        def clear(self) -> None:
            """Have a thread take one just before."""
            case.checks._done.append(self.popleft())
            super().clear()

    for one in case.table.objects[:6]:
        case.arrive(one)
    case.checks._todo = Contested(case.checks._todo)
    gate.set()
    await case.checks.close()
    assert len(case.outcomes) == 6


@pytest.mark.usefixtures("no_leaks")
async def test_a_closed_retrieval_touches_the_caller_s_arrays_no_more(
    certificate: CertificatePair, gate: threading.Event
) -> None:
    config = replace(CONSUMING, thread_octets=0)
    async with staged(certificate, describe()) as stage, stage.consumer(config=config) as consumer:
        publication = await stage.publish(3)
        segment = publication.segment(codec="zstd")
        for layer in range(3):
            await segment.put_layer(layer, *stage.layer(layer, 3))
        into = [tensors(stage.descriptor, layer, 3, seed=1) for layer in range(3)]
        retrieval = await consumer.retrieve(
            stage.descriptor, prompt(stage.descriptor, 3), into=into
        )
        await until(lambda: retrieval.stats.objects_received == 18)
        assert retrieval.stats.objects == 0
        closing = asyncio.create_task(retrieval.close())
        await asyncio.sleep(0)
        assert not closing.done()
        gate.set()
        await closing
        after = [octets_of(array) for pair in into for array in pair if array is not None]
        assert retrieval.stats.buffered_octets == 0
        assert retrieval.stats.open_requests == 0
        assert len(retrieval.missing) + retrieval.stats.objects == 18
    assert after == [octets_of(array) for pair in into for array in pair if array is not None]


# Defaults


@pytest.mark.parametrize(("processors", "octets"), [(1, 4 << 20), (2, 256 << 10), (64, 256 << 10)])
def test_threads_hash_smaller_objects_where_a_processor_is_spare(
    monkeypatch: pytest.MonkeyPatch, processors: int, octets: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)), raising=False)
    assert ConsumerConfig().thread_octets == octets
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert ConsumerConfig().thread_octets == octets
    assert ConsumerConfig(thread_octets=7).thread_octets == 7
    with pytest.raises(ValueError, match="max_queued_checks is 0, expected 1 or more"):
        ConsumerConfig(max_queued_checks=0)
