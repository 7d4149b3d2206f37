"""Slow and killed peers: what the other end reports, and whom it leaves alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvcs.config import ConsumerConfig
from kvcs.errors import (
    IncompleteRetrieval,
)
from moqt.asyncio.config import TransportConfig
from moqt.session.config import SessionConfig
from tests.kvcs.stage import (
    CONSUMING,
    staged,
    take,
    take_incomplete,
    texts,
    until,
)
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from moqt.tls import CertificatePair

pytestmark = [pytest.mark.usefixtures("no_leaks")]


async def test_a_subscriber_that_does_not_read_is_cut_off_and_slows_nobody(
    certificate: CertificatePair,
) -> None:
    import moqt
    from moqt.codes import PublishDoneCode
    from moqt.errors import RequestEnded

    descriptor = describe(layers=8, head_dim=4096)
    session_config = SessionConfig(max_lag_octets=1 << 18)
    async with staged(certificate, descriptor, session_config=session_config) as stage:
        publication = await stage.publish(2)
        segment = publication.segment()
        async with (
            moqt.connect(
                stage.url,
                ca=certificate.certificate,
                config=SessionConfig(max_buffered_octets=1 << 14, done_timeout_s=0.2),
                transport_config=TransportConfig(
                    stream_window_octets=1 << 14, connection_window_octets=1 << 15
                ),
            ) as idle,
            idle.subscribe(publication.name.track(b"k.raw.s0")) as subscription,
            stage.consumer() as consumer,
        ):
            retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 2))
            for layer in range(8):
                await segment.put_layer(layer, *stage.layer(layer, 2))
            await segment.complete()
            assert await take(retrieval, descriptor) == list(range(8))
            assert idle.stats.octets_unread <= 1 << 16
            with pytest.raises(RequestEnded) as caught:
                async for _ in subscription:
                    pass
            assert caught.value.code is PublishDoneCode.TOO_FAR_BEHIND


CHILD = """
import asyncio, sys
from pathlib import Path
from tests.kvcs import child
asyncio.run(child.{role}(*sys.argv[1:]))
"""


@asynccontextmanager
async def child(role: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CHILD.format(role=role),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(30):
        return (await process.stdout.readline()).decode().strip()


async def test_a_producer_killed_in_the_middle_of_a_layer_leaves_the_exact_missing_list(
    certificate: CertificatePair, tmp_path: Path
) -> None:
    from kvcs.consumer import Consumer
    from tests.kvcs.support import SCOPE

    (tmp_path / "tls.pem").write_bytes(certificate.certificate)
    (tmp_path / "key.pem").write_bytes(certificate.private_key)
    descriptor = describe()
    config = replace(CONSUMING, connect_timeout_s=0.3, recovery_deadline_s=2.0)
    async with child("producer", str(tmp_path)) as process:
        port = int(await line(process))
        async with Consumer.connect(
            f"moqt://127.0.0.1:{port}/",
            scope=SCOPE,
            ca=certificate.certificate,
            config=config,
            transport_config=TransportConfig(idle_timeout_s=1.0, close_linger_s=0.01),
        ) as consumer:
            retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 4))
            assert (await anext(retrieval)).index == 0
            # Layer 1 is half there: blocks 0 and 1 of each track.
            await until(lambda: retrieval.stats.objects == 8 + 4)
            process.send_signal(signal.SIGKILL)
            taken, error = await take_incomplete(retrieval, descriptor)
            assert taken == []
            assert texts(error.missing) == [
                *(f"segment 0 layer 1 {c} block {b}" for c in "kv" for b in (2, 3)),
                *(f"segment 0 layer 2 {c} block {b}" for c in "kv" for b in range(4)),
            ]
            assert retrieval.stats.missing == 12
            assert retrieval.stats.open_requests == 0


async def test_a_killed_consumer_leaves_the_producer_and_others_alone(
    certificate: CertificatePair, tmp_path: Path
) -> None:
    (tmp_path / "tls.pem").write_bytes(certificate.certificate)
    async with staged(certificate, describe()) as stage:
        publication = await stage.publish(4)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 4))
        async with (
            child("consumer", str(tmp_path), str(stage.producer.port)) as process,
            stage.consumer() as other,
        ):
            assert await line(process) == "layer 0"
            process.send_signal(signal.SIGKILL)
            await process.wait()
            retrieval = await other.retrieve(stage.descriptor, prompt(stage.descriptor, 4))
            for layer in (1, 2):
                await segment.put_layer(layer, *stage.layer(layer, 4))
            await segment.complete()
            assert await take(retrieval, stage.descriptor) == [0, 1, 2]


async def test_the_error_names_some_and_has_all_that_is_missing(
    certificate: CertificatePair,
) -> None:
    config = ConsumerConfig(discovery_settle_s=0.05, stall_timeout_s=0.1, recovery_deadline_s=0.2)
    async with staged(certificate, describe()) as stage, stage.consumer(config=config) as consumer:
        publication = await stage.publish(4)
        publication.segment()
        retrieval = await consumer.retrieve(stage.descriptor, prompt(stage.descriptor, 4))
        with pytest.raises(IncompleteRetrieval, match=r"24 Objects are missing.* and 16 more"):
            await retrieval.finished()
        assert len(retrieval.missing) == 24
