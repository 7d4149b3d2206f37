"""What the tests of the receive side share: a track, its streams as octets, a recording sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from moqt.codes import GroupOrder, ObjectStatus
from moqt.types import FullTrackName, Location, ObjectHeader, Placement, TrackNamespace
from moqt.wire.fetch_objects import FetchWriter
from moqt.wire.messages import SubscribeOk
from moqt.wire.params import Parameters
from moqt.wire.properties import TrackProperties
from moqt.wire.streams import FetchHeader, SubgroupHeader
from moqt.wire.subgroup_objects import SubgroupWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moqt.session.events import ObjectReceived
    from moqt.session.receive.sink import ObjectSink
    from moqt.testing import ScriptedPeer

NAMESPACE = TrackNamespace.of("kv", "a")
NAME = FullTrackName(NAMESPACE, b"k")
OTHER = FullTrackName(NAMESPACE, b"v")
ALIAS = 7

T = TypeVar("T")


def payload_of(group_id: int, object_id: int, size: int = 40) -> bytes:
    """Return octets that tell which Object they belong to."""
    pattern = bytes((group_id % 251, object_id % 251, (group_id ^ object_id) % 251, 0x5A))
    return (pattern * (size // 4 + 1))[:size]


def subgroup(
    group_id: int,
    object_ids: Iterable[int],
    *,
    alias: int = ALIAS,
    subgroup_id: int = 0,
    priority: int | None = None,
    size: int = 40,
    ends_group: bool = False,
    end_status: tuple[int, ObjectStatus] | None = None,
) -> bytes:
    """Return a whole subgroup stream, with a status Object at its end if asked for."""
    writer = SubgroupWriter(
        SubgroupHeader(
            track_alias=alias,
            group_id=group_id,
            subgroup_id=subgroup_id,
            publisher_priority=priority,
            ends_group=ends_group,
            is_first_object=True,
        )
    )
    octets = bytearray(writer.head)
    given = 128 if priority is None else priority
    for object_id in object_ids:
        payload = payload_of(group_id, object_id, size)
        octets += writer.encode(ObjectHeader(group_id, object_id, subgroup_id, given, len(payload)))
        octets += payload
    if end_status is not None:
        octets += writer.encode(
            ObjectHeader(group_id, end_status[0], subgroup_id, given, 0, end_status[1])
        )
    return bytes(octets)


def fetched(
    request_id: int,
    locations: Iterable[tuple[int, int]],
    *,
    order: GroupOrder = GroupOrder.ASCENDING,
    size: int = 40,
) -> bytes:
    """Return a whole fetch stream."""
    writer = FetchWriter(FetchHeader(request_id), order)
    octets = bytearray(writer.head)
    for group_id, object_id in locations:
        payload = payload_of(group_id, object_id, size)
        octets += writer.encode(ObjectHeader(group_id, object_id, 0, 128, len(payload)))
        octets += payload
    return bytes(octets)


def established(
    peer: ScriptedPeer,
    *,
    name: FullTrackName = NAME,
    alias: int = ALIAS,
    largest: Location | None = None,
    properties: TrackProperties | None = None,
    sink: ObjectSink | None = None,
    stream_id: int = 0,
) -> int:
    """Subscribe and let the peer accept; return the Request ID. The events are left."""
    request_id = peer.session.subscribe(name, sink=sink, now=peer.now)
    peer.send(
        stream_id, SubscribeOk(alias, Parameters(largest=largest), properties or TrackProperties())
    )
    return request_id


def one(found: list[T]) -> T:
    """Return the only item."""
    assert len(found) == 1, found
    return found[0]


def got(events: Iterable[ObjectReceived]) -> list[tuple[int, int]]:
    """Return the Locations of Objects, and check their payloads."""
    places = []
    for event in events:
        header, payload = event.object.header, event.object.payload
        if header.payload_length and payload is not None:
            expected = payload_of(header.group_id, header.object_id, header.payload_length)
            assert bytes(payload) == expected
        places.append((header.group_id, header.object_id))
    return places


class RecordingSink:
    """Places each payload in memory of its own, in buffers of `cut` octets and the rest."""

    def __init__(self, cut: int = 7, *, refuses: bool = False) -> None:
        self.memory: dict[tuple[int, int], bytearray] = {}
        self.placed: list[ObjectHeader] = []
        self.given_back: list[Placement] = []
        self.from_fill: list[bool] = []
        self._cut = cut
        self._refuses = refuses

    def place(self, header: ObjectHeader, *, from_fill: bool) -> Placement | None:
        if self._refuses:
            return None
        self.placed.append(header)
        self.from_fill.append(from_fill)
        memory = bytearray(header.payload_length)
        self.memory[header.group_id, header.object_id] = memory
        view = memoryview(memory)
        return Placement((view[: self._cut], view[self._cut :]), len(self.placed))

    def abandoned(self, placement: Placement) -> None:
        self.given_back.append(placement)
