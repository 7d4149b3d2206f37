"""Which reset code says on a data stream what PUBLISH_DONE says of its subscription."""

from __future__ import annotations

from moqt.codes import PublishDoneCode, StreamResetCode

__all__ = ["reset_code_for"]


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
