"""Test clients for moq-interop-runner: one test, run as a program, and its result read from TAP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interop.harness.cases import CaseFailed

if TYPE_CHECKING:
    from interop.harness.processes import PeerProcess

__all__ = ["failure"]

CLIENT_TIMEOUT_S = 30.0


async def failure(client: PeerProcess, test: str) -> str | None:
    """Return why `test`, the only one that `client` runs, failed; None: it passed.

    Raises: CaseFailed when it says neither.
    """
    lines = await client.output(timeout_s=CLIENT_TIMEOUT_S)
    if f"ok 1 - {test}" in lines:
        return None
    message = next((line for line in lines if line.strip().startswith("message:")), None)
    if f"not ok 1 - {test}" not in lines or message is None:
        raise CaseFailed(f"no TAP result of {test}; the last line: {lines[-1:]}")
    return message.partition(":")[2].strip().strip("\"'")
