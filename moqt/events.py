"""What an application of `MoqtSession` is given: what `async for` yields, and how things stand.

A session without I/O has more to say (`moqt.session.events`); the rest of it ends up in the
requests themselves.
"""

from moqt.session.events import (
    EndOfRangeReceived,
    FetchEstablished,
    FillEnded,
    GoawayReceived,
    NamespaceFound,
    NamespaceGone,
    NamespaceOffered,
    ObjectReceived,
    PublicationOffered,
    SessionEnded,
    StateNotified,
    SubgroupEnded,
    SubscriptionEnded,
    TrackSkipped,
)

__all__ = [
    "EndOfRangeReceived",
    "FetchEstablished",
    "FillEnded",
    "GoawayReceived",
    "NamespaceFound",
    "NamespaceGone",
    "NamespaceOffered",
    "ObjectReceived",
    "PublicationOffered",
    "SessionEnded",
    "StateNotified",
    "SubgroupEnded",
    "SubscriptionEnded",
    "TrackSkipped",
]
