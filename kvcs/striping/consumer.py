"""One retrieval by several processes: each takes a share by its own sessions, into shared memory.

For machines with more cores than one process can use. This process finds the publication and hands
layers over; workers receive, verify and place. They are plain child processes, in which nothing of
the application is imported.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

from kvcs.config import ConsumerConfig
from kvcs.demand import Demand, require_room
from kvcs.endpoints import Endpoints
from kvcs.finder import Finder
from kvcs.striping.found import Found
from kvcs.striping.messages import Job, Settings
from kvcs.striping.placing import Placing
from kvcs.striping.process import WorkerProcess
from kvcs.striping.retrieval import StripedRetrieval
from kvcs.striping.shares import Striping
from kvcs.trust import Trust
from moqt.tls import load_trust

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from kvcs.destinations import Into
    from kvcs.feeds import Feed
    from kvcs.keys import TrustedKeys
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.identity import Scope, Tokens
    from kvcs.recovery import Source
    from moqt.asyncio.config import TransportConfig
    from moqt.session.access.authorization import AuthToken
    from moqt.session.config import SessionConfig
    from moqt.tls import Pem
    from moqt.types import TrackNamespace

__all__ = ["MAX_PROCESSES", "StripedConsumer"]

_log = logging.getLogger(__name__)

MAX_PROCESSES = 32
"""Worker processes of one consumer."""


class StripedConsumer:
    """As `kvcs.Consumer`, with worker processes that do the work. Made by `connect`.

    A worker that is killed is replaced: what it lacked is retrieved again, at most `MAX_RESTARTS`
    times a share.
    """

    def __init__(
        self, endpoints: Endpoints, settings: Settings, *, processes: int, sessions: int
    ) -> None:
        self.config = settings.config
        self._endpoints = endpoints
        self._settings = settings
        self._processes = processes
        self._sessions = sessions
        self._workers: dict[int, WorkerProcess] = {}
        self._starting = [asyncio.Lock() for _ in range(processes)]
        self._retrievals: set[StripedRetrieval] = set()
        self._numbers = count(1)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        scope: Scope,
        processes: int,
        sessions: int = 1,
        ca: Pem | None = None,
        insecure: bool = False,
        trusted_keys: TrustedKeys | None = None,
        require_signature: bool = False,
        config: ConsumerConfig | None = None,
        session_config: SessionConfig | None = None,
        transport_config: TransportConfig | None = None,
        auth_tokens: Sequence[AuthToken] = (),
        trusted_authorities: Collection[str] = (),
    ) -> AsyncIterator[StripedConsumer]:
        """Connect, and start `processes` workers that connect too, each with `sessions` sessions.

        Leaving it closes all retrievals, sessions and workers. Workers get keys and tokens by a
        socket that has no name. The other arguments are those of `kvcs.Consumer.connect`.
        Raises: ValueError for numbers out of range, WorkerLost when one does not start,
        NotSupported where there is no POSIX, and as `kvcs.Consumer.connect`.
        """
        config = config or ConsumerConfig()
        if not 1 <= processes <= MAX_PROCESSES:
            raise ValueError(f"processes is {processes}, expected 1 to {MAX_PROCESSES}")
        if not 1 <= sessions <= config.max_sessions:
            raise ValueError(
                f"sessions is {sessions}, expected 1 to {config.max_sessions} (max_sessions)"
            )
        settings = Settings(
            url=url,
            scope=scope,
            ca=None if ca is None else load_trust(ca),
            insecure=insecure,
            trusted_keys=None if trusted_keys is None else trusted_keys.to_pems(),
            require_signature=require_signature,
            config=config,
            session_config=session_config,
            transport_config=transport_config,
            auth_tokens=tuple(auth_tokens),
            trusted_authorities=tuple(trusted_authorities),
        )
        endpoints = Endpoints(
            url,
            config=config,
            trust=Trust(trusted_keys, require_signature),
            ca=settings.ca,
            insecure=insecure,
            session_config=session_config,
            transport_config=transport_config,
            auth_tokens=auth_tokens,
            trusted_authorities=trusted_authorities,
        )
        consumer = cls(endpoints, settings, processes=processes, sessions=sessions)
        try:
            await endpoints.place()
            started = await asyncio.gather(
                *(consumer.worker(index) for index in range(processes)), return_exceptions=True
            )
            for problem in started:
                if isinstance(problem, BaseException):
                    raise problem
            yield consumer
        finally:
            await consumer._close()

    # Queries

    @property
    def scope_id(self) -> bytes:
        """The Scope ID that publications are looked for under."""
        return self._settings.scope.scope_id

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The process IDs of the workers that run now, by share."""
        running = (worker for _, worker in sorted(self._workers.items()) if not worker.is_over)
        return tuple(worker.pid for worker in running)

    # Commands

    async def retrieve(
        self,
        descriptor: Descriptor,
        tokens: Tokens,
        *,
        layers: range | tuple[int, int] | None = None,
        blocks: int | None = None,
        into: Into | None = None,
        sources: Sequence[Source | str] = (),
        recovery_deadline_s: float | None = None,
        publication: TrackNamespace | None = None,
        discovery_timeout_s: float | None = None,
        extras: Mapping[int, bytes] | None = None,
    ) -> StripedRetrieval:
        """Find a publication as `Consumer.retrieve` does, and have the workers take it.

        Arrays of `into` that lie in shared memory (`shared_arrays`, `shared_empty`, and views of
        theirs) are written by the workers; other ones are copied to, once, when a layer is handed
        over. Without `into` arrays are allocated in shared memory.
        Raises: as `Consumer.retrieve`, OSError when there is not enough memory, WorkerLost.
        """
        require_room(len(self._retrievals), self.config)
        demand = Demand.checked(
            self._settings.scope, descriptor, tokens, layers=layers, blocks=blocks, extras=extras
        )
        if recovery_deadline_s is not None and recovery_deadline_s < 0:
            raise ValueError(f"recovery_deadline_s is {recovery_deadline_s}, expected >= 0")
        parts = self._processes * self._sessions
        striping = Striping(parts=parts, lanes=self._sessions)

        def begin(feed: Feed, covered: int) -> Found:
            taken = demand.taken(covered)
            return Found(
                namespace=feed.namespace,
                blocks=taken,
                manifest=feed.manifest,
                key_id=feed.manifests.key_id,
                is_signed=feed.manifests.is_signed,
                striping=striping.settled(
                    feed.manifest, blocks=taken, max_filter_ranges=feed.max_filter_ranges
                ),
                feed=feed,
            )

        finder = Finder(self._endpoints, demand.prefix, begin, self.config)
        try:
            if publication is not None:
                found = await finder.take(publication)
            else:
                found = await finder.find(discovery_timeout_s)
            others = finder.others()
            await found.feed.close()  # workers follow the manifest themselves
        finally:
            await finder.close()
        place = functools.partial(
            Placing,
            descriptor,
            demand.layers,
            tokens=found.blocks * descriptor.block_tokens,
            into=into,
        )
        placing = await asyncio.to_thread(place)  # pages are made there
        job = Job(
            number=0,
            descriptor=descriptor,
            tokens=tokens,
            extras=extras,
            layers=demand.layers,
            blocks=found.blocks,
            striping=found.striping,
            publication=found.namespace,
            sources=(*sources, *others),
            recovery_deadline_s=recovery_deadline_s,
            places=placing.places,
            map_octets=tuple(map(len, placing.maps)),
        )
        retrieval = StripedRetrieval(
            found,
            job,
            placing,
            worker=self.worker,
            next_number=self._numbers.__next__,
            workers=self._processes,
        )
        self._retrievals.add(retrieval)
        retrieval.task.add_done_callback(lambda _: self._retrievals.discard(retrieval))
        return retrieval

    async def worker(self, index: int) -> WorkerProcess:
        """Return a worker that runs; it is started if there is none. Raises: as `connect`."""
        async with self._starting[index]:
            worker = self._workers.get(index)
            if worker is None or worker.is_over:
                if worker is not None:
                    worker.kill()
                    _log.info("worker process %d of a striped consumer ended", worker.pid)
                worker = self._workers[index] = await WorkerProcess.start(self._settings)
            return worker

    async def _close(self) -> None:
        for retrieval in tuple(self._retrievals):
            await retrieval.close()
        await asyncio.gather(
            self._endpoints.close(),
            *(worker.close(self.config.close_timeout_s) for worker in self._workers.values()),
        )

    def __repr__(self) -> str:
        return (
            f"<StripedConsumer scope_id={self.scope_id.hex()} processes={self._processes} "
            f"retrievals={len(self._retrievals)}>"
        )
