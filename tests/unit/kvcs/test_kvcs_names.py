"""Namespaces, Track Names and Locations: KVCS 3.1 to 3.4."""

from __future__ import annotations

import pytest

from kvcs.errors import (
    IncompleteRetrieval,
    InvalidName,
    MissingObject,
    RejectReason,
)
from kvcs.geometry import (
    SegmentSpan,
    end_of_track,
    group_id_of,
    layer_of,
    location_of,
    publisher_priority,
)
from kvcs.kvsp import Component, Descriptor, Prefix, Scope
from kvcs.names import (
    MANIFEST,
    MANIFEST_COSE,
    DataTrackName,
    NamespaceForm,
    PublicationName,
    anchor_prefix,
    new_publication_id,
    parse_track_name,
    scope_prefix,
)
from moqt.types import Location, TrackNamespace

DESCRIPTOR = Descriptor(model="m", layers=4, block_tokens=16, kv_heads=2, head_dim=8, dtype="int8")
PREFIX = Prefix.of(Scope(bytes(32)), DESCRIPTOR, range(48))
NAME = PublicationName.of(PREFIX, bytes(range(16)))


@pytest.mark.parametrize("form", NamespaceForm)
def test_a_namespace_is_five_fields_and_reads_back(form: NamespaceForm) -> None:
    """K3.1#1."""
    namespace = NAME.namespace(form)
    assert len(namespace) == 5
    assert namespace.fields[0] == b"kvcs-1"
    assert namespace.starts_with(scope_prefix(PREFIX.scope_id, form))
    assert namespace.starts_with(anchor_prefix(PREFIX, form=form))
    assert not namespace.starts_with(anchor_prefix(PREFIX, 2, form))
    assert PublicationName.parse(namespace, form) == NAME
    assert NAME.track(b"manifest", form).namespace == namespace


def test_the_binary_form_has_raw_octets_and_the_hex_form_text() -> None:
    """K3.1#2."""
    fields = (
        PREFIX.scope_id,
        DESCRIPTOR.compatibility_id,
        PREFIX.keys[2],
        bytes(range(16)),
    )
    assert NAME.namespace().fields[1:] == fields
    texts = tuple(field.hex().encode() for field in fields)
    assert NAME.namespace(NamespaceForm.HEX).fields[1:] == texts


def test_one_form_is_not_read_as_the_other() -> None:
    with pytest.raises(InvalidName) as caught:
        PublicationName.parse(NAME.namespace(NamespaceForm.HEX))
    assert caught.value.field == "scope_id"
    with pytest.raises(InvalidName, match="hexadecimal"):
        PublicationName.parse(NAME.namespace(), NamespaceForm.HEX)


@pytest.mark.parametrize(
    ("position", "field", "name"),
    [
        (0, b"kvcs-2", "profile"),
        (1, b"x" * 31, "scope_id"),
        (2, b"x" * 33, "compatibility_id"),
        (3, b"x", "anchor_key"),
        (4, b"x" * 17, "publication_id"),
    ],
)
def test_a_wrong_field_is_named(position: int, field: bytes, name: str) -> None:
    fields = list(NAME.namespace().fields)
    fields[position] = field
    with pytest.raises(InvalidName) as caught:
        PublicationName.parse(TrackNamespace(tuple(fields)))
    assert caught.value.field == name


@pytest.mark.parametrize("octets", [b"", b"AB" * 32, b"0" * 63, b"g" * 64, b"0" * 66])
def test_hex_fields_are_strict(octets: bytes) -> None:
    fields = list(NAME.namespace(NamespaceForm.HEX).fields)
    fields[1:2] = [octets] if octets else []
    with pytest.raises(InvalidName):
        PublicationName.parse(TrackNamespace(tuple(fields)), NamespaceForm.HEX)


def test_publication_ids_are_random_and_of_16_octets() -> None:
    """K3.1#3."""
    first, second = new_publication_id(), new_publication_id()
    assert len(first) == len(second) == 16
    assert first != second


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("k.raw.s0", DataTrackName(Component.K, "raw", 0)),
        ("v.zstd.s10", DataTrackName(Component.V, "zstd", 10)),
        ("kv.x-9a.s4294967295", DataTrackName(Component.KV, "x-9a", 2**32 - 1)),
    ],
)
def test_data_track_names(text: str, name: DataTrackName) -> None:
    """K3.2#1."""
    assert DataTrackName.parse(text) == parse_track_name(text.encode()) == name
    assert str(name) == text
    assert NAME.track(name).name == text.encode()


def test_manifest_tracks_are_names_too() -> None:
    """K3.2#1."""
    assert parse_track_name(b"manifest") == MANIFEST
    assert parse_track_name("manifest.cose") == MANIFEST_COSE


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "track-name"),
        ("k.raw", "track-name"),
        ("k.raw.s0.s0", "track-name"),
        ("manifest.", "track-name"),
        ("manifest.cose.s0", "component"),
        ("K.raw.s0", "component"),
        ("vk.raw.s0", "component"),
        (".raw.s0", "component"),
        ("k..s0", "codec-name"),
        ("k.Raw.s0", "codec-name"),
        ("k.ra_w.s0", "codec-name"),
        ("k." + "a" * 33 + ".s0", "codec-name"),
        ("k.raw\n.s0", "codec-name"),
        ("k.raw.0", "segment"),
        ("k.raw.s", "segment"),
        ("k.raw.s00", "segment"),
        ("k.raw.s01", "segment"),
        ("k.raw.s-1", "segment"),
        ("k.raw.s1\n", "segment"),
        ("k.raw.s1_0", "segment"),
        ("k.raw.s4294967296", "segment"),
        ("k.raw.s99999999999", "segment"),
        ("k.räw.s0", "track-name"),
    ],
)
def test_other_names_are_refused_with_the_part_that_is_wrong(text: str, field: str) -> None:
    """K3.2#1."""
    with pytest.raises(InvalidName) as caught:
        parse_track_name(text)
    assert caught.value.field == field


def test_octets_that_are_not_ascii_are_no_name() -> None:
    with pytest.raises(InvalidName, match="not ASCII"):
        parse_track_name(b"k.raw.s\xb2")


def test_layers_are_groups_and_blocks_are_objects() -> None:
    """K3.3#1, K3.4#1."""
    assert group_id_of(7) == 7
    assert (layer_of(3, 4), layer_of(4, 4), layer_of(-1, 4)) == (3, None, None)
    assert location_of(2, 9) == Location(2, 9)
    assert end_of_track(1) == Location(1, 0)


@pytest.mark.parametrize(("layer", "layers", "priority"), [(0, 1, 0), (31, 32, 124), (1, 3, 42)])
def test_publisher_priority(layer: int, layers: int, priority: int) -> None:
    """K3.4#5."""
    assert publisher_priority(layer, layers) == priority


def test_segments_are_not_empty_and_know_their_tokens() -> None:
    """K3.4#2."""
    span = SegmentSpan(segment=1, first_block=64, blocks=3)
    assert span.stop_block == 67
    assert span.token_start(2, 16) == 66 * 16
    assert span.overlaps(SegmentSpan(segment=2, first_block=66, blocks=1))
    assert not span.overlaps(SegmentSpan(segment=2, first_block=67, blocks=1))
    with pytest.raises(ValueError, match="at least 1"):
        SegmentSpan(segment=0, first_block=0, blocks=0)
    with pytest.raises(ValueError, match="count from 0"):
        SegmentSpan(segment=0, first_block=-1, blocks=1)


def test_missing_objects_are_named_and_the_text_is_bounded() -> None:
    missing = tuple(MissingObject(0, 7, Component.K, block) for block in range(20))
    rejected = MissingObject(0, 7, Component.K, 0, RejectReason.MAGIC)
    assert rejected == missing[0]
    assert str(rejected) == "segment 0 layer 7 k block 0 (magic)"
    error = IncompleteRetrieval(missing, "deadline of 2 s reached")
    assert error.missing == missing
    assert "20 Objects are missing" in str(error)
    assert "and 12 more; deadline of 2 s reached" in str(error)
