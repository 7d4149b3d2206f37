"""Who may import whom: docs/architecture.md, checked by walking the source."""

from __future__ import annotations

import ast
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

STANDARD = sys.stdlib_module_names
IO = {"asyncio", "socket", "selectors", "ssl", "threading", "select", "multiprocessing"}
CLOCKS = {"time", "datetime", "random", "secrets"}

RULES: list[tuple[str, set[str], set[str]]] = [
    # module, what of moqt and kvcs it may import, what else it may import (None named: stdlib only)
    ("moqt.types", {"moqt.codes"}, set()),
    ("moqt.codes", set(), set()),
    ("moqt.errors", {"moqt.codes", "moqt.types"}, set()),
    ("moqt.events", {"moqt.session.events"}, set()),
    ("moqt.tls", set(), {"cryptography"}),
    ("moqt.uri", {"moqt.errors"}, set()),
    ("moqt.wire*", {"moqt.types", "moqt.codes", "moqt.errors", "moqt.wire*"}, set()),
    (
        "moqt.session*",
        {"moqt.types", "moqt.codes", "moqt.errors", "moqt.wire*", "moqt.session*"},
        set(),
    ),
    (
        "moqt.trace*",
        {"moqt.types", "moqt.codes", "moqt.errors", "moqt.wire*", "moqt.session.request.reassembly"}
        | {"moqt.trace*"},
        set(),
    ),
    ("moqt.testing*", {"moqt.*"}, set()),
    ("moqt.tools*", {"moqt", "moqt.*"}, set()),
    (  # packets: the AEAD's errors, and packets of one size as a matrix
        "moqt.asyncio.bulk*",
        {
            "moqt.asyncio.bulk*",
            "moqt.asyncio.connection",
            "moqt.asyncio.credit",
            "moqt.asyncio.config",
        }
        | {"moqt.wire.ranges"},
        {"aioquic", "cryptography", "numpy"},
    ),
    (
        "moqt.asyncio*",
        {"moqt", "moqt.types", "moqt.codes", "moqt.errors", "moqt.events", "moqt.uri", "moqt.tls"}
        | {"moqt.wire*", "moqt.session*", "moqt.trace*", "moqt.asyncio*"},
        {"aioquic"},
    ),
    ("moqt", {"moqt.*", "moqt"}, set()),
]
"""The first pattern that fits a module rules it."""

PURE = (
    *("moqt.types", "moqt.codes", "moqt.errors", "moqt.events", "moqt.uri"),
    *("moqt.wire*", "moqt.session*", "moqt.trace*"),
)
"""They know no asyncio, sockets, threads or clocks."""

SESSION_MAKERS = ("kvcs.publisher", "kvcs.endpoints", "kvcs.interop_client*", "kvcs.cli*")
"""All of kvcs that imports what makes sessions, at runtime; types are free."""

MAKING_SESSIONS = ("moqt", "moqt.asyncio*", "moqt.tools*")


def modules(package: str) -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


MOQT = modules("moqt")
KVCS = modules("kvcs")


def imports(path: Path, *, types_too: bool = True) -> Iterator[str]:
    """Yield the modules that a file imports, each name of a `from` import as a module too."""

    def walk(body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            is_for_types = (
                isinstance(node, ast.If)
                and isinstance(node.test, ast.Name)
                and node.test.id == "TYPE_CHECKING"
            )
            if is_for_types and not types_too:
                continue
            yield node
            for field in ("body", "orelse", "finalbody"):
                inner = getattr(node, field, None)
                if isinstance(inner, list):
                    yield from walk(inner)
            for handler in getattr(node, "handlers", []):
                yield from walk(handler.body)

    for node in walk(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MOQT or full in KVCS else node.module


def fits(name: str, patterns: set[str] | tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


@pytest.mark.parametrize("module", sorted(MOQT))
def test_moqt_imports_only_what_its_room_may(module: str) -> None:
    _, own, others = next(rule for rule in RULES if fnmatch(module, rule[0]))
    for name in imports(MOQT[module]):
        if name.split(".", maxsplit=1)[0] in ("moqt", "kvcs"):
            assert fits(name, own), f"{module} imports {name}"
    for name in imports(MOQT[module], types_too=False):
        top = name.split(".", maxsplit=1)[0]
        assert top in STANDARD | others | {"moqt"}, f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(m for m in MOQT if fits(m, PURE)))
def test_the_core_knows_no_io_threads_or_clocks(module: str) -> None:
    for name in imports(MOQT[module]):
        assert name.split(".", maxsplit=1)[0] not in IO | CLOCKS, f"{module} imports {name}"


def test_few_rooms_of_kvcs_make_sessions() -> None:
    """The others are handed them."""
    makers = {
        module
        for module, path in KVCS.items()
        if any(fits(name, MAKING_SESSIONS) for name in imports(path, types_too=False))
    }
    assert [module for module in makers if not fits(module, SESSION_MAKERS)] == []
    assert [rule for rule in SESSION_MAKERS if not any(fnmatch(m, rule) for m in makers)] == []


@pytest.mark.parametrize("module", sorted(KVCS))
def test_nothing_below_the_command_line_imports_it(module: str) -> None:
    if module.startswith("kvcs.cli") or module == "kvcs.__main__":
        return
    for name in imports(KVCS[module]):
        assert not name.startswith("kvcs.cli"), f"{module} imports {name}"


def test_moqt_names_no_part_of_a_model() -> None:
    words = {"layer", "token", "tensor"}
    allowed = {"token", "tokens"}  # AUTHORIZATION_TOKEN (MOQT-22 8.9), and a sink's own token
    for module, path in MOQT.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.arg):
                parts = set(node.arg.split("_"))
                assert not parts & (words - allowed), f"{module}: {node.arg}"


def test_every_file_is_small_enough_to_read() -> None:
    """About 500 lines are the aim; this is where it must be split."""
    long = {
        module: lines
        for module, path in {**MOQT, **KVCS}.items()
        if (lines := path.read_text().count("\n")) > 700
    }
    assert not long


def test_the_sans_io_part_loads_without_asyncio_or_aioquic() -> None:
    import subprocess

    code = (
        "import sys, moqt.session.transport, moqt.wire.filters, moqt.types\n"
        "print([m for m in ('aioquic', 'asyncio') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
