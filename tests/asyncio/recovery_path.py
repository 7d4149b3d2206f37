"""A sender's loss recovery alone, by a virtual clock, and what a peer would acknowledge."""

from __future__ import annotations

from typing import Any, cast

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState, QuicSentPacket
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.tls import Epoch

from moqt.asyncio import cubic, recovery
from moqt.asyncio.bulk.sent import SentRun
from moqt.asyncio.pacing import BurstPacer

RTT = 0.1
OCTETS = 1200
LAST_OCTETS = 700
"""A run's last packet is shorter."""

STEP = 3
"""Octets of a stream in a packet."""


class Path:
    """A sender's recovery, and what a peer would acknowledge."""

    def __init__(self, algorithm: str = cubic.NAME) -> None:
        cubic.register()
        connection = QuicConnection(
            configuration=QuicConfiguration(
                alpn_protocols=["x"], congestion_control_algorithm=algorithm
            )
        )
        self.pacer = BurstPacer(max_datagram_size=OCTETS)
        self.recovery = recovery.install(connection, pacer=self.pacer)
        assert connection._loss is self.recovery
        self.space = QuicPacketSpace(is_application_data=True)
        self.recovery.spaces = [self.space]
        self.recovery.handshake_confirmed = True
        self.recovery.peer_completed_address_validation = True
        self.lost: list[int] = []
        self.acked: list[int] = []
        self.number = 0

    def send(self, count: int, now: float) -> range:
        numbers = range(self.number, self.number + count)
        self.number += count
        for number in numbers:
            packet = QuicSentPacket(
                epoch=Epoch.ONE_RTT,
                in_flight=True,
                is_ack_eliciting=True,
                is_crypto_packet=False,
                packet_number=number,
                packet_type=QuicPacketType.ONE_RTT,
                sent_bytes=OCTETS,
                sent_time=now,
                delivery_handlers=[(self._on_delivery, (number,))],
            )
            self.recovery.on_packet_sent(packet=packet, space=self.space)
        return numbers

    def _on_delivery(self, delivery: QuicDeliveryState, number: int) -> None:
        (self.acked if delivery is QuicDeliveryState.ACKED else self.lost).append(number)

    def acknowledge(self, *numbers: int, now: float) -> None:
        ranges = RangeSet()
        for number in numbers:
            ranges.add(number)
        self.recovery.on_ack_received(ack_rangeset=ranges, ack_delay=0.0, now=now, space=self.space)

    def warm_up(self) -> None:
        """Have a round trip measured, and the first packet acknowledged."""
        self.send(1, 1.0)
        self.acknowledge(0, now=1.0 + RTT)


class FakeSender:
    """Stands in for a stream's: notes what it is told, octet by octet."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.lost: list[int] = []
        self.ends: list[QuicDeliveryState] = []
        self.next_offset = 0

    def on_data_delivery(
        self, delivery: QuicDeliveryState, start: int, stop: int, fin: bool
    ) -> None:
        """Note it."""
        known = self.acked if delivery is QuicDeliveryState.ACKED else self.lost
        known.extend(range(start, stop))
        if fin:
            self.ends.append(delivery)


class RunPath(Path):
    """Sends runs of packets, as the bulk path does: as one record each, or packet by packet."""

    def __init__(self, *, is_joined: bool, algorithm: str = cubic.NAME) -> None:
        super().__init__(algorithm)
        self.senders = (FakeSender(), FakeSender())
        self._is_joined = is_joined

    def send_run(self, count: int, now: float, *, sender: int = 0, fin: bool = False) -> range:
        """Send so many packets of a stream's next octets; the last has an octet less."""
        numbers = range(self.number, self.number + count)
        self.number += count
        stream = self.senders[sender]
        start = stream.next_offset
        stop = stream.next_offset = start + count * STEP - 1
        if self._is_joined:
            self._enter(numbers, now, stream, start, stop, fin)
        else:
            for number in numbers:
                is_last = number == numbers[-1]
                end = stop if is_last else start + STEP
                self._enter(
                    range(number, number + 1),
                    now,
                    stream,
                    start,
                    end,
                    fin and is_last,
                    is_short=is_last,
                )
                start = end
        return numbers

    def _enter(
        self,
        numbers: range,
        now: float,
        stream: FakeSender,
        start: int,
        stop: int,
        fin: bool,
        *,
        is_short: bool = True,
    ) -> None:
        run = SentRun(
            first_number=numbers[0],
            last_number=numbers[-1],
            octets=(len(numbers) - 1) * OCTETS + (LAST_OCTETS if is_short else OCTETS),
            datagram_octets=OCTETS,
            sent_time=now,
            sender=cast("Any", stream),
            start=start,
            stop=stop,
            step=STEP,
            fin=fin,
        )
        self.recovery.on_packet_sent(packet=cast("Any", run), space=self.space)
