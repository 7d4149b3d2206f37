"""SUBSCRIBE, SUBSCRIBE_OK and TRACK_STATUS (MOQT-22 9.6, 9.7, 9.13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from moqt.wire.fields import read_full_track_name, write_full_track_name
from moqt.wire.messages.base import Message, MessageType
from moqt.wire.params import NO_PARAMETERS, Parameters, Scope, read_parameters, write_parameters
from moqt.wire.properties import NO_PROPERTIES, TrackProperties

if TYPE_CHECKING:
    from moqt.types import FullTrackName
    from moqt.wire.cursor import Reader, Writer

__all__ = ["Subscribe", "SubscribeOk", "TrackStatus"]


@dataclass(frozen=True, slots=True)
class Subscribe(Message):
    """Ask for a track's Objects from now on (MOQT-22 9.6)."""

    TYPE = MessageType.SUBSCRIBE

    request_id: int
    name: FullTrackName
    parameters: Parameters = NO_PARAMETERS

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            reader.vi64("Request ID"),
            read_full_track_name(reader),
            read_parameters(reader, Scope.SUBSCRIBE),
        )

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.vi64(self.request_id)
        write_full_track_name(writer, self.name)
        write_parameters(writer, self.parameters, Scope.SUBSCRIBE)


@dataclass(frozen=True, slots=True)
class SubscribeOk(Message):
    """A subscription is Established; LARGEST_OBJECT once there is one (MOQT-22 9.7)."""

    TYPE = MessageType.SUBSCRIBE_OK

    track_alias: int
    parameters: Parameters = NO_PARAMETERS
    properties: TrackProperties = NO_PROPERTIES

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            reader.vi64("Track Alias"),
            read_parameters(reader, Scope.SUBSCRIBE_OK),
            TrackProperties.parse(reader.rest()),
        )

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.vi64(self.track_alias)
        write_parameters(writer, self.parameters, Scope.SUBSCRIBE_OK)
        writer.octets(self.properties.serialize())


@dataclass(frozen=True, slots=True)
class TrackStatus(Message):
    """Ask for what SUBSCRIBE_OK would say, without a subscription (MOQT-22 9.13)."""

    TYPE = MessageType.TRACK_STATUS

    request_id: int
    name: FullTrackName
    parameters: Parameters = NO_PARAMETERS

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            reader.vi64("Request ID"),
            read_full_track_name(reader),
            read_parameters(reader, Scope.TRACK_STATUS),
        )

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.vi64(self.request_id)
        write_full_track_name(writer, self.name)
        write_parameters(writer, self.parameters, Scope.TRACK_STATUS)
