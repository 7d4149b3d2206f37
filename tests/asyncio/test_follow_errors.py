"""Which errors of an attempt are followed to the next session, and which are the caller's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

import moqt
from moqt import errors
from moqt.asyncio.following import FollowConfig, Place, Sessions, follow
from tests.session.receiving import NAME

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from moqt.asyncio.session import MoqtSession

MAX_RETRIES = 3


class Stage:
    """One session that gets a GOAWAY during the first attempt, and no session to go to."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(is_closed=False, goaway_received=None)
        self.config = FollowConfig(max_retries=MAX_RETRIES)
        self.attempts = 0

    async def usable(self, place: Place) -> Place:
        return place

    async def follow(self, error: Exception) -> None:
        async def attempt(session: MoqtSession, target: moqt.FullTrackName) -> None:
            self.attempts += 1
            self.session.goaway_received = object()
            raise error

        place = Place(
            moqt.MoqtUri.parse("moqt://here.example/"),
            cast("MoqtSession", self.session),
            cast("AsyncExitStack", None),
        )
        try:
            await follow(cast("Sessions", self), place, NAME, attempt, what="a request")
        finally:
            assert not place.visits


async def test_a_call_that_is_wrong_is_not_repeated() -> None:
    stage = Stage()
    with pytest.raises(errors.LocalProtocolError, match="a bad filter"):
        await stage.follow(errors.LocalProtocolError("a bad filter"))
    assert stage.attempts == 1


@pytest.mark.parametrize(
    "error",
    [
        errors.SessionLeaving("no new requests after GOAWAY"),
        errors.SessionClosed(moqt.SessionErrorCode.NO_ERROR, "", by_peer=True),
    ],
)
async def test_a_session_that_is_left_is_tried_again(error: Exception) -> None:
    stage = Stage()
    with pytest.raises(type(error)):
        await stage.follow(error)
    assert stage.attempts == 1 + MAX_RETRIES
