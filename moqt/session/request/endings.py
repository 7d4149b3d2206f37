"""How an end is told: the reset code that fits PUBLISH_DONE, the length of a reason."""

from __future__ import annotations

from typing import Final

from moqt.codes import PublishDoneCode, StreamResetCode
from moqt.wire.fields import MAX_REASON_OCTETS

__all__ = ["MAX_REASON_CHARACTERS", "cut_reason", "reset_code_for"]

MAX_REASON_CHARACTERS: Final = MAX_REASON_OCTETS // 4
"""So much of a reason is sent: it fits, whatever the characters (MOQT-22 8.5)."""


def cut_reason(reason: str) -> str:
    """Return what is sent of a reason that comes from a policy, a track or a check."""
    return reason[:MAX_REASON_CHARACTERS]


def reset_code_for(code: PublishDoneCode) -> StreamResetCode:
    """Return the reset code that fits the end of a subscription."""
    match code:
        case PublishDoneCode.GOING_AWAY:
            return StreamResetCode.GOING_AWAY
        case PublishDoneCode.TOO_FAR_BEHIND:
            return StreamResetCode.TOO_FAR_BEHIND
        case PublishDoneCode.EXCESSIVE_LOAD:
            return StreamResetCode.EXCESSIVE_LOAD
        case PublishDoneCode.MALFORMED_TRACK:
            return StreamResetCode.MALFORMED_TRACK
        case PublishDoneCode.INTERNAL_ERROR:
            return StreamResetCode.INTERNAL_ERROR
        case _:
            return StreamResetCode.CANCELLED
