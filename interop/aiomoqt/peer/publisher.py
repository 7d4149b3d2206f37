"""aiomoqt as a publisher.  publisher.py serve PORT NAMESPACE [HELD [SIZE [MAPPING]]]
                            publisher.py (namespace | track) URL NAMESPACE

It publishes the test track. With HELD it publishes so many Objects, says HELD, and goes on when
told "go on". MAPPING is aiomoqt's word for how Objects travel: per_group, or datagram, whose
Objects have properties too. `serve`: a server, which takes commands, a line each; else a client
that offers the namespace, or the track.
"""

import asyncio
import sys

from aiomoqt.delivery import StreamMapping
from aiomoqt.server import MOQTServer
from aiomoqt.track import PublishedTrack
from common import CERTIFICATE, PRIVATE_KEY, TRACK, client, fields
from track_content import GROUPS, OBJECTS, SIZE, payload, properties

HISTORY_OCTETS = 32 << 20
PACE_S = 0.005
"""Between datagrams, so that none is lost on the way."""


class TestTrack(PublishedTrack):
    """The test track; its history answers FETCH and fills."""

    held = -1
    size = SIZE

    async def produce(self, out):
        """Publish everything."""
        is_datagram = self.mapping is StreamMapping.DATAGRAM
        for number in range(GROUPS * OBJECTS):
            group_id, object_id = divmod(number, OBJECTS)
            if number == self.held:
                print("HELD", flush=True)
                await self.go_on.wait()
            await out.write(
                group_id,
                object_id,
                payload(group_id, object_id, self.size),
                extensions=properties(group_id, object_id) if is_datagram else {},
                group_start=object_id == 0,
            )
            if is_datagram:
                await asyncio.sleep(PACE_S)
        print("PRODUCED", flush=True)
        if self.held < 0:
            await asyncio.Event().wait()  # the track goes on, so that its history can be fetched


async def serve(port, namespace, held=-1, size=SIZE, mapping="per_group"):
    """Serve it to all who connect."""
    shared = []

    class Server(MOQTServer):
        def _adopt(self, session):
            session = super()._adopt(session)
            if not shared:
                track = TestTrack(session, namespace, TRACK, fetch_history_bytes=HISTORY_OCTETS)
                track.held, track.size = int(held), int(size)
                track.mapping = StreamMapping(mapping)
                track.go_on = asyncio.Event()
                shared.append(track)
            else:
                shared[0].add_session(session)
            shared[0].attach(session)
            return session

    server = Server(
        "127.0.0.1",
        int(port),
        CERTIFICATE,
        PRIVATE_KEY,
        use_quic=True,
        supported_drafts=22,
    )
    await server.serve()
    print("READY", flush=True)
    async for command in lines():
        for session in list(server._live):
            if command == "announce":
                session.publish_namespace(namespace)
            elif command == "publish":
                await shared[0].publish(session=session)
            elif command == "go on":
                shared[0].go_on.set()
            elif command == "goaway":
                session.goaway("", timeout=5000)


async def lines():
    """Yield the lines of standard input, for as long as it's open."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        yield line.strip()
    await asyncio.Event().wait()


async def offer(url, namespace, *, by_namespace):
    """Connect to `url` and offer it."""
    async with client(url).connect() as session:
        await session.client_session_init()
        track = TestTrack(session, namespace, TRACK, fetch_history_bytes=HISTORY_OCTETS)
        await track.publish(announce_namespace=by_namespace, publish_track=not by_namespace)
        print("READY", flush=True)
        await asyncio.Event().wait()


async def main(how, where, namespace, *arguments):
    """Do it."""
    if how == "serve":
        await serve(where, fields(namespace), *arguments)
    else:
        await offer(where, fields(namespace), by_namespace=how == "namespace")


asyncio.run(main(*sys.argv[1:]))
