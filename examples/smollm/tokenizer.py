"""Text to token ids and back: byte-level BPE from the vocabulary and merges in the GGUF file."""

from __future__ import annotations

from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def build_tokenizer(reader: Any) -> Tokenizer:
    """The tokenizer that a `gguf.GGUFReader` describes; only BPE that splits as SmolLM does."""

    def field(name: str) -> Any:
        return reader.fields[f"tokenizer.ggml.{name}"].contents()

    kind = (field("model"), field("pre"))
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"tokenizer is {kind}, expected ('gpt2', 'smollm')")
    tokens: list[str] = field("tokens")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in field("merges"))]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    # "smollm" is the GPT-2 split with every digit on its own.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, field("token_type"), strict=True)
            if kind == TokenType.CONTROL
        ]
    )
    return tokenizer


def chat_prompt(question: str) -> str:
    """One user turn in the model's chat template, up to where the assistant begins to answer."""
    return (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        f"<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
