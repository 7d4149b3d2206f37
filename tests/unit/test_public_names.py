"""Every `__all__` is sorted, and names all that its module makes public."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_with_all() -> list[str]:
    found = []
    for package in ("moqt", "kvcs"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "\n__all__ = " in path.read_text():
                parts = list(path.relative_to(ROOT).with_suffix("").parts)
                found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def source_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("module", modules_with_all())
def test_names_exist_once_and_are_sorted(module: str) -> None:
    loaded = importlib.import_module(module)
    names = loaded.__all__
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=_ruff_order)
    for name in names:
        assert getattr(loaded, name) is not None


@pytest.mark.parametrize("module", modules_with_all())
def test_what_a_module_defines_in_public_is_named(module: str) -> None:
    names = set(importlib.import_module(module).__all__)
    for node in ast.parse(source_of(module).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.name.startswith("_") or node.name in names, f"{module}.{node.name}"


@pytest.mark.parametrize("package", ["moqt", "kvcs"])
def test_the_packages_say_what_is_public(package: str) -> None:
    loaded = importlib.import_module(package)
    assert loaded.__all__
    assert set(loaded.__all__) <= set(dir(loaded))


def test_an_unknown_name_of_moqt_is_an_attribute_error() -> None:
    import moqt

    with pytest.raises(AttributeError, match="nonesuch"):
        _ = moqt.nonesuch


def _ruff_order(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions, as ruff sorts them."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return (kind, name)
