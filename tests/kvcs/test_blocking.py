"""The blocking verbs: from any thread, at exit, after fork, in spawned processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvcs.blocking import BlockingError, Consumer, Loan, Producer
from kvcs.errors import IncompleteRetrieval, ProductionError, PublicationNotFound
from kvcs.loop_thread import LoopThread
from kvcs.publication import PublicationState
from tests.kvcs.stage import CONSUMING, QUICK, whole
from tests.kvcs.support import SCOPE, describe, octets_of, prompt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvcs.config import ConsumerConfig
    from moqt.tls import CertificatePair

DESCRIPTOR = describe()
TOKENS = prompt(DESCRIPTOR, 2)


@pytest.fixture
def producer(certificate: CertificatePair) -> Iterator[Producer]:
    with Producer.serve(
        "127.0.0.1",
        0,
        scope=SCOPE,
        certificate=certificate.certificate,
        private_key=certificate.private_key,
        transport_config=QUICK,
    ) as serving:
        yield serving


def connect(
    producer: Producer, certificate: CertificatePair, config: ConsumerConfig = CONSUMING
) -> Consumer:
    return Consumer.connect(
        f"moqt://127.0.0.1:{producer.port}/",
        scope=SCOPE,
        ca=certificate.certificate,
        config=config,
        transport_config=QUICK,
    )


def test_an_engine_thread_puts_layers_and_another_takes_them(
    producer: Producer, certificate: CertificatePair
) -> None:
    publication = producer.publish(DESCRIPTOR, TOKENS)
    segment = publication.segment(0, 2)
    assert (segment.first_block, segment.blocks, segment.tokens) == (0, 2, slice(0, 8))
    assert segment.track_names == ("k.raw.s0", "v.raw.s0")
    loans: list[Loan | None] = []

    def engine() -> None:
        loans.extend(
            segment.put_layer(layer, *whole(DESCRIPTOR, layer, 0, 2), borrow=True)
            for layer in range(3)
        )
        segment.complete()

    with connect(producer, certificate) as consumer:
        retrieval = consumer.retrieve(DESCRIPTOR, TOKENS)
        thread = threading.Thread(target=engine)
        thread.start()
        taken = []
        for layer in retrieval:
            assert octets_of(layer.k) == octets_of(whole(DESCRIPTOR, layer.index, 0, 2)[0])
            taken.append(layer.index)
        thread.join()
        assert taken == list(retrieval.layers)
        assert retrieval.next_layer() is None
        assert (retrieval.is_over, retrieval.missing, retrieval.is_signed) == (True, (), False)
        assert (retrieval.blocks, retrieval.tokens, retrieval.stats.objects) == (2, 8, 12)
        assert retrieval.publication == publication.namespace
        assert retrieval.manifest.descriptor == DESCRIPTOR
        retrieval.finished()
        assert consumer.scope_id == producer.scope_id
        assert consumer.stats.objects == 12
        publication.complete()
        assert publication.state is PublicationState.COMPLETE
        assert (segment.is_complete, segment.next_layer) == (True, 3)
        assert (publication.stats.layers, producer.stats.layers, publication.blocks) == (3, 3, 2)
        publication.abort("enough")
    for loan in loans:
        assert loan is not None
        assert loan.wait(10)
    retrieval.close()


def test_errors_come_as_they_are_and_waits_may_be_bounded(
    producer: Producer, certificate: CertificatePair
) -> None:
    with connect(producer, certificate) as consumer:
        with pytest.raises(PublicationNotFound):
            consumer.retrieve(DESCRIPTOR, TOKENS, discovery_timeout_s=0)
        with pytest.raises(TimeoutError):
            consumer.retrieve(DESCRIPTOR, TOKENS, timeout_s=0.05)
        publication = producer.publish(DESCRIPTOR, TOKENS, timeout_s=10)
        segment = publication.segment()
        with pytest.raises(ProductionError, match="out of turn"):
            segment.put_layer(1, *whole(DESCRIPTOR, 1, 0, 2))
        with consumer.retrieve(DESCRIPTOR, TOKENS) as retrieval:
            with pytest.raises(TimeoutError):
                retrieval.next_layer(timeout_s=0.05)
            segment.put_layer(0, *whole(DESCRIPTOR, 0, 0, 2))
            layer = retrieval.next_layer(timeout_s=10)
            assert layer is not None
            assert layer.index == 0
            with pytest.raises(TimeoutError):
                retrieval.finished(timeout_s=0.05)
        assert retrieval.is_over
        again = publication.restart("wrong")
        assert again.publication_id != publication.publication_id
        with pytest.raises(RuntimeError, match="broke"), again:
            raise RuntimeError("broke")
        assert again.state is PublicationState.WITHDRAWN


def test_what_is_missing_is_said_and_recomputed_in_a_worker_thread(
    producer: Producer, certificate: CertificatePair
) -> None:
    config = replace(CONSUMING, stall_timeout_s=0.1, recovery_deadline_s=2.0)
    publication = producer.publish(DESCRIPTOR, TOKENS)
    publication.segment().put_layer(0, *whole(DESCRIPTOR, 0, 0, 2))
    threads = []

    def recompute(missing):  # type: ignore[no-untyped-def]
        threads.append(threading.current_thread().name)
        return {}

    with connect(producer, certificate, config) as consumer:
        retrieval = consumer.retrieve(DESCRIPTOR, TOKENS, recompute=recompute)
        assert next(retrieval).index == 0
        with pytest.raises(IncompleteRetrieval) as caught:
            next(retrieval)
        assert caught.value.missing == retrieval.missing
        assert len(retrieval.missing) == 8
    assert threads
    assert not {"MainThread", "kvcs-loop"}.intersection(threads)
    assert not any(name.startswith("kvcs-consumer") for name in threads)  # those verify


def test_closed_ones_and_the_loops_own_thread_are_told_so(
    producer: Producer, certificate: CertificatePair
) -> None:
    consumer = connect(producer, certificate)
    consumer.close()
    consumer.close()
    with pytest.raises(BlockingError, match="this Consumer is closed"):
        consumer.retrieve(DESCRIPTOR, TOKENS)
    caught: list[str] = []

    async def inside() -> None:
        try:
            producer.publish(DESCRIPTOR, TOKENS)
        except BlockingError as error:
            caught.append(str(error))

    LoopThread.shared().call(inside)
    assert caught == ["a blocking call on the event loop's own thread would never return"]


def test_a_forked_child_is_told_to_make_its_own(producer: Producer) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            try:
                producer.publish(DESCRIPTOR, TOKENS)
                said = "no error"
            except BlockingError as error:
                said = str(error)

            async def work() -> str:
                return "own loop"

            said += "; " + LoopThread.shared().call(work)
            os.write(write, said.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == (
            "made before this process was forked: make a new one in the child process; own loop"
        )
    os.waitpid(pid, 0)
    assert producer.publish(DESCRIPTOR, TOKENS).blocks == 2  # the parent goes on


def take_in_child(port: int, ca: bytes) -> None:
    with Consumer.connect(f"moqt://127.0.0.1:{port}/", scope=SCOPE, ca=ca) as consumer:
        assert [layer.index for layer in consumer.retrieve(DESCRIPTOR, TOKENS)] == [0, 1, 2]


def test_a_spawned_process_has_a_loop_of_its_own(
    producer: Producer, certificate: CertificatePair
) -> None:
    with producer.publish(DESCRIPTOR, TOKENS) as publication:
        segment = publication.segment()
        for layer in range(3):
            segment.put_layer(layer, *whole(DESCRIPTOR, layer, 0, 2))
        segment.complete()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=take_in_child, args=(producer.port, certificate.certificate))
    process.start()
    process.join(60)
    assert process.exitcode == 0


EXIT = """
import sys, threading
from pathlib import Path
from kvcs.blocking import Consumer, Producer
from tests.kvcs.stage import whole
from tests.kvcs.support import SCOPE, describe, prompt

descriptor = describe()
certificate, key = map(Path, sys.argv[1:])
producer = Producer.serve("127.0.0.1", 0, scope=SCOPE, certificate=certificate, private_key=key)
publication = producer.publish(descriptor, prompt(descriptor, 2))
segment = publication.segment()
segment.put_layer(0, *whole(descriptor, 0, 0, 2))
consumer = Consumer.connect(f"moqt://127.0.0.1:{producer.port}/", scope=SCOPE, ca=certificate)
retrieval = consumer.retrieve(descriptor, prompt(descriptor, 2))
assert next(retrieval).index == 0
threading.Thread(target=lambda: next(retrieval), daemon=True).start()
print("leaving")
"""


def test_a_process_that_closes_nothing_exits_cleanly(
    certificate: CertificatePair, tmp_path: Path
) -> None:
    (tmp_path / "tls.pem").write_bytes(certificate.certificate)
    (tmp_path / "key.pem").write_bytes(certificate.private_key)
    result = subprocess.run(
        [sys.executable, "-c", EXIT, str(tmp_path / "tls.pem"), str(tmp_path / "key.pem")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "leaving\n")
    assert "Fatal" not in result.stderr
