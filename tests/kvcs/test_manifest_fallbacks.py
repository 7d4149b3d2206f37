"""The manifest track of publishers that refuse or cut what KVCS 5.2 asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from kvcs.config import ConsumerConfig, ProducerConfig
from kvcs.errors import ManifestInvalid, PublicationGone, SignatureInvalid
from kvcs.keys import ProducerKey, TrustedKeys
from kvcs.manifest import Manifest
from kvcs.manifest_feed import ManifestFeed
from kvcs.names import MANIFEST_COSE
from kvcs.production import Encoding, Production
from kvcs.trust import Trust
from moqt.codes import RequestErrorCode
from moqt.errors import RequestRejected
from moqt.types import Location, TrackNamespace
from tests.kvcs.fakes import FakeSession, FakeTrack
from tests.kvcs.support import describe, prefix_of

if TYPE_CHECKING:
    from moqt.asyncio.session import MoqtSession

DESCRIPTOR = describe()
CONFIG = ConsumerConfig(manifest_timeout_s=0.05)
TRUST = Trust()


def versions(count: int) -> list[bytes]:
    production = Production(prefix_of(DESCRIPTOR, 8))
    found = [production.take_manifest()[1].dump()]
    for number in range(1, count):
        production.add_segment(first_block=number - 1, blocks=1, encodings=[Encoding()])
        found.append(production.take_manifest()[1].dump())
    return found


def track(published: int, *later: int) -> FakeTrack:
    found = versions(max(published, *(n + 1 for n in later), 0))
    fake = FakeTrack({Location(n, 0): octets for n, octets in enumerate(found)})
    fake.live = [Location(n, 0) for n in later]
    fake.largest = Location(published - 1, 0) if published else None
    return fake


def feed(fake: FakeTrack, *, trust: Trust = TRUST, absent: bytes = MANIFEST_COSE) -> ManifestFeed:
    return ManifestFeed(
        cast("MoqtSession", FakeSession(fake, absent=absent)),
        TrackNamespace((b"kvcs-1",)),
        compatibility_id=DESCRIPTOR.compatibility_id,
        trust=trust,
        config=CONFIG,
    )


async def segments(manifests: ManifestFeed) -> list[int]:
    async with manifests:
        first = await manifests.first()
        return [len(first.segments), *[len(each.segments) async for each in manifests]]


async def test_the_current_version_comes_first_then_each_later_one() -> None:
    manifests = feed(track(3, 3, 4))
    assert await segments(manifests) == [2, 3, 4]
    assert not manifests.is_signed


async def test_a_fill_that_is_cut_or_refused_becomes_a_fetch() -> None:
    cut = track(3, 3)
    cut.resets_fill = True
    assert await segments(feed(cut)) == [2, 3]
    refused = track(3, 3)
    refused.refuses_fill = RequestErrorCode.NOT_SUPPORTED
    assert await segments(feed(refused)) == [2, 3]


async def test_a_later_version_will_do_when_the_current_one_cannot_be_had() -> None:
    fake = track(2, 2)
    fake.resets_fill = True
    fake.refuses_fetch = RequestErrorCode.NOT_SUPPORTED
    assert await segments(feed(fake)) == [2]
    empty = track(0, 0)
    empty.refuses_fill = RequestErrorCode.NOT_SUPPORTED
    assert await segments(feed(empty)) == [0]


async def test_an_older_version_that_comes_late_is_passed_over() -> None:
    assert await segments(feed(track(3, 1, 3))) == [2, 3]


async def test_no_manifest_in_either_form_means_that_the_publication_is_gone() -> None:
    """K5.2#4."""
    absent = FakeTrack(refuses_subscribe=RequestErrorCode.DOES_NOT_EXIST)
    with pytest.raises(PublicationGone, match="has no manifest"):
        async with feed(absent):
            pass
    with pytest.raises(PublicationGone, match="ended before a manifest came"):
        await segments(feed(FakeTrack()))


@pytest.mark.parametrize("name", [MANIFEST_COSE, b""])
async def test_any_other_refusal_is_the_publishers_word(name: bytes) -> None:
    """K5.2#4."""
    refusing = FakeTrack(refuses_subscribe=RequestErrorCode.UNAUTHORIZED)
    with pytest.raises(RequestRejected, match="UNAUTHORIZED"):
        async with feed(refusing, absent=name):
            pass


async def test_unsigned_publications_are_refused_before_their_manifest_is_read() -> None:
    """K5.2#4."""
    trust = Trust(TrustedKeys([ProducerKey.generate().public]), require_signature=True)
    with pytest.raises(SignatureInvalid, match="signatures are required"):
        async with feed(track(1), trust=trust):
            pass


async def test_a_version_that_takes_something_back_is_refused() -> None:
    fake = track(2, 2)
    original = Manifest.load(fake.objects[Location(2, 0)])
    fake.objects[Location(2, 0)] = replace(original, deterministic=True).dump()
    manifests = feed(fake)
    async with manifests:
        await manifests.first()
        with pytest.raises(ManifestInvalid, match="deterministic"):
            await anext(manifests)


async def test_an_empty_object_is_no_manifest() -> None:
    fake = FakeTrack({Location(0, 0): b""})
    with pytest.raises(ManifestInvalid):
        await segments(feed(fake))


def test_settings_that_make_no_sense_are_refused_by_name() -> None:
    for wrong in ({"retain_bytes": -1}, {"max_segments": 0}, {"retain_s": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ProducerConfig(**wrong)
    with pytest.raises(ValueError, match="layers_per_manifest is 9, expected 1 to 8"):
        ProducerConfig(layers_per_manifest=9)
    for name in ("stall_timeout_s", "recovery_deadline_s", "max_prefixes", "max_endpoints"):
        with pytest.raises(ValueError, match=name):
            ConsumerConfig(**{name: -1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="connect_timeout_s is 0, expected more than 0"):
        ConsumerConfig(connect_timeout_s=0)
    with pytest.raises(ValueError, match="codecs is empty"):
        ConsumerConfig(codecs=())
