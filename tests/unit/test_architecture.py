"""docs/architecture.md names the rooms as they are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules(package: str) -> set[str]:
    found = set()
    for path in (ROOT / package).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] != "__main__":
            found.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


MODULES = modules("moqt") | modules("kvcs")


def rooms() -> set[str]:
    """Return the modules and folders that the page's first block names, left of what it says."""
    block = (ROOT / "docs" / "architecture.md").read_text("utf-8").split("```")[1]
    named: set[str] = set()
    folders: dict[int, str] = {}
    for line in block.splitlines():
        indent = len(line) - len(line.lstrip())
        folders = {each: name for each, name in folders.items() if each < indent}
        parent = folders[max(folders)] + "." if folders else ""
        for word in line.strip().split("  ")[0].split():
            name = parent + word.rstrip("/")
            named.add(name)
            if word.endswith("/"):
                folders[indent] = name
    return {name for name in named if name.startswith(("moqt", "kvcs"))}


def test_the_page_names_every_module() -> None:
    """A folder of which it names no file is listed as a whole."""
    named = rooms()
    wholes = tuple(f"{name}." for name in named if not any(n.startswith(f"{name}.") for n in named))
    missing = {name for name in MODULES - named if not name.startswith(wholes)}
    assert not missing


def test_the_page_names_nothing_that_is_gone() -> None:
    assert not rooms() - MODULES
