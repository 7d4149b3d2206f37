"""What some peers need beyond the draft; interop/ shows them with the real ones."""

from __future__ import annotations

import pytest

from moqt.session.config import SessionConfig
from moqt.session.quirks import MOQ_RS, closes_for_binary_names
from moqt.wire.messages import PublishDone, SubscribeOk
from moqt.wire.options import SetupOptions
from tests.session.sending import Sending


def subscribed_to_an_ended_track(implementation: str) -> tuple[Sending, int]:
    sending = Sending(SessionConfig(ended_linger_s=7.0))
    sending.context.clock = lambda: sending.now
    sending.context.peer_options = SetupOptions(implementation=implementation)
    sending.track().end()
    return sending, sending.subscribe()


def test_publish_done_waits_for_a_peer_that_fetches_only_beside_a_subscription() -> None:
    sending, stream = subscribed_to_an_ended_track("moq-lite-rs")
    assert [type(reply) for reply in sending.replies(stream)] == [SubscribeOk]
    sending.advance(6.9)
    assert len(sending.replies(stream)) == 1
    sending.advance(0.2)
    assert isinstance(sending.replies(stream)[-1], PublishDone)
    assert sending.ended(stream)


def test_publish_done_comes_at_once_for_all_others() -> None:
    sending, stream = subscribed_to_an_ended_track("other/1.0")
    assert [type(reply) for reply in sending.replies(stream)] == [SubscribeOk, PublishDone]


def test_whoever_cancels_meanwhile_leaves_no_timer() -> None:
    sending, stream = subscribed_to_an_ended_track("moq-lite-rs")
    sending.cancel(stream)
    assert sending.context.timers.next_deadline is None


def test_publish_done_waits_where_the_subscription_sees_the_track_end() -> None:
    sending = Sending(SessionConfig(ended_linger_s=7.0))
    sending.context.clock = lambda: sending.now
    sending.context.peer_options = SetupOptions(implementation="moq-lite-rs")
    track = sending.track()
    stream = sending.subscribe()
    track.end()
    sending.flush()
    assert len(sending.replies(stream)) == 1
    sending.advance(7.1)
    assert isinstance(sending.replies(stream)[-1], PublishDone)


@pytest.mark.parametrize("implementation", [MOQ_RS, "moq-rs/0.5", "moq-native"])
def test_who_closes_for_a_namespace_that_is_no_text(implementation: str) -> None:
    assert closes_for_binary_names(implementation)
    assert not closes_for_binary_names(f"other {implementation}")
    assert not closes_for_binary_names(None)
