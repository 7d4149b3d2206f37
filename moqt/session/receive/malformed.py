"""What is raised inside the session for a malformed track (MOQT-22 12.1)."""

from __future__ import annotations

__all__ = ["MalformedTrack"]


class MalformedTrack(Exception):
    """The publisher broke the track's own rules."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
