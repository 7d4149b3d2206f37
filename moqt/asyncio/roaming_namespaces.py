"""A subscription to namespaces that survives GOAWAY (MOQT-22 6.6.1, 9.2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from moqt.asyncio.following import follow
from moqt.asyncio.namespaces import NamespaceItem, NamespaceSubscription
from moqt.asyncio.roaming import Leg, Roaming
from moqt.session import events
from moqt.types import FullTrackName

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from moqt.asyncio.following import Place, Sessions
    from moqt.asyncio.session import MoqtSession
    from moqt.session.access.authorization import AuthToken
    from moqt.types import TrackNamespace

__all__ = ["RoamingNamespaces"]


class RoamingNamespaces(Roaming[NamespaceSubscription, NamespaceItem]):
    """The namespaces under a prefix, from whichever session reports them now.

    A move reports only what changes. What the next session has not reported within
    `namespace_settle_s` counts as gone, since nothing says where its first list ends.
    """

    def __init__(
        self,
        sessions: Sessions,
        prefix: TrackNamespace,
        *,
        tokens: Sequence[AuthToken] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(
            sessions, FullTrackName(prefix, b""), f"SUBSCRIBE_NAMESPACE {prefix.as_prefix}"
        )
        self._tokens = tokens
        self._timeout_s = timeout_s
        self._known: dict[TrackNamespace, None] = {}
        self._count = 0
        self._settling: asyncio.TimerHandle | None = None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel it if it's open."""
        await super().__aexit__(kind, error, trace)
        self._stop_settling()

    async def _open(
        self, start: Place | None, name: FullTrackName, *, is_moved: bool
    ) -> Leg[NamespaceSubscription]:
        reported: set[TrackNamespace] = set()

        def admit(item: NamespaceItem) -> bool:
            self._count += 1
            if isinstance(item, events.NamespaceGone):
                reported.discard(item.namespace)
                if item.namespace not in self._known:
                    return False
                del self._known[item.namespace]
                return True
            reported.add(item.namespace)
            if item.namespace in self._known:
                return False
            self._known[item.namespace] = None
            return True

        async def attempt(session: MoqtSession, target: FullTrackName) -> NamespaceSubscription:
            shown = self._sessions.tokens_for(session, self._tokens)
            request = session.subscribe_namespace(
                target.namespace, tokens=shown, timeout_s=self._timeout_s
            )
            request.admit = admit
            return await request.__aenter__()

        self._stop_settling()
        visit, name, request = await follow(self._sessions, start, name, attempt, what=self._what)
        if is_moved:
            self._settling = asyncio.get_running_loop().call_later(
                self._sessions.config.namespace_settle_s, self._settle, request, reported
            )
        return Leg(visit, name, request)

    def _settle(self, request: NamespaceSubscription, reported: set[TrackNamespace]) -> None:
        """What was known before the move and has not been reported again is gone."""
        self._settling = None
        for namespace in [known for known in self._known if known not in reported]:
            request.receive(events.NamespaceGone(request.request_id, namespace))

    def _stop_settling(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None

    def _progress(self) -> int:
        return self._count
