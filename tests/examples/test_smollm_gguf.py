"""Reading a GGUF file: a small one that is written here, with every part that the real one has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from examples.smollm.model import KvCache, Model, ModelShape
from examples.smollm.tokenizer import build_tokenizer, chat_prompt
from examples.smollm.weights import open_gguf, random_weights, read_shape, read_weights

if TYPE_CHECKING:
    from pathlib import Path

    from examples.smollm.model import Floats, Weights

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "0 1"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "he", "Ġthe", "01"]
SHAPE = ModelShape(
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    width=32,
    hidden=64,
    vocabulary=len(TOKENS),
    rope_base=10_000.0,
    norm_epsilon=2.0**-17,
)


def write_gguf(path: Path, weights: Weights, *, split: str = "smollm") -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(SHAPE.layers)
    writer.add_head_count(SHAPE.heads)
    writer.add_head_count_kv(SHAPE.kv_heads)
    writer.add_rope_dimension_count(SHAPE.head_dim)
    writer.add_embedding_length(SHAPE.width)
    writer.add_feed_forward_length(SHAPE.hidden)
    writer.add_vocab_size(SHAPE.vocabulary)
    writer.add_rope_freq_base(SHAPE.rope_base)
    writer.add_layer_norm_rms_eps(SHAPE.norm_epsilon)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)

    def add(name: str, values: Floats) -> None:
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(values))

    add("token_embd", weights.embedding)
    add("output_norm", weights.output_norm)
    kv_width, q_width = SHAPE.kv_heads * SHAPE.head_dim, SHAPE.heads * SHAPE.head_dim
    for number, layer in enumerate(weights.layers):
        q, k, v = np.split(layer.qkv.T, [q_width, q_width + kv_width])
        gate, up = np.split(layer.gate_up.T, 2)
        tensors = {"attn_norm": layer.attention_norm, "ffn_norm": layer.feed_forward_norm}
        tensors |= {"attn_q": q, "attn_k": k, "attn_v": v, "ffn_gate": gate, "ffn_up": up}
        tensors |= {"attn_output": layer.attention_output.T, "ffn_down": layer.down.T}
        for name, values in tensors.items():
            add(f"blk.{number}.{name}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_shape_and_weights_come_back_from_the_file(tmp_path: Path) -> None:
    written = random_weights(SHAPE, seed=1)
    reader = open_gguf(write_gguf(tmp_path / "small.gguf", written))
    assert read_shape(reader) == SHAPE
    read = read_weights(reader, SHAPE)
    prompt = list(range(20))
    logits = [Model(SHAPE, w).forward(prompt, KvCache(SHAPE, 20)) for w in (written, read)]
    assert np.array_equal(logits[0], logits[1])


def test_tokenizer_merges_splits_digits_and_round_trips(tmp_path: Path) -> None:
    reader = open_gguf(write_gguf(tmp_path / "small.gguf", random_weights(SHAPE, seed=1)))
    tokenizer = build_tokenizer(reader)
    # "01" has a merge, yet stays apart: every digit is a word of its own.
    assert tokenizer.encode("at the 01").tokens == ["a", "t", "Ġthe", "Ġ", "0", "1"]
    text = chat_prompt("Grüße, the 2026 flood?\n\n  \t€")
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert [number for number in ids if number < len(SPECIAL)] == [1, 2, 1, 2, 1]


def test_another_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", random_weights(SHAPE, seed=1), split="llama-bpe")
    with pytest.raises(ValueError, match=r"\('gpt2', 'llama-bpe'\), expected \('gpt2', 'smollm'\)"):
        build_tokenizer(open_gguf(path))
