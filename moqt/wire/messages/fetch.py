"""FETCH and FETCH_OK (MOQT-22 9.11, 9.12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from moqt.wire.fields import (
    read_full_track_name,
    read_location,
    write_full_track_name,
    write_location,
)
from moqt.wire.messages.base import Message, MessageType
from moqt.wire.params import NO_PARAMETERS, Parameters, Scope, read_parameters, write_parameters
from moqt.wire.properties import NO_PROPERTIES, TrackProperties

if TYPE_CHECKING:
    from moqt.types import FullTrackName, Location
    from moqt.wire.cursor import Reader, Writer

__all__ = ["Fetch", "FetchOk"]


@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """Ask for Objects that exist; the range is LOCATION_FILTER (MOQT-22 9.11)."""

    TYPE = MessageType.FETCH

    request_id: int
    name: FullTrackName
    parameters: Parameters = NO_PARAMETERS

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            reader.vi64("Request ID"),
            read_full_track_name(reader),
            read_parameters(reader, Scope.FETCH),
        )

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.vi64(self.request_id)
        write_full_track_name(writer, self.name)
        write_parameters(writer, self.parameters, Scope.FETCH)


@dataclass(frozen=True, slots=True)
class FetchOk(Message):
    """Where a fetch ends, inclusive (MOQT-22 9.12).

    `end_of_track`: every Object of the track is published, and `end` is the last of them.
    """

    TYPE = MessageType.FETCH_OK

    end_of_track: bool
    end: Location
    properties: TrackProperties = NO_PROPERTIES

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        end_of_track = reader.uint8("End Of Track")
        if end_of_track > 1:
            raise reader.error(f"End Of Track is {end_of_track}, expected 0 or 1")
        end = read_location(reader, "End Location")
        read_parameters(reader, Scope.FETCH_OK)
        return cls(end_of_track == 1, end, TrackProperties.parse(reader.rest()))

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.uint8(self.end_of_track, "End Of Track")
        write_location(writer, self.end)
        write_parameters(writer, NO_PARAMETERS, Scope.FETCH_OK)
        writer.octets(self.properties.serialize())
