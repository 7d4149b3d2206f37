"""moq-rs as a server.  relay.py PORT [NAMESPACE]

All its sessions share one origin, so it is a relay. With NAMESPACE it publishes the test track.
"""

import asyncio
import sys

import moq
from common import CERTIFICATE, PRIVATE_KEY, publish, write_all


async def keep(request, sessions):
    """Accept one session and keep it to its end."""
    try:
        session = await request.accept()
        sessions.add(session)
        await session.closed()
    except moq.Error as error:
        print("session ended:", repr(error)[:200], flush=True)


async def main(port, namespace=None):
    """Serve."""
    origin, sessions, tasks = moq.OriginProducer(), set(), set()
    async with moq.Server(
        f"127.0.0.1:{port}",
        tls_cert=[CERTIFICATE],
        tls_key=[PRIVATE_KEY],
        publish=origin,
        subscribe=origin,
    ) as server:
        if namespace is not None:
            held = publish(origin, namespace)
            write_all(held[1])
        print("READY", flush=True)
        async for request in server:
            task = asyncio.ensure_future(keep(request, sessions))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


asyncio.run(main(*sys.argv[1:]))
