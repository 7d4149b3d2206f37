"""Places that draft 22 leaves open: the narrow form is what we send, and both are taken."""

from __future__ import annotations

import pytest

from moqt.codes import RequestErrorCode, SessionErrorCode
from moqt.session.config import Role
from moqt.session.events import (
    FetchEstablished,
    ObjectReceived,
    RequestAccepted,
    RequestRejected,
    TrackMalformed,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer
from moqt.types import Location, TrackNamespace
from moqt.wire.fields import KeyValue
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.framing import MessageReader, encode_message
from moqt.wire.messages import (
    FetchOk,
    PublishNamespace,
    RequestError,
    RequestOk,
    Setup,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    TrackStatus,
)
from moqt.wire.options import SetupOptions
from moqt.wire.params import Parameters
from moqt.wire.properties import PropertyType, TrackProperties
from moqt.wire.tokens import AuthorizationToken
from tests.conformance.test_messages import EVERYTHING
from tests.session.receiving import NAME as ASKED
from tests.session.receiving import NAMESPACE, established, got, one, subgroup
from tests.session.sending import NAME, Sending, places, publish

PRIORITY = PropertyType.DEFAULT_PUBLISHER_PRIORITY


def test_path_and_authority_are_sent_and_may_be_absent() -> None:
    """AMB#1: an empty path is sent too."""
    client = ScriptedPeer(setup=False)
    client.session.start(0.0)
    setup = one(client.messages(2))
    assert isinstance(setup, Setup)
    assert (setup.options.path, setup.options.authority) == ("/kv", "host.example")
    for options in (SetupOptions(), SetupOptions(path="/kv"), SetupOptions(authority="h")):
        server = ScriptedPeer(Role.SERVER, options=options)
        assert server.session.is_established


def test_expires_in_a_track_status_ok() -> None:
    """AMB#2: not sent; it may come, and says nothing about a request that is over."""
    side = Sending()
    publish(side.track(), [0], 1)
    (ok,) = side.replies(side.ask(TrackStatus(side.next_id(), NAME)))
    assert ok == RequestOk(Parameters(largest=Location(0, 0)))
    peer = ScriptedPeer()
    request_id = peer.session.track_status(ASKED, now=0.0)
    peer.send(0, RequestOk(Parameters(expires_ms=5, largest=Location(0, 0))), fin=True)
    accepted = one(peer.take(RequestAccepted))
    assert (accepted.request_id, accepted.largest) == (request_id, Location(0, 0))
    assert accepted.expires_ms is None
    assert not peer.session.is_closed
    assert peer.session.next_deadline is None


def test_an_unknown_token_alias_has_the_session_codes_number() -> None:
    """AMB#3: 0x17 is sent, and read as what it says."""
    peer = ScriptedPeer(Role.SERVER, directory=TrackDirectory())
    stream = peer.open_bidi()
    unknown = Parameters(authorization_tokens=(AuthorizationToken.use_alias(3),))
    peer.send(stream, PublishNamespace(0, NAMESPACE, unknown))
    error = one(peer.messages(stream))
    assert isinstance(error, RequestError)
    assert encode_message(error)[3] == 0x17
    assert not peer.session.is_closed
    client = ScriptedPeer()
    client.session.subscribe(ASKED, now=0.0)
    client.send(0, RequestError(code=RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS))
    event = one(client.take(RequestRejected))
    assert event.code is RequestErrorCode.UNKNOWN_AUTH_TOKEN_ALIAS


def test_properties_in_a_subscribe_tracks_ok_are_ignored() -> None:
    """AMB#4: nothing forbids them there, and they mean nothing."""
    answer = RequestOk(properties=TrackProperties.of(default_publisher_priority=3))
    peer = ScriptedPeer()
    watch = peer.session.subscribe_tracks(NAMESPACE, now=0.0)
    peer.send(0, answer)
    assert one(peer.take(RequestAccepted)).request_id == watch
    assert not peer.session.is_closed
    peer.session.subscribe_namespace(NAMESPACE, now=0.0)
    peer.send(4, answer)
    assert peer.session.is_closed


@pytest.mark.parametrize("end", [Location(2, 2), Location(2, (1 << 64) - 1), Location(1, 0)])
def test_any_end_of_a_fetch_of_whole_groups_is_taken(end: Location) -> None:
    """AMB#5."""
    peer = ScriptedPeer()
    filter_ = LocationFilter.groups(first=1, last=2)
    request_id = peer.session.fetch(ASKED, location_filter=filter_, now=0.0)
    peer.send(0, FetchOk(False, end))
    event = one(peer.take(FetchEstablished))
    assert (event.request_id, event.end) == (request_id, end)
    assert not peer.session.is_closed


def test_the_end_of_a_fetch_of_whole_groups_is_their_last_object() -> None:
    """AMB#5."""
    side = Sending()
    publish(side.track(), range(4), 3)
    filter_ = LocationFilter.groups(first=1, last=2)
    (ok,) = side.replies(side.fetch(Parameters(location_filter=filter_)))
    assert isinstance(ok, FetchOk)
    assert ok.end == Location(2, 2)


def test_subscribe_tracks_takes_every_parameter_of_a_subscription() -> None:
    """AMB#6: the long list is read, with TRACK_PROPERTY_FILTER besides."""
    extra = RangeFilter(RangeFilterKind.TRACK_PROPERTY, (IdRange(0, 1),), property_type=2)
    parameters = Parameters(
        **{
            name: getattr(EVERYTHING, name)
            for name in EVERYTHING.__dataclass_fields__
            if name != "range_filters"
        },
        range_filters=(*EVERYTHING.range_filters, extra),
    )
    message = SubscribeTracks(0, NAMESPACE, parameters)
    assert MessageReader().feed(encode_message(message)) == [message]


def test_a_subscription_that_starts_in_the_past_brings_nothing_from_before_it() -> None:
    """AMB#7: not even of the Group that is being published."""
    side = Sending()
    track = side.track()
    writer = track.open_group(3)
    writer.write(0, b"0")
    writer.write(1, b"1")
    for filter_ in (LocationFilter.absolute(Location(0, 0)), LocationFilter.relative(1)):
        side.subscribe(Parameters(location_filter=filter_))
    side.flush()
    assert not side.data_streams()
    writer.write(2, b"2")
    side.flush()
    assert places(side.objects(side.subgroups())) == [(3, 2), (3, 2)]


def test_what_a_peer_sends_from_before_a_subscription_is_taken() -> None:
    """AMB#7."""
    peer = ScriptedPeer()
    peer.session.subscribe(ASKED, location_filter=LocationFilter.absolute(Location(0, 0)), now=0.0)
    peer.send(0, SubscribeOk(7, Parameters(largest=Location(3, 1))))
    peer.send_octets(peer.open_uni(), subgroup(3, range(3)), fin=True)
    assert got(peer.take(ObjectReceived)) == [(3, 0), (3, 1), (3, 2)]
    assert peer.take(TrackMalformed) == []


def test_a_filter_without_a_range_is_not_sent_and_passes_nothing() -> None:
    """AMB#8."""
    empty = RangeFilter(RangeFilterKind.OBJECT_ID, ())
    with pytest.raises(ValueError, match="no range"):
        empty.serialize()
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    peer = ScriptedPeer(Role.SERVER, directory=directory)
    one_range = RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 0),))
    octets = encode_message(Subscribe(0, NAME, Parameters(range_filters=(one_range,))))
    assert octets[-5:] == bytes.fromhex("2603000000")  # type, length, SetID, Range
    octets = octets[:1] + (len(octets) - 5).to_bytes(2, "big") + octets[3:-5] + b"\x26\x01\x00"
    stream = peer.open_bidi()
    peer.send_octets(stream, octets)
    assert isinstance(one(peer.messages(stream)), SubscribeOk)
    publish(track, [0], 2)
    peer.after()
    assert peer.session.stats.objects_sent == 0
    peer.send(peer.open_bidi(), Subscribe(2, NAME))
    publish(track, [1], 2)
    peer.after()
    assert peer.session.stats.objects_sent == 3  # End of Group among them


def test_a_default_priority_above_255_closes_and_is_not_made() -> None:
    """AMB#10."""
    with pytest.raises(ValueError, match="expected 0 to 255"):
        TrackProperties.of(default_publisher_priority=256)
    peer = ScriptedPeer()
    peer.session.subscribe(ASKED, now=0.0)
    peer.send(0, SubscribeOk(7, Parameters(), TrackProperties((KeyValue(PRIORITY, 256),))))
    assert peer.transport.closed is not None
    assert peer.transport.closed[0] is SessionErrorCode.PROTOCOL_VIOLATION


def test_unknown_types_close_with_a_protocol_violation() -> None:
    """AMB#11: of a stream, a message and a datagram."""
    faults = []
    for fault in ("stream", "message", "datagram"):
        peer = ScriptedPeer()
        established(peer)
        if fault == "stream":
            peer.send_octets(peer.open_uni(), b"\x3f")
        elif fault == "message":
            peer.send_octets(0, b"\x3f\x00\x00")
        else:
            peer.datagram(b"\x7f\x00\x00\x00\x00\x00")
        assert peer.transport.closed is not None
        faults.append(peer.transport.closed[0])
    assert faults == [SessionErrorCode.PROTOCOL_VIOLATION] * 3


def test_prefixes_overlap_when_one_begins_with_the_other() -> None:
    """AMB#12: what merely begins alike does not."""
    peer = ScriptedPeer(Role.SERVER, directory=TrackDirectory())

    def ask(request_id: int, *fields: str) -> RequestErrorCode | None:
        stream = peer.open_bidi()
        peer.send(stream, SubscribeNamespace(request_id, TrackNamespace.of(*fields)))
        answer = one(peer.messages(stream))
        return answer.code if isinstance(answer, RequestError) else None

    assert ask(0, "a", "b") is None
    assert ask(2, "a", "c") is None
    assert ask(4, "ab") is None
    for request_id, fields in ((6, ("a",)), (8, ("a", "b")), (10, ("a", "b", "c"))):
        assert ask(request_id, *fields) is RequestErrorCode.PREFIX_OVERLAP


def test_relative_starts_and_ranges_in_the_past_of_a_subscription() -> None:
    """AMB#13."""
    side = Sending()
    track = side.track()
    for filter_ in (LocationFilter.relative(0), LocationFilter.relative(5)):
        side.subscribe(Parameters(location_filter=filter_))
    publish(track, [0], 1)
    side.flush()
    assert places(side.objects(side.subgroups())) == [(0, 0), (0, 0)]
    publish(track, [5], 1)
    past = LocationFilter.groups(first=1, last=3)
    request = side.subscribe(Parameters(location_filter=past))
    (ok,) = side.replies(request)
    assert isinstance(ok, SubscribeOk)
    before = len(side.data_streams())
    publish(track, [6], 1)
    side.flush()
    assert not [h for h in side.subgroups().values() if h.track_alias == ok.track_alias]
    assert len(side.data_streams()) > before
    side.update(request, Parameters(location_filter=LocationFilter.none()))
    publish(track, [7], 1)
    side.flush()
    assert places(side.objects(side.subgroups(ok.track_alias))) == [(7, 0)]


def test_the_prior_subgroup_after_a_datagram_object_is_read_as_0() -> None:
    """AMB#14: whatever the one before the datagram was."""
    peer = ScriptedPeer()
    request_id = peer.session.fetch(ASKED, now=0.0)
    peer.send(0, FetchOk(False, Location(0, 9)))
    octets = bytes([0x05, request_id])
    octets += bytes.fromhex("1f000900800178")  # {0,0} in Subgroup 9, priority 128, "x"
    octets += bytes.fromhex("400178")  # {0,1} in a datagram
    octets += bytes.fromhex("010178")  # {0,2} in the Subgroup before it
    peer.send_octets(peer.open_uni(), octets, fin=True)
    headers = [event.object.header for event in peer.take(ObjectReceived)]
    assert [header.object_id for header in headers] == [0, 1, 2]
    assert [header.subgroup_id for header in headers] == [9, None, 0]


@pytest.mark.parametrize("reset", [False, True])
def test_a_filtered_subgroup_may_end_either_way_and_says_nothing_of_its_rest(reset: bool) -> None:
    """AMB#15: another subscription gets what the filter left out."""
    peer = ScriptedPeer()
    first_two = RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 1),))
    peer.session.subscribe(ASKED, range_filters=[first_two], now=0.0)
    peer.send(0, SubscribeOk(7))
    established(peer, alias=8, stream_id=4)
    filtered, whole = peer.open_uni(), peer.open_uni()
    peer.send_octets(filtered, subgroup(0, range(2)), fin=not reset)
    if reset:
        peer.reset(filtered)
    peer.send_octets(whole, subgroup(0, range(4), alias=8), fin=True)
    objects = got(peer.take(ObjectReceived))
    assert objects == [(0, 0), (0, 1), (0, 0), (0, 1), (0, 2), (0, 3)]
    assert peer.take(TrackMalformed) == []
    assert not peer.session.is_closed
