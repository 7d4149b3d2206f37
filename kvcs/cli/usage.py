"""How `--help` looks: flags without the type that Typer prints, paragraphs as paragraphs."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup, TyperOption

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HELP_OPTIONS", "Command", "Group"]

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
"""Context settings of the application."""

_BREAK = re.compile(r"(?<!\n)\n(?!\n)")


def _joined(text: str | None) -> str | None:
    """Return each paragraph in one line: it is wrapped anew, to the width of the terminal."""
    return None if text is None else _BREAK.sub(" ", inspect.cleandoc(text))


def _hide_flags_type(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and parameter.is_flag:
            parameter.metavar = ""


class Command(TyperCommand):
    """A command whose help reads well."""

    def __init__(self, *args: Any, help: str | None = None, **rest: Any) -> None:
        super().__init__(*args, help=_joined(help), **rest)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, `--help` among them."""
        parameters = super().get_params(ctx)
        _hide_flags_type(parameters)
        return parameters


class Group(TyperGroup):
    """A group of commands whose help reads well."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, `--help` among them."""
        parameters = super().get_params(ctx)
        _hide_flags_type(parameters)
        return parameters
