"""SETUP options (MOQT-22 9.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from moqt.codes import SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.wire.fields import KeyValue, read_pairs, write_pairs
from moqt.wire.tokens import AuthorizationToken

if TYPE_CHECKING:
    from moqt.wire.cursor import Reader, Writer

__all__ = ["OptionType", "SetupOptions", "read_options", "write_options"]


class OptionType(IntEnum):
    """The known options; not the registry of Message Parameters (MOQT-22 9.1)."""

    PATH = 0x01
    AUTHORIZATION_TOKEN = 0x03
    MAX_AUTH_TOKEN_CACHE_SIZE = 0x04
    AUTHORITY = 0x05
    MAX_FILTER_RANGES = 0x06
    MOQT_IMPLEMENTATION = 0x07
    MAX_REQUEST_UPDATES = 0x08


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupOptions:
    """What an endpoint says of itself in SETUP; absent options have their defaults (MOQT-22 9.1).

    `path` and `authority` are a client's only. `max_auth_token_cache_size` is in octets.
    `max_filter_ranges` 0: send no range filters. `max_request_updates` 0: any number.
    `unknown` are options without a meaning here; they are kept, not judged. `said_defaults`:
    types of options that are on the wire though they have their default, 0.
    """

    path: str | None = field(default=None, repr=False)
    """Not in the repr: its query may carry a secret."""
    authority: str | None = None
    authorization_tokens: tuple[AuthorizationToken, ...] = ()
    max_auth_token_cache_size: int = 0
    max_filter_ranges: int = 0
    implementation: str | None = None
    max_request_updates: int = 0
    unknown: tuple[KeyValue, ...] = ()
    said_defaults: frozenset[int] = frozenset()


_KNOWN = frozenset(OptionType)
_REPEATABLE = OptionType.AUTHORIZATION_TOKEN


def _text(octets: bytes, code: SessionErrorCode, what: str) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(code, f"{what} in SETUP is not UTF-8") from error


def read_options(reader: Reader) -> SetupOptions:
    """Read options to the end of `reader`. A known option twice is PROTOCOL_VIOLATION."""
    pairs = read_pairs(reader)
    single: dict[int, int | bytes] = {}
    tokens: list[AuthorizationToken] = []
    unknown: list[KeyValue] = []
    for pair in pairs:
        if pair.type not in _KNOWN:
            unknown.append(pair)
        elif pair.type == _REPEATABLE and isinstance(pair.value, bytes):
            tokens.append(AuthorizationToken.parse(pair.value))
        elif pair.type in single:
            raise reader.error(f"option {OptionType(pair.type).name} is repeated")
        else:
            single[pair.type] = pair.value

    def number(kind: OptionType) -> int:
        value = single.get(kind, 0)
        assert isinstance(value, int)  # even type: read_pairs made it an integer
        return value

    def octets(kind: OptionType) -> bytes | None:
        value = single.get(kind)
        assert not isinstance(value, int)  # odd type: read_pairs made it octets
        return value

    path = octets(OptionType.PATH)
    authority = octets(OptionType.AUTHORITY)
    implementation = octets(OptionType.MOQT_IMPLEMENTATION)
    malformed_path = SessionErrorCode.MALFORMED_PATH
    malformed_authority = SessionErrorCode.MALFORMED_AUTHORITY
    return SetupOptions(
        path=None if path is None else _text(path, malformed_path, "PATH"),
        authority=(
            None if authority is None else _text(authority, malformed_authority, "AUTHORITY")
        ),
        authorization_tokens=tuple(tokens),
        max_auth_token_cache_size=number(OptionType.MAX_AUTH_TOKEN_CACHE_SIZE),
        max_filter_ranges=number(OptionType.MAX_FILTER_RANGES),
        implementation=None if implementation is None else implementation.decode(errors="replace"),
        max_request_updates=number(OptionType.MAX_REQUEST_UPDATES),
        unknown=tuple(unknown),
        said_defaults=frozenset(kind for kind, value in single.items() if value == 0),
    )


def write_options(writer: Writer, options: SetupOptions) -> None:
    """Append options; those that have their default are left out, but for `said_defaults`."""
    pairs = list(options.unknown)
    for kind, text in (
        (OptionType.PATH, options.path),
        (OptionType.AUTHORITY, options.authority),
        (OptionType.MOQT_IMPLEMENTATION, options.implementation),
    ):
        if text is not None:
            pairs.append(KeyValue(kind, text.encode()))
    for kind, number in (
        (OptionType.MAX_AUTH_TOKEN_CACHE_SIZE, options.max_auth_token_cache_size),
        (OptionType.MAX_FILTER_RANGES, options.max_filter_ranges),
        (OptionType.MAX_REQUEST_UPDATES, options.max_request_updates),
    ):
        if number or kind in options.said_defaults:
            pairs.append(KeyValue(kind, number))
    pairs.extend(
        KeyValue(OptionType.AUTHORIZATION_TOKEN, token.serialize())
        for token in options.authorization_tokens
    )
    write_pairs(writer, pairs)
