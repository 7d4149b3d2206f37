"""moqt:// addresses (MOQT-22 6.1, 6.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Self

__all__ = ["DEFAULT_PORT", "MoqtUri"]

DEFAULT_PORT = 443
"""The port of an address that names none."""

_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)"
    r"(?:\?(?P<query>[^#]*))?(?:#(?P<fragment>.*))?"
)
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::(?P<port>[0-9]*))?")
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")
_TYPED_FRAGMENT = re.compile(r"(?P<type>[a-z0-9-]+):(?P<value>.*)")


@dataclass(frozen=True, slots=True)
class MoqtUri:
    """One address.

    `host` is a name or an IP address, without brackets. `authority` is as SETUP carries it. `path`
    is empty or begins with "/"; `query` None: no "?". `fragment` stays with us: `fragment_type` and
    `fragment_value` are its parts when it reads `type:value`, and it is kept raw in any case.
    Query and fragment may carry a secret, a fragment anything a peer likes: neither is in the repr.
    """

    host: str
    port: int
    authority: str
    path: str = ""
    query: str | None = field(default=None, repr=False)
    fragment: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address; ValueError says what is wrong with it."""
        parts = _URI.fullmatch(text)
        if parts is None:
            raise ValueError("not an address: expected moqt://host[:port][/path]")
        if parts["scheme"].lower() != "moqt":
            raise ValueError(f"scheme is {parts['scheme']!r}, expected 'moqt'")
        authority = parts["authority"]
        if "@" in authority:
            raise ValueError("an address with user information is refused: it would be sent on")
        split = _AUTHORITY.fullmatch(authority)
        if split is None or not _HOST.fullmatch(split["host"]):
            raise ValueError(f"{text!r}: {authority!r} is not host[:port] with a host")
        port = int(split["port"]) if split["port"] else DEFAULT_PORT
        if not 0 < port <= 0xFFFF:
            raise ValueError(f"{text!r}: port is {port}, expected 1 to 65535")
        if not _PATH.fullmatch(parts["path"]):
            raise ValueError(f"{text!r}: path {parts['path']!r} has octets that must be escaped")
        query = parts["query"]
        if query is not None and not _QUERY.fullmatch(query):
            raise ValueError(f"{text!r}: query {query!r} has octets that must be escaped")
        host = split["host"].removeprefix("[").removesuffix("]")
        return cls(host, port, authority, parts["path"], query, parts["fragment"])

    @property
    def shown(self) -> str:
        """The address for logs and messages: without query and fragment."""
        return f"moqt://{self.authority}{self.path}"

    @property
    def path_and_query(self) -> str:
        """What PATH in SETUP carries; an empty query still shows as "?"."""
        return self.path if self.query is None else f"{self.path}?{self.query}"

    @property
    def fragment_type(self) -> str | None:
        """The type of a fragment of the form `type:value`, else None (MOQT-22 6.2)."""
        typed = _TYPED_FRAGMENT.fullmatch(self.fragment or "")
        return typed["type"] if typed else None

    @property
    def fragment_value(self) -> str | None:
        """The value of a fragment of the form `type:value`, else None (MOQT-22 6.2)."""
        typed = _TYPED_FRAGMENT.fullmatch(self.fragment or "")
        return typed["value"] if typed else None

    def __str__(self) -> str:
        fragment = "" if self.fragment is None else f"#{self.fragment}"
        return f"moqt://{self.authority}{self.path_and_query}{fragment}"
