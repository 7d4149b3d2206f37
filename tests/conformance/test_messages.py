"""Chapters 9 and 11: what our messages and streams look like, and the codes that refuse."""

from __future__ import annotations

import pytest

from moqt.codes import (
    GroupOrder,
    RequestErrorCode,
    SessionErrorCode,
    StreamResetCode,
)
from moqt.errors import RemoteProtocolError
from moqt.session.config import Role, SessionConfig
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.cursor import Reader
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.framing import MessageReader, encode_message
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeNamespace,
    TrackStatus,
)
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import TrackProperties
from moqt.wire.tokens import AuthorizationToken
from tests.session.receiving import one
from tests.session.sending import NAME, Sending, publish

EVERYTHING = Parameters(
    authorization_tokens=(
        AuthorizationToken.use_value(0, b"a"),
        AuthorizationToken.use_value(1, b"b"),
    ),
    object_delivery_timeout_ms=1,
    rendezvous_timeout_ms=2,
    subgroup_delivery_timeout_ms=3,
    forward=True,
    subscriber_priority=4,
    location_filter=LocationFilter.next_object(),
    group_order=GroupOrder.DESCENDING,
    fill=FillParameters(location_filter=LocationFilter.relative(1), fill_timeout_ms=5),
    range_filters=(
        RangeFilter(RangeFilterKind.SUBGROUP, (IdRange(0, 1),)),
        RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 1),)),
        RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(3, 4),), set_id=1),
    ),
    new_group_request=0,
    include_properties=False,
)


def test_only_what_is_repeatable_is_written_twice() -> None:
    """9.20#4, 9.20#5: a reader that closes for a repetition reads all that we can write."""
    octets = encode_message(Subscribe(0, NAME, EVERYTHING))
    (read,) = MessageReader().feed(octets)
    assert read == Subscribe(0, NAME, EVERYTHING)
    # FORWARD and then FORWARD again, as no Parameters value can be written.
    once = encode_message(Subscribe(0, NAME, Parameters(forward=True)))
    assert once[-3:] == bytes.fromhex("011001")
    twice = once[:-3] + bytes.fromhex("0210010001")
    twice = twice[:1] + (len(twice) - 3).to_bytes(2, "big") + twice[3:]
    with pytest.raises(RemoteProtocolError, match="FORWARD is repeated") as caught:
        MessageReader().feed(twice)
    assert caught.value.code is SessionErrorCode.PROTOCOL_VIOLATION


@pytest.mark.parametrize("start", [(1 << 64) - 1, (1 << 64) - 5])
def test_an_end_group_above_64_bits_closes(start: int) -> None:
    """9.20.9#1."""
    for kind, rest in ((3, b""), (4, b"\x00")):
        octets = bytes([kind, 0xFF]) + start.to_bytes(8, "big") + b"\x00\x05" + rest
        with pytest.raises(RemoteProtocolError) as caught:
            LocationFilter.read(Reader(octets, "p"))
        assert caught.value.code is SessionErrorCode.PROTOCOL_VIOLATION
    fits = bytes([3, 0xFF]) + start.to_bytes(8, "big") + b"\x00\x00"
    assert LocationFilter.read(Reader(fits, "p")).end_group == start


def test_track_properties_are_empty_where_they_are_not_wanted() -> None:
    """9.20.21#1: FETCH and TRACK_STATUS; with the parameter absent they are there."""
    side = Sending()
    track = side.track()
    track.properties = TrackProperties.of(default_publisher_priority=7)
    publish(track, [0], 1)
    for parameters, expected in (
        (Parameters(), track.properties),
        (Parameters(include_properties=False), TrackProperties()),
    ):
        (ok,) = side.replies(side.fetch(parameters))
        assert isinstance(ok, FetchOk)
        assert ok.properties == expected
        (status,) = side.replies(side.ask(TrackStatus(side.next_id(), NAME, parameters)))
        assert isinstance(status, RequestOk)
        assert status.properties == expected


def test_a_refused_update_of_a_fetch_resets_its_data_stream() -> None:
    """9.5.1#2."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    publish(track, [0], 4, 1000)
    peer = ScriptedPeer(Role.SERVER, directory=directory)
    peer.transport.room = 1500
    stream = peer.open_bidi()
    peer.send(stream, Fetch(0, NAME))
    (data,) = [s for s in peer.transport.sent if s % 4 == 3 and s != 3]
    unknown = Parameters(authorization_tokens=(AuthorizationToken.use_alias(9),))
    peer.send(stream, RequestUpdate(2, unknown))
    _, error = peer.messages(stream)
    assert isinstance(error, RequestError)
    assert peer.transport.resets[data] is StreamResetCode.CANCELLED
    assert stream in peer.transport.finished
    assert not peer.session.is_closed


def test_each_refusal_has_its_code() -> None:
    """9.4#1: and a Retry Interval where asking again may help, which is ms + 1 on the wire."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    peer = ScriptedPeer(
        Role.SERVER, directory=directory, config=SessionConfig(max_requests=2, max_filter_ranges=1)
    )
    other = FullTrackName(TrackNamespace.of("other"), b"t")
    ranges = tuple(
        RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(n, n),), set_id=n) for n in range(2)
    )

    def refusal(message: Subscribe | Fetch | SubscribeNamespace) -> RequestError:
        stream = peer.open_bidi()
        peer.send(stream, message)
        error = one(peer.messages(stream))
        assert isinstance(error, RequestError)
        peer.send_octets(stream, b"", fin=True)
        return error

    for message, code in (
        (Subscribe(0, other), RequestErrorCode.DOES_NOT_EXIST),
        (Fetch(2, NAME), RequestErrorCode.INVALID_RANGE),
        (Subscribe(4, NAME, Parameters(range_filters=ranges)), RequestErrorCode.INVALID_FILTER),
    ):
        error = refusal(message)
        assert (error.code, error.retry_interval_ms) == (code, None)
    peer.send(peer.open_bidi(), SubscribeNamespace(6, NAME.namespace))
    error = refusal(SubscribeNamespace(8, NAME.namespace))
    assert (error.code, error.retry_interval_ms) == (RequestErrorCode.PREFIX_OVERLAP, None)
    assert encode_message(error)[3:5] == bytes([0x30, 0])  # code, then 0: do not retry
    peer.send(peer.open_bidi(), PublishNamespace(10, TrackNamespace.of("x")))
    error = refusal(Subscribe(12, NAME))
    assert (error.code, error.retry_interval_ms) == (RequestErrorCode.EXCESSIVE_LOAD, 1000)
    assert encode_message(error)[3:6] == bytes.fromhex("0983e9")  # code, then 1001


def test_bit_4_of_a_subgroup_stream_is_set() -> None:
    """11.3.1#3: in every form of header that is sent."""
    side = Sending()
    track = side.track()
    side.subscribe()
    for group_id in range(8):
        ends_group, subgroup_id = bool(group_id & 1), 7 if group_id & 2 else 0
        writer = track.open_group(group_id, subgroup_id=subgroup_id, ends_group=ends_group)
        writer.write(0, b"x", b"\x78\x05" if group_id & 4 else b"")
        side.subscribe()  # joins behind the first Object
        writer.write(1, b"x")
        writer.close()
    side.flush()
    flags = {written.data[0] for written in side.data_streams().values()}
    assert len(flags) > 8
    assert all(flag & 0x90 == 0x10 for flag in flags)


@pytest.mark.parametrize("start", [Location(0, 0), Location(3, 5)])
@pytest.mark.parametrize("subgroup_id", [0, 9])
def test_the_first_object_of_a_fetch_stands_by_itself(start: Location, subgroup_id: int) -> None:
    """11.4.1.1#1: Group and Object ID absolute, and the priority, whatever they are."""
    side = Sending()
    writer = side.track().open_group(
        start.group_id, subgroup_id=subgroup_id, publisher_priority=128
    )
    writer.write(start.object_id, b"x")
    writer.write(start.object_id + 1, b"y")
    writer.close()
    side.fetch()
    side.flush()
    (stream,) = side.fetches()
    kind, request_id, flags, group_id, *rest = side.transport.streams[stream].data
    assert (kind, request_id, group_id) == (0x05, 0, start.group_id)
    assert flags & 0x1C == 0x1C
    assert flags & 0x03 in (0x00, 0x03)  # no reference to a prior Subgroup
    if flags & 0x03:
        assert rest.pop(0) == subgroup_id
    assert rest[0] == start.object_id
    assert bytes(rest[1:3]) == bytes([128, 1])  # the priority is one octet; then the length
