"""The emulated link: the arithmetic of packets and queues, by a virtual clock, and a real one."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.case import MEBI, CaseFailed, Metric, NotRun
from tests.bench.link import share_of_udp
from tests.bench.link_forward import Direction, LinkSpec
from tests.bench.link_packets import TCP, UDP, VNET_OCTETS, Packet
from tests.bench.link_path import emulated
from tests.bench.one_way import one_way_round

VNET = struct.Struct("=BBHHHH")
IP_OCTETS = 20


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def packet(payload: bytes, *, size: int, protocol: int = UDP, sequence: int = 7) -> bytes:
    """Return what a TUN device gives for `payload` in segments of `size`."""
    if protocol == UDP:
        transport = struct.pack(">HHHH", 1, 2, 8 + len(payload), 0)
        gso, offset = 5, 6
    else:
        transport = struct.pack(">HHIIBBHHH", 1, 2, sequence, 0, 8 << 4, 0x19, 100, 0, 0) + bytes(
            12
        )
        gso, offset = 1, 16
    total = IP_OCTETS + len(transport) + len(payload)
    addresses = bytes([10, 0, 0, 1, 10, 0, 0, 2])
    ip = struct.pack(">BBHHHBBH", 0x45, 0, total, 100, 0x4000, 64, protocol, 0) + addresses
    vnet = VNET.pack(1, gso if len(payload) > size else 0, 0, size, IP_OCTETS, offset)
    return vnet + ip + transport + payload


@given(
    payload=st.binary(min_size=1, max_size=5000),
    size=st.integers(1, 1448),
    protocol=st.sampled_from([TCP, UDP]),
    data=st.data(),
)
def test_parts_carry_all_octets_and_headers_that_fit_them(
    payload: bytes, size: int, protocol: int, data: st.DataObject
) -> None:
    whole = Packet.parse(packet(payload, size=size, protocol=protocol))
    expected = max(1, -(-len(payload) // size))
    assert whole.segments == expected
    header = IP_OCTETS + (8 if protocol == UDP else 32)
    assert whole.octets == len(payload) + expected * header
    cuts = sorted(data.draw(st.sets(st.integers(0, expected))) | {0, expected})
    carried = b""
    for first, stop in pairwise(cuts):
        part = whole.part(first, stop)
        again = Packet.parse(part.data)
        assert again.segments == part.segments == stop - first
        assert again.octets == part.octets
        octets = part.data[VNET_OCTETS:]
        assert struct.unpack_from(">H", octets, 2)[0] == len(octets)
        assert part is whole or checksum(octets[:IP_OCTETS]) == 0xFFFF
        if protocol == UDP:
            assert struct.unpack_from(">H", octets, IP_OCTETS + 4)[0] == len(octets) - IP_OCTETS
        else:
            sequence = struct.unpack_from(">I", octets, IP_OCTETS + 4)[0]
            assert sequence == 7 + first * size
            assert bool(octets[IP_OCTETS + 13] & 0x09) == (stop == expected)
        if part is not whole:
            offset = IP_OCTETS + (6 if protocol == UDP else 16)
            pseudo = octets[12:20] + struct.pack(">HH", protocol, len(octets) - IP_OCTETS)
            assert struct.unpack_from(">H", octets, offset)[0] == checksum(pseudo)
        carried += octets[header:]
    assert carried == payload


IPV6 = bytes(VNET_OCTETS) + b"\x60" + bytes(60)
ICMP = packet(b"", size=1, protocol=1)


@pytest.mark.parametrize("data", [IPV6, ICMP])
def test_what_is_neither_tcp_nor_udp_over_ipv4_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        Packet.parse(data)


def spec(**changes: float) -> LinkSpec:
    settings = {"rate_bits": 8e6, "delay_s": 0.05, "queue_octets": 100_000, **changes}
    return LinkSpec(**settings)  # type: ignore[arg-type]


def arrivals(way: Direction) -> list[float]:
    """Take all that is on its way, and return when it arrives."""
    found = []
    while (arrived := way.arrived(float("inf"))) is not None:
        found.append(arrived[0])
    return found


def test_a_packet_arrives_when_the_link_has_sent_it_and_the_delay_is_over() -> None:
    way = Direction(spec(), 1)
    data = packet(bytes(972), size=1000)  # 1,000 octets: 1 ms
    for _ in range(3):
        way.take(data, 1.0)
    assert way.arrived(1.0509) is None
    assert arrivals(way) == pytest.approx([1.051, 1.052, 1.053])
    way.take(data, 2.0)  # the link was idle
    assert arrivals(way) == pytest.approx([2.051])


def test_what_the_queue_has_no_room_for_is_dropped_segment_by_segment() -> None:
    way = Direction(spec(queue_octets=10_000), 1)
    way.take(packet(bytes(972 * 30), size=972), 1.0)
    assert (way.segments, way.dropped) == (10, 20)
    way.take(packet(bytes(972 * 30), size=972), 1.005)
    assert (way.segments, way.dropped) == (15, 45)
    assert way.octets == way.protocol_octets[UDP] == 15_000


def test_segments_are_lost_at_the_rate_asked_for_and_the_same_with_the_same_seed() -> None:
    counts = []
    for seed in (1, 1, 2):
        way = Direction(spec(loss=0.01, queue_octets=1 << 40), seed)
        for _ in range(1000):
            way.take(packet(bytes(1000 * 40), size=1000), 1.0)
        assert way.lost + way.segments == 40_000
        assert 300 < way.lost < 500
        counts.append(way.lost)
    assert counts[0] == counts[1] != counts[2]


def test_with_jitter_segments_overtake_each_other_within_it() -> None:
    way = Direction(spec(jitter_s=0.02, queue_octets=1 << 40), 1)
    way.take(packet(bytes(range(200)) * 5, size=5), 1.0)
    order = []
    while (arrived := way.arrived(float("inf"))) is not None:
        at, data = arrived
        assert 1.05 < at <= 1.05 + 200 * 33e-6 + 0.02
        order.append(data[VNET_OCTETS + 28])
    assert len(order) == 200
    assert order != sorted(order)


def test_shares_are_of_the_time_that_was_measured() -> None:
    samples = [(0.0, 0, 0), (1.0, 100, 0), (2.0, 150, 50), (3.0, 150, 150), (4.0, 900, 150)]
    assert share_of_udp(samples, 0.9, 2.9) == 0.75
    with pytest.raises(CaseFailed):
        share_of_udp(samples, 3.5, 3.9)


def test_a_link_carries_what_one_side_sends_or_says_why_there_is_none() -> None:
    """Root alone may have one; the sides' own code enters its ends."""
    plan = {
        "octets": MEBI,
        "piece_octets": MEBI,
        "warm_octets": MEBI // 4,
        "congestion": "cubic",
        "tls": True,
        "blocking": True,
        "hashed": True,
    }
    figures, why_not = {}, ""
    try:
        with emulated(spec(rate_bits=1e8, delay_s=0.001, queue_octets=1 << 30)) as link:
            assert one_way_round("tests.bench.side.tcp_main", plan, link=link)[Metric.SPEED] > 0
            figures = link.figures()
    except NotRun as reason:
        why_not = str(reason)
    assert bool(figures) != bool(why_not)
    if figures:
        assert figures["octets"] > MEBI * 5 // 4
        assert figures["dropped"] == figures["lost"] == figures["refused"] == 0
        assert figures["samples"][-1][1] > 0
