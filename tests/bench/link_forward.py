"""The emulated link's process: `python -m tests.bench.link_forward forward SPEC`.

Two network namespaces without a name, each with one TUN device, and this process between them. It
says {"say": "up", ...} when they can be entered, answers a line on stdin with its figures, and ends
with its stdin; the namespaces end with their last user. The host's own network is not touched.

A packet waits until the link has sent what came before it, is lost by chance or because more than
the queue waits already, and is handed over `delay_s` later. What the kernel gives in one piece, of
up to 64 KiB, is handed over in pieces of `CHUNK_S` of the link's time, so that 1 Gbit/s costs some
thousand pieces a second; each of its segments is lost, and counted, alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

from tests.bench.link_packets import TCP, UDP, Packet

__all__ = ["ADDRESSES", "Direction", "LinkSpec"]

ADDRESSES = ("10.77.0.1", "10.77.0.2")
"""Of the near and the far end."""

CHUNK_S = 0.0005
READ_OCTETS = 10 + 65_536
READS_A_TURN = 32

SAMPLE_S = 0.02

TCP_BUFFER_OCTETS = 64 << 20
"""What TCP's own windows may grow to at both ends."""

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_USO4, TUN_F_USO6 = 0x01, 0x02, 0x20, 0x40
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One link, the same in both directions. Octets are those of IP packets."""

    rate_bits: float
    delay_s: float
    """One way."""
    queue_octets: int
    """What may wait for the link; more is dropped at the tail."""
    loss: float = 0.0
    """The chance of each segment to be lost, independent of others."""
    jitter_s: float = 0.0
    """Each segment is late by up to so much more, at random, so that they overtake each other."""
    seed: int = 1
    mtu: int = 1500


class Direction:
    """One way of the link, without I/O: packets and times in, packets and times out."""

    def __init__(self, spec: LinkSpec, seed: int) -> None:
        self._spec = spec
        self._octet_s = 8 / spec.rate_bits
        self._random = random.Random(seed)
        self._chunk_octets = 0 if spec.jitter_s else int(CHUNK_S / self._octet_s)
        self._until_loss = self._draw()
        self._free_at = 0.0
        self._number = 0
        self.due: list[tuple[float, int, bytes]] = []
        """A heap of what is on its way: when it arrives, a number, the octets."""
        self.segments = self.octets = self.dropped = self.lost = 0
        self.protocol_octets = {TCP: 0, UDP: 0}

    def _draw(self) -> float:
        """Return how many segments pass before the next is lost."""
        if not self._spec.loss:
            return float("inf")
        return int(log(1 - self._random.random()) / log(1 - self._spec.loss))

    def take(self, data: bytes, now: float) -> None:
        """Take one read of the device."""
        packet = Packet.parse(data)
        first = 0
        while first < packet.segments:
            if self._until_loss == 0:
                self._until_loss = self._draw()
                self.lost += 1
                first += 1
                continue
            stop = int(min(packet.segments, first + self._until_loss))
            self._until_loss -= stop - first
            self._enqueue(packet, first, stop, now)
            first = stop

    def _enqueue(self, packet: Packet, first: int, stop: int, now: float) -> None:
        """Put segments that are not lost into the queue, as far as it takes them."""
        segment = packet.octets // packet.segments if packet.segments > 1 else packet.octets
        chunk = max(1, self._chunk_octets // segment)
        spec = self._spec
        while first < stop:
            end = min(stop, first + chunk)
            self._free_at = max(self._free_at, now)
            room = spec.queue_octets - (self._free_at - now) / self._octet_s
            end = min(end, first + int(room // segment))
            if end <= first:
                self.dropped += stop - first
                return
            part = packet.part(first, end)
            self._free_at += part.octets * self._octet_s
            jitter = self._random.random() * spec.jitter_s if spec.jitter_s else 0.0
            self._number += 1
            arrives_at = self._free_at + spec.delay_s + jitter
            heapq.heappush(self.due, (arrives_at, self._number, part.data))
            self.segments += end - first
            self.octets += part.octets
            self.protocol_octets[part.protocol] += part.octets
            first = end

    def arrived(self, now: float) -> tuple[float, bytes] | None:
        """Take the next packet that has arrived, and when that was."""
        if not self.due or self.due[0][0] > now:
            return None
        at, _, data = heapq.heappop(self.due)
        return at, data


def _new_namespace() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def _device(address: str, mtu: int) -> int:
    """Make the namespace's TUN device and return its descriptor."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"wire", flags))
    try:
        fcntl.ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_USO4 | TUN_F_USO6)
    except OSError:  # before Linux 6.2 UDP comes segment by segment
        fcntl.ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    for command in (
        "link set dev lo up",
        "link set dev wire mtu {mtu} txqueuelen 10000 up",
        "addr add {address}/24 dev wire",
    ):
        words = command.format(mtu=mtu, address=address).split()
        subprocess.run(["ip", "-4", *words], check=True, capture_output=True)
    buffers = f"4096 131072 {TCP_BUFFER_OCTETS}"  # enough for TCP on a long path
    for name in ("tcp_rmem", "tcp_wmem"):  # of this namespace alone
        Path(f"/proc/sys/net/ipv4/{name}").write_text(buffers)
    return tun


class Forwarder:
    """Moves packets between the devices until stdin ends."""

    def __init__(self, spec: LinkSpec) -> None:
        self.namespaces, self._devices = [], []
        for address in ADDRESSES:
            self.namespaces.append(_new_namespace())
            self._devices.append(_device(address, spec.mtu))
        self._directions = [Direction(spec, spec.seed), Direction(spec, spec.seed + 1)]
        self._latest_s = 0.0
        self._samples: list[tuple[float, int, int]] = []
        self._late_pieces = self._pieces = self._refused = self._unknown = 0

    def run(self) -> None:
        """Forward."""
        stdin = sys.stdin.fileno()
        near, far = self._devices
        ways = ((near, far, self._directions[0]), (far, near, self._directions[1]))
        clock = time.monotonic
        sample_at = 0.0
        while True:
            if (now := clock()) >= sample_at:
                sample_at = now + SAMPLE_S
                octets = self._directions[0].protocol_octets
                self._samples.append((now, octets[TCP], octets[UDP]))
            next_at = min((way.due[0][0] for way in self._directions if way.due), default=None)
            wait_s = None if next_at is None else max(0.0, next_at - clock())
            ready = select.select([near, far, stdin], [], [], wait_s)[0]
            for source, target, way in ways:
                if source in ready:
                    self._read(source, way)
                now = clock()
                while (arrived := way.arrived(now)) is not None:
                    self._write(target, *arrived, now)
            if stdin in ready:
                if not os.read(stdin, 4096):
                    return
                print(json.dumps({"say": "figures", **self.figures()}), flush=True)

    def _read(self, source: int, way: Direction) -> None:
        for _ in range(READS_A_TURN):
            try:
                data = os.read(source, READ_OCTETS)
            except BlockingIOError:
                return
            try:
                way.take(data, time.monotonic())
            except ValueError:  # IPv6 neighbours and the like
                self._unknown += 1

    def _write(self, target: int, at: float, data: bytes, now: float) -> None:
        self._pieces += 1
        late_s = now - at
        if late_s > 0.001:
            self._late_pieces += 1
            self._latest_s = max(self._latest_s, late_s)
        try:
            os.write(target, data)
        except OSError:
            self._refused += 1

    def figures(self) -> dict[str, Any]:
        """Return what passed, and how well this process kept up. `samples`: the clock, and the
        octets of TCP and of UDP taken from near to far until then."""
        used = os.times()
        near, far = self._directions
        return {
            "segments": near.segments + far.segments,
            "octets": near.octets + far.octets,
            "dropped": near.dropped + far.dropped,
            "lost": near.lost + far.lost,
            "refused": self._refused,
            "unknown": self._unknown,
            "pieces": self._pieces,
            "late_pieces": self._late_pieces,
            "latest_s": self._latest_s,
            "cpu_s": used.user + used.system,
            "samples": self._samples,
        }


def main() -> None:
    """Set up, say so, forward."""
    try:  # it stands for hardware, which waits for no one
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(50))
    except PermissionError:
        pass
    given = json.loads(sys.argv[-1])
    del given["core"]  # it goes where there is time
    forwarder = Forwarder(LinkSpec(**given))
    paths = [f"/proc/{os.getpid()}/fd/{fd}" for fd in forwarder.namespaces]
    gc.disable()
    print(json.dumps({"say": "up", "namespaces": paths}), flush=True)
    forwarder.run()


if __name__ == "__main__":
    main()
