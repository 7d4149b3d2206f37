"""When a data track is over for a consumer, and what lacks then (KVCS 3.3, 5.2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import moqt
from tests.kvcs.loopback.handmade import Handmade
from tests.kvcs.stage import take, take_incomplete, texts, until
from tests.kvcs.support import describe, prompt

if TYPE_CHECKING:
    from kvcs.consumer import Retrieval
    from moqt.tls import CertificatePair

pytestmark = pytest.mark.usefixtures("no_leaks")

DESCRIPTOR = describe()
TOKENS = prompt(DESCRIPTOR, 3)


async def all_of(retrieval: Retrieval) -> list[int]:
    async with asyncio.timeout(20):
        return await take(retrieval, DESCRIPTOR)


async def lacking(retrieval: Retrieval) -> tuple[list[int], list[str]]:
    async with asyncio.timeout(10):  # well within the stall timeout: it is known, not waited for
        taken, error = await take_incomplete(retrieval, DESCRIPTOR)
    assert error.missing == retrieval.missing
    assert retrieval.stats.missing == len(error.missing)
    assert retrieval.stats.open_requests == 0
    return taken, texts(error.missing)


def names(layer: int, *blocks: int) -> list[str]:
    return [f"segment 0 layer {layer} {c} block {b}" for c in "kv" for b in blocks]


@pytest.mark.parametrize("end", [moqt.Location(3, 0), moqt.Location(2, 3)], ids=str)
@pytest.mark.parametrize("joins_after", [0, 2, 3])
async def test_end_of_track_may_stand_in_a_group_of_its_own_or_behind_the_last_object(
    certificate: CertificatePair, end: moqt.Location, joins_after: int
) -> None:
    """K5.2#6."""
    made = Handmade(DESCRIPTOR, 3)
    for layer in range(joins_after):
        made.put(layer, ends_group=layer != 2)
    made.put_manifest()
    async with made.served(certificate) as consumer:
        retrieval = await consumer.retrieve(DESCRIPTOR, TOKENS)
        await until(lambda: retrieval.stats.objects == joins_after * 6)
        for layer in range(joins_after, 3):
            made.put(layer, ends_group=layer != 2)
        made.end(end)
        assert await all_of(retrieval) == [0, 1, 2]
        assert retrieval.stats.objects == retrieval.stats.objects_received == 18
        assert not retrieval.stats.rejected


async def test_all_objects_suffice_when_the_track_never_says_that_it_ended(
    certificate: CertificatePair,
) -> None:
    """K5.2#6."""
    made = Handmade(DESCRIPTOR, 3)
    made.put_manifest()
    async with made.served(certificate) as consumer:
        retrieval = await consumer.retrieve(DESCRIPTOR, TOKENS)
        for layer in range(3):
            made.put(layer)
        assert await all_of(retrieval) == [0, 1, 2]
        await until(lambda: consumer.session.stats.open_requests == 0)


async def test_a_track_that_ends_before_its_last_layer_lacks_it_at_once(
    certificate: CertificatePair,
) -> None:
    made = Handmade(DESCRIPTOR, 3)
    made.put(0)
    made.put_manifest()
    async with made.served(certificate) as consumer:
        retrieval = await consumer.retrieve(DESCRIPTOR, TOKENS)
        made.put(1)
        await until(lambda: retrieval.stats.objects == 12)
        made.end(moqt.Location(2, 0))
        assert await lacking(retrieval) == ([0, 1], names(2, 0, 1, 2))


@pytest.mark.parametrize("is_complete", [False, True], ids=["fill", "fetch"])
async def test_a_group_that_was_skipped_is_missing_as_soon_as_that_shows(
    certificate: CertificatePair, is_complete: bool
) -> None:
    made = Handmade(DESCRIPTOR, 3)
    for layer in range(3):
        made.put(layer, left_out=range(3) if layer == 1 else ())
    made.put_manifest(complete=is_complete)
    if is_complete:
        made.end()
    async with made.served(certificate) as consumer:
        retrieval = await consumer.retrieve(DESCRIPTOR, TOKENS)
        assert await lacking(retrieval) == ([0, 2], names(1, 0, 1, 2))


@pytest.mark.parametrize("is_live", [False, True])
async def test_one_block_left_out_is_the_only_one_missing(
    certificate: CertificatePair, is_live: bool
) -> None:
    made = Handmade(DESCRIPTOR, 3)
    if is_live:
        made.put_manifest()
    async with made.served(certificate) as consumer:
        if is_live:
            retrieval = await consumer.retrieve(DESCRIPTOR, TOKENS)
        for layer in range(3):
            made.put(layer, left_out=[1] if layer == 1 else ())
        made.end()
        made.put_manifest(complete=True)
        if not is_live:
            retrieval = await consumer.retrieve(DESCRIPTOR, TOKENS)
        assert await lacking(retrieval) == ([0, 2], names(1, 1))
