"""`make bench`: one producer, one consumer, one machine; octets a second with verification.

A producer process publishes a bfloat16 cache of random bits and completes it; a consumer process
fetches it into arrays of its own, several times. Speed is payload octets over the time from
`retrieve` to the hand-over of the last layer, every Object's digest checked.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import resource
import secrets
import statistics
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from kvcs import Descriptor, Scope
from kvcs.blocking import Consumer, Producer
from moqt.tls import generate_certificate

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

KV_HEADS, HEAD_DIM = 8, 128
MEBI = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is transferred, and how often."""

    mebioctets: int
    layers: int
    block_tokens: int
    codec: str
    runs: int
    scope_key: bytes
    certificate: bytes
    private_key: bytes

    @property
    def blocks(self) -> int:
        block_octets = 2 * self.block_tokens * KV_HEADS * HEAD_DIM * 2
        return max(1, self.mebioctets * MEBI // (self.layers * block_octets))

    @property
    def tokens(self) -> NDArray[np.int64]:
        return np.arange(self.blocks * self.block_tokens)

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(
            model="bench",
            layers=self.layers,
            block_tokens=self.block_tokens,
            kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            dtype="bfloat16",
        )

    def arrays(self) -> NDArray[Any]:
        """Zeroed arrays for the whole cache, [layers, 2, tokens, heads, dim]."""
        shape = (self.layers, 2, len(self.tokens), KV_HEADS, HEAD_DIM)
        return np.zeros(shape, ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True)
class Run:
    """One retrieval."""

    first_layer_s: float
    all_layers_s: float


def peak_mebioctets() -> float:
    """The most memory that this process ever had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MEBI if sys.platform == "darwin" else peak / 1024


def produce(plan: Plan, pipe: Connection) -> None:
    """Publish the cache layer by layer and serve it until told to stop."""
    generator = np.random.default_rng(0)
    with Producer.serve(
        "127.0.0.1",
        0,
        scope=Scope(plan.scope_key),
        certificate=plan.certificate,
        private_key=plan.private_key,
    ) as producer:
        publication = producer.publish(plan.descriptor, plan.tokens)
        segment = publication.segment(0, plan.blocks, plan.codec)
        shape = (2, len(plan.tokens), KV_HEADS, HEAD_DIM)
        put_s = 0.0
        for layer in range(plan.layers):
            # Numbers as a model makes them, so that codecs have what they would have.
            k, v = generator.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
            start = time.perf_counter()
            segment.put_layer(layer, k, v)
            put_s += time.perf_counter() - start
        segment.complete()
        publication.complete()
        pipe.send((producer.port, put_s))
        pipe.recv()
    pipe.send(peak_mebioctets())


def consume(plan: Plan, pipe: Connection) -> None:
    """Fetch the cache `runs` times into the same arrays."""
    arrays = plan.arrays()
    arrays[...] = 1  # so that the kernel hands out the memory before the clock runs
    port = pipe.recv()
    with Consumer.connect(
        f"moqt://localhost:{port}/", scope=Scope(plan.scope_key), ca=plan.certificate
    ) as consumer:
        for _ in range(plan.runs):
            times = [time.perf_counter()]
            into = [(k, v) for k, v in arrays]
            retrieval = consumer.retrieve(plan.descriptor, plan.tokens, into=into)
            times.extend(time.perf_counter() for _layer in retrieval)
            if len(times) != plan.layers + 1:
                raise RuntimeError(f"{len(times) - 1} layers arrived, expected {plan.layers}")
            pipe.send(Run(times[1] - times[0], times[-1] - times[0]))
    pipe.send(peak_mebioctets())


def main() -> None:
    parser = argparse.ArgumentParser(prog="loopback", description=__doc__.split("\n\n")[0])
    parser.add_argument("--mebioctets", type=int, default=64, help="size of the cache")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--codec", default="raw")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    pair = generate_certificate(["localhost", "127.0.0.1"], days=1)
    plan = Plan(
        **vars(arguments),
        scope_key=secrets.token_bytes(32),
        certificate=pair.certificate,
        private_key=pair.private_key,
    )
    octets = plan.arrays().nbytes
    objects = plan.layers * plan.blocks * 2
    print(
        f"{octets / MEBI:.0f} MiB, {plan.layers} layers, {objects} Objects of"
        f" {octets // objects} octets, codec {plan.codec}; {os.cpu_count()} CPUs,"
        f" {platform.system()}, Python {platform.python_version()}, aioquic {version('aioquic')}"
    )
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for body in (produce, consume):
        ours, theirs = context.Pipe()
        process = context.Process(target=body, args=(plan, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        to_producer, to_consumer = pipes
        port, put_s = to_producer.recv()
        print(f"put_layer: {octets / put_s / 1e6:.0f} MB/s (gather, encode, SHA-256)")
        to_consumer.send(port)
        runs = []
        for number in range(plan.runs):
            run: Run = to_consumer.recv()
            runs.append(run)
            print(
                f"run {number + 1}: {octets / run.all_layers_s / 1e6:.1f} MB/s,"
                f" {objects / run.all_layers_s:.0f} Objects/s,"
                f" first layer after {run.first_layer_s * 1000:.0f} ms,"
                f" all after {run.all_layers_s:.2f} s"
            )
        consumer_peak = to_consumer.recv()
        to_producer.send(None)
        producer_peak = to_producer.recv()
        median = statistics.median(run.all_layers_s for run in runs)
        print(
            f"median: {octets / median / 1e6:.1f} MB/s; peak memory: producer"
            f" {producer_peak:.0f} MiB, consumer {consumer_peak:.0f} MiB"
        )
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()


if __name__ == "__main__":
    main()
