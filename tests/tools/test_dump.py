"""`python -m moqt.tools.dump`: octets and qlogs with names, and clear words for what is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.codes import GroupOrder, RangeStatus, StreamResetCode
from moqt.tools.dump import Kind, decode, main, parse_hex
from moqt.tools.timeline import NotQlog, read_events, timeline
from moqt.types import FullTrackName, Location, ObjectHeader, TrackNamespace
from moqt.wire import vi64
from moqt.wire.fetch_objects import FetchWriter
from moqt.wire.fields import KeyValue
from moqt.wire.filters import LocationFilter
from moqt.wire.framing import encode_message
from moqt.wire.messages import (
    Goaway,
    MessageType,
    Setup,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
)
from moqt.wire.options import SetupOptions
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import ObjectProperties, TrackProperties
from moqt.wire.streams import FetchHeader, SubgroupHeader, encode_subgroup_header
from moqt.wire.tokens import AuthorizationToken

VECTORS: list[dict[str, Any]] = json.loads(
    Path(__file__).parents[1].joinpath("vectors/moqt22.json").read_text()
)["vectors"]
KINDS = {
    "control": Kind.REQUEST,
    "subgroup-stream": Kind.SUBGROUP,
    "fetch-stream": Kind.FETCH,
    "datagram": Kind.DATAGRAM,
}
SECRET = b"not for any log"
TOKEN = AuthorizationToken.use_value(0, SECRET)
NAME = FullTrackName(TrackNamespace.of("live", b"\x00\xff"), b"video")


def sound_vectors() -> list[Any]:
    return [
        pytest.param(KINDS[vector["kind"]], bytes.fromhex(vector["hex"]), id=vector["name"])
        for vector in VECTORS
        if vector["kind"] in KINDS and vector["expect"]["outcome"] == "ok"
    ]


@pytest.mark.parametrize(("kind", "octets"), sound_vectors())
def test_every_sound_vector_can_be_read(kind: Kind, octets: bytes) -> None:
    records = decode(kind, octets)
    assert records
    assert not [record for record in records if "error" in record]


@pytest.mark.parametrize(
    ("kind", "octets"), [p for p in sound_vectors() if p.values[0] is not Kind.DATAGRAM]
)
def test_every_vector_that_is_cut_is_said_to_be(kind: Kind, octets: bytes) -> None:
    records, whole = decode(kind, octets[:-1]), decode(kind, octets)
    assert "error" in records[-1] or len(records) < len(whole)


def test_fields_have_names_and_offsets() -> None:
    octets = encode_message(Goaway("moqt://other/", 500)) + encode_message(Goaway())
    first = {"kind": "GOAWAY", "new_session_uri": "moqt://other/", "timeout_ms": 500}
    assert decode(Kind.REQUEST, octets) == [
        {"offset": 0, **first},
        {"offset": len(octets) - 5, "kind": "GOAWAY", "timeout_ms": 0},
    ]


def test_options_of_setup_are_those_on_the_wire() -> None:
    [empty] = decode(Kind.SETUP, bytes.fromhex("af000000"))
    assert "options" not in empty
    [zero] = decode(Kind.SETUP, bytes.fromhex("af0000020400"))
    assert zero["options"] == {"max_auth_token_cache_size": 0}
    [unnamed] = decode(Kind.SETUP, bytes.fromhex("af0000020700"))
    assert unnamed["options"] == {"implementation": ""}


def test_names_and_locations_read_well() -> None:
    (record,) = decode(Kind.REQUEST, encode_message(Subscribe(4, NAME)))
    assert record["name"] == {
        "track_namespace": "live-.00.ff",
        "full_track_name": "live-.00.ff--video",
    }


def test_objects_of_a_fetch_have_exact_offsets() -> None:
    writer = FetchWriter(FetchHeader(6), GroupOrder.DESCENDING)
    octets, offsets = writer.head, []
    for group_id in (9, 7):
        offsets.append(len(octets))
        header = ObjectHeader(group_id, 0, 0, 128, 300)
        octets += writer.encode(header) + bytes(300)
    offsets.append(len(octets))
    octets += writer.end_of_range(RangeStatus.UNKNOWN, Location(3, 5))
    records = decode(Kind.FETCH, octets, descending=True)
    assert [record["offset"] for record in records] == [0, *offsets]
    assert [record.get("group_id") for record in records] == [None, 9, 7, None]
    assert records[-1]["kind"] == "End Of Range"
    assert records[-1]["last"] == {"group": 3, "object": 5}


def test_a_token_shows_its_length_alone() -> None:
    octets = encode_message(Setup(SetupOptions(path="/a?b", authorization_tokens=(TOKEN,))))
    (record,) = decode(Kind.SETUP, octets)
    assert record["options"]["authorization_tokens"] == [
        {"alias_type": "use_value", "token_type": 0, "value_length": len(SECRET)}
    ]
    assert SECRET.decode() not in str(record)
    assert SECRET.hex() not in str(record)


@pytest.mark.parametrize(
    ("kind", "octets", "expected"),
    [
        (Kind.REQUEST, "", "no octets, expected messages of a request stream"),
        (Kind.CONTROL, "2f00", "unknown unidirectional stream type 0x2f; expected a control str"),
        (Kind.CONTROL, "0504", "Fetch Header, expected a control stream"),
        (Kind.SUBGROUP, "0504", "Fetch Header, expected a subgroup stream"),
        (Kind.FETCH, "af00000100", "Control Head, expected a fetch stream"),
        (Kind.REQUEST, "3f0000", "unknown message type 0x3f, expected one of 0x2 REQUEST_UPDATE"),
        (Kind.REQUEST, "0316", "cut: 2 octets of an unfinished message"),
        (Kind.REQUEST, "10000100", "ends inside"),
        (Kind.DATAGRAM, "40", "unknown type 0x40"),
        (Kind.DATAGRAM, "00", "ends inside Track Alias (octet 1 of 1)"),
        (Kind.SUBGROUP, "1001", "cut: 2 octets of an unfinished stream header"),
    ],
)
def test_what_cannot_be_read_is_said_with_what_was_expected(
    kind: Kind, octets: str, expected: str
) -> None:
    (record,) = decode(kind, bytes.fromhex(octets))
    assert record["offset"] == 0
    assert expected in record["error"]


def test_the_place_of_a_fault_is_its_offset() -> None:
    sound = encode_message(Goaway())
    records = decode(Kind.REQUEST, sound + sound + b"\x3f\x00\x00")
    assert [record["offset"] for record in records] == [0, 5, 10]
    assert "unknown message type 0x3f" in records[2]["error"]


def test_a_payload_that_is_cut_is_counted() -> None:
    records = decode(Kind.SUBGROUP, bytes.fromhex("100100800004dead"))
    assert records[-1] == {
        "offset": 8,
        "error": "cut: Object {0,0}: 2 of 4 payload octets are missing",
    }


@given(st.sampled_from(list(Kind)), st.binary(max_size=200), st.booleans())
def test_any_octets_are_read_or_explained(kind: Kind, octets: bytes, descending: bool) -> None:
    records = decode(kind, octets, descending=descending)
    assert all(("error" in record) != ("kind" in record) for record in records)
    assert all(0 <= record["offset"] <= len(octets) for record in records)
    json.dumps(records)


def test_a_length_beyond_all_sense_takes_no_memory() -> None:
    head = encode_subgroup_header(SubgroupHeader(track_alias=1, group_id=0, subgroup_id=0))
    for claimed, expected in ((1 << 32, "payload octets are missing"), (1 << 60, "at most")):
        octets = head + b"\x00" + vi64.encode(claimed) + b"ab"
        assert expected in decode(Kind.SUBGROUP, octets)[-1]["error"]


@pytest.mark.parametrize("text", ["0a 0b", "0x0a,0x0b", "0A:0B", "0a\n0b\n"])
def test_hex_is_read_as_it_is_copied(text: str) -> None:
    assert parse_hex(text) == b"\x0a\x0b"


def test_what_is_no_hex_is_placed() -> None:
    with pytest.raises(ValueError, match=r"digit 2 is 'g', expected a hex digit"):
        parse_hex("0ag")
    with pytest.raises(ValueError, match=r"3 hex digits, expected an even number"):
        parse_hex("0ab")


# --- the program ---


def test_hex_hex_files_and_raw_files_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    octets = encode_message(Goaway("moqt://x/", 7))
    raw, text = tmp_path / "raw", tmp_path / "text"
    raw.write_bytes(octets)
    text.write_text(octets.hex(" ") + "\n")
    shown = []
    for source in (octets.hex(), str(raw), str(text)):
        assert main(["--kind", "request", source]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == "@0  GOAWAY\n      new_session_uri: moqt://x/\n      timeout_ms: 7\n"
    assert shown[1] == shown[0] == shown[2]


def test_standard_input_is_read() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "moqt.tools.dump", "--kind", "request", "--json"],
        input="1000020000",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(result.stdout) == [{"offset": 0, "kind": "GOAWAY", "timeout_ms": 0}]


def test_exit_code_says_whether_all_was_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind", "datagram", "40"]) == 1
    assert capsys.readouterr().out == "@0  cannot be read: datagram: unknown type 0x40\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--kind", "datagram", "4g"], "expected a hex digit"),
        (["no-such-file"], "no such file; for hex digits say what they are with --kind"),
        (["--kind", "subgroup", "no-such-file"], "no such file, and no hex digits: digit 0 is"),
        (["--kind", "subgroup", "."], "a folder, expected a file"),
        (["."], "a folder, expected a file"),
        (["a.qlog", "b.qlog"], "one qlog at a time"),
        (["--kind", "request", "--descending", "00"], "--descending is for --kind fetch"),
        (["--kind", "frame", "00"], "invalid choice"),
    ],
)
def test_a_wrong_command_line_is_explained(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def test_a_qlog_is_not_taken_for_octets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.qlog"
    file.write_bytes(qlog())
    with pytest.raises(SystemExit):
        main(["--kind", "control", str(file)])
    assert "a qlog is read without --kind" in capsys.readouterr().err


def test_hex_digits_may_be_several_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind", "request", "10", "0002", "0000"]) == 0
    assert "GOAWAY" in capsys.readouterr().out


def test_a_terminal_is_not_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    with pytest.raises(SystemExit):
        main(["--kind", "request"])
    assert "standard input is a terminal" in capsys.readouterr().err


def test_what_was_expected_is_listed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind", "request", "3f0000"]) == 1
    out = capsys.readouterr().out
    assert all(kind.name in out for kind in MessageType)


def test_types_are_hexadecimal_and_known_ones_have_names() -> None:
    properties = TrackProperties.of(dynamic_groups=True, other=[KeyValue(0x71, b"x")])
    (record,) = decode(Kind.REQUEST, encode_message(SubscribeOk(0, properties=properties)))
    assert record["properties"] == [
        {"name": "dynamic_groups", "type": "0x30", "value": 1},
        {"type": "0x71", "value": "78"},
    ]
    (setup,) = decode(Kind.SETUP, encode_message(Setup(SetupOptions(unknown=(KeyValue(0x9C, 1),)))))
    assert setup["options"]["unknown"] == [{"type": "0x9c", "value": 1}]
    gap = ObjectProperties.of(prior_object_id_gap=2).serialize()
    writer = FetchWriter(FetchHeader(0), GroupOrder.ASCENDING)
    header = ObjectHeader(3, 3, 0, 128, 0, properties=gap)
    *_, found = decode(Kind.FETCH, writer.head + writer.encode(header))
    assert found["properties"] == [{"name": "prior_object_id_gap", "type": "0x3e", "value": 2}]
    assert found["properties_length"] == len(gap)


def test_what_a_peer_wrote_cannot_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    octets = encode_message(Goaway("moqt://\x1b[2J/", 0))
    assert main(["--kind", "request", octets.hex()]) == 0
    assert "\x1b" not in capsys.readouterr().out


# --- qlogs ---


def qlog(*events: Any) -> bytes:
    return json.dumps({"traces": [{"events": list(events)}]}).encode()


def event(kind: str, at: float = 0, /, **data: Any) -> dict[str, Any]:
    return {"name": f"moqt:{kind}", "time": at, "data": data}


def test_a_timeline_names_streams_by_their_requests() -> None:
    name = {"track_namespace": "a", "full_track_name": "a--b"}
    subscribe = {"type": "subscribe", "request_id": 2, "name": name}
    events = read_events(
        qlog(
            {"name": "transport:packet_sent", "time": 0, "data": {}},
            event("stream_type_set", 1000, stream_id=2, stream_type="control"),
            event("control_message_created", 1000, stream_id=2, message_type="setup", message={}),
            event("control_message_created", 1001, stream_id=0, message_type="subscribe",
                  message=subscribe),
            event("control_message_parsed", 1002.5, stream_id=0, message_type="subscribe_ok",
                  message={"type": "subscribe_ok", "track_alias": 7}),
            event("subgroup_header_parsed", 1003, stream_id=3, track_alias=7, group_id=5),
            event("subgroup_object_parsed", 1004, stream_id=3, object_id=1, payload_length=9),
            event("object_datagram_parsed", 1005, track_alias=7, object_id=1),
            event("malformed", 1006, stream_id=3, offset=17, reason="bad"),
            {"name": "loglevel:warning", "time": 1007, "data": {"message": "3 left out"}},
        )
    )  # fmt: skip
    assert list(timeline(events)) == [
        "       0.0 ms -> stream 2 (control): SETUP",
        "       1.0 ms -> stream 0 (SUBSCRIBE 2): SUBSCRIBE a--b",
        "       2.5 ms <- stream 0 (SUBSCRIBE 2): SUBSCRIBE_OK track_alias=7",
        "       3.0 ms <- stream 3 (Group 5, SUBSCRIBE 2): subgroup_header track_alias=7 "
        "group_id=5",
        "       4.0 ms <- stream 3 (Group 5, SUBSCRIBE 2): subgroup_object object_id=1 "
        "payload_length=9",
        "       5.0 ms <- datagram: object_datagram track_alias=7 object_id=1",
        "       6.0 ms !! stream 3 (Group 5, SUBSCRIBE 2): malformed offset=17 reason=bad",
        "       7.0 ms    3 left out",
    ]


def packet(how: str, at: float, *frames: Any) -> dict[str, Any]:
    return {"name": f"transport:packet_{how}", "time": at, "data": {"frames": list(frames)}}


def test_a_timeline_says_how_streams_and_the_connection_ended() -> None:
    reset = {"frame_type": "reset_stream", "stream_id": 3, "error_code": 5, "final_size": 9}
    stop = {"frame_type": "stop_sending", "stream_id": 0, "error_code": 0x77}
    close = {"frame_type": "connection_close", "error_space": "application", "error_code": 3,
             "reason": "no\x1b"}  # fmt: skip
    events = read_events(
        qlog(
            event("stream_type_set", 1000, stream_id=3, stream_type="padding"),
            packet("received", 1001, {"frame_type": "ping"}, reset),
            packet("received", 1002, reset),
            packet("sent", 1003, stop),
            packet("sent", 1004, close),
            packet("sent", 1005, close),
        )
    )
    assert list(timeline(events)) == [
        f"       1.0 ms <- stream 3 (padding): RESET_STREAM {StreamResetCode(5).name} error_code=5",
        "       3.0 ms -> stream 0: STOP_SENDING 0x77 error_code=119",
        "       4.0 ms -> connection: CONNECTION_CLOSE PROTOCOL_VIOLATION reason=no\\x1b "
        "error_code=3",
    ]


def test_fills_are_told_from_fetches() -> None:
    subscribe = {"type": "subscribe", "request_id": 0, "name": {}}
    update = {"type": "request_update", "request_id": 2}
    *_, first, second, other = timeline(
        read_events(
            qlog(
                event("control_message_created", 0, stream_id=0, message_type="subscribe",
                      message=subscribe),
                event("control_message_created", 0, stream_id=0, message_type="request_update",
                      message=update),
                event("fetch_header_parsed", 0, stream_id=3, request_id=0),
                event("fetch_header_parsed", 0, stream_id=7, request_id=2),
                event("fetch_header_parsed", 0, stream_id=11, request_id=4),
            )
        )
    )  # fmt: skip
    assert first.endswith("<- stream 3 (fill, SUBSCRIBE 0): fetch_header request_id=0")
    assert second.endswith("<- stream 7 (fill, SUBSCRIBE 0): fetch_header request_id=2")
    assert other.endswith("<- stream 11 (Objects, request 4): fetch_header request_id=4")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (LocationFilter.none(), {"type": "none"}),
        (LocationFilter.next_object(), {"type": "next_object"}),
        (LocationFilter.relative(1), {"type": "relative", "start_group": 1}),
        (
            LocationFilter.absolute(Location(2, 0)),
            {"type": "absolute", "start_group": 2, "start_object": 0},
        ),
        (
            LocationFilter.groups(first=0, last=3),
            {"type": "end_group", "start_group": 0, "start_object": 0, "end_group": 3},
        ),
    ],
)
def test_filters_and_fills_are_shown_as_sent(
    wanted: LocationFilter, expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = Parameters(location_filter=wanted, fill=FillParameters())
    octets = encode_message(Subscribe(0, NAME, parameters))
    (record,) = decode(Kind.REQUEST, octets)
    assert record["parameters"] == {"location_filter": expected, "fill": {}}
    assert main(["--kind", "request", octets.hex()]) == 0
    assert "parameters.fill: (empty)" in capsys.readouterr().out


def test_an_empty_prefix_is_said_to_be_all(capsys: pytest.CaptureFixture[str]) -> None:
    message = {"type": "subscribe_namespace", "request_id": 0, "prefix": ""}
    (line,) = timeline(
        read_events(
            qlog(event("control_message_created", 0, stream_id=0,
                       message_type="subscribe_namespace", message=message))
        )
    )  # fmt: skip
    assert "SUBSCRIBE_NAMESPACE (all)" in line
    octets = encode_message(SubscribeNamespace(0, TrackNamespace(())))
    assert main(["--kind", "request", octets.hex()]) == 0
    assert "prefix: (all)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], ["no MOQT events: there may have been no answer"]),
        (
            [packet("received", 5, {"frame_type": "connection_close", "error_space": "transport",
                                    "error_code": 376, "reason": "No common ALPN protocols"})],
            [
                "no MOQT events: QUIC ended before MOQT began",
                "       0.0 ms <- connection: CONNECTION_CLOSE TLS alert no_application_protocol "
                "reason=No common ALPN protocols error_code=376",
            ],
        ),
        (
            [packet("sent", 5, {"frame_type": "connection_close", "error_code": 10}), {"name": "x"},
             packet("sent", 6, 7, {"frame_type": []}), packet("sent", 6, {"frame_type": "x"})],
            [
                "no MOQT events: QUIC ended before MOQT began",
                "       0.0 ms -> connection: CONNECTION_CLOSE QUIC error PROTOCOL_VIOLATION "
                "error_code=10",
            ],
        ),
    ],
)  # fmt: skip
def test_a_trace_without_moqt_says_so(events: list[Any], expected: list[str]) -> None:
    assert list(timeline(read_events(qlog(*events)))) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x00\xff", "one JSON document"),
        (b"[" * 100_000, "one JSON document"),
        (b"[]", "expected an object with a list 'traces'"),
        (b'{"traces": [3]}', r"traces\[0\]: expected an object with a list 'events'"),
        (qlog(5), r"traces\[0\].events\[0\]: expected an object with a text 'name'"),
        (qlog({"name": "moqt:x", "data": {}}), "expected a time in milliseconds"),
        (qlog({"name": "moqt:x", "data": {}, "time": 10**400}), "expected a time in milliseconds"),
        (qlog({"name": "moqt:x", "data": {}, "time": float("nan")}), "expected a time in mill"),
        (qlog({"name": "moqt:x", "data": [], "time": 1}), "expected an object 'data'"),
    ],
)
def test_what_is_no_qlog_is_explained(content: bytes, expected: str) -> None:
    with pytest.raises(NotQlog, match=expected):
        read_events(content)


FIELDS = st.sampled_from(
    ["stream_id", "message", "message_type", "track_alias", "request_id", "name", "group", "object"]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text("a\x1b\n", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["control_message_created", "subgroup_header_parsed", "fetch_header_parsed", "stream_type_set"]
)


@given(st.lists(st.tuples(NAMES, st.dictionaries(FIELDS, JSON, max_size=4)), max_size=4))
def test_any_events_make_lines(found: list[tuple[str, dict[str, Any]]]) -> None:
    events = read_events(qlog(*(event(name, 1, **data) for name, data in found)))
    assert all(line.isprintable() for line in timeline(events))


def test_nesting_beyond_sense_is_cut() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    (line,) = timeline(read_events(qlog(event("end_of_range_parsed", 1, last=deep))))
    assert line.endswith("last=" + "[" * 8 + "..." + "]" * 8)


def test_the_program_reads_a_qlog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.qlog"
    path.write_bytes(qlog(event("stream_type_set", 1, stream_id=2, stream_type="fetch_header")))
    assert main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "moqt:stream_type_set"
    path.write_text("{}")
    assert main([str(path)]) == 1
    assert "expected an object with a list 'traces'" in capsys.readouterr().err
