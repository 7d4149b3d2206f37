"""The shortest producer. Run `python minimal_producer.py`, then minimal_consumer.py beside it."""

import asyncio
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

from kvcs import Descriptor, Producer, Scope
from moqt.tls import CertificatePair, generate_certificate

DESCRIPTOR = Descriptor(
    model="example", layers=4, block_tokens=16, kv_heads=2, head_dim=64, dtype="bfloat16"
)
TOKENS = range(1000, 1128)


def prefill_layer(layer: int) -> np.ndarray:
    """Stand in for a model: K and V of one layer, each [tokens, kv_heads, head_dim]."""
    numbers = np.random.default_rng(layer).standard_normal((2, len(TOKENS), 2, 64))
    return numbers.astype(ml_dtypes.bfloat16)


def leave_keys(scope: Scope, pair: CertificatePair) -> None:
    """Leave beside us what a consumer needs: the secret, and the certificate to trust."""
    Path("minimal.key").unlink(missing_ok=True)
    scope.save("minimal.key")
    Path("minimal.pem").write_bytes(pair.certificate)


async def main(port: int) -> None:
    scope, pair = Scope.generate(), generate_certificate(["localhost"])
    async with Producer.serve(
        "localhost", port, scope=scope, certificate=pair.certificate, private_key=pair.private_key
    ) as producer:
        leave_keys(scope, pair)  # only now: the port may be another producer's, and so these files
        publication = await producer.publish(DESCRIPTOR, list(TOKENS))
        print(f"serving on port {producer.port}, Ctrl-C ends", flush=True)
        segment = publication.segment(first_block=0, blocks=len(TOKENS) // 16)
        for layer in range(DESCRIPTOR.layers):
            k, v = prefill_layer(layer)
            await segment.put_layer(layer, k, v)  # on its way now; k and v may be overwritten
        await segment.complete()
        await publication.complete()
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 4433))
    except KeyboardInterrupt:
        print("stopped")
    except OSError as error:
        sys.exit(f"error: {error.strerror or error}")
