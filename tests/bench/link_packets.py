"""Packets of a TUN device with offloads: a virtio header, an IP packet of up to 64 KiB of segments.

The kernel hands over what TCP or UDP_SEGMENT wanted to send as one packet with a `gso_size`, and
takes the same back. A link that loses single segments must cut such a packet in two; this module
does the arithmetic. Only what the benchmarks send is understood: IPv4, TCP and UDP, no fragments.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["TCP", "UDP", "VNET_OCTETS", "Packet"]

VNET_OCTETS = 10
"""struct virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset."""

_VNET = struct.Struct("=BBHHHH")

GSO_NONE, GSO_TCPV4, GSO_UDP_L4 = 0, 1, 5
NEEDS_CSUM = 1

TCP, UDP = 6, 17
"""Protocols of IP."""

_FIN_PSH = 0x09


@dataclass(frozen=True, slots=True)
class Packet:
    """One read of a TUN device. `octets` are those of all segments, IP headers included."""

    data: bytes
    header_octets: int
    """IP and transport headers."""
    segment_octets: int
    """Payload of each segment but the last, which may be shorter."""
    segments: int
    octets: int
    protocol: int

    @classmethod
    def parse(cls, data: bytes) -> Packet:
        """Take one read apart. Raises: ValueError for what is no IPv4 packet."""
        _, gso_type, _, gso_size, csum_start, _ = _VNET.unpack_from(data)
        octets = len(data) - VNET_OCTETS
        if data[VNET_OCTETS] >> 4 != 4:
            raise ValueError(f"IP version {data[VNET_OCTETS] >> 4}, expected 4")
        protocol = data[VNET_OCTETS + 9]
        if protocol not in (TCP, UDP):
            raise ValueError(f"IP protocol {protocol}, expected {TCP} or {UDP}")
        if gso_type == GSO_NONE or not gso_size:
            return cls(data, octets, 0, 1, octets, protocol)
        if gso_type not in (GSO_TCPV4, GSO_UDP_L4):
            raise ValueError(f"gso_type {gso_type}, expected {GSO_TCPV4} or {GSO_UDP_L4}")
        if gso_type == GSO_UDP_L4:
            header = csum_start + 8
        else:
            header = csum_start + (data[VNET_OCTETS + csum_start + 12] >> 4) * 4
        segments = max(1, -(-(octets - header) // gso_size))
        return cls(data, header, gso_size, segments, octets + (segments - 1) * header, protocol)

    def part(self, first: int, stop: int) -> Packet:
        """Return segments `first` to `stop` - 1 as a packet of their own."""
        if first == 0 and stop == self.segments:
            return self
        data, header, size = self.data, self.header_octets, self.segment_octets
        start = VNET_OCTETS + header + first * size
        payload = data[start : start + (stop - first) * size]
        head = bytearray(data[: VNET_OCTETS + header])
        flags, gso_type, header_hint, _, csum_start, csum_offset = _VNET.unpack_from(head)
        count = stop - first
        _VNET.pack_into(
            head,
            0,
            flags | NEEDS_CSUM,
            gso_type if count > 1 else GSO_NONE,
            header_hint,
            size if count > 1 else 0,
            csum_start,
            csum_offset,
        )
        ip, transport = VNET_OCTETS, VNET_OCTETS + csum_start
        total = header + len(payload)
        struct.pack_into(">H", head, ip + 2, total)
        identification = struct.unpack_from(">H", head, ip + 4)[0] + first
        struct.pack_into(">H", head, ip + 4, identification & 0xFFFF)
        struct.pack_into(">H", head, ip + 10, 0)
        struct.pack_into(">H", head, ip + 10, ~_sum(head[ip:transport]) & 0xFFFF)
        if gso_type == GSO_TCPV4:
            sequence = struct.unpack_from(">I", head, transport + 4)[0] + first * size
            struct.pack_into(">I", head, transport + 4, sequence & 0xFFFFFFFF)
            if stop < self.segments:
                head[transport + 13] &= ~_FIN_PSH
        else:
            struct.pack_into(">H", head, transport + 4, total - csum_start)
        # What is left to do is the sum over the octets: the field holds that of the pseudo-header.
        pseudo = head[ip + 12 : ip + 20] + struct.pack(">HH", self.protocol, total - csum_start)
        struct.pack_into(">H", head, transport + csum_offset, _sum(pseudo))
        return Packet(
            bytes(head + payload),
            header,
            size,
            count,
            total + (count - 1) * header,
            self.protocol,
        )


def _sum(data: bytes | bytearray) -> int:
    """The ones' complement sum of 16-bit words (RFC 1071); `data` has an even length."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)
