"""A track of MOQT alone, no caches. Run `python moqt_publisher.py`, then moqt_subscriber.py."""

import asyncio
import sys
from pathlib import Path

import moqt
from moqt.tls import generate_certificate

NAME = moqt.FullTrackName(moqt.TrackNamespace.of("example", "clock"), b"ticks")
GROUPS, OBJECTS = 3, 4


async def write(track: moqt.TrackSource) -> None:
    """Publish an Object every tenth of a second; whoever comes late gets the earlier ones too."""
    for group_id in range(GROUPS):
        group = track.open_group(group_id, ends_group=True)
        for object_id in range(OBJECTS):
            group.write(object_id, f"tick {group_id}.{object_id}".encode())
            await asyncio.sleep(0.1)
        group.close()
    track.end()


def leave_certificate(certificate: bytes) -> None:
    """Leave beside us what a subscriber is to trust."""
    Path("moqt.pem").write_bytes(certificate)


async def main(port: int) -> None:
    pair = generate_certificate(["localhost"])
    track = moqt.TrackSource(NAME)
    directory = moqt.TrackDirectory()
    directory.add(track)
    async with moqt.serve(
        "localhost",
        port,
        certificate=pair.certificate,
        private_key=pair.private_key,
        directory=directory,
    ) as server:
        leave_certificate(pair.certificate)
        print(f"serving on port {server.port}, Ctrl-C ends", flush=True)
        await write(track)
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 4444))
    except KeyboardInterrupt:
        print("stopped")
    except OSError as error:
        sys.exit(f"cannot serve: {error}")
