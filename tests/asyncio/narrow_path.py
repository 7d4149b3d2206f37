"""A path between a client and a server on loopback that drops what is too large for it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from moqt.asyncio.endpoint import udp_socket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

BATCH_DATAGRAMS = 64
BUFFER_OCTETS = 4 << 20


class NarrowPath:
    """Carries datagrams of up to `mtu` octets of UDP payload; it may change at any time."""

    def __init__(self, mtu: int) -> None:
        self.mtu = mtu
        self.largest = 0
        """The largest that was carried."""
        self.dropped: list[int] = []
        """The sizes of those that were not, in order."""
        self.loses: Callable[[], bool] = lambda: False
        """Says of each datagram that fits whether it is lost nevertheless."""
        self._client: tuple[str, int] = ("", 0)
        self._sides = [udp_socket(socket.AF_INET, BUFFER_OCTETS) for _ in range(2)]

    @property
    def port(self) -> int:
        """Where the client sends to."""
        port: int = self._sides[0].getsockname()[1]
        return port

    def open(self, server_port: int) -> None:
        client_side, server_side = self._sides
        client_side.bind(("127.0.0.1", 0))
        server_side.connect(("127.0.0.1", server_port))
        loop = asyncio.get_running_loop()
        loop.add_reader(client_side, self._carry_up)
        loop.add_reader(server_side, self._carry_down)

    def rebind(self) -> None:
        """Send to the server from another port, as a NAT does that forgot about the client."""
        loop = asyncio.get_running_loop()
        old = self._sides[1]
        self._sides[1] = new = udp_socket(socket.AF_INET, BUFFER_OCTETS)
        new.connect(old.getpeername())
        loop.add_reader(new, self._carry_down)
        loop.remove_reader(old)
        old.close()

    def close(self) -> None:
        for side in self._sides:
            asyncio.get_running_loop().remove_reader(side)
            side.close()

    def _carry_up(self) -> None:
        client_side, server_side = self._sides
        for data, self._client in _waiting(client_side):
            if self._fits(data):
                server_side.send(data)

    def _carry_down(self) -> None:
        client_side, server_side = self._sides
        for data, _ in _waiting(server_side):
            if self._fits(data):
                client_side.sendto(data, self._client)

    def _fits(self, data: bytes) -> bool:
        if len(data) > self.mtu:
            self.dropped.append(len(data))
            return False
        self.largest = max(self.largest, len(data))
        return not self.loses()


def _waiting(side: socket.socket) -> Iterator[tuple[bytes, tuple[str, int]]]:
    with suppress(BlockingIOError):
        for _ in range(BATCH_DATAGRAMS):
            yield side.recvfrom(65535)


@asynccontextmanager
async def narrow_path(server_port: int, mtu: int) -> AsyncIterator[NarrowPath]:
    """Open a path to a server of this host."""
    path = NarrowPath(mtu)
    path.open(server_port)
    try:
        yield path
    finally:
        path.close()
