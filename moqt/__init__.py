"""Media over QUIC Transport, draft 22: sessions over QUIC for asyncio.

`connect` and `serve` are where to begin. The protocol without I/O is `moqt.session`, the octets
are `moqt.wire`; neither needs asyncio, so what does is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from moqt import errors, events
from moqt.codes import (
    GroupOrder,
    ObjectStatus,
    PublishDoneCode,
    RangeStatus,
    RequestErrorCode,
    SessionErrorCode,
    StreamResetCode,
)
from moqt.types import FullTrackName, Location, Object, ObjectHeader, Placement, TrackNamespace

if TYPE_CHECKING:
    from moqt.asyncio.client import InsecureConnectionWarning, connect
    from moqt.asyncio.config import CongestionControl, TransportConfig
    from moqt.asyncio.following import FollowConfig
    from moqt.asyncio.following_client import Client
    from moqt.asyncio.info import ConnectionInfo, ConnectionStats, ConnectProgress
    from moqt.asyncio.namespaces import (
        AcceptedNamespace,
        NamespaceItem,
        NamespaceListing,
        NamespacePublication,
        NamespaceSubscription,
        Offer,
        Offers,
        TrackItem,
        TracksSubscription,
        sessions_to_ask,
    )
    from moqt.asyncio.roaming_fetch import RoamingFetch
    from moqt.asyncio.roaming_namespaces import RoamingNamespaces
    from moqt.asyncio.roaming_subscription import RoamingSubscription
    from moqt.asyncio.server import Server, serve
    from moqt.asyncio.session import MoqtSession
    from moqt.asyncio.tracks import (
        Fetch,
        FetchItem,
        Subscription,
        SubscriptionItem,
        TrackPublication,
        TrackStatus,
    )
    from moqt.session.access.authorization import (
        Allowed,
        AuthToken,
        Decision,
        Denial,
        Denied,
        KnownTokens,
        RequestAccess,
        SessionAccess,
        TokenPolicy,
    )
    from moqt.session.config import SessionConfig
    from moqt.session.publish.directory import TrackDirectory
    from moqt.session.publish.payloads import EqualPayloads
    from moqt.session.publish.source import SubgroupWriter, TrackSource
    from moqt.session.receive.request_options import FetchOptions, SubscribeOptions
    from moqt.session.receive.sink import ObjectSink
    from moqt.session.request.request_goaway import ServedRequest
    from moqt.session.stats import SessionStats
    from moqt.tls import CertificateFacts, Pem
    from moqt.uri import MoqtUri
    from moqt.wire.fields import KeyValue
    from moqt.wire.filters import IdRange, LocationFilter, RangeFilter, RangeFilterKind
    from moqt.wire.options import SetupOptions
    from moqt.wire.params import FillParameters
    from moqt.wire.properties import TrackProperties
    from moqt.wire.rules import RequestKind

__all__ = [
    "AcceptedNamespace",
    "Allowed",
    "AuthToken",
    "CertificateFacts",
    "Client",
    "CongestionControl",
    "ConnectProgress",
    "ConnectionInfo",
    "ConnectionStats",
    "Decision",
    "Denial",
    "Denied",
    "EqualPayloads",
    "Fetch",
    "FetchItem",
    "FetchOptions",
    "FillParameters",
    "FollowConfig",
    "FullTrackName",
    "GroupOrder",
    "IdRange",
    "InsecureConnectionWarning",
    "KeyValue",
    "KnownTokens",
    "Location",
    "LocationFilter",
    "MoqtSession",
    "MoqtUri",
    "NamespaceItem",
    "NamespaceListing",
    "NamespacePublication",
    "NamespaceSubscription",
    "Object",
    "ObjectHeader",
    "ObjectSink",
    "ObjectStatus",
    "Offer",
    "Offers",
    "Pem",
    "Placement",
    "PublishDoneCode",
    "RangeFilter",
    "RangeFilterKind",
    "RangeStatus",
    "RequestAccess",
    "RequestErrorCode",
    "RequestKind",
    "RoamingFetch",
    "RoamingNamespaces",
    "RoamingSubscription",
    "ServedRequest",
    "Server",
    "SessionAccess",
    "SessionConfig",
    "SessionErrorCode",
    "SessionStats",
    "SetupOptions",
    "StreamResetCode",
    "SubgroupWriter",
    "SubscribeOptions",
    "Subscription",
    "SubscriptionItem",
    "TokenPolicy",
    "TrackDirectory",
    "TrackItem",
    "TrackNamespace",
    "TrackProperties",
    "TrackPublication",
    "TrackSource",
    "TrackStatus",
    "TracksSubscription",
    "TransportConfig",
    "connect",
    "errors",
    "events",
    "serve",
    "sessions_to_ask",
]

_HOMES = {
    "AcceptedNamespace": "moqt.asyncio.namespaces",
    "Allowed": "moqt.session.access.authorization",
    "AuthToken": "moqt.session.access.authorization",
    "CertificateFacts": "moqt.tls",
    "Client": "moqt.asyncio.following_client",
    "CongestionControl": "moqt.asyncio.config",
    "ConnectProgress": "moqt.asyncio.info",
    "ConnectionInfo": "moqt.asyncio.info",
    "ConnectionStats": "moqt.asyncio.info",
    "Decision": "moqt.session.access.authorization",
    "Denial": "moqt.session.access.authorization",
    "Denied": "moqt.session.access.authorization",
    "EqualPayloads": "moqt.session.publish.payloads",
    "Fetch": "moqt.asyncio.tracks",
    "FetchItem": "moqt.asyncio.tracks",
    "FetchOptions": "moqt.session.receive.request_options",
    "FillParameters": "moqt.wire.params",
    "FollowConfig": "moqt.asyncio.following",
    "IdRange": "moqt.wire.filters",
    "InsecureConnectionWarning": "moqt.asyncio.client",
    "KeyValue": "moqt.wire.fields",
    "KnownTokens": "moqt.session.access.authorization",
    "LocationFilter": "moqt.wire.filters",
    "MoqtSession": "moqt.asyncio.session",
    "MoqtUri": "moqt.uri",
    "NamespaceItem": "moqt.asyncio.namespaces",
    "NamespaceListing": "moqt.asyncio.namespaces",
    "NamespacePublication": "moqt.asyncio.namespaces",
    "NamespaceSubscription": "moqt.asyncio.namespaces",
    "ObjectSink": "moqt.session.receive.sink",
    "Offer": "moqt.asyncio.namespaces",
    "TracksSubscription": "moqt.asyncio.namespaces",
    "Offers": "moqt.asyncio.namespaces",
    "Pem": "moqt.tls",
    "RangeFilter": "moqt.wire.filters",
    "RangeFilterKind": "moqt.wire.filters",
    "RequestAccess": "moqt.session.access.authorization",
    "RequestKind": "moqt.wire.rules",
    "RoamingFetch": "moqt.asyncio.roaming_fetch",
    "RoamingNamespaces": "moqt.asyncio.roaming_namespaces",
    "RoamingSubscription": "moqt.asyncio.roaming_subscription",
    "ServedRequest": "moqt.session.request.request_goaway",
    "Server": "moqt.asyncio.server",
    "SessionAccess": "moqt.session.access.authorization",
    "SessionConfig": "moqt.session.config",
    "SessionStats": "moqt.session.stats",
    "SetupOptions": "moqt.wire.options",
    "SubgroupWriter": "moqt.session.publish.source",
    "SubscribeOptions": "moqt.session.receive.request_options",
    "Subscription": "moqt.asyncio.tracks",
    "SubscriptionItem": "moqt.asyncio.tracks",
    "TokenPolicy": "moqt.session.access.authorization",
    "TrackDirectory": "moqt.session.publish.directory",
    "TrackItem": "moqt.asyncio.namespaces",
    "TrackProperties": "moqt.wire.properties",
    "TrackPublication": "moqt.asyncio.tracks",
    "TrackSource": "moqt.session.publish.source",
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
