"""A producer in a thread of its own and commands in processes, for tests of the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Scope
from kvcs.kvsp.shapes import Component
from kvcs.publisher import Producer
from moqt.tls import generate_certificate

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from kvcs.keys import ProducerKey
    from kvcs.kvsp.shapes import AnyArray

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0
"""How long a test waits for a thread or process before it fails."""

TOKENS = list(range(100, 164))
DESCRIPTOR = Descriptor(
    model="test", layers=3, block_tokens=16, kv_heads=2, head_dim=8, dtype="bfloat16"
)

T = TypeVar("T")


def random_layers(descriptor: Descriptor, tokens: int) -> dict[str, AnyArray]:
    """K and V of all layers under their default names: random octets, so NaN payloads too."""
    random = np.random.default_rng(tokens)
    arrays: dict[str, AnyArray] = {}
    for layer in range(descriptor.layers):
        geometry = descriptor.geometry(layer)
        for component in geometry.parts(Component.KV):
            array = geometry.empty(component, tokens)
            octets = random.integers(0, 256, array.nbytes, "u1")
            name = f"layers.{layer}.{component.text}"
            arrays[name] = octets.view(array.dtype).reshape(array.shape)
    return arrays


@dataclass(frozen=True, slots=True)
class Keys:
    """Files that commands are given."""

    scope: Scope
    scope_key: Path
    certificate: Path
    private_key: Path
    descriptor: Path
    tokens: Path

    @classmethod
    def make(cls, folder: Path) -> Keys:
        pair = generate_certificate(["localhost", "127.0.0.1"])
        keys = cls(
            Scope.generate(),
            *(folder / name for name in ("scope.key", "tls.pem", "tls.key", "d.json", "tokens")),
        )
        keys.scope.save(keys.scope_key)
        keys.certificate.write_bytes(pair.certificate)
        keys.private_key.write_bytes(pair.private_key)
        keys.descriptor.write_bytes(DESCRIPTOR.jcs())
        keys.tokens.write_text(json.dumps(TOKENS))
        return keys

    def wanting(self) -> list[str]:
        """What `fetch` and `watch` need to be told besides the URL."""
        return [
            *("--descriptor", str(self.descriptor), "--tokens", str(self.tokens)),
            *("--scope-key-file", str(self.scope_key), "--ca", str(self.certificate)),
        ]


class Background:
    """A producer on an event loop in another thread."""

    def __init__(self, producer: Producer, loop: asyncio.AbstractEventLoop) -> None:
        self.producer = producer
        self._loop = loop

    @property
    def url(self) -> str:
        return f"moqt://127.0.0.1:{self.producer.port}/"

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def publish(self, arrays: dict[str, AnyArray], *, layers: int | None = None) -> None:
        """Publish DESCRIPTOR's layers for TOKENS; less than all of them, then stop and abort."""
        count = DESCRIPTOR.layers if layers is None else layers

        async def work() -> None:
            publication = await self.producer.publish(DESCRIPTOR, TOKENS)
            segment = publication.segment()
            for layer in range(count):
                await segment.put_layer(
                    layer, arrays[f"layers.{layer}.k"], arrays[f"layers.{layer}.v"]
                )
            if layers is None:
                await segment.complete()

        self.call(work())


@contextmanager
def producing(keys: Keys, signing_key: ProducerKey | None = None) -> Iterator[Background]:
    """Serve in another thread until the block ends."""
    started: Future[Background] = Future()
    ended: Future[asyncio.Event] = Future()

    async def serve() -> None:
        end = asyncio.Event()
        ended.set_result(end)
        async with Producer.serve(
            "127.0.0.1",
            0,
            scope=keys.scope,
            certificate=keys.certificate,
            private_key=keys.private_key,
            signing_key=signing_key,
        ) as producer:
            started.set_result(Background(producer, asyncio.get_running_loop()))
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="test producer")
    thread.start()
    try:
        background = started.result(WAIT_S)
        try:
            yield background
        finally:
            background._loop.call_soon_threadsafe(ended.result().set)
    finally:
        thread.join(WAIT_S)
        assert not thread.is_alive()


class Command:
    """`kvcs` in a process of its own, with its output in pipes."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("KVCS_", "FORCE_", "TTY_"))
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvcs", *arguments],
            cwd=ROOT,
            env=kept | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def event(self) -> dict[str, Any]:
        """Return the next JSON line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=WAIT_S)[1]
        record: dict[str, Any] = json.loads(line)
        return record

    def until(self, event: str) -> dict[str, Any]:
        """Return the next JSON line of this event, others skipped."""
        while (record := self.event())["event"] != event:
            pass
        return record

    def end(self, number: int | None = None) -> tuple[int, str, str]:
        """Wait for its end, after a signal if given; return its code, and what was still said."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out, err

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=WAIT_S)
