"""What still comes for a request of the peer's that we have ended already."""

from __future__ import annotations

import pytest

from moqt.session.config import Role
from moqt.session.events import NamespaceWithdrawn
from moqt.session.publish.directory import TrackDirectory
from moqt.testing import ScriptedPeer
from moqt.types import TrackNamespace
from moqt.wire.messages import (
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    SubscribeNamespace,
    SubscribeTracks,
)
from moqt.wire.params import NO_PARAMETERS, Parameters
from moqt.wire.tokens import AuthorizationToken
from tests.session.receiving import NAMESPACE

UNKNOWN_TOKEN = Parameters(authorization_tokens=(AuthorizationToken.use_alias(3),))


@pytest.mark.parametrize("opener", [SubscribeNamespace, SubscribeTracks])
def test_updates_behind_a_refused_one_of_a_prefix_have_no_meaning(
    opener: type[SubscribeNamespace | SubscribeTracks],
) -> None:
    """9.5.1#3: the refusal ends the request; the peer may have sent more before it knew."""
    peer = ScriptedPeer(Role.SERVER, directory=TrackDirectory())
    stream = peer.open_bidi()
    peer.send(stream, opener(peer.next_request_id(), NAMESPACE))
    reserved = Parameters(namespace_prefix=TrackNamespace.of(".session"))
    peer.send(
        stream,
        RequestUpdate(peer.next_request_id(), reserved),
        RequestUpdate(peer.next_request_id(), NO_PARAMETERS),
        RequestUpdate(peer.next_request_id(), UNKNOWN_TOKEN),
    )
    kinds = [type(message) for message in peer.messages(stream)]
    assert kinds == [RequestOk, RequestError]
    assert stream in peer.transport.finished
    assert peer.transport.closed is None


def test_updates_behind_a_refused_one_of_a_namespace_have_no_meaning() -> None:
    """9.5.1#3: the same; the namespace is withdrawn once, whatever else comes."""
    peer = ScriptedPeer(Role.SERVER)
    stream, request_id = peer.open_bidi(), peer.next_request_id()
    peer.send(stream, PublishNamespace(request_id, NAMESPACE))
    peer.session.accept(request_id, now=peer.now)
    peer.send(
        stream,
        RequestUpdate(peer.next_request_id(), UNKNOWN_TOKEN),
        RequestUpdate(peer.next_request_id(), NO_PARAMETERS),
    )
    kinds = [type(message) for message in peer.messages(stream)]
    assert kinds == [RequestOk, RequestError]
    peer.cancel(stream)
    assert len(peer.take(NamespaceWithdrawn)) == 1
    assert peer.transport.closed is None
