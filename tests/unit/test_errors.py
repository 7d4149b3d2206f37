"""moqt.errors: what a peer writes cannot spoil a log."""

from __future__ import annotations

from moqt.codes import PublishDoneCode, RequestErrorCode, SessionErrorCode
from moqt.errors import MAX_PRINTED, RequestEnded, RequestRejected, SessionClosed, printable

NASTY = "no\n2026-01-01 root logged in\x1b[2J\u202etxt"


def test_control_characters_of_a_peer_are_escaped_in_messages() -> None:
    """15.9#1."""
    for error in (
        SessionClosed(SessionErrorCode.NO_ERROR, NASTY, by_peer=True),
        RequestRejected(RequestErrorCode.DOES_NOT_EXIST, NASTY),
        RequestEnded(PublishDoneCode.EXPIRED, NASTY),
    ):
        assert str(error).isprintable()
        assert r"no\n2026-01-01 root logged in\x1b[2J\u202etxt" in str(error)
        assert error.reason == NASTY


def test_plain_text_is_shown_as_it_is_and_long_text_cut() -> None:
    assert printable("größer als \\n") == "größer als \\n"
    assert printable("x" * 300) == "x" * MAX_PRINTED + "..."
