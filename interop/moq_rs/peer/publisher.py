"""moq-rs as a client that publishes.  publisher.py URL NAMESPACE

It publishes the test track: a Group for each line that it gets.
"""

import asyncio
import sys

from common import client, forever, publish, write
from track_content import GROUPS


async def main(url, namespace):
    """Publish."""
    async with client(url) as session:
        held = publish(session, namespace)
        print("READY", flush=True)
        loop = asyncio.get_running_loop()
        for group_id in range(GROUPS):
            await loop.run_in_executor(None, sys.stdin.readline)
            write(held[1], group_id, group_id)
        await forever()


asyncio.run(main(*sys.argv[1:]))
