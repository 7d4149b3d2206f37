"""Descriptor, Scope, Block Keys: kvsp-1 sections 1 to 3."""

from __future__ import annotations

import copy
import json
import pickle
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvcs.errors import InvalidDescriptor, InvalidKey, InvalidTokens
from kvcs.kvsp import (
    Component,
    Descriptor,
    Layout,
    Prefix,
    Scope,
    block_keys,
    block_keys_sha256,
    layer_digest,
)
from kvcs.kvsp.shapes import DTYPES, dtype_of

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "kvsp1.json").read_text("utf-8"))

MEMBERS: dict[str, Any] = {
    "model": "m",
    "layers": 4,
    "block_tokens": 16,
    "kv_heads": 2,
    "head_dim": 8,
    "dtype": "bfloat16",
}
DESCRIPTOR = Descriptor.from_dict(MEMBERS)
SCOPE = Scope(bytes(range(32)))


@pytest.mark.parametrize("vector", VECTORS["identity"], ids=lambda vector: vector["name"])
def test_identity_vector(vector: dict[str, Any]) -> None:
    descriptor = Descriptor.from_dict(vector["descriptor"])
    assert descriptor.jcs().decode() == vector["jcs"]
    assert descriptor.compatibility_id.hex() == vector["compatibility_id"]
    scope = Scope.from_hex(vector["scope_key"])
    assert scope.scope_id.hex() == vector["scope_id"]
    extras = {int(block): bytes.fromhex(octets) for block, octets in vector["extras"].items()}
    keys = block_keys(scope, descriptor, vector["tokens"], extras)
    assert [key.hex() for key in keys] == vector["block_keys"]
    assert block_keys_sha256(keys).hex() == vector["block_keys_sha256"]
    if vector["anchor_key"] is None:
        with pytest.raises(InvalidTokens, match="less than one block"):
            Prefix.of(scope, descriptor, vector["tokens"], extras)
        return
    prefix = Prefix.of(scope, descriptor, vector["tokens"], extras)
    assert prefix.anchor_key().hex() == vector["anchor_key"]
    assert prefix.block_keys_sha256(0, prefix.blocks).hex() == vector["block_keys_sha256"]


@pytest.mark.parametrize("vector", VECTORS["rejects"], ids=lambda vector: vector["name"])
def test_rejected_vector(vector: dict[str, Any]) -> None:
    if "tokens" in vector:
        with pytest.raises(InvalidTokens, match="token 0 is"):
            block_keys(SCOPE, DESCRIPTOR, vector["tokens"])
    elif "descriptor" in vector:
        with pytest.raises(InvalidDescriptor, match=r"\$\.dtype: required member is missing"):
            Descriptor.from_dict(vector["descriptor"])
    elif "descriptor_json" in vector:
        with pytest.raises(InvalidDescriptor, match=r"NaN is not|'model' is given twice"):
            Descriptor.from_json(vector["descriptor_json"])
    else:
        with pytest.raises(InvalidKey, match="16 to 64 octets, got 15"):
            Scope.from_hex(vector["scope_key"])


@pytest.mark.parametrize("vector", VECTORS["layer_digests"], ids=lambda vector: vector["name"])
def test_layer_digest_vector(vector: dict[str, Any]) -> None:
    """K3.5#5."""
    digest = layer_digest(bytes.fromhex(vector["k"]), bytes.fromhex(vector["v"]))
    assert digest.hex() == vector["layer_digest"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"layers": 0}, "$.layers"),
        ({"layers": 65536}, "$.layers"),
        ({"layers": True}, "$.layers"),
        ({"layers": 1.5}, "$.layers"),
        ({"block_tokens": "16"}, "$.block_tokens"),
        ({"kv_heads": 0}, "$.kv_heads"),
        ({"v_head_dim": -1}, "$.v_head_dim"),
        ({"dtype": "float64"}, "$.dtype"),
        ({"dtype": ["bfloat16"]}, "$.dtype"),
        ({"layout": "dhn"}, "$.layout"),
        ({"model": 7}, "$.model"),
        ({"shard": {"rank": 2, "size": 2}}, "$.shard.rank"),
        ({"shard": {"rank": 0}}, "$.shard.size"),
        ({"shard": 1}, "$.shard"),
        ({"layer_overrides": []}, "$.layer_overrides"),
        ({"layer_overrides": {"4": {}}}, "$.layer_overrides.4"),
        ({"layer_overrides": {"01": {}}}, "$.layer_overrides.01"),
        ({"layer_overrides": {"1": 2}}, "$.layer_overrides.1"),
        ({"layer_overrides": {"1": {"kv_heads": 0}}}, "$.layer_overrides.1.kv_heads"),
        ({"kv_heads": 2**20, "head_dim": 2**10}, "$"),
        ({"rope": {"theta": [1, float("inf")]}}, "$.rope.theta[1]"),
        ({"rope": 2**53}, "$.rope"),
        ({"rope": 1e300}, "$.rope"),
        ({"rope": "\ud800"}, "$.rope"),
        ({"rope": {1: 2}}, "$.rope"),
        ({"rope": b"octets"}, "$.rope"),
        ({"note": "x" * 70000}, "$"),
    ],
)
def test_a_wrong_member_is_named_by_its_path(change: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidDescriptor) as caught:
        Descriptor.from_dict(MEMBERS | change)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b"null", b"\xff", b'{"model": 1e999}', b"[" * 100_000, b"9" * 5000],
)
def test_text_that_is_no_descriptor_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidDescriptor):
        Descriptor.from_json(text)


def test_a_duplicate_name_is_found_where_it_is() -> None:
    text = json.dumps(MEMBERS)[:-1] + ', "rope": {"a": [{"b": 1, "b": 1}]}}'
    with pytest.raises(InvalidDescriptor) as caught:
        Descriptor.from_json(text)
    assert caught.value.path == "$.rope.a[0]"


def test_deep_nesting_is_refused_in_values_too() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(InvalidDescriptor, match="nested deeper"):
        Descriptor.from_dict(MEMBERS | {"rope": deep})


def test_unknown_members_count_and_survive() -> None:
    other = Descriptor.from_dict(MEMBERS | {"later": {"a": None}})
    assert other.compatibility_id != DESCRIPTOR.compatibility_id
    assert Descriptor.from_json(other.jcs()).to_dict() == MEMBERS | {"later": {"a": None}}


def test_one_number_has_one_identity() -> None:
    assert Descriptor.from_dict(MEMBERS | {"layers": 4.0}) == DESCRIPTOR
    assert DESCRIPTOR != "m"


def test_keywords_make_the_same_descriptor_as_members() -> None:
    made = Descriptor(
        model="m",
        layers=4,
        block_tokens=16,
        kv_heads=2,
        head_dim=8,
        dtype="bfloat16",
        layout=Layout.HND,
        layer_overrides={2: {"head_dim": 4}},
        revision="r",
    )
    members = MEMBERS | {
        "layout": "hnd",
        "layer_overrides": {"2": {"head_dim": 4}},
        "revision": "r",
    }
    assert made == Descriptor.from_dict(members)
    assert hash(made) == hash(Descriptor.from_dict(members))
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    assert repr(made).startswith("Descriptor.from_json(")


def test_geometry_of_mla_and_of_overridden_layers() -> None:
    mla = Descriptor.from_dict(MEMBERS | {"kv_heads": 1, "head_dim": 576, "v_head_dim": 0})
    assert not mla.geometry(0).has(Component.V)
    assert mla.geometry(0).parts(Component.KV) == (Component.K,)
    assert mla.geometry(0).raw_octets(Component.KV, 16) == 16 * 576 * 2
    hybrid = Descriptor.from_dict(MEMBERS | {"layer_overrides": {"1": {"head_dim": 4}}})
    assert hybrid.geometry(0).v_head_dim == 8
    assert hybrid.geometry(1).head_dim == hybrid.geometry(1).v_head_dim == 4
    assert hybrid.geometry(1).kv_heads == 2
    assert (mla.model, mla.layout) == ("m", Layout.NHD)
    with pytest.raises(IndexError):
        hybrid.geometry(4)
    assert dtype_of("bfloat16") is mla.dtype
    with pytest.raises(ValueError, match="ask for one"):
        hybrid.geometry(0).dim(Component.KV)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_known_by_its_own_name(name: str) -> None:
    assert Descriptor.from_dict(MEMBERS | {"dtype": name}).dtype.name == name


def test_the_scope_key_is_in_no_text(tmp_path: Path) -> None:
    scope = Scope.generate()
    assert scope.key.hex() not in repr(scope)
    assert repr(scope.key) not in repr(scope)
    assert scope.scope_id.hex() in repr(scope)
    path = tmp_path / "scope.key"
    scope.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Scope.from_file(path) == scope
    with pytest.raises(FileExistsError):
        scope.save(path)
    secret = "5ec4e7" * 8
    for text in (secret + "zz", secret * 6):
        with pytest.raises(InvalidKey) as caught:
            Scope.from_hex(text)
        assert secret not in str(caught.value)
    path.write_bytes(b"\xff" * 32)
    with pytest.raises(InvalidKey, match="hexadecimal"):
        Scope.from_file(path)
    with pytest.raises(InvalidKey, match="is bytes"):
        Scope("0" * 32)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tokens",
    [
        list(range(48)),
        tuple(range(48)),
        np.arange(48),
        np.arange(48, dtype=np.uint8),
        np.arange(48, dtype=">i4"),
        np.arange(96)[::2] // 2,
    ],
)
def test_any_integer_sequence_gives_the_same_keys(tokens: Any) -> None:
    assert block_keys(SCOPE, DESCRIPTOR, tokens) == block_keys(SCOPE, DESCRIPTOR, range(48))


@pytest.mark.parametrize(
    ("tokens", "match"),
    [
        ([1.0] * 16, "integers"),
        ([True] * 16, "integers"),
        ([[1] * 16], "one axis"),
        ([[1], [1, 2]], "flat sequence"),
        ([1, 2**70], "integers"),
        ([0] * 9 + [2**32], "token 9 is 4294967296"),
        (np.array([0, -5]), "token 1 is -5"),
    ],
)
def test_tokens_that_cannot_be_ids_are_refused(tokens: Any, match: str) -> None:
    with pytest.raises(InvalidTokens, match=match):
        block_keys(SCOPE, DESCRIPTOR, tokens)


def test_no_tokens_have_no_keys() -> None:
    assert block_keys(SCOPE, DESCRIPTOR, []) == []


def test_extras_must_name_blocks_that_the_tokens_reach() -> None:
    tokens = range(20)
    plain = block_keys(SCOPE, DESCRIPTOR, tokens)
    assert block_keys(SCOPE, DESCRIPTOR, tokens, {0: b"image"}) != plain
    assert block_keys(SCOPE, DESCRIPTOR, tokens, {1: b"image"}) == plain  # the tail has no key
    for block in (-1, 2):
        with pytest.raises(InvalidTokens, match="extras name block"):
            block_keys(SCOPE, DESCRIPTOR, tokens, {block: b""})


def test_a_shorter_prefix_is_a_prefix_of_the_keys() -> None:
    prefix = Prefix.of(SCOPE, DESCRIPTOR, range(50))
    assert (prefix.blocks, prefix.tokens) == (3, 48)
    assert prefix.compatibility_id == DESCRIPTOR.compatibility_id
    assert prefix.anchor_key(2) == Prefix.of(SCOPE, DESCRIPTOR, range(32)).anchor_key()
    assert prefix.keys[0].hex() not in repr(prefix)
    for blocks in (0, 4):
        with pytest.raises(InvalidTokens):
            prefix.anchor_key(blocks)
    for first, blocks in ((-1, 1), (0, 0), (2, 2)):
        with pytest.raises(InvalidTokens):
            prefix.block_keys_sha256(first, blocks)
