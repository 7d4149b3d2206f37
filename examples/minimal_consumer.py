"""The shortest consumer. Run `python minimal_consumer.py` where minimal_producer.py runs."""

import asyncio
import hashlib
import sys

from kvcs import Consumer, Descriptor, KvcsError, Scope
from moqt.errors import MoqtError

DESCRIPTOR = Descriptor(
    model="example", layers=4, block_tokens=16, kv_heads=2, head_dim=64, dtype="bfloat16"
)
TOKENS = range(1000, 1128)


async def main(port: int) -> None:
    url, scope = f"moqt://localhost:{port}/", Scope.from_file("minimal.key")
    async with Consumer.connect(url, scope=scope, ca="minimal.pem") as consumer:
        retrieval = await consumer.retrieve(DESCRIPTOR, list(TOKENS))
        async for layer in retrieval:  # in layer order, verified, while later ones still come
            assert layer.v is not None  # a model may have layers of K alone
            digest = hashlib.sha256(layer.k.tobytes() + layer.v.tobytes()).hexdigest()
            print(f"layer {layer.index}: K and V {layer.k.shape} {layer.k.dtype} {digest}")


if __name__ == "__main__":
    try:
        asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 4433))
    except (OSError, KvcsError, MoqtError) as error:
        sys.exit(f"error: {error} (does minimal_producer.py run in this folder?)")
