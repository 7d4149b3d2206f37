"""Wire values as plain data with names, for traces and tools. No token's value is ever in it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from moqt.types import FullTrackName, Location, ObjectHeader, TrackNamespace
from moqt.wire.datagrams import ObjectDatagram
from moqt.wire.fields import KeyValue
from moqt.wire.filters import LocationFilter, LocationFilterType
from moqt.wire.options import OptionType, SetupOptions
from moqt.wire.params import FillParameters
from moqt.wire.properties import PropertyType, TrackProperties, parse_pairs
from moqt.wire.tokens import AuthorizationToken

__all__ = ["Plain", "describe"]

Plain = dict[str, Any]
"""What JSON can say: names to numbers, texts, lists and the like."""

_FILTER_FIELDS = {
    LocationFilterType.NONE: 0,
    LocationFilterType.NEXT_OBJECT: 0,
    LocationFilterType.RELATIVE: 1,
    LocationFilterType.ABSOLUTE: 2,
    LocationFilterType.END_GROUP: 3,
    LocationFilterType.END_OBJECT: 4,
}
"""How many of a filter's fields behind its type are on the wire (MOQT-22 9.20.9)."""

_ADDRESSES = frozenset({"path", "new_session_uri", "connect_uri"})
"""Texts whose query may carry a secret."""


def describe(value: object, *, whole: bool = False) -> Plain:
    """Return a message, header or other value field by field; what is absent or empty is left out.

    `whole`: octets as hex digits and addresses with their query; else their lengths alone. A
    payload is its length and a token's value is its length, always.
    """
    if isinstance(value, SetupOptions):
        return _options(value, whole=whole)
    if isinstance(value, ObjectHeader):
        found = value._asdict()
    elif is_dataclass(value):
        found = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        raise TypeError(f"{type(value).__name__} has no fields")
    if isinstance(value, LocationFilter):
        sent = ("type", "start_group", "start_object", "end_group", "end_object")
        found = {name: found[name] for name in sent[: 1 + _FILTER_FIELDS[value.type]]}
    if isinstance(value, ObjectDatagram):
        found["payload_length"] = len(found.pop("payload"))
    plain = {name: _plain(name, part, whole=whole) for name, part in found.items() if _says(part)}
    if isinstance(value, ObjectHeader | ObjectDatagram):
        plain["object_status"] = plain.pop("status")
        if value.properties:
            plain["properties_length"] = len(value.properties)
            del plain["properties"]
            if whole:
                pairs = parse_pairs(value.properties, "properties")  # readers have checked them
                plain["properties"] = [_property(pair, whole=True) for pair in pairs]
    return {
        name: part
        for name, part in plain.items()
        if part not in ({}, []) or isinstance(found[name], FillParameters)
    }


def _says(part: object) -> bool:
    return part is not None and part not in ((), frozenset(), b"", "")


def _plain(name: str, part: Any, *, whole: bool) -> Any:
    match part:
        case Enum():
            return part.name.lower()
        case bool() | int() | float():
            return part
        case str():
            return part if whole or name not in _ADDRESSES else _without_query(part)
        case bytes() | memoryview():
            return bytes(part).hex() if whole else {"length": len(part)}
        case TrackNamespace():
            return str(part)
        case FullTrackName():
            return {"track_namespace": str(part.namespace), "full_track_name": str(part)}
        case Location():
            return {"group": part.group_id, "object": part.object_id}
        case AuthorizationToken():
            return _token(part)
        case TrackProperties():
            return [_property(pair, whole=whole) for pair in part.pairs]
        case KeyValue():
            return _pair(part, whole=whole)
        case tuple() | list():
            return [_plain(name, one, whole=whole) for one in part]
        case frozenset():
            return [_plain(name, one, whole=whole) for one in sorted(part)]
    return describe(part, whole=whole)


def _pair(pair: KeyValue, *, whole: bool) -> Plain:
    return {"type": f"0x{pair.type:x}", "value": _plain("value", pair.value, whole=whole)}


def _property(pair: KeyValue, *, whole: bool) -> Plain:
    try:
        return {"name": PropertyType(pair.type).name.lower()} | _pair(pair, whole=whole)
    except ValueError:
        return _pair(pair, whole=whole)


def _options(options: SetupOptions, *, whole: bool) -> Plain:
    """Return what is on the wire: 0 where it was sent, and nothing that was left out."""
    found = {field.name: getattr(options, field.name) for field in fields(options)}
    sent = {OptionType(kind).name.lower() for kind in found.pop("said_defaults")}
    return {
        name: _plain(name, part, whole=whole)
        for name, part in found.items()
        if part == "" or (_says(part) and (part != 0 or name in sent))
    }


def _token(token: AuthorizationToken) -> Plain:
    found: Plain = {"alias_type": token.alias_type.name.lower()}
    if token.alias is not None:
        found["alias"] = token.alias
    if token.token_type is not None and token.value is not None:
        found["token_type"] = token.token_type
        found["value_length"] = len(token.value)
    return found


def _without_query(address: str) -> str:
    path, mark, query = address.partition("?")
    return f"{path}?({len(query)} characters)" if mark else path
