"""PUBLISH, PUBLISH_DONE and PUBLISH_STATE_NOTIFY (MOQT-22 9.8 to 9.10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from moqt.codes import PublishDoneCode
from moqt.wire.fields import (
    read_full_track_name,
    read_reason,
    write_full_track_name,
    write_reason,
)
from moqt.wire.messages.base import Message, MessageType
from moqt.wire.params import NO_PARAMETERS, Parameters, Scope, read_parameters, write_parameters
from moqt.wire.properties import NO_PROPERTIES, TrackProperties
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from moqt.types import FullTrackName
    from moqt.wire.cursor import Reader, Writer

__all__ = ["Publish", "PublishDone", "PublishStateNotify"]


@dataclass(frozen=True, slots=True)
class Publish(Message):
    """Offer of a subscription by the publisher (MOQT-22 9.8)."""

    TYPE = MessageType.PUBLISH

    request_id: int
    name: FullTrackName
    track_alias: int
    parameters: Parameters = NO_PARAMETERS
    properties: TrackProperties = NO_PROPERTIES

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            reader.vi64("Request ID"),
            read_full_track_name(reader),
            reader.vi64("Track Alias"),
            read_parameters(reader, Scope.PUBLISH),
            TrackProperties.parse(reader.rest()),
        )

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.vi64(self.request_id)
        write_full_track_name(writer, self.name)
        writer.vi64(self.track_alias)
        write_parameters(writer, self.parameters, Scope.PUBLISH)
        writer.octets(self.properties.serialize())


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishDone(Message):
    """The publisher's last word on a subscription (MOQT-22 9.9).

    `stream_count` counts all data streams opened for it, fills included; None: unknown.
    `raw_code` is the number received where the registry has no name for it.
    """

    TYPE = MessageType.PUBLISH_DONE

    code: PublishDoneCode
    stream_count: int | None
    reason: str = ""
    raw_code: int | None = None

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        number = reader.vi64("Status Code")
        count = reader.vi64("Stream Count")
        code = PublishDoneCode.from_wire(number)
        return cls(
            code=code,
            stream_count=None if count == MAX_VI64 else count,
            reason=read_reason(reader),
            raw_code=None if number == code else number,
        )

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.vi64(self.code if self.raw_code is None else self.raw_code)
        writer.vi64(MAX_VI64 if self.stream_count is None else self.stream_count)
        write_reason(writer, self.reason)


@dataclass(frozen=True, slots=True)
class PublishStateNotify(Message):
    """A subscription's state changed, and not by its subscriber (MOQT-22 9.10)."""

    TYPE = MessageType.PUBLISH_STATE_NOTIFY

    parameters: Parameters = NO_PARAMETERS

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(read_parameters(reader, Scope.PUBLISH_STATE_NOTIFY))

    def write(self, writer: Writer) -> None:
        """Append the body."""
        write_parameters(writer, self.parameters, Scope.PUBLISH_STATE_NOTIFY)
