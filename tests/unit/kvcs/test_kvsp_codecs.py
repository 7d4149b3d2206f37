"""Codecs and their registry: kvsp-1 section 4."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zstandard

from kvcs.errors import CodecError, RejectReason
from kvcs.kvsp import BlockShape, Component, LayerGeometry, Layout
from kvcs.kvsp.codecs import BSZSTD, CODECS, RAW, ZSTD, Codec, CodecRegistry, RawCodec
from kvcs.kvsp.shapes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

LOSSLESS = [RAW, ZSTD, BSZSTD]


def shape(
    *, component: Component = Component.K, dtype: str = "bfloat16", v_head_dim: int = 8
) -> BlockShape:
    geometry = LayerGeometry(
        kv_heads=2, head_dim=8, v_head_dim=v_head_dim, dtype=DTYPES[dtype], layout=Layout.NHD
    )
    return BlockShape(geometry, component, 16)


def noise(block: BlockShape, seed: int = 0) -> list[bytes]:
    return [np.random.default_rng(seed).bytes(octets) for octets in block.sections]


def join(buffers: Sequence[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(buffers)


def reason_of(codec: Codec, data: bytes, block: BlockShape) -> RejectReason:
    with pytest.raises(CodecError) as caught:
        codec.decode(data, block)
    return caught.value.reason


@pytest.mark.parametrize("codec", LOSSLESS)
@pytest.mark.parametrize("component", Component)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_noise", [True, False])
def test_every_octet_comes_back(
    codec: Codec, component: Component, dtype: str, is_noise: bool
) -> None:
    block = shape(component=component, dtype=dtype, v_head_dim=4)
    sections = noise(block) if is_noise else [bytes(octets) for octets in block.sections]
    data = join(codec.encode(sections, block))
    assert len(data) <= codec.max_data_octets(block)
    assert codec.decode(data, block) == join(sections)
    runs = memoryview(bytearray(block.raw_octets))
    codec.decode_into(data, block, [runs[:3], runs[3:100], runs[100:]])
    assert runs == join(sections)


def test_raw_returns_the_very_buffers() -> None:
    block = shape(component=Component.KV)
    sections = noise(block)
    assert [id(s) for s in RAW.encode(sections, block)] == [id(s) for s in sections]


def test_kv_without_v_is_k_alone() -> None:
    block = shape(component=Component.KV, v_head_dim=0)
    assert block.sections == (16 * 2 * 8 * 2,)
    assert shape(component=Component.V, v_head_dim=0).sections == ()


def test_bszstd_has_the_planes_of_kvsp_1() -> None:
    block = shape()
    noisy, flat = np.random.default_rng(1).bytes(256), b"\x3f" * 256
    section = np.stack([np.frombuffer(noisy, "u1"), np.frombuffer(flat, "u1")], axis=1).tobytes()
    data = join(BSZSTD.encode([section], block))
    assert data[:5] == b"\0\0\0\1\0"  # the low plane does not shrink: stored, 256 octets
    assert data[5:261] == noisy
    assert data[261] == 1
    assert int.from_bytes(data[262:266], "big") == len(data) - 266
    assert zstandard.decompress(data[266:]) == flat


def test_zstd_is_one_frame_over_k_and_v() -> None:
    block = shape(component=Component.KV)
    sections = noise(block)
    assert zstandard.decompress(join(ZSTD.encode(sections, block))) == join(sections)


@pytest.mark.parametrize("codec", LOSSLESS)
def test_sections_of_another_length_are_not_encoded(codec: Codec) -> None:
    block = shape(component=Component.KV)
    for sections in ([], [bytes(512)], [bytes(512), bytes(511)]):
        with pytest.raises(CodecError, match="raw sections"):
            codec.encode(sections, block)


@pytest.mark.parametrize("codec", LOSSLESS)
def test_a_wrong_place_is_the_caller_s_error(codec: Codec) -> None:
    block = shape()
    data = join(codec.encode(noise(block), block))
    with pytest.raises(ValueError, match="decode into"):
        codec.decode_into(data, block, [memoryview(bytearray(block.raw_octets - 1))])


@pytest.mark.parametrize("codec", LOSSLESS)
def test_data_that_cannot_fit_is_refused_by_its_length(codec: Codec) -> None:
    block = shape()
    for octets in (0, codec.max_data_octets(block) + 1):
        assert reason_of(codec, bytes(octets), block) is RejectReason.DATA_SIZE


def test_raw_of_another_length_is_refused() -> None:
    assert reason_of(RAW, bytes(shape().raw_octets - 1), shape()) is RejectReason.DATA_SIZE


def test_a_bomb_is_refused_before_it_grows() -> None:
    small = zstandard.compress(bytes(4 << 20))
    assert len(small) < ZSTD.max_data_octets(shape())
    assert reason_of(ZSTD, small, shape()) is RejectReason.DECODED_SIZE
    plane = b"\1" + len(small).to_bytes(4, "big") + small
    assert reason_of(BSZSTD, plane, shape()) is RejectReason.DECODED_SIZE


def test_a_bomb_that_hides_its_size_is_refused() -> None:
    packer = zstandard.ZstdCompressor(write_content_size=False)
    small = packer.compress(bytes(4 << 20))
    assert zstandard.get_frame_parameters(small).content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert reason_of(ZSTD, small, shape()) is RejectReason.DECODE_FAILED


def test_a_frame_that_hides_its_size_is_decoded() -> None:
    block = shape()
    (section,) = noise(block)
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(section)
    assert ZSTD.decode(frame, block) == section
    short = zstandard.ZstdCompressor(write_content_size=False).compress(section[:-1])
    assert reason_of(ZSTD, short, block) is RejectReason.DECODED_SIZE


def test_a_frame_that_asks_for_a_large_window_is_refused() -> None:
    block = shape()
    (section,) = noise(block)
    parameters = zstandard.ZstdCompressionParameters(
        window_log=27, write_content_size=False, compression_level=1
    )
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = packer.compress(section) + packer.flush()
    assert zstandard.get_frame_parameters(frame).window_size == 128 << 20
    assert reason_of(ZSTD, frame, block) is RejectReason.DECODE_FAILED


def test_a_block_larger_than_the_window_bound_is_decoded() -> None:
    geometry = LayerGeometry(
        kv_heads=1, head_dim=9 << 20, v_head_dim=0, dtype=DTYPES["uint8"], layout=Layout.NHD
    )
    block = BlockShape(geometry, Component.K, 1)
    (section,) = noise(block)
    assert ZSTD.decode(join(ZSTD.encode([section], block)), block) == section


def test_more_than_one_frame_is_refused() -> None:
    block = shape()
    frame = join(ZSTD.encode(noise(block), block))
    assert reason_of(ZSTD, frame + b"\0", block) is RejectReason.DECODE_FAILED
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"
    with pytest.raises(CodecError):
        ZSTD.decode(skippable, block)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0", RejectReason.DECODE_FAILED),
        (b"\0\0\0\1\0", RejectReason.DECODE_FAILED),
        (b"\2\0\0\1\0" + bytes(256), RejectReason.DECODE_FAILED),
        (b"\0\0\0\0\xff" + bytes(255), RejectReason.DECODED_SIZE),
        (b"\0\xff\xff\xff\xff", RejectReason.DECODE_FAILED),
        ((b"\0\0\0\1\0" + bytes(256)) * 2 + b"\0", RejectReason.DECODE_FAILED),
        (b"\1\0\0\0\4junk", RejectReason.DECODE_FAILED),
    ],
)
def test_broken_planes_are_refused(data: bytes, reason: RejectReason) -> None:
    assert reason_of(BSZSTD, data, shape()) is reason


@pytest.mark.parametrize("codec", [ZSTD, BSZSTD])
def test_codecs_work_from_many_threads(codec: Codec) -> None:
    block = shape()

    def round_trip(seed: int) -> bool:
        sections = noise(block, seed)
        return codec.decode(join(codec.encode(sections, block)), block) == sections[0]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(round_trip, range(64)))


def test_the_registry_finds_by_value_and_name() -> None:
    """K3.2#2."""
    for codec in LOSSLESS:
        assert CODECS.by_value(codec.value) is CODECS.by_name(codec.name) is codec
        assert codec.is_lossless
    assert "raw" in CODECS
    assert "int99" not in CODECS
    assert repr(RAW) == "<codec raw (0)>"
    with pytest.raises(CodecError) as unknown_value:
        CODECS.by_value(0xFF00)
    with pytest.raises(CodecError) as unknown_name:
        CODECS.by_name("x-none")
    assert unknown_value.value.reason is unknown_name.value.reason is RejectReason.CODEC


@pytest.mark.parametrize(
    ("value", "name", "match"),
    [
        (0, "other", "taken"),
        (9, "raw", "taken"),
        (65536, "big", "0..65535"),
        (9, "Upper", "a-z"),
        (9, "", "a-z"),
        (9, "a" * 33, "a-z"),
    ],
)
def test_a_codec_that_cannot_be_named_is_not_registered(value: int, name: str, match: str) -> None:
    class Other(RawCodec):
        pass

    other = Other()
    other.value, other.name = value, name
    with pytest.raises(ValueError, match=match):
        CodecRegistry([RAW]).register(other)


def test_a_private_codec_can_be_added() -> None:
    class Private(RawCodec):
        value = 0xFF01
        name = "x-private"

    registry = CodecRegistry([RAW])
    private = Private()
    registry.register(private)
    assert registry.by_name("x-private") is registry.by_value(0xFF01) is private
