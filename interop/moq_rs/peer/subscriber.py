"""moq-rs as a subscriber.  subscriber.py URL NAMESPACE VERB [ARGUMENT ...]

A verb is a function below; what it returns is the result.
"""

import asyncio
import sys

import moq
from common import TRACK, client, path, tell
from track_content import Collected

WAIT_S = 8.0


async def read(group, collected):
    """Take a group's frames; the number of a frame is its Object ID."""
    object_id = 0
    async for frame in group:
        collected.add(group.sequence, object_id, frame.payload)
        object_id += 1
    print(f"GROUP {group.sequence}", flush=True)


async def announced(session, namespace):
    """Wait for a namespace below the first field."""
    prefix = namespace.partition("/")[0]
    async with session.announced(prefix) as found:
        update = await anext(found)
        return update.prefix.strip("/")


async def live(session, namespace):
    """SUBSCRIBE; take groups as they arrive, until the track ends."""
    broadcast = await session.announced_broadcast(namespace).available()
    track = await broadcast.subscribe_track(TRACK, moq.Subscription(max_age_us=60_000_000))
    print("SUBSCRIBED", flush=True)
    collected = Collected()
    async with asyncio.TaskGroup() as tasks:
        while (group := await track.recv_group()) is not None:
            tasks.create_task(read(group, collected))
    return collected.summary


async def fetch(session, namespace, *groups):
    """FETCH groups, one by one."""
    broadcast = await session.announced_broadcast(namespace).available()
    collected = Collected()
    for group_id in groups:
        await read(await broadcast.fetch_group(TRACK, int(group_id)), collected)
    return collected.summary


async def main(url, namespace, verb, *arguments):
    """Connect and do it; an error is a result too."""
    async with client(url) as session:
        print("CONNECTED", flush=True)
        try:
            async with asyncio.timeout(WAIT_S):
                tell(await globals()[verb](session, path(namespace), *arguments))
        except (moq.Error, TimeoutError) as error:
            tell({"error": type(error).__name__, "says": str(error)[:200]})


asyncio.run(main(*sys.argv[1:]))
