"""The number registries of MOQT draft 22 (chapters 15 to 18), one enum each.

The same number means different things in different registries, so a bare ``int`` never leaves
`moqt.wire`. `from_wire` reads an unknown or reserved number as INTERNAL_ERROR, as draft 22 demands.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class _Code(IntEnum):
    @classmethod
    def from_wire(cls, value: int) -> Self:
        """Return the code for `value`; an unknown number is INTERNAL_ERROR and never an error."""
        try:
            return cls(value)
        except ValueError:
            return cls["INTERNAL_ERROR"]


class SessionErrorCode(_Code):
    """Why a session ended (MOQT-22 12.2)."""

    NO_ERROR = 0x0
    INTERNAL_ERROR = 0x1
    UNAUTHORIZED = 0x2
    PROTOCOL_VIOLATION = 0x3
    INVALID_REQUEST_ID = 0x4
    DUPLICATE_TRACK_ALIAS = 0x5
    KEY_VALUE_FORMATTING_ERROR = 0x6
    INVALID_PATH = 0x8
    MALFORMED_PATH = 0x9
    GOAWAY_TIMEOUT = 0x10
    CONTROL_MESSAGE_TIMEOUT = 0x11
    DATA_STREAM_TIMEOUT = 0x12
    AUTH_TOKEN_CACHE_OVERFLOW = 0x13
    DUPLICATE_AUTH_TOKEN_ALIAS = 0x14
    MALFORMED_AUTH_TOKEN = 0x16
    UNKNOWN_AUTH_TOKEN_ALIAS = 0x17
    EXPIRED_AUTH_TOKEN = 0x18
    INVALID_AUTHORITY = 0x19
    MALFORMED_AUTHORITY = 0x1A
    TOO_MANY_REQUEST_UPDATES = 0x1B


class RequestErrorCode(_Code):
    """Why a request was refused (MOQT-22 12.3)."""

    INTERNAL_ERROR = 0x0
    UNAUTHORIZED = 0x1
    TIMEOUT = 0x2
    NOT_SUPPORTED = 0x3
    MALFORMED_AUTH_TOKEN = 0x4
    EXPIRED_AUTH_TOKEN = 0x5
    GOING_AWAY = 0x6
    EXCESSIVE_LOAD = 0x9
    DOES_NOT_EXIST = 0x10
    INVALID_RANGE = 0x11
    MALFORMED_TRACK = 0x12
    UNKNOWN_AUTH_TOKEN_ALIAS = 0x17  # no number is registered; the session code's is used
    UNINTERESTED = 0x20
    PREFIX_OVERLAP = 0x30
    NAMESPACE_TOO_LARGE = 0x31
    UNSUPPORTED_EXTENSION = 0x33
    REDIRECT = 0x34
    CONFLICTING_FILTERS = 0x35
    INVALID_FILTER = 0x36


class PublishDoneCode(_Code):
    """Why a publisher ended a subscription (MOQT-22 12.4)."""

    INTERNAL_ERROR = 0x0
    UNAUTHORIZED = 0x1
    TRACK_ENDED = 0x2
    GOING_AWAY = 0x4
    TOO_FAR_BEHIND = 0x5
    EXPIRED = 0x6
    UPDATE_FAILED = 0x8
    EXCESSIVE_LOAD = 0x9
    MALFORMED_TRACK = 0x12


class StreamResetCode(_Code):
    """Why a stream was reset or stopped (MOQT-22 12.5)."""

    INTERNAL_ERROR = 0x0
    CANCELLED = 0x1
    DELIVERY_TIMEOUT = 0x2
    SESSION_CLOSED = 0x3
    GOING_AWAY = 0x4
    TOO_FAR_BEHIND = 0x5
    UNKNOWN_OBJECT_STATUS = 0x6
    EXPIRED_AUTH_TOKEN = 0x7
    EXCESSIVE_LOAD = 0x9
    MALFORMED_TRACK = 0x12


class ObjectStatus(IntEnum):
    """What an Object without payload says (MOQT-22 11.2.1.1)."""

    NORMAL = 0x0
    END_OF_GROUP = 0x3
    END_OF_TRACK = 0x4


class GroupOrder(IntEnum):
    """The order in which Groups are wanted (MOQT-22 5.1)."""

    ASCENDING = 0x1
    DESCENDING = 0x2


class RangeStatus(IntEnum):
    """What an End of Range marker says of the Locations it covers (MOQT-22 11.4.1.2)."""

    NON_EXISTENT = 0x8C
    UNKNOWN = 0x10C
    TIMED_OUT = 0x20C
