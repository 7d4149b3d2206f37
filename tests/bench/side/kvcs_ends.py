"""The two ends of a KVCS transfer, as an application would write them, with a meter.

A process has only what its end needs: `kvcs.Producer` and `kvcs.Consumer` are loaded where named.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import kvcs
from kvcs import Descriptor, Scope
from kvcs.config import ProducerConfig
from moqt.asyncio import config as transport_limits
from moqt.asyncio.config import TransportConfig
from tests.bench.side import without_digest
from tests.bench.side.inside import (
    LOOPBACK,
    Meter,
    heard,
    holds_pattern,
    pattern,
    say,
    say_status,
)

if TYPE_CHECKING:
    import cProfile
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kvcs.publication import Publication
    from moqt import ConnectionStats, MoqtSession

DISCOVERED = "discovered"
"""For `datagram`: the largest datagrams that the path and the library carry."""


class Cache:
    """The tensors of one end, [layers, 2, tokens, heads, dim], and what they are called.

    Warming up uses the first layers' tensors under another model's name.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self.tokens = given["blocks"] * given["block_tokens"]
        shape = (given["layers"], 2, self.tokens, given["kv_heads"], given["head_dim"])
        self.tensors: NDArray[Any] = np.empty(shape, ml_dtypes.bfloat16)
        self.flat[...] = 0  # so that the kernel hands out the memory before the clock runs
        layer_octets = self.tensors[0].nbytes
        self._warm_layers = max(1, min(given["layers"], given["warm_octets"] // layer_octets))

    @property
    def flat(self) -> NDArray[np.uint8]:
        """All of it as octets."""
        return self.tensors.reshape(-1).view(np.uint8)

    def fill(self) -> None:
        """Give the tensors the octets that the other end expects."""
        source = np.frombuffer(pattern(), np.uint8)
        for at in range(0, len(self.flat), len(source)):
            part = self.flat[at : at + len(source)]
            part[...] = source[: len(part)]

    def layers(self, *, is_warm_up: bool) -> int:
        """How many layers are moved."""
        return self._warm_layers if is_warm_up else len(self.tensors)

    def descriptor(self, *, is_warm_up: bool) -> Descriptor:
        """Return what the publication says of itself."""
        return Descriptor(
            model="warm-up" if is_warm_up else "bench",
            layers=self.layers(is_warm_up=is_warm_up),
            block_tokens=self._given["block_tokens"],
            kv_heads=self._given["kv_heads"],
            head_dim=self._given["head_dim"],
            dtype="bfloat16",
        )

    def prompt(self, number: int) -> NDArray[np.int64]:
        """Return the tokens of the publication with this number."""
        return np.arange(self.tokens) + number + 1

    def pairs(self, *, is_warm_up: bool) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return K and V by layer."""
        return [(k, v) for k, v in self.tensors[: self.layers(is_warm_up=is_warm_up)]]


def transport_config(given: dict[str, Any]) -> TransportConfig:
    """Return the transport's limits: the defaults, but for what the case is about."""
    chosen: dict[str, Any] = {}
    if given["datagram"] == DISCOVERED:
        chosen["max_datagram_octets"] = transport_limits.LARGEST_DATAGRAM_OCTETS
    elif given["datagram"] is not None:
        chosen["max_datagram_octets"] = given["datagram"]
    return TransportConfig(fast_path=given["fast_path"], **chosen)


class Gauge:
    """A meter, and a profiler if the plan asks for one, from the first transfer to the last."""

    def __init__(self, given: dict[str, Any], role: str) -> None:
        folder = given["profile_dir"]
        self._profile: cProfile.Profile | None = None
        if folder is not None:
            import cProfile  # here, as what is in the process counts as memory taken

            self._profile = cProfile.Profile()
        self._report = Path(folder or ".") / f"profile-{given['name']}-{role}.txt"
        self._meter = Meter()
        self._is_running = False

    def start(self) -> None:
        """Begin, once."""
        if not self._is_running:
            self._is_running = True
            self._meter.start()
            if self._profile is not None:
                self._profile.enable()

    def stop(self) -> dict[str, float]:
        """Return what was measured."""
        if self._profile is not None:
            import pstats

            self._profile.disable()
            with self._report.open("w") as report:
                stats = pstats.Stats(self._profile, stream=report)
                stats.strip_dirs().sort_stats("tottime").print_stats(30)
        return self._meter.stop()


class ConnectionMeter:
    """Counts what the connections of an end did, all together, between `start` and `stop`."""

    COUNTERS = ("datagrams_sent", "packets_lost", "datagrams_received", "wakeups")
    """Of `ConnectionStats`."""

    def __init__(self) -> None:
        self._before: dict[MoqtSession, ConnectionStats] | None = None

    def start(self, sessions: Iterable[MoqtSession]) -> None:
        """Begin, once."""
        if self._before is None:
            self._before = {session: session.connection_stats for session in sessions}

    def stop(self, sessions: Iterable[MoqtSession]) -> dict[str, int]:
        """Return the sums over the connections of the beginning and of the end."""
        before = self._before or {}
        after = [session.connection_stats for session in {*before, *sessions}]
        return {
            name: sum(getattr(one, name) for one in after)
            - sum(getattr(one, name) for one in before.values())
            for name in self.COUNTERS
        }


async def produce(given: dict[str, Any]) -> None:
    """Serve; publish, put and report as the parent says."""
    cache, gauge, connections = Cache(given), Gauge(given, "producer"), ConnectionMeter()
    cache.fill()
    put_at: list[float] = []
    async with kvcs.Producer.serve(
        given.get("host", LOOPBACK),
        0,
        scope=Scope(bytes.fromhex(given["scope_key"])),
        certificate=given["certificate"].encode(),
        private_key=given["private_key"].encode(),
        config=ProducerConfig(max_publications=given["max_publications"]),
        transport_config=transport_config(given),
    ) as producer:
        say("serving", port=producer.port)
        publication: Publication | None = None
        while (order := await heard())["do"] != "end":
            if order["do"] == "status":
                say_status()
                continue
            is_warm_up = order["number"] < 0
            if not is_warm_up:
                connections.start(producer.sessions)
                gauge.start()
            if order["do"] == "publish":
                publication = await producer.publish(
                    cache.descriptor(is_warm_up=is_warm_up), cache.prompt(order["number"])
                )
                say("published")
            else:
                assert publication is not None
                put_at = await _put(publication, cache, given["pace_s"], is_warm_up=is_warm_up)
                say("put", put_at=put_at)
        figures = gauge.stop()
        say(
            "figures",
            **figures,
            connections=connections.stop(producer.sessions),
            datagram_octets=[one.connection_info.datagram_octets for one in producer.sessions],
            skipped_octets=without_digest.skipped_octets,
        )
        await heard()


async def _put(
    publication: Publication, cache: Cache, pace_s: float, *, is_warm_up: bool
) -> list[float]:
    """Put all layers, one each `pace_s`, and return when each was."""
    segment = publication.segment()
    put_at: list[float] = []
    begun_at = time.monotonic()
    for layer, (k, v) in enumerate(cache.pairs(is_warm_up=is_warm_up)):
        if pace_s:
            await asyncio.sleep(begun_at + layer * pace_s - time.monotonic())
        put_at.append(time.monotonic())
        await segment.put_layer(layer, k, v, borrow=True)
    await segment.complete()
    await publication.complete()
    return put_at


async def consume(given: dict[str, Any]) -> None:
    """Connect; retrieve into tensors of our own and report, as the parent says."""
    cache, gauge = Cache(given), Gauge(given, "consumer")
    async with kvcs.Consumer.connect(
        f"moqt://{given.get('host', 'localhost')}:{given['port']}/",
        scope=Scope(bytes.fromhex(given["scope_key"])),
        ca=given["certificate"].encode(),
        transport_config=transport_config(given),
    ) as consumer:
        say("connected")
        while (order := await heard())["do"] != "end":
            if order["do"] == "status":
                say_status()
                continue
            is_warm_up = order["number"] < 0
            if not is_warm_up:
                gauge.start()
            retrieval = await consumer.retrieve(
                cache.descriptor(is_warm_up=is_warm_up),
                cache.prompt(order["number"]),
                into=cache.pairs(is_warm_up=is_warm_up),
            )
            say("open")
            usable_at = [time.monotonic() async for _layer in retrieval]
            say("done", usable_at=usable_at)
        retries = consumer.stats.retries
        say(
            "figures",
            **gauge.stop(),
            retries=retries,
            skipped_octets=without_digest.skipped_octets,
        )
        if not holds_pattern(cache.flat.data, pattern()):
            raise RuntimeError("the tensors received are not those that were put")
        say("right")
