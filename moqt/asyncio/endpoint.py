"""A UDP socket of our own: many datagrams in one call, in and out.

asyncio's datagram transport reads one datagram a wake-up, so everything behind it would run once a
datagram. Here the loop only says that the socket is readable, and up to `BATCH_READS` are read at
once. Linux joins datagrams of one sender to one buffer as they come (UDP_GRO), and cuts one buffer
to datagrams as they go (UDP_SEGMENT, or GSO): that is tried, and given up where it isn't there.
Event loops that watch no sockets (Windows' proactor) get their datagrams one by one.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from mmap import mmap
from typing import TYPE_CHECKING, Any, Protocol

from moqt.asyncio.config import MAX_SEGMENTS, RUN_OCTETS, datagrams_in_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Address = Any
"""What the socket module takes for an address of the socket's family."""

Datagram = tuple[bytes, Address]

BATCH_READS = 64
BATCH_S = 0.005
"""Read in one wake-up: so many calls, and no further run after so many seconds of this thread; then
what was read is acknowledged, and other tasks have their turn. A wake-up costs both sides what 100
KiB do. Time in which the system runs another process is no time of ours: where several share a
core, each batch would end as soon as it goes on, and each of them is acknowledged."""

DATAGRAM_OCTETS = 65535

# Linux's numbers, which the socket module doesn't have
_SOL_UDP = 17
_UDP_SEGMENT = 103
_UDP_GRO = 104
_SO_RXQ_OVFL = 40
_ANCILLARY_OCTETS = 64

_NO_SEGMENTATION = (errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP)


DATAGRAMS_IN_BUFFER = 16
"""A socket's receive buffer should hold so many: else a batch of large ones overruns it."""


if TYPE_CHECKING:

    class DatagramReceiver(Protocol):
        """Whom an endpoint reports to."""

        def on_datagrams(
            self, datagrams: memoryview, segment_octets: int, address: Address
        ) -> None:
            """Datagrams from `address`, of so many octets each, one after another; the last may be
            shorter. `RUN_OCTETS` at most, the receiver's to write to during the call."""

        def on_overflow(self) -> None:
            """Datagrams came that the socket's buffer had no room for; some others follow."""

        def on_batch_end(self) -> None:
            """That was all for this wake-up."""

        def on_writable(self) -> None:
            """The socket takes datagrams again."""

        def on_error(self, error: OSError) -> None:
            """A connected socket's peer refuses, or is unreachable."""

        def on_too_large(self, address: Address, octets: int | None) -> None:
            """The path to `address` takes no datagrams of so many octets; None: it doesn't say."""


class UdpEndpoint:
    """Owns `sock`, which is non-blocking, and bound, or connected to `remote`, until `close`."""

    def __init__(self, sock: socket.socket, *, remote: Address | None) -> None:
        self._sock = sock
        self.remote = remote
        self._receiver: DatagramReceiver | None = None
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[Datagram] = deque()
        self._can_segment = hasattr(sock, "sendmsg") and _is_linux()
        self._has_doubts = False
        """Whether the system has refused to cut a buffer, which it may do for the size alone."""
        self._can_join = False
        self._dropped = bytes(4)
        """How many datagrams found the buffer full, as the system writes it."""
        self._controls: dict[int, Sequence[tuple[int, int, bytes]]] = {}
        self._run = _Run()
        self._fallback: asyncio.DatagramTransport | None = None
        self._is_probing = False
        self._is_refused = False
        self._is_closed = False

    @property
    def address(self) -> Address:
        """The socket's own address."""
        return self._sock.getsockname()

    @property
    def receivable_octets(self) -> int:
        """The largest datagram that its receive buffer, as granted, holds some of."""
        return self._granted_octets // DATAGRAMS_IN_BUFFER

    @property
    def waiting_octets(self) -> int:
        """What of datagrams its receive buffer holds at least: a small one takes as much again."""
        return self._granted_octets // 2

    @property
    def _granted_octets(self) -> int:
        return self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    @property
    def is_blocked(self) -> bool:
        """Whether the socket takes no datagrams now. Nothing more should be built meanwhile, so
        what waits is bounded by one flight of each connection."""
        return bool(self._unsent)

    async def start(self, receiver: DatagramReceiver, *, watch_socket: bool = True) -> None:
        """Begin to receive. Cancelled, it leaves the socket to `close`."""
        self._receiver = receiver
        if watch_socket:
            self._can_join = _join_datagrams(self._sock)
            _count_drops(self._sock)
            try:
                self._loop.add_reader(self._sock, self._read_ready)
            except NotImplementedError:
                pass
            else:
                return
        transport, _ = await self._loop.create_datagram_endpoint(
            lambda: _OneByOne(self), sock=self._sock
        )
        self._fallback = transport
        if self._is_closed:
            transport.close()

    def send(self, datagrams: Sequence[Datagram]) -> None:
        """Send as much as the socket takes; the rest follows when it is writable again."""
        for start, stop in _alike(datagrams):
            data, address = datagrams[start]
            if stop - start > 1:
                joined = b"".join([one for one, _ in datagrams[start:stop]])
                self.send_segments(memoryview(joined), len(data), address)
            else:
                self.send_segments(memoryview(data), len(data), address)

    def send_probe(self, probe: Datagram) -> bool:
        """Send a datagram that may be too large; False: the socket says at once that it is, which
        is told to nobody else."""
        self._is_probing, self._is_refused = True, False
        self.send((probe,))
        self._is_probing = False
        return not self._is_refused

    def send_segments(self, datagrams: memoryview, segment_octets: int, address: Address) -> bool:
        """Send datagrams of so many octets each, one after another; the last may be shorter.

        The memory may be used again afterwards. Returns False when the socket takes no more for
        now: then it is called writable later, and what waits is sent first.
        """
        if self._is_closed:
            return True
        if self._fallback is not None:
            to = None if self.remote is not None else address
            for start in range(0, len(datagrams), segment_octets):
                self._fallback.sendto(bytes(datagrams[start : start + segment_octets]), to)
            return True
        was_blocked = bool(self._unsent)
        sent = 0 if was_blocked else self._send_now(datagrams, segment_octets, address)
        if sent == len(datagrams):
            return True
        for start in range(sent, len(datagrams), segment_octets):
            self._unsent.append((bytes(datagrams[start : start + segment_octets]), address))
        if was_blocked or self._send_some():
            return not was_blocked
        self._loop.add_writer(self._sock, self._write_ready)
        return False

    def close(self) -> None:
        """Close the socket; what waits is dropped."""
        if self._is_closed:
            return
        self._is_closed = True
        self._unsent.clear()
        if self._fallback is not None:
            self._fallback.close()
            return
        try:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
        except NotImplementedError:
            pass
        self._sock.close()

    def _send_now(self, datagrams: memoryview, segment_octets: int, address: Address) -> int:
        """Send by as few calls as there can be; return the octets that the system has taken."""
        most = segment_octets * datagrams_in_call(segment_octets)
        for start in range(0, len(datagrams), most):
            part = datagrams[start : start + most]
            if len(part) <= segment_octets:
                is_taken = self._send_one(part, address)
            else:
                is_taken = self._can_segment and self._send_joined(part, segment_octets, address)
            if not is_taken:
                return start
        return len(datagrams)

    def _send_joined(self, datagrams: memoryview, segment_octets: int, address: Address) -> bool:
        """Send by one call. False: it takes them one by one, if at all."""
        control = self._controls.get(segment_octets)
        if control is None:
            if len(self._controls) >= MAX_SEGMENTS:
                self._controls.clear()
            control = ((_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", segment_octets)),)
            self._controls[segment_octets] = control
        try:
            if self.remote is not None:
                self._sock.sendmsg((datagrams,), control)
            else:
                self._sock.sendmsg((datagrams,), control, 0, address)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno == errno.EMSGSIZE:  # all but the last, which is lost with them
                self.report(error, address, segment_octets)
                return True
            # Before 6.14 Linux says EINVAL to what is too large: one by one tells which it was.
            self._can_segment = error.errno not in _NO_SEGMENTATION
            self._has_doubts = not self._can_segment
            return False
        return True

    def _send_one(self, datagram: memoryview | bytes, address: Address) -> bool:
        """Send, or report that it was lost; False when the socket takes none now."""
        try:
            if self.remote is not None:
                self._sock.send(datagram)
            else:
                self._sock.sendto(datagram, address)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.report(error, address, len(datagram))  # lost, as any datagram may be
        return True

    def _send_some(self) -> bool:
        unsent = self._unsent
        while unsent and not self._is_closed:
            if not self._send_one(*unsent[0]):
                return False
            if unsent:  # not closed by what was reported
                unsent.popleft()
        return True

    def _write_ready(self) -> None:
        if self._send_some() and not self._is_closed:
            self._loop.remove_writer(self._sock)
            if self._receiver is not None:
                self._receiver.on_writable()

    def _read_ready(self) -> None:
        remote, sock, run, receiver = self.remote, self._sock, self._run, self._receiver
        run.start_over()
        error: OSError | None = None
        total = 0
        dropped = self._dropped
        ends_at = time.thread_time() + BATCH_S
        for _ in range(BATCH_READS):
            if self._is_closed or receiver is None:
                break
            try:
                if self._can_join:
                    octets, controls, _, address = sock.recvmsg_into((run.room,), _ANCILLARY_OCTETS)
                else:
                    octets, address = sock.recvfrom_into(run.room)
                    controls = []
            except (BlockingIOError, InterruptedError):
                break
            except OSError as caught:
                error = caught
                break
            if not octets:
                continue
            segment = octets
            for level, kind, value in controls:
                if level == _SOL_UDP and kind == _UDP_GRO and len(value) >= 4:
                    segment = struct.unpack("=i", value[:4])[0]
                elif level == socket.SOL_SOCKET and kind == _SO_RXQ_OVFL and value != dropped:
                    dropped = value
            total += octets
            if remote is not None:
                address = remote
            if not run.takes(octets, segment, address):
                run.hand_on(receiver)
            run.add(octets, segment, address)
            if run.is_full:
                run.hand_on(receiver)
                run.start_over()
                if time.thread_time() >= ends_at:
                    break
        if receiver is not None and not self._is_closed:
            run.hand_on(receiver)
            if dropped != self._dropped:
                self._dropped = dropped
                receiver.on_overflow()
            if total and not self._is_closed:
                receiver.on_batch_end()
        if error is not None:
            self.report(error, remote)

    def receive(self, data: bytes, address: Address) -> None:
        """Hand on one datagram, read elsewhere."""
        if self._receiver is not None and not self._is_closed and data:
            self._receiver.on_datagrams(memoryview(data), len(data), address)
            self._receiver.on_batch_end()

    def report(self, error: OSError, address: Address, octets: int | None = None) -> None:
        """Hand on what the system said, of a datagram of so many octets if that is known."""
        if self._receiver is None or self._is_closed:
            return
        if error.errno == errno.EMSGSIZE:
            if self._is_probing:
                self._is_refused = True
                return
            if self._has_doubts:
                self._can_segment, self._has_doubts = True, False
            self._receiver.on_too_large(address, octets)
        elif self.remote is not None:
            self._receiver.on_error(error)
        # on a server's socket it's some client's doing; that client's timers find out


class _Run:
    """What was read of datagrams that belong together, and where the next read goes: behind it."""

    def __init__(self) -> None:
        self._view = memoryview(mmap(-1, RUN_OCTETS))  # it takes no memory before it's used
        self._start = self._stop = self._segment_octets = 0
        self._address: Address = None
        self.room = self._view
        """Takes a datagram of any size."""

    @property
    def is_full(self) -> bool:
        """Whether `room` may be too small for what comes next."""
        return RUN_OCTETS - self._stop < DATAGRAM_OCTETS

    def takes(self, octets: int, segment_octets: int, address: Address) -> bool:
        """Whether what lies in `room` goes on with the run: datagrams of the same size, or a
        shorter last one."""
        size = self._segment_octets
        return self._start == self._stop or (
            (segment_octets == size or segment_octets == octets < size)
            and (self._stop - self._start) % size == 0
            and address == self._address
        )

    def add(self, octets: int, segment_octets: int, address: Address) -> None:
        """Take what was read to `room`."""
        if self._start == self._stop:
            self._segment_octets, self._address = segment_octets, address
        self._stop += octets
        self.room = self._view[self._stop :]

    def hand_on(self, receiver: DatagramReceiver) -> None:
        """Give it away; what lies in `room` begins the next run."""
        start, self._start = self._start, self._stop
        if start < self._stop:
            datagrams = self._view[start : self._stop]
            receiver.on_datagrams(datagrams, self._segment_octets, self._address)

    def start_over(self) -> None:
        """Use the memory again."""
        self._start = self._stop = 0
        self.room = self._view


class _OneByOne(asyncio.DatagramProtocol):
    """What a loop without `add_reader` offers."""

    def __init__(self, endpoint: UdpEndpoint) -> None:
        self._endpoint = endpoint

    def datagram_received(self, data: bytes, addr: Address) -> None:
        remote = self._endpoint.remote
        self._endpoint.receive(data, addr if remote is None else remote)

    def error_received(self, exc: Exception) -> None:
        if isinstance(exc, OSError):
            self._endpoint.report(exc, self._endpoint.remote)


NO_FRAGMENTS: dict[str, tuple[tuple[int, int, int], ...]] = {
    # IP_MTU_DISCOVER and IPV6_MTU_DISCOVER = PROBE: set DF, don't cache what ICMP claims
    "linux": ((socket.IPPROTO_IP, 10, 3), (socket.IPPROTO_IPV6, 23, 3)),
    # IP_DONTFRAG and IPV6_DONTFRAG
    "darwin": ((socket.IPPROTO_IP, 28, 1), (socket.IPPROTO_IPV6, 62, 1)),
    "win32": ((socket.IPPROTO_IP, 14, 1), (socket.IPPROTO_IPV6, 14, 1)),
}
"""What a probe of the path's MTU takes (RFC 9000 14): nobody may cut it into fragments. The socket
module names none of these options."""


def _is_linux() -> bool:
    return sys.platform == "linux"


def _join_datagrams(sock: socket.socket) -> bool:
    """Have the system join what comes from one sender; False: it doesn't."""
    if not _is_linux() or not hasattr(sock, "recvmsg_into"):
        return False
    try:
        sock.setsockopt(_SOL_UDP, _UDP_GRO, 1)
    except OSError:
        return False
    return True


def _count_drops(sock: socket.socket) -> None:
    """Have the system say with datagrams how many before them found the buffer full."""
    if _is_linux():
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)


def _alike(datagrams: Sequence[Datagram]) -> Iterable[tuple[int, int]]:
    """Split into runs to one address, of one size but for a shorter last one: start and stop."""
    start = 0
    while start < len(datagrams):
        data, address = datagrams[start]
        size = len(data)
        stop = start + 1
        while stop < len(datagrams):
            other, to = datagrams[stop]
            if to != address or len(other) > size:
                break
            stop += 1
            if len(other) < size:
                break
        yield start, stop
        start = stop


def udp_socket(family: int, buffer_octets: int) -> socket.socket:
    """Return a non-blocking UDP socket whose buffers are as large as the system grants, and whose
    datagrams stay whole."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    for level, option, value in NO_FRAGMENTS.get(sys.platform, ()):
        try:
            sock.setsockopt(level, option, value)
        except OSError:  # the other family's, on a socket that isn't dual-stack
            continue
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, buffer_octets)
        except OSError:  # some systems refuse what others cut
            continue
    return sock
