"""PUBLISH_STATE_NOTIFY and NEW_GROUP_REQUEST, from both sides (MOQT-22 9.10, 9.20.19)."""

from __future__ import annotations

import pytest

from moqt.codes import (
    SessionErrorCode,
)
from moqt.errors import LocalProtocolError
from moqt.session.config import Role
from moqt.session.events import SessionEnded, StateNotified
from moqt.session.publish.directory import TrackDirectory
from moqt.session.publish.source import TrackSource
from moqt.testing import ScriptedPeer, SessionPair
from moqt.types import FullTrackName, Location
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    PublishStateNotify,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeOk,
)
from moqt.wire.params import Parameters
from moqt.wire.properties import TrackProperties
from tests.session.sending import NAME, Sending, places, publish

OTHER = FullTrackName(NAME.namespace, b"other")


# PUBLISH_STATE_NOTIFY


def test_news_of_the_state_carry_the_largest_object_and_nothing_else() -> None:
    """9.10#2, #3: nothing while there is none; what the subscriber controls is left alone."""
    side = Sending()
    track = side.track()
    state = Parameters(forward=False, location_filter=LocationFilter.groups(first=0, last=1))
    request = side.subscribe(state)
    track.notify_state()
    track.notify_state()  # before the next flush: said once
    side.flush()
    publish(track, [5], 3)
    track.notify_state()
    side.flush()
    notes = side.replies(request)[1:]
    assert notes == [
        PublishStateNotify(),
        PublishStateNotify(Parameters(largest=Location(5, 2))),
    ]
    side.update(request, Parameters(forward=True))
    publish(track, [1, 6], 1)
    side.flush()
    assert [head.group_id for head in side.subgroups().values()] == [1]


def test_an_offer_is_told_once_it_is_accepted() -> None:
    """9.10#1, #2: PUBLISH_STATE_NOTIFY goes to Established subscriptions only."""
    track = TrackSource(NAME)
    pair = SessionPair()
    offered = pair.server.publish(track, forward=False, now=pair.now)
    publish(track, [0], 2)
    track.notify_state()
    pair.run()
    assert pair.take(Role.CLIENT, StateNotified) == []
    pair.client.accept(offered, now=pair.now)
    pair.run()
    assert pair.take(Role.CLIENT, StateNotified) == [StateNotified(offered, Location(0, 1))]


@pytest.mark.parametrize("kind", ["fetch", "subscriber", "track status", "not established"])
def test_news_in_the_wrong_place_close_the_session(kind: str) -> None:
    """9.10#1: on a FETCH, a TRACK_STATUS, from a subscriber, before SUBSCRIBE_OK."""
    directory = TrackDirectory()
    track = TrackSource(NAME)
    directory.add(track)
    publish(track, [0], 1)
    if kind == "subscriber":
        peer = ScriptedPeer(Role.SERVER, directory=directory)
        stream = peer.open_bidi()
        peer.send(stream, Subscribe(peer.next_request_id(), NAME))
    else:
        peer = ScriptedPeer(Role.CLIENT)
        stream = 0
        if kind == "fetch":
            peer.session.fetch(NAME, now=0.0)
            peer.send(stream, FetchOk(False, Location(0, 0)))
        elif kind == "track status":
            peer.session.track_status(NAME, now=0.0)
        else:
            peer.session.subscribe(NAME, now=0.0)
    assert not peer.session.is_closed
    peer.send(stream, PublishStateNotify(Parameters(largest=Location(0, 0))))
    (ended,) = peer.take(SessionEnded)
    assert (ended.code, ended.by_peer) == (SessionErrorCode.PROTOCOL_VIOLATION, False)


def test_news_of_a_subscription_change_nothing_here() -> None:
    """9.10#3: the event says what came; the subscription stays as it was asked for."""
    peer = ScriptedPeer(Role.CLIENT)
    request = peer.session.subscribe(NAME, now=0.0)
    peer.send(0, SubscribeOk(1))
    narrowed = LocationFilter.groups(first=4, last=4)
    said = Parameters(largest=Location(3, 1), forward=False, location_filter=narrowed)
    peer.send(0, PublishStateNotify(said))
    assert peer.take(StateNotified) == [StateNotified(request, Location(3, 1), False, narrowed)]
    assert peer.messages(0) == [Subscribe(request, NAME)]


# NEW_GROUP_REQUEST


def test_a_new_group_is_asked_of_the_owner_of_the_track() -> None:
    """9.20.19#2: for 0 and for a Group above the current one, once while the Group stays."""
    side = Sending()
    track = side.track(properties=TrackProperties.of(dynamic_groups=True))
    asked: list[int] = []
    track.on_new_group_request = asked.append
    request = side.subscribe(Parameters(new_group_request=0))
    assert asked == [0]
    side.subscribe(Parameters(new_group_request=0))
    assert asked == [0]  # it is on its way
    publish(track, [4], 1)
    side.update(request, Parameters(new_group_request=4))
    assert asked == [0]  # there already
    side.update(request, Parameters(new_group_request=5))
    side.update(request, Parameters(new_group_request=6))
    assert asked == [0, 5]
    publish(track, [6], 1)
    side.subscribe(Parameters(new_group_request=0))
    assert asked == [0, 5, 0]
    track.end()
    side.subscribe(Parameters(new_group_request=0))
    assert asked == [0, 5, 0]


def test_the_owner_may_begin_the_group_at_once() -> None:
    """9.20.19#2: and the subscriber that asked gets it."""
    side = Sending()
    track = side.track(properties=TrackProperties.of(dynamic_groups=True))
    track.on_new_group_request = lambda group_id: publish(track, [group_id], 1)
    request = side.subscribe(Parameters(new_group_request=7))
    side.flush()
    assert places(side.objects(side.subgroups(side.alias(request)))) == [(7, 0)]
    (answer,) = side.replies(request)
    assert isinstance(answer, SubscribeOk)
    assert answer.parameters.largest is None


def test_a_track_without_dynamic_groups_ignores_it() -> None:
    """9.20.19#2: the subscription is accepted all the same, an update too."""
    side = Sending()
    track = side.track()
    asked: list[int] = []
    track.on_new_group_request = asked.append
    request = side.subscribe(Parameters(new_group_request=0))
    side.update(request, Parameters(new_group_request=0))
    assert asked == []
    assert [type(one) for one in side.replies(request)] == [SubscribeOk, RequestOk]


def test_an_update_asks_for_a_group_only_of_a_dynamic_track() -> None:
    """9.20.19#1: SUBSCRIBE may ask of any track, REQUEST_UPDATE only with DYNAMIC_GROUPS 1."""
    peer = ScriptedPeer(Role.CLIENT)
    fixed = peer.session.subscribe(NAME, new_group_request=3, now=0.0)
    dynamic = peer.session.subscribe(OTHER, now=0.0)
    assert peer.messages(0) == [Subscribe(fixed, NAME, Parameters(new_group_request=3))]
    peer.send(0, SubscribeOk(1, properties=TrackProperties.of(dynamic_groups=False)))
    peer.send(4, SubscribeOk(2, properties=TrackProperties.of(dynamic_groups=True)))
    peer.messages(4)
    with pytest.raises(LocalProtocolError, match="DYNAMIC_GROUPS"):
        peer.session.update(fixed, new_group_request=0)
    assert peer.messages(0) == []
    update = peer.session.update(dynamic, new_group_request=0)
    assert peer.messages(4) == [RequestUpdate(update, Parameters(new_group_request=0))]


def test_a_fetch_takes_no_timeouts_in_an_update() -> None:
    peer = ScriptedPeer(Role.CLIENT)
    request = peer.session.fetch(NAME, now=0.0)
    assert [type(one) for one in peer.messages(0)] == [Fetch]
    with pytest.raises(LocalProtocolError, match="only its priority"):
        peer.session.update(request, object_delivery_timeout_ms=5)
