"""docs/moqt.md is one program: its blocks run, one after the other, and do what they say."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import socket
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "moqt.md"
BLOCK = re.compile(r"^```python *(background)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of the background goes on while those after it run."""

TIMEOUT_S = 60

PRINTED = [
    "serving on port PORT",
    "{0,0} b'first'",
    "{0,1} b'several buffers, one Object'",
    "{1,0} b'group 1'",
    "{2,0} b'group 2'",
    "{3,0} b'group 3'",
    "that was the past",
    "fetched {0,0}",
    "fetched {0,1}",
    "fetched {1,0}",
    "largest {3,0}",
    "found example-clock example-beat",
    "offered example-beat--beat",
    "a client published b'hello'",
    "5 Objects of example-clock--ticks",
]


def free_port() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def blocks() -> list[tuple[bool, str]]:
    """Return whether each is of the background, and its source at the lines of the document."""
    text = DOCUMENT.read_text("utf-8")
    return [
        (bool(found[1]), "\n" * text[: found.start(2)].count("\n") + found[2])
        for found in BLOCK.finditer(text)
    ]


async def run(source: str, names: dict[str, Any]) -> None:
    code = compile(source, str(DOCUMENT), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result


async def test_the_blocks_are_one_program() -> None:
    lines: list[str] = []
    has_printed = asyncio.Event()

    def note(*values: object) -> None:
        lines.append(" ".join(map(str, values)))
        has_printed.set()

    names: dict[str, Any] = {"print": note}
    port = free_port()
    background: list[asyncio.Task[None]] = []
    async with asyncio.timeout(TIMEOUT_S):
        for is_background, source in blocks():
            here = source.replace("4443", port)
            if is_background:
                background.append(asyncio.create_task(run(here, names)))
                await has_printed.wait()
            else:
                await run(here, names)
        for task in background:
            task.cancel()
        ended = await asyncio.gather(*background, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError]
    told = [line.replace(port, "PORT") for line in lines if "END_OF_" not in line]
    assert sorted(told) == sorted(PRINTED)  # status Objects come only to who was there in time
