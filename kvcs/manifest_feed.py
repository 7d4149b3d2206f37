"""A publication's manifest track, followed: the current version, then each later one (KVCS 5.2)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from kvcs.errors import ManifestInvalid, PublicationGone
from kvcs.geometry import MANIFEST_PRIORITY
from kvcs.manifest import Manifest, check_successor
from kvcs.names import MANIFEST, MANIFEST_COSE
from kvcs.retrieval import manifest_fill
from moqt.codes import ObjectStatus, PublishDoneCode, RequestErrorCode
from moqt.errors import RequestEnded, RequestRejected, StreamReset, TimedOut
from moqt.events import FillEnded, ObjectReceived
from moqt.types import FullTrackName
from moqt.wire.filters import LocationFilter
from moqt.wire.params import FillParameters

if TYPE_CHECKING:
    from types import TracebackType

    from kvcs.config import ConsumerConfig
    from kvcs.trust import Trust
    from moqt.asyncio.session import MoqtSession
    from moqt.asyncio.tracks import Subscription
    from moqt.events import GoawayReceived
    from moqt.types import TrackNamespace

__all__ = ["ManifestFeed"]

MAX_RENEWALS = 8
"""How often in a row the track is subscribed to again without getting a newer version."""


class ManifestFeed:
    """An async iterator of manifest versions, the current one first; it ends with the track.

    `async with` subscribes: to manifest.cose, and to manifest only if the publisher says that the
    former does not exist and no signature is required. Iterating raises ManifestInvalid and its
    like for a version that does not hold or contradicts an earlier one, and what ended the
    subscription, if not the track's end. Being too far behind does not end it: only the newest
    version counts, so it is subscribed to again.
    """

    def __init__(
        self,
        session: MoqtSession,
        namespace: TrackNamespace,
        *,
        compatibility_id: bytes,
        trust: Trust,
        config: ConsumerConfig,
    ) -> None:
        self.is_signed = False
        self.key_id: bytes | None = None
        """The kid of the newest manifest; None: it is not signed, or none has come."""
        self._session = session
        self._namespace = namespace
        self._compatibility_id = compatibility_id
        self._trust = trust
        self._config = config
        self._stack = AsyncExitStack()
        self._subscription: Subscription | None = None
        self._version = -1
        self._latest: Manifest | None = None
        self._has_fill = True
        self._renewals = 0

    async def __aenter__(self) -> Self:
        """Subscribe. Raises: PublicationGone, SignatureInvalid, RequestRejected, SessionClosed."""
        try:
            try:
                self._subscription = await self._subscribe(MANIFEST_COSE)
                self.is_signed = True
            except RequestRejected as error:
                if error.code is not RequestErrorCode.DOES_NOT_EXIST:
                    raise
                self._trust.check_unsigned()
                self._subscription = await self._subscribe(MANIFEST)
        except RequestRejected as error:
            if error.code is RequestErrorCode.DOES_NOT_EXIST:
                raise PublicationGone("the publication has no manifest (any more)") from error
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Unsubscribe."""
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Manifest:
        """Return the next version that is newer than all before."""
        assert self._subscription is not None, "use async with"
        while True:
            if not self._has_fill:
                self._has_fill = True
                manifest = await self._fetch_current()
                if manifest is not None:
                    return manifest
            try:
                item = await anext(self._subscription)
            except RequestEnded as error:
                is_behind = error.code is PublishDoneCode.TOO_FAR_BEHIND
                if not is_behind or self._renewals == MAX_RENEWALS:
                    raise
                await self._renew()
                continue
            if isinstance(item, ObjectReceived) and item.object.status is ObjectStatus.NORMAL:
                group_id = item.object.header.group_id
                manifest = await self._read(group_id, item.object.payload)
                if manifest is not None:
                    return manifest
            elif isinstance(item, FillEnded) and item.reset is not None:
                self._has_fill = False

    async def first(self) -> Manifest:
        """Return the first version, within `manifest_timeout_s`.

        Raises: PublicationGone when the track ends without one, or none comes in time.
        """
        try:
            async with asyncio.timeout(self._config.manifest_timeout_s):
                return await anext(self)
        except StopAsyncIteration:
            raise PublicationGone("the manifest track ended before a manifest came") from None
        except TimeoutError:
            raise PublicationGone(
                f"no manifest came within {self._config.manifest_timeout_s:g} s"
            ) from None

    async def wait_goaway(self) -> GoawayReceived | None:
        """Wait until the publisher asks to move this subscription or its session; None: it ended.

        Cancelled: nothing is lost.
        """
        assert self._subscription is not None, "use async with"
        return await self._subscription.wait_goaway()

    async def _subscribe(self, name: bytes) -> Subscription:
        """Subscribe with a fill of the current version; without one where that is refused."""
        track = FullTrackName(self._namespace, name)
        fill: FillParameters | None = FillParameters(location_filter=manifest_fill())
        while True:
            subscription = self._session.subscribe(
                track,
                location_filter=LocationFilter.next_object(),
                fill=fill,
                priority=MANIFEST_PRIORITY,
                timeout_s=self._config.request_timeout_s,
            )
            try:
                await self._stack.enter_async_context(subscription)
            except RequestRejected as error:
                refused_fill = error.code in (
                    RequestErrorCode.NOT_SUPPORTED,
                    RequestErrorCode.INVALID_FILTER,
                    RequestErrorCode.INTERNAL_ERROR,
                )
                if fill is None or not refused_fill:
                    raise
                fill = None
                self._has_fill = False
            else:
                return subscription

    async def _renew(self) -> None:
        """Subscribe again: versions that were due to us are not retained any more."""
        self._renewals += 1
        await self._stack.aclose()
        self._subscription = await self._subscribe(MANIFEST_COSE if self.is_signed else MANIFEST)

    async def _fetch_current(self) -> Manifest | None:
        """Get the current version by FETCH: the fill was refused or cut."""
        assert self._subscription is not None
        largest = self._subscription.largest
        if largest is None:
            return None
        name = MANIFEST_COSE if self.is_signed else MANIFEST
        group_id = largest.group_id
        try:
            async with (
                asyncio.timeout(self._config.request_timeout_s),
                self._session.fetch(
                    FullTrackName(self._namespace, name),
                    location_filter=LocationFilter.groups(first=group_id, last=group_id),
                    priority=MANIFEST_PRIORITY,
                ) as fetch,
            ):
                async for item in fetch:
                    if isinstance(item, ObjectReceived):
                        return await self._read(item.object.header.group_id, item.object.payload)
        except (RequestRejected, StreamReset, TimedOut, TimeoutError):
            return None  # a later version may come by the subscription
        return None

    async def _read(self, group_id: int, payload: memoryview | None) -> Manifest | None:
        """Return a version, None when a newer one is known (KVCS 3.6: Group ID + 1 a version)."""
        if group_id <= self._version:
            return None
        if payload is None:
            raise ManifestInvalid("$", "the Object is empty")
        octets = bytes(payload)

        def read() -> tuple[Manifest, bytes | None]:
            return self._trust.read(
                octets, is_signed=self.is_signed, compatibility_id=self._compatibility_id
            )

        if len(octets) >= self._config.thread_octets:
            manifest, key_id = await asyncio.to_thread(read)
        else:
            manifest, key_id = read()
        if self._latest is not None:
            check_successor(self._latest, manifest)
        self._version = group_id
        self._renewals = 0
        self._latest = manifest
        self.key_id = key_id
        return manifest
