"""moqt-interop-client, this project's test client for moq-interop-runner, against a relay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interop.harness.cases import Direction, PeerLimit, Registry
from interop.harness.ours import url_of
from interop.harness.tap import failure
from kvcs.interop_client.main import CASES as TESTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from interop.harness.stage import Stage

__all__ = ["cases"]


def cases(relay: Callable[[Stage], Awaitable[int]]) -> Registry:
    """Return a case for each of its tests, against what `relay` starts and returns the port of."""
    registry = Registry()
    for test in TESTS:
        _add(registry, test.name, relay)
    return registry


def _add(registry: Registry, test: str, relay: Callable[[Stage], Awaitable[int]]) -> None:
    async def run(stage: Stage) -> None:
        port = await relay(stage)
        client = await stage.ours(
            "kvcs.interop_client", *("-r", url_of(port), "-t", test, "--tls-disable-verify")
        )
        reason = await failure(client, test)
        if reason is not None:
            raise PeerLimit(reason)

    run.__doc__ = f"moqt-interop-client {test}."
    registry.case(f"our-client-{test}", Direction.THROUGH_PEER, "moq-interop-runner")(run)
