from __future__ import annotations

from moqt.session.timers import Timers


def soonest(timers: Timers) -> float | None:
    return timers.next_deadline


def test_actions_run_in_order_and_once() -> None:
    timers, ran = Timers(), list[tuple[str, float]]()
    timers.at(2.0, lambda now: ran.append(("b", now)))
    timers.at(1.0, lambda now: ran.append(("a", now)))
    timers.at(3.0, lambda now: ran.append(("c", now)))
    assert timers.next_deadline == 1.0
    timers.run(0.9)
    timers.run(2.5)
    assert ran == [("a", 2.5), ("b", 2.5)]
    assert timers.next_deadline == 3.0
    timers.run(3.0)
    timers.run(9.0)
    assert len(ran) == 3
    assert soonest(timers) is None
    assert len(timers) == 0


def test_cancelled_ones_never_run_and_are_swept() -> None:
    timers, ran = Timers(), list[float]()
    many = [timers.at(float(number), ran.append) for number in range(1000)]
    for timer in many[:-1]:
        timer.cancel()
        timer.cancel()
    assert len(timers) == 1
    assert len(timers._heap) < 200
    assert timers.next_deadline == 999.0
    timers.run(2000.0)
    assert ran == [2000.0]
    many[-1].cancel()
    assert len(timers) == 0


def test_an_action_may_add_and_cancel() -> None:
    timers, ran = Timers(), list[str]()
    second = timers.at(2.0, lambda now: ran.append("second"))

    def first(now: float) -> None:
        ran.append("first")
        second.cancel()
        timers.at(1.5, lambda now: ran.append("third"))

    timers.at(1.0, first)
    timers.run(5.0)
    assert ran == ["first", "third"]


def test_cleared() -> None:
    timers, ran = Timers(), list[float]()
    timer = timers.at(1.0, ran.append)
    timers.clear()
    timers.run(5.0)
    timer.cancel()
    assert ran == []
    assert len(timers) == 0
