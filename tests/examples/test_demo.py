"""The demo end to end with a small random model: four processes, real connections."""

from __future__ import annotations

import dataclasses

import pytest

from examples import demo
from examples.demo_report import Timeline, print_verdict
from examples.demo_roles import Computed, Continued, Settings
from examples.smollm.model import ModelShape
from examples.smollm.weights import WeightsMissing
from moqt.tls import generate_certificate

SHAPE = ModelShape(
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=16,
    width=64,
    hidden=128,
    vocabulary=256,
    rope_base=10_000.0,
    norm_epsilon=1e-5,
)
LOCAL = Continued(
    tokens=[1, 2],
    cache_digest="aa",
    arrived_at={},
    usable_at={0: 1.0},
    joined_at=0.0,
    first_token_at=2.0,
)


def test_both_consumers_continue_as_a_local_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--random-weights"], shape=SHAPE) == 0
    printed = capsys.readouterr().out
    assert "weights are RANDOM" in printed
    assert "process 2: the same 32 tokens, text and cache" in printed
    assert "process 3: the same 32 tokens, text and cache" in printed
    rows = [line for line in printed.splitlines() if line[:6].strip().isdigit()]
    assert [int(row[:6]) for row in rows] == list(range(SHAPE.layers))


def test_a_corrupted_layer_makes_the_demo_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--random-weights", "--corrupt-layer", "1"], shape=SHAPE) == 1
    printed = capsys.readouterr().out
    assert "process 2: DIFFERENT tokens" in printed
    assert "process 3: DIFFERENT tokens" in printed


def test_a_layer_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--random-weights", "--corrupt-layer", "4"], shape=SHAPE) == 2
    assert capsys.readouterr().err == "error: layer 4 is not one of 0..3\n"


def test_missing_weights_end_the_demo_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise WeightsMissing("the package is not installed: try --random-weights")

    monkeypatch.setattr(demo, "find_gguf", missing)
    assert demo.main([]) == 2
    assert "try --random-weights" in capsys.readouterr().err


def test_a_process_that_fails_ends_the_demo_with_its_reason() -> None:
    pair = generate_certificate(["localhost"])
    settings = Settings(
        prompt=tuple(range(100)),
        chunk_tokens=8,  # half a block: no segment can be made of it
        block_tokens=16,
        new_tokens=2,
        scope_key=bytes(32),
        certificate=pair.certificate,
        private_key=pair.private_key,
        random_shape=SHAPE,
    )
    with pytest.raises(demo.DemoFailed, match=r"process producer: \w+Error: .*block"):
        demo.run(settings)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"tokens": [1, 3]}, "tokens, text"),
        ({"cache_digest": "bb"}, "cache"),
    ],
)
def test_any_difference_is_named(
    change: dict[str, object], parts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline = Timeline(
        started_at=0.0,
        layers=1,
        computed=[Computed(0, 0, 0.5)],
        octets=1,
        local=LOCAL,
        live=LOCAL,
        late=dataclasses.replace(LOCAL, **change),  # type: ignore[arg-type]
    )
    assert not print_verdict(timeline, str)
    printed = capsys.readouterr().out
    assert f"process 3: DIFFERENT {parts}: " in printed
    assert "process 2: the same" in printed
