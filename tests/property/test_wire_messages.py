"""Round trip of every control message and datagram; broken octets give documented errors only."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moqt.codes import GroupOrder, ObjectStatus, PublishDoneCode, RequestErrorCode
from moqt.errors import RemoteProtocolError
from moqt.types import FullTrackName, Location, TrackNamespace
from moqt.uri import MoqtUri
from moqt.wire import messages as m
from moqt.wire import vi64
from moqt.wire.datagrams import ObjectDatagram, PaddingDatagram, encode_datagram, parse_datagram
from moqt.wire.fields import KeyValue
from moqt.wire.filters import (
    FilterRejected,
    IdRange,
    LocationFilter,
    RangeFilter,
    RangeFilterKind,
)
from moqt.wire.framing import MAX_MESSAGE_OCTETS, MESSAGES, MessageReader, encode_message
from moqt.wire.options import OptionType, SetupOptions
from moqt.wire.params import ALLOWED, FillParameters, Parameters, ParameterType, Scope
from moqt.wire.properties import ObjectProperties, TrackProperties, serialize_pairs
from moqt.wire.tokens import AuthorizationToken

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "moqt22.json").read_text())["vectors"]

# Values near the borders of the nine lengths as often as any others.
numbers = st.one_of(
    st.integers(0, 200),
    st.integers(0, vi64.MAX_VI64),
    st.sampled_from([(1 << bits) + off for bits in range(7, 64, 7) for off in (-1, 0)]),
)
octet = st.integers(0, 255)
names = st.builds(
    FullTrackName,
    st.lists(st.binary(min_size=1, max_size=20), max_size=32).map(
        lambda fields: TrackNamespace(tuple(fields))
    ),
    st.binary(max_size=40),
)
namespaces = names.map(lambda name: name.namespace)
locations = st.builds(Location, numbers, numbers)
texts = st.text(max_size=100)
orders = st.sampled_from(GroupOrder)


def optional(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), inner)


tokens = st.one_of(
    st.builds(AuthorizationToken.delete, numbers),
    st.builds(AuthorizationToken.register, numbers, numbers, st.binary(max_size=30)),
    st.builds(AuthorizationToken.use_alias, numbers),
    st.builds(AuthorizationToken.use_value, numbers, st.binary(max_size=30)),
)


@st.composite
def location_filters(draw: st.DrawFn) -> LocationFilter:
    start = draw(locations)
    end = draw(st.integers(start.group_id, vi64.MAX_VI64))
    low = start.object_id if end == start.group_id else 0
    return draw(
        st.sampled_from(
            [
                LocationFilter.none(),
                LocationFilter.next_object(),
                LocationFilter.relative(start.group_id),
                LocationFilter.absolute(start),
                LocationFilter.until_group(start, end),
                LocationFilter.range(start, Location(end, draw(st.integers(low, vi64.MAX_VI64)))),
            ]
        )
    )


@st.composite
def range_filters(draw: st.DrawFn, *, kinds: list[RangeFilterKind]) -> RangeFilter:
    kind = draw(st.sampled_from(kinds))
    top = 255 if kind is RangeFilterKind.PRIORITY else vi64.MAX_VI64
    edges = sorted(draw(st.lists(st.integers(0, top), min_size=1, max_size=8)))
    ranges = [IdRange(*edges[at : at + 2]) for at in range(0, len(edges), 2)]
    of_property = kind in (RangeFilterKind.OBJECT_PROPERTY, RangeFilterKind.TRACK_PROPERTY)
    property_type = draw(numbers) & ~1 if of_property else None
    return RangeFilter(kind, tuple(ranges), draw(octet), property_type)


OBJECT_KINDS: list[RangeFilterKind] = [*RangeFilterKind][:-1]  # not TRACK_PROPERTY


def in_kind_order(filters: list[RangeFilter]) -> tuple[RangeFilter, ...]:
    """The wire keeps the order within a kind only."""
    return tuple(sorted(filters, key=lambda one: one.kind))


fills = st.builds(
    FillParameters,
    fill_timeout_ms=optional(numbers),
    subscriber_priority=optional(octet),
    location_filter=optional(location_filters()),
    group_order=optional(orders),
    range_filters=st.lists(range_filters(kinds=OBJECT_KINDS), max_size=5).map(in_kind_order),
)

FIELDS: dict[ParameterType, tuple[str, st.SearchStrategy[Any]]] = {
    ParameterType.OBJECT_DELIVERY_TIMEOUT: ("object_delivery_timeout_ms", numbers),
    ParameterType.AUTHORIZATION_TOKEN: (
        "authorization_tokens",
        st.lists(tokens, max_size=3).map(tuple),
    ),
    ParameterType.RENDEZVOUS_TIMEOUT: ("rendezvous_timeout_ms", numbers),
    ParameterType.SUBGROUP_DELIVERY_TIMEOUT: ("subgroup_delivery_timeout_ms", numbers),
    ParameterType.EXPIRES: ("expires_ms", numbers),
    ParameterType.LARGEST_OBJECT: ("largest", locations),
    ParameterType.FILL_TIMEOUT: ("fill_timeout_ms", numbers),
    ParameterType.FORWARD: ("forward", st.booleans()),
    ParameterType.SUBSCRIBER_PRIORITY: ("subscriber_priority", octet),
    ParameterType.LOCATION_FILTER: ("location_filter", location_filters()),
    ParameterType.GROUP_ORDER: ("group_order", orders),
    ParameterType.FILL_PARAMETERS: ("fill", fills),
    ParameterType.NEW_GROUP_REQUEST: ("new_group_request", numbers),
    ParameterType.TRACK_NAMESPACE_PREFIX: ("namespace_prefix", namespaces),
    ParameterType.INCLUDE_PROPERTIES: ("include_properties", st.booleans()),
}


@st.composite
def parameters(draw: st.DrawFn, scope: Scope) -> Parameters:
    """Any parameters that may stand in `scope`."""
    allowed = ALLOWED[scope]
    values = {
        name: draw(strategy)
        for kind, (name, strategy) in FIELDS.items()
        if kind in allowed and draw(st.booleans())
    }
    kinds = [kind for kind in RangeFilterKind if ParameterType(kind) in allowed]
    if kinds:
        found = draw(st.lists(range_filters(kinds=kinds), max_size=4))
        values["range_filters"] = in_kind_order(found)
        values["removed_range_filters"] = draw(st.frozensets(st.sampled_from(kinds), max_size=2))
    return Parameters(**values)


@st.composite
def key_values(draw: st.DrawFn, *, without: frozenset[int] = frozenset()) -> tuple[KeyValue, ...]:
    kinds = draw(st.lists(numbers.filter(lambda kind: kind not in without), max_size=5))
    return tuple(
        KeyValue(kind, draw(st.binary(max_size=20)) if kind % 2 else draw(numbers))
        for kind in sorted(kinds)
    )


JUDGED = frozenset({0x0B, 0x0E, 0x22, 0x30})
track_properties = st.builds(
    TrackProperties.of,
    default_publisher_priority=optional(octet),
    default_group_order=optional(orders),
    dynamic_groups=optional(st.booleans()),
    max_cache_duration_ms=optional(numbers),
    other=key_values(without=JUDGED),
)

setups = st.builds(
    m.Setup,
    st.builds(
        SetupOptions,
        path=optional(texts),
        authority=optional(texts),
        authorization_tokens=st.lists(tokens, max_size=2).map(tuple),
        max_auth_token_cache_size=numbers,
        max_filter_ranges=numbers,
        implementation=optional(texts),
        max_request_updates=numbers,
        unknown=key_values(without=frozenset(OptionType)),
    ),
)

CODES = [code for code in RequestErrorCode if code is not RequestErrorCode.REDIRECT]
unknown_codes = st.integers(0x1000, vi64.MAX_VI64)
errors = st.one_of(
    st.builds(
        m.RequestError,
        code=st.sampled_from(CODES),
        reason=texts,
        retry_interval_ms=optional(st.integers(0, vi64.MAX_VI64 - 1)),
    ),
    st.builds(
        m.RequestError, code=st.just(RequestErrorCode.INTERNAL_ERROR), raw_code=unknown_codes
    ),
    st.builds(
        m.RequestError,
        code=st.just(RequestErrorCode.REDIRECT),
        redirect=st.builds(m.Redirect, texts, names),
    ),
)
dones = st.one_of(
    st.builds(
        m.PublishDone,
        code=st.sampled_from(PublishDoneCode),
        stream_count=optional(st.integers(0, vi64.MAX_VI64 - 1)),
        reason=texts,
    ),
    st.builds(
        m.PublishDone,
        code=st.just(PublishDoneCode.INTERNAL_ERROR),
        stream_count=st.none(),
        raw_code=unknown_codes,
    ),
)

MESSAGE_STRATEGIES: dict[type[m.Message], st.SearchStrategy[Any]] = {
    m.Setup: setups,
    m.Goaway: st.builds(m.Goaway, texts, numbers),
    m.RequestOk: st.builds(m.RequestOk, parameters(Scope.REQUEST_OK), track_properties),
    m.RequestError: errors,
    m.RequestUpdate: st.builds(m.RequestUpdate, numbers, parameters(Scope.REQUEST_UPDATE)),
    m.Subscribe: st.builds(m.Subscribe, numbers, names, parameters(Scope.SUBSCRIBE)),
    m.SubscribeOk: st.builds(
        m.SubscribeOk, numbers, parameters(Scope.SUBSCRIBE_OK), track_properties
    ),
    m.TrackStatus: st.builds(m.TrackStatus, numbers, names, parameters(Scope.TRACK_STATUS)),
    m.Publish: st.builds(
        m.Publish, numbers, names, numbers, parameters(Scope.PUBLISH), track_properties
    ),
    m.PublishDone: dones,
    m.PublishStateNotify: st.builds(m.PublishStateNotify, parameters(Scope.PUBLISH_STATE_NOTIFY)),
    m.Fetch: st.builds(m.Fetch, numbers, names, parameters(Scope.FETCH)),
    m.FetchOk: st.builds(m.FetchOk, st.booleans(), locations, track_properties),
    m.PublishNamespace: st.builds(
        m.PublishNamespace, numbers, namespaces, parameters(Scope.PUBLISH_NAMESPACE)
    ),
    m.SubscribeNamespace: st.builds(
        m.SubscribeNamespace, numbers, namespaces, parameters(Scope.SUBSCRIBE_NAMESPACE)
    ),
    m.SubscribeTracks: st.builds(
        m.SubscribeTracks, numbers, namespaces, parameters(Scope.SUBSCRIBE_TRACKS)
    ),
    m.Namespace: st.builds(m.Namespace, namespaces),
    m.NamespaceDone: st.builds(m.NamespaceDone, namespaces),
    m.PublishSkipped: st.builds(m.PublishSkipped, namespaces, st.binary(max_size=40)),
}


def test_every_message_has_a_strategy() -> None:
    assert set(MESSAGE_STRATEGIES) == set(MESSAGES.values())


@given(numbers)
def test_integers_come_back(value: int) -> None:
    encoded = vi64.encode(value)
    assert len(encoded) == vi64.encoded_length(value)
    assert vi64.decode(encoded) == (value, len(encoded))
    assert all(vi64.decode(encoded[:cut]) is None for cut in range(len(encoded)))


@pytest.mark.parametrize("kind", MESSAGE_STRATEGIES, ids=lambda kind: kind.__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_messages_come_back(kind: type[m.Message], data: st.DataObject) -> None:
    """Whole, octet by octet, and two in a row."""
    message = data.draw(MESSAGE_STRATEGIES[kind])
    octets = encode_message(message)
    assert MessageReader().feed(octets * 2) == [message, message]
    reader = MessageReader()
    cut = data.draw(st.integers(0, len(octets)))
    assert reader.feed(octets[:cut]) + reader.feed(octets[cut:]) == [message]
    reader.finish()


datagrams = st.one_of(
    st.builds(PaddingDatagram, st.integers(0, 50)),
    st.builds(
        ObjectDatagram,
        track_alias=numbers,
        group_id=numbers,
        object_id=numbers,
        publisher_priority=optional(octet),
        ends_group=st.booleans(),
        properties=key_values().map(serialize_pairs),
        payload=st.binary(max_size=30),
    ),
    st.builds(
        ObjectDatagram,
        track_alias=numbers,
        group_id=numbers,
        object_id=numbers,
        status=st.sampled_from(ObjectStatus),
    ),
)


@settings(max_examples=100, deadline=None)
@given(datagrams)
def test_datagrams_come_back(datagram: ObjectDatagram | PaddingDatagram) -> None:
    assert parse_datagram(encode_datagram(datagram)) == datagram


def try_messages(octets: bytes) -> None:
    reader = MessageReader()
    try:
        found = reader.feed(octets)
    except RemoteProtocolError:
        return
    assert reader.octets_pending < MAX_MESSAGE_OCTETS
    for message in found:
        held = getattr(message, "parameters", None)
        if isinstance(held, Parameters):
            assert held.types <= frozenset(ParameterType)
            try:
                held.check_filters(32)
            except FilterRejected:
                continue  # a filter that we would not send either
        with contextlib.suppress(ValueError):  # a reason that grew by U+FFFD, a fill of 10 filters
            assert MessageReader().feed(encode_message(message)) == [message]


@st.composite
def damaged(draw: st.DrawFn, kinds: tuple[str, ...]) -> bytes:
    """A vector's octets with a few of them changed, cut out or put in."""
    hexes = [v["hex"] for v in VECTORS if v["kind"] in kinds and len(v["hex"]) < 400]
    octets = bytearray.fromhex(draw(st.sampled_from(hexes)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(octets)))
        octets[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    return bytes(octets)


@settings(max_examples=400, deadline=None)
@given(damaged(("control",)))
def test_damaged_messages_give_documented_errors(octets: bytes) -> None:
    try_messages(octets)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(MESSAGES)), st.binary(max_size=60))
def test_random_bodies_give_documented_errors(kind: int, body: bytes) -> None:
    try_messages(vi64.encode(kind) + len(body).to_bytes(2, "big") + body)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=30), damaged(("datagram",))))
def test_random_datagrams_give_documented_errors(octets: bytes) -> None:
    try:
        found = parse_datagram(octets)
    except RemoteProtocolError:
        return
    assert parse_datagram(encode_datagram(found)) == found


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), numbers, numbers)
def test_random_properties_give_documented_errors(
    octets: bytes, group_id: int, object_id: int
) -> None:
    with contextlib.suppress(RemoteProtocolError):
        found = ObjectProperties.parse(octets)
        assert found.malformation(group_id, object_id) is None or found.pairs
        assert ObjectProperties.parse(found.serialize()) == found
    with contextlib.suppress(RemoteProtocolError):
        track = TrackProperties.parse(octets)
        assert track.default_group_order in GroupOrder
        assert 0 <= track.default_publisher_priority <= 255
        assert track.malformation is None or track.pairs
        assert TrackProperties.parse(track.serialize()) == track


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=40), st.text(max_size=40).map(lambda t: f"moqt://{t}")))
def test_random_addresses_are_read_or_refused(text: str) -> None:
    try:
        uri = MoqtUri.parse(text)
    except ValueError:
        return
    assert MoqtUri.parse(str(uri)) == uri
