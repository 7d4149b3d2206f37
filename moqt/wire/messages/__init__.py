"""The control messages of draft 22, one frozen value each (MOQT-22 9)."""

from moqt.wire.messages.base import Message, MessageType
from moqt.wire.messages.fetch import Fetch, FetchOk
from moqt.wire.messages.namespace import (
    Namespace,
    NamespaceDone,
    PublishNamespace,
    PublishSkipped,
    SubscribeNamespace,
    SubscribeTracks,
)
from moqt.wire.messages.publish import Publish, PublishDone, PublishStateNotify
from moqt.wire.messages.replies import Redirect, RequestError, RequestOk, RequestUpdate
from moqt.wire.messages.session import Goaway, Setup
from moqt.wire.messages.subscribe import Subscribe, SubscribeOk, TrackStatus

__all__ = [
    "Fetch",
    "FetchOk",
    "Goaway",
    "Message",
    "MessageType",
    "Namespace",
    "NamespaceDone",
    "Publish",
    "PublishDone",
    "PublishNamespace",
    "PublishSkipped",
    "PublishStateNotify",
    "Redirect",
    "RequestError",
    "RequestOk",
    "RequestUpdate",
    "Setup",
    "Subscribe",
    "SubscribeNamespace",
    "SubscribeOk",
    "SubscribeTracks",
    "TrackStatus",
]
