"""A worker process: one consumer, which takes shares of caches into memory that it is handed.

It lives as long as its parent holds the other end of its socket.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from typing import TYPE_CHECKING

from kvcs.consumer import Consumer
from kvcs.errors import KvcsError
from kvcs.keys import PublicKey, TrustedKeys
from kvcs.loop_thread import new_event_loop
from kvcs.striping.channel import Channel
from kvcs.striping.memory import SharedMap
from kvcs.striping.messages import Cancel, Close, Ended, Job, LayerDone, Raised, Ready, Settings
from moqt.errors import MoqtError

if TYPE_CHECKING:
    from kvcs.destinations import LayerArrays
    from kvcs.kvsp.shapes import AnyArray
    from kvcs.stats import RetrievalStats
    from kvcs.striping.memory import ArrayPlace

__all__ = ["main"]

PARENT_CHECK_S = 1.0
"""How often a worker looks whether its parent is there, for the case that a fork of the parent
keeps the socket open."""

FEW_PARTS = 4
"""With fewer, mapping all pages of a memory at once costs less (0.07 s/GB) than those of a share
one by one as they are written (0.27 s/GB of it)."""

_REPORTED = (KvcsError, MoqtError, OSError, ValueError)


def main(descriptor: int, parent: int) -> None:
    """Serve the process `parent` at the socket `descriptor` until it is gone or says so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        settings, _ = channel.receive()
    except EOFError:
        return
    assert isinstance(settings, Settings)
    gc.freeze()  # what was loaded stays: only what jobs leave is looked through
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_Worker(channel, settings, parent).run())


class _Worker:
    def __init__(self, channel: Channel, settings: Settings, parent: int) -> None:
        self._channel = channel
        self._settings = settings
        self._parent = parent
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._is_over = asyncio.Event()

    async def run(self) -> None:
        """Connect, and run jobs until the parent wants no more."""
        watching = asyncio.create_task(self._watch_parent())
        connecting = asyncio.create_task(self._connected())
        self._channel.listen(self._taken, self._is_over.set)
        ending = asyncio.create_task(self._is_over.wait())
        try:
            await asyncio.wait((connecting, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (connecting, watching, ending):
                task.cancel()
            await asyncio.gather(connecting, watching, ending, return_exceptions=True)
        if connecting.done() and not connecting.cancelled():
            connecting.result()  # what nobody expected ends the process, with its traceback

    async def _connected(self) -> None:
        settings = self._settings
        keys = settings.trusted_keys
        try:
            async with Consumer.connect(
                settings.url,
                scope=settings.scope,
                ca=settings.ca,
                insecure=settings.insecure,
                trusted_keys=None
                if keys is None
                else TrustedKeys(PublicKey.from_pem(pem, key_id=kid) for kid, pem in keys),
                require_signature=settings.require_signature,
                config=settings.config,
                session_config=settings.session_config,
                transport_config=settings.transport_config,
                auth_tokens=settings.auth_tokens,
                trusted_authorities=settings.trusted_authorities,
            ) as consumer:
                self._consumer = consumer
                self._channel.send(Ready())
                try:
                    await self._is_over.wait()
                finally:
                    for task in self._jobs.values():
                        task.cancel()
                    await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        except _REPORTED as error:
            self._tell(Ended(number=0, error=Raised.of(error)))

    def _taken(self, message: object, descriptors: list[int]) -> None:
        if isinstance(message, Job):
            maps = [
                SharedMap.attach(descriptor, octets, populates=message.striping.parts < FEW_PARTS)
                for descriptor, octets in zip(descriptors, message.map_octets, strict=True)
            ]
            task = asyncio.create_task(self._run(message, maps))
            self._jobs[message.number] = task
            task.add_done_callback(lambda _: self._skipped(message.number))
        elif isinstance(message, Cancel):
            running = self._jobs.get(message.number)
            if running is not None:
                running.cancel()
        elif isinstance(message, Close):
            self._is_over.set()

    async def _run(self, job: Job, maps: list[SharedMap]) -> None:
        error: Raised | None = Raised.of(KvcsError("the worker's job was cancelled, or failed"))
        stats: RetrievalStats | None = None
        try:
            retrieval = await self._consumer.retrieve(
                job.descriptor,
                job.tokens,
                layers=job.layers,
                blocks=job.blocks,
                into=_arrays(job, maps),
                sources=job.sources,
                recovery_deadline_s=job.recovery_deadline_s,
                publication=job.publication,
                extras=job.extras,
                sessions=job.striping,
            )
            stats = retrieval.stats
            async with retrieval:
                async for layer in retrieval:
                    self._tell(
                        LayerDone(
                            number=job.number,
                            layer=layer.index,
                            arrived_at=retrieval.arrived_at[layer.index],
                            stats=stats,
                        )
                    )
            error = None
        except _REPORTED as problem:
            error = Raised.of(problem)
        finally:
            del self._jobs[job.number]
            if not self._jobs:  # cycles of the job's parts hold shared memory
                asyncio.get_running_loop().call_soon(gc.collect)
            self._tell(Ended(number=job.number, error=error, stats=stats))

    def _skipped(self, number: int) -> None:
        """A job that was cancelled before it ran has said nothing, and its parent waits."""
        if self._jobs.pop(number, None) is not None:
            error = KvcsError("the worker's job was cancelled before it began")
            self._tell(Ended(number=number, error=Raised.of(error)))

    def _tell(self, message: object) -> None:
        try:
            self._channel.send(message)
        except OSError:
            self._is_over.set()

    async def _watch_parent(self) -> None:
        while os.getppid() == self._parent:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(PARENT_CHECK_S)
        self._is_over.set()


def _arrays(job: Job, maps: list[SharedMap]) -> dict[int, LayerArrays]:
    def array(place: ArrayPlace) -> AnyArray:
        return maps[place.map].array(place.shape, job.descriptor.dtype, place.offset, place.strides)

    return {
        layer: (array(k), None if v is None else array(v)) for layer, (k, v) in job.places.items()
    }
