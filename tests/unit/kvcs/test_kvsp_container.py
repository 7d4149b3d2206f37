"""The KVSB container: kvsp-1 section 5."""

from __future__ import annotations

import numpy as np
import pytest

from kvcs.errors import CodecError, ContainerInvalid
from kvcs.kvsp import Component, Descriptor, LayerSections
from kvcs.kvsp.codecs import BSZSTD, RAW, ZSTD, Codec
from kvcs.kvsp.container import pack_container, parse_container

DESCRIPTOR = Descriptor(
    model="m",
    layers=3,
    block_tokens=4,
    kv_heads=2,
    head_dim=8,
    dtype="float16",
    layer_overrides={1: {"v_head_dim": 0}, 2: {"head_dim": 4}},
)
KEY = bytes(range(32))
HEAD = 88
ENTRY = 40


def sections() -> list[LayerSections]:
    random = np.random.default_rng(3)
    return [
        LayerSections(
            random.bytes(DESCRIPTOR.geometry(layer).raw_octets(Component.K, 4)),
            random.bytes(DESCRIPTOR.geometry(layer).raw_octets(Component.V, 4)),
        )
        for layer in range(3)
    ]


def packed(codec: Codec = RAW) -> bytes:
    return pack_container(DESCRIPTOR, sections(), block_key=KEY, token_start=8, codec=codec)


@pytest.mark.parametrize("codec", [RAW, ZSTD, BSZSTD])
def test_a_container_reads_back(codec: Codec) -> None:
    read = parse_container(packed(codec), DESCRIPTOR, block_key=KEY, token_start=8)
    assert (read.first_layer, read.token_start, read.block_key) == (0, 8, KEY)
    assert read.codec is codec
    assert [(bytes(s.k), bytes(s.v)) for s in read.layers] == [(s.k, s.v) for s in sections()]


def test_the_head_is_laid_out_as_kvsp_1_says() -> None:
    octets = packed()
    assert octets[:8] == b"KVSB\1\0\0\0"
    assert octets[8:12] == (3).to_bytes(4, "big")
    assert octets[12:16] == (4).to_bytes(4, "big")
    assert octets[16:24] == (8).to_bytes(8, "big")
    assert octets[24:56] == DESCRIPTOR.compatibility_id
    assert octets[56:88] == KEY
    assert octets[88:96] == (128).to_bytes(4, "big") * 2
    assert octets[HEAD + 3 * ENTRY :][:128] == sections()[0].k


def test_some_layers_alone_read_back() -> None:
    octets = pack_container(DESCRIPTOR, sections()[1:], block_key=KEY, token_start=0, first_layer=1)
    read = parse_container(octets, DESCRIPTOR, first_layer=1, layer_count=2)
    assert bytes(read.layers[1].v) == sections()[2].v
    with pytest.raises(ContainerInvalid, match="layers: is 2, expected 3"):
        parse_container(octets, DESCRIPTOR)


def test_every_flipped_bit_is_found() -> None:
    octets = packed()
    for bit in range(8 * len(octets)):
        damaged = bytearray(octets)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ContainerInvalid):
            parse_container(bytes(damaged), DESCRIPTOR, block_key=KEY, token_start=8)


@pytest.mark.parametrize("codec", [RAW, ZSTD, BSZSTD])
def test_every_cut_and_every_addition_is_found(codec: Codec) -> None:
    octets = packed(codec)
    for length in range(len(octets)):
        with pytest.raises(ContainerInvalid):
            parse_container(octets[:length], DESCRIPTOR)
    with pytest.raises(ContainerInvalid) as caught:
        parse_container(octets + b"\0", DESCRIPTOR)
    assert caught.value.field == "length"


def test_a_v_section_where_there_is_none_is_refused() -> None:
    layers = sections()
    layers[1] = LayerSections(layers[1].k, b"x")
    with pytest.raises(ContainerInvalid, match="no V tensor"):
        pack_container(DESCRIPTOR, layers, block_key=KEY, token_start=0)
    damaged = bytearray(packed())
    entry = HEAD + ENTRY
    k_octets = int.from_bytes(damaged[entry : entry + 4], "big")
    damaged[entry : entry + 8] = (k_octets).to_bytes(4, "big") + (1).to_bytes(4, "big")
    with pytest.raises(ContainerInvalid, match="layer 1 V length: is 1"):
        parse_container(bytes(damaged) + b"\0", DESCRIPTOR)


def test_what_does_not_fit_the_descriptor_is_not_packed() -> None:
    layers = sections()
    for first_layer, some in ((0, []), (1, layers), (-1, layers[:1])):
        with pytest.raises(ContainerInvalid) as caught:
            pack_container(DESCRIPTOR, some, block_key=KEY, token_start=0, first_layer=first_layer)
        assert caught.value.field == "layers"
    with pytest.raises(ContainerInvalid, match="Block Key"):
        pack_container(DESCRIPTOR, layers, block_key=b"short", token_start=0)
    for token_start in (-4, 3, 2**64):
        with pytest.raises(ContainerInvalid, match="token start"):
            pack_container(DESCRIPTOR, layers, block_key=KEY, token_start=token_start)
    with pytest.raises(CodecError, match="raw sections"):
        pack_container(DESCRIPTOR, layers[::-1], block_key=KEY, token_start=0)
