"""aiomoqt's own test client (moq-interop-runner's tests) against a server of ours.

The server accepts what is offered and serves a track. It is no relay: what one client offers
isn't passed on to another.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import moqt
from interop.harness.cases import Direction, NotApplicable, Registry
from interop.harness.ours import BINARY, serving, url_of, whole_track
from interop.harness.tap import failure
from moqt.events import PublicationOffered

if TYPE_CHECKING:
    from interop.harness.stage import Stage

CASES = Registry()

TESTS = {
    "setup-only": "SETUP, then a clean close",
    "announce-only": "PUBLISH_NAMESPACE",
    "publish-namespace-done": "PUBLISH_NAMESPACE, then taken back",
    "subscribe-error": "SUBSCRIBE of a track that there is not",
    "rendezvous-timeout": "SUBSCRIBE with RENDEZVOUS_TIMEOUT of a track that nobody publishes",
    "announce-subscribe": "SUBSCRIBE of a track that another client announced",
    "subscribe-before-announce": "the same, but subscribed to before",
    "data-subgroup-basic": "Objects of another client, in subgroups",
    "subscribe-namespace-lifecycle": "NAMESPACE and NAMESPACE_DONE of another client's",
    "namespace-discovery": "namespaces of other clients",
    "publish-track-only": "PUBLISH and its Objects",
    "publish-track-subscribe": "SUBSCRIBE of a track that another client offers by PUBLISH",
}


async def accept_all(server: moqt.Server) -> None:
    """Accept what all clients offer, and take its Objects."""
    async with asyncio.TaskGroup() as group:
        async for session in server:
            group.create_task(accept(session))


async def accept(session: moqt.MoqtSession) -> None:
    """Accept what one client offers until it leaves."""
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        async for offer in session.offers():
            if isinstance(offer, PublicationOffered):
                tasks.create_task(take(session.accept(offer)))
            else:
                session.accept_namespace(offer)


async def take(subscription: moqt.Subscription) -> None:
    """Take Objects until the client ends the track, or leaves."""
    try:
        async with subscription:
            async for _ in subscription:
                pass
    except moqt.errors.MoqtError:
        pass  # it left; the test client tells what matters


async def run(stage: Stage, test: str) -> None:
    """Run one test and read its TAP output."""
    async with serving(stage, whole_track(BINARY), takes_offers=True) as server:
        accepting = asyncio.create_task(accept_all(server))
        client = await stage.module(
            "aiomoqt.tools.moq_interop_client",
            *("-r", url_of(server.port), "-t", test, "--tls-disable-verify", "--draft", 22),
        )
        reason = await failure(client, test)
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
    if reason is not None:
        raise NotApplicable(reason)


def _add(test: str, title: str) -> None:
    async def case(stage: Stage) -> None:
        await run(stage, test)

    case.__doc__ = f"{title[0].upper()}{title[1:]}."
    CASES.case(f"test-client-{test}", Direction.CONTROL, "moq-interop-runner")(case)


for _test, _title in TESTS.items():
    _add(_test, _title)
