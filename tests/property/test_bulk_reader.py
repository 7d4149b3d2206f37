"""Packets read by the batch leave a connection as if aioquic had read them one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.asyncio.bulk_twins import Damage, Packet, Twins, stream_frame, varint

if TYPE_CHECKING:
    import random

STREAMS = [6, 10, 14, 300]


class Content(Enum):
    """What a packet holds."""

    STREAM = auto()
    STREAM_WITH_LENGTH = auto()
    STREAM_AND_PADDING = auto()
    TWO_STREAMS = auto()
    DATAGRAM = auto()
    PING = auto()
    PADDING = auto()
    ACK = auto()
    RESET = auto()


@dataclass(frozen=True)
class Course:
    """Packets in a row: so many, all of these octets of these streams."""

    packets: int
    octets: int
    stream: int
    content: Content
    spin: bool
    fin: bool
    number_octets: int


@dataclass(frozen=True)
class Trouble:
    """What happens to some packets of a batch."""

    swaps: int
    lost: int
    repeated: int
    damaged: list[Damage]
    joined: bool


courses = st.builds(
    Course,
    packets=st.sampled_from([1, 2, 5, 20, 64]),
    octets=st.sampled_from([0, 1, 40, 1_000, 1_000, 1_000]),
    stream=st.sampled_from(STREAMS),
    content=st.sampled_from([*Content, Content.STREAM, Content.STREAM, Content.STREAM]),
    spin=st.booleans(),
    fin=st.sampled_from([False, False, True]),
    number_octets=st.sampled_from([1, 2, 2, 2, 3, 4]),
)

troubles = st.builds(
    Trouble,
    swaps=st.sampled_from([0, 0, 1, 3, 30]),
    lost=st.sampled_from([0, 0, 1, 5]),
    repeated=st.sampled_from([0, 0, 1, 5]),
    damaged=st.lists(st.sampled_from(Damage), max_size=3),
    joined=st.booleans(),
)


class Other:
    """Makes the payloads; no octet of a stream changes."""

    def __init__(self, *, is_server: bool = False) -> None:
        self.number = 0
        self.streams = [stream_id + is_server for stream_id in STREAMS]
        self.offsets = dict.fromkeys(self.streams, 0)
        self.ended: set[int] = set()

    def packets(self, course: Course) -> list[Packet]:
        course = replace(course, stream=self.streams[STREAMS.index(course.stream)])
        made = []
        for index in range(course.packets):
            payload = self.payload(course, is_last=index == course.packets - 1)
            octets = max(course.number_octets, 4 - len(payload))  # a sample has to fit
            made.append(Packet(self.number, payload, spin=course.spin, number_octets=octets))
            self.number += 1
        return made

    def data(self, course: Course, *, fin: bool, has_length: bool = False) -> bytes:
        stream_id = course.stream
        if stream_id in self.ended:
            return b"\x01"
        offset = self.offsets[stream_id]
        self.offsets[stream_id] += course.octets
        if fin:
            self.ended.add(stream_id)
        octets = bytes((offset + at + stream_id) % 251 for at in range(course.octets))
        return stream_frame(stream_id, offset, octets, fin=fin, has_length=has_length)

    def payload(self, course: Course, *, is_last: bool) -> bytes:
        fin = course.fin and is_last
        match course.content:
            case Content.STREAM:
                found = self.data(course, fin=fin)
            case Content.STREAM_WITH_LENGTH:
                found = self.data(course, fin=fin, has_length=True)
            case Content.STREAM_AND_PADDING:
                found = self.data(course, fin=fin, has_length=True) + bytes(5)
            case Content.TWO_STREAMS:
                other = self.streams[(self.streams.index(course.stream) + 1) % 4]
                found = self.data(course, fin=fin, has_length=True)
                found += self.data(replace(course, stream=other), fin=False)
            case Content.DATAGRAM:
                found = b"\x30" + self.number.to_bytes(4, "big")
            case Content.PING:
                found = b"\x01"
            case Content.PADDING:
                found = bytes(course.octets + 1)
            case Content.ACK:
                found = b"\x02" + varint(0) + varint(0) + varint(0) + varint(0)
            case Content.RESET:
                stream_id = course.stream
                if stream_id in self.ended:
                    found = b"\x01"
                else:
                    self.ended.add(stream_id)
                    size = self.offsets[stream_id]
                    found = b"\x04" + varint(stream_id) + varint(7) + varint(size)
        return found + bytes(max(0, 4 - len(found))) if found[0] & 0xF8 != 8 else found


def arrange(packets: list[Packet], trouble: Trouble, dice: random.Random) -> list[Packet]:
    found = list(packets)
    for _ in range(trouble.swaps):
        at, to = dice.randrange(len(found)), dice.randrange(len(found))
        found[at], found[to] = found[to], found[at]
    for _ in range(trouble.repeated):
        found.insert(dice.randrange(len(found) + 1), dice.choice(found))
    for damage in trouble.damaged:
        at = dice.randrange(len(found))
        found[at] = replace(found[at], damage=damage)
    for _ in range(min(trouble.lost, len(found) - 1)):
        found.pop(dice.randrange(len(found)))
    return found


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.tuples(st.lists(courses, min_size=1, max_size=3), troubles, st.booleans()),
        min_size=1,
        max_size=6,
    ),
    is_client=st.booleans(),
    dice=st.randoms(use_true_random=False),
)
def test_a_batch_leaves_what_single_packets_leave(
    steps: list[tuple[list[Course], Trouble, bool]], is_client: bool, dice: random.Random
) -> None:
    twins = Twins(is_client=is_client)
    other = Other(is_server=is_client)
    late: list[Packet] = []
    for batch, trouble, is_sent in steps:
        packets = [packet for course in batch for packet in other.packets(course)]
        come = arrange(packets, trouble, dice)
        twins.feed(come, joined=trouble.joined)
        late += [packet for packet in packets if packet not in come]
        if is_sent and not twins.is_over:
            twins.send()
        if late and dice.random() < 0.5:
            twins.feed(late[:10], joined=trouble.joined)
            del late[:10]
    assert not twins.is_over
