"""Prefill in one process, decode in another, with plain Hugging Face transformers 5.x.

The producer's cache publishes what each forward pass adds, the consumer's cache waits layer by
layer while its model already runs: no change to the model, no hooks. Run by `make hf`; by hand:
`python -m examples.hf_disaggregated llama qwen3`. Exits non-zero unless the consumer's tokens
are those of a run without transfer, and different ones with one layer zeroed.
"""

from __future__ import annotations

import multiprocessing
import secrets
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import ml_dtypes
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from examples.hf_caches import PublishingCache, StreamedCache
from kvcs import Descriptor, Scope
from kvcs.blocking import Consumer, Producer
from kvcs.kvsp import Layout
from moqt.tls import generate_certificate

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from kvcs.blocking import Publication, Retrieval, Segment

BLOCK_TOKENS = 16
CHUNK_TOKENS = 80
NEW_TOKENS = 32
ZEROED_LAYER = 2
TIMEOUT_S = 60.0

T = TypeVar("T")

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
}


@dataclass(frozen=True, slots=True)
class Result:
    """Greedy tokens: without transfer, from layers as they came, and with one of them zeroed."""

    local: list[int]
    streamed: list[int]
    zeroed: list[int]


@dataclass(frozen=True, slots=True)
class Needed:
    """The consumer's model has come to `layer` of the prefix."""

    layer: int


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    certificate: bytes
    scope_key: bytes = field(repr=False)


def build_model(name: str) -> Any:
    """A small random model in bfloat16, the same in every process."""
    config = AutoConfig.for_model(
        **CONFIGS[name],
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3.0)  # a fresh model is nearly flat: let its tokens depend on K, V
    return model.to(torch.bfloat16).eval()


def build_prompt() -> tuple[list[int], list[int]]:
    """Random tokens: the whole blocks, which are transferred, and the tail."""
    prompt = np.random.default_rng(11).integers(2, 500, 150).tolist()
    whole = (len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    return prompt[:whole], prompt[whole:]


def describe(name: str, model: Any) -> Descriptor:
    """The cache of transformers is [heads, tokens, dim] a layer, so the layout is hnd."""
    config = model.config
    return Descriptor(
        model=f"random {name}, seed 7",
        layers=config.num_hidden_layers,
        block_tokens=BLOCK_TOKENS,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        dtype="bfloat16",
        layout=Layout.HND,
    )


def prefill(
    model: Any, prefix: list[int], cache: DynamicCache, start_chunk: Callable[[int, int], None]
) -> None:
    for start in range(0, len(prefix), CHUNK_TOKENS):
        chunk = prefix[start : start + CHUNK_TOKENS]
        start_chunk(start, len(chunk))
        model(torch.tensor([chunk]), cache=cache, use_cache=True)


def decode(model: Any, cache: DynamicCache, tail: list[int]) -> list[int]:
    """Compute the prompt's tail behind what the cache holds, then continue greedily."""
    step, tokens = torch.tensor([tail]), []
    for _ in range(NEW_TOKENS):
        logits = model(step, cache=cache, use_cache=True).logits[:, -1]
        step = logits.argmax(-1, keepdim=True)
        tokens.append(int(step))
    return tokens


def produce(
    model: Any, prefix: list[int], publication: Publication, when_needed: Callable[[int], None]
) -> None:
    """Prefill in chunks: each is a segment, and each layer goes out as the model makes it.

    The last part of a layer goes out `when_needed` returns.
    """
    segments: list[Segment] = []

    def start_chunk(start: int, tokens: int) -> None:
        segments.append(publication.segment(start // BLOCK_TOKENS, tokens // BLOCK_TOKENS))

    def on_layer(layer: int, k: NDArray[Any], v: NDArray[Any]) -> None:
        segment = segments[-1]
        if segment.first_block + segment.blocks == publication.blocks:
            when_needed(layer)
        segment.put_layer(layer, k, v)
        if layer == model.config.num_hidden_layers - 1:
            segment.complete()

    prefill(model, prefix, PublishingCache(model.config, on_layer), start_chunk)
    publication.complete()


def consume(job: Job, parent: Connection) -> None:
    """The second process: decode while the prefix arrives, then once more with a layer zeroed."""
    torch.set_grad_enabled(False)
    model, (prefix, tail) = build_model(job.name), build_prompt()
    descriptor, config = describe(job.name, model), model.config
    port = parent.recv()
    with Consumer.connect(
        f"moqt://localhost:{port}/", scope=Scope(job.scope_key), ca=job.certificate
    ) as consumer:
        for zeroed_layer in (None, ZEROED_LAYER):
            arrays = np.zeros(
                (descriptor.layers, 2, config.num_key_value_heads, len(prefix), config.head_dim),
                ml_dtypes.bfloat16,
            )
            retrieval = consumer.retrieve(descriptor, prefix, into=[(k, v) for k, v in arrays])
            with retrieval:

                def wait_for_layer(
                    layer: int,
                    *,
                    arrays: NDArray[Any] = arrays,
                    retrieval: Retrieval = retrieval,
                    zeroed_layer: int | None = zeroed_layer,
                ) -> None:
                    parent.send(Needed(layer))
                    usable = retrieval.next_layer(TIMEOUT_S)
                    if usable is None or usable.index != layer:
                        raise RuntimeError(f"got {usable}, expected layer {layer}")
                    if layer == zeroed_layer:
                        arrays[layer] = 0

                cache = StreamedCache(config, list(arrays), wait_for_layer)
                parent.send(decode(model, cache, tail))


def run(name: str) -> Result:
    """Run one model in both ways. The second process is joined whatever happens."""
    torch.set_grad_enabled(False)
    pair = generate_certificate(["localhost"], days=1)
    job = Job(name, pair.certificate, secrets.token_bytes(32))
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=consume, args=(job, theirs))
    process.start()
    theirs.close()
    try:
        model, (prefix, tail) = build_model(name), build_prompt()
        local_cache = DynamicCache(config=model.config)
        prefill(model, prefix, local_cache, lambda *_: None)
        local = decode(model, local_cache, tail)
        with Producer.serve(
            "127.0.0.1",
            0,
            scope=Scope(job.scope_key),
            certificate=pair.certificate,
            private_key=pair.private_key,
        ) as producer:
            publication = producer.publish(describe(name, model), prefix)
            pipe.send(producer.port)

            def when_needed(layer: int) -> None:
                # Layer l is withheld until the other model has computed its layers before l: a
                # consumer that wanted the whole cache before it starts would wait for ever.
                if (needed := receive(pipe, Needed)).layer != layer:
                    raise RuntimeError(f"the consumer needs {needed}, expected layer {layer}")

            produce(model, prefix, publication, when_needed)
            streamed = receive(pipe, list)
            for _ in range(model.config.num_hidden_layers):
                receive(pipe, Needed)
            zeroed = receive(pipe, list)
            process.join(TIMEOUT_S)
    finally:
        pipe.close()
        if process.is_alive():
            process.kill()
        process.join()
    return Result(local, streamed, zeroed)


def receive(pipe: Connection, kind: type[T]) -> T:
    """The consumer's next word. Raises: TimeoutError; EOFError when its process is gone."""
    if not pipe.poll(TIMEOUT_S):
        raise TimeoutError(f"no {kind.__name__} from the consumer within {TIMEOUT_S} s")
    report = pipe.recv()
    if not isinstance(report, kind):
        raise TypeError(f"the consumer sent {report!r}, expected {kind.__name__}")
    return report


def main() -> int:
    is_ok = True
    for name in sys.argv[1:] or CONFIGS:
        result = run(name)
        is_same, differs = result.streamed == result.local, result.zeroed != result.local
        is_ok = is_ok and is_same and differs
        print(
            f"{name}: tokens {'the same' if is_same else 'DIFFERENT'};"
            f" with layer {ZEROED_LAYER} zeroed {'different' if differs else 'THE SAME'};"
            f" {result.local}"
        )
    return 0 if is_ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
