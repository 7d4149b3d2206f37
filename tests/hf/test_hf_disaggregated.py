"""transformers models whose prefix another process computes: same tokens, layer by layer."""

from __future__ import annotations

import pytest

from examples.hf_disaggregated import CONFIGS, NEW_TOKENS, run


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_from_a_received_cache_are_those_of_a_local_run(name: str) -> None:
    result = run(name)
    assert result.streamed == result.local
    assert result.zeroed != result.local
    assert len(result.local) == NEW_TOKENS
    assert len(set(result.local)) > NEW_TOKENS // 3
