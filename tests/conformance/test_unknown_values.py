"""Chapter 13: reserved and unknown values are read and ignored wherever they may stand."""

from __future__ import annotations

import pytest

from moqt.codes import (
    PublishDoneCode,
    RequestErrorCode,
    SessionErrorCode,
    StreamResetCode,
)
from moqt.session.config import Role
from moqt.session.events import (
    NamespaceOffered,
    ObjectReceived,
    RequestRejected,
    SubgroupEnded,
    SubscriptionEnded,
    SubscriptionEstablished,
    TrackMalformed,
)
from moqt.session.publish.directory import TrackDirectory
from moqt.testing import ScriptedPeer
from moqt.types import ObjectHeader
from moqt.wire.fields import KeyValue
from moqt.wire.messages import (
    PublishDone,
    PublishNamespace,
    RequestError,
    Setup,
    SubscribeOk,
)
from moqt.wire.options import SetupOptions
from moqt.wire.params import Parameters
from moqt.wire.properties import TrackProperties, serialize_pairs
from moqt.wire.streams import SubgroupHeader
from moqt.wire.subgroup_objects import SubgroupWriter
from moqt.wire.tokens import AuthorizationToken
from tests.session.receiving import ALIAS, NAME, NAMESPACE, established, one, subgroup

GREASE = [0x9D, 0x11C, 0x9D + 0x7F * 1000, 0x9D + 0x7F * ((1 << 56) - 1)]
"""7f * N + 9D: odd and even ones, short and long ones."""


def pair(kind: int) -> KeyValue:
    return KeyValue(kind, b"any" if kind % 2 else 3)


@pytest.mark.parametrize("kind", GREASE)
def test_setup_options(kind: int) -> None:
    """13#1, 9.1#1."""
    peer = ScriptedPeer(setup=False)
    peer.session.start(0.0)
    options = SetupOptions(max_filter_ranges=3, unknown=(pair(kind), pair(kind)))
    peer.send(peer.open_uni(), Setup(options))
    assert peer.session.is_established
    assert peer.session.peer_options is not None
    assert peer.session.peer_options.max_filter_ranges == 3


@pytest.mark.parametrize("kind", [*GREASE, 0x78, 0x3801, 0x3FFF, 0x8000])
def test_properties_of_tracks_and_objects(kind: int) -> None:
    """13#1, 8.4#1: they are handed on, and change nothing."""
    peer = ScriptedPeer()
    peer.session.subscribe(NAME, now=0.0)
    peer.send(0, SubscribeOk(ALIAS, Parameters(), TrackProperties((pair(kind),))))
    assert one(peer.take(SubscriptionEstablished)).properties.pairs == (pair(kind),)
    writer = SubgroupWriter(
        SubgroupHeader(
            track_alias=ALIAS,
            group_id=0,
            subgroup_id=0,
            publisher_priority=None,
            has_properties=True,
            is_first_object=True,
        )
    )
    header = ObjectHeader(0, 0, 0, 128, 1, properties=serialize_pairs((pair(kind),)))
    octets = writer.head + writer.encode(header) + b"x"
    peer.send_octets(peer.open_uni(), octets, fin=True)
    event = one(peer.take(ObjectReceived))
    assert bytes(event.object.payload or b"") == b"x"
    assert event.object.header.properties == header.properties
    assert peer.take(TrackMalformed) == []
    assert not peer.session.is_closed


@pytest.mark.parametrize("code", [*GREASE, 0x15, 0x99])
def test_codes_of_all_four_registries(code: int) -> None:
    """13#1, 12.2#1: INTERNAL_ERROR of their table, and no reason to close."""
    peer = ScriptedPeer()
    refused = peer.session.subscribe(NAME, now=0.0)
    peer.send(0, RequestError(code=RequestErrorCode.INTERNAL_ERROR, raw_code=code))
    rejected = one(peer.take(RequestRejected))
    assert (rejected.request_id, rejected.code) == (refused, RequestErrorCode.INTERNAL_ERROR)
    established(peer, stream_id=4)
    stream = peer.open_uni()
    peer.send_octets(stream, subgroup(0, range(2)))
    peer.reset(stream, code)
    assert one(peer.take(SubgroupEnded)).reset is StreamResetCode.INTERNAL_ERROR
    peer.send(4, PublishDone(code=PublishDoneCode.INTERNAL_ERROR, stream_count=1, raw_code=code))
    assert one(peer.take(SubscriptionEnded)).code is PublishDoneCode.INTERNAL_ERROR
    established(peer, stream_id=8)
    peer.cancel(8, code)
    assert one(peer.take(SubscriptionEnded)).code is PublishDoneCode.INTERNAL_ERROR
    assert not peer.session.is_closed
    assert SessionErrorCode.from_wire(code) is SessionErrorCode.INTERNAL_ERROR


@pytest.mark.parametrize("kind", GREASE)
def test_token_types(kind: int) -> None:
    """13#1."""
    peer = ScriptedPeer(Role.SERVER, directory=TrackDirectory())
    token = AuthorizationToken.use_value(kind, b"any")
    parameters = Parameters(authorization_tokens=(token,))
    peer.send(peer.open_bidi(), PublishNamespace(0, NAMESPACE, parameters))
    assert one(peer.take(NamespaceOffered)).namespace == NAMESPACE
    assert not peer.session.is_closed
