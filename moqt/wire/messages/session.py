"""The messages of the control stream: SETUP and GOAWAY (MOQT-22 9.1, 9.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from moqt.wire.messages.base import Message, MessageType
from moqt.wire.options import SetupOptions, read_options, write_options

if TYPE_CHECKING:
    from moqt.wire.cursor import Reader, Writer

__all__ = ["MAX_URI_OCTETS", "Goaway", "Setup", "read_uri", "write_uri"]

MAX_URI_OCTETS = 8192
"""The longest New Session URI (MOQT-22 9.2); used for Connect URI as well."""


def read_uri(reader: Reader, name: str) -> str:
    """Read a URI with its length; a longer one, or one that is not UTF-8, breaks the draft."""
    length = reader.vi64(f"{name} Length")
    if length > MAX_URI_OCTETS:
        raise reader.error(f"{name} has {length} octets, at most {MAX_URI_OCTETS}")
    try:
        return reader.octets(length, name).decode()
    except UnicodeDecodeError as error:
        raise reader.error(f"{name} is not UTF-8") from error


def write_uri(writer: Writer, uri: str, name: str) -> None:
    """Append a URI with its length; ValueError beyond 8192 octets."""
    octets = uri.encode()
    if len(octets) > MAX_URI_OCTETS:
        raise ValueError(f"{name} has {len(octets)} octets, at most {MAX_URI_OCTETS}")
    writer.prefixed(octets)


@dataclass(frozen=True, slots=True)
class Setup(Message):
    """First on each control stream; nobody waits for the peer's (MOQT-22 9.1)."""

    TYPE = MessageType.SETUP

    options: SetupOptions = field(default_factory=SetupOptions)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(read_options(reader))

    def write(self, writer: Writer) -> None:
        """Append the body."""
        write_options(writer, self.options)


@dataclass(frozen=True, slots=True)
class Goaway(Message):
    """Move the session, or on a request stream that request (MOQT-22 9.2).

    `timeout_ms` 0: no fixed time. An empty URI means the current one; a client sends no other.
    """

    TYPE = MessageType.GOAWAY

    new_session_uri: str = ""
    timeout_ms: int = 0

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body."""
        return cls(read_uri(reader, "New Session URI"), reader.vi64("Timeout"))

    def write(self, writer: Writer) -> None:
        """Append the body."""
        write_uri(writer, self.new_session_uri, "New Session URI")
        writer.vi64(self.timeout_ms)
