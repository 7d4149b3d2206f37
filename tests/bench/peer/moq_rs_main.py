"""One end of a track of moq-rs, in whose Python it runs.

`python -m tests.bench.peer.moq_rs_main (send | receive) PLAN`. Group 0 warms up; then GROUP
frames make a group. Each frame is hashed once by each side, as in KVCS. moq-rs keeps all groups
that are written and sends from there; there is nothing to wait for.
"""

import asyncio
import socket
import sys

import moq

from tests.bench.side.ends import Receiving, Sending
from tests.bench.side.inside import heard, pin, plan, say

PATH, TRACK = "bench", "track"

GROUP = 16
"""Frames in a group."""

KEPT_US = 600_000_000


async def accept(server):
    """Accept all sessions and keep them."""
    return [await request.accept() async for request in server]


async def send(given):
    """Serve one subscriber."""
    sending = Sending(given)
    origin = moq.OriginProducer()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with moq.Server(
        f"127.0.0.1:{port}",
        tls_cert=[given["certificate"]],
        tls_key=[given["private_key"]],
        publish=origin,
        subscribe=origin,
    ) as server:
        broadcast = origin.create_broadcast(PATH)
        track = broadcast.publish_track(TRACK, moq.TrackInfo(max_age_us=KEPT_US))
        broadcast.announce()
        accepting = asyncio.create_task(accept(server))
        say("serving", port=port)
        await track.used()
        write(track.create_group(0), sending.warm)
        await heard()
        sending.begin()
        group = None
        number = 0
        while (piece := sending.next()) is not None:
            if number % GROUP == 0:
                if group is not None:
                    group.finish()
                group = track.create_group(1 + number // GROUP)
            group.write_frame(bytes(piece), number)
            number += 1
            await asyncio.sleep(0)
        group.finish()
        await heard()
        sending.report()
        accepting.cancel()


def write(group, pieces):
    """Write a whole group."""
    for piece in pieces:
        group.write_frame(bytes(piece), 0)
    group.finish()


async def receive(given):
    """Subscribe, and put each frame in its place."""
    receiving, done = Receiving(given), asyncio.Event()

    async def read(group):
        number = (group.sequence - 1) * GROUP
        async for frame in group:
            receiving.put_object(number if group.sequence else None, frame.payload)
            number += 1
            if receiving.is_done:
                done.set()

    client = moq.Client(
        f"moqt://127.0.0.1:{given['port']}",
        tls_verify=False,
        reconnect=False,
        websocket_enabled=False,
    )
    async with client as session, asyncio.TaskGroup() as tasks:
        broadcast = await session.announced_broadcast(PATH).available()
        track = await broadcast.subscribe_track(TRACK, moq.Subscription(max_age_us=KEPT_US))

        async def follow():
            while (group := await track.recv_group()) is not None:
                tasks.create_task(read(group))

        following = tasks.create_task(follow())
        await done.wait()
        following.cancel()
        receiving.check()


given = plan()
pin(given["core"])
asyncio.run((send if sys.argv[1] == "send" else receive)(given))
