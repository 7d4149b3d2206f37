"""Takes what moqt_publisher.py publishes: run it in the same folder, at any time."""

import asyncio
import sys

import moqt

NAME = moqt.FullTrackName(moqt.TrackNamespace.of("example", "clock"), b"ticks")
NEW = moqt.LocationFilter.next_object()
ALL = moqt.LocationFilter.absolute(moqt.Location(0, 0))


async def main(port: int) -> None:
    async with (
        moqt.connect(f"moqt://localhost:{port}/", ca="moqt.pem") as session,
        session.subscribe(
            NAME, location_filter=NEW, fill=moqt.FillParameters(location_filter=ALL)
        ) as subscription,
    ):
        print(f"subscribed, the largest there was: {subscription.largest}", flush=True)
        async for item in subscription:  # each Object once, those of one Group in order
            match item:
                case moqt.events.ObjectReceived(object=moqt.Object(payload=payload)) if payload:
                    print(item.object.location, bytes(payload).decode(), flush=True)
                case moqt.events.FillEnded():
                    print("that was the past", flush=True)
    print("the track has ended")


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 4444))
    except (OSError, moqt.errors.MoqtError) as error:
        sys.exit(f"cannot subscribe: {error}")
