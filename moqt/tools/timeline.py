"""The MOQT events of a qlog as lines to read: when, which way, on which stream, what.

With them, how QUIC ended streams and the connection.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from moqt.errors import MoqtError, printable
from moqt.tools.quic_ends import CATEGORY, Ends

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NotQlog", "escaped", "read_events", "timeline"]

MAX_TIME_MS = 1e15
"""Thirty thousand years: what is beyond is no time."""

MAX_DEPTH = 8
"""How deep fields are shown; MOQT's own are not nested half as deep."""

_SENT, _RECEIVED = "->", "<-"
_OPENERS = frozenset(
    {
        "subscribe",
        "fetch",
        "track_status",
        "publish",
        "publish_namespace",
        "subscribe_namespace",
        "subscribe_tracks",
    }
)
_SHOWN_ELSEWHERE = frozenset({"stream_id", "type", "name", "request_id"})


class NotQlog(MoqtError):
    """The file is no qlog that this tool can read."""


Event = dict[str, Any]


def read_events(content: bytes) -> list[Event]:
    """Return the MOQT events of all traces of a qlog, in their order, and what was left out.

    Between them are the ends of streams and connections, in events of our own making:
    `transport:connection_close_...`, `reset_stream_...`, `stop_sending_...`.

    Raises: NotQlog, which says what was expected where.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise NotQlog(f"not a qlog, which is one JSON document: {error}") from error
    traces = document.get("traces") if isinstance(document, dict) else None
    if not isinstance(traces, list):
        raise NotQlog("not a qlog: expected an object with a list 'traces'")
    found: list[Event] = []
    for number, trace in enumerate(traces):
        events = trace.get("events") if isinstance(trace, dict) else None
        if not isinstance(events, list):
            raise NotQlog(f"traces[{number}]: expected an object with a list 'events'")
        ends = Ends()
        for position, event in enumerate(events):
            where = f"traces[{number}].events[{position}]"
            if not isinstance(event, dict) or not isinstance(event.get("name"), str):
                raise NotQlog(f"{where}: expected an object with a text 'name'")
            if event["name"].startswith(CATEGORY):
                taken = list(ends.of(event))
            elif event["name"].startswith(("moqt:", "loglevel:")):
                taken = [event]
            else:
                continue
            if not taken:
                continue
            time_ms = event.get("time")
            if not isinstance(time_ms, int | float) or not -MAX_TIME_MS < time_ms < MAX_TIME_MS:
                raise NotQlog(f"{where}: expected a time in milliseconds as 'time'")
            if not isinstance(event.get("data"), dict):
                raise NotQlog(f"{where}: expected an object 'data'")
            found += taken
    return found


def timeline(events: list[Event]) -> Iterator[str]:
    """Yield a line for each event; streams and tracks have the names that requests gave them."""
    if not any(event["name"].startswith("moqt:") for event in events):
        is_closed = any("connection_close" in event["name"] for event in events)
        why = "QUIC ended before MOQT began" if is_closed else "there may have been no answer"
        yield f"no MOQT events: {why}"
    if not events:
        return
    names = _Names()
    start = events[0]["time"]
    for event in events:
        line = _line(event, names)
        if line is not None:
            yield f"{event['time'] - start:10.1f} ms {line}"


class _Names:
    """What streams stand for, as far as the trace has said so."""

    def __init__(self) -> None:
        # by the texts of their numbers: a trace may hold anything
        self._streams: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        self._aliases: dict[tuple[str, str], str] = {}

    def learn(self, arrow: str, stream: str, kind: str, message: Event) -> None:
        """Take note of a request, and of the Track Alias that a publisher gave."""
        if kind in _OPENERS:
            request = str(message.get("request_id"))
            self._streams[stream] = self._requests[request] = f"{kind.upper()} {request}"
        elif kind == "request_update" and stream in self._streams:  # it may ask for a fill
            self._requests[str(message.get("request_id"))] = self._streams[stream]
        alias = str(message.get("track_alias"))
        if "track_alias" in message:
            self._aliases[arrow, alias] = self._streams.get(stream, f"alias {alias}")

    def name_subgroup(self, arrow: str, stream: str, data: Event) -> None:
        """Name a subgroup stream by its request."""
        alias = str(data.get("track_alias"))
        request = self._aliases.get((arrow, alias), f"alias {alias}")
        self._streams[stream] = f"Group {data.get('group_id')}, {request}"

    def name_fetch(self, stream: str, data: Event) -> None:
        """Name a fetch stream by its request."""
        request = str(data.get("request_id"))
        name = self._requests.get(request, f"request {request}")
        kind = "fill" if name.startswith("SUBSCRIBE") else "Objects"
        self._streams[stream] = f"{kind}, {name}"

    def name_other(self, stream: str, data: Event) -> None:
        """Name a control stream, or padding."""
        self._streams[stream] = str(data.get("stream_type"))

    def stream(self, stream: str) -> str:
        """Return what a stream is called."""
        name = self._streams.get(stream)
        return f"stream {stream}" if name is None else f"stream {stream} ({name})"


def _target(message: Event) -> str:
    for field in ("name", "namespace", "prefix"):
        value = message.get(field)
        if isinstance(value, dict):
            return str(value.get("full_track_name", "?"))
        if value is not None:
            return str(value) or "(all)"
    return "?"


def _line(event: Event, names: _Names) -> str | None:
    name, data = event["name"], event["data"]
    if name.startswith("loglevel:"):
        return f"   {printable(str(data.get('message', '')))}"
    name = name.removeprefix("moqt:").removeprefix(CATEGORY)
    arrow = _SENT if name.endswith("_created") else _RECEIVED
    what = name.removesuffix("_created").removesuffix("_parsed")
    stream = str(data.get("stream_id"))
    rest = {key: value for key, value in data.items() if key != "stream_id"}
    match what:
        case "stream_type_set":
            if data.get("stream_type") in ("control", "padding"):
                names.name_other(stream, data)
            return None
        case "control_message":
            message = data.get("message")
            message = message if isinstance(message, dict) else {}
            kind = str(data.get("message_type", message.get("type", "?")))
            names.learn(arrow, stream, kind, message)
            what, rest = kind.upper(), message
            if kind in _OPENERS:
                what = f"{what} {_target(message)}"
        case "subgroup_header":
            names.name_subgroup(arrow, stream, data)
        case "fetch_header":
            names.name_fetch(stream, data)
            where = names.stream(stream)
            return escaped(f"{arrow} {where}: {what} request_id={_value(data.get('request_id'))}")
        case "connection_close":
            error = rest.pop("error", "without a code")
            return escaped(f"{arrow} connection: {what.upper()} {_value(error)}{_fields(rest)}")
        case "reset_stream" | "stop_sending":
            what = f"{what.upper()} {_value(rest.pop('error', 'without a code'))}"
        case "malformed":
            arrow = "!!"
    where = names.stream(stream) if "stream_id" in data else "datagram"
    return escaped(f"{arrow} {where}: {what}{_fields(rest)}")


def escaped(text: str) -> str:
    """Return a peer's text for a terminal: control characters escaped, and nothing cut."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def _fields(data: Event) -> str:
    shown = [f"{key}={_value(value)}" for key, value in data.items() if key not in _SHOWN_ELSEWHERE]
    return f" {' '.join(shown)}" if shown else ""


def _value(value: Any, depth: int = 0) -> str:
    if depth == MAX_DEPTH and isinstance(value, dict | list):
        return "..."
    if isinstance(value, dict):
        if value.keys() == {"group", "object"}:
            return f"{{{value['group']},{value['object']}}}"
        parts = [f"{key}={_value(part, depth + 1)}" for key, part in value.items()]
        return f"({', '.join(parts)})"
    if isinstance(value, list):
        return f"[{', '.join(_value(part, depth + 1) for part in value)}]"
    return str(value)
