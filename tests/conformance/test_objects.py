"""Chapters 2, 8 and 10: Objects, their streams, and names."""

from __future__ import annotations

from collections import Counter

import pytest

from moqt.codes import GroupOrder, RequestErrorCode
from moqt.errors import LocalProtocolError, RequestRejected
from moqt.session.config import Role
from moqt.session.events import NamespaceOffered, PublicationOffered
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.fields import KeyValue
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.messages import Fetch, Publish, PublishNamespace, RequestError, Subscribe
from moqt.wire.params import FillParameters, Parameters
from moqt.wire.properties import ObjectProperties, PropertyType, TrackProperties, serialize_pairs
from tests.session.receiving import one
from tests.session.sending import JOIN, Got, Sending, publish

IMMUTABLE = serialize_pairs((KeyValue(0x78, 5), KeyValue(0x79, b"as it was")))


def test_an_object_is_the_same_wherever_and_however_it_is_asked_for() -> None:
    """2.1#1, 9.20#6, 10.7#1: payload and properties, to the octet."""
    side = Sending()
    track = side.track()
    properties = ObjectProperties.of(
        other=[KeyValue(0x7A, 1), KeyValue(PropertyType.IMMUTABLE_PROPERTIES, IMMUTABLE)]
    ).serialize()
    side.subscribe()
    writer = track.open_group(4)
    writer.write(0, b"payload", properties)
    side.flush()
    first = RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 0),))
    fill = FillParameters(
        location_filter=LocationFilter.none(),
        subscriber_priority=3,
        group_order=GroupOrder.DESCENDING,
        range_filters=(first,),
    )
    side.subscribe(JOIN)
    side.subscribe(Parameters(fill=fill, object_delivery_timeout_ms=10_000, forward=True))
    side.fetch()
    side.fetch(
        Parameters(subscriber_priority=0, group_order=GroupOrder.DESCENDING, range_filters=(first,))
    )
    side.flush()
    streams = list(side.data_streams())
    assert len(streams) == 5
    for stream in streams:
        (got,) = side.read(stream)
        assert isinstance(got, Got)
        assert (got.location, got.payload) == (Location(4, 0), b"payload")
        assert got.properties == properties
        parsed = ObjectProperties.parse(got.properties)
        assert KeyValue(PropertyType.IMMUTABLE_PROPERTIES, IMMUTABLE) in parsed.pairs


def test_what_was_published_cannot_be_published_again() -> None:
    """2.1#1: neither an Object nor its Subgroup; it may only be evicted."""
    track = TrackSource(FullTrackName(TrackNamespace.of("n"), b"t"))
    writer = track.open_group(0)
    writer.write(0, b"first")
    with pytest.raises(LocalProtocolError, match="Object ID is 0, expected more than 0"):
        writer.write(0, b"other")
    with pytest.raises(LocalProtocolError, match="Subgroup 0 of Group 0 exists"):
        track.open_group(0)
    track.evict_all()
    with pytest.raises(LocalProtocolError, match="Object ID is 0, expected more than 0"):
        writer.write(0, b"other")


def test_each_subgroup_has_one_stream_of_its_own_in_each_subscription() -> None:
    """2.2#1, 11.3#2."""
    side = Sending()
    track = side.track()
    for _ in range(2):
        side.subscribe()
    for group_id in range(2):
        writers = [track.open_group(group_id, subgroup_id=s) for s in (0, 1, 5)]
        for object_id in range(9):
            writers[object_id % 3].write(object_id, b"x")
            side.flush()
        for writer in writers:
            writer.close()
    side.flush()
    heads = side.subgroups()
    assert set(Counter(heads.values()).values()) == {1}
    assert len(heads) == 2 * 2 * 3
    for stream, head in heads.items():
        expected = {0: [0, 3, 6], 1: [1, 4, 7], 5: [2, 5, 8]}[head.subgroup_id or 0]
        assert [got.location.object_id for got in side.objects([stream])] == expected


def test_a_subgroup_goes_on_only_after_its_stream_was_reset() -> None:
    """2.2#1, 11.3#2: pause and resume; never two open streams of one Subgroup."""
    side = Sending()
    track = side.track()
    request = side.subscribe()
    writer = track.open_group(0)
    for object_id in range(6):
        writer.write(object_id, b"x")
        side.flush()
        side.update(request, Parameters(forward=object_id % 2 == 1))
        side.flush()
        opened = [w for w in side.data_streams().values() if w.is_open]
        assert len(opened) <= 1
    assert len(side.data_streams()) > 1
    assert all(written.reset is not None for written in list(side.data_streams().values())[:-1])


def test_a_mandatory_type_is_a_track_property_only() -> None:
    """3.7#1."""
    mandatory = KeyValue(0x4001, b"x")
    assert TrackProperties.of(other=[mandatory]).mandatory_types == (0x4001,)
    for kind in (0x4000, 0x4001, 0x7FFF):
        value = b"x" if kind % 2 else 1
        with pytest.raises(ValueError, match="Mandatory"):
            ObjectProperties.of(other=[KeyValue(kind, value)])
    inner = serialize_pairs((mandatory,))
    with pytest.raises(ValueError, match="Mandatory"):
        ObjectProperties.of(other=[KeyValue(PropertyType.IMMUTABLE_PROPERTIES, inner)])
    assert ObjectProperties.of(other=[KeyValue(0x8000, 1)]).pairs == (KeyValue(0x8000, 1),)


# Names


RESERVED = TrackNamespace.of(".x", "y")


def test_an_unknown_reserved_namespace_is_the_applications_to_judge() -> None:
    """2.4.3#3: offers are events, and what the application says of a track is the answer."""
    directory = TrackDirectory()
    peer = ScriptedPeer(Role.SERVER, directory=directory)
    name = FullTrackName(RESERVED, b"t")
    peer.send(peer.open_bidi(), PublishNamespace(0, RESERVED))
    assert one(peer.take(NamespaceOffered)).namespace == RESERVED
    peer.send(peer.open_bidi(), Publish(2, name, 7))
    assert one(peer.take(PublicationOffered)).name == name
    directory.refuse(name, RequestRejected(RequestErrorCode.UNAUTHORIZED, "ours to say"))
    for request in (Subscribe(4, name), Fetch(6, name)):
        stream = peer.open_bidi()
        peer.send(stream, request)
        answer = one(peer.messages(stream))
        assert isinstance(answer, RequestError)
        assert (answer.code, answer.reason) == (RequestErrorCode.UNAUTHORIZED, "ours to say")


def test_the_text_of_a_name_reads_back() -> None:
    """8.8#2."""
    name = FullTrackName(TrackNamespace.of("kv-1", "s", b"\x00\xff_Z9"), b"k.raw")
    assert str(name) == "kv.2d1-s-.00.ff_Z9--k.2eraw"
    assert FullTrackName.parse(str(name)) == name
    every_octet = FullTrackName(TrackNamespace.of(bytes(range(256))), bytes(range(256)))
    assert FullTrackName.parse(str(every_octet)) == every_octet
    nothing = FullTrackName(TrackNamespace(), b"")
    assert str(nothing) == "--"
    assert FullTrackName.parse("--") == nothing


@pytest.mark.parametrize(
    "text", ["a--.61", "a--.2D", "a--.2", "a--.", "a--.zz", "a--k raw", "a.5f--k", "a--.F0", "a-b"]
)
def test_text_in_no_canonical_form_is_refused(text: str) -> None:
    """8.8#1."""
    with pytest.raises(ValueError, match=r"8\.8|'--'"):
        FullTrackName.parse(text)


def test_groups_end_where_their_streams_end() -> None:
    """11.3.2#6, 11.3.2#1: each stream carries its whole Group and FIN."""
    side = Sending()
    track = side.track()
    side.subscribe()
    publish(track, range(3), 4)
    track.end()
    side.flush()
    groups = [head.group_id for head in side.subgroups().values()]
    assert groups == [0, 1, 2, 3]
    for stream, head in list(side.subgroups().items())[:-1]:
        assert side.transport.streams[stream].fin
        got = [item.location for item in side.read(stream) if isinstance(item, Got)]
        assert got == [Location(head.group_id, object_id) for object_id in range(5)]
