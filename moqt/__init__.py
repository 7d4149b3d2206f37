"""Media over QUIC Transport, draft 22: sessions over QUIC for asyncio.

`connect` and `serve` are where to begin. The protocol without I/O is `moqt.session`, the octets
are `moqt.wire`; neither needs asyncio, so what does is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from moqt import errors
from moqt.codes import (
    GroupOrder,
    ObjectStatus,
    PublishDoneCode,
    RangeStatus,
    RequestErrorCode,
    SessionErrorCode,
    StreamResetCode,
)
from moqt.types import FullTrackName, Location, Object, ObjectHeader, TrackNamespace

if TYPE_CHECKING:
    from moqt.asyncio.client import InsecureConnectionWarning, connect
    from moqt.asyncio.config import CongestionControl, TransportConfig
    from moqt.asyncio.following import FollowConfig
    from moqt.asyncio.namespaces import (
        NamespacePublication,
        NamespaceSubscription,
        OfferedTracks,
        sessions_to_ask,
    )
    from moqt.asyncio.roaming import Client
    from moqt.asyncio.roaming_requests import (
        RoamingFetch,
        RoamingNamespaces,
        RoamingSubscription,
    )
    from moqt.asyncio.server import Server, serve
    from moqt.asyncio.session import MoqtSession
    from moqt.asyncio.tracks import Fetch, Subscription, TrackPublication, TrackStatus
    from moqt.session.authorization import (
        Allowed,
        AuthToken,
        Denial,
        Denied,
        KnownTokens,
        RequestAccess,
        SessionAccess,
        TokenPolicy,
    )
    from moqt.session.config import SessionConfig
    from moqt.session.directory import TrackDirectory
    from moqt.session.sink import ObjectSink, Placement
    from moqt.session.source import SubgroupWriter, TrackSource
    from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
    from moqt.wire.params import FillParameters
    from moqt.wire.properties import TrackProperties

__all__ = [
    "Allowed",
    "AuthToken",
    "Client",
    "CongestionControl",
    "Denial",
    "Denied",
    "Fetch",
    "FillParameters",
    "FollowConfig",
    "FullTrackName",
    "GroupOrder",
    "IdRange",
    "InsecureConnectionWarning",
    "KnownTokens",
    "Location",
    "LocationFilter",
    "MoqtSession",
    "NamespacePublication",
    "NamespaceSubscription",
    "Object",
    "ObjectHeader",
    "ObjectSink",
    "ObjectStatus",
    "OfferedTracks",
    "Placement",
    "PublishDoneCode",
    "RangeFilter",
    "RangeFilterKind",
    "RangeStatus",
    "RequestAccess",
    "RequestErrorCode",
    "RoamingFetch",
    "RoamingNamespaces",
    "RoamingSubscription",
    "Server",
    "SessionAccess",
    "SessionConfig",
    "SessionErrorCode",
    "StreamResetCode",
    "SubgroupWriter",
    "Subscription",
    "TokenPolicy",
    "TrackDirectory",
    "TrackNamespace",
    "TrackProperties",
    "TrackPublication",
    "TrackSource",
    "TrackStatus",
    "TransportConfig",
    "connect",
    "errors",
    "serve",
    "sessions_to_ask",
]

_HOMES = {
    "Client": "moqt.asyncio.roaming",
    "Allowed": "moqt.session.authorization",
    "AuthToken": "moqt.session.authorization",
    "CongestionControl": "moqt.asyncio.config",
    "Denial": "moqt.session.authorization",
    "Denied": "moqt.session.authorization",
    "Fetch": "moqt.asyncio.tracks",
    "FillParameters": "moqt.wire.params",
    "FollowConfig": "moqt.asyncio.following",
    "IdRange": "moqt.wire.filters",
    "InsecureConnectionWarning": "moqt.asyncio.client",
    "KnownTokens": "moqt.session.authorization",
    "LocationFilter": "moqt.wire.filters",
    "MoqtSession": "moqt.asyncio.session",
    "NamespacePublication": "moqt.asyncio.namespaces",
    "NamespaceSubscription": "moqt.asyncio.namespaces",
    "ObjectSink": "moqt.session.sink",
    "OfferedTracks": "moqt.asyncio.namespaces",
    "Placement": "moqt.session.sink",
    "RangeFilter": "moqt.wire.filters",
    "RangeFilterKind": "moqt.wire.filters",
    "RequestAccess": "moqt.session.authorization",
    "RoamingFetch": "moqt.asyncio.roaming_requests",
    "RoamingNamespaces": "moqt.asyncio.roaming_requests",
    "RoamingSubscription": "moqt.asyncio.roaming_requests",
    "Server": "moqt.asyncio.server",
    "SessionAccess": "moqt.session.authorization",
    "SessionConfig": "moqt.session.config",
    "SubgroupWriter": "moqt.session.source",
    "Subscription": "moqt.asyncio.tracks",
    "TokenPolicy": "moqt.session.authorization",
    "TrackDirectory": "moqt.session.directory",
    "TrackProperties": "moqt.wire.properties",
    "TrackPublication": "moqt.asyncio.tracks",
    "TrackSource": "moqt.session.source",
    "TrackStatus": "moqt.asyncio.tracks",
    "TransportConfig": "moqt.asyncio.config",
    "connect": "moqt.asyncio.client",
    "serve": "moqt.asyncio.server",
    "sessions_to_ask": "moqt.asyncio.namespaces",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'moqt' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
