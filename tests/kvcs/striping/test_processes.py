"""One retrieval by several worker processes: into shared memory, with workers that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvcs.errors import IncompleteRetrieval, PublicationNotFound, WorkerLost
from kvcs.keys import ProducerKey, TrustedKeys
from kvcs.striping import StripedConsumer, shared_arrays, shared_empty
from tests.kvcs.stage import CONSUMING, QUICK, produce, staged, take, until
from tests.kvcs.support import SCOPE, describe, octets_of, prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from moqt.tls import CertificatePair
    from tests.kvcs.stage import Stage

pytestmark = pytest.mark.usefixtures("no_leaks")


@asynccontextmanager
async def striped(stage: Stage, processes: int, **how: object) -> AsyncIterator[StripedConsumer]:
    async with (
        asyncio.timeout(60),
        StripedConsumer.connect(
            stage.url,
            scope=SCOPE,
            processes=processes,
            ca=stage.certificate.certificate,
            config=CONSUMING,
            transport_config=QUICK,
            **how,  # type: ignore[arg-type]
        ) as consumer,
    ):
        yield consumer


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_layers_come_in_order_from_two_processes_live_and_fetched(
    certificate: CertificatePair,
) -> None:
    key = ProducerKey.generate()
    descriptor = describe(layers=4)
    tokens = prompt(descriptor, 9)
    async with (
        staged(certificate, descriptor, signing_key=key) as stage,
        striped(
            stage, 2, sessions=2, trusted_keys=TrustedKeys([key.public]), require_signature=True
        ) as consumer,
    ):
        pids = consumer.worker_pids
        publication = await stage.publish(9)
        retrieval = await consumer.retrieve(descriptor, tokens)
        await produce(publication)
        assert await take(retrieval, descriptor) == [0, 1, 2, 3]
        assert retrieval.stats.objects == retrieval.stats.objects_received == 2 * 4 * 9
        assert (retrieval.stats.layers, retrieval.is_signed, retrieval.key_id) == (
            4,
            True,
            key.key_id,
        )
        assert list(retrieval.arrived_at) == [0, 1, 2, 3]
        again = await consumer.retrieve(descriptor, tokens, layers=(1, 2), blocks=3)
        assert await take(again, descriptor) == [1, 2]
        assert consumer.worker_pids == pids
    assert not any(is_running(pid) for pid in pids)
