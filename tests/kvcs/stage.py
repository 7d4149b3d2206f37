"""A producer and a consumer of it on loopback, and what one makes and the other checks."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcs.config import ConsumerConfig, ProducerConfig
from kvcs.consumer import Consumer, Retrieval
from kvcs.errors import IncompleteRetrieval
from kvcs.publisher import Producer, Publication
from moqt.asyncio.config import TransportConfig
from tests.kvcs.support import SCOPE, cut_tokens, octets_of, prompt, tensors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from kvcs.keys import ProducerKey, TrustedKeys
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.shapes import AnyArray
    from kvcs.striping import StripedRetrieval
    from moqt.session.config import SessionConfig
    from moqt.tls import CertificatePair

QUICK = TransportConfig(close_linger_s=0.01)

PRODUCING = ProducerConfig(thread_octets=0)
"""Every layer is prepared in a worker thread, as large ones are."""

CONSUMING = ConsumerConfig(
    discovery_settle_s=0.05,
    discovery_timeout_s=5.0,
    stall_timeout_s=20.0,
    recovery_deadline_s=5.0,
    manifest_timeout_s=5.0,
)


@dataclass
class Stage:
    """Who is on it."""

    producer: Producer
    certificate: CertificatePair
    descriptor: Descriptor

    @property
    def url(self) -> str:
        return f"moqt://127.0.0.1:{self.producer.port}/"

    @asynccontextmanager
    async def consumer(
        self,
        *,
        config: ConsumerConfig = CONSUMING,
        trusted_keys: TrustedKeys | None = None,
        require_signature: bool = False,
        transport_config: TransportConfig = QUICK,
    ) -> AsyncIterator[Consumer]:
        async with Consumer.connect(
            self.url,
            scope=SCOPE,
            ca=self.certificate.certificate,
            config=config,
            trusted_keys=trusted_keys,
            require_signature=require_signature,
            transport_config=transport_config,
        ) as consumer:
            yield consumer

    async def publish(self, blocks: int, *, deterministic: bool = False) -> Publication:
        tokens = prompt(self.descriptor, blocks)
        return await self.producer.publish(self.descriptor, tokens, deterministic=deterministic)

    async def publish_all(self, *segments: int, deterministic: bool = False) -> Publication:
        publication = await self.publish(sum(segments), deterministic=deterministic)
        for blocks in segments:
            await produce(publication, blocks)
        return publication

    def layer(self, layer: int, blocks: int, *, first: int = 0) -> tuple[AnyArray, AnyArray | None]:
        """Return the tensors of blocks of a layer; those of one block do not depend on the rest."""
        return whole(self.descriptor, layer, first, first + blocks)


@asynccontextmanager
async def staged(
    certificate: CertificatePair,
    descriptor: Descriptor,
    *,
    config: ProducerConfig = PRODUCING,
    signing_key: ProducerKey | None = None,
    session_config: SessionConfig | None = None,
) -> AsyncIterator[Stage]:
    async with Producer.serve(
        "127.0.0.1",
        0,
        scope=SCOPE,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        config=config,
        signing_key=signing_key,
        session_config=session_config,
        transport_config=QUICK,
    ) as producer:
        yield Stage(producer, certificate, descriptor)


MOST_BLOCKS = 16


def whole(
    descriptor: Descriptor, layer: int, first: int, stop: int
) -> tuple[AnyArray, AnyArray | None]:
    k, v = tensors(descriptor, layer, MOST_BLOCKS)
    tokens = descriptor.block_tokens
    cut = [
        None if array is None else cut_tokens(descriptor, array, first * tokens, stop * tokens)
        for array in (k, v)
    ]
    assert cut[0] is not None
    return cut[0], cut[1]


async def produce(
    publication: Publication,
    blocks: int | None = None,
    *,
    layers: Iterable[int] | None = None,
    **how: Any,
) -> None:
    """Add a segment of so many blocks, put its layers, and complete it if those were all."""
    segment = publication.segment(blocks=blocks, **how)
    descriptor = publication.descriptor
    for layer in range(descriptor.layers) if layers is None else layers:
        stop = segment.first_block + segment.blocks
        await segment.put_layer(layer, *whole(descriptor, layer, segment.first_block, stop))
    if layers is None:
        await segment.complete()


def check(retrieval: Retrieval | StripedRetrieval, layer: Any, descriptor: Descriptor) -> None:
    k, v = whole(descriptor, layer.index, 0, retrieval.blocks)
    assert octets_of(layer.k) == octets_of(k)
    assert (layer.v is None) == (v is None)
    if v is not None:
        assert octets_of(layer.v) == octets_of(v)


async def take(retrieval: Retrieval | StripedRetrieval, descriptor: Descriptor) -> list[int]:
    """Take all layers, check every octet, return their indices in the order they came."""
    taken = []
    async for layer in retrieval:
        check(retrieval, layer, descriptor)
        taken.append(layer.index)
    return taken


async def take_incomplete(
    retrieval: Retrieval | StripedRetrieval, descriptor: Descriptor
) -> tuple[list[int], IncompleteRetrieval]:
    """As `take`, for a retrieval that lacks something at its end."""
    taken: list[int] = []
    while True:
        try:
            layer = await anext(retrieval)
        except IncompleteRetrieval as error:
            return taken, error
        check(retrieval, layer, descriptor)
        taken.append(layer.index)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something is so that no event tells; TimeoutError if it never is."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def texts(missing: Sequence[object]) -> list[str]:
    return [str(one).split(" (")[0] for one in missing]
