"""Answers and updates that all kinds of request share (MOQT-22 9.3 to 9.5).

What may be in them depends on the request; `moqt.wire.rules` says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from moqt.codes import RequestErrorCode
from moqt.wire.fields import (
    read_full_track_name,
    read_reason,
    write_full_track_name,
    write_reason,
)
from moqt.wire.messages.base import Message, MessageType
from moqt.wire.messages.session import read_uri, write_uri
from moqt.wire.params import NO_PARAMETERS, Parameters, Scope, read_parameters, write_parameters
from moqt.wire.properties import NO_PROPERTIES, TrackProperties

if TYPE_CHECKING:
    from moqt.types import FullTrackName
    from moqt.wire.cursor import Reader, Writer

__all__ = ["Redirect", "RequestError", "RequestOk", "RequestUpdate"]


@dataclass(frozen=True, slots=True)
class RequestOk(Message):
    """Success; also called PUBLISH_OK, REQUEST_UPDATE_OK, ... by its request (MOQT-22 9.3)."""

    TYPE = MessageType.REQUEST_OK

    parameters: Parameters = NO_PARAMETERS
    properties: TrackProperties = NO_PROPERTIES

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(read_parameters(reader, Scope.REQUEST_OK), TrackProperties.parse(reader.rest()))

    def write(self, writer: Writer) -> None:
        """Append the body."""
        write_parameters(writer, self.parameters, Scope.REQUEST_OK)
        writer.octets(self.properties.serialize())


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where the request should go instead. An empty URI: this session's (MOQT-22 9.4)."""

    connect_uri: str
    target: FullTrackName


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestError(Message):
    """Refusal of a request, or failure of an update (MOQT-22 9.4).

    `retry_interval_ms`: the least time before the same request is sent again; None: do not.
    `redirect` is set for REDIRECT and for no other code. `raw_code` is the number received where
    the registry has no name for it (`code` is then INTERNAL_ERROR).
    """

    TYPE = MessageType.REQUEST_ERROR

    code: RequestErrorCode
    reason: str = ""
    retry_interval_ms: int | None = None
    redirect: Redirect | None = None
    raw_code: int | None = None

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        number = reader.vi64("Error Code")
        code = RequestErrorCode.from_wire(number)
        interval = reader.vi64("Retry Interval")
        reason = read_reason(reader)
        redirect = None
        if code is RequestErrorCode.REDIRECT:
            uri = read_uri(reader, "Connect URI")
            redirect = Redirect(uri, read_full_track_name(reader))
        return cls(
            code=code,
            reason=reason,
            retry_interval_ms=interval - 1 if interval else None,
            redirect=redirect,
            raw_code=None if number == code else number,
        )

    def write(self, writer: Writer) -> None:
        """Append the body."""
        if (self.redirect is not None) != (self.code is RequestErrorCode.REDIRECT):
            raise ValueError(f"redirect does not fit code {self.code.name} (MOQT-22 9.4)")
        writer.vi64(self.code if self.raw_code is None else self.raw_code)
        writer.vi64(0 if self.retry_interval_ms is None else self.retry_interval_ms + 1)
        write_reason(writer, self.reason)
        if self.redirect is not None:
            write_uri(writer, self.redirect.connect_uri, "Connect URI")
            write_full_track_name(writer, self.redirect.target)


@dataclass(frozen=True, slots=True)
class RequestUpdate(Message):
    """Change of a request, on its stream; what is absent keeps its value (MOQT-22 9.5)."""

    TYPE = MessageType.REQUEST_UPDATE

    request_id: int
    parameters: Parameters = NO_PARAMETERS

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(reader.vi64("Request ID"), read_parameters(reader, Scope.REQUEST_UPDATE))

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.vi64(self.request_id)
        write_parameters(writer, self.parameters, Scope.REQUEST_UPDATE)
