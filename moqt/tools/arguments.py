"""What the tools' arguments are read by: each says what is wrong in a line of argparse's."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

from moqt.session.access.authorization import OUT_OF_BAND, AuthToken
from moqt.tls import load_trust
from moqt.types import TrackNamespace

__all__ = ["certificates", "folder", "namespace", "reason", "seconds", "tokens"]

MAX_SECONDS = 3600.0

MAX_TOKEN_OCTETS = 4096
"""The longest authorization token that is read from a file; it has to fit into messages."""


def reason(error: OSError) -> str:
    """Return why a file cannot be had, without number and name."""
    return (error.strerror or type(error).__name__).lower()


def seconds(text: str) -> float:
    """Read a time limit in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MAX_SECONDS:
        raise ArgumentTypeError(f"{text!r}, expected seconds: more than 0, {MAX_SECONDS:g} at most")
    return value


def namespace(text: str) -> TrackNamespace:
    """Read a namespace's text form, with or without the "--" that ends it in a Full Track Name."""
    try:
        return TrackNamespace.parse(text.removesuffix("--"))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def certificates(text: str) -> bytes:
    """Read the certificates of a file, as PEM."""
    try:
        return load_trust(Path(text))
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {reason(error)}") from error
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def tokens(text: str) -> tuple[AuthToken, ...]:
    """Read the authorization token in a file, as it stands there but for white space around it.

    Its Token Type is that of tokens agreed on out of band. A file that is not there is not named:
    who mistakes the option gives the token itself.
    """
    try:
        with Path(text).open("rb") as file:
            value = file.read(MAX_TOKEN_OCTETS + 1)
    except OSError as error:
        raise ArgumentTypeError(f"the file that it names: {reason(error)}") from error
    if len(value) > MAX_TOKEN_OCTETS:
        raise ArgumentTypeError(f"{text}: longer than a token may be, {MAX_TOKEN_OCTETS} octets")
    value = value.strip()
    if not value:
        raise ArgumentTypeError(f"{text}: no token in it")
    return (AuthToken(OUT_OF_BAND, value, is_reusable=True),)


def folder(text: str) -> Path:
    """Return a folder, made if it was not there."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ArgumentTypeError(f"{text}: a file, expected a folder") from error
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {reason(error)}") from error
    return path
