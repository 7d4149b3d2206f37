from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moqt.session.seen import SeenNumbers


@given(st.lists(st.integers(0, 60)))
def test_like_a_set(numbers: list[int]) -> None:
    seen, model = SeenNumbers(), set[int]()
    for number in numbers:
        assert seen.add(number) == (number not in model)
        model.add(number)
    assert [number for number in range(62) if number in seen] == sorted(model)


def test_memory_is_bounded_and_the_lowest_gap_is_closed() -> None:
    seen = SeenNumbers(max_gaps=3)
    for number in (0, 10, 20, 30, 40):
        assert seen.add(number)
    assert 5 in seen
    assert not seen.add(15)
    assert 25 not in seen
    assert seen.add(25)


def test_numbers_in_order_are_one_run() -> None:
    seen = SeenNumbers(max_gaps=1)
    assert all(seen.add(number) for number in range(1000))
    assert not any(seen.add(number) for number in range(1000))


@given(st.sets(st.integers(0, 40)), st.integers(0, 45))
def test_the_first_one_that_is_absent(numbers: set[int], start: int) -> None:
    seen = SeenNumbers()
    for number in numbers:
        seen.add(number)
    expected = next(number for number in range(start, 100) if number not in numbers)
    assert seen.first_absent(start) == expected
