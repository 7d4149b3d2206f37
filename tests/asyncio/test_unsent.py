"""A request that was made and not entered: every wait says so, rather than lasting for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import moqt
from moqt import errors
from tests.asyncio.endpoints import NAME, NAMESPACE, connected, directory_with, serving, track_with
from tests.asyncio.roaming import client_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from moqt.tls import CertificatePair

NOT_SENT = r"not sent yet; use `async with`"


async def refused(waiting: Awaitable[object]) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(errors.LocalProtocolError, match=NOT_SENT):
            await waiting


async def test_waiting_for_what_was_not_sent_is_an_error(certificate: CertificatePair) -> None:
    track = track_with(groups=1, objects=1)
    async with (
        serving(certificate, directory_with(track)) as server,
        connected(server, certificate) as session,
    ):
        subscription = session.subscribe(NAME)
        fetch = session.fetch(NAME)
        namespaces = session.subscribe_namespace(NAMESPACE)
        await refused(anext(subscription))
        await refused(anext(fetch))
        await refused(anext(namespaces))
        await refused(anext(session.subscribe_tracks(NAMESPACE)))
        await refused(namespaces.listing(listen_s=60, limit=1))
        await refused(fetch.established())
        await refused(subscription.wait_over())
        await refused(subscription.wait_goaway())
        await refused(session.publish(track).wait_ended())
        await refused(session.publish_namespace(NAMESPACE).wait_ended())
        assert session.stats.requests_sent == 0


async def test_so_does_a_client_that_follows(certificate: CertificatePair) -> None:
    track = track_with(groups=1, objects=1)
    async with (
        serving(certificate, directory_with(track)) as server,
        client_of(server, certificate) as client,
    ):
        for request in (
            client.subscribe(NAME),
            client.fetch(NAME),
            client.subscribe_namespace(NAMESPACE),
        ):
            await refused(anext(request))


async def test_a_loop_names_the_request_and_the_remedy(certificate: CertificatePair) -> None:
    async with (
        serving(certificate, directory_with(track_with(groups=1, objects=1))) as server,
        connected(server, certificate) as session,
    ):
        with pytest.raises(errors.LocalProtocolError, match=f"SUBSCRIBE {NAME}: {NOT_SENT}"):
            _ = [item async for item in session.subscribe(NAME)]
        async with session.subscribe(NAME) as subscription:
            assert subscription.largest == moqt.Location(0, 0)
