"""What each process of the demo does. Each loads the same model; a pipe leads to the demo's parent.

A role says "loaded", waits for its cue, works, and sends reports. Nothing that it computes goes
through the pipe: K and V travel over MOQT alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from examples.arrivals import Arrivals
from examples.smollm.model import KvCache, Model, ModelShape
from examples.smollm.weights import find_gguf, open_gguf, random_weights, read_shape, read_weights
from kvcs import Descriptor, Scope
from kvcs.blocking import Consumer, Producer

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from examples.smollm.model import Bfloats, Floats

TIMEOUT_S = 120.0
"""The whole demo takes no longer, and no wait in it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all processes agree on."""

    prompt: tuple[int, ...]
    chunk_tokens: int
    block_tokens: int
    new_tokens: int
    scope_key: bytes = field(repr=False)
    certificate: bytes
    private_key: bytes = field(repr=False)
    random_shape: ModelShape | None = None  # None: the pretrained model
    corrupt_layer: int | None = None

    @property
    def prefix_tokens(self) -> int:
        """Tokens that are transferred: whole blocks, and never the prompt's last token."""
        return (len(self.prompt) - 1) // self.block_tokens * self.block_tokens


@dataclass(frozen=True, slots=True)
class Loaded:
    layers: int


@dataclass(frozen=True, slots=True)
class Serving:
    port: int
    started_at: float


@dataclass(frozen=True, slots=True)
class Computed:
    segment: int
    layer: int
    at: float


@dataclass(frozen=True, slots=True)
class Published:
    octets: int


@dataclass(frozen=True, slots=True)
class Continued:
    """A continuation, with what it was computed from."""

    tokens: list[int]
    cache_digest: str
    arrived_at: dict[int, float]
    usable_at: dict[int, float]
    joined_at: float
    first_token_at: float


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str


def run_role(role: str, settings: Settings, parent: Connection) -> None:
    """Entry of each process: run `role`, and turn what goes wrong into a last report."""
    try:
        model, identity = load(settings)
        parent.send(Loaded(model.shape.layers))
        if role == "producer":
            produce(settings, model, identity, parent)
        elif role == "local":
            continue_locally(settings, model, parent)
        else:
            consume(settings, model, identity, parent)
    except (EOFError, BrokenPipeError):
        raise SystemExit(1) from None  # the parent ended the demo
    except Exception as error:  # the parent prints it and ends the demo
        with contextlib.suppress(BrokenPipeError):
            parent.send(Failed(f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from None


def load(settings: Settings) -> tuple[Model, Descriptor]:
    """The model, and the descriptor under which its cache may be exchanged."""
    if settings.random_shape is None:
        path = find_gguf()
        reader = open_gguf(path)
        shape = read_shape(reader)
        weights = read_weights(reader, shape)
        name = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    else:
        shape = settings.random_shape
        weights = random_weights(shape, seed=0)
        name = "random weights, seed 0"
    descriptor = Descriptor(
        model=name,
        layers=shape.layers,
        block_tokens=settings.block_tokens,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype="bfloat16",
        rope={"base": shape.rope_base, "pairs": "interleaved"},
    )
    return Model(shape, weights), descriptor


def produce(settings: Settings, model: Model, descriptor: Descriptor, parent: Connection) -> None:
    """Prefill chunk by chunk; publish each layer of each chunk the moment it is computed."""
    prefix = settings.prompt[: settings.prefix_tokens]
    cache = KvCache(model.shape, len(prefix))
    parent.recv()
    with Producer.serve(
        "127.0.0.1",
        0,
        scope=Scope(settings.scope_key),
        certificate=settings.certificate,
        private_key=settings.private_key,
    ) as producer:
        publication = producer.publish(descriptor, prefix)
        assert producer.port is not None  # it is for a producer that serves
        parent.send(Serving(producer.port, time.monotonic()))
        for number, start in enumerate(range(0, len(prefix), settings.chunk_tokens)):
            chunk = prefix[start : start + settings.chunk_tokens]
            segment = publication.segment(
                first_block=start // settings.block_tokens,
                blocks=len(chunk) // settings.block_tokens,
            )

            def publish(
                layer: int, k: Bfloats, v: Bfloats, *, number: int = number, segment: Any = segment
            ) -> None:
                computed = Computed(number, layer, time.monotonic())
                if layer == settings.corrupt_layer:
                    k = k[::-1]  # every number is right, only the tokens are in the wrong order
                segment.put_layer(layer, k, v)
                parent.send(computed)

            model.forward(chunk, cache, on_layer=publish)
            segment.complete()
        publication.complete()
        parent.send(Published(publication.stats.octets))
        parent.recv()  # the consumers are done


def consume(settings: Settings, model: Model, descriptor: Descriptor, parent: Connection) -> None:
    """Fetch the prefix straight into a cache; compute layer l as soon as layer l is there."""
    cache = KvCache(
        model.shape, len(settings.prompt) + settings.new_tokens, length=settings.prefix_tokens
    )
    prefix = settings.prompt[: settings.prefix_tokens]
    into = [
        (k[: len(prefix)], v[: len(prefix)]) for k, v in zip(cache.keys, cache.values, strict=True)
    ]
    serving = parent.recv()
    joined_at = time.monotonic()
    with Consumer.connect(
        f"moqt://localhost:{serving.port}/",
        scope=Scope(settings.scope_key),
        ca=settings.certificate,
    ) as consumer:
        retrieval = consumer.retrieve(descriptor, prefix, into=into)
        if retrieval.tokens != len(prefix):
            raise LookupError(f"{retrieval.tokens} tokens are published, not {len(prefix)}")
        with Arrivals(retrieval, timeout_s=TIMEOUT_S) as arrivals:
            logits = model.forward(
                settings.prompt[len(prefix) :], cache, wait_for_layer=arrivals.wait
            )
    report(settings, model, cache, logits, joined_at, parent, arrivals)


def continue_locally(settings: Settings, model: Model, parent: Connection) -> None:
    """The same continuation with no transfer: same chunks, same bfloat16 cache, one process."""
    cache = KvCache(model.shape, len(settings.prompt) + settings.new_tokens)
    prefix = settings.prompt[: settings.prefix_tokens]
    parent.recv()
    started_at = time.monotonic()
    model.prefill(prefix, cache, chunk_tokens=settings.chunk_tokens)
    logits = model.forward(settings.prompt[len(prefix) :], cache)
    report(settings, model, cache, logits, started_at, parent)


def report(
    settings: Settings,
    model: Model,
    cache: KvCache,
    logits: Floats,
    joined_at: float,
    parent: Connection,
    arrivals: Arrivals | None = None,
) -> None:
    first_token_at = time.monotonic()
    digest = hashlib.sha256()
    for k, v in zip(cache.keys, cache.values, strict=True):
        for array in (k, v):
            digest.update(array[: settings.prefix_tokens].tobytes())
    parent.send(
        Continued(
            tokens=model.decode(logits, cache, new_tokens=settings.new_tokens),
            cache_digest=digest.hexdigest(),
            arrived_at=arrivals.arrived_at if arrivals is not None else {},
            usable_at=dict(arrivals.usable_at) if arrivals is not None else {},
            joined_at=joined_at,
            first_token_at=first_token_at,
        )
    )
