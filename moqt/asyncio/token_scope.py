"""To whom an application's authorization tokens are shown, wherever its peers send it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.uri import MoqtUri

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["TokenScope"]


class TokenScope:
    """The authority of `home`, host and port, and those that the application trusts beside it.

    `trusted_authorities`: each "host" or "host:port", as in a moqt:// address. Whom a peer names
    is in no other case shown tokens. Raises: ValueError for what is no authority, or for a bare
    string in place of a collection of them.
    """

    def __init__(self, home: MoqtUri, trusted_authorities: Iterable[str] = ()) -> None:
        if isinstance(trusted_authorities, str):
            raise ValueError("trusted_authorities is a str, expected a collection of them")
        self._home = _key(home)
        self._shown = [home.authority]
        self._keys = {self._home}
        for authority in trusted_authorities:
            uri = MoqtUri.parse(f"moqt://{authority}")
            if uri.authority != authority:
                raise ValueError(
                    f"trusted_authorities has {authority!r}, expected host or host:port"
                )
            self._shown.append(authority)
            self._keys.add(_key(uri))

    def is_home(self, uri: MoqtUri) -> bool:
        """Return whether an address is at the authority that it all began with."""
        return _key(uri) == self._home

    def covers(self, uri: MoqtUri) -> bool:
        """Return whether tokens are shown at an address."""
        return _key(uri) in self._keys

    def __str__(self) -> str:
        return ", ".join(self._shown)


def _key(uri: MoqtUri) -> tuple[str, int]:
    return uri.host.lower(), uri.port
