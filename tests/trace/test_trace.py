"""The register of requirements: read strictly, matched both ways, and its document current."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.trace import __main__ as program
from tests.trace.register import Register, State, find_tests, load_rows, mentions
from tests.trace.report import markdown, table

if TYPE_CHECKING:
    from pathlib import Path


def row(row_id: str, state: str = "tested", reason: str = "", **changed: str) -> str:
    fields = {
        "section": "3.1",
        "strength": "MUST",
        "actor": "publisher",
        "text": f"Do what {row_id} asks",
        "state": state,
    } | changed
    if reason:
        fields["reason"] = reason
    return f'["{row_id}"]\n' + "".join(f'{key} = "{value}"\n' for key, value in fields.items())


def register(tests: dict[str, list[str]], *rows: str) -> Register:
    return Register(load_rows("\n".join(rows)), tests)


def test_a_register_without_a_gap() -> None:
    whole = register(
        {"3.1#1": ["a.py::test_a"]}, row("3.1#1"), row("3.1#2", "implied", "the QUIC stack does it")
    )
    assert whole.gaps() == []
    assert whole.counts() == {State.TESTED: 1, State.IMPLIED: 1, State.EXCEPTION: 0}


@pytest.mark.parametrize(
    ("tests", "one_row", "gap"),
    [
        ({}, row("3.1#1"), "3.1#1: tested, but no test names it (Do what 3.1#1 asks)"),
        ({}, row("3.1#1", "exception"), "3.1#1: exception without a reason"),
        (
            {"3.1#1": ["a.py::test_a"]},
            row("3.1#1", "implied", "because"),
            "3.1#1: implied, but a.py::test_a names it",
        ),
        (
            {"3.1#1": ["a.py::test_a"]},
            row("3.1#1", "tested", "because"),
            "3.1#1: tested, but has a reason; drop one of the two",
        ),
        (
            {"3.1#1": ["a.py::test_a"], "3.1#9": ["a.py::test_b"]},
            row("3.1#1"),
            "3.1#9: named by a.py::test_b, but no such row",
        ),
    ],
)
def test_every_gap_is_named(tests: dict[str, list[str]], one_row: str, gap: str) -> None:
    assert register(tests, one_row).gaps() == [gap]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (row("3.1#1") + row("3.1#1"), "3.1#1"),
        (row("3.1-1"), "row '3.1-1': not an ID"),
        (row("3.1#1", strength="OUGHT"), "row 3.1#1: 'OUGHT' is not a valid Strength"),
        (row("3.1#1", "todo"), "row 3.1#1: 'todo' is not a valid State"),
        (row("3.1#1", actor="relay"), "row 3.1#1: 'relay' is not a valid Actor"),
        (row("3.1#1", text=" "), "row 3.1#1: text is ' '"),
        (row("3.1#1", note="x"), "row 3.1#1: expected actor,"),
        ('["3.1#1"]\nsection = "3.1"\n', "row 3.1#1: expected actor,"),
        ('"3.1#1" = 4\n', "row 3.1#1: expected actor,"),
    ],
)
def test_a_broken_register_is_refused(source: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        load_rows(source)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("docstring", "ids"),
    [
        ("3.1#1.", ["3.1#1"]),
        ("9.20#2, #3, 6.5#2: what it shows.", ["9.20#2", "9.20#3", "6.5#2"]),
        ("K3.5#1 and AMB#4.", ["K3.5#1", "AMB#4"]),
        ("9#1: of chapter 9.", ["9#1"]),
        ("#3 alone belongs to nothing, MOQT-22 3.1 is no row.", []),
        ("x3.1#1, ticket#2", []),
    ],
)
def test_ids_in_a_docstring(docstring: str, ids: list[str]) -> None:
    assert list(mentions(docstring)) == ids


def test_only_tests_show_a_row(tmp_path: Path) -> None:
    source = '''
"""1.1#1: a module is no test."""
def helper():
    """1.1#2."""
def test_plain():
    """1.1#3, 1.1#3: twice is once."""
    # 1.1#4
async def test_async():
    """1.1#3, 1.1#5."""
class TestGroup:
    """1.1#6."""
    def test_inner(self):
        """1.1#7."""
'''
    (tmp_path / "test_a.py").write_text(source, "utf-8")
    assert find_tests([tmp_path / "test_a.py"], tmp_path) == {
        "1.1#3": ["test_a.py::test_plain", "test_a.py::test_async"],
        "1.1#5": ["test_a.py::test_async"],
        "1.1#6": ["test_a.py::TestGroup"],
        "1.1#7": ["test_a.py::TestGroup::test_inner"],
    }


def test_rows_are_in_the_order_of_their_documents() -> None:
    rows = [row(i) for i in ("K3.1#1", "10.7#1", "AMB#2", "9.20.1#1", "9.20#2", "9.20#10", "9.2#1")]
    order = [one.id for one in register({}, *rows).sorted_rows()]
    assert order == ["9.2#1", "9.20#2", "9.20#10", "9.20.1#1", "10.7#1", "AMB#2", "K3.1#1"]


def test_table_and_document_show_tests_and_reasons() -> None:
    shown = register(
        {"3.1#1": ["a.py::test_a", "b.py::test_b"]},
        row("3.1#1", text="a | b"),
        row("3.1#2", "exception", "we send none"),
        row("3.1#3"),
    )
    lines = table(shown).splitlines()
    assert lines[1].split() == "3.1 3.1#1 MUST tested a.py::test_a and 1 more".split()
    assert lines[2].endswith("exception  we send none")
    assert lines[3].endswith("tested     -")
    document = markdown(shown)
    assert "3 rows: 2 tested, 0 implied, 1 exception." in document
    assert "| a \\| b | tested | `a.py::test_a`<br>`b.py::test_b` |" in document
    assert "| exception | we send none |" in document


def test_exit_code_and_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = register({"3.1#1": ["a.py::test_a"]}, row("3.1#1"))
    monkeypatch.setattr(program, "read", lambda: whole)
    assert program.main(["--markdown", str(tmp_path / "out.md")]) == 0
    assert capsys.readouterr().out.endswith("1 rows: 1 tested, 0 implied, 0 exception; no gaps\n")
    assert (tmp_path / "out.md").read_text("utf-8") == markdown(whole)

    monkeypatch.setattr(program, "read", lambda: register({}, row("3.1#1")))
    assert program.main(["--gaps"]) == 1
    assert capsys.readouterr().out.startswith("gap: 3.1#1: tested, but no test names it")

    monkeypatch.setattr(program, "read", lambda: register({}, row("3.1")))
    assert program.main([]) == 1
    assert "row '3.1': not an ID" in capsys.readouterr().err


def test_the_document_is_current() -> None:
    path = program.TESTS.parent / "docs" / "requirements.md"
    assert path.read_text("utf-8") == markdown(program.read()), "make trace writes it anew"
