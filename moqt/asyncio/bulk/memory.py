"""Memory for one run of packets, of which a thread needs one however many connections it has."""

from __future__ import annotations

import threading
from mmap import mmap

from moqt.asyncio.config import RUN_OCTETS

_of_thread = threading.local()


def run_memory(purpose: str) -> memoryview:
    """Return `RUN_OCTETS` of memory for `purpose`, this thread's own. What is written there counts
    until its next use, so for one call of a reader or writer."""
    memory: memoryview | None = getattr(_of_thread, purpose, None)
    if memory is None:
        memory = memoryview(mmap(-1, RUN_OCTETS))  # it takes no memory before it's used
        setattr(_of_thread, purpose, memory)
    return memory
