"""One end of a track of aiomoqt, in whose Python it runs.

`python -m tests.bench.peer.aiomoqt_main (send | receive) PLAN`. Group 0 warms up; then GROUP
Objects make a Group. Each Object is hashed once by each side, as in KVCS.
"""

import asyncio
import socket
import sys

from aiomoqt.client import MOQTClient
from aiomoqt.messages.params import LocationFilter
from aiomoqt.server import MOQTServer
from aiomoqt.track import PublishedTrack

from tests.bench.side.ends import Receiving, Sending
from tests.bench.side.inside import heard, pin, plan, say

NAMESPACE, TRACK = (b"bench",), b"track"

GROUP = 16
"""Objects in a Group."""

QUEUED = 16
"""Objects that wait in the publisher's queue at most: it throws Groups away beyond 256."""


class Track(PublishedTrack):
    """Sends what there is, to one subscriber."""

    async def produce(self, out):
        """Publish everything, as fast as the queue empties."""
        room = asyncio.Semaphore(QUEUED)
        note = out.on_sent

        def sent(group_id, object_id):
            note(group_id, object_id)
            room.release()

        out.on_sent = sent
        for number, piece in enumerate(self.sending.warm):
            await room.acquire()
            await out.write(0, number, bytes(piece), group_start=number == 0)
        await heard()
        self.sending.begin()
        number = 0
        while (piece := self.sending.next()) is not None:
            await room.acquire()
            group, object_id = divmod(number, GROUP)
            await out.write(group + 1, object_id, bytes(piece), group_start=object_id == 0)
            number += 1
        await heard()
        self.sending.report()
        self.reported.set()


async def send(given):
    """Serve one subscriber."""
    reported = asyncio.Event()

    class Server(MOQTServer):
        def _adopt(self, session):
            session = super()._adopt(session)
            track = Track(session, NAMESPACE, TRACK)
            track.sending, track.reported = Sending(given), reported
            track.attach(session)
            return session

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Server(
        "127.0.0.1",
        port,
        given["certificate"],
        given["private_key"],
        use_quic=True,
        supported_drafts=22,
    )
    await server.serve()
    say("serving", port=port)
    await reported.wait()


async def receive(given):
    """Subscribe, and put each Object in its place."""
    receiving, done = Receiving(given), asyncio.Event()

    def take(message, *others):
        if message.payload is None or not len(message.payload):
            return  # a status Object
        group_id = getattr(message, "group_id", None)
        group_id = others[2] if group_id is None else group_id
        number = (group_id - 1) * GROUP + message.object_id if group_id else None
        receiving.put_object(number, message.payload)
        if receiving.is_done:
            done.set()

    client = MOQTClient(
        "127.0.0.1",
        given["port"],
        path="",
        use_quic=True,
        verify_tls=False,
        supported_drafts=22,
    )
    async with client.connect() as session:
        await session.client_session_init()
        session.subscribe(
            NAMESPACE, TRACK, forward=1, on_object=take, location_filter=LocationFilter.none()
        )
        await done.wait()
        receiving.check()


given = plan()
pin(given["core"])
asyncio.run((send if sys.argv[1] == "send" else receive)(given))
