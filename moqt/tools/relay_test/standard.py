"""The public runner's own tests: sessions, namespaces, and whether subscriptions are routed."""

from __future__ import annotations

import asyncio

import moqt
from moqt import errors
from moqt.tools.relay_test.case import CaseFailed, Stage

__all__ = [
    "announce_only",
    "announce_subscribe",
    "publish_namespace_done",
    "setup_only",
    "subscribe_before_announce",
    "subscribe_error",
]

NAMESPACE = moqt.TrackNamespace.of("moq-test", "interop")
TRACK = moqt.FullTrackName(NAMESPACE, b"test-track")
MISSING = moqt.FullTrackName(moqt.TrackNamespace.of("nonexistent", "namespace"), b"test-track")

PUBLISHER_DELAY_S = 0.5
"""How much later the publisher of `subscribe-before-announce` comes."""

SETTLE_S = 0.1
"""How long a withdrawn namespace is given to break the session, if it does."""

OK_TO_NAMESPACE = "REQUEST_OK to PUBLISH_NAMESPACE"


async def setup_only(stage: Stage) -> None:
    """Both SETUPs, then a clean close."""
    async with stage.connect() as session:
        assert session.peer_options is not None


async def announce_only(stage: Stage) -> None:
    """PUBLISH_NAMESPACE is accepted."""
    async with stage.connect() as session:
        stage.expect(OK_TO_NAMESPACE, "the relay takes no PUBLISH_NAMESPACE")
        async with session.publish_namespace(NAMESPACE):
            stage.note("namespace accepted")


async def publish_namespace_done(stage: Stage) -> None:
    """A namespace is withdrawn by cancelling its request stream, and the session goes on."""
    async with stage.connect() as session:
        stage.expect(OK_TO_NAMESPACE, "the relay takes no PUBLISH_NAMESPACE")
        async with session.publish_namespace(NAMESPACE):
            stage.note("namespace accepted, cancelling its request stream")
        stage.expect("a session that goes on", "the withdrawal broke the session")
        try:
            async with asyncio.timeout(SETTLE_S):
                await session.wait_closed()
        except TimeoutError:
            stage.note("the session goes on")


async def subscribe_error(stage: Stage) -> None:
    """A track that nobody has is refused."""
    async with stage.connect() as session:
        stage.expect("REQUEST_ERROR", "the relay does not refuse a track that nobody has")
        try:
            async with session.subscribe(MISSING):
                raise CaseFailed(
                    expected="REQUEST_ERROR",
                    received="SUBSCRIBE_OK",
                    message="the relay accepted a track that nobody has",
                )
        except errors.RequestRejected as error:
            stage.note(f"refused: {error}")
            stage.facts["request_error"] = f"{error.code.name} (0x{int(error.code):x})"


async def announce_subscribe(stage: Stage) -> None:
    """The relay routes a SUBSCRIBE to the publisher of the namespace."""
    directory = moqt.TrackDirectory()
    directory.add(moqt.TrackSource(TRACK))
    async with (
        stage.connect("publisher", directory) as publisher,
        stage.connect("subscriber") as subscriber,
    ):
        stage.expect(OK_TO_NAMESPACE, "the relay takes no PUBLISH_NAMESPACE")
        async with publisher.publish_namespace(NAMESPACE):
            stage.expect("SUBSCRIBE_OK", "the relay does not route SUBSCRIBE to the publisher")
            async with subscriber.subscribe(TRACK):
                stage.note("subscribed")


async def subscribe_before_announce(stage: Stage) -> None:
    """A SUBSCRIBE ahead of its publisher waits for it, or is refused; either will do."""
    directory = moqt.TrackDirectory()
    directory.add(moqt.TrackSource(TRACK))
    async with stage.connect("subscriber") as subscriber:
        answer = asyncio.create_task(_answer(subscriber), name="subscribe")
        try:
            await asyncio.sleep(PUBLISHER_DELAY_S)
            async with stage.connect("publisher", directory) as publisher:
                stage.expect(OK_TO_NAMESPACE, "the relay takes no PUBLISH_NAMESPACE")
                async with publisher.publish_namespace(NAMESPACE):
                    stage.expect(
                        "SUBSCRIBE_OK or REQUEST_ERROR",
                        "the relay leaves a SUBSCRIBE that came first without an answer",
                    )
                    stage.note(f"SUBSCRIBE was answered by {await answer}")
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)


async def _answer(session: moqt.MoqtSession) -> str:
    try:
        async with session.subscribe(TRACK):
            return "SUBSCRIBE_OK"
    except errors.RequestRejected as error:
        return f"REQUEST_ERROR {error.code.name}"
