"""Producer and consumer as processes of their own, to be killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kvcs.consumer import Consumer
from kvcs.geometry import group_id_of, publisher_priority
from kvcs.production import prepare_layer
from kvcs.publisher import Producer
from tests.kvcs.stage import QUICK, whole
from tests.kvcs.support import SCOPE, describe, prompt


async def producer(folder: str) -> None:
    """Publish layer 0 and half of layer 1 as a consumer comes; print the port; do nothing more."""
    descriptor = describe()
    async with Producer.serve(
        "127.0.0.1",
        0,
        scope=SCOPE,
        certificate=Path(folder, "tls.pem"),
        private_key=Path(folder, "key.pem"),
        transport_config=QUICK,
    ) as serving:
        publication = await serving.publish(descriptor, prompt(descriptor, 4))
        segment = publication.segment()
        await segment.put_layer(0, *whole(descriptor, 0, 0, 4))
        prepared = prepare_layer(segment._production.plan, 1, *whole(descriptor, 1, 0, 4))
        for group in prepared.groups:
            writer = segment._tracks[group.track].open_group(
                group_id_of(1), publisher_priority=publisher_priority(1, descriptor.layers)
            )
            for block in (0, 1):
                writer.write(block, group.payloads[block])
        print(serving.port, flush=True)
        await asyncio.Event().wait()


async def consumer(folder: str, port: str) -> None:
    """Take layers and print their indices."""
    descriptor = describe()
    async with Consumer.connect(
        f"moqt://127.0.0.1:{port}/", scope=SCOPE, ca=Path(folder, "tls.pem")
    ) as consuming:
        async for layer in await consuming.retrieve(descriptor, prompt(descriptor, 4)):
            print(f"layer {layer.index}", flush=True)
