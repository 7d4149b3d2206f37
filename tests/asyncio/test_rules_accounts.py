"""The receive account of a stream that is given up while more of it waits in the same batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from tests.asyncio.endpoints import (
    NAME,
    connected,
    directory_with,
    poll,
    read_objects,
    serving,
    track_with,
)
from tests.asyncio.quic_pair import dialing, listening

if TYPE_CHECKING:
    from moqt.tls import CertificatePair


async def test_nothing_is_kept_of_streams_that_were_stopped(certificate: CertificatePair) -> None:
    """An Object above our limit stops its stream, whose end may have been received already."""
    track = track_with(groups=1, objects=1, octets=20_000)
    strict = moqt.SessionConfig(max_object_octets=1000)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate, config=strict) as session,
    ):
        connection = session._driver.connection
        for _ in range(20):
            async with session.fetch(NAME) as fetch:
                with pytest.raises(errors.RequestEnded):
                    await read_objects(fetch)
        await poll(lambda: connection.credited_octets == connection.received_octets)
        await poll(lambda: session.stats.open_requests == 0)
        await poll(lambda: len(connection._streams) <= 2)
        assert len(connection._accounts) <= 2
        assert not connection._settling


async def test_fin_that_comes_behind_all_octets_in_one_batch(certificate: CertificatePair) -> None:
    """All is credited before FIN is handed over: its offset is known nevertheless."""
    async with listening(certificate) as (listener, accepted), dialing(listener.address[1]) as near:
        await near.until(lambda: near.started)
        far = accepted.sessions[0]
        await far.until(lambda: far.started)
        stream_id = far.transport.open(bidirectional=False)
        assert stream_id is not None
        far.transport.write(stream_id, [b"octets"], False)
        far.driver.pump_now()
        far.transport.write(stream_id, [], True)
        far.driver.pump_now()
        await near.until(lambda: stream_id in near.finished)
        assert near.received[stream_id] == b"octets"
        assert near.end is None
        near.transport.close(moqt.SessionErrorCode.NO_ERROR, "")
        await near.until(lambda: near.is_finished)
