"""The tracks and namespaces that an endpoint's sessions answer from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from moqt.codes import RequestErrorCode
from moqt.errors import LocalProtocolError
from moqt.wire.framing import encode_message
from moqt.wire.messages import Redirect, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moqt.errors import RequestRejected
    from moqt.session.publish.source import TrackSource
    from moqt.types import FullTrackName, TrackNamespace

__all__ = ["TrackDirectory"]


if TYPE_CHECKING:

    class NamespaceListener(Protocol):
        """Who wants to hear of namespaces. Calls note what to do and never change the directory."""

        def namespace_added(self, namespace: TrackNamespace) -> None:
            """A namespace got its first track, or was advertised."""

        def namespace_removed(self, namespace: TrackNamespace) -> None:
            """A namespace lost its last track and is not advertised."""

    class TrackListener(Protocol):
        """Who wants to hear of tracks. Calls never change the directory."""

        def track_added(self, track: TrackSource) -> None:
            """A track is served from now on."""

        def track_removed(self, track: TrackSource) -> None:
            """A track is not served any more."""


class TrackDirectory:
    """Tracks by Full Track Name, and the namespaces to report to SUBSCRIBE_NAMESPACE.

    Holds what the application put in and nothing that a peer sent. Finding a track, and all that
    concerns one prefix, costs no more when other tracks and namespaces are many.
    """

    def __init__(self) -> None:
        self._tracks: dict[FullTrackName, TrackSource] = {}
        self._refusals: dict[FullTrackName, RequestError] = {}
        self._in: dict[TrackNamespace, dict[TrackSource, None]] = {}
        self._reasons: dict[TrackNamespace, int] = {}  # tracks in it, plus 1 when advertised
        self._advertised: set[TrackNamespace] = set()
        self._by_prefix: dict[tuple[bytes, ...], dict[TrackNamespace, None]] = {}
        self._listeners: dict[tuple[bytes, ...], dict[NamespaceListener, None]] = {}
        self._track_listeners: dict[tuple[bytes, ...], dict[TrackListener, None]] = {}

    def __len__(self) -> int:
        return len(self._tracks)

    # Tracks

    def add(self, track: TrackSource) -> None:
        """Serve `track` from now on; its namespace is reported.

        Raises: LocalProtocolError when another track has its name.
        """
        if track.name in self._tracks:
            raise LocalProtocolError(f"{track.name}: a track of this name is served already")
        namespace = track.name.namespace
        self._tracks[track.name] = track
        self._in.setdefault(namespace, {})[track] = None
        self._hold(namespace)
        for listener in _listening(self._track_listeners, namespace):
            listener.track_added(track)

    def remove(self, track: TrackSource) -> None:
        """Refuse new requests for `track`; those that run go on. Harmless when it is not served."""
        if self._tracks.get(track.name) is track:
            namespace = track.name.namespace
            del self._tracks[track.name]
            del self._in[namespace][track]
            if not self._in[namespace]:
                del self._in[namespace]
            self._release(namespace)
            for listener in _listening(self._track_listeners, namespace):
                listener.track_removed(track)

    def find(self, name: FullTrackName) -> TrackSource | None:
        """Return the track of this name, None when there is none."""
        return self._tracks.get(name)

    def refuse(self, name: FullTrackName, error: RequestRejected | None) -> None:
        """Answer requests for a track that is not served with `error`; None: DOES_NOT_EXIST again.

        So an application says where a track went (REDIRECT) or when to ask again (MOQT-22 9.4). A
        client may send no Connect URI: its sessions answer DOES_NOT_EXIST in place of one.
        Raises: LocalProtocolError for an error that the draft forbids.
        """
        if error is None:
            self._refusals.pop(name, None)
            return
        if (error.redirect_name is not None) != (error.code is RequestErrorCode.REDIRECT):
            raise LocalProtocolError(f"redirect_name does not fit code {error.code.name}")
        redirect = None
        if error.redirect_name is not None:
            redirect = Redirect(error.redirect_uri or "", error.redirect_name)
        message = RequestError(
            code=error.code,
            reason=error.reason,
            retry_interval_ms=error.retry_interval_ms,
            redirect=redirect,
        )
        try:
            encode_message(message)
        except ValueError as fault:
            raise LocalProtocolError(f"REQUEST_ERROR: {fault}") from fault
        self._refusals[name] = message

    def refusal(self, name: FullTrackName) -> RequestError | None:
        """Return what `refuse` was told about a track that is not served."""
        return self._refusals.get(name)

    def tracks(self, prefix: TrackNamespace | None = None) -> tuple[TrackSource, ...]:
        """Return the tracks below `prefix`, or all of them."""
        if prefix is None:
            return tuple(self._tracks.values())
        return tuple(
            track for namespace in self.namespaces(prefix) for track in self._in.get(namespace, ())
        )

    def listen_for_tracks(self, prefix: TrackNamespace, listener: TrackListener) -> None:
        """Tell `listener` of tracks below `prefix` from now on."""
        self._track_listeners.setdefault(prefix.fields, {})[listener] = None

    def unlisten_for_tracks(self, prefix: TrackNamespace, listener: TrackListener) -> None:
        """Take `listen_for_tracks` back. Harmless twice."""
        _remove(self._track_listeners, prefix, listener)

    # Namespaces

    def advertise(self, namespace: TrackNamespace) -> None:
        """Report `namespace` although it may have no track yet. Harmless twice."""
        if namespace.is_reserved:
            raise LocalProtocolError(
                f"{namespace}: a first field that begins with '.' is reserved (MOQT-22 2.4.3)"
            )
        if namespace not in self._advertised:
            self._advertised.add(namespace)
            self._hold(namespace)

    def withdraw(self, namespace: TrackNamespace) -> None:
        """Take `advertise` back; tracks in it keep it reported. Harmless twice."""
        if namespace in self._advertised:
            self._advertised.discard(namespace)
            self._release(namespace)

    def namespaces(self, prefix: TrackNamespace | None = None) -> tuple[TrackNamespace, ...]:
        """Return the namespaces below `prefix` (None: all), the oldest first."""
        fields = () if prefix is None else prefix.fields
        return tuple(self._by_prefix.get(fields, ()))

    def listen(self, prefix: TrackNamespace, listener: NamespaceListener) -> None:
        """Tell `listener` of namespaces below `prefix` from now on."""
        self._listeners.setdefault(prefix.fields, {})[listener] = None

    def unlisten(self, prefix: TrackNamespace, listener: NamespaceListener) -> None:
        """Take `listen` back. Harmless twice."""
        _remove(self._listeners, prefix, listener)

    def _hold(self, namespace: TrackNamespace) -> None:
        count = self._reasons.get(namespace, 0)
        self._reasons[namespace] = count + 1
        if count:
            return
        for prefix in _prefixes(namespace):
            self._by_prefix.setdefault(prefix, {})[namespace] = None
        for listener in _listening(self._listeners, namespace):
            listener.namespace_added(namespace)

    def _release(self, namespace: TrackNamespace) -> None:
        self._reasons[namespace] -= 1
        if self._reasons[namespace]:
            return
        del self._reasons[namespace]
        for prefix in _prefixes(namespace):
            below = self._by_prefix[prefix]
            del below[namespace]
            if not below:
                del self._by_prefix[prefix]
        for listener in _listening(self._listeners, namespace):
            listener.namespace_removed(namespace)


ListenerT = TypeVar("ListenerT")


def _listening(
    listeners: dict[tuple[bytes, ...], dict[ListenerT, None]], namespace: TrackNamespace
) -> list[ListenerT]:
    return [one for prefix in _prefixes(namespace) for one in listeners.get(prefix, ())]


def _remove(
    listeners: dict[tuple[bytes, ...], dict[ListenerT, None]],
    prefix: TrackNamespace,
    listener: ListenerT,
) -> None:
    there = listeners.get(prefix.fields, {})
    there.pop(listener, None)
    if not there:
        listeners.pop(prefix.fields, None)


def _prefixes(namespace: TrackNamespace) -> Iterator[tuple[bytes, ...]]:
    for length in range(len(namespace) + 1):
        yield namespace.fields[:length]
