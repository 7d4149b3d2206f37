"""What the scripts for moq-rs share; the peers' Python runs them."""

import asyncio
import json
import os

import moq
from track_content import GROUPS, OBJECTS, SIZE, payload

CERTIFICATE, PRIVATE_KEY = os.environ["CERTIFICATE"], os.environ["PRIVATE_KEY"]
TRACK = "layers"
KEPT_US = 600_000_000

if "MOQ_LOG" in os.environ:
    moq.log_level(os.environ["MOQ_LOG"])


def path(text):
    """Read a namespace, its fields in hex joined by commas, as moq-rs has it: a path."""
    return "/".join(bytes.fromhex(field).decode() for field in text.split(","))


def client(url):
    """Return a client for a moqt:// address."""
    return moq.Client(url, tls_verify=False, reconnect=False, websocket_enabled=False)


def publish(broadcasts, namespace):
    """Announce the test track; return it, for it lasts as long as there is a reference to it."""
    broadcast = broadcasts.create_broadcast(path(namespace))
    track = broadcast.publish_track(TRACK, moq.TrackInfo(max_age_us=KEPT_US))
    broadcast.announce()
    return broadcast, track


def write(track, first, last, size=SIZE):
    """Publish whole Groups."""
    for group_id in range(first, last + 1):
        group = track.create_group(group_id)
        for object_id in range(OBJECTS):
            at_us = (group_id * OBJECTS + object_id) * 1000
            group.write_frame(payload(group_id, object_id, size), at_us)
        group.finish()


def write_all(track):
    """Publish everything."""
    write(track, 0, GROUPS - 1)


def tell(result):
    """Give the result of this script."""
    print("RESULT " + json.dumps(result), flush=True)


async def forever():
    """Wait to be ended."""
    await asyncio.Event().wait()
