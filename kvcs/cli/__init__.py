"""The command line `kvcs`: parses arguments, calls the library, prints.

One file a command. Exit codes, JSON shapes and environment variables: docs/cli.md.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_EXTRA = ("typer", "rich", "safetensors")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; `arguments` default to those of the process.

    Never raises: an error becomes one line on stderr and a code (docs/cli.md).
    """
    try:
        from kvcs.cli.app import run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in _EXTRA:
            raise
        print(
            f"kvcs: error: the package {missing.name} is not installed"
            " (hint: pip install 'kvcs[cli]')",
            file=sys.stderr,
        )
        return 2
    return run(sys.argv[1:] if arguments is None else arguments)
