"""Every seed, and everything that once failed, through its target; no fuzzer is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

FOLDER = Path(__file__).parent / "corpus"
FILES = sorted(FOLDER.glob("*/*"))

MAX_CORPUS_OCTETS = 8192
"""Of one target: what is found beyond it belongs in a test."""


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {path.parent.name for path in FILES} == set(TARGETS)


def test_the_corpus_is_small() -> None:
    for name in TARGETS:
        assert sum(path.stat().st_size for path in (FOLDER / name).iterdir()) <= MAX_CORPUS_OCTETS


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_seed_is_read_or_refused(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.parametrize("octets", [b"", b"\x00", b"\xff" * 64], ids=["none", "zero", "ones"])
def test_plain_octets_are_read_or_refused(name: str, octets: bytes) -> None:
    TARGETS[name](octets)
