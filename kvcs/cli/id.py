"""`kvcs id`: from a descriptor and tokens to the identifiers that name their cache."""

from __future__ import annotations

from typing import Any

from kvcs.cli import inputs, options
from kvcs.cli.output import Output
from kvcs.kvsp.identity import Prefix

__all__ = ["identify"]


def identify(
    descriptor: options.DescriptorFile = None,
    tokens: options.TokensFile = None,
    scope_key_file: options.ScopeKeyFile = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Compute Compatibility ID, Scope ID, Block Keys and Anchor Key.

    Only what is given is computed: the Scope ID needs the scope key, the keys need tokens too.
    """
    output = Output(as_json=as_json)
    described = inputs.need_descriptor(descriptor)
    record: dict[str, Any] = {"compatibility_id": described.compatibility_id.hex()}
    scope = inputs.need_scope(scope_key_file) if tokens else inputs.find_scope(scope_key_file)
    if scope is not None:
        record["scope_id"] = scope.scope_id.hex()
    if scope is not None and tokens is not None:
        ids = inputs.need_tokens(tokens)
        prefix = Prefix.of(scope, described, ids)
        record["tokens"] = len(ids)
        record["covered_tokens"] = prefix.tokens
        record["blocks"] = prefix.blocks
        record["block_keys"] = [key.hex() for key in prefix.keys]
        record["anchor_key"] = prefix.anchor_key().hex()
    output.emit(record, "\n".join(_lines(record)))


def _lines(record: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in record.items():
        if name == "block_keys":
            lines += [f"block_key {block} {key}" for block, key in enumerate(value)]
        else:
            lines.append(f"{name} {value}")
    return lines
