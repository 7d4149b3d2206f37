"""How QUIC says that a connection or a stream ends, taken from a qlog's packets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moqt.asyncio.quic_errors import error_name
from moqt.codes import SessionErrorCode, StreamResetCode

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CATEGORY", "Ends"]

Event = dict[str, Any]

CATEGORY = "transport:"
"""Of the events that are looked at, and of those that are made of them."""

_SUFFIXES = {"transport:packet_sent": "created", "transport:packet_received": "parsed"}
_FRAMES = frozenset({"connection_close", "reset_stream", "stop_sending"})


class Ends:
    """Makes an event of each such frame. A frame that is repeated, because it may have been lost
    or was sent at more than one level of encryption, is one event."""

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()

    def of(self, event: Event) -> Iterator[Event]:
        """Yield the events of one packet. What a trace of other making leaves out is skipped."""
        suffix = _SUFFIXES.get(event["name"])
        data = event.get("data")
        frames = data.get("frames") if isinstance(data, dict) else None
        if suffix is None or not isinstance(frames, list):
            return
        for frame in frames:
            kind = frame.get("frame_type") if isinstance(frame, dict) else None
            if not isinstance(kind, str) or kind not in _FRAMES:
                continue
            key = (suffix, kind, str(frame.get("stream_id")), str(frame.get("error_code")))
            if key in self._seen:
                continue
            self._seen.add(key)
            name = f"{CATEGORY}{kind}_{suffix}"
            yield {"name": name, "time": event.get("time"), "data": _described(kind, frame)}


def _described(kind: str, frame: Event) -> Event:
    code = frame.get("error_code")
    if isinstance(code, bool) or not isinstance(code, int) or code < 0:
        code = None
    data: Event = {}
    if kind == "connection_close":
        is_ours = frame.get("error_space") == "application"
        if code is not None:
            data["error"] = _name(SessionErrorCode, code) if is_ours else error_name(code)
        data["reason"] = str(frame.get("reason", ""))
    else:
        data["stream_id"] = frame.get("stream_id")
        if code is not None:
            data["error"] = _name(StreamResetCode, code)
    data["error_code"] = code
    return {name: part for name, part in data.items() if part not in (None, "")}


def _name(registry: type[SessionErrorCode | StreamResetCode], code: int) -> str:
    try:
        return registry(code).name
    except ValueError:
        return f"0x{code:x}"
