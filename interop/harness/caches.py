"""KV caches through a peer's relay: a producer and consumers of ours, compared bit by bit."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

import kvcs
from interop.harness.cases import check
from interop.harness.ours import url_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from interop.harness.stage import Stage
    from kvcs.kvsp.shapes import AnyArray
    from kvcs.stats import RetrievalStats

__all__ = [
    "BLOCKS",
    "Cache",
    "Production",
    "consuming",
    "fanned_out",
    "from_middle",
    "late",
    "live",
    "producing",
    "take",
]

SCOPE = kvcs.Scope(bytes(range(32)))
BLOCK_TOKENS = 16
BLOCKS = 8
HEADS, DIM = 4, 128
LAYER_S = 0.01
"""What a layer takes to compute: a new one comes while those before are on their way."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of so many layers, of random bits that both ends know."""

    layers: int

    @property
    def descriptor(self) -> kvcs.Descriptor:
        """Its Compatibility Descriptor."""
        return kvcs.Descriptor(
            model="interop",
            layers=self.layers,
            block_tokens=BLOCK_TOKENS,
            kv_heads=HEADS,
            head_dim=DIM,
            dtype="bfloat16",
        )

    @property
    def tokens(self) -> list[int]:
        """The prompt."""
        return list(range(BLOCKS * BLOCK_TOKENS))

    @property
    def objects(self) -> int:
        """Objects of all layers, K and V."""
        return 2 * self.layers * BLOCKS

    def layer(self, index: int) -> tuple[AnyArray, AnyArray]:
        """Return K and V of a layer, each [tokens, heads, dim]."""
        octets = np.random.default_rng(index).integers(
            0, 256, (2, BLOCKS * BLOCK_TOKENS, HEADS, 2 * DIM), np.uint8
        )
        k, v = octets.view(ml_dtypes.bfloat16)
        return k, v


class Production:
    """A publication in the making."""

    def __init__(
        self, cache: Cache, producer: kvcs.Producer, publication: kvcs.Publication
    ) -> None:
        self.producer = producer
        self._cache = cache
        self._publication = publication
        self._segment = publication.segment()

    @property
    def objects(self) -> int:
        """Objects published so far."""
        return self._publication.stats.objects

    async def followed(self) -> None:
        """Wait until the relay has subscribed to all its tracks."""
        while not all(track.subscriptions for track in self.producer.directory.tracks()):
            await asyncio.sleep(0.01)  # nothing tells

    async def put(self, layers: range) -> None:
        """Publish layers, as fast as a model computes them."""
        for layer in layers:
            await asyncio.sleep(LAYER_S)
            await self._segment.put_layer(layer, *self._cache.layer(layer))

    async def complete(self) -> None:
        """End it."""
        await self._segment.complete()
        await self._publication.complete()


@asynccontextmanager
async def producing(
    stage: Stage,
    cache: Cache,
    port: int,
    *,
    form: kvcs.NamespaceForm,
    key: kvcs.ProducerKey | None = None,
) -> AsyncIterator[Production]:
    """Offer a cache, empty yet, to the relay at `port`; with `key` its manifests are signed."""
    async with kvcs.Producer.connect(
        url_of(port),
        scope=SCOPE,
        ca=stage.certificate,
        signing_key=key,
        config=kvcs.ProducerConfig(namespace_form=form),
    ) as producer:
        publication = await producer.publish(cache.descriptor, cache.tokens)
        yield Production(cache, producer, publication)


@asynccontextmanager
async def consuming(
    stage: Stage, port: int, *, form: kvcs.NamespaceForm, key: kvcs.ProducerKey | None = None
) -> AsyncIterator[kvcs.Consumer]:
    """Connect a consumer to the relay at `port`; with `key` it demands its signature."""
    async with kvcs.Consumer.connect(
        url_of(port),
        scope=SCOPE,
        ca=stage.certificate,
        trusted_keys=None if key is None else kvcs.TrustedKeys([key.public]),
        require_signature=key is not None,
        config=kvcs.ConsumerConfig(namespace_form=form),
    ) as consumer:
        yield consumer


async def take(cache: Cache, retrieval: kvcs.Retrieval) -> kvcs.Retrieval:
    """Take all layers and compare every bit; return the retrieval, for its counters."""
    layers = []
    async for usable in retrieval:
        k, v = cache.layer(usable.index)
        assert usable.v is not None
        is_same = usable.k.tobytes() == k.tobytes() and usable.v.tobytes() == v.tobytes()
        check(f"layer {usable.index} is what was published", is_same, True)
        layers.append(usable.index)
        await asyncio.sleep(0)
    check("layers", layers, list(range(cache.layers)))
    check("Objects verified", retrieval.stats.objects, cache.objects)
    return retrieval


async def fanned_out(
    stage: Stage, cache: Cache, port: int, steps: Sequence[range], *, form: kvcs.NamespaceForm
) -> tuple[int, int]:
    """Have a consumer join before each of `steps`, layers to publish; all must get everything.

    Return the octets that the producer sent, manifests included, and those of the cache's Objects.
    """
    retrievals: list[kvcs.Retrieval] = []

    async def consume(joined: asyncio.Event) -> None:
        async with (
            consuming(stage, port, form=form) as consumer,
            await consumer.retrieve(cache.descriptor, cache.tokens) as retrieval,
        ):
            retrievals.append(retrieval)
            joined.set()
            await take(cache, retrieval)

    async def caught_up() -> None:  # so has the relay, and nobody joins in mid-stream
        while any(retrieval.stats.objects < production.objects for retrieval in retrievals):
            await asyncio.sleep(0.01)

    async with producing(stage, cache, port, form=form) as production:
        async with asyncio.TaskGroup() as group:
            for number, layers in enumerate(steps):
                joined = asyncio.Event()
                group.create_task(consume(joined))
                await joined.wait()
                if number == 0:
                    await production.followed()
                await caught_up()
                await production.put(layers)
                await caught_up()
            await production.complete()
        sent = sum(session.stats.octets_sent for session in production.producer.sessions)
        return sent, production.producer.stats.octets


async def live(stage: Stage, cache: Cache, port: int, *, form: kvcs.NamespaceForm) -> None:
    """Wait for a cache before its first layer, through the relay at `port`."""
    async with (
        producing(stage, cache, port, form=form) as production,
        consuming(stage, port, form=form) as consumer,
        await consumer.retrieve(cache.descriptor, cache.tokens) as retrieval,
    ):
        await production.followed()
        await production.put(range(cache.layers))
        await production.complete()
        await take(cache, retrieval)


async def from_middle(
    stage: Stage, cache: Cache, port: int, *, form: kvcs.NamespaceForm, after: int = 12
) -> RetrievalStats:
    """Join a cache `after` so many layers; return what came."""
    async with (
        producing(stage, cache, port, form=form) as production,
        consuming(stage, port, form=form) as consumer,
    ):
        await production.put(range(after))
        async with await consumer.retrieve(cache.descriptor, cache.tokens) as retrieval:
            await production.put(range(after, cache.layers))
            await production.complete()
            await take(cache, retrieval)
            return retrieval.stats


async def late(stage: Stage, cache: Cache, port: int, *, form: kvcs.NamespaceForm) -> int:
    """Take a complete cache; return how many Objects came twice."""
    async with producing(stage, cache, port, form=form) as production:
        await production.put(range(cache.layers))
        await production.complete()
        async with (
            consuming(stage, port, form=form) as consumer,
            await consumer.retrieve(cache.descriptor, cache.tokens) as retrieval,
        ):
            await take(cache, retrieval)
            return retrieval.stats.duplicates
