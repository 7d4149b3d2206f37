"""Writes files whole or not at all, and overwrites none unasked."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvcs.cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["check_output", "create", "growing", "writing"]


def check_output(path: Path, *, force: bool) -> None:
    """Refuse a file that exists (unless `force`) or a folder that does not, before any work."""
    if path.is_dir():
        raise CommandError(ExitCode.FILE, f"{path}: is a folder")
    if not path.parent.is_dir():
        raise CommandError(ExitCode.FILE, f"{path}: the folder {path.parent} does not exist")
    if path.exists() and not force:
        raise CommandError(ExitCode.FILE, f"{path}: exists", hint="--force overwrites it")


@contextmanager
def growing(path: Path) -> Iterator[Path]:
    """Give another name in the same folder to write to; it takes `path`'s place on a clean exit.

    The name ends in `.part` and is gone when the block raised.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def create(path: Path, write: Callable[[Path], None], *, force: bool) -> None:
    """Let `write` create a file at a path where none is; with `force` it then replaces `path`.

    Raises: FileExistsError from `write`, which is to open its path exclusively.
    """
    if not force:
        write(path)
        return
    with growing(path) as part:
        write(part)


def writing(octets: bytes, mode: int) -> Callable[[Path], None]:
    """Return what creates a file of these octets and permissions, for `create`."""

    def write(path: Path) -> None:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(octets)

    return write
