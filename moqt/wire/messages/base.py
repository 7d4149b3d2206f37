"""What all control messages have in common (MOQT-22 9)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from moqt.wire.cursor import Reader, Writer

__all__ = ["Message", "MessageType"]


class MessageType(IntEnum):
    """The control messages; any other type closes the session (MOQT-22 9)."""

    REQUEST_UPDATE = 0x02
    SUBSCRIBE = 0x03
    SUBSCRIBE_OK = 0x04
    REQUEST_ERROR = 0x05
    PUBLISH_NAMESPACE = 0x06
    REQUEST_OK = 0x07
    NAMESPACE = 0x08
    PUBLISH_DONE = 0x0B
    TRACK_STATUS = 0x0D
    NAMESPACE_DONE = 0x0E
    PUBLISH_SKIPPED = 0x0F
    GOAWAY = 0x10
    FETCH = 0x16
    FETCH_OK = 0x18
    PUBLISH = 0x1D
    PUBLISH_STATE_NOTIFY = 0x22
    SUBSCRIBE_NAMESPACE = 0x50
    SUBSCRIBE_TRACKS = 0x51
    SETUP = 0x2F00


class Message:
    """A control message: a frozen value, the same when sent and when received."""

    __slots__ = ()
    TYPE: ClassVar[MessageType]

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the body; RemoteProtocolError when it breaks the draft."""
        raise NotImplementedError

    def write(self, writer: Writer) -> None:
        """Append the body; ValueError when a value does not fit."""
        raise NotImplementedError
