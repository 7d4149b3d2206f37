"""One retrieval by several worker processes: into shared memory, with workers that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvcs import blocking
from kvcs.errors import PublicationNotFound, WorkerLost
from kvcs.keys import ProducerKey, TrustedKeys
from kvcs.striping import StripedConsumer, shared_arrays
from kvcs.striping import retrieval as retrieval_module
from moqt.tls import generate_certificate
from tests.kvcs.stage import CONSUMING, QUICK, staged, take, take_incomplete, until
from tests.kvcs.support import SCOPE, describe, octets_of, prompt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from moqt.tls import CertificatePair
    from tests.kvcs.stage import Stage

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(scope="module")
def pair() -> CertificatePair:
    """Not `certificate`, by which tests run on both packet paths: a process costs a second."""
    return generate_certificate(["localhost", "127.0.0.1"])


@asynccontextmanager
async def striped(
    stage: Stage, processes: int = 2, **others: Any
) -> AsyncIterator[StripedConsumer]:
    async with (
        asyncio.timeout(60),
        StripedConsumer.connect(
            stage.url,
            scope=SCOPE,
            processes=processes,
            ca=stage.certificate.certificate,
            config=CONSUMING,
            transport_config=QUICK,
            **others,
        ) as consumer,
    ):
        yield consumer


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False


def shown_of(pids: tuple[int, ...], *kinds: str) -> list[bytes]:
    """Return what everybody on the machine, or of the user, can see of processes."""
    return [Path(f"/proc/{pid}/{kind}").read_bytes() for pid in pids for kind in kinds]


@pytest.mark.parametrize("processes", [1, 3, 8])
async def test_the_cache_is_the_same_with_any_number_of_processes(
    pair: CertificatePair, processes: int
) -> None:
    descriptor = describe(layers=3)
    async with (
        staged(pair, descriptor) as stage,
        striped(stage, processes=processes) as consumer,
    ):
        assert len(consumer.worker_pids) == processes
        publication = await stage.publish(5)  # fewer blocks than eight processes have
        segment = publication.segment()
        for layer in range(3):
            await segment.put_layer(layer, *stage.layer(layer, 5))
        await segment.complete()
        retrieval = await consumer.retrieve(descriptor, prompt(descriptor, 5))
        assert await take(retrieval, descriptor) == [0, 1, 2]


async def test_layers_come_in_order_from_two_processes_live_and_fetched(
    pair: CertificatePair,
) -> None:
    key = ProducerKey.generate()
    descriptor = describe(layers=4)
    tokens = prompt(descriptor, 9)
    keys = TrustedKeys([key.public])
    async with (
        staged(pair, descriptor, signing_key=key) as stage,
        striped(stage, sessions=2, trusted_keys=keys, require_signature=True) as consumer,
    ):
        pids = consumer.worker_pids
        with pytest.raises(PublicationNotFound):
            await consumer.retrieve(descriptor, tokens, discovery_timeout_s=0)
        publication = await stage.publish(9)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 9))
        retrieval = await consumer.retrieve(descriptor, tokens)
        for layer in range(1, 4):
            await segment.put_layer(layer, *stage.layer(layer, 9))
        await segment.complete()
        assert await take(retrieval, descriptor) == [0, 1, 2, 3]
        stats = retrieval.stats
        assert stats.objects == stats.objects_received == 2 * 4 * 9
        assert (stats.layers, stats.open_requests) == (4, 0)
        assert (retrieval.is_signed, retrieval.key_id) == (True, key.key_id)
        assert list(retrieval.arrived_at) == [0, 1, 2, 3]

        own = shared_arrays(descriptor, 9 * 4)
        apart = [np.zeros((40, 2, 8), descriptor.dtype) for _ in "kv"]
        again = await consumer.retrieve(
            descriptor, tokens, layers=(1, 2), blocks=3, into={1: own[1], 2: (apart[0], apart[1])}
        )
        await again.finished()
        assert await take(again, descriptor) == [1, 2]
        assert octets_of(own[1][0][:12]) == octets_of(stage.layer(1, 3)[0])
        assert octets_of(apart[0][:12]) == octets_of(stage.layer(2, 3)[0])
        assert not octets_of(apart[0][12:]).strip(b"\0")

        assert consumer.worker_pids == pids
        del own, again, retrieval
        await until(lambda: not any(b"memfd:kvcs" in text for text in shown_of(pids, "maps")))
        for text in shown_of(pids, "cmdline", "environ"):
            assert SCOPE.key not in text
            assert SCOPE.key.hex().encode() not in text
        assert SCOPE.key.hex() not in repr(consumer._settings)
    assert not any(is_running(pid) for pid in pids)


async def test_a_killed_worker_is_replaced_until_it_is_too_often(
    pair: CertificatePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval_module, "MAX_RESTARTS", 1)
    descriptor = describe(layers=3)
    tokens = prompt(descriptor, 6)
    async with staged(pair, descriptor) as stage, striped(stage) as consumer:
        publication = await stage.publish(6)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 6))
        first = await consumer.retrieve(descriptor, tokens)
        layer = await anext(first)
        os.kill(consumer.worker_pids[0], signal.SIGKILL)
        await until(lambda: first.restarts == 1)
        layer.k.view("u2")[...] = 0  # what was handed over is not written again
        for index in (1, 2):
            await segment.put_layer(index, *stage.layer(index, 6))
        assert await take(first, descriptor) == [1, 2]
        assert not octets_of(layer.k).strip(b"\0")

        publication = await publication.restart()
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 6))
        second = await consumer.retrieve(descriptor, tokens)
        assert (await anext(second)).index == 0  # both workers are at it
        for restarts in range(2):
            await until(lambda: second.restarts == restarts)  # noqa: B023
            await until(lambda: len(consumer.worker_pids) == 2)
            os.kill(consumer.worker_pids[1], signal.SIGKILL)
        with pytest.raises(WorkerLost, match=r"worker process 1 ended, and 1 that replaced it"):
            await second.finished()

        third = await consumer.retrieve(descriptor, tokens)
        for index in (1, 2):
            await segment.put_layer(index, *stage.layer(index, 6))
        await segment.complete()
        assert await take(third, descriptor) == [0, 1, 2]


async def test_closing_in_the_middle_and_what_is_missing_at_the_end(
    pair: CertificatePair,
) -> None:
    descriptor = describe(layers=3)
    tokens = prompt(descriptor, 5)
    async with staged(pair, descriptor) as stage, striped(stage) as consumer:
        publication = await stage.publish(5)
        segment = publication.segment()
        await segment.put_layer(0, *stage.layer(0, 5))
        pids = consumer.worker_pids
        async with await consumer.retrieve(descriptor, tokens) as closed:
            assert (await anext(closed)).index == 0
        await until(lambda: stage.producer.stats.open_requests == 0)
        assert closed.is_over
        assert consumer.worker_pids == pids  # they go on

        retrieval = await consumer.retrieve(descriptor, tokens, recovery_deadline_s=0.2)
        assert (await anext(retrieval)).index == 0
        await segment.put_layer(1, *stage.layer(1, 5))
        await publication.abort()
        taken, error = await take_incomplete(retrieval, descriptor)
        assert taken in ([], [1])
        missing = {(one.layer, one.component.text, one.block) for one in error.missing}
        assert {(2, part, block) for part in "kv" for block in range(5)} <= missing
        assert retrieval.missing == error.missing
        assert retrieval.stats.missing == len(error.missing)


async def test_numbers_out_of_range_are_refused(pair: CertificatePair) -> None:
    async with staged(pair, describe()) as stage:
        for numbers in ({"processes": 0}, {"processes": 33}, {"processes": 1, "sessions": 17}):
            with pytest.raises(ValueError, match="expected 1 to"):
                async with striped(stage, **numbers):
                    pass  # pragma: no cover
        with pytest.raises(IsADirectoryError):
            async with StripedConsumer.connect(
                stage.url, scope=SCOPE, processes=1, ca=Path(__file__).parent
            ):
                pass  # pragma: no cover


async def parent(folder: str, port: str) -> None:
    """Be a parent of two workers, and print who they are; run in a process of its own."""
    async with StripedConsumer.connect(
        f"moqt://127.0.0.1:{port}/", scope=SCOPE, processes=2, ca=Path(folder, "tls.pem")
    ) as consumer:
        print(*consumer.worker_pids, flush=True)
        await asyncio.Event().wait()


async def test_workers_end_with_their_parent(pair: CertificatePair, tmp_path: Path) -> None:
    (tmp_path / "tls.pem").write_bytes(pair.certificate)
    async with asyncio.timeout(60), staged(pair, describe()) as stage:
        code = (
            f"import asyncio; from {__name__} import parent; "
            f"asyncio.run(parent({str(tmp_path)!r}, '{stage.producer.port}'))"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        pids = [int(word) for word in (await process.stdout.readline()).split()]
        assert len(pids) == 2
        assert all(is_running(pid) for pid in pids)
        process.kill()
        await process.wait()
        await until(lambda: not any(is_running(pid) for pid in pids))


def forgetful(folder: str, port: str) -> None:
    """Connect, and end without closing; run in a process of its own."""
    consumer = blocking.StripedConsumer.connect(
        f"moqt://127.0.0.1:{port}/", scope=SCOPE, processes=1, ca=Path(folder, "tls.pem")
    )
    print(*consumer.worker_pids)


async def test_workers_end_at_the_exit_of_a_program_that_forgot_them(
    pair: CertificatePair, tmp_path: Path
) -> None:
    (tmp_path / "tls.pem").write_bytes(pair.certificate)
    async with asyncio.timeout(60), staged(pair, describe()) as stage:
        arguments = f"{str(tmp_path)!r}, '{stage.producer.port}'"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", f"from {__name__} import forgetful; forgetful({arguments})"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, complained = await process.communicate()
        assert (process.returncode, complained) == (0, b"")
        assert not any(is_running(int(pid)) for pid in said.split())


def test_striping_for_threads(pair: CertificatePair) -> None:
    descriptor = describe(layers=2)
    with (
        blocking.Producer.serve(
            "127.0.0.1",
            0,
            scope=SCOPE,
            certificate=pair.certificate,
            private_key=pair.private_key,
            transport_config=QUICK,
        ) as producer,
        blocking.StripedConsumer.connect(
            f"moqt://127.0.0.1:{producer.port}/",
            scope=SCOPE,
            processes=1,
            sessions=2,
            ca=pair.certificate,
            config=CONSUMING,
            transport_config=QUICK,
        ) as consumer,
    ):
        assert len(consumer.worker_pids) == 1
        assert consumer.scope_id == SCOPE.scope_id
        with producer.publish(descriptor, prompt(descriptor, 4)) as publication:
            segment = publication.segment()
            retrieval = consumer.retrieve(descriptor, prompt(descriptor, 4), timeout_s=30)
            cache = [np.zeros((16, 2, 8), descriptor.dtype) for _ in "kv"]
            for layer in range(2):
                segment.put_layer(layer, cache[0], cache[1])
                taken = retrieval.next_layer(timeout_s=30)
                assert taken is not None
                assert (taken.index, octets_of(taken.k)) == (layer, octets_of(cache[0]))
            segment.complete()
        retrieval.finished(timeout_s=30)
        assert (retrieval.missing, retrieval.tokens, retrieval.is_over) == ((), 16, True)
        retrieval.close()
