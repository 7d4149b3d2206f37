"""Pure jobs over several threads."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kvcs import Producer, Scope
from kvcs.config import ProducerConfig
from kvcs.jobs import SharedRun, patient_threads, processors, run_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def square(number: int) -> int:
    return number * number


def test_results_come_in_the_order_of_the_jobs(pool: ThreadPoolExecutor) -> None:
    jobs = [partial(square, number) for number in range(100)]
    expected = [number * number for number in range(100)]
    assert run_here(jobs) == expected
    for helpers in range(4):
        assert SharedRun(pool, helpers)(jobs) == expected
    assert SharedRun(pool, 2)([]) == []


def test_helpers_take_part(pool: ThreadPoolExecutor) -> None:
    both_run = threading.Barrier(3)

    def meet() -> str:
        both_run.wait(10)
        return threading.current_thread().name

    assert len(set(SharedRun(pool, 2)([meet, meet, meet]))) == 3


def test_a_pool_without_a_free_thread_is_not_waited_for(pool: ThreadPoolExecutor) -> None:
    gate = threading.Event()
    busy = [pool.submit(gate.wait) for _ in range(2)]
    jobs = [partial(square, number) for number in range(10)]
    try:
        assert SharedRun(pool, 2)(jobs) == [number * number for number in range(10)]
    finally:
        gate.set()
    assert all(future.result() for future in busy)
    inside = pool.submit(lambda: SharedRun(pool, 2)(jobs))
    assert inside.result(10)[9] == 81


@pytest.mark.parametrize("error", [ValueError("no"), IndexError("no")])
def test_what_a_job_raises_is_raised_and_nothing_runs_on(
    pool: ThreadPoolExecutor, error: Exception
) -> None:
    def fail() -> None:
        raise error

    ran: list[int] = []
    jobs: list[Callable[[], None]] = [
        fail,
        *(partial(ran.append, number) for number in range(100_000)),
    ]
    with pytest.raises(type(error), match="no"):
        SharedRun(pool, 2)(jobs)
    count = len(ran)
    assert count < 100_000
    assert pool.submit(lambda: len(ran)).result(10) == count


def test_what_a_helper_s_job_raises_is_raised_here(pool: ThreadPoolExecutor) -> None:
    here = threading.current_thread()
    helper_failed = threading.Event()

    def fail_elsewhere() -> None:
        if threading.current_thread() is here:
            assert helper_failed.wait(10)
        else:
            helper_failed.set()
            raise ValueError("in a helper")

    with pytest.raises(ValueError, match="in a helper"):
        SharedRun(pool, 1)([fail_elsewhere, fail_elsewhere])


@pytest.mark.skipif(sys.platform != "linux", reason="nice values of threads are Linux's")
def test_patient_threads_let_others_go_first() -> None:
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    with patient_threads(3, "patient") as pool:
        assert pool.submit(nice).result() == min(19, nice() + 5)
        # a thread that another one starts is no nicer than that
        deeper = pool.submit(lambda: pool.submit(lambda: pool.submit(nice).result()).result())
        assert deeper.result() == min(19, nice() + 5)
        assert pool.submit(square, 3).result() == 9


@pytest.mark.parametrize(("allowed", "helpers"), [(1, 0), (2, 1), (64, 2)])
def test_a_layer_is_prepared_by_as_many_threads_as_there_are_processors(
    allowed: int, helpers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)
    assert processors() == allowed
    config = ProducerConfig(worker_threads=3)
    producer = Producer(scope=Scope(bytes(32)), signing_key=None, config=config)
    assert producer._run._helpers == helpers
