"""`python -m moqt.tools.dump`: captured octets, or a qlog, with names.

Exit codes: 0 all could be read, 1 something could not, 2 a wrong command line, or no such file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moqt.codes import GroupOrder
from moqt.errors import RemoteProtocolError, printable
from moqt.tools.arguments import reason
from moqt.tools.pipes import until_reader_goes
from moqt.tools.timeline import NotQlog, escaped, read_events, timeline
from moqt.trace.decoder import Malformed, StreamDecoder
from moqt.trace.describe import describe
from moqt.types import Object
from moqt.wire.datagrams import parse_datagram
from moqt.wire.messages import Message, Setup
from moqt.wire.streams import ControlHead, FetchHeader, SubgroupHeader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moqt.trace.decoder import StreamValue

__all__ = ["Kind", "decode", "main", "parse_hex"]

MAX_OCTETS = 64 << 20
"""The longest input that is read."""

_SEPARATORS = re.compile(r"0x|[\s:,]+", re.IGNORECASE)
_LABEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Kind(StrEnum):
    """What octets are taken for."""

    CONTROL = "control"
    """A control stream: SETUP, then GOAWAY."""
    SETUP = "setup"
    """The same."""
    REQUEST = "request"
    """One direction of a request stream: messages."""
    SUBGROUP = "subgroup"
    FETCH = "fetch"
    DATAGRAM = "datagram"
    """One datagram."""


_HEADS = {
    Kind.CONTROL: (ControlHead, "a control stream, which begins with SETUP (af 00)"),
    Kind.SETUP: (ControlHead, "a control stream, which begins with SETUP (af 00)"),
    Kind.SUBGROUP: (SubgroupHeader, "a subgroup stream, of type 0x10 to 0x7f with bit 0x10 set"),
    Kind.FETCH: (FetchHeader, "a fetch stream, which begins with its type 0x5"),
}

Record = dict[str, Any]
"""`offset`, `kind`, then the fields; `error` in place of a kind where octets cannot be read."""


def parse_hex(text: str) -> bytes:
    """Read hex digits, with blanks, colons, commas or 0x between them.

    Raises: ValueError that says where something else stands.
    """
    digits = _SEPARATORS.sub("", text)
    wrong = re.search(r"[^0-9a-fA-F]", digits)
    if wrong is not None:
        found = printable(wrong[0])
        raise ValueError(f"digit {wrong.start()} is {found!r}, expected a hex digit")
    if len(digits) % 2:
        raise ValueError(f"{len(digits)} hex digits, expected an even number")
    return bytes.fromhex(digits)


def decode(kind: Kind, octets: bytes, *, descending: bool = False) -> list[Record]:
    """Return what `octets` say, from offset 0 on, up to where they cannot be read.

    `descending`: a FETCH that asked for descending Groups. Never raises for what octets are.
    """
    if kind is Kind.DATAGRAM:
        return [_datagram(octets)]
    order = GroupOrder.DESCENDING if descending else GroupOrder.ASCENDING
    decoder = StreamDecoder(
        is_request=kind is Kind.REQUEST, group_order_of=lambda _: order, exact=True
    )
    if not octets:
        return [{"offset": 0, "error": f"no octets, expected {_expectation(kind)}"}]
    records: list[Record] = []
    for decoded in decoder.receive(0, octets, False):
        value = decoded.value
        if kind in _HEADS and not records and not _is_expected(kind, value):
            return [{"offset": 0, "error": f"{_name(value)}, expected {_expectation(kind)}"}]
        if isinstance(value, Malformed):
            hint = "" if records else f"; expected {_expectation(kind)}"
            records.append({"offset": decoded.offset, "error": value.reason + hint})
        elif isinstance(value, Object):
            fields = describe(value.header, whole=True)
            records.append({"offset": decoded.offset, "kind": "Object", **fields})
        elif not isinstance(value, ControlHead):
            fields = describe(value, whole=True)
            records.append({"offset": decoded.offset, "kind": _name(value), **fields})
    if decoder.unfinished is not None:
        records.append({"offset": decoder.position, "error": f"cut: {decoder.unfinished}"})
    return records


def _datagram(octets: bytes) -> Record:
    try:
        value = parse_datagram(octets)
    except RemoteProtocolError as error:
        return {"offset": 0, "error": error.reason}
    return {"offset": 0, "kind": _name(value), **describe(value, whole=True)}


def _is_expected(kind: Kind, value: StreamValue) -> bool:
    return isinstance(value, (_HEADS[kind][0], Malformed, Setup))


def _expectation(kind: Kind) -> str:
    return _HEADS[kind][1] if kind in _HEADS else "messages of a request stream"


def _name(value: object) -> str:
    if isinstance(value, Message):
        return value.TYPE.name
    return _LABEL.sub(" ", type(value).__name__.removesuffix("Read"))


def _lines(records: list[Record]) -> Iterator[str]:
    for record in records:
        offset = record["offset"]
        if "error" in record:
            yield f"@{offset}  cannot be read: {escaped(record['error'])}"
            continue
        yield f"@{offset}  {record['kind']}"
        fields = {name: part for name, part in record.items() if name not in ("offset", "kind")}
        yield from (f"      {line}" for line in _flat(fields, ""))


def _flat(value: Any, path: str) -> Iterator[str]:
    if value == {}:
        yield f"{path}: (empty)"
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _flat(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _flat(part, f"{path}[{number}]")
    else:
        of_nothing = "(all)" if path.endswith("prefix") else ""
        yield f"{path}: {escaped(str(value)) or of_nothing}"


_EPILOG = """\
examples:
  python -m moqt.tools.dump trace.qlog
  python -m moqt.tools.dump --kind request 1000020000
  python -m moqt.tools.dump --kind subgroup stream.bin
  xxd -p stream.bin | python -m moqt.tools.dump --kind control -

Exit codes: 0 all could be read, 1 something could not, 2 a wrong command line, or no such file.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m moqt.tools.dump",
        description="Show what captured octets or a qlog say, field by field.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "source",
        metavar="HEX|FILE|-",
        nargs="*",
        help="hex digits, in one word or several; or a file, or - for standard input (the default),"
        " with hex digits or raw octets; without --kind: a qlog",
    )
    parser.add_argument("--kind", choices=[kind.value for kind in Kind], help="what the octets are")
    parser.add_argument(
        "--descending",
        action="store_true",
        help="with --kind fetch: it asked for descending Groups",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.descending and asked.kind != Kind.FETCH:
        parser.error("--descending is for --kind fetch")
    if len(asked.source) > 1 and asked.kind is None:
        parser.error("one qlog at a time; for hex digits say what they are with --kind")
    source = " ".join(asked.source) or "-"
    if source == "-" and sys.stdin.isatty():
        parser.error("name a file or give hex digits: standard input is a terminal")
    try:
        if asked.kind is None:
            return _dump_qlog(source, as_json=asked.json)
        octets = _read_octets(source)
    except BrokenPipeError:
        raise
    except OSError as error:
        parser.error(f"{_short(source)}: {reason(error)}")
    except ValueError as error:
        parser.error(f"{_short(source)}: {error}")
    except NotQlog as error:
        print(f"error: {_short(source)}: {error}", file=sys.stderr)
        return 1
    records = decode(Kind(asked.kind), octets, descending=asked.descending)
    print(json.dumps(records, indent=2) if asked.json else "\n".join(_lines(records)))
    return 1 if any("error" in record for record in records) else 0


def _short(source: str) -> str:
    return "standard input" if source == "-" else source if len(source) < 80 else "input"


def _dump_qlog(source: str, *, as_json: bool) -> int:
    if source != "-" and not _is_file(source):
        raise ValueError("no such file; for hex digits say what they are with --kind")
    events = read_events(_limited(source))
    if as_json:
        print(json.dumps(events, indent=2))
    else:
        for line in timeline(events):
            print(line)
    return 0


def _read_octets(source: str) -> bytes:
    if source != "-" and not _is_file(source):
        try:
            return parse_hex(source)
        except ValueError as error:
            raise ValueError(f"no such file, and no hex digits: {error}") from error
    content = _limited(source)
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        return content
    if not text.isprintable() and any(c not in "\t\r\n" and not c.isprintable() for c in text):
        return content
    if text.lstrip().startswith("{"):
        raise ValueError("JSON, expected octets or hex digits; a qlog is read without --kind")
    return parse_hex(text)


def _is_file(source: str) -> bool:
    try:
        if Path(source).is_dir():
            raise ValueError("a folder, expected a file")
        return Path(source).exists()
    except OSError:  # too long for a name: hex digits
        return False


def _limited(source: str) -> bytes:
    if source == "-":
        content = sys.stdin.buffer.read(MAX_OCTETS + 1)
    else:
        with Path(source).open("rb") as file:
            content = file.read(MAX_OCTETS + 1)
    if len(content) > MAX_OCTETS:
        raise ValueError(f"more than {MAX_OCTETS >> 20} MiB, which is the most that is read")
    return content


if __name__ == "__main__":
    sys.exit(until_reader_goes(main))
