"""README and docs/: what they quote compiles, and what they link to exists."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        text = document.read_text("utf-8")
        for match in FENCE.finditer(text):
            if match[1] == language:
                line = text[: match.start()].count("\n") + 2
                found.append((f"{relative(document)}:{line}", match[2]))
    return found


def anchors(document: Path) -> set[str]:
    """Anchors that a Markdown renderer gives the document's headings."""
    text = FENCE.sub("", document.read_text("utf-8"))
    headings = re.findall(r"^#+ +(.+?)#*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_resolve(document: Path) -> None:
    text = FENCE.sub("", document.read_text("utf-8"))
    broken = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_python_blocks_compile() -> None:
    blocks = code_blocks("python")
    assert blocks, "README shows no Python: has the fence's language changed?"
    for where, source in blocks:
        compile(source, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_shell_blocks_parse() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    for language in ("sh", "bash", "shell"):
        for where, source in code_blocks(language):
            result = subprocess.run([bash, "-n"], input=source, text=True, capture_output=True)
            assert result.returncode == 0, f"{where}: {result.stderr}"


def test_json_and_toml_blocks_parse() -> None:
    for _where, source in code_blocks("json"):
        json.loads(source)
    for _where, source in code_blocks("toml"):
        tomllib.loads(source)
