from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from moqt.tls import CertificatePair, generate_certificate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(scope="session")
def certificate() -> CertificatePair:
    return generate_certificate(["localhost", "127.0.0.1"])


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """No task and no socket outlives a test (an unclosed one is a ResourceWarning, an error)."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left
    gc.collect()
