"""A loan ends when what was lent is referred to no more."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvcs import loan as loan_module
from kvcs.loan import Loan

if TYPE_CHECKING:
    from numpy.typing import NDArray


def lent() -> list[NDArray[Any]]:
    return [np.zeros(8).view("u1") for _ in range(3)]


def test_it_is_free_when_the_last_view_is_gone() -> None:
    arrays = lent()
    views = [memoryview(array.data) for array in arrays]
    loan = Loan(arrays)
    del arrays
    while views:
        assert not loan.is_free
        assert not loan.wait(0)
        assert repr(loan) == "<Loan lasts>"
        views.pop()
    assert loan.is_free
    assert loan.wait(0)
    assert repr(loan) == "<Loan free>"


def test_a_loan_of_nothing_is_free() -> None:
    assert Loan([]).is_free
    assert Loan([]).wait(0)


def test_all_who_wait_are_told_whichever_thread_lets_go() -> None:
    arrays = lent()
    loan = Loan(arrays)
    told: list[bool] = []
    waiting = [threading.Thread(target=lambda: told.append(loan.wait(30))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    while loan._freed is None:
        time.sleep(0.001)
    letting_go = threading.Thread(target=arrays.clear)
    letting_go.start()
    for thread in (letting_go, *waiting):
        thread.join()
    assert told == [True] * 3


async def test_waiting_may_be_cancelled_and_the_loan_stays_as_it_is() -> None:
    arrays = lent()
    loan = Loan(arrays)

    async def wait() -> None:
        await loan

    first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not loan.is_free
    arrays.clear()
    await asyncio.wait_for(second, 30)
    await loan


async def test_who_waits_is_told_though_nothing_else_refers_to_the_loan() -> None:
    """The loop refers to tasks weakly."""
    arrays = lent()
    told = asyncio.Event()

    async def wait(loan: Loan) -> None:
        await loan
        told.set()

    waiting = {asyncio.create_task(wait(Loan(arrays)))}
    await asyncio.sleep(0)
    waiting.clear()
    gc.collect()
    arrays.clear()
    await asyncio.wait_for(told.wait(), 30)
    assert not loan_module._awaited


def test_a_loan_that_nobody_holds_is_gone() -> None:
    arrays = lent()
    loan = weakref.ref(Loan(arrays))
    gc.collect()
    assert loan() is None
    arrays.clear()
