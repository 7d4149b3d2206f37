"""A consumer's counters are the sums of its retrievals'."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

from kvcs.errors import RejectReason
from kvcs.stats import ConsumerStats, ReceivedStats, RetrievalStats


def test_every_counter_of_what_came_is_added() -> None:
    shared = [counter.name for counter in fields(ReceivedStats) if counter.name != "rejected"]
    one = RetrievalStats(layers=7, open_requests=3)
    for number, name in enumerate(shared, 1):
        setattr(one, name, number)
    one.rejected[RejectReason.DATA_LENGTH] = 2
    other = RetrievalStats(objects=10, rejected=Counter({RejectReason.DATA_LENGTH: 1}))
    total = ConsumerStats(retrievals=2, completed=5)
    total.add(one)
    total.add(other)
    assert [getattr(total, name) for name in shared] == [11, *range(2, len(shared) + 1)]
    assert total.rejected == {RejectReason.DATA_LENGTH: 3}
    assert total.rejected_objects == 3
    assert (total.retrievals, total.completed, total.incomplete) == (2, 5, 0)
    assert one.rejected == {RejectReason.DATA_LENGTH: 2}
