"""Messages about namespaces and the tracks below them (MOQT-22 9.14 to 9.19)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from moqt.types import FullTrackName
from moqt.wire.fields import (
    read_full_track_name,
    read_namespace,
    write_full_track_name,
    write_namespace,
)
from moqt.wire.messages.base import Message, MessageType
from moqt.wire.params import NO_PARAMETERS, Parameters, Scope, read_parameters, write_parameters

if TYPE_CHECKING:
    from moqt.types import TrackNamespace
    from moqt.wire.cursor import Reader, Writer

__all__ = [
    "Namespace",
    "NamespaceDone",
    "PublishNamespace",
    "PublishSkipped",
    "SubscribeNamespace",
    "SubscribeTracks",
]


@dataclass(frozen=True, slots=True)
class PublishNamespace(Message):
    """Advertisement: the sender has tracks under `namespace` (MOQT-22 9.14)."""

    TYPE = MessageType.PUBLISH_NAMESPACE

    request_id: int
    namespace: TrackNamespace
    parameters: Parameters = NO_PARAMETERS

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            reader.vi64("Request ID"),
            read_namespace(reader),
            read_parameters(reader, Scope.PUBLISH_NAMESPACE),
        )

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.vi64(self.request_id)
        write_namespace(writer, self.namespace)
        write_parameters(writer, self.parameters, Scope.PUBLISH_NAMESPACE)


@dataclass(frozen=True, slots=True)
class SubscribeNamespace(Message):
    """Ask which namespaces there are below `prefix`, now and later (MOQT-22 9.15)."""

    TYPE = MessageType.SUBSCRIBE_NAMESPACE

    request_id: int
    prefix: TrackNamespace
    parameters: Parameters = NO_PARAMETERS

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            reader.vi64("Request ID"),
            read_namespace(reader),
            read_parameters(reader, Scope.SUBSCRIBE_NAMESPACE),
        )

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.vi64(self.request_id)
        write_namespace(writer, self.prefix)
        write_parameters(writer, self.parameters, Scope.SUBSCRIBE_NAMESPACE)


@dataclass(frozen=True, slots=True)
class Namespace(Message):
    """A namespace is there: the fields after the prefix, none for the prefix itself."""

    TYPE = MessageType.NAMESPACE

    suffix: TrackNamespace

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(read_namespace(reader, "Track Namespace Suffix"))

    def write(self, writer: Writer) -> None:
        """Append the body."""
        write_namespace(writer, self.suffix)


@dataclass(frozen=True, slots=True)
class NamespaceDone(Message):
    """A namespace that NAMESPACE had told of is gone (MOQT-22 9.17)."""

    TYPE = MessageType.NAMESPACE_DONE

    suffix: TrackNamespace

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(read_namespace(reader, "Track Namespace Suffix"))

    def write(self, writer: Writer) -> None:
        """Append the body."""
        write_namespace(writer, self.suffix)


@dataclass(frozen=True, slots=True)
class SubscribeTracks(Message):
    """Ask for a PUBLISH of each track below `prefix`, now and later (MOQT-22 9.18).

    Send FORWARD, GROUP_ORDER, INCLUDE_PROPERTIES, tokens and range filters only; all parameters of
    SUBSCRIBE are accepted, since the draft gives two lists.
    """

    TYPE = MessageType.SUBSCRIBE_TRACKS

    request_id: int
    prefix: TrackNamespace
    parameters: Parameters = NO_PARAMETERS

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            reader.vi64("Request ID"),
            read_namespace(reader),
            read_parameters(reader, Scope.SUBSCRIBE_TRACKS),
        )

    def write(self, writer: Writer) -> None:
        """Append the body."""
        writer.vi64(self.request_id)
        write_namespace(writer, self.prefix)
        write_parameters(writer, self.parameters, Scope.SUBSCRIBE_TRACKS)


@dataclass(frozen=True, slots=True)
class PublishSkipped(Message):
    """A track that SUBSCRIBE_TRACKS covers will not come as a PUBLISH (MOQT-22 9.19)."""

    TYPE = MessageType.PUBLISH_SKIPPED

    suffix: TrackNamespace
    name: bytes

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        track = read_full_track_name(reader)
        return cls(track.namespace, track.name)

    def write(self, writer: Writer) -> None:
        """Append the body."""
        write_full_track_name(writer, FullTrackName(self.suffix, self.name))
