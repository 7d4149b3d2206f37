"""The two ends of discovery among many publications."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import kvcs
from kvcs import Descriptor, Scope
from kvcs.config import ProducerConfig
from kvcs.names import scope_prefix
from tests.bench.side.inside import Meter, heard, say

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moqt.types import TrackNamespace

BLOCK_TOKENS = 16

DESCRIPTOR = Descriptor(
    model="crowd", layers=1, block_tokens=BLOCK_TOKENS, kv_heads=1, head_dim=64, dtype="bfloat16"
)


def prompt(number: int) -> NDArray[np.int64]:
    """Return a prompt of one block that no other number has."""
    return np.arange(BLOCK_TOKENS) + number * BLOCK_TOKENS


async def crowd(given: dict[str, Any]) -> None:
    """Publish `others` that nobody will ask for, then `sought` small caches; serve."""
    others, sought = given["others"], given["sought"]
    k, v = np.ones((2, BLOCK_TOKENS, 1, 64), ml_dtypes.bfloat16)
    meter = Meter()
    async with kvcs.Producer.serve(
        "127.0.0.1",
        0,
        scope=Scope(bytes.fromhex(given["scope_key"])),
        certificate=given["certificate"].encode(),
        private_key=given["private_key"].encode(),
        config=ProducerConfig(max_publications=others + sought),
    ) as producer:
        meter.start()
        for number in range(others):
            await producer.publish(DESCRIPTOR, prompt(sought + number))
        publishing = meter.stop()
        for number in range(sought):
            publication = await producer.publish(DESCRIPTOR, prompt(number))
            segment = publication.segment()
            await segment.put_layer(0, k, v)
            await segment.complete()
        say("serving", port=producer.port, publishing_cpu_s=publishing["cpu_s"])
        while (order := await heard())["do"] != "end":
            if order["do"] == "begin":
                meter.start()
                say("begun")
            else:
                say("figures", **meter.stop())


async def seek(given: dict[str, Any]) -> None:
    """Retrieve the caches that are sought, one after the other; then list all there are."""
    scope = Scope(bytes.fromhex(given["scope_key"]))
    meter = Meter()
    async with kvcs.Consumer.connect(
        f"moqt://localhost:{given['port']}/", scope=scope, ca=given["certificate"].encode()
    ) as consumer:
        await _take(consumer, 0)  # to warm up
        say("ready")
        await heard()
        meter.start()
        begun_at = time.monotonic()
        for number in range(1, given["sought"]):
            await _take(consumer, number)
        say("sought", seconds=time.monotonic() - begun_at, **meter.stop())
        await heard()
        meter.start()
        names: set[TrackNamespace] = set()
        async with consumer.session.subscribe_namespace(scope_prefix(scope.scope_id)) as listing:
            while len(names) < given["others"] + given["sought"]:
                names.add((await anext(listing)).namespace)
        say("listed", **meter.stop())


async def _take(consumer: kvcs.Consumer, number: int) -> None:
    retrieval = await consumer.retrieve(DESCRIPTOR, prompt(number))
    taken = [layer async for layer in retrieval]
    if len(taken) != 1:
        raise RuntimeError(f"{len(taken)} layers came, expected 1")
