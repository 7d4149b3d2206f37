"""Exit codes, and which error means which (docs/cli.md)."""

from __future__ import annotations

import errno
import os
import ssl
from dataclasses import dataclass
from enum import IntEnum

import typer

from kvcs import errors
from moqt.codes import RequestErrorCode
from moqt.errors import (
    ConnectFailed,
    ConnectProblem,
    MoqtError,
    NotSupported,
    RequestRejected,
    SessionClosed,
)
from moqt.tools.pipes import READER_GONE

__all__ = ["CommandError", "ExitCode", "Failure", "explain"]


class ExitCode(IntEnum):
    """What a command's end means to a script."""

    OK = 0
    INTERNAL = 1
    """A bug in this program."""
    USAGE = 2
    """The arguments, the environment, or the input that they name cannot be used."""
    NOT_FOUND = 3
    """Nobody publishes the prefix or a shorter one, or the publication is gone."""
    INCOMPLETE = 4
    """Some layers could not be had; what could is delivered."""
    UNVERIFIED = 5
    """A signature, a digest or a manifest does not hold."""
    CONNECTION = 6
    """The peer could not be reached, refused, or was lost; or the own port could not be had."""
    FILE = 7
    """A file cannot be read or written, or exists and --force was not given."""
    INTERRUPTED = 130
    """Ctrl-C: 128 + SIGINT."""
    BROKEN_PIPE = READER_GONE
    """Whoever read the output went away: 128 + SIGPIPE."""
    TERMINATED = 143
    """128 + SIGTERM."""


class CommandError(Exception):
    """Ends the command with `code`; `hint` says what to do about it."""

    def __init__(self, code: ExitCode, problem: str, *, hint: str = "") -> None:
        super().__init__(problem)
        self.code = code
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Failure:
    """How a command ended: the code, one line for people, and what to do."""

    code: ExitCode
    problem: str
    hint: str = ""


def _of_kvcs(error: errors.KvcsError) -> Failure:
    problem = str(error)
    match error:
        case errors.PublicationNotFound():
            return Failure(
                ExitCode.NOT_FOUND,
                problem,
                "the scope key, the descriptor and the tokens must be the producer's: "
                "compare with `kvcs id`",
            )
        case errors.PublicationGone():
            return Failure(ExitCode.NOT_FOUND, problem)
        case errors.IncompleteRetrieval():
            return Failure(ExitCode.INCOMPLETE, problem)
        case errors.UnknownKey():
            return Failure(
                ExitCode.UNVERIFIED, problem, "name the producer's public key with --trust"
            )
        case errors.CompatibilityMismatch():
            return Failure(ExitCode.UNVERIFIED, problem)
        case (
            errors.InvalidDescriptor()
            | errors.InvalidKey()
            | errors.InvalidName()
            | errors.InvalidTokens()
            | errors.ProductionError()
            | errors.TensorMismatch()
        ):
            return Failure(ExitCode.USAGE, problem)
    return Failure(ExitCode.UNVERIFIED, problem)


_DENIALS = frozenset({"UNAUTHORIZED", "MALFORMED_AUTH_TOKEN", "EXPIRED_AUTH_TOKEN"})
"""Codes of requests and of sessions alike."""


def _of_moqt(error: MoqtError) -> Failure:
    if isinstance(error, NotSupported):
        return Failure(ExitCode.USAGE, str(error))
    if isinstance(error, ConnectFailed):
        return Failure(ExitCode.CONNECTION, str(error), _connect_hint(error))
    if isinstance(error, RequestRejected) and error.code is RequestErrorCode.DOES_NOT_EXIST:
        return Failure(ExitCode.NOT_FOUND, str(error))
    if isinstance(error, RequestRejected | SessionClosed) and error.code.name in _DENIALS:
        return Failure(
            ExitCode.CONNECTION, str(error), "--token-file FILE gives the token that is asked for"
        )
    if isinstance(error, RequestRejected) and error.code is RequestErrorCode.UNINTERESTED:
        return Failure(
            ExitCode.CONNECTION, str(error), "--relay takes a relay; this may be a publisher itself"
        )
    return Failure(ExitCode.CONNECTION, str(error))


def _connect_hint(error: ConnectFailed) -> str:
    """Return what to do, by what went wrong."""
    match error.problem:
        case ConnectProblem.UNTRUSTED:
            return "--ca FILE names the certificate to trust"
        case ConnectProblem.NAME:
            return "is the host's name right?"
        case ConnectProblem.UNREACHABLE:
            return "are host and port right, and does a producer or relay run there?"
        case ConnectProblem.PROTOCOL:
            return "is it a producer, or a relay of MOQT draft 22?"
    return ""


def _of_system(error: OSError) -> Failure:
    if isinstance(error, ssl.SSLError):
        return Failure(
            ExitCode.CONNECTION, str(error), "name the CA or certificate to trust with --ca"
        )
    if error.filename is not None:
        reason = error.strerror or type(error).__name__
        hint = "--force overwrites it" if isinstance(error, FileExistsError) else ""
        return Failure(ExitCode.FILE, f"{os.fspath(error.filename)}: {reason}", hint)
    hint = "port 0 takes any that is free" if error.errno == errno.EADDRINUSE else ""
    return Failure(ExitCode.CONNECTION, error.strerror or str(error) or type(error).__name__, hint)


def explain(error: BaseException) -> Failure:
    """Return what `error` means for the command that it ended.

    A group that holds one error means what that error means.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return Failure(ExitCode.INTERRUPTED, "interrupted")
    if isinstance(error, CommandError):
        return Failure(error.code, str(error), error.hint)
    if isinstance(error, typer.TyperException):
        return Failure(ExitCode.USAGE, error.format_message(), "add --help for what is possible")
    if isinstance(error, errors.KvcsError):
        return _of_kvcs(error)
    if isinstance(error, MoqtError):
        return _of_moqt(error)
    if isinstance(error, OSError):
        return _of_system(error)
    return Failure(
        ExitCode.INTERNAL,
        f"internal error: {type(error).__name__}: {error}",
        "run it again with --debug and report what it prints",
    )
