"""What commands that connect share: addresses, trust, and running until done or interrupted."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

from kvcs.cli.exits import CommandError, ExitCode
from kvcs.errors import InvalidKey
from kvcs.keys import ProducerKey, PublicKey, TrustedKeys
from moqt.asyncio.config import TransportConfig
from moqt.tls import load_trust
from moqt.uri import MoqtUri

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

__all__ = ["need_authority", "need_signing_key", "need_trusted", "need_url", "run", "tracing"]


def need_url(text: str) -> MoqtUri:
    """Return a moqt:// address; CommandError says what is wrong with it."""
    try:
        return MoqtUri.parse(text)
    except ValueError as error:
        raise CommandError(
            ExitCode.USAGE, f"URL: {error}", hint="for example moqt://127.0.0.1:4443/"
        ) from error


def tracing(directory: Path | None) -> TransportConfig:
    """Return the limits of connections that leave a qlog in `directory`; None: they leave none."""
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(ExitCode.USAGE, f"--qlog: {error}") from error
    return TransportConfig(qlog_dir=directory)


def need_authority(path: Path | None) -> bytes | None:
    """Return the PEM of the certificates to trust, None when none is named."""
    if path is None:
        return None
    try:
        return load_trust(path)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--ca: {error}") from error


def need_trusted(paths: Sequence[Path] | None) -> TrustedKeys | None:
    """Return the producers' keys to trust, None when none is named."""
    if not paths:
        return None
    return TrustedKeys(map(_public_key, paths))


def _public_key(path: Path) -> PublicKey:
    try:
        return PublicKey.load(path)
    except InvalidKey as error:
        raise CommandError(ExitCode.USAGE, f"--trust: {path}: {error}", hint=_hint(path)) from error


def _hint(path: Path) -> str:
    public = path.with_suffix(".pub")
    if public != path and public.is_file():
        return f"use {public}"
    return "`kvcs keygen producer` writes one, with the ending .pub"


def need_signing_key(path: Path | None) -> ProducerKey | None:
    """Return the key to sign manifests with, None when none is named."""
    if path is None:
        return None
    try:
        return ProducerKey.load(path)
    except InvalidKey as error:
        raise CommandError(
            ExitCode.USAGE, f"--sign: {path}: {error}", hint="`kvcs keygen producer` makes one"
        ) from error


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _until_terminated(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; SIGTERM cancels it, so that it says goodbye to its peers."""
    task = asyncio.ensure_future(work)
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        task.cancel()

    try:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    except NotImplementedError:
        pass  # this platform ends the process on SIGTERM by itself
    try:
        await task
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise CommandError(ExitCode.TERMINATED, "terminated") from None


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a command's coroutine, on uvloop where it is installed. Ctrl-C and SIGTERM cancel it."""
    with asyncio.Runner(loop_factory=_new_loop()) as runner:
        runner.run(_until_terminated(work))
