"""moqt.wire.framing and what is common to all messages: MOQT-22 9."""

from __future__ import annotations

import pytest

from moqt.codes import PublishDoneCode, RequestErrorCode
from moqt.errors import RemoteProtocolError
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire import messages as m
from moqt.wire.cursor import Reader, Writer
from moqt.wire.framing import (
    MAX_BODY_OCTETS,
    MAX_MESSAGE_OCTETS,
    MESSAGES,
    MessageReader,
    decode_body,
    encode_message,
)
from moqt.wire.messages import Message, MessageType
from moqt.wire.options import SetupOptions

TRACK = FullTrackName(TrackNamespace.of("kv", "a"), b"k")
PREFIX = TRACK.namespace
ALL: list[Message] = [
    m.Setup(SetupOptions(path="/kv")),
    m.Goaway("moqt://a", 5),
    m.Subscribe(0, TRACK),
    m.SubscribeOk(3),
    m.RequestError(code=RequestErrorCode.DOES_NOT_EXIST, reason="no"),
    m.RequestUpdate(4),
    m.RequestOk(),
    m.PublishDone(code=PublishDoneCode.TRACK_ENDED, stream_count=1),
    m.PublishStateNotify(),
    m.Publish(1, TRACK, 9),
    m.Fetch(6, TRACK),
    m.FetchOk(end_of_track=True, end=Location(5, 63)),
    m.TrackStatus(8, TRACK),
    m.PublishNamespace(1, PREFIX),
    m.SubscribeNamespace(2, PREFIX),
    m.Namespace(PREFIX),
    m.NamespaceDone(PREFIX),
    m.SubscribeTracks(4, PREFIX),
    m.PublishSkipped(PREFIX, b"k"),
]


def test_every_type_has_one_class() -> None:
    assert set(MESSAGES) == set(MessageType)
    assert {type(one) for one in ALL} == set(MESSAGES.values())


@pytest.mark.parametrize("message", ALL, ids=lambda one: one.TYPE.name)
def test_a_body_is_used_up_exactly(message: Message) -> None:
    """9#1: every shorter one closes, and one octet more."""
    writer = Writer()
    message.write(writer)
    body = bytes(writer)
    assert decode_body(message.TYPE, body) == message
    with pytest.raises(RemoteProtocolError):
        decode_body(message.TYPE, body + b"\x00")  # where properties follow: half a pair
    for cut in range(len(body)):
        if message.TYPE is MessageType.SETUP and not cut:
            continue  # no options at all
        with pytest.raises(RemoteProtocolError):
            decode_body(message.TYPE, body[:cut])


@pytest.mark.parametrize("kind", [0x01, 0x1E, 0x20, 0x21, 0x40, 0x41, 0x3F])
def test_unknown_and_reserved_types_close_at_once(kind: int) -> None:
    """9#2: not only when the body has come."""
    with pytest.raises(RemoteProtocolError, match="unknown message type"):
        MessageReader().feed(bytes([kind]))
    with pytest.raises(RemoteProtocolError, match="unknown message type"):
        decode_body(kind, b"")


def test_messages_come_out_as_they_become_whole() -> None:
    octets = b"".join(map(encode_message, ALL))
    reader = MessageReader()
    found: list[Message] = []
    for at in range(len(octets)):
        found += reader.feed(octets[at : at + 1])
        assert reader.octets_pending < 40
    assert found == ALL
    reader.finish()


def test_fin_inside_a_message_closes() -> None:
    """MOQT-22 6.4.2.2."""
    reader = MessageReader()
    assert reader.feed(encode_message(ALL[0])[:-1]) == []
    with pytest.raises(RemoteProtocolError, match="FIN inside"):
        reader.finish()


def test_the_longest_message_is_the_most_that_is_held() -> None:
    reader = MessageReader()
    head = b"\xff" + bytes(7) + b"\x10" + b"\xff\xff"  # GOAWAY, its type in nine octets
    assert reader.feed(head + bytes(MAX_BODY_OCTETS - 1)) == []
    assert reader.octets_pending == MAX_MESSAGE_OCTETS - 1
    with pytest.raises(RemoteProtocolError, match="too many"):
        reader.feed(b"\x00")


def test_a_body_that_is_too_long_is_not_sent() -> None:
    options = SetupOptions(path="/" * 65536)
    with pytest.raises(ValueError, match="65536 octets"):
        encode_message(m.Setup(options))
    options = SetupOptions(path="/" * 40000, authority="a" * 40000)
    with pytest.raises(ValueError, match="SETUP has 80008 octets"):
        encode_message(m.Setup(options))


def test_an_unknown_code_is_internal_error_and_keeps_its_number() -> None:
    """12.2#1: MOQT-22 12: grease is accepted and ignored."""
    error = decode_body(MessageType.REQUEST_ERROR, bytes.fromhex("809d0000"))
    assert error == m.RequestError(code=RequestErrorCode.INTERNAL_ERROR, raw_code=0x9D)
    done = decode_body(MessageType.PUBLISH_DONE, bytes.fromhex("030000"))
    assert done == m.PublishDone(code=PublishDoneCode.INTERNAL_ERROR, stream_count=0, raw_code=3)


def test_retry_interval_0_is_never_and_1_is_at_once() -> None:
    def interval(octet: str) -> int | None:
        error = decode_body(MessageType.REQUEST_ERROR, bytes.fromhex(f"00{octet}00"))
        assert isinstance(error, m.RequestError)
        return error.retry_interval_ms

    assert interval("00") is None
    assert interval("01") == 0
    assert interval("05") == 4


def test_redirect_and_its_code_go_together() -> None:
    redirect = m.Redirect("", TRACK)
    with pytest.raises(ValueError, match="redirect does not fit"):
        encode_message(m.RequestError(code=RequestErrorCode.TIMEOUT, redirect=redirect))
    with pytest.raises(ValueError, match="redirect does not fit"):
        encode_message(m.RequestError(code=RequestErrorCode.REDIRECT))


def test_a_uri_of_8192_octets_is_read_and_8193_closes() -> None:
    """9.2#4."""
    longest = m.Goaway("m" * 8192)
    assert MessageReader().feed(encode_message(longest)) == [longest]
    with pytest.raises(RemoteProtocolError, match="8193 octets"):
        decode_body(MessageType.GOAWAY, b"\xa0\x01" + b"m" * 8193 + b"\x00")
    with pytest.raises(ValueError, match="8193 octets"):
        encode_message(m.Goaway("m" * 8193))


def test_a_uri_that_is_not_utf8_closes() -> None:
    with pytest.raises(RemoteProtocolError, match="not UTF-8"):
        decode_body(MessageType.GOAWAY, b"\x01\xff\x00")


def test_end_of_track_is_0_or_1() -> None:
    with pytest.raises(RemoteProtocolError, match="End Of Track is 2"):
        decode_body(MessageType.FETCH_OK, bytes.fromhex("02000000"))


def test_the_base_message_is_not_a_message() -> None:
    with pytest.raises(NotImplementedError):
        Message.read(Reader(b"", "x"))
    with pytest.raises(NotImplementedError):
        Message().write(Writer())
