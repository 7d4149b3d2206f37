"""qlog: aioquic's trace of a connection with MOQT's events in it, one file for each connection.

What a file never holds: payloads, values of authorization tokens, and what would let anyone reset
the connection. Events are kept in memory and written when the connection is over, so both kinds,
QUIC's and MOQT's, are bounded by `qlog_max_events`: the first half of them and the newest are kept,
and what was left out in between is said.

MOQT's events come from `moqt.asyncio.tap`.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from aioquic.quic.logger import QuicLogger, QuicLoggerTrace

if TYPE_CHECKING:
    from pathlib import Path

    from aioquic.quic.packet import QuicTransportParameters

__all__ = ["QlogDirectory", "Trace"]

logger = logging.getLogger(__name__)

SUFFIX = ".qlog"
VANTAGE_POINT = "kvcs-moqt"


class _Events:
    """Keeps the first half of `limit` events and the newest, in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit // 2
        self._first: list[dict[str, Any]] = []
        self._newest: deque[dict[str, Any]] = deque(maxlen=limit - self._limit)
        self._dropped = 0

    def add(self, event: dict[str, Any]) -> None:
        if len(self._first) < self._limit:
            self._first.append(event)
            return
        self._dropped += len(self._newest) == self._newest.maxlen
        self._newest.append(event)

    def all(self, kind: str) -> list[dict[str, Any]]:
        gap = []
        if self._dropped:
            message = f"{self._dropped} {kind} events left out here (qlog_max_events)"
            time_ms = self._newest[0]["time"]
            gap = [{"time": time_ms, "name": "loglevel:warning", "data": {"message": message}}]
        return [*self._first, *gap, *self._newest]


class Trace(QuicLoggerTrace):
    """The trace of one connection, of QUIC and MOQT together."""

    def __init__(self, directory: Path, *, is_client: bool, odcid: bytes, max_events: int) -> None:
        super().__init__(is_client=is_client, odcid=odcid)
        self._directory = directory
        self.is_client = is_client
        self._quic = _Events(max_events)
        self._moqt = _Events(max_events)
        self._vantage_point = {
            "name": VANTAGE_POINT,
            "type": "client" if is_client else "server",
        }

    @property
    def path(self) -> Path:
        """Its file. Both ends of a connection have the same ID, so the name says which it is."""
        return self._directory / f"{self._odcid.hex()}_{self._vantage_point['type']}{SUFFIX}"

    def write(self) -> None:
        """Write its file. One that cannot be written is warned of, and nothing else suffers."""
        content = {"qlog_format": "JSON", "qlog_version": "0.3", "traces": [self.to_dict()]}
        try:
            self.path.write_text(json.dumps(content), encoding="utf-8")
        except OSError as error:
            logger.warning("qlog %s is lost: %s", self.path, error)

    def log_event(self, *, category: str, event: str, data: dict[str, Any]) -> None:
        """Take an event of aioquic's, or of ours with category "moqt"."""
        events = self._moqt if category == "moqt" else self._quic
        time_ms = self.encode_time(time.time())
        events.add({"time": time_ms, "name": f"{category}:{event}", "data": data})

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as qlog has it, in order of time."""
        events = self._quic.all("QUIC") + self._moqt.all("MOQT")
        return {
            "common_fields": {"ODCID": self._odcid.hex(), "time_format": "absolute"},
            "events": sorted(events, key=lambda event: event["time"]),
            "vantage_point": self._vantage_point,
        }

    # What lets anyone end or take over the connection stays out.

    def encode_transport_parameters(
        self, owner: str, parameters: QuicTransportParameters
    ) -> dict[str, Any]:
        """Leave the stateless reset token out."""
        found = super().encode_transport_parameters(owner, parameters)
        found.pop("stateless_reset_token", None)
        return found

    def encode_new_connection_id_frame(
        self,
        connection_id: bytes,
        retire_prior_to: int,
        sequence_number: int,
        stateless_reset_token: bytes,
    ) -> dict[str, Any]:
        """Leave the stateless reset token out."""
        found = super().encode_new_connection_id_frame(
            connection_id, retire_prior_to, sequence_number, stateless_reset_token
        )
        del found["reset_token"]
        return found

    def encode_new_token_frame(self, token: bytes) -> dict[str, Any]:
        """Leave the address validation token out."""
        return {"frame_type": "new_token", "length": len(token)}


class QlogDirectory(QuicLogger):
    """Writes each trace to a file of its own when its connection is over.

    Raises: OSError when the directory is not there and cannot be made.
    """

    def __init__(self, directory: Path, *, max_events: int) -> None:
        super().__init__()
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._max_events = max_events

    def start_trace(self, is_client: bool, odcid: bytes) -> Trace:
        """Begin the trace of a connection."""
        return Trace(self._directory, is_client=is_client, odcid=odcid, max_events=self._max_events)

    def end_trace(self, trace: QuicLoggerTrace) -> None:
        """Write the trace."""
        assert isinstance(trace, Trace)  # start_trace made it
        trace.write()
