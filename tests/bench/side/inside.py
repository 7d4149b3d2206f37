"""What every side of a transfer has: lines of JSON with its parent, a meter, a pattern of octets.

The standard library alone, and any Python from 3.11 on: the other implementations' Python runs it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import mmap
import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

MEBI = 1 << 20

CLONE_NEWNET = 0x40000000

LOOPBACK = "127.0.0.1"
"""Where sides serve, unless the plan names another `host`."""

PATTERN_OCTETS = 8 * MEBI
"""The payload repeats after so many octets."""

PIECE_OCTETS = 64 << 10
"""What the pattern is made and compared in."""


def say(word: str, **values: Any) -> None:
    """Tell the parent `word` and values, as one line."""
    sys.stdout.write(json.dumps({"say": word, **values}) + "\n")
    sys.stdout.flush()


def say_status() -> None:
    """Tell the parent what Linux says of this process, without garbage."""
    gc.collect()
    say("status", text=Path("/proc/self/status").read_text())


def hear() -> dict[str, Any]:
    """Wait for the parent's next line. Its end of the pipe gone: so is this process."""
    line = b""
    while not line.endswith(b"\n"):  # no octet more, so that who waits for the pipe sees it
        octet = os.read(0, 1)
        if not octet:
            raise SystemExit(3)
        line += octet
    heard: dict[str, Any] = json.loads(line)
    return heard


async def heard() -> dict[str, Any]:
    """Wait for the parent's next line, while the loop runs on: without a thread, whose memory would
    be measured too."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(0)
    return hear()


def plan() -> dict[str, Any]:
    """Return what the parent gave this side to do: the last argument, in JSON.

    A side of an emulated link enters its network namespace here, before it has any thread.
    """
    given: dict[str, Any] = json.loads(sys.argv[-1])
    if "namespace" in given:
        _enter(given["namespace"])
    return given


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace) as descriptor:
        if libc.setns(descriptor.fileno(), CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"setns: {os.strerror(code)}")


def pattern() -> memoryview:
    """Return PATTERN_OCTETS random octets, the same in every process.

    They are no part of the heap: what is freed of a large heap may stay with the process, and would
    be counted as memory that a transfer took.
    """
    memory = mmap.mmap(-1, PATTERN_OCTETS)
    generator = random.Random(1)
    for _ in range(PATTERN_OCTETS // PIECE_OCTETS):
        memory.write(generator.randbytes(PIECE_OCTETS))
    return memoryview(memory)


def pieces(total: int, size: int, source: memoryview) -> list[memoryview]:
    """Return `total` octets of the repeated pattern, in memory of their own, in pieces of `size`.

    A cache is as large: octets that are sent again and again would lie in the processor's caches.
    """
    memory = memoryview(mmap.mmap(-1, total)) if total else memoryview(b"")
    for at in range(0, total, len(source)):
        part = memory[at : at + len(source)]
        part[:] = source[: len(part)]
    return [memory[at : at + size] for at in range(0, total, size)]


def faulted(total: int) -> bytearray:
    """Return memory for `total` octets, which the kernel has handed out already."""
    memory = bytearray(total)
    for at in range(0, total, 4096):
        memory[at] = 1
    return memory


def holds_pattern(memory: bytearray | memoryview, source: memoryview) -> bool:
    """Say whether `memory` holds the repeated pattern."""
    view = memoryview(memory)
    return all(
        bytes(view[at : at + PIECE_OCTETS])
        == bytes(source[at % PATTERN_OCTETS :][: min(PIECE_OCTETS, len(view) - at)])
        for at in range(0, len(view), PIECE_OCTETS)
    )


class Meter:
    """CPU seconds, peak memory and the clock, between `start` and `stop`.

    The clock is the system's monotonic one, which processes of one machine share.
    """

    def start(self) -> None:
        """Begin. Linux forgets the peak of what came before; elsewhere it counts.

        The garbage collector has no more business with what is there, as in any server that is done
        with its set-up; a whole collection of that takes some 20 ms.
        """
        gc.collect()
        gc.freeze()
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            pass
        self._before = _peak_octets()
        self._cpu = _cpu_s()
        self._at = time.monotonic()

    def stop(self) -> dict[str, float]:
        """Return begin, end, CPU seconds, peak octets, and how much of that came since `start`."""
        at, cpu = time.monotonic(), _cpu_s()
        peak = _peak_octets()
        return {
            "begun_at": self._at,
            "ended_at": at,
            "cpu_s": cpu - self._cpu,
            "peak_octets": peak,
            "growth_octets": peak - self._before,
        }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _peak_octets() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def pin(core: int | None) -> None:
    """Keep this process, and all threads it will have, on one core."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
