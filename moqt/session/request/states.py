"""Which message may arrive when on a request stream (MOQT-22 6.4.2, 9)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from moqt.wire.messages import (
    FetchOk,
    Namespace,
    NamespaceDone,
    PublishDone,
    PublishSkipped,
    PublishStateNotify,
    RequestError,
    RequestOk,
    RequestUpdate,
    SubscribeOk,
)
from moqt.wire.rules import RequestKind

if TYPE_CHECKING:
    from moqt.wire.messages import Message


class Phase(Enum):
    """How far one request is."""

    PENDING = "no first answer yet"
    ESTABLISHED = "answered with OK"
    ENDED = "refused, cancelled, or PUBLISH_DONE"


_Types = frozenset[type]
_ANSWER: Final[_Types] = frozenset({RequestOk, RequestError})
_UPDATE: Final[_Types] = frozenset({RequestUpdate})
_STATE: Final[_Types] = frozenset({PublishDone, PublishStateNotify})
_NOTHING: Final[_Types] = frozenset()

_OURS: Final[dict[tuple[RequestKind, Phase], _Types]] = {
    (RequestKind.SUBSCRIBE, Phase.PENDING): frozenset({SubscribeOk, RequestError}),
    (RequestKind.SUBSCRIBE, Phase.ESTABLISHED): _ANSWER | _STATE,
    (RequestKind.FETCH, Phase.PENDING): frozenset({FetchOk, RequestError}),
    (RequestKind.FETCH, Phase.ESTABLISHED): _ANSWER,
    (RequestKind.TRACK_STATUS, Phase.PENDING): _ANSWER,
    (RequestKind.PUBLISH, Phase.PENDING): _ANSWER,
    (RequestKind.PUBLISH, Phase.ESTABLISHED): _ANSWER | _UPDATE,
    (RequestKind.PUBLISH_NAMESPACE, Phase.PENDING): _ANSWER,
    (RequestKind.PUBLISH_NAMESPACE, Phase.ESTABLISHED): _ANSWER,
    (RequestKind.SUBSCRIBE_NAMESPACE, Phase.PENDING): _ANSWER,
    (RequestKind.SUBSCRIBE_NAMESPACE, Phase.ESTABLISHED): _ANSWER | {Namespace, NamespaceDone},
    (RequestKind.SUBSCRIBE_TRACKS, Phase.PENDING): _ANSWER,
    (RequestKind.SUBSCRIBE_TRACKS, Phase.ESTABLISHED): _ANSWER | {PublishSkipped},
}
"""On the stream of a request of ours. A state that is not here takes no message."""

_PEERS: Final[dict[tuple[RequestKind, Phase], _Types]] = {
    (RequestKind.PUBLISH, Phase.PENDING): _UPDATE | {PublishDone},
    (RequestKind.PUBLISH, Phase.ESTABLISHED): _UPDATE | _STATE | _ANSWER,
    **{
        (kind, phase): _UPDATE
        for kind in (
            RequestKind.SUBSCRIBE,
            RequestKind.FETCH,
            RequestKind.PUBLISH_NAMESPACE,
            RequestKind.SUBSCRIBE_NAMESPACE,
            RequestKind.SUBSCRIBE_TRACKS,
        )
        for phase in (Phase.PENDING, Phase.ESTABLISHED)
    },
}
"""On the stream of a request of the peer's, after its first message."""


def is_allowed(kind: RequestKind, *, is_ours: bool, phase: Phase, message: Message) -> bool:
    """Return whether `message` may arrive now; GOAWAY may always, once, and is not asked for."""
    table = _OURS if is_ours else _PEERS
    return type(message) in table.get((kind, phase), _NOTHING)


def phase_after(answer: Message) -> Phase:
    """Return the phase after the first answer."""
    return Phase.ENDED if isinstance(answer, RequestError) else Phase.ESTABLISHED
