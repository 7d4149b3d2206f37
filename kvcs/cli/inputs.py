"""Reads what commands are given: descriptors, tokens, secrets, addresses, ranges."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvcs import ijson
from kvcs.cli.exits import CommandError, ExitCode
from kvcs.errors import InvalidDescriptor, InvalidKey
from kvcs.kvsp.descriptor import MAX_DESCRIPTOR_OCTETS, Descriptor
from kvcs.kvsp.identity import Scope
from moqt.session.access.authorization import OUT_OF_BAND, AuthToken
from moqt.types import FullTrackName

if TYPE_CHECKING:
    from kvcs.kvsp.identity import Tokens
    from kvcs.kvsp.shapes import AnyArray
    from moqt.types import TrackNamespace

__all__ = [
    "find_auth_tokens",
    "find_scope",
    "need_descriptor",
    "need_scope",
    "need_tokens",
    "parse_address",
    "parse_layers",
    "parse_namespace",
    "read_file",
]

MAX_AUTH_TOKEN_OCTETS = 4096
"""The longest authorization token that is read from a file; it has to fit into messages."""

MAX_TOKENS_OCTETS = 256 * 2**20
"""The longest token file that is read; one of 10 million tokens as text has less."""

_LAYERS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def read_file(path: Path, max_octets: int) -> bytes:
    """Return a file's octets; CommandError when it cannot be read or has more than `max_octets`."""
    try:
        with path.open("rb") as file:
            octets = file.read(max_octets + 1)
    except OSError as error:
        raise CommandError(ExitCode.FILE, f"{path}: {error.strerror or error}") from error
    if len(octets) > max_octets:
        raise CommandError(ExitCode.FILE, f"{path}: is over {max_octets} octets")
    return octets


def need_descriptor(path: Path | None) -> Descriptor:
    """Return the descriptor in a JSON file; CommandError, InvalidDescriptor if it cannot."""
    if path is None:
        raise CommandError(
            ExitCode.USAGE,
            "no Compatibility Descriptor",
            hint="--descriptor FILE; a producer's is in `kvcs inspect URL --json`",
        )
    try:
        return Descriptor.from_json(read_file(path, MAX_DESCRIPTOR_OCTETS))
    except InvalidDescriptor as error:
        raise CommandError(ExitCode.USAGE, f"{path}: {error}") from error


def _unreadable(what: str, path: Path, error: OSError) -> CommandError:
    """Return the error for a file with a secret.

    It names the file only if there is one: who mistakes the option gives the secret itself.
    """
    reason = error.strerror or type(error).__name__
    if os.path.lexists(path):
        return CommandError(ExitCode.FILE, f"{what} {path}: {reason}")
    return CommandError(
        ExitCode.FILE,
        f"the {what} that was named cannot be read: {reason}",
        hint="the name is not shown, in case it is the secret itself",
    )


def find_scope(key_file: Path | None) -> Scope | None:
    """Return the scope of a key file or of KVCS_SCOPE_KEY; None when neither is given."""
    if key_file is not None:
        try:
            return Scope.from_file(key_file)
        except OSError as error:
            raise _unreadable("scope key file", key_file, error) from error
        except InvalidKey as error:
            raise CommandError(
                ExitCode.USAGE,
                f"scope key file {key_file}: no scope key in it: {error}",
                hint="`kvcs keygen scope` makes one",
            ) from error
    text = os.environ.get("KVCS_SCOPE_KEY")
    if not text:
        return None
    try:
        return Scope.from_hex(text)
    except InvalidKey as error:
        raise CommandError(ExitCode.USAGE, f"KVCS_SCOPE_KEY: {error}") from error


def need_scope(key_file: Path | None) -> Scope:
    """Return the scope; CommandError when no key is given."""
    scope = find_scope(key_file)
    if scope is None:
        raise CommandError(
            ExitCode.USAGE,
            "no scope key",
            hint="set KVCS_SCOPE_KEY_FILE or --scope-key-file; `kvcs keygen scope` makes one",
        )
    return scope


def find_auth_tokens(file: Path | None) -> tuple[AuthToken, ...]:
    """Return the authorization token in a file, as it stands there but for white space around it.

    Its Token Type is that of tokens agreed on out of band. None when no file is named. Raises:
    CommandError.
    """
    if file is None:
        return ()
    try:
        with file.open("rb") as opened:
            value = opened.read(MAX_AUTH_TOKEN_OCTETS + 1)
    except OSError as error:
        raise _unreadable("token file", file, error) from error
    if len(value) > MAX_AUTH_TOKEN_OCTETS:
        raise CommandError(
            ExitCode.USAGE, f"token file {file}: the token is over {MAX_AUTH_TOKEN_OCTETS} octets"
        )
    value = value.strip()
    if not value:
        raise CommandError(ExitCode.USAGE, f"token file {file}: it holds no token")
    return (AuthToken(OUT_OF_BAND, value, is_reusable=True),)


def need_tokens(source: str | None) -> Tokens:
    """Return the token ids of a file, or of stdin for "-".

    A JSON array, whitespace-separated decimal text, or an .npy array of integers; told apart by
    content. Ranges are the library's to check.
    """
    if source is None:
        raise CommandError(ExitCode.USAGE, "no tokens", hint="--tokens FILE, or - for stdin")
    if source == "-":
        where = "stdin"
        octets = sys.stdin.buffer.read(MAX_TOKENS_OCTETS + 1)
        if len(octets) > MAX_TOKENS_OCTETS:
            raise CommandError(ExitCode.USAGE, f"stdin: is over {MAX_TOKENS_OCTETS} octets")
    else:
        where = source
        octets = read_file(Path(source), MAX_TOKENS_OCTETS)
    try:
        return _tokens(octets)
    except (ValueError, EOFError) as error:
        raise CommandError(
            ExitCode.USAGE,
            f"{where}: not token ids: {error}",
            hint="expected a JSON array, integers with spaces between them, or .npy",
        ) from error


def _tokens(octets: bytes) -> Tokens:
    if octets.startswith(b"\x93NUMPY"):
        array: AnyArray = np.load(io.BytesIO(octets), allow_pickle=False)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"an array of {array.dtype}, shape {array.shape}, not one of integers")
        return array
    text = octets.strip()
    if text.startswith(b"["):
        ids: list[int] = ijson.parse(text, max_octets=MAX_TOKENS_OCTETS)
        if not {int}.issuperset(map(type, ids)):
            raise ValueError("an array of something other than integers")
        return ids
    words = text.split()
    for position, word in enumerate(words):
        if not word.isdigit() or len(word) > 10:
            raise ValueError(f"word {position} is {word[:20].decode('ascii', 'replace')!r}")
    return [int(word) for word in words]


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or "[IPv6]:PORT"; port 0 lets the system choose."""
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not (separator and host and port.isascii() and port.isdigit() and int(port) < 65536) or (
        ":" in host and not bracketed
    ):
        raise CommandError(
            ExitCode.USAGE,
            f"{text!r} is no address",
            hint="expected HOST:PORT or [IPv6]:PORT, for example 127.0.0.1:4443",
        )
    return host, int(port)


def parse_namespace(text: str) -> TrackNamespace:
    """Return the namespace of its text form, which may end in the "--" of a Full Track Name.

    Raises: ValueError that says what is wrong with it.
    """
    return FullTrackName.parse(text if "--" in text else text + "--").namespace


def parse_layers(text: str | None) -> range | None:
    """Return the layers of "a-b" (both inclusive) or "a"; None for None, which is all."""
    if text is None:
        return None
    match = _LAYERS.fullmatch(text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise CommandError(
            ExitCode.USAGE, f"{text!r} is no range of layers", hint="expected a-b with a <= b, or a"
        )
    return range(int(match[1]), int(match[2] or match[1]) + 1)
