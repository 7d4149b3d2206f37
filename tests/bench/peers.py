"""Other implementations of MOQT, in the Python that has them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.case import NotRun
from tests.bench.one_way import one_way_round

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.bench.case import Figures

__all__ = ["peer_round"]


def peer_round(module: str, plan: Mapping[str, Any], python: str | None) -> Figures:
    """Have a publisher and a subscriber of another implementation move hashed Objects.

    Raises: NotRun without their Python.
    """
    if python is None or not _has_peers(python):
        raise NotRun(
            "there is no Python 3.12 with aiomoqt and moq-rs (.venv-peers, which a whole"
            " `make bench` builds where it can)"
        )
    whole = {**plan, "hashed": True, "by_object": True}
    return one_way_round(module, whole, sender_serves=True, python=python)


@cache
def _has_peers(python: str) -> bool:
    if not Path(python).exists():
        return False
    tried = subprocess.run([python, "-c", "import aiomoqt, moq"], capture_output=True, check=False)
    return tried.returncode == 0
