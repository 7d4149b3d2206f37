"""qlog: what is written, what never is, and that it stays within its bounds."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

import moqt
from moqt import errors
from moqt.asyncio.qlog import QlogDirectory, Trace
from moqt.asyncio.tap import MoqtTap
from moqt.asyncio.transport import QuicTransport
from moqt.codes import GroupOrder
from moqt.wire.framing import encode_message
from moqt.wire.messages import Goaway, Setup, Subscribe
from moqt.wire.options import SetupOptions
from moqt.wire.params import Parameters
from moqt.wire.tokens import AuthorizationToken
from tests.asyncio.endpoints import (
    NAME,
    connected,
    directory_with,
    read_objects,
    serving,
    track_with,
)

if TYPE_CHECKING:
    from pathlib import Path

    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")

ODCID = bytes.fromhex("0011223344556677")
SECRET = b"not for any log"


def tracing(directory: Path, max_events: int = 32768) -> moqt.TransportConfig:
    return moqt.TransportConfig(qlog_dir=directory, qlog_max_events=max_events, close_linger_s=0.01)


def read_trace(directory: Path, end: str) -> dict[str, Any]:
    (path,) = directory.glob(f"*_{end}.qlog")
    document = json.loads(path.read_text())
    assert document["qlog_version"] == "0.3"
    assert document["qlog_format"] == "JSON"
    (trace,) = document["traces"]
    assert path.name.startswith(trace["common_fields"]["ODCID"])
    found: dict[str, Any] = trace
    return found


def of_moqt(trace: dict[str, Any], kind: str = "") -> list[tuple[str, dict[str, Any]]]:
    return [
        (event["name"].removeprefix("moqt:"), event["data"])
        for event in trace["events"]
        if event["name"].startswith(f"moqt:{kind}")
    ]


def unwritten(directory: Path, *, max_events: int = 100, is_client: bool = True) -> Trace:
    return QlogDirectory(directory, max_events=max_events).start_trace(is_client, ODCID)


async def test_both_ends_of_a_connection_leave_a_file(
    certificate: CertificatePair, tmp_path: Path
) -> None:
    track = track_with(groups=2, objects=3)
    track.end()
    async with (
        serving(certificate, directory_with(track), transport_config=tracing(tmp_path)) as server,
        connected(server, certificate, transport_config=tracing(tmp_path)) as session,
        session.fetch(NAME) as fetch,
    ):
        assert len(await read_objects(fetch)) == 6
    client, server_side = read_trace(tmp_path, "client"), read_trace(tmp_path, "server")
    assert client["common_fields"] == server_side["common_fields"]
    assert client["vantage_point"]["type"] == "client"
    for trace, requests, objects in (
        (client, "control_message_created", "fetch_object_parsed"),
        (server_side, "control_message_parsed", "fetch_object_created"),
    ):
        times = [event["time"] for event in trace["events"]]
        assert times == sorted(times)
        names = {event["name"] for event in trace["events"]}
        assert {"transport:packet_sent", "transport:packet_received"} < names
        sent = [data["message_type"] for name, data in of_moqt(trace) if name == requests]
        assert sent == ["setup", "fetch"]
        payloads = [
            d["payload_length"] for name, d in of_moqt(trace, "fetch_obj") if name == objects
        ]
        assert payloads == [1000] * 6
        assert len(of_moqt(trace, "fetch_header")) == 1
        kinds = [data["stream_type"] for _, data in of_moqt(trace, "stream_type_set")]
        assert sorted(kinds) == ["control", "control", "fetch_header"]
        assert not of_moqt(trace, "malformed")


async def test_what_let_anyone_end_the_connection_is_left_out(
    certificate: CertificatePair, tmp_path: Path
) -> None:
    async with (
        serving(certificate, transport_config=tracing(tmp_path)) as server,
        connected(server, certificate, transport_config=tracing(tmp_path)),
    ):
        pass
    for end in ("client", "server"):
        text = json.dumps(read_trace(tmp_path, end))
        assert "new_connection_id" in text
        assert "reset_token" not in text


async def test_no_trace_is_made_unless_asked_for(certificate: CertificatePair) -> None:
    async with serving(certificate) as server, connected(server, certificate) as session:
        assert session._driver.connection.trace is None
        assert type(session._driver.transport) is QuicTransport


async def test_a_connection_that_never_was_leaves_a_file_too(tmp_path: Path) -> None:
    config = tracing(tmp_path)
    with pytest.raises(errors.ConnectFailed):
        async with moqt.connect("moqt://127.0.0.1:1", transport_config=config):
            pytest.fail("nobody is there")
    trace = read_trace(tmp_path, "client")
    assert "transport:packet_sent" in {event["name"] for event in trace["events"]}
    assert not of_moqt(trace)


async def test_the_directory_may_be_text(certificate: CertificatePair, tmp_path: Path) -> None:
    config = moqt.TransportConfig(qlog_dir=str(tmp_path), close_linger_s=0.01)
    async with (
        serving(certificate) as server,
        connected(server, certificate, transport_config=config),
    ):
        pass
    assert of_moqt(read_trace(tmp_path, "client"), "control_message_parsed")


async def test_an_aborted_session_leaves_a_file(
    certificate: CertificatePair, tmp_path: Path
) -> None:
    async with (
        serving(certificate) as server,
        connected(server, certificate, transport_config=tracing(tmp_path)) as session,
    ):
        session.abort()
        assert of_moqt(read_trace(tmp_path, "client"), "control_message_parsed")


async def test_a_directory_is_made_and_one_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    unwritten(tmp_path / "new" / "one").write()
    assert list((tmp_path / "new" / "one").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        async with moqt.connect("moqt://127.0.0.1:1", transport_config=tracing(tmp_path / "file")):
            pytest.fail("connected")


async def test_a_file_that_cannot_be_written_costs_no_connection(
    certificate: CertificatePair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "gone"
    async with (
        serving(certificate) as server,
        connected(server, certificate, transport_config=tracing(directory)) as session,
    ):
        directory.rmdir()
        with caplog.at_level(logging.WARNING, "moqt.asyncio.qlog"):
            await session.close()
    assert session.end is not None
    assert session.end.code is moqt.SessionErrorCode.NO_ERROR
    assert "is lost" in caplog.text


# --- bounds ---


def test_the_first_half_and_the_newest_events_are_kept(tmp_path: Path) -> None:
    trace = unwritten(tmp_path, max_events=10)
    for number in range(25):
        trace.log_event(category="moqt", event="x", data={"number": number})
    trace.log_event(category="transport", event="y", data={})
    events = trace.to_dict()["events"]
    numbers = [event["data"].get("number") for event in events if event["name"] == "moqt:x"]
    assert numbers == [0, 1, 2, 3, 4, 20, 21, 22, 23, 24]
    (gap,) = [event for event in events if event["name"] == "loglevel:warning"]
    assert gap["data"]["message"] == "15 MOQT events left out here (qlog_max_events)"
    assert events.index(gap) == 5
    assert [event["name"] for event in events][-1] == "transport:y"


def test_nothing_is_said_to_be_left_out_when_nothing_is(tmp_path: Path) -> None:
    trace = unwritten(tmp_path, max_events=3)
    for _ in range(3):
        trace.log_event(category="moqt", event="x", data={})
    assert len(trace.to_dict()["events"]) == 3


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_positive(limit: int) -> None:
    with pytest.raises(ValueError, match="qlog_max_events"):
        moqt.TransportConfig(qlog_max_events=limit)


# --- what the tap reads ---


def test_tokens_and_queries_are_lengths_alone(tmp_path: Path) -> None:
    trace = unwritten(tmp_path)
    token = AuthorizationToken.use_value(0, SECRET)
    options = SetupOptions(path="/live?key=abc", authorization_tokens=(token,))
    message = Subscribe(0, NAME, Parameters(authorization_tokens=(token,)))
    tap = MoqtTap(trace)
    tap.sent(2, [encode_message(Setup(options))], False)
    tap.sent(0, [encode_message(message)], False)
    tap.received(3, 0, encode_message(Setup(options)), False)
    trace.write()
    text = trace.path.read_text()
    assert SECRET.decode() not in text
    assert SECRET.hex() not in text
    assert "key=abc" not in text
    setup = of_moqt(read_trace(tmp_path, "client"), "control_message_created")[0][1]
    assert setup["message"]["options"]["path"] == "/live?(7 characters)"
    (shown,) = setup["message"]["options"]["authorization_tokens"]
    assert shown["value_length"] == len(SECRET)


def test_octets_may_come_in_any_order_and_any_pieces(tmp_path: Path) -> None:
    octets = encode_message(Goaway("moqt://a/", 1)) + encode_message(Goaway("moqt://b/", 2))
    trace = unwritten(tmp_path)
    tap = MoqtTap(trace)
    for at in (*range(1, len(octets), 2), *range(0, len(octets), 2)):
        tap.received(1, at, octets[at : at + 1], at + 1 == len(octets))
    uris = [d["message"]["new_session_uri"] for _, d in of_moqt(trace.to_dict())]
    assert uris == ["moqt://a/", "moqt://b/"]


def test_what_cannot_be_read_is_an_event_with_its_offset(tmp_path: Path) -> None:
    trace = unwritten(tmp_path)
    tap = MoqtTap(trace)
    tap.received(1, 0, encode_message(Goaway()) + b"\x3f\x00\x00", False)
    tap.received(1, 8, b"more", False)
    tap.datagram(b"\x40", is_sent=False)
    (_, first), (_, second) = of_moqt(trace.to_dict(), "malformed")
    assert first["stream_id"] == 1
    assert first["offset"] == 5
    assert "unknown message type 0x3f" in first["reason"]
    assert second == {"reason": "datagram: unknown type 0x40", "length": 1}


async def test_groups_of_a_descending_fetch_are_shown_right(
    certificate: CertificatePair, tmp_path: Path
) -> None:
    async with (
        serving(certificate, directory_with(track_with(groups=3, objects=1))) as server,
        connected(server, certificate, transport_config=tracing(tmp_path)) as session,
        session.fetch(NAME, group_order=GroupOrder.DESCENDING) as fetch,
    ):
        await read_objects(fetch)
    found = of_moqt(read_trace(tmp_path, "client"), "fetch_object")
    assert [data["group_id"] for _, data in found] == [2, 1, 0]


async def test_datagrams_are_shown(tmp_path: Path) -> None:
    trace = unwritten(tmp_path)
    MoqtTap(trace).datagram(bytes.fromhex("0001020080deadbeef"), is_sent=True)
    ((name, data),) = of_moqt(trace.to_dict())
    assert name == "object_datagram_created"
    assert data["payload_length"] == 4
    assert "deadbeef" not in json.dumps(data)


def test_a_stream_that_is_gone_begins_anew(tmp_path: Path) -> None:
    """A stream ID is used once, so what was held of it is dropped: memory stays bounded."""
    tap = MoqtTap(unwritten(tmp_path))
    for stream_id in range(0, 400, 4):
        tap.received(stream_id, 0, b"\x03", False)
        tap.sent(stream_id, [b"\x03"], False)
        tap.gone(stream_id, is_sent=False)
        tap.gone(stream_id, is_sent=True)
    assert not tap._received
    assert not tap._sent
