from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest
import uvloop

from moqt.tls import CertificatePair, generate_certificate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture(scope="session")
def certificate() -> CertificatePair:
    return generate_certificate(["localhost", "127.0.0.1", "::1"])


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """asyncio's loop, unless a test names others by `pytest.mark.asyncio(loop_factories=...)`."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop
    }
    marker = item.get_closest_marker("asyncio")
    if marker is not None and "loop_factories" in marker.kwargs:
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture(autouse=True)
async def no_leaks() -> AsyncIterator[None]:
    """No task and no socket outlives a test (an unclosed one is a ResourceWarning, an error)."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left
    gc.collect()
