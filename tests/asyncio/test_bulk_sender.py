"""The sending half of a stream on the bulk path: references, runs, what is lost, who writes it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from aioquic.quic.packet_builder import QuicDeliveryState

from moqt.asyncio.bulk.receiver import PlacingReceiver, RangeTally
from moqt.asyncio.bulk.sender import ReferencingSender, Run
from tests.asyncio.bulk_pair import Network, Weather

if TYPE_CHECKING:
    from moqt.asyncio.bulk.connection import BulkConnection

ACKED, LOST = QuicDeliveryState.ACKED, QuicDeliveryState.LOST
FAR = 1 << 40


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Nothing here has a task or a socket."""


class Owner:
    def __init__(self) -> None:
        self.is_bulk_at_work = True
        self.asked: list[bool] = []

    def on_sendable(self, sender: ReferencingSender, *, is_urgent: bool) -> None:
        self.asked.append(is_urgent)


def sender_of(*buffers: bytes, fin: bool = False) -> ReferencingSender:
    sender = ReferencingSender(6, Owner())
    assert sender.append(buffers, fin) == sum(map(len, buffers))
    return sender


def octets(sender: ReferencingSender, start: int, stop: int) -> bytes:
    return b"".join(sender.slices(start, stop))


# --- slices ---


def test_slices_over_many_chunks_from_any_offset() -> None:
    dice = random.Random(1)
    buffers = [dice.randbytes(dice.choice([1, 2, 7, 100])) for _ in range(50)]
    whole = b"".join(buffers)
    sender = sender_of(*buffers)
    for _ in range(500):
        start = dice.randrange(len(whole))
        stop = dice.randrange(start, len(whole)) + 1
        assert octets(sender, start, stop) == whole[start:stop]


def test_whole_chunks_are_given_as_they_were_written() -> None:
    first, second = b"abc", memoryview(b"defgh")
    sender = ReferencingSender(6, Owner())
    sender.append((first, b"", second), False)
    assert sender.slices(0, 8)[0] is first
    assert sender.slices(0, 8)[1] is second
    part = sender.slices(1, 8)[0]
    assert isinstance(part, memoryview)
    assert part.obj is first


def test_slices_after_chunks_have_gone_and_others_have_come() -> None:
    sender = sender_of(b"abc", b"def", b"ghi")
    run = sender.next_run(FAR, FAR)
    assert run == Run(0, 9, False, is_new=True)
    assert octets(sender, 7, 9) == b"hi"  # the search for a chunk begins there the next time
    sender.on_data_delivery(ACKED, 0, 5, False)
    assert octets(sender, 5, 9) == b"fghi"
    sender.append((b"jkl",), False)
    assert octets(sender, 8, 12) == b"ijkl"
    sender.on_data_delivery(ACKED, 5, 9, False)
    assert octets(sender, 9, 12) == b"jkl"
    sender.on_data_delivery(ACKED, 9, 12, False)
    assert not sender._chunks
    sender.append((b"mno",), False)
    assert octets(sender, 13, 15) == b"no"


# --- runs ---


def test_a_run_is_all_that_flow_control_lets_through() -> None:
    sender = sender_of(b"abcdefghij", fin=True)
    assert sender.next_run(0, FAR) is None
    assert sender.next_run(4, FAR) == Run(0, 4, False, is_new=True)
    assert sender.next_run(4, FAR) is None
    assert sender.has_pending
    assert sender.next_run(10, FAR) == Run(4, 10, True, is_new=True)
    assert sender.next_run(FAR, FAR) is None
    assert not sender.has_pending


def test_a_run_has_so_many_octets_at_most() -> None:
    sender = sender_of(b"abcdefghij", fin=True)
    assert sender.next_run(FAR, 0) is None
    assert sender.next_run(FAR, 3) == Run(0, 3, False, is_new=True)
    assert sender.highest_offset == 3
    assert sender.next_run(FAR, 7) == Run(3, 10, True, is_new=True)
    sender.on_data_delivery(LOST, 2, 8, False)
    assert sender.next_run(0, 0) is None
    assert sender.next_run(0, 3) == Run(2, 5, False, is_new=False)  # it was let through before
    assert sender.next_run(0, 3) == Run(5, 8, False, is_new=False)
    sender.on_data_delivery(LOST, 6, 10, True)
    assert sender.next_run(0, 3) == Run(6, 9, False, is_new=False)
    assert sender.next_run(0, 3) == Run(9, 10, True, is_new=False)
    assert not sender.has_pending


def test_the_tail_is_what_full_packets_leave() -> None:
    sender = sender_of(b"abcdefghij")
    assert [sender.tail(step) for step in (1, 3, 5, 10, 11)] == [0, 1, 0, 0, 10]
    sender.next_run(FAR, 4)
    assert sender.tail(4) == 2
    sender.on_data_delivery(LOST, 0, 2, False)
    assert sender.tail(4) == 0  # that goes first
    sender.next_run(FAR, 2)
    sender.append((b"",), True)
    assert sender.tail(4) == 0  # nothing will follow


@pytest.mark.parametrize("max_offset", [0, 2, 5, FAR])
def test_can_send_says_whether_there_is_a_run(max_offset: int) -> None:
    for sender in (
        sender_of(),
        sender_of(b"abc"),
        sender_of(b"abcde", fin=True),
        sender_of(fin=True),
    ):
        while sender.can_send(max_offset):
            assert sender.next_run(max_offset, 2) is not None
        assert sender.next_run(max_offset, 2) is None
    sender = sender_of(b"abc")
    sender.reset(0)
    assert not sender.can_send(FAR)


def test_ranges_that_were_lost_are_joined() -> None:
    sender = sender_of(bytes(100), fin=True)
    sender.next_run(FAR, FAR)
    for start, stop in ((10, 20), (40, 50), (20, 30), (30, 40), (0, 5)):
        sender.on_data_delivery(LOST, start, stop, False)
    assert sender.next_run(FAR, FAR) == Run(0, 5, False, is_new=False)
    assert sender.next_run(FAR, FAR) == Run(10, 50, False, is_new=False)
    sender.on_data_delivery(LOST, 90, 100, True)
    sender.on_data_delivery(LOST, 50, 90, False)
    assert sender.next_run(FAR, FAR) == Run(50, 100, True, is_new=False)


def test_what_is_lost_goes_before_what_is_new_and_fin_stays_at_the_end() -> None:
    sender = sender_of(bytes(10))
    sender.next_run(FAR, FAR)
    sender.append((bytes(10),), True)
    sender.on_data_delivery(LOST, 0, 10, False)
    assert sender.next_run(FAR, FAR) == Run(0, 10, False, is_new=False)
    assert sender.next_run(FAR, FAR) == Run(10, 20, True, is_new=True)


def test_fin_alone() -> None:
    sender = sender_of(b"abc")
    assert sender.next_run(FAR, FAR) == Run(0, 3, False, is_new=True)
    sender.append((), True)
    assert sender.has_pending
    assert sender.next_run(3, FAR) == Run(3, 3, True, is_new=True)
    assert sender.next_run(FAR, FAR) is None
    sender.on_data_delivery(LOST, 3, 3, True)
    assert sender.next_run(0, FAR) == Run(3, 3, True, is_new=True)  # it takes no room
    sender.on_data_delivery(ACKED, 3, 3, True)
    was_finished = sender.is_finished  # the octets are still on their way
    sender.on_data_delivery(ACKED, 0, 3, False)
    assert (was_finished, sender.is_finished) == (False, True)
    empty = sender_of(fin=True)
    assert empty.next_run(0, FAR) == Run(0, 0, True, is_new=True)
    empty.on_data_delivery(ACKED, 0, 0, True)
    assert empty.is_finished


def test_nothing_is_appended_after_the_end() -> None:
    sender = sender_of(b"abc", fin=True)
    with pytest.raises(RuntimeError, match="after FIN"):
        sender.append((b"x",), False)
    sender = sender_of(b"abc")
    sender.reset(4)
    with pytest.raises(RuntimeError, match="was reset"):
        sender.append((b"x",), False)
    assert not sender.has_pending
    assert not sender._chunks


def test_the_owner_is_asked_when_there_is_something_to_send() -> None:
    owner = Owner()
    sender = ReferencingSender(6, owner)
    sender.append((b"",), False)
    assert owner.asked == []
    sender.append((b"abc",), False)
    sender.append((), True)
    assert owner.asked == [False, False]
    sender.next_run(FAR, FAR)
    sender.on_data_delivery(LOST, 0, 3, True)
    assert owner.asked == [False, False, True]
    sender.reset(1)
    sender.on_data_delivery(LOST, 0, 3, True)
    assert owner.asked == [False, False, True]


def test_aioquics_writer_passes_by_while_the_bulk_writer_is_at_work() -> None:
    owner = Owner()
    sender = ReferencingSender(6, owner)
    sender.append((b"abc",), False)
    found = [sender.buffer_is_empty]
    owner.is_bulk_at_work = False
    found.append(sender.buffer_is_empty)
    sender.get_frame(100)
    found.append(sender.buffer_is_empty)
    assert found == [True, False, True]


# --- both writers by turns ---


class Wire:
    """Packets that either writer makes of a sender; each is acknowledged or lost, in any order."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.sender = ReferencingSender(6, Owner())
        self.written = bytearray()
        self.has_fin = False
        self.received = bytearray()
        self.final: int | None = None
        self.receiver = PlacingReceiver(6, self._arrive, RangeTally())
        self.flying: list[tuple[int, int, bool]] = []

    def _arrive(self, stream_id: int, offset: int, data: memoryview | bytes, fin: bool) -> None:
        self.received += bytes(max(0, offset + len(data) - len(self.received)))
        self.received[offset : offset + len(data)] = data
        if fin:
            self.final = offset + len(data)

    def append(self) -> None:
        if self.has_fin:
            return
        buffers = [self.dice.randbytes(self.dice.choice([0, 1, 30, 200])) for _ in range(3)]
        self.has_fin = self.dice.random() < 0.1
        self.sender.append(buffers, self.has_fin)
        self.written += b"".join(buffers)

    def by_bulk(self) -> None:
        """As the bulk writer does: some packets of one run."""
        size = self.dice.choice([1, 40, 150])
        most = self.sender.highest_offset + self.dice.randrange(400)
        run = self.sender.next_run(most, size * self.dice.randrange(1, 4))
        if run is None:
            return
        data = b"".join(self.sender.slices(run.start, run.stop)) if run.stop > run.start else b""
        start = run.start
        while True:
            end = min(run.stop, start + size)
            fin = run.fin and end == run.stop
            self.fly(start, data[start - run.start : end - run.start], fin)
            start = end
            if start >= run.stop:
                break

    def by_aioquic(self) -> None:
        most = self.sender.highest_offset + self.dice.randrange(300)
        frame = self.sender.get_frame(self.dice.randrange(-1, 200), most)
        if frame is not None:
            self.fly(frame.offset, frame.data, frame.fin)

    def fly(self, start: int, data: bytes, fin: bool) -> None:
        assert data == self.written[start : start + len(data)]
        assert not fin or (self.has_fin and start + len(data) == len(self.written))
        self.flying.append((start, start + len(data), fin))

    def land(self, *, chance: float) -> None:
        if not self.flying:
            return
        start, stop, fin = self.flying.pop(self.dice.randrange(len(self.flying)))
        if self.dice.random() < chance:
            self.receiver.place(start, bytes(self.written[start:stop]), fin)
            self.sender.on_data_delivery(ACKED, start, stop, fin)
        else:
            self.sender.on_data_delivery(LOST, start, stop, fin)


@pytest.mark.parametrize("seed", range(40))
def test_both_writers_take_turns(seed: int) -> None:
    wire = Wire(seed)
    deeds = [wire.append, wire.by_bulk, wire.by_aioquic]
    for _ in range(300):
        wire.dice.choice(deeds)()
        for _ in range(wire.dice.randrange(3)):
            wire.land(chance=0.7)
    if not wire.has_fin:
        wire.sender.append((), True)
        wire.has_fin = True
    for _ in range(10_000):
        if wire.sender.is_finished:
            break
        wire.dice.choice(deeds[1:])()
        wire.land(chance=0.9)
    assert wire.sender.is_finished
    assert wire.received == wire.written
    assert wire.final == len(wire.written)
    assert not wire.flying
    assert not wire.sender._chunks
    assert not wire.sender._early_acked
    assert not wire.sender.has_pending


def test_the_bulk_path_goes_off_and_on_in_the_middle() -> None:
    network = Network(seed=5)
    network.weather = Weather(loss=0.02, late=0.05, mtu=1500)
    data = network.dice.randbytes(300_000)
    stream_id = network.client.open()
    network.client.send(stream_id, data, fin=True)
    connection: BulkConnection = network.client.connection  # type: ignore[assignment]
    possible = connection._is_bulk_possible
    batches = []
    for share in range(1, 9):
        is_off = share % 2 == 0
        connection._is_bulk_possible = (  # type: ignore[method-assign]
            (lambda: False) if is_off else possible
        )
        before = network.client.bulk_batches
        network.run(lambda share=share: network.server.received_octets > share * 30_000)  # type: ignore[misc]
        batches.append(network.client.bulk_batches - before)
    assert not any(batches[1::2])
    assert all(batches[0::2])
    connection._is_bulk_possible = possible  # type: ignore[method-assign]
    network.run(lambda: network.server.has_all(stream_id))
    assert network.server.received[stream_id] == data
    network.settle()
