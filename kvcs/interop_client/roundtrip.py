"""A KV cache through the relay, and back bit by bit."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from kvcs import (
    Consumer,
    ConsumerConfig,
    Descriptor,
    NamespaceForm,
    Producer,
    ProducerConfig,
    Scope,
)
from kvcs.errors import KvcsError
from moqt.session.quirks import closes_for_binary_names
from moqt.tools.relay_test.case import CaseFailed, Stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcs.consumer import UsableLayer

__all__ = ["kvcs_roundtrip"]

DESCRIPTOR = Descriptor(
    model="interop", layers=4, block_tokens=16, kv_heads=2, head_dim=32, dtype="bfloat16"
)
TOKENS = tuple(range(1000, 1064))

RECOVERY_S = 2.0
"""How long what is missing is sought."""

OVERTAKEN_S = 0.5
"""A relay that drops older Groups is found out sooner than by default: all is published at once."""


def _layer(layer: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    numbers = np.random.default_rng(layer).standard_normal((2, len(TOKENS), 2, 32))
    k, v = numbers.astype(ml_dtypes.bfloat16)
    return k, v


def namespace_form(implementation: str | None) -> NamespaceForm:
    """Return how fields are written for a relay of this MOQT_IMPLEMENTATION."""
    is_text_only = closes_for_binary_names(implementation)
    return NamespaceForm.HEX if is_text_only else NamespaceForm.BINARY


async def kvcs_roundtrip(stage: Stage) -> None:
    """A producer publishes a cache of four layers, a consumer finds it and gets every bit."""
    try:
        await _roundtrip(stage)
    except KvcsError as error:
        raise stage.failed(str(error)) from error


async def _roundtrip(stage: Stage) -> None:
    async with stage.connect("probe") as session:
        options = session.peer_options
        form = namespace_form(None if options is None else options.implementation)
    stage.facts["namespace_form"] = form.value
    target, scope = stage.target, Scope.generate()
    async with AsyncExitStack() as stack:
        stage.expect("SETUP", "no session for the producer")
        producer = await stack.enter_async_context(
            Producer.connect(
                target.url,
                scope=scope,
                ca=target.ca,
                insecure=target.tls_disable_verify,
                auth_tokens=target.tokens,
                config=ProducerConfig(namespace_form=form),
                transport_config=stage.transport_config(),
            )
        )
        if producer.session is not None:
            stage.connected("publisher", producer.session)
        stage.expect("SETUP", "no session for the consumer")
        consumer = await stack.enter_async_context(
            Consumer.connect(
                target.url,
                scope=scope,
                ca=target.ca,
                insecure=target.tls_disable_verify,
                auth_tokens=target.tokens,
                config=ConsumerConfig(
                    namespace_form=form,
                    recovery_deadline_s=RECOVERY_S,
                    overtaken_timeout_s=OVERTAKEN_S,
                ),
                transport_config=stage.transport_config(),
            )
        )
        stage.connected("subscriber", consumer.session)
        stage.expect("REQUEST_OK to PUBLISH_NAMESPACE", "the relay does not take the publication")
        publication = await producer.publish(DESCRIPTOR, TOKENS)
        segment = publication.segment(first_block=0, blocks=len(TOKENS) // DESCRIPTOR.block_tokens)
        meaning = "the consumer does not find the cache through the relay"
        stage.expect("the publication's first manifest", meaning)
        retrieval = await consumer.retrieve(DESCRIPTOR, TOKENS)
        taken: list[int] = []
        stage.expect(
            f"{DESCRIPTOR.layers} layers, every bit the same",
            "the cache does not come whole through the relay",
            lambda: f"layers {taken} of {DESCRIPTOR.layers}",
        )
        for layer in range(DESCRIPTOR.layers):
            await segment.put_layer(layer, *_layer(layer))
        await segment.complete()
        await publication.complete()
        async for usable in retrieval:
            _check(usable)
            taken.append(usable.index)


def _check(layer: UsableLayer) -> None:
    k, v = _layer(layer.index)
    is_same = (
        layer.v is not None
        and layer.k.tobytes() == k.tobytes()
        and layer.v.tobytes() == v.tobytes()
    )
    if not is_same:
        raise CaseFailed(
            expected=f"layer {layer.index} as published",
            received="other octets, which were accepted as verified",
            message="a fault of this client: report it",
        )
