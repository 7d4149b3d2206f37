"""One cache by several worker processes, and by several sessions: `python striping.py [N]`.

A producer publishes a cache of random bits. A `StripedConsumer` with N workers (default 2) takes it
into shared memory, layer by layer; then a plain `Consumer` takes it again over N sessions. On a
machine with 2 N cores or more the first is about N times as fast as one session.
"""

import hashlib
import resource
import secrets
import sys
import time

import ml_dtypes
import numpy as np

from kvcs import Descriptor, KvcsError, Scope
from kvcs.blocking import Consumer, Producer, Retrieval, StripedConsumer
from kvcs.striping import shared_arrays
from moqt.errors import MoqtError
from moqt.tls import generate_certificate

DESCRIPTOR = Descriptor(
    model="example", layers=8, block_tokens=16, kv_heads=8, head_dim=128, dtype="bfloat16"
)
TOKENS = list(range(512))  # 2 MiB a layer: K and V are 1 MiB each


def publish(producer: Producer) -> list[str]:
    """Publish random bits; return the digest of each layer."""
    digests = []
    with producer.publish(DESCRIPTOR, TOKENS) as publication:
        segment = publication.segment()
        for layer in range(DESCRIPTOR.layers):
            octets = secrets.token_bytes(2 << 20)
            k, v = np.frombuffer(octets, ml_dtypes.bfloat16).reshape(2, len(TOKENS), 8, 128)
            segment.put_layer(layer, k, v)
            digests.append(hashlib.sha256(octets).hexdigest())
        segment.complete()
    return digests


def take(retrieval: Retrieval, digests: list[str], what: str) -> None:
    """Take all layers, and check them once more."""
    began = time.perf_counter()
    layers = list(retrieval)
    seconds = time.perf_counter() - began
    for layer in layers:
        assert layer.v is not None
        digest = hashlib.sha256(layer.k.tobytes() + layer.v.tobytes()).hexdigest()
        assert digest == digests[layer.index]
    octets = len(layers) * (2 << 20)
    print(f"{what}: {len(layers)} layers in order, bit for bit, {octets / seconds / 1e6:.0f} MB/s")


def main(number: int) -> None:
    scope, pair = Scope.generate(), generate_certificate(["localhost"])
    with Producer.serve(
        "localhost", 0, scope=scope, certificate=pair.certificate, private_key=pair.private_key
    ) as producer:
        digests = publish(producer)
        url = f"moqt://localhost:{producer.port}/"
        cache = shared_arrays(DESCRIPTOR, len(TOKENS))
        with StripedConsumer.connect(
            url, scope=scope, ca=pair.certificate, processes=number
        ) as striped:
            take(
                striped.retrieve(DESCRIPTOR, TOKENS, into=cache),
                digests,
                f"{number} worker processes",
            )
        with Consumer.connect(url, scope=scope, ca=pair.certificate) as consumer:
            take(
                consumer.retrieve(DESCRIPTOR, TOKENS, sessions=number),
                digests,
                f"{number} sessions",
            )
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"the workers used {workers.ru_utime + workers.ru_stime:.1f} s of CPU, start included")


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]) if sys.argv[1:] else 2)
    except (OSError, ValueError, KvcsError, MoqtError) as error:
        sys.exit(f"error: {error}")
