"""Collecting evidence of a publication over a session that is handed in (KVCS 5.1 to 5.3).

It asks as the profile says a consumer does, keeps going where a consumer would give up, and judges
nothing. Every wait and every table is bounded by `Limits`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcs.conformance.evidence import (
    FetchEvidence,
    Gap,
    ManifestVersion,
    PublicationEvidence,
    TrackEvidence,
    Way,
    examine,
)
from kvcs.conformance.reading import read_manifest
from kvcs.geometry import group_id_of, location_of
from kvcs.names import MANIFEST, MANIFEST_COSE
from kvcs.retrieval import manifest_fill
from moqt.codes import GroupOrder, ObjectStatus, RequestErrorCode
from moqt.errors import MoqtError, RequestRejected
from moqt.events import (
    EndOfRangeReceived,
    FillEnded,
    NamespaceFound,
    ObjectReceived,
    SubgroupEnded,
)
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
from moqt.wire.params import FillParameters

if TYPE_CHECKING:
    from kvcs.keys import TrustedKeys
    from kvcs.names import NamespaceForm
    from moqt.asyncio.session import MoqtSession
    from moqt.asyncio.tracks import Subscription, SubscriptionItem

__all__ = ["Limits", "collect", "find"]

CONTENT_FIELDS = 4
"""Namespace fields that a consumer can compute: all but the Publication ID (KVCS 3.1)."""

FIRST_FETCHED_LAYER = 1
"""A range that does not begin at 0 shows that StartGroup is heeded; used where there are two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a collection; times in seconds."""

    listen_s: float = 1.0
    """How long publications are listed: MOQT marks no end of that list."""
    timeout_s: float = 30.0
    """How long one publication is followed, and how long one FETCH may take."""
    quiet_s: float = 2.0
    """After so long without news a publication that says it is complete counts as delivered."""
    answer_s: float = 10.0
    """Time for one answer, and for the first manifest."""
    max_publications: int = 16
    max_tracks: int = 256
    """Data tracks of one publication."""
    max_manifests: int = 4096
    """Manifest versions of one publication."""
    manifest_octets: int = 256 << 20
    """Octets of all of them."""
    max_objects: int = 200_000
    """Object records of one publication, some 700 octets each."""
    fetch_octets: int = 64 << 20
    """Payload octets that are fetched a second time, of each track: whole layers up to it."""


async def find(
    session: MoqtSession, prefix: TrackNamespace, limits: Limits
) -> tuple[TrackNamespace, ...]:
    """Return the namespaces under a prefix, `max_publications` at most. Raises: MoqtError."""
    async with session.subscribe_namespace(prefix, timeout_s=limits.answer_s) as subscription:
        found = await subscription.listing(listen_s=limits.listen_s, limit=limits.max_publications)
    return found.namespaces


async def collect(
    session: MoqtSession,
    namespace: TrackNamespace,
    *,
    form: NamespaceForm,
    trusted: TrustedKeys | None,
    limits: Limits,
) -> PublicationEvidence:
    """Return what one publication shows of itself, within the limits.

    Refusals and broken streams are evidence. Raises: SessionClosed. Cancelled: nothing is left.
    """
    evidence = PublicationEvidence(namespace=namespace, form=form)
    if session.peer_options is not None:
        evidence.max_filter_ranges = session.peer_options.max_filter_ranges
    await _Collection(session, evidence, trusted, limits).run()
    evidence.is_discovered = await _is_reported(session, namespace, limits)
    session.raise_if_closed()
    return evidence


async def _is_reported(
    session: MoqtSession, namespace: TrackNamespace, limits: Limits
) -> bool | None:
    """Return whether SUBSCRIBE_NAMESPACE for its content reports a publication (KVCS 5.1)."""
    prefix = TrackNamespace(namespace.fields[:CONTENT_FIELDS])
    try:
        async with session.subscribe_namespace(prefix, timeout_s=limits.answer_s) as listed:
            async with asyncio.timeout(limits.listen_s):
                async for item in listed:
                    if isinstance(item, NamespaceFound) and item.namespace == namespace:
                        return True
    except TimeoutError:
        return False
    except MoqtError:
        return None
    return False


class _Collection:
    """One publication being followed."""

    def __init__(
        self,
        session: MoqtSession,
        evidence: PublicationEvidence,
        trusted: TrustedKeys | None,
        limits: Limits,
    ) -> None:
        self._session = session
        self._evidence = evidence
        self._trusted = trusted
        self._limits = limits
        self._changed = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._records = 0
        self._manifest_octets = 0
        self._is_manifest_over = False
        self._joins: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        manifest = asyncio.create_task(self._follow_manifest())
        try:
            await self._until_delivered()
        finally:
            # Joins are made by the manifest's task: nothing is added to the list once it is over.
            await _cancel([manifest])
            await _cancel(self._joins)
        self._session.raise_if_closed()
        for track in self._evidence.tracks.values():
            if not track.refusal:
                await self._fetch_layers(track)
                await self._fetch_blocks(track)
                self._session.raise_if_closed()

    # When it is enough

    async def _until_delivered(self) -> None:
        deadline = self._started + self._limits.timeout_s
        first_manifest = self._started + self._limits.answer_s
        while not self._is_over():
            left_s = deadline - self._clock()
            if not self._evidence.manifests:
                left_s = min(left_s, first_manifest - self._clock())
            is_quiet_enough = self._says_complete() and self._limits.quiet_s < left_s
            if is_quiet_enough:
                left_s = self._limits.quiet_s
            try:
                async with asyncio.timeout(max(left_s, 0)):
                    await self._changed.wait()
            except TimeoutError:
                if not is_quiet_enough:
                    self._cut(f"not all came within {self._clock() - self._started:.0f} s")
                return
            self._changed.clear()

    def _says_complete(self) -> bool:
        manifest = self._evidence.manifest
        return (
            manifest is not None
            and bool(manifest.segments)
            and all(entry.complete for entry in manifest.segments)
        )

    def _is_over(self) -> bool:
        if self._evidence.cut:
            return True
        return self._is_manifest_over and all(
            track.is_over for track in self._evidence.tracks.values()
        )

    def _cut(self, why: str) -> None:
        self._evidence.cut = self._evidence.cut or why
        self._changed.set()

    # The manifest track

    async def _follow_manifest(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                for name in (MANIFEST_COSE, MANIFEST):
                    try:
                        subscription, refusal = await self._subscribe(stack, name, manifest_fill())
                    except RequestRejected as error:
                        self._evidence.manifest_refusal = str(error)
                        if error.code is RequestErrorCode.DOES_NOT_EXIST:
                            continue
                        return
                    self._evidence.manifest_track = name
                    self._evidence.manifest_refusal = refusal
                    self._evidence.manifest_largest = subscription.largest
                    await self._take_manifests(name, subscription)
                    return
                self._evidence.has_no_manifest = True
        except MoqtError as error:
            self._evidence.manifest_refusal = self._evidence.manifest_refusal or str(error)
        finally:
            self._is_manifest_over = True
            self._changed.set()

    async def _take_manifests(self, name: bytes, subscription: Subscription) -> None:
        self._evidence.other_manifest_exists = await self._exists(MANIFEST, is_asked=name)
        if self._evidence.manifest_refusal and subscription.largest is not None:
            await self._fetch_manifest(name, subscription.largest)
        async for item in subscription:
            if isinstance(item, ObjectReceived):
                self._take_manifest(name, item, Way.FILL if item.from_fill else Way.LIVE)

    async def _exists(self, other: bytes, *, is_asked: bytes) -> bool | None:
        """Return whether the other manifest track is there too; None: there is no telling."""
        if is_asked == other:
            return False  # manifest.cose was refused as not existing
        try:
            await self._session.track_status(
                FullTrackName(self._evidence.namespace, other), timeout_s=self._limits.answer_s
            )
        except RequestRejected as error:
            return False if error.code is RequestErrorCode.DOES_NOT_EXIST else None
        return True

    async def _fetch_manifest(self, name: bytes, largest: Location) -> None:
        track = FullTrackName(self._evidence.namespace, name)
        group_id = largest.group_id
        current = LocationFilter.groups(first=group_id, last=group_id)
        try:
            async with self._session.fetch(track, location_filter=current) as fetch:
                async for item in fetch:
                    if isinstance(item, ObjectReceived):
                        self._take_manifest(name, item, Way.FETCH)
        except MoqtError as error:
            self._evidence.manifest_refusal += f"; {error}"

    def _take_manifest(self, name: bytes, item: ObjectReceived, way: Way) -> None:
        header = item.object.header
        if header.status is not ObjectStatus.NORMAL:
            return
        evidence = self._evidence
        self._manifest_octets += header.payload_length
        if self._manifest_octets > self._limits.manifest_octets:
            self._cut(f"more than {self._limits.manifest_octets} octets of manifests")
            return
        reading = read_manifest(
            item.object.payload or b"", is_signed=name == MANIFEST_COSE, trusted=self._trusted
        )
        evidence.manifests.append(ManifestVersion(header=header, way=way, reading=reading))
        if len(evidence.manifests) >= self._limits.max_manifests:
            self._cut(f"more than {self._limits.max_manifests} manifest versions")
        for entry in reading.manifest.segments if reading.manifest is not None else ():
            for track in entry.tracks:
                if track in evidence.tracks:
                    continue
                if len(evidence.tracks) >= self._limits.max_tracks:
                    self._cut(f"more than {self._limits.max_tracks} data tracks")
                    break
                evidence.tracks[track] = TrackEvidence(name=track)
                self._joins.append(asyncio.create_task(self._join(evidence.tracks[track])))
        self._changed.set()

    # Data tracks

    async def _subscribe(
        self, stack: AsyncExitStack, name: bytes, fill: LocationFilter
    ) -> tuple[Subscription, str]:
        """Subscribe from Next Object with a fill; without one where that is refused, and say so."""
        refusal = ""
        for parameters in (FillParameters(location_filter=fill), None):
            subscription = self._session.subscribe(
                FullTrackName(self._evidence.namespace, name),
                location_filter=LocationFilter.next_object(),
                fill=parameters,
                timeout_s=self._limits.answer_s,
            )
            try:
                await stack.enter_async_context(subscription)
                break
            except RequestRejected as error:
                if parameters is None or error.code is RequestErrorCode.DOES_NOT_EXIST:
                    raise
                refusal = str(error)
        return subscription, refusal

    async def _join(self, track: TrackEvidence) -> None:
        try:
            async with AsyncExitStack() as stack:
                try:
                    subscription, track.fill_refusal = await self._subscribe(
                        stack,
                        str(track.name).encode(),
                        LocationFilter.absolute(location_of(0, 0)),
                    )
                except RequestRejected as error:
                    track.refusal = str(error)
                    return
                track.largest = subscription.largest
                async for item in subscription:
                    self._take(track, item)
                track.done = None if subscription.done is None else subscription.done.code
        except MoqtError as error:
            track.failure = str(error)
        finally:
            self._changed.set()

    def _take(self, track: TrackEvidence, item: SubscriptionItem) -> None:
        self._changed.set()
        match item:
            case ObjectReceived():
                if self._has_room():
                    way = Way.FILL if item.from_fill else Way.LIVE
                    track.objects.append(
                        examine(
                            item.object,
                            track.name,
                            self._evidence.descriptor,
                            way=way,
                            arrived_s=self._clock() - self._started,
                        )
                    )
            case EndOfRangeReceived():
                if self._has_room():
                    track.gaps.append(Gap(item.status, item.last))
            case SubgroupEnded() | FillEnded():
                if item.reset is not None and self._has_room():
                    what = "the fill" if isinstance(item, FillEnded) else f"Group {item.group_id}"
                    track.resets.append(f"{what} was reset: {item.reset.name}")

    def _has_room(self) -> bool:
        self._records += 1
        if self._records > self._limits.max_objects:
            self._cut(f"more than {self._limits.max_objects} Objects")
            return False
        return True

    # A second time

    async def _fetch_layers(self, track: TrackEvidence) -> None:
        """FETCH a range of layers that are there (KVCS 5.3)."""
        layers = self._layers_to_fetch(track)
        if layers is not None:
            first, last = layers
            track.fetch = await self._fetch(
                track, FetchEvidence(first_layer=first, last_layer=last)
            )

    def _layers_to_fetch(self, track: TrackEvidence) -> tuple[int, int] | None:
        octets: dict[int, int] = {}
        for record in track.objects:
            if record.status is ObjectStatus.NORMAL:
                layer = record.location.group_id
                octets[layer] = octets.get(layer, 0) + record.payload_octets
        if not octets:
            manifest = self._evidence.manifest
            if track.largest is None or manifest is None:
                return None
            return 0, min(track.largest.group_id, manifest.layers - 1)
        first = last = FIRST_FETCHED_LAYER if FIRST_FETCHED_LAYER in octets else min(octets)
        total = octets[first]
        while last + 1 in octets and total + octets[last + 1] <= self._limits.fetch_octets:
            last += 1
            total += octets[last]
        return first, last

    async def _fetch_blocks(self, track: TrackEvidence) -> None:
        """FETCH the first blocks of one layer by OBJECTID_FILTER, where the peer allows it."""
        layers = [record.location.group_id for record in track.objects if record.header is not None]
        if not layers or not self._evidence.max_filter_ranges:
            return
        layer = min(layers)
        blocks = max(self._evidence.expected_objects(track.name, layer) // 2, 1)
        track.filtered = await self._fetch(
            track, FetchEvidence(first_layer=layer, last_layer=layer, blocks=blocks)
        )

    async def _fetch(self, track: TrackEvidence, into: FetchEvidence) -> FetchEvidence | None:
        """Return what a FETCH brought; None when there was no room to follow it to its end."""
        filters: tuple[RangeFilter, ...] = ()
        if into.blocks is not None:
            ids = IdRange(0, into.blocks - 1)
            filters = (RangeFilter(RangeFilterKind.OBJECT_ID, (ids,)),)
        fetch = self._session.fetch(
            FullTrackName(self._evidence.namespace, str(track.name).encode()),
            location_filter=LocationFilter.groups(
                first=group_id_of(into.first_layer), last=group_id_of(into.last_layer)
            ),
            range_filters=filters,
            group_order=GroupOrder.ASCENDING,
        )
        # What came by the subscription was decoded already.
        descriptor = None if track.objects else self._evidence.descriptor
        try:
            async with asyncio.timeout(self._limits.timeout_s), fetch:
                async for item in fetch:
                    if not self._has_room():
                        return None
                    if isinstance(item, EndOfRangeReceived):
                        into.gaps.append(Gap(item.status, item.last))
                        continue
                    into.objects.append(
                        examine(
                            item.object,
                            track.name,
                            descriptor,
                            way=Way.FETCH,
                            arrived_s=self._clock() - self._started,
                        )
                    )
                into.ends_track = (await fetch.established()).end_of_track
        except TimeoutError:
            into.problem = f"it did not end within {self._limits.timeout_s:g} s"
        except MoqtError as error:
            into.problem = str(error)
        return into


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):  # a bug of ours: what a peer does is recorded
            raise outcome
