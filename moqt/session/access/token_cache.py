"""The peer's tokens that we remember under their aliases (MOQT-22 8.9, 9.1.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moqt.codes import SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.session.access.authorization import AuthToken
from moqt.wire.tokens import AliasType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moqt.wire.tokens import AuthorizationToken

__all__ = ["ENTRY_OCTETS", "ResolvedTokens", "TokenCache", "cache_octets"]

ENTRY_OCTETS: Final = 16
"""What an entry counts beside its value (MOQT-22 9.1.3)."""


def cache_octets(value: bytes) -> int:
    """Return what a registered token counts against MAX_AUTH_TOKEN_CACHE_SIZE."""
    return ENTRY_OCTETS + len(value)


@dataclass(frozen=True, slots=True)
class ResolvedTokens:
    """What the tokens of one message stand for. `unknown_alias`: one that nothing stands behind."""

    tokens: tuple[AuthToken, ...]
    unknown_alias: int | None = None


class TokenCache:
    """Aliases and their tokens, `max_octets` at most. Only DELETE takes one out, expired or not."""

    def __init__(self, max_octets: int) -> None:
        self._max_octets = max_octets
        self._octets = 0
        self._tokens: dict[int, AuthToken] = {}

    @property
    def octets(self) -> int:
        """What the entries count together."""
        return self._octets

    def resolve(
        self, tokens: Iterable[AuthorizationToken], *, in_setup: bool = False
    ) -> ResolvedTokens:
        """Do what the tokens of a message say, in order; a message refused later changes nothing.

        Behind an unknown alias the rest is done too. Raises: RemoteProtocolError with
        DUPLICATE_AUTH_TOKEN_ALIAS, or AUTH_TOKEN_CACHE_OVERFLOW, which SETUP cannot cause: there a
        REGISTER beyond the limit is read as USE_VALUE (MOQT-22 9.1.4).
        """
        resolved: list[AuthToken] = []
        unknown: int | None = None
        for token in tokens:
            if token.token_type is not None and token.value is not None:
                found = AuthToken(token.token_type, token.value)
                resolved.append(found)
                if token.alias_type is AliasType.REGISTER and token.alias is not None:
                    self._register(token.alias, found, in_setup=in_setup)
                continue
            assert token.alias is not None  # DELETE and USE_ALIAS have one
            known = self._tokens.get(token.alias)
            if known is None:
                unknown = token.alias
            elif token.alias_type is AliasType.DELETE:
                del self._tokens[token.alias]
                self._octets -= cache_octets(known.value)
            else:
                resolved.append(known)
        return ResolvedTokens(tuple(resolved), unknown)

    def _register(self, alias: int, token: AuthToken, *, in_setup: bool) -> None:
        if alias in self._tokens:
            raise RemoteProtocolError(
                SessionErrorCode.DUPLICATE_AUTH_TOKEN_ALIAS,
                f"token alias {alias} is registered already",
            )
        octets = self._octets + cache_octets(token.value)
        if octets <= self._max_octets:
            self._tokens[alias] = token
            self._octets = octets
        elif not in_setup:
            raise RemoteProtocolError(
                SessionErrorCode.AUTH_TOKEN_CACHE_OVERFLOW,
                f"registered tokens would take {octets} octets, announced are {self._max_octets}",
            )
