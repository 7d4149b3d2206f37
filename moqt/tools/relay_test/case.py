"""What a test is, what it may use, and how it fails."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import moqt
from moqt import errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

__all__ = ["Case", "CaseFailed", "Stage", "Target", "describe"]

CLIENT = "client"
"""The role of the only connection of a test; its ID is reported without a role."""


class CaseFailed(Exception):
    """The relay did something else than the test wants."""

    def __init__(self, *, expected: str, received: str, message: str = "") -> None:
        super().__init__(message or f"expected {expected}, received {received}")
        self.expected = expected
        self.received = received
        self.message = message


@dataclass(frozen=True, slots=True)
class Target:
    """The relay under test. `tls_disable_verify`: trust whatever certificate it shows.

    `ca`: the certificates to trust, PEM; None: the public ones. `tokens` authorize every session
    and request.
    """

    url: str
    tls_disable_verify: bool = False
    qlog_dir: Path | None = None
    ca: bytes | None = None
    tokens: tuple[moqt.AuthToken, ...] = ()


@dataclass(slots=True)
class Stage:
    """What one run of a test uses, and what it leaves for the diagnostics.

    `expected` is what the test waits for now, `meaning` what it would mean if that did not come;
    `progress` says what came so far.
    """

    target: Target
    expected: str = "SETUP"
    meaning: str = ""
    progress: Callable[[], str] | None = None
    connection_ids: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """Further diagnostics, shown whether the test passes or not."""
    connecting: moqt.ConnectProgress | None = None
    """Of the connection that is being made."""
    was_connected: bool = False
    started_at: float = field(default_factory=time.monotonic)

    def expect(
        self, expected: str, meaning: str = "", progress: Callable[[], str] | None = None
    ) -> None:
        """Say what the next step waits for."""
        self.expected, self.meaning, self.progress = expected, meaning, progress
        self.note(f"waiting for {expected}")

    def failed(self, received: str) -> CaseFailed:
        """Return the failure that came of what the test waits for now."""
        if self.connecting is not None:
            how_far = "done, no SETUP" if self.connecting.is_quic_ready else "not done"
            received = f"{received} (QUIC handshake {how_far})"
        if self.progress is not None:
            received = f"{received} ({self.progress()})"
        return CaseFailed(expected=self.expected, received=received, message=self.meaning)

    def note(self, text: str) -> None:
        """Leave a comment, shown with --verbose."""
        self.notes.append(f"{(time.monotonic() - self.started_at) * 1000:.0f} ms: {text}")

    @asynccontextmanager
    async def connect(
        self, role: str = CLIENT, directory: moqt.TrackDirectory | None = None
    ) -> AsyncIterator[moqt.MoqtSession]:
        """Connect in a role; a session that the relay ends before the test does is a failure.

        Raises: what `moqt.connect` raises; CaseFailed when the session was lost meanwhile.
        """
        self.expect("SETUP", f"no session for the {role}")
        self.connecting = progress = moqt.ConnectProgress()
        try:
            async with moqt.connect(
                self.target.url,
                ca=self.target.ca,
                insecure=self.target.tls_disable_verify,
                directory=directory,
                transport_config=self.transport_config(),
                tokens=self.target.tokens,
                request_tokens=self.target.tokens,
                progress=progress,
            ) as session:
                self.connecting = None
                self.connected(role, session)
                yield session
                if session.end is not None:
                    raise CaseFailed(
                        expected=f"a session of the {role} that lasts until the test closes it",
                        received=f"end by the relay: {session.end.code.name} {session.end.reason}",
                    )
        finally:  # whatever came of it: traces are found by the ID
            if progress.connection_id is not None:
                self.connection_ids[role] = progress.connection_id.hex()
        self.note(f"{role} closed")

    def connected(self, role: str, session: moqt.MoqtSession) -> None:
        """Take note of a connection and of who answered."""
        self.was_connected = True
        connection_id = session.connection_info.connection_id.hex()
        self.connection_ids[role] = connection_id
        options = session.peer_options
        implementation = None if options is None else options.implementation
        self.note(f"{role} connected as {connection_id}, relay is {implementation or 'unnamed'}")

    def transport_config(self) -> moqt.TransportConfig:
        """Return the limits of a connection of this test."""
        return moqt.TransportConfig(qlog_dir=self.target.qlog_dir)


@dataclass(frozen=True, slots=True)
class Case:
    """One test: its name in the runner, its time limit, what it does.

    `run` raises CaseFailed or any MoqtError when the relay fails it.
    """

    name: str
    timeout_s: float
    run: Callable[[Stage], Awaitable[None]]


def describe(error: errors.MoqtError) -> str:
    """Return what the relay did, in the protocol's words."""
    match error:
        case errors.RequestRejected():
            text = f"REQUEST_ERROR {error.code.name} (0x{int(error.code):x})"
            return f"{text}: {error.reason}" if error.reason else text
        case errors.RequestEnded():
            text = f"PUBLISH_DONE {error.code.name}"
            return f"{text}: {error.reason}" if error.reason else text
        case errors.StreamReset():
            return f"RESET_STREAM or STOP_SENDING 0x{error.raw_code:x} ({error.code.name})"
        case _:
            return str(error)
