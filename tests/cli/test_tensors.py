"""safetensors files: templates, every dtype bit for bit, descriptors from shapes, atomic writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvcs.cli import tensors
from kvcs.cli.describe import DESCRIPTOR_KEY, CacheLayers, Said, describe
from kvcs.cli.exits import CommandError, ExitCode
from kvcs.cli.tensors import CacheFile, NameTemplate
from kvcs.errors import TensorMismatch
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.shapes import DTYPES, AnyArray, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def octets_as(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> AnyArray:
    """An array of random octets: every bit pattern, NaN payloads included."""
    count = int(np.prod(shape)) * dtype.itemsize
    random = np.random.default_rng(seed).integers(0, 256, count, dtype="u1")
    return random.view(dtype).reshape(shape)


def layers_of(path: Path, arrays: Mapping[str, AnyArray], **metadata: str) -> CacheLayers:
    save_file(dict(arrays), path, metadata=metadata or None)
    return CacheLayers(
        CacheFile.open(path), NameTemplate(tensors.K_NAMES), NameTemplate(tensors.V_NAMES)
    )


@pytest.mark.parametrize("text", ["k", "k.{}", "{layer}.{layer}", "{Layer}"])
def test_no_template(text: str) -> None:
    with pytest.raises(CommandError, match="is no name template") as caught:
        NameTemplate(text)
    assert caught.value.code is ExitCode.USAGE


def test_template_finds_its_layers() -> None:
    template = NameTemplate("a.{layer}+k")
    assert template.name(12) == "a.12+k"
    names = ["a.10+k", "a.2+k", "a.02+k", "a.3+v", "xa.4+k", "a.5+kk", "a.+k", "a.6-k", "ab6+k"]
    assert template.layers(names) == [2, 10]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_read_bit_for_bit(tmp_path: Path, name: str) -> None:
    array = octets_as(DTYPES[name], (5, 2, 3))
    other = np.arange(3, dtype="i8")  # beside tensors of other sizes
    path = tmp_path / "x.safetensors"
    save_file({"t": array, "other": other, "empty": np.empty((0, 2), "f2")}, path)
    file = CacheFile.open(path)
    read = file.tensor("t")
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()
    assert file.dtype_name("t") == name
    assert file.tensor("empty").shape == (0, 2)
    with pytest.raises(CommandError, match="'other' has dtype I64"):
        file.tensor("other")


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_written_bit_for_bit(tmp_path: Path, name: str) -> None:
    array = octets_as(DTYPES[name], (2, 6, 3)).transpose(1, 0, 2)  # not contiguous
    path = tmp_path / "x.safetensors"
    tensors.write_tensors(path, {"t": array}, {"a": "b"})
    file = CacheFile.open(path)
    assert file.tensor("t").tobytes() == array.tobytes()
    assert file.metadata == {"a": "b"}
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_failed_write_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"before")

    def full_disk(arrays: object, part: Path, metadata: object) -> None:
        part.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(part))

    monkeypatch.setattr(tensors, "save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        tensors.write_tensors(path, {}, {})
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("octets", [b"", b"\x08\0\0\0\0\0\0\0{}", b"\xff" * 64])
def test_file_that_is_not_safetensors(tmp_path: Path, octets: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(octets)
    with pytest.raises(CommandError, match="not a safetensors file") as caught:
        CacheFile.open(path)
    assert caught.value.code is ExitCode.FILE


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"t": np.zeros(100, "f4")}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CommandError, match="not a safetensors file"):
        CacheFile.open(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        CacheFile.open(tmp_path / "x")


def test_missing_layers_are_named(tmp_path: Path) -> None:
    arrays = {f"layers.{layer}.k": np.zeros((2, 1, 1), "f4") for layer in (0, 1, 4)}
    layers = layers_of(tmp_path / "x", arrays)
    with pytest.raises(CommandError, match=r"up to 4 but no tensor 'layers.2.k', 'layers.3.k'"):
        layers.file.count_layers(layers.k_names)
    with pytest.raises(CommandError, match=r"no tensor 'layers.0.v' among 3 \(layers.0.k") as no_v:
        layers.file.count_layers(layers.v_names)
    assert "--v-names" in no_v.value.hint


SAID = Said(model="m", block_tokens=4, layout=Layout.NHD)


def test_descriptor_from_shapes(tmp_path: Path) -> None:
    arrays = {
        f"layers.{layer}.{part}": np.zeros((8, 2, 3), DTYPES["bfloat16"])
        for layer in range(3)
        for part in "kv"
    }
    layers = layers_of(tmp_path / "x", arrays)
    descriptor = describe(layers, SAID)
    assert descriptor.to_dict() == {
        "model": "m",
        "layers": 3,
        "block_tokens": 4,
        "kv_heads": 2,
        "head_dim": 3,
        "dtype": "bfloat16",
        "layout": "nhd",
    }
    assert layers.check(descriptor) == 8


def test_layout_decides_what_a_shape_means(tmp_path: Path) -> None:
    layers = layers_of(tmp_path / "x", {"layers.0.k": np.zeros((8, 2, 3), "f4")})
    said = Said(model="m", block_tokens=2, layout=Layout.HND, revision="r")
    descriptor = describe(layers, said)
    geometry = descriptor.geometry(0)
    assert (geometry.kv_heads, geometry.head_dim, geometry.v_head_dim) == (8, 3, 0)
    assert descriptor.to_dict()["revision"] == "r"
    assert layers.check(descriptor) == 2
    assert layers.v(0, descriptor) is None


def test_layers_of_another_geometry_become_overrides(tmp_path: Path) -> None:
    arrays = {
        "layers.0.k": np.zeros((8, 2, 3), "f4"),
        "layers.0.v": np.zeros((8, 2, 5), "f4"),
        "layers.1.k": np.zeros((8, 1, 4), "f4"),
    }
    layers = layers_of(tmp_path / "x", arrays)
    descriptor = describe(layers, SAID)
    assert descriptor.to_dict()["v_head_dim"] == 5
    assert descriptor.to_dict()["layer_overrides"] == {
        "1": {"kv_heads": 1, "head_dim": 4, "v_head_dim": 0}
    }
    assert layers.check(descriptor) == 8


def test_what_shapes_cannot_tell_must_be_said(tmp_path: Path) -> None:
    layers = layers_of(tmp_path / "x", {"layers.0.k": np.zeros((8, 2, 3), "f4")})
    with pytest.raises(CommandError, match=r"not said: --block-tokens, --layout"):
        describe(layers, Said(model="m"))
    with pytest.raises(CommandError, match=r"not said: --model, --block-tokens, --layout"):
        describe(layers, Said())


def test_stored_descriptor_is_used_when_nothing_is_said(tmp_path: Path) -> None:
    text = '{"model":"s","layers":1,"block_tokens":2,"kv_heads":2,"head_dim":3,"dtype":"float32"}'
    arrays = {f"layers.0.{part}": np.zeros((8, 2, 3), "f4") for part in "kv"}
    layers = layers_of(tmp_path / "x", arrays, **{DESCRIPTOR_KEY: text})
    assert describe(layers, Said()) == Descriptor.from_json(text)
    assert describe(layers, SAID).model == "m"


@pytest.mark.parametrize(
    ("shape", "dtype", "problem"),
    [
        (
            (8, 2, 4),
            "float32",
            r"is float32 \[8, 2, 4\], the descriptor says float32 \[tokens, 2, 3",
        ),
        ((8, 2, 3), "float16", r"is float16 \[8, 2, 3\], the descriptor says float32"),
        ((1, 8, 2, 3), "float32", r"is float32 \[1, 8, 2, 3\]"),
        ((9, 2, 3), "float32", r"'layers.0.k' holds 8 tokens, 'layers.0.v' 9"),
    ],
)
def test_mismatch_is_named(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, problem: str
) -> None:
    descriptor = Descriptor(
        model="m", layers=1, block_tokens=2, kv_heads=2, head_dim=3, dtype="float32"
    )
    arrays = {"layers.0.k": np.zeros((8, 2, 3), "f4"), "layers.0.v": np.zeros(shape, dtype)}
    with pytest.raises(TensorMismatch, match=problem):
        layers_of(tmp_path / "x", arrays).check(descriptor)


def test_shape_that_has_not_three_axes(tmp_path: Path) -> None:
    layers = layers_of(tmp_path / "x", {"layers.0.k": np.zeros((1, 8, 2, 3), "f4")})
    with pytest.raises(TensorMismatch, match="three axes of nhd: tokens, heads, dim"):
        describe(layers, SAID)
