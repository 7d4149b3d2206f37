"""Bounded reading and writing of wire values.

`Reader` reads a unit that is whole (a message body, a parameter, a datagram): running out of octets
is the peer's error. `OpenReader` reads the beginning of a stream: running out raises `NeedMore`,
which never leaves `moqt.wire`.
"""

from __future__ import annotations

from typing import Final, NoReturn

from moqt.codes import SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.wire import vi64

__all__ = ["NeedMore", "OpenReader", "Reader", "Writer", "malformed"]


class NeedMore(Exception):
    """The octets so far are fine but do not yet make a whole value."""


def malformed(reason: str) -> RemoteProtocolError:
    """Return the error that closes the session with PROTOCOL_VIOLATION."""
    return RemoteProtocolError(SessionErrorCode.PROTOCOL_VIOLATION, reason)


class Reader:
    """Reads values from octets that are whole.

    `what` names the unit in errors. `code` is what the session is closed with when the octets end
    too early or too late. The octets are copied when read as `octets`, so nothing keeps `data`.
    """

    __slots__ = ("_at", "_code", "_data", "_end", "_what")

    def __init__(
        self,
        data: memoryview | bytes | bytearray,
        what: str,
        code: SessionErrorCode = SessionErrorCode.PROTOCOL_VIOLATION,
    ) -> None:
        self._data: Final = data
        self._at = 0
        self._end: Final = len(data)
        self._what: Final = what
        self._code: Final = code

    @property
    def position(self) -> int:
        """How many octets have been read."""
        return self._at

    @property
    def remaining(self) -> int:
        """How many octets are left."""
        return self._end - self._at

    @property
    def what(self) -> str:
        """What is being read, for errors."""
        return self._what

    def error(self, reason: str) -> RemoteProtocolError:
        """Return the error that `reason` is wrong with this unit."""
        return RemoteProtocolError(self._code, f"{self._what}: {reason}")

    def _ran_out(self, wanted: str) -> NoReturn:
        raise self.error(f"ends inside {wanted} (octet {self._at} of {self._end})")

    def vi64(self, field: str) -> int:
        """Read a variable-length integer."""
        found = vi64.decode(self._data, self._at)
        if found is None:
            self._ran_out(field)
        value, self._at = found
        return value

    def peek_vi64(self, field: str) -> int:
        """Return the next variable-length integer and leave it unread."""
        at = self._at
        value = self.vi64(field)
        self._at = at
        return value

    def uint8(self, field: str) -> int:
        """Read one octet."""
        if self._at >= self._end:
            self._ran_out(field)
        value = self._data[self._at]
        self._at += 1
        return value

    def uint16(self, field: str) -> int:
        """Read two octets, big-endian."""
        return self.uint8(field) << 8 | self.uint8(field)

    def octets(self, length: int, field: str) -> bytes:
        """Read `length` octets, as a copy."""
        end = self._at + length
        if end > self._end:
            self._ran_out(field)
        value = bytes(self._data[self._at : end])
        self._at = end
        return value

    def prefixed(self, field: str) -> bytes:
        """Read a length, then that many octets, as a copy."""
        return self.octets(self.vi64(f"{field} Length"), field)

    def rest(self) -> bytes:
        """Read what is left, as a copy."""
        return self.octets(self.remaining, "the rest")

    def expect_end(self) -> None:
        """Raise RemoteProtocolError when octets are left."""
        if self._at != self._end:
            raise self.error(f"{self.remaining} octets too many")


class OpenReader(Reader):
    """Reads the beginning of a stream: raises `NeedMore` where the octets end."""

    __slots__ = ()

    def rewind(self) -> None:
        """Go back to the first octet."""
        self._at = 0

    def _ran_out(self, wanted: str) -> NoReturn:
        raise NeedMore(wanted)


class Writer:
    """Collects octets. Every method raises ValueError for a value that does not fit."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = bytearray()

    def vi64(self, value: int) -> None:
        """Append a variable-length integer in its shortest form."""
        self._out += vi64.encode(value)

    def uint8(self, value: int, field: str) -> None:
        """Append one octet."""
        if not 0 <= value <= 0xFF:
            raise ValueError(f"{field} is {value}, expected 0 to 255")
        self._out.append(value)

    def uint16(self, value: int, field: str) -> None:
        """Append two octets, big-endian."""
        if not 0 <= value <= 0xFFFF:
            raise ValueError(f"{field} is {value}, expected 0 to 65535")
        self._out += value.to_bytes(2, "big")

    def octets(self, value: bytes) -> None:
        """Append octets as they are."""
        self._out += value

    def prefixed(self, value: bytes) -> None:
        """Append the length of `value`, then its octets."""
        self.vi64(len(value))
        self._out += value

    def __len__(self) -> int:
        return len(self._out)

    def __bytes__(self) -> bytes:
        return bytes(self._out)
