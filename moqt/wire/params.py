"""Message Parameters: one table of type, name, value form and place (MOQT-22 9.20).

The form of a value follows from its type's definition, not from parity as in Key-Value-Pairs, so
an unknown type cannot be skipped and closes the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from moqt.codes import GroupOrder
from moqt.wire.cursor import Reader, Writer
from moqt.wire.fields import read_location, read_namespace, write_location, write_namespace
from moqt.wire.filters import LocationFilter, RangeFilter, RangeFilterKind, RangeFilters
from moqt.wire.tokens import AuthorizationToken
from moqt.wire.vi64 import MAX_VI64

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.types import Location, TrackNamespace

__all__ = [
    "ALLOWED",
    "FILL_WITH_COUNT",
    "NO_PARAMETERS",
    "FillParameters",
    "ParameterType",
    "Parameters",
    "Scope",
    "check_scope",
    "read_parameters",
    "write_parameters",
]

FILL_WITH_COUNT = True
"""Whether FILL_PARAMETERS is sent with a Number of Parameters inside. The draft can be read both
ways; four independent codecs write it. Both forms are read, whatever stands here (MOQT-22 9.20.15).
"""

_FIRST_FILL_TYPE = 0x0A
"""No smaller type is legal in FILL_PARAMETERS, so a smaller first integer is a count."""


class ParameterType(IntEnum):
    """The known parameters (MOQT-22 9.20)."""

    OBJECT_DELIVERY_TIMEOUT = 0x02
    AUTHORIZATION_TOKEN = 0x03
    RENDEZVOUS_TIMEOUT = 0x04
    SUBGROUP_DELIVERY_TIMEOUT = 0x06
    EXPIRES = 0x08
    LARGEST_OBJECT = 0x09
    FILL_TIMEOUT = 0x0A
    FORWARD = 0x10
    SUBSCRIBER_PRIORITY = 0x20
    LOCATION_FILTER = 0x21
    GROUP_ORDER = 0x22
    FILL_PARAMETERS = 0x23
    SUBGROUP_FILTER = 0x25
    OBJECTID_FILTER = 0x26
    PRIORITY_FILTER = 0x27
    OBJECT_PROPERTY_FILTER = 0x28
    TRACK_PROPERTY_FILTER = 0x29
    NEW_GROUP_REQUEST = 0x32
    TRACK_NAMESPACE_PREFIX = 0x34
    INCLUDE_PROPERTIES = 0x35


class Scope(Enum):
    """Where a parameter list stands; decides which parameters may be in it (MOQT-22 9.20)."""

    SUBSCRIBE = "SUBSCRIBE"
    SUBSCRIBE_OK = "SUBSCRIBE_OK"
    PUBLISH = "PUBLISH"
    PUBLISH_OK = "PUBLISH_OK"
    UPDATE_SUBSCRIPTION = "REQUEST_UPDATE of a subscription"
    UPDATE_FETCH = "REQUEST_UPDATE of a FETCH"
    UPDATE_PUBLISH_NAMESPACE = "REQUEST_UPDATE of a PUBLISH_NAMESPACE"
    UPDATE_SUBSCRIBE_NAMESPACE = "REQUEST_UPDATE of a SUBSCRIBE_NAMESPACE"
    UPDATE_SUBSCRIBE_TRACKS = "REQUEST_UPDATE of a SUBSCRIBE_TRACKS"
    REQUEST_UPDATE = "REQUEST_UPDATE"  # of any request: what can be said without knowing which
    REQUEST_UPDATE_OK = "REQUEST_UPDATE_OK"
    REQUEST_OK = "REQUEST_OK"  # to any request
    PUBLISH_STATE_NOTIFY = "PUBLISH_STATE_NOTIFY"
    FETCH = "FETCH"
    FETCH_OK = "FETCH_OK"
    TRACK_STATUS = "TRACK_STATUS"
    TRACK_STATUS_OK = "TRACK_STATUS_OK"
    PUBLISH_NAMESPACE = "PUBLISH_NAMESPACE"
    SUBSCRIBE_NAMESPACE = "SUBSCRIBE_NAMESPACE"
    NAMESPACE_OK = "the REQUEST_OK to a namespace request"
    SUBSCRIBE_TRACKS = "SUBSCRIBE_TRACKS"
    FILL = "FILL_PARAMETERS"


def _check_type(value: object, name: str, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"{name} is {type(value).__name__}, expected {expected.__name__}")


def _check_filter_types(
    location_filter: LocationFilter | None, range_filters: tuple[RangeFilter, ...]
) -> None:
    """Raise TypeError for what only looked like a filter to its application."""
    if location_filter is not None:
        _check_type(location_filter, "location_filter", LocationFilter)
    for one in range_filters:
        _check_type(one, "a range filter", RangeFilter)


@dataclass(frozen=True, slots=True, kw_only=True)
class FillParameters:
    """How a fill differs from its subscription; None or empty is taken from there (MOQT-22 3.4)."""

    fill_timeout_ms: int | None = None
    subscriber_priority: int | None = None
    location_filter: LocationFilter | None = None
    group_order: GroupOrder | None = None
    range_filters: tuple[RangeFilter, ...] = ()
    removed_range_filters: frozenset[RangeFilterKind] = frozenset()

    def __post_init__(self) -> None:
        _check_filter_types(self.location_filter, self.range_filters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of one message; None or empty: absent (MOQT-22 9.20).

    `removed_range_filters` are the kinds sent with Length 0, which REQUEST_UPDATE uses to remove
    them. Times are in milliseconds; for `expires_ms` 0 means unknown or never.
    """

    object_delivery_timeout_ms: int | None = None
    authorization_tokens: tuple[AuthorizationToken, ...] = ()
    rendezvous_timeout_ms: int | None = None
    subgroup_delivery_timeout_ms: int | None = None
    expires_ms: int | None = None
    largest: Location | None = None
    fill_timeout_ms: int | None = None
    forward: bool | None = None
    subscriber_priority: int | None = None
    location_filter: LocationFilter | None = None
    group_order: GroupOrder | None = None
    fill: FillParameters | None = None
    range_filters: tuple[RangeFilter, ...] = ()
    removed_range_filters: frozenset[RangeFilterKind] = frozenset()
    new_group_request: int | None = None
    namespace_prefix: TrackNamespace | None = None
    include_properties: bool | None = None

    def __post_init__(self) -> None:
        if self.fill is not None:
            _check_type(self.fill, "fill", FillParameters)
        _check_filter_types(self.location_filter, self.range_filters)

    @property
    def types(self) -> frozenset[ParameterType]:
        """The types that are present."""
        single = [k for k, d in _SINGLE.items() if getattr(self, d.attribute) is not None]
        tokens = [ParameterType.AUTHORIZATION_TOKEN] if self.authorization_tokens else []
        ranges = {*self.removed_range_filters, *(one.kind for one in self.range_filters)}
        return frozenset([*single, *tokens, *map(ParameterType, ranges)])

    def check_filters(self, max_ranges: int) -> None:
        """Raise FilterRejected for range filters that a receiver has to refuse, fill included.

        `max_ranges` is the MAX_FILTER_RANGES that we announced (MOQT-22 3.3.2). For REQUEST_UPDATE
        check the filters that result as well: those that are kept count too.
        """
        inner = RangeFilters(self.fill.range_filters if self.fill else ())
        RangeFilters(self.range_filters).check(max_ranges, also=inner.range_count)
        inner.check(max_ranges)


NO_PARAMETERS = Parameters()


def _read_vi64(reader: Reader, kind: ParameterType) -> int:
    return reader.vi64(kind.name)


def _read_bool(reader: Reader, kind: ParameterType) -> bool:
    value = reader.uint8(kind.name)
    if value > 1:
        raise reader.error(f"{kind.name} is {value}, expected 0 or 1")
    return value == 1


def _read_order(reader: Reader, kind: ParameterType) -> GroupOrder:
    value = reader.uint8(kind.name)
    if value not in (GroupOrder.ASCENDING, GroupOrder.DESCENDING):
        raise reader.error(f"{kind.name} is {value}, expected 1 or 2")
    return GroupOrder(value)


def _read_fill(reader: Reader, kind: ParameterType) -> FillParameters:
    inner = Reader(reader.prefixed(kind.name), kind.name)
    if not inner.remaining:
        return FillParameters()
    count: int | None = None
    if inner.peek_vi64("Number of Parameters") < _FIRST_FILL_TYPE:
        count = inner.vi64("Number of Parameters")
    values = _read_list(inner, count, ALLOWED[Scope.FILL], Scope.FILL)
    inner.expect_end()
    return FillParameters(**values)


def _write_vi64(value: int) -> bytes:
    writer = Writer()
    writer.vi64(value)
    return bytes(writer)


def _write_uint8(value: int) -> bytes:
    writer = Writer()
    writer.uint8(value, "parameter")
    return bytes(writer)


def _write_location(value: Location) -> bytes:
    writer = Writer()
    write_location(writer, value)
    return bytes(writer)


def _write_namespace(value: TrackNamespace) -> bytes:
    writer = Writer()
    write_namespace(writer, value)
    return bytes(writer)


def _write_filter(value: LocationFilter) -> bytes:
    writer = Writer()
    value.write(writer)
    return bytes(writer)


def _prefixed(value: bytes) -> bytes:
    writer = Writer()
    writer.prefixed(value)
    return bytes(writer)


def _write_fill(value: FillParameters) -> bytes:
    entries = _entries(value)
    writer = Writer()
    if FILL_WITH_COUNT:
        if len(entries) >= _FIRST_FILL_TYPE:
            raise ValueError(
                f"FILL_PARAMETERS has {len(entries)} parameters; {_FIRST_FILL_TYPE} or more "
                "cannot be told from a list without a count (MOQT-22 9.20.15)"
            )
        writer.vi64(len(entries))
    _write_list(writer, entries)
    return _prefixed(bytes(writer))


@dataclass(frozen=True, slots=True)
class _Definition:
    """How a parameter's value is read and written, and which attribute holds it."""

    attribute: str
    read: Callable[[Reader, ParameterType], Any]
    write: Callable[[Any], bytes]


def _location(reader: Reader, kind: ParameterType) -> Location:
    return read_location(reader, kind.name)


def _location_filter(reader: Reader, kind: ParameterType) -> LocationFilter:
    return LocationFilter.read(reader)


def _namespace(reader: Reader, kind: ParameterType) -> TrackNamespace:
    return read_namespace(reader, kind.name)


def _uint8(reader: Reader, kind: ParameterType) -> int:
    return reader.uint8(kind.name)


_P = ParameterType

_SINGLE: dict[ParameterType, _Definition] = {
    _P.OBJECT_DELIVERY_TIMEOUT: _Definition("object_delivery_timeout_ms", _read_vi64, _write_vi64),
    _P.RENDEZVOUS_TIMEOUT: _Definition("rendezvous_timeout_ms", _read_vi64, _write_vi64),
    _P.SUBGROUP_DELIVERY_TIMEOUT: _Definition(
        "subgroup_delivery_timeout_ms", _read_vi64, _write_vi64
    ),
    _P.EXPIRES: _Definition("expires_ms", _read_vi64, _write_vi64),
    _P.LARGEST_OBJECT: _Definition("largest", _location, _write_location),
    _P.FILL_TIMEOUT: _Definition("fill_timeout_ms", _read_vi64, _write_vi64),
    _P.FORWARD: _Definition("forward", _read_bool, _write_uint8),
    _P.SUBSCRIBER_PRIORITY: _Definition("subscriber_priority", _uint8, _write_uint8),
    _P.LOCATION_FILTER: _Definition("location_filter", _location_filter, _write_filter),
    _P.GROUP_ORDER: _Definition("group_order", _read_order, _write_uint8),
    _P.FILL_PARAMETERS: _Definition("fill", _read_fill, _write_fill),
    _P.NEW_GROUP_REQUEST: _Definition("new_group_request", _read_vi64, _write_vi64),
    _P.TRACK_NAMESPACE_PREFIX: _Definition("namespace_prefix", _namespace, _write_namespace),
    _P.INCLUDE_PROPERTIES: _Definition("include_properties", _read_bool, _write_uint8),
}
"""All parameters but the repeatable ones: AUTHORIZATION_TOKEN and the range filters."""

_RANGE_TYPES = frozenset(int(kind) for kind in RangeFilterKind)


def _types(*numbers: int) -> frozenset[ParameterType]:
    return frozenset(map(ParameterType, numbers))


_SUBSCRIBE = _types(
    0x02, 0x03, 0x04, 0x06, 0x10, 0x20, 0x21, 0x22, 0x23, 0x25, 0x26, 0x27, 0x28, 0x32, 0x35
)
_UPDATES: dict[Scope, frozenset[ParameterType]] = {
    Scope.UPDATE_SUBSCRIPTION: _types(
        0x02, 0x03, 0x06, 0x10, 0x20, 0x21, 0x23, 0x25, 0x26, 0x27, 0x28, 0x32
    ),
    Scope.UPDATE_FETCH: _types(0x03, 0x20),
    Scope.UPDATE_PUBLISH_NAMESPACE: _types(0x03),
    Scope.UPDATE_SUBSCRIBE_NAMESPACE: _types(0x03, 0x34),
    Scope.UPDATE_SUBSCRIBE_TRACKS: _types(0x03, 0x10, 0x29, 0x34),
}

ALLOWED: dict[Scope, frozenset[ParameterType]] = {
    Scope.SUBSCRIBE: _SUBSCRIBE,
    Scope.SUBSCRIBE_OK: _types(0x08, 0x09),
    Scope.PUBLISH: _types(0x02, 0x03, 0x06, 0x08, 0x09, 0x10, 0x20, 0x21, 0x22),
    Scope.PUBLISH_OK: _types(0x08),
    **_UPDATES,
    Scope.REQUEST_UPDATE: frozenset[ParameterType]().union(*_UPDATES.values()),
    Scope.REQUEST_UPDATE_OK: _types(0x08, 0x09),
    Scope.REQUEST_OK: _types(0x08, 0x09),
    Scope.PUBLISH_STATE_NOTIFY: _types(0x09, 0x10, 0x21),
    Scope.FETCH: _types(0x03, 0x0A, 0x20, 0x21, 0x22, 0x25, 0x26, 0x27, 0x28, 0x35),
    Scope.FETCH_OK: _types(),
    Scope.TRACK_STATUS: _types(0x03, 0x35),
    # "What SUBSCRIBE_OK would carry", yet no list names EXPIRES: accepted, and never sent by us.
    Scope.TRACK_STATUS_OK: _types(0x08, 0x09),
    Scope.PUBLISH_NAMESPACE: _types(0x03),
    Scope.SUBSCRIBE_NAMESPACE: _types(0x03),
    Scope.NAMESPACE_OK: _types(0x08),
    # The draft gives two lists; the longer one is accepted. Send 03 10 22 25-29 35 only.
    Scope.SUBSCRIBE_TRACKS: _SUBSCRIBE | _types(0x29),
    Scope.FILL: _types(0x0A, 0x20, 0x21, 0x22, 0x25, 0x26, 0x27, 0x28),
}
"""Which parameters may stand where (MOQT-22 9.20)."""


def _entries(parameters: Parameters | FillParameters) -> list[tuple[ParameterType, bytes]]:
    """Return the types and encoded values that are present, by rising type."""
    entries: list[tuple[ParameterType, bytes]] = []
    for kind, definition in _SINGLE.items():
        value = getattr(parameters, definition.attribute, None)
        if value is not None:
            entries.append((kind, definition.write(value)))
    entries.extend(
        (ParameterType(kind), b"\x00") for kind in sorted(parameters.removed_range_filters)
    )
    entries.extend(
        (ParameterType(one.kind), _prefixed(one.serialize())) for one in parameters.range_filters
    )
    if isinstance(parameters, Parameters):
        entries.extend(
            (ParameterType.AUTHORIZATION_TOKEN, _prefixed(token.serialize()))
            for token in parameters.authorization_tokens
        )
    entries.sort(key=lambda entry: entry[0])
    return entries


def _write_list(writer: Writer, entries: list[tuple[ParameterType, bytes]]) -> None:
    prior = 0
    for kind, value in entries:
        writer.vi64(kind - prior)
        writer.octets(value)
        prior = kind


def _read_list(
    reader: Reader, count: int | None, allowed: frozenset[ParameterType], scope: Scope
) -> dict[str, Any]:
    """Read `count` parameters, or all to the end; return them by attribute."""
    values: dict[str, Any] = {}
    tokens: list[AuthorizationToken] = []
    filters: list[RangeFilter] = []
    removed: set[RangeFilterKind] = set()
    number = 0
    while reader.remaining if count is None else count > 0:
        number += reader.vi64("Type Delta")
        if number > MAX_VI64:
            raise reader.error("parameter type is above 2^64-1")
        try:
            kind = ParameterType(number)
        except ValueError:
            raise reader.error(f"unknown parameter 0x{number:x}") from None
        if kind not in allowed:
            raise reader.error(f"parameter {kind.name} is not allowed in {scope.value}")
        if kind is ParameterType.AUTHORIZATION_TOKEN:
            tokens.append(AuthorizationToken.parse(reader.prefixed(kind.name)))
        elif kind in _RANGE_TYPES:
            octets = reader.prefixed(kind.name)
            if octets:
                filters.append(RangeFilter.parse(RangeFilterKind(kind), octets))
            else:
                removed.add(RangeFilterKind(kind))
        else:
            definition = _SINGLE[kind]
            if definition.attribute in values:
                raise reader.error(f"parameter {kind.name} is repeated")
            values[definition.attribute] = definition.read(reader, kind)
        if count is not None:
            count -= 1
    if tokens:
        values["authorization_tokens"] = tuple(tokens)
    if filters:
        values["range_filters"] = tuple(filters)
    if removed:
        values["removed_range_filters"] = frozenset(removed)
    return values


def read_parameters(reader: Reader, scope: Scope) -> Parameters:
    """Read a parameter list with its count.

    Raises: RemoteProtocolError for a type that is unknown, misplaced or wrongly repeated, and for a
    value that the draft forbids. What only refuses a request is found by `check_filters`.
    """
    count = reader.vi64("Number of Parameters")
    if not count:
        return NO_PARAMETERS
    return Parameters(**_read_list(reader, count, ALLOWED[scope], scope))


def write_parameters(writer: Writer, parameters: Parameters, scope: Scope) -> None:
    """Append a parameter list with its count; ValueError for one that may not stand there."""
    if parameters == NO_PARAMETERS:
        writer.vi64(0)
        return
    entries = _entries(parameters)
    misplaced = sorted({kind.name for kind, _ in entries if kind not in ALLOWED[scope]})
    if misplaced:
        raise ValueError(f"{', '.join(misplaced)} not allowed in {scope.value} (MOQT-22 9.20)")
    if parameters.fill is not None:
        inner = {kind.name for kind, _ in _entries(parameters.fill)}
        wrong = inner - {kind.name for kind in ALLOWED[Scope.FILL]}
        if wrong:
            raise ValueError(f"{', '.join(sorted(wrong))} not allowed in FILL_PARAMETERS")
    writer.vi64(len(entries))
    _write_list(writer, entries)


def check_scope(parameters: Parameters, scope: Scope) -> str | None:
    """Return why these parameters may not stand in `scope`, or None."""
    misplaced = sorted(kind.name for kind in parameters.types - ALLOWED[scope])
    return f"{', '.join(misplaced)} not allowed in {scope.value}" if misplaced else None
