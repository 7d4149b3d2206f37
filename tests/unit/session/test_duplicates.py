"""What is remembered of a track's Objects, and for how long (MOQT-22 7.1)."""

from __future__ import annotations

from random import Random

import pytest

from moqt.session.receive import duplicates
from moqt.session.receive.duplicates import MAX_OBJECT_RUNS, MAX_OBJECTS, SeenObjects
from moqt.session.receive.malformed import MalformedTrack
from moqt.types import Object, ObjectHeader


def an_object(group_id: int, object_id: int, payload: bytes = b"same") -> Object:
    header = ObjectHeader(group_id, object_id, 0, 128, len(payload))
    return Object(header, memoryview(payload))


def remembered(seen: SeenObjects) -> int:
    return sum(map(len, seen._runs.values()))


@pytest.mark.parametrize(
    ("in_a_group", "limit"),
    [(1, MAX_OBJECT_RUNS), (100, MAX_OBJECTS), (5000, MAX_OBJECTS), (50_000, MAX_OBJECTS)],
)
def test_the_last_objects_are_remembered_and_no_more_than_the_limit(
    in_a_group: int, limit: int
) -> None:
    seen = SeenObjects()
    count = 2 * MAX_OBJECTS
    for number in range(count):
        seen.see(an_object(*divmod(number, in_a_group)), None)
        assert remembered(seen) == seen._count if number % 1000 == 0 else True
    assert limit - 1024 <= remembered(seen) == seen._count <= limit
    for number in (count - 1, count - limit + 1025):
        with pytest.raises(MalformedTrack, match="came twice, with another payload"):
            seen.see(an_object(*divmod(number, in_a_group), b"else"), None)
        seen.see(an_object(*divmod(number, in_a_group)), None)
    seen.see(an_object(0, 0, b"else"), None)  # long forgotten


def test_a_group_that_grows_slowly_is_remembered_while_others_come_and_go() -> None:
    seen = SeenObjects()
    for number in range(1000):
        seen.see(an_object(0, number), None)
        for other in range(40):
            seen.see(an_object(1 + number, other), None)
    for number in range(1000):
        with pytest.raises(MalformedTrack, match="another payload"):
            seen.see(an_object(0, number, b"else"), None)
    seen.see(an_object(1, 0, b"else"), None)  # long forgotten


def test_objects_of_any_order_are_counted_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a late Object belongs to the run that is forgotten next."""
    monkeypatch.setattr(duplicates, "MAX_OBJECTS", 50)
    rng = Random(1)
    for _ in range(20):
        seen = SeenObjects()
        for _ in range(500):
            place = rng.randrange(4), rng.randrange(40)
            known = seen._runs.get((place[0], 0), {}).get(place[1])
            if known is None or rng.random() < 0.5:
                seen.see(an_object(*place), None)
            else:
                with pytest.raises(MalformedTrack, match="another payload length"):
                    seen.see(an_object(*place, b"longer"), None)
            assert remembered(seen) == seen._count <= 50
