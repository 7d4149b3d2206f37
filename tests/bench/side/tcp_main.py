"""One end of a TCP connection, with TLS 1.3 or without, blocking or on asyncio.

`python -m tests.bench.side.tcp_main (send | receive) PLAN`
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from typing import Any

from tests.bench.side.ends import Receiving, Sending, wait_for_go
from tests.bench.side.inside import LOOPBACK, hear, heard, pin, plan, say

READ_OCTETS = 1 << 20


def host(given: dict[str, Any]) -> str:
    """Return where the receiver serves."""
    return str(given.get("host", LOOPBACK))


def connected(given: dict[str, Any]) -> socket.socket:
    """Return a connection to the receiver, under the plan's congestion control if it names one."""
    connection = socket.socket()
    if "congestion" in given:
        connection.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_CONGESTION, given["congestion"].encode()
        )
    connection.connect((host(given), given["port"]))
    return connection


def server_context(given: dict[str, Any]) -> ssl.SSLContext | None:
    """Return the receiver's TLS; None: plain TCP."""
    if not given["tls"]:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(given["certificate"], given["private_key"])
    return context


def client_context(given: dict[str, Any]) -> ssl.SSLContext | None:
    """Return the sender's TLS; None: plain TCP."""
    if not given["tls"]:
        return None
    context = ssl.create_default_context(cafile=given["certificate"])
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def receive_blocking(given: dict[str, Any]) -> None:
    """Receive into one piece of memory."""
    receiving = Receiving(given)
    with socket.create_server((host(given), 0)) as server:
        say("serving", port=server.getsockname()[1])
        connection, _ = server.accept()
    context = server_context(given)
    if context is not None:
        connection = context.wrap_socket(connection, server_side=True)
    with connection:
        while not receiving.is_done:
            octets = connection.recv_into(receiving.room(READ_OCTETS))
            if not octets:
                raise ConnectionError("the sender has gone")
            receiving.took(octets)
        receiving.check()


def send_blocking(given: dict[str, Any]) -> None:
    """Send piece by piece."""
    sending = Sending(given)
    connection = connected(given)
    context = client_context(given)
    if context is not None:
        connection = context.wrap_socket(connection, server_hostname="localhost")
    with connection:
        for piece in sending.warm:
            connection.sendall(piece)
        wait_for_go()
        sending.begin()
        while (part := sending.next()) is not None:
            connection.sendall(part)
        hear()
        sending.report()


class Receiver(asyncio.BufferedProtocol):
    """Has the transport read straight into place."""

    def __init__(self, receiving: Receiving, done: asyncio.Event) -> None:
        self._receiving = receiving
        self._done = done

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the place for what comes next."""
        return self._receiving.room(READ_OCTETS)

    def buffer_updated(self, nbytes: int) -> None:
        """Take note of what came."""
        self._receiving.took(nbytes)
        if self._receiving.is_done:
            self._done.set()


async def receive_async(given: dict[str, Any]) -> None:
    """Receive on asyncio."""
    receiving, done = Receiving(given), asyncio.Event()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Receiver(receiving, done), host(given), 0, ssl=server_context(given)
    )
    say("serving", port=server.sockets[0].getsockname()[1])
    await done.wait()
    server.close()
    receiving.check()


async def send_async(given: dict[str, Any]) -> None:
    """Send on asyncio, waiting whenever the transport has enough."""
    sending = Sending(given)
    _, writer = await asyncio.open_connection(
        sock=connected(given),
        ssl=client_context(given),
        server_hostname="localhost" if given["tls"] else None,
    )
    for piece in sending.warm:
        writer.write(piece)
        await writer.drain()
    await heard()
    sending.begin()
    while (part := sending.next()) is not None:
        writer.write(part)
        await writer.drain()
    await heard()
    sending.report()
    writer.close()


def main() -> None:
    """Do what the arguments say."""
    given, is_sender = plan(), sys.argv[1] == "send"
    pin(given["core"])
    if given["blocking"]:
        (send_blocking if is_sender else receive_blocking)(given)
    else:
        asyncio.run((send_async if is_sender else receive_async)(given))


main()
