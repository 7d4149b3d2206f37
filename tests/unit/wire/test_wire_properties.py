"""moqt.wire.properties: MOQT-22 3.7, 10, 12.1."""

from __future__ import annotations

import pytest

from moqt.codes import GroupOrder
from moqt.errors import RemoteProtocolError
from moqt.wire.fields import KeyValue
from moqt.wire.properties import ObjectProperties, TrackProperties, serialize_pairs


def immutable(*pairs: KeyValue) -> KeyValue:
    return KeyValue(0x0B, serialize_pairs(pairs))


BROKEN = KeyValue(0x0B, b"\x01\x05")


def test_a_track_without_properties_has_the_defaults() -> None:
    track = TrackProperties()
    assert track.default_publisher_priority == 128
    assert track.default_group_order is GroupOrder.ASCENDING
    assert track.dynamic_groups is False
    assert track.object_delivery_timeout_ms is None
    assert track.subgroup_delivery_timeout_ms is None
    assert track.max_cache_duration_ms is None
    assert track.mandatory_types == ()
    assert track.malformation is None
    assert track.serialize() == b""


def test_what_was_set_comes_back() -> None:
    track = TrackProperties.of(
        object_delivery_timeout_ms=500,
        max_cache_duration_ms=0,
        subgroup_delivery_timeout_ms=800,
        default_publisher_priority=0,
        default_group_order=GroupOrder.DESCENDING,
        dynamic_groups=True,
        other=[KeyValue(0x78, 1)],
    )
    found = TrackProperties.parse(track.serialize())
    assert found == track
    assert found.object_delivery_timeout_ms == 500
    assert found.max_cache_duration_ms == 0
    assert found.subgroup_delivery_timeout_ms == 800
    assert found.default_publisher_priority == 0
    assert found.default_group_order is GroupOrder.DESCENDING
    assert found.dynamic_groups is True
    assert found.integers(0x78) == (1,)


@pytest.mark.parametrize(("kind", "value"), [(0x22, 0), (0x22, 3), (0x30, 2), (0x0E, 256)])
@pytest.mark.parametrize("inside", [False, True])
def test_a_value_that_the_draft_forbids_closes(kind: int, value: int, inside: bool) -> None:
    """10.5#1, 10.6#1; found among the immutable ones as well (10.7#2)."""
    pair = KeyValue(kind, value)
    octets = serialize_pairs([immutable(pair) if inside else pair])
    with pytest.raises(RemoteProtocolError, match=f"is {value}, expected"):
        TrackProperties.parse(octets)


def test_mutable_properties_come_first_then_immutable_ones() -> None:
    """10.7#2."""
    track = TrackProperties((KeyValue(0x02, 5), immutable(KeyValue(0x02, 9), KeyValue(0x04, 7))))
    assert track.object_delivery_timeout_ms == 5
    assert track.integers(0x02) == (5, 9)
    assert track.max_cache_duration_ms == 7


def test_mandatory_properties_are_named_wherever_they_are() -> None:
    """3.7."""
    outside = [
        KeyValue(0x3FFF, b""),
        KeyValue(0x4000, 1),
        KeyValue(0x7FFF, b""),
        KeyValue(0x8000, 1),
    ]
    track = TrackProperties((*outside, immutable(KeyValue(0x5000, 1))))
    assert track.mandatory_types == (0x4000, 0x7FFF, 0x5000)


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ((BROKEN,), "ends inside"),
        ((immutable(), immutable()), "occur twice"),
        ((immutable(immutable()),), "are nested"),
    ],
)
def test_broken_immutable_properties_make_the_track_malformed(
    pairs: tuple[KeyValue, ...], why: str
) -> None:
    """12.1: not a session error; and we do not build one (10.7#3)."""
    track = TrackProperties.parse(serialize_pairs(pairs))
    assert why in str(track.malformation)
    assert why in str(ObjectProperties(pairs).malformation(5, 5))
    with pytest.raises(ValueError, match=why):
        TrackProperties.of(other=pairs)
    with pytest.raises(ValueError, match=why):
        ObjectProperties.of(other=pairs)


def test_a_default_priority_that_is_no_octet_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="256, expected 0 to 255"):
        TrackProperties.of(default_publisher_priority=256)


def test_object_properties_come_back() -> None:
    found = ObjectProperties.parse(
        ObjectProperties.of(
            object_delivery_timeout_ms=1,
            subgroup_delivery_timeout_ms=2,
            prior_group_id_gap=3,
            prior_object_id_gap=4,
        ).serialize()
    )
    assert found.object_delivery_timeout_ms == 1
    assert found.subgroup_delivery_timeout_ms == 2
    assert (found.prior_group_id_gap, found.prior_object_id_gap) == (3, 4)
    assert found.malformation(3, 4) is None
    empty = ObjectProperties()
    assert (empty.prior_group_id_gap, empty.prior_object_id_gap) == (0, 0)


def test_a_gap_larger_than_the_id_is_malformed() -> None:
    found = ObjectProperties.of(prior_group_id_gap=3, prior_object_id_gap=4)
    assert "PRIOR_GROUP_ID_GAP is 3" in str(found.malformation(2, 4))
    assert "PRIOR_OBJECT_ID_GAP is 4" in str(found.malformation(3, 3))


@pytest.mark.parametrize("kind", [0x3C, 0x3E])
def test_a_gap_twice_is_malformed_also_when_one_is_immutable(kind: int) -> None:
    """10.8#1, 10.9#1."""
    pairs = (KeyValue(kind, 1), immutable(KeyValue(kind, 1)))
    assert "occurs twice" in str(ObjectProperties(pairs).malformation(9, 9))
    with pytest.raises(ValueError, match="occurs twice"):
        ObjectProperties.of(other=pairs)


def test_a_mandatory_track_property_on_an_object_is_malformed() -> None:
    found = ObjectProperties((KeyValue(0x4000, 1),))
    assert "0x4000 on an Object" in str(found.malformation(0, 0))
