"""Which numbers were seen, in bounded memory."""

from __future__ import annotations

from bisect import bisect_right


class SeenNumbers:
    """A set of integers that is small while they come nearly in order (MOQT-22 6.4.2.1).

    It keeps runs of neighbours. With more than `max_gaps` gaps the lowest gap is closed: its
    numbers count as seen from then on, so whoever skips numbers and uses them very much later is
    refused.
    """

    __slots__ = ("_first", "_last", "_max_gaps", "is_exact")

    def __init__(self, *, max_gaps: int = 1024) -> None:
        self._first: list[int] = []
        self._last: list[int] = []
        self._max_gaps = max_gaps
        self.is_exact = True
        """False once a gap was closed that numbers may yet fall into."""

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._first, number) - 1
        return at >= 0 and number <= self._last[at]

    def add(self, number: int) -> bool:
        """Add a number; return False when it is there already."""
        first, last = self._first, self._last
        if last and number == last[-1] + 1:
            last[-1] = number  # in order, as nearly always
            return True
        at = bisect_right(first, number) - 1
        if at >= 0 and number <= last[at]:
            return False
        joins_below = at >= 0 and last[at] == number - 1
        joins_above = at + 1 < len(first) and first[at + 1] == number + 1
        if joins_below and joins_above:
            last[at] = last.pop(at + 1)
            del first[at + 1]
        elif joins_below:
            last[at] = number
        elif joins_above:
            first[at + 1] = number
        else:
            first.insert(at + 1, number)
            last.insert(at + 1, number)
            if len(first) > self._max_gaps:
                self.is_exact = False
                last[0] = last.pop(1)
                del first[1]
        return True

    def first_absent(self, number: int) -> int:
        """Return the lowest number from `number` on that was not seen."""
        at = bisect_right(self._first, number) - 1
        return self._last[at] + 1 if at >= 0 and number <= self._last[at] else number

    def has_any(self, first: int, last: int) -> bool:
        """Return whether any number from `first` to `last` was seen."""
        at = bisect_right(self._first, last) - 1
        return at >= 0 and self._last[at] >= first
