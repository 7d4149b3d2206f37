"""The AUTHORIZATION_TOKEN structure (MOQT-22 8.9). A token's value never shows in a repr."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

from moqt.codes import SessionErrorCode
from moqt.wire.cursor import Reader, Writer

__all__ = ["AliasType", "AuthorizationToken"]


class AliasType(IntEnum):
    """What the receiver does with a token (MOQT-22 8.9)."""

    DELETE = 0
    REGISTER = 1
    USE_ALIAS = 2
    USE_VALUE = 3


_WITH_ALIAS = frozenset({AliasType.DELETE, AliasType.REGISTER, AliasType.USE_ALIAS})
_WITH_VALUE = frozenset({AliasType.REGISTER, AliasType.USE_VALUE})


@dataclass(frozen=True, slots=True)
class AuthorizationToken:
    """One token, an alias for one, or both (MOQT-22 8.9). Use the named constructors.

    `alias` is None for USE_VALUE; `token_type` and `value` are None for DELETE and USE_ALIAS.
    """

    alias_type: AliasType
    alias: int | None = None
    token_type: int | None = None
    value: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.alias is not None) != (self.alias_type in _WITH_ALIAS):
            raise ValueError(f"Token Alias does not fit Alias Type {self.alias_type.name}")
        has_value = self.value is not None and self.token_type is not None
        if has_value != (self.alias_type in _WITH_VALUE) or (
            not has_value and (self.value is not None or self.token_type is not None)
        ):
            raise ValueError(f"Token Type and Value do not fit {self.alias_type.name}")

    @classmethod
    def delete(cls, alias: int) -> Self:
        """Return the order to forget an alias."""
        return cls(AliasType.DELETE, alias)

    @classmethod
    def register(cls, alias: int, token_type: int, value: bytes) -> Self:
        """Return a token to use now and to remember under an alias."""
        return cls(AliasType.REGISTER, alias, token_type, value)

    @classmethod
    def use_alias(cls, alias: int) -> Self:
        """Return a reference to a remembered token."""
        return cls(AliasType.USE_ALIAS, alias)

    @classmethod
    def use_value(cls, token_type: int, value: bytes) -> Self:
        """Return a token to use now only. Type 0: agreed out of band."""
        return cls(AliasType.USE_VALUE, None, token_type, value)

    @classmethod
    def parse(cls, octets: bytes) -> Self:
        """Read the structure; RemoteProtocolError KEY_VALUE_FORMATTING_ERROR when it is not one."""
        code = SessionErrorCode.KEY_VALUE_FORMATTING_ERROR
        reader = Reader(octets, "AUTHORIZATION_TOKEN", code)
        number = reader.vi64("Alias Type")
        if number > AliasType.USE_VALUE:
            raise reader.error(f"Alias Type is {number}, expected 0 to 3")
        alias_type = AliasType(number)
        alias = reader.vi64("Token Alias") if alias_type in _WITH_ALIAS else None
        if alias_type in _WITH_VALUE:
            return cls(alias_type, alias, reader.vi64("Token Type"), reader.rest())
        reader.expect_end()
        return cls(alias_type, alias)

    def serialize(self) -> bytes:
        """Return the structure's octets."""
        writer = Writer()
        writer.vi64(self.alias_type)
        if self.alias is not None:
            writer.vi64(self.alias)
        if self.token_type is not None and self.value is not None:
            writer.vi64(self.token_type)
            writer.octets(self.value)
        return bytes(writer)
