"""moq-rs as a subscriber.  subscriber.py URL NAMESPACE VERB [ARGUMENT ...]

A verb is a function below; what it returns is the result.
"""

import asyncio
import sys

import moq
from common import TRACK, client, path, tell
from track_content import Collected

WAIT_S = 8.0

ATTEMPTS = 5
"""moq-rs 0.5.1 subscribes beside each FETCH, and ends that subscription when it has FETCH_OK. In
one run of twelve it then drops the group that it fetches ("dropped"): what came and went was the
same, message by message, in runs with and without."""


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
        for object_id, payload in enumerate(await fetched(broadcast, int(group_id))):
            collected.add(int(group_id), object_id, payload)
    return collected.summary


async def fetched(broadcast, group_id):
    """FETCH one group, again if it is dropped; return its frames' payloads."""
    attempt = 0
    while True:
        attempt += 1
        try:
            group = await broadcast.fetch_group(TRACK, group_id)
            return [frame.payload async for frame in group]
        except moq.Error as error:
            if attempt == ATTEMPTS or "dropped" not in str(error):
                raise
            print(f"DROPPED {group_id}", flush=True)


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
