"""Round trips of every value of kvcs, and garbage that gives documented errors only."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcs.cose import SignedManifest, sign, verify
from kvcs.errors import (
    CodecError,
    ContainerInvalid,
    InvalidDescriptor,
    InvalidName,
    ManifestInvalid,
    ObjectRejected,
    SignatureInvalid,
)
from kvcs.geometry import SegmentSpan
from kvcs.keys import ProducerKey, TrustedKeys
from kvcs.kvsp import BlockShape, Component, Descriptor, LayerGeometry, LayerTensor, Layout
from kvcs.kvsp.codecs import BSZSTD, RAW, ZSTD, Codec
from kvcs.kvsp.container import parse_container
from kvcs.kvsp.shapes import DTYPES
from kvcs.manifest import Manifest
from kvcs.names import DataTrackName, NamespaceForm, PublicationName, parse_track_name
from kvcs.payload import HEADER_OCTETS, ExpectedTrack, Header, pack_header, parse_header
from moqt.types import TrackNamespace

SETTINGS = settings(deadline=None, max_examples=60)


u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
MEMBERS: dict[str, Any] = {
    "model": "m",
    "layers": 2,
    "block_tokens": 4,
    "kv_heads": 2,
    "head_dim": 4,
    "dtype": "bfloat16",
}
DESCRIPTOR = Descriptor.from_dict(MEMBERS)
digests = st.binary(min_size=32, max_size=32)
KEY = ProducerKey.generate()
TRUSTED = TrustedKeys([KEY.public])
MANIFEST: dict[str, Any] = {
    "kvcs": 1,
    "compat": MEMBERS,
    "layers": 2,
    "block_tokens": 4,
    "deterministic": False,
    "segments": [
        {
            "segment": 0,
            "first_block": 0,
            "blocks": 1,
            "block_keys_sha256": "00" * 32,
            "tracks": ["k.raw.s0"],
            "complete": True,
            "object_digests": {"k.raw.s0": [["11" * 32], ["22" * 32]]},
        }
    ],
}


@SETTINGS
@given(
    st.builds(
        Header,
        u32,
        u8,
        u8,
        u16,
        u32,
        u32,
        u64,
        u32,
        u16,
        u16,
        u32,
        st.binary(min_size=32, max_size=32),
    )
)
def test_a_header_reads_back(header: Header) -> None:
    octets = pack_header(header)
    assert len(octets) == HEADER_OCTETS
    assert parse_header(octets + b"data") == header


@SETTINGS
@given(st.binary(max_size=80), u32, u32)
def test_any_payload_is_accepted_or_rejected(payload: bytes, group_id: int, object_id: int) -> None:
    track = ExpectedTrack(
        component=Component.V,
        codec=1,
        span=SegmentSpan(segment=0, first_block=0, blocks=4),
        layers=4,
        block_tokens=4,
    )
    with pytest.raises(ObjectRejected):
        track.checked_digest(
            payload, group_id=group_id, object_id=object_id, payload_octets=len(payload)
        )


@SETTINGS
@given(
    st.sampled_from(Component),
    st.text("abcxyz0189-", min_size=1, max_size=32),
    u32,
)
def test_a_track_name_reads_back(component: Component, codec_name: str, segment: int) -> None:
    name = DataTrackName(component, codec_name, segment)
    assert parse_track_name(str(name).encode()) == name


@SETTINGS
@given(st.binary(max_size=40) | st.text("kv.raws0123mnifest-", max_size=20).map(str.encode))
def test_any_octets_are_a_name_in_one_spelling_or_refused(octets: bytes) -> None:
    try:
        name = parse_track_name(octets)
    except InvalidName:
        return
    assert (name if isinstance(name, bytes) else str(name).encode()) == octets


@SETTINGS
@given(
    digests, digests, digests, st.binary(min_size=16, max_size=16), st.sampled_from(NamespaceForm)
)
def test_a_namespace_reads_back(
    scope_id: bytes, compatibility_id: bytes, key: bytes, publication: bytes, form: NamespaceForm
) -> None:
    name = PublicationName(
        scope_id=scope_id,
        compatibility_id=compatibility_id,
        anchor_key=key,
        publication_id=publication,
    )
    assert PublicationName.parse(name.namespace(form), form) == name


@SETTINGS
@given(st.lists(st.binary(min_size=1, max_size=66), max_size=6), st.sampled_from(NamespaceForm))
def test_any_namespace_is_refused_with_a_field(fields: list[bytes], form: NamespaceForm) -> None:
    for namespace in (TrackNamespace(tuple(fields)), TrackNamespace((b"kvcs-1", *fields[:4]))):
        with pytest.raises(InvalidName):
            PublicationName.parse(namespace, form)


@SETTINGS
@given(st.dictionaries(st.sampled_from([*MEMBERS, "layout", "shard", "rope", "x"]), json_values))
def test_any_members_make_a_stable_descriptor_or_a_documented_error(change: dict[str, Any]) -> None:
    try:
        descriptor = Descriptor.from_dict(MEMBERS | change)
    except InvalidDescriptor:
        return
    again = Descriptor.from_json(descriptor.jcs())
    assert again == descriptor
    assert again.jcs() == descriptor.jcs()
    assert Descriptor.from_json(json.dumps(descriptor.to_dict())) == descriptor


@SETTINGS
@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_text_is_a_descriptor_or_a_documented_error(text: bytes) -> None:
    with pytest.raises(InvalidDescriptor):
        Descriptor.from_json(text)
    with pytest.raises(ManifestInvalid):
        Manifest.load(text)
    with pytest.raises(ContainerInvalid):
        parse_container(text, DESCRIPTOR)


def replaced(value: Any, path: list[int], new: Any) -> Any:
    """`value` with the part that `path` leads to exchanged; each step picks a child."""
    if not path or not isinstance(value, (dict, list)) or not value:
        return new
    if isinstance(value, list):
        at = path[0] % len(value)
        return [*value[:at], replaced(value[at], path[1:], new), *value[at + 1 :]]
    name = list(value)[path[0] % len(value)]
    return {**value, name: replaced(value[name], path[1:], new)}


@SETTINGS
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), json_values)
def test_any_change_of_a_manifest_is_accepted_or_invalid(path: list[int], new: Any) -> None:
    text = json.dumps(replaced(MANIFEST, path, new)).encode()
    try:
        manifest = Manifest.load(text)
    except ManifestInvalid:
        return
    assert Manifest.load(manifest.dump()) == manifest


@SETTINGS
@given(st.integers(0), u8)
def test_any_changed_octet_of_a_manifest_is_accepted_or_invalid(at: int, octet: int) -> None:
    text = bytearray(json.dumps(MANIFEST).encode())
    text[at % len(text)] = octet
    with suppress(ManifestInvalid):
        assert Manifest.load(bytes(text)).layers == 2


cbor_values = st.recursive(
    st.none() | st.integers(-(2**70), 2**70) | st.binary(max_size=8) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers(-10, 10) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@SETTINGS
@given(
    st.binary(max_size=100)
    | st.tuples(
        st.binary(max_size=20) | cbor_values.map(cbor2.dumps),
        st.dictionaries(st.integers(-30, 40) | st.text(max_size=3), cbor_values, max_size=3),
        st.binary(max_size=20),
        st.binary(max_size=70),
    ).map(lambda parts: cbor2.dumps(list(parts)))
)
def test_any_octets_are_no_signed_manifest(octets: bytes) -> None:
    with pytest.raises(SignatureInvalid):
        verify(octets, TRUSTED)


@SETTINGS
@given(st.dictionaries(st.integers(-30, 40), cbor_values, max_size=3))
def test_any_protected_header_is_read_or_refused(extra: dict[int, Any]) -> None:
    octets = cbor2.dumps([cbor2.dumps({1: -8, 4: KEY.key_id} | extra), {}, b"", b"x" * 64])
    with pytest.raises(SignatureInvalid):
        verify(octets, TRUSTED)


@SETTINGS
@given(st.binary(max_size=300))
def test_any_payload_is_signed_and_verified(payload: bytes) -> None:
    octets = sign(payload, KEY)
    assert SignedManifest.parse(octets).payload == verify(octets, TRUSTED) == payload


codecs = st.sampled_from([RAW, ZSTD, BSZSTD])


@st.composite
def shapes(draw: st.DrawFn) -> BlockShape:
    geometry = LayerGeometry(
        kv_heads=draw(st.integers(1, 3)),
        head_dim=draw(st.integers(1, 9)),
        v_head_dim=draw(st.integers(0, 9)),
        dtype=DTYPES[draw(st.sampled_from(list(DTYPES)))],
        layout=draw(st.sampled_from(Layout)),
    )
    component = draw(st.sampled_from([Component.K, Component.KV]))
    return BlockShape(geometry, component, draw(st.integers(1, 20)))


@SETTINGS
@given(codecs, shapes(), st.data())
def test_any_octets_come_back_from_a_codec(codec: Codec, shape: BlockShape, data: Any) -> None:
    sections = [data.draw(st.binary(min_size=n, max_size=n)) for n in shape.sections]
    encoded = b"".join(codec.encode(sections, shape))
    assert codec.decode(encoded, shape) == b"".join(sections)
    damaged = bytearray(encoded)
    at = data.draw(st.integers(0, len(encoded) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with suppress(CodecError):
        assert len(codec.decode(bytes(damaged), shape)) == shape.raw_octets


@SETTINGS
@given(codecs, shapes(), st.binary(max_size=200))
def test_garbage_decodes_to_the_right_size_or_is_refused(
    codec: Codec, shape: BlockShape, garbage: bytes
) -> None:
    with suppress(CodecError):
        assert len(codec.decode(garbage, shape)) == shape.raw_octets


@SETTINGS
@given(shapes(), st.integers(1, 4), st.booleans(), st.data())
def test_any_tensor_is_cut_and_put_back(
    shape: BlockShape, blocks: int, copy: bool, data: Any
) -> None:
    geometry, tokens = shape.geometry, shape.tokens * blocks
    octets = geometry.raw_octets(Component.K, tokens)
    raw = np.frombuffer(np.random.default_rng(octets).bytes(octets), np.uint8)
    source = raw.view(geometry.dtype).reshape(geometry.shape(Component.K, tokens))
    axes = data.draw(st.permutations(range(3)))
    back = np.argsort(axes)
    target = np.zeros_like(source).transpose(axes).copy().transpose(back)
    given_source = source.transpose(axes).copy().transpose(back)
    cut = LayerTensor(given_source, geometry, Component.K).cut(
        first_token=0, block_tokens=shape.tokens, blocks=blocks, copy=copy
    )
    into = LayerTensor(target, geometry, Component.K)
    for index, section in enumerate(cut):
        runs = into.destinations(index * shape.tokens, shape.tokens)
        if runs is None:
            into.scatter(section, index * shape.tokens, shape.tokens)
        else:
            RAW.decode_into(section, BlockShape(geometry, Component.K, shape.tokens), runs)
    assert target.tobytes() == source.tobytes()
