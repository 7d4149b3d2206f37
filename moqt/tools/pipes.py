"""How programs end when nobody reads on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["READER_GONE", "drop_output", "until_reader_goes"]

READER_GONE = 141
"""The exit code that a shell gives a program ended by SIGPIPE."""


def drop_output() -> None:
    """Let what is still buffered go nowhere, else the interpreter complains at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def until_reader_goes(run: Callable[[], int]) -> int:
    """Run a program and return its exit code; `| head` ends it without a traceback."""
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        return READER_GONE
    return code
