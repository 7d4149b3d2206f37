"""Every `__all__` is sorted and true, and the packages' own are complete."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILES = [path for package in ("moqt", "kvcs") for path in sorted((ROOT / package).rglob("*.py"))]
INITS = [path for path in FILES if path.name == "__init__.py"]


def public_list(path: Path) -> list[str] | None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "__all__":
                names: list[str] = ast.literal_eval(node.value)
                return names
    return None


def bound_names(body: list[ast.stmt]) -> set[str]:
    """Return what the statements define or import, guarded imports included."""
    names: set[str] = set()
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Assign():
                for target in node.targets:
                    names.update(t.id for t in ast.walk(target) if isinstance(t, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Import() | ast.ImportFrom():
                names.update(alias.asname or alias.name for alias in node.names)
            case ast.If() | ast.Try():
                names |= bound_names(node.body)
    return names


def sort_key(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions: as ruff sorts them."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return kind, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_module_calls_public_is_there_once_and_sorted(path: Path) -> None:
    names = public_list(path)
    if names is None:
        return
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=sort_key)
    body = ast.parse(path.read_text()).body
    if path not in INITS:  # those load what they gather when it's asked for
        body = [node for node in body if not is_for_types(node)]
    assert set(names) <= bound_names(body)


def is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("path", INITS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_package_gathers_is_public(path: Path) -> None:
    gathered: set[str] = set()
    body = ast.parse(path.read_text()).body
    for node in [
        *body,
        *(inner for outer in body if isinstance(outer, ast.If) for inner in outer.body),
    ]:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("moqt", "kvcs")):
            gathered.update(alias.asname or alias.name for alias in node.names)
    assert {name for name in gathered if not name.startswith("_")} <= set(public_list(path) or [])


@pytest.mark.parametrize("package", ["moqt", "kvcs"])
def test_what_the_packages_call_public_can_be_had(package: str) -> None:
    loaded = importlib.import_module(package)
    assert loaded.__all__
    for name in loaded.__all__:
        assert getattr(loaded, name) is not None
        assert name in dir(loaded)


def test_an_unknown_name_of_moqt_is_an_attribute_error() -> None:
    moqt = importlib.import_module("moqt")
    with pytest.raises(AttributeError, match="nonesuch"):
        moqt.nonesuch  # noqa: B018


PARTS = {
    "AdvertisedT",
    "AuthorizationToken",
    "Driver",
    "Event",
    "ItemT",
    "LocationFilterType",
    "LocationRange",
    "NamespaceListener",
    "Parameters",
    "Reader",
    "Request",
    "RequestError",
    "StoredObject",
    "StoredSubgroup",
    "TrackListener",
    "Writer",
}
"""What methods name that the parts of moqt call on each other, and no application has to."""


def annotated(definition: ast.stmt) -> Iterator[ast.expr]:
    """Yield the annotations of a function, or of a class's public methods and fields."""
    match definition:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            arguments = [*definition.args.args, *definition.args.kwonlyargs]
            yield from (each.annotation for each in arguments if each.annotation is not None)
            if definition.returns is not None:
                yield definition.returns
        case ast.ClassDef():
            for member in definition.body:
                if not getattr(member, "name", "").startswith("_"):
                    yield from annotated(member)
        case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
            yield definition.annotation


def named_of_moqt(item: Any) -> set[str]:
    """Return which names of moqt the public signatures of a class or function use."""
    named: set[str] = set()
    for owner in inspect.getmro(item) if inspect.isclass(item) else (item,):
        if not owner.__module__.startswith("moqt"):
            continue
        tree = ast.parse(inspect.getsource(importlib.import_module(owner.__module__)))
        known = bound_names(
            [node for node in tree.body if isinstance(node, ast.ClassDef | ast.Assign)]
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("moqt"):
                known.update(alias.asname or alias.name for alias in node.names)
        for definition in tree.body:
            if getattr(definition, "name", None) == owner.__name__:
                for node in (n for each in annotated(definition) for n in ast.walk(each)):
                    match node:
                        case ast.Name(id=name) if name in known - {"errors", "events"}:
                            named.add(name)
                        case ast.Attribute(value=ast.Name(id="errors" | "events"), attr=name):
                            named.add(name)
    return named


def test_signatures_of_public_names_name_public_names() -> None:
    moqt = importlib.import_module("moqt")
    public = set(moqt.__all__) | set(vars(moqt.errors)) | set(moqt.events.__all__)
    needed: dict[str, str] = {}
    for name in moqt.__all__:
        item: Any = getattr(moqt, name)
        if inspect.isclass(item) or inspect.isfunction(item):
            needed |= dict.fromkeys(named_of_moqt(item), name)
    assert {name: user for name, user in needed.items() if name not in public | PARTS} == {}


@pytest.mark.parametrize(
    ("verb", "options"), [("subscribe", "SubscribeOptions"), ("fetch", "FetchOptions")]
)
def test_every_way_to_ask_for_a_track_takes_the_same_options(verb: str, options: str) -> None:
    """Defaults too, and in the same order; what follows them is no part of the request."""
    moqt = importlib.import_module("moqt")
    core = importlib.import_module("moqt.session.core")
    fields = [(each.name, each.default) for each in dataclasses.fields(getattr(moqt, options))]
    for owner in (moqt.MoqtSession, moqt.Client, core.Session):
        parameters = inspect.signature(getattr(owner, verb)).parameters.values()
        keywords = [(p.name, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY]
        assert keywords[: len(fields)] == fields
        assert {name for name, _ in keywords[len(fields) :]} <= {"sink", "timeout_s", "now"}
