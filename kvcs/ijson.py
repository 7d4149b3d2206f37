"""Strict reading of I-JSON (RFC 7493): what `json.loads` lets through is refused with its path.

Refused: duplicate member names, NaN and infinities, numbers outside the safe range, lone
surrogates, text that is not UTF-8, and nesting or length beyond a bound. What is of a kind that a
reader does not want, it refuses by `read_integer`, `read_text` and the like, with the path too.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

__all__ = [
    "MAX_DEPTH",
    "MAX_SAFE_INTEGER",
    "IJsonError",
    "JsonValue",
    "check",
    "check_names",
    "parse",
    "read_array",
    "read_boolean",
    "read_integer",
    "read_object",
    "read_text",
]

JsonValue: TypeAlias = (
    "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)

MAX_DEPTH = 32
"""Arrays and objects inside each other; deeper values are refused."""

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest magnitude of a number that every JSON reader keeps exactly (RFC 7493 2.2)."""


class IJsonError(ValueError):
    """A text or value is not I-JSON; `path` is where, as in `$.rope.theta`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path if len(path) <= 200 else path[:197] + "..."
        self.problem = problem


class _Duplicated(dict[str, Any]):
    """An object with a member name given twice; found by `check`, which knows the path."""

    name = ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    duplicated = _Duplicated(members)
    for name, _ in pairs:  # `members` becomes the names that were not met yet
        if name not in members:
            duplicated.name = name
            break
        del members[name]
    return duplicated


def parse(text: bytes | bytearray | memoryview | str, *, max_octets: int) -> Any:
    """Return the value of a JSON text, read strictly but not yet walked: call `check` on it.

    Raises: IJsonError when it is no JSON text, holds NaN or Infinity, or is over `max_octets`.
    """
    if len(text) > max_octets:
        raise IJsonError("$", f"{len(text)} octets are over the bound of {max_octets}")
    try:
        decoded = text if isinstance(text, str) else bytes(text).decode("utf-8")
        return json.loads(decoded, object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise IJsonError("$", f"not UTF-8 at octet {error.start}") from error
    except RecursionError:
        raise IJsonError("$", f"nested deeper than {MAX_DEPTH}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise IJsonError("$", f"not JSON: {error.msg} at {where}") from error
    except IJsonError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise IJsonError("$", f"a number is out of range: {error}") from error


def _constant(name: str) -> Any:
    raise IJsonError("$", f"{name} is not a JSON number")


def check(value: object, path: str = "$", *, depth: int = 0) -> Any:
    """Return a plain copy of `value`: dict, list, str, int, float, bool, None. Paths in errors.

    A float without a fraction becomes an int, as both have one canonical form (RFC 8785 3.2.2.3).
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _string(value, path)
    if isinstance(value, (int, float)):
        return _number(value, path)
    if depth >= MAX_DEPTH:
        raise IJsonError(path, f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, Mapping):
        if isinstance(value, _Duplicated):
            raise IJsonError(path, f"member {value.name!r} is given twice")
        return {
            _name(name, path): check(member, f"{path}.{name}", depth=depth + 1)
            for name, member in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [
            check(element, f"{path}[{position}]", depth=depth + 1)
            for position, element in enumerate(value)
        ]
    raise IJsonError(path, f"{type(value).__name__} is not a JSON type")


def check_names(value: object, path: str = "$", *, depth: int = 0) -> None:
    """Refuse duplicate member names and deep nesting only; the types are another reader's affair.

    Arrays of strings, which are what makes a value large, cost one look at each string.
    """
    if depth > MAX_DEPTH:
        raise IJsonError(path, f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        if isinstance(value, _Duplicated):
            raise IJsonError(path, f"member {value.name!r} is given twice")
        for name, member in value.items():
            check_names(member, f"{path}.{name}", depth=depth + 1)
    elif isinstance(value, list):
        for position, element in enumerate(value):
            if isinstance(element, (dict, list)):
                check_names(element, f"{path}[{position}]", depth=depth + 1)


def read_integer(within: dict[str, Any], name: str, low: int, high: int, path: str = "$") -> int:
    """Return a member of `within`, which stands at `path`. Raises: IJsonError."""
    value = _member(within, name, path)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _unexpected(f"{path}.{name}", f"an integer from {low} to {high}", value)
    return value


def read_boolean(within: dict[str, Any], name: str, path: str = "$") -> bool:
    """Return a member of `within`, which stands at `path`. Raises: IJsonError."""
    value = _member(within, name, path)
    if not isinstance(value, bool):
        raise _unexpected(f"{path}.{name}", "true or false", value)
    return value


def read_text(within: dict[str, Any], name: str, path: str = "$") -> str:
    """Return a member of `within`, which stands at `path`. Raises: IJsonError."""
    value = _member(within, name, path)
    if not isinstance(value, str):
        raise _unexpected(f"{path}.{name}", "a string", value)
    return value


def read_array(within: dict[str, Any], name: str, path: str = "$", *, longest: int) -> list[Any]:
    """Return a member of `within`, which stands at `path`. Raises: IJsonError."""
    value = _member(within, name, path)
    if not isinstance(value, list):
        raise _unexpected(f"{path}.{name}", "an array", value)
    if len(value) > longest:
        raise IJsonError(f"{path}.{name}", f"has {len(value)} elements, at most {longest} fit")
    return value


def read_object(value: object, path: str = "$") -> dict[str, Any]:
    """Return `value`, which stands at `path`, if it is an object. Raises: IJsonError."""
    if not isinstance(value, dict):
        raise _unexpected(path, "an object", value)
    return value


def _member(within: dict[str, Any], name: str, path: str) -> Any:
    if name not in within:
        raise IJsonError(f"{path}.{name}", "required member is missing")
    return within[name]


def _unexpected(path: str, expected: str, value: object) -> IJsonError:
    return IJsonError(path, f"expected {expected}, got {reprlib.repr(value)}")


def _name(name: object, path: str) -> str:
    if not isinstance(name, str):
        raise IJsonError(path, f"member name {name!r} is not a string")
    return _string(name, path)


def _string(text: str, path: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise IJsonError(path, "a string has a lone surrogate") from None
    return str(text)


def _number(number: int | float, path: str) -> int | float:
    if not math.isfinite(number) if isinstance(number, float) else False:
        raise IJsonError(path, f"{number} is not a JSON number")
    if abs(number) > MAX_SAFE_INTEGER:
        raise IJsonError(path, f"a number is outside +-{MAX_SAFE_INTEGER} (RFC 7493 2.2)")
    return int(number) if isinstance(number, int) or number.is_integer() else float(number)
