"""Every vector of tests/vectors/moqt22.json: decoded value, outcome, and canonical encoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from moqt.codes import GroupOrder, RequestErrorCode, SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.types import FullTrackName, Location, Object, ObjectHeader, TrackNamespace
from moqt.wire import messages as m
from moqt.wire import vi64
from moqt.wire.cursor import Reader, Writer
from moqt.wire.datagrams import (
    DatagramFlag,
    ObjectDatagram,
    PaddingDatagram,
    encode_datagram,
    parse_datagram,
)
from moqt.wire.fetch_objects import FetchFlag, FetchReader, FetchWriter
from moqt.wire.filters import (
    FilterRejected,
    LocationFilter,
    LocationFilterType,
    LocationRange,
    RangeFilter,
)
from moqt.wire.framing import MessageReader, encode_message
from moqt.wire.object_reader import EndOfRangeRead, StreamFinished, StreamItem
from moqt.wire.options import OptionType, SetupOptions
from moqt.wire.params import FillParameters, Parameters, ParameterType
from moqt.wire.properties import ObjectProperties, TrackProperties
from moqt.wire.rules import (
    RequestKind,
    validate_goaway,
    validate_request_error,
    validate_request_ok,
    validate_request_update,
    validate_setup,
)
from moqt.wire.streams import FetchHeader, SubgroupHeader, parse_stream_head
from moqt.wire.subgroup_objects import SubgroupReader, SubgroupWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moqt.wire.fields import KeyValue
    from moqt.wire.tokens import AuthorizationToken

Vector = dict[str, Any]

FILE = Path(__file__).parents[2] / "vectors" / "moqt22.json"
VECTORS: list[Vector] = json.loads(FILE.read_text())["vectors"]
MAX_FILTER_RANGES = 32

CONTEXTS = {
    "SUBSCRIPTION": RequestKind.SUBSCRIBE,
    **{kind.value: kind for kind in RequestKind},
}

MARKERS = {
    "NON_EXISTENT": "end-of-non-existent-range",
    "UNKNOWN": "end-of-unknown-range",
    "TIMED_OUT": "end-of-timed-out-range",
}


def named(kind: str) -> list[Any]:
    found = [pytest.param(v, id=v["name"]) for v in VECTORS if v["kind"] == kind]
    assert found
    return found


def test_no_vector_is_left_out() -> None:
    kinds = {v["kind"] for v in VECTORS}
    assert len(VECTORS) == 281
    assert kinds == {
        "varint",
        "control",
        "subgroup-stream",
        "fetch-stream",
        "datagram",
        "location-filter-resolution",
    }


def expect_close(vector: Vector, error: RemoteProtocolError) -> None:
    """Without a code in the vector the draft leaves it open; ours is PROTOCOL_VIOLATION."""
    code = vector["expect"].get("code", "PROTOCOL_VIOLATION")
    assert error.code is SessionErrorCode[code], error


# Values in the form of the vectors' "decoded".


def names(namespace: TrackNamespace) -> list[str]:
    return [part.hex() for part in namespace.fields]


def place(location: Location) -> dict[str, int]:
    return {"group": location.group_id, "object": location.object_id}


def pairs(found: tuple[KeyValue, ...]) -> list[Vector]:
    return [
        {"type": p.type, "value": p.value}
        if isinstance(p.value, int)
        else {"type": p.type, "value_hex": p.value.hex()}
        for p in found
    ]


def token(one: AuthorizationToken) -> Vector:
    out: Vector = {"alias_type": int(one.alias_type)}
    if one.alias is not None:
        out["alias"] = one.alias
    if one.value is not None:
        out |= {"token_type": one.token_type, "value_hex": one.value.hex()}
    return out


def location_filter(one: LocationFilter) -> Vector:
    fields: dict[LocationFilterType, tuple[str, ...]] = {
        LocationFilterType.NONE: (),
        LocationFilterType.NEXT_OBJECT: (),
        LocationFilterType.RELATIVE: ("start_group",),
        LocationFilterType.ABSOLUTE: ("start_group", "start_object"),
        LocationFilterType.END_GROUP: ("start_group", "start_object", "end_group"),
        LocationFilterType.END_OBJECT: ("start_group", "start_object", "end_group", "end_object"),
    }
    return {"type": int(one.type), **{name: getattr(one, name) for name in fields[one.type]}}


def range_filter(one: RangeFilter) -> Vector:
    out: Vector = {"set_id": one.set_id, "ranges": [[r.first, r.last] for r in one.ranges]}
    if one.property_type is not None:
        out["property_type"] = one.property_type
    return out


SIMPLE = {
    ParameterType.OBJECT_DELIVERY_TIMEOUT: "object_delivery_timeout_ms",
    ParameterType.RENDEZVOUS_TIMEOUT: "rendezvous_timeout_ms",
    ParameterType.SUBGROUP_DELIVERY_TIMEOUT: "subgroup_delivery_timeout_ms",
    ParameterType.EXPIRES: "expires_ms",
    ParameterType.FILL_TIMEOUT: "fill_timeout_ms",
    ParameterType.FORWARD: "forward",
    ParameterType.SUBSCRIBER_PRIORITY: "subscriber_priority",
    ParameterType.GROUP_ORDER: "group_order",
    ParameterType.NEW_GROUP_REQUEST: "new_group_request",
    ParameterType.INCLUDE_PROPERTIES: "include_properties",
}


def parameters(of: Parameters | FillParameters) -> list[Vector]:
    values: list[tuple[int, Any]] = [
        (kind, int(value))
        for kind, attribute in SIMPLE.items()
        if (value := getattr(of, attribute, None)) is not None
    ]
    if of.location_filter is not None:
        values.append((ParameterType.LOCATION_FILTER, location_filter(of.location_filter)))
    values += [(one.kind, range_filter(one)) for one in of.range_filters]
    values += [(kind, {"remove": True}) for kind in of.removed_range_filters]
    if isinstance(of, Parameters):
        values += [(ParameterType.AUTHORIZATION_TOKEN, token(t)) for t in of.authorization_tokens]
        if of.largest is not None:
            values.append((ParameterType.LARGEST_OBJECT, place(of.largest)))
        if of.fill is not None:
            values.append((ParameterType.FILL_PARAMETERS, parameters(of.fill)))
        if of.namespace_prefix is not None:
            values.append((ParameterType.TRACK_NAMESPACE_PREFIX, names(of.namespace_prefix)))
    values.sort(key=lambda entry: entry[0])
    return [
        {"type": int(kind), "name": ParameterType(kind).name, "value": value}
        for kind, value in values
    ]


def options(of: SetupOptions) -> list[Vector]:
    out = pairs(of.unknown)
    for kind, text in (
        (OptionType.PATH, of.path),
        (OptionType.AUTHORITY, of.authority),
        (OptionType.MOQT_IMPLEMENTATION, of.implementation),
    ):
        if text is not None:
            out.append({"type": int(kind), "value_hex": text.encode().hex()})
    for kind, number in (
        (OptionType.MAX_AUTH_TOKEN_CACHE_SIZE, of.max_auth_token_cache_size),
        (OptionType.MAX_FILTER_RANGES, of.max_filter_ranges),
        (OptionType.MAX_REQUEST_UPDATES, of.max_request_updates),
    ):
        if number:
            out.append({"type": int(kind), "value": number})
    out += [
        {"type": 3, "value_hex": one.serialize().hex(), "token": token(one)}
        for one in of.authorization_tokens
    ]
    return sorted(out, key=lambda entry: int(entry["type"]))


def track(name: FullTrackName) -> Vector:
    return {"namespace_hex": names(name.namespace), "name_hex": name.name.hex()}


def message_form(message: m.Message) -> Vector:
    match message:
        case m.Setup():
            return {"options": options(message.options)}
        case m.Goaway():
            return {"new_session_uri": message.new_session_uri, "timeout": message.timeout_ms}
        case m.RequestError():
            interval = message.retry_interval_ms
            out: Vector = {
                "error_code": message.code if message.raw_code is None else message.raw_code,
                "retry_interval": 0 if interval is None else interval + 1,
                "reason": message.reason,
            }
            if message.redirect is not None:
                uri = {"connect_uri": message.redirect.connect_uri}
                out["redirect"] = uri | track(message.redirect.target)
            return out
        case m.PublishDone():
            count = message.stream_count
            return {
                "status_code": message.code if message.raw_code is None else message.raw_code,
                "stream_count": vi64.MAX_VI64 if count is None else count,
                "reason": message.reason,
            }
        case m.Namespace() | m.NamespaceDone():
            return {"suffix_hex": names(message.suffix)}
        case m.PublishSkipped():
            return {"suffix_hex": names(message.suffix), "name_hex": message.name.hex()}
        case m.FetchOk():
            return {
                "end_of_track": int(message.end_of_track),
                "end_location": place(message.end),
                "parameters": [],
                "track_properties": pairs(message.properties.pairs),
            }
    return common_form(message)


def common_form(message: m.Message) -> Vector:
    """The fields that have the same name and meaning in several messages."""
    out: Vector = {}
    for attribute in ("request_id", "track_alias"):
        if hasattr(message, attribute):
            out[attribute] = getattr(message, attribute)
    name = getattr(message, "name", None)
    if isinstance(name, FullTrackName):
        out |= track(name)
    for attribute in ("namespace", "prefix"):
        if hasattr(message, attribute):
            out["namespace_hex"] = names(getattr(message, attribute))
    held = getattr(message, "parameters", None)
    if isinstance(held, Parameters):
        out["parameters"] = parameters(held)
    properties = getattr(message, "properties", None)
    if isinstance(properties, TrackProperties):
        out["track_properties"] = pairs(properties.pairs)
    return out


# One test for each kind of vector.


@pytest.mark.parametrize("vector", named("varint"))
def test_integers(vector: Vector) -> None:
    """8.1#1: MOQT-22 8.1."""
    octets = bytes.fromhex(vector["hex"])
    found = vi64.decode(octets)
    if vector["expect"]["outcome"] == "incomplete":
        assert found is None
        return
    assert found == (vector["decoded"]["value"], vector["decoded"]["length"])
    if vector["canonical"]:
        assert vi64.encode(found[0]) == octets


def judge(message: m.Message, vector: Vector) -> None:
    """Apply the rules that need the vector's context and receiver."""
    context = CONTEXTS.get(vector.get("context", ""))
    by_server = vector.get("received_by") == "server"
    match message:
        case m.Setup() if "received_by" in vector:
            validate_setup(message.options, receiver_is_server=by_server)
        case m.Goaway() if "received_by" in vector:
            validate_goaway(message, receiver_is_server=by_server)
        case m.RequestOk() if context is not None:
            validate_request_ok(message, context)
        case m.RequestError() if context is not None:
            validate_request_error(message, context, receiver_is_server=by_server)
        case m.RequestUpdate() if context is not None:
            validate_request_update(message, context)
    held = getattr(message, "parameters", None)
    if isinstance(held, Parameters):
        held.check_filters(MAX_FILTER_RANGES)


@pytest.mark.parametrize("vector", named("control"))
def test_control_messages(vector: Vector) -> None:
    """MOQT-22 9."""
    octets = bytes.fromhex(vector["hex"])
    reader = MessageReader()
    match vector["expect"]["outcome"]:
        case "close-session":
            with pytest.raises(RemoteProtocolError) as caught:  # noqa: PT012
                for message in reader.feed(octets):
                    judge(message, vector)
            expect_close(vector, caught.value)
        case "reject-request":
            (message,) = reader.feed(octets)
            with pytest.raises(FilterRejected) as rejected:
                judge(message, vector)
            assert rejected.value.code is RequestErrorCode[vector["expect"]["code"]]
        case "incomplete":
            assert reader.feed(octets) == []
            assert reader.octets_pending == len(octets)
        case "ok":
            (message,) = reader.feed(octets)
            judge(message, vector)
            assert message.TYPE.name == vector["message"]
            assert message_form(message) == vector["decoded"]
            encoded = encode_message(message)
            assert (encoded == octets) == vector["canonical"]
            assert MessageReader().feed(encoded) == [message]
            reader.finish()
        case other:
            pytest.fail(other)


def read_stream(vector: Vector) -> tuple[SubgroupReader | FetchReader, list[StreamItem]]:
    octets = bytes.fromhex(vector["hex"])
    parsed = parse_stream_head(octets)
    if parsed is None:
        raise EOFError
    head, start = parsed
    reader: SubgroupReader | FetchReader
    if isinstance(head, SubgroupHeader):
        reader = SubgroupReader(head, start=start, place=lambda _: None, max_object_octets=1000)
    else:
        assert isinstance(head, FetchHeader)
        order = GroupOrder[vector.get("group_order", "ascending").upper()]
        reader = FetchReader(
            head, start=start, place=lambda _: None, max_object_octets=1000, group_order=order
        )
    items = list(reader.receive(start, octets[start:], vector.get("fin", False)))
    return reader, items


def check_stream(vector: Vector) -> tuple[SubgroupReader | FetchReader, list[StreamItem]] | None:
    outcome = vector["expect"]["outcome"]
    if outcome == "close-session":
        with pytest.raises(RemoteProtocolError) as caught:
            read_stream(vector)
        expect_close(vector, caught.value)
        return None
    if outcome == "incomplete":
        with pytest.raises(EOFError):
            read_stream(vector)
        return None
    assert outcome == "ok"
    reader, items = read_stream(vector)
    if vector.get("fin"):
        assert isinstance(items.pop(), StreamFinished)
    assert reader.is_finished == vector.get("fin", False)
    assert reader.octets_pending == 0
    return reader, items


def payload(item: Object) -> bytes:
    assert item.payload is not None
    return bytes(item.payload)


@pytest.mark.parametrize("vector", named("subgroup-stream"))
def test_subgroup_streams(vector: Vector) -> None:
    """MOQT-22 11.3.1."""
    checked = check_stream(vector)
    if checked is None:
        return
    reader, items = checked
    assert isinstance(reader, SubgroupReader)
    head = reader.header
    writer = SubgroupWriter(head)
    encoded = writer.head
    objects = []
    for item in items:
        assert isinstance(item, Object)
        form: Vector = {"object_id": item.header.object_id}
        if head.has_properties:
            form["properties"] = pairs(ObjectProperties.parse(item.header.properties).pairs)
        form |= {"status": int(item.header.status), "payload_hex": payload(item).hex()}
        objects.append(form)
        assert item.header.group_id == head.group_id
        assert item.header.subgroup_id == reader.subgroup_id
        encoded += writer.encode(item.header) + payload(item)
    assert {
        "header": {
            "type_flags": bytes.fromhex(vector["hex"])[0],
            "track_alias": head.track_alias,
            "group_id": head.group_id,
            "subgroup_id": reader.subgroup_id,
            "priority": head.publisher_priority,
            "first_object": head.is_first_object,
            "end_of_group": head.ends_group,
        },
        "objects": objects,
    } == vector["decoded"]
    assert (encoded.hex() == vector["hex"]) == vector["canonical"]


def fetch_form(header: ObjectHeader, item: Object) -> Vector:
    return {
        "group_id": header.group_id,
        "object_id": header.object_id,
        "subgroup_id": header.subgroup_id,
        "priority": header.publisher_priority,
        "datagram": header.subgroup_id is None,
        "properties": pairs(ObjectProperties.parse(header.properties).pairs),
        "payload_hex": payload(item).hex(),
    }


@pytest.mark.parametrize("vector", named("fetch-stream"))
def test_fetch_streams(vector: Vector) -> None:
    """MOQT-22 11.4.1."""
    checked = check_stream(vector)
    if checked is None:
        return
    reader, items = checked
    assert isinstance(reader, FetchReader)
    order = GroupOrder[vector.get("group_order", "ascending").upper()]
    writer = FetchWriter(reader.header, order)
    encoded = writer.head
    forms: list[Mapping[str, Any]] = []
    for item in items:
        match item:
            case Object():
                flags = vector["decoded"]["items"][len(forms)]["flags"]
                explicit = bool(flags & FetchFlag.OBJECT_ID_DELTA)
                octets = writer.encode(item.header, write_object_id=explicit)
                forms.append({"flags": octets[0], **fetch_form(item.header, item)})
                encoded += octets + payload(item)
            case EndOfRangeRead():
                forms.append(
                    {
                        "marker": MARKERS[item.status.name],
                        "group_id": item.last.group_id,
                        "object_id": item.last.object_id,
                    }
                )
                encoded += writer.end_of_range(item.status, item.last)
            case _:
                pytest.fail(str(item))
    assert {"request_id": reader.header.request_id, "items": forms} == vector["decoded"]
    assert (encoded.hex() == vector["hex"]) == vector["canonical"]


@pytest.mark.parametrize("vector", named("datagram"))
def test_datagrams(vector: Vector) -> None:
    """MOQT-22 11.2, 11.5."""
    octets = bytes.fromhex(vector["hex"])
    if vector["expect"]["outcome"] == "close-session":
        with pytest.raises(RemoteProtocolError) as caught:
            parse_datagram(octets)
        expect_close(vector, caught.value)
        return
    found = parse_datagram(octets)
    if isinstance(found, PaddingDatagram):
        assert vector["decoded"] == {"padding": True, "length": found.length}
        assert encode_datagram(found) == octets
        return
    assert isinstance(found, ObjectDatagram)
    assert {
        "type_flags": octets[0],
        "track_alias": found.track_alias,
        "group_id": found.group_id,
        "object_id": found.object_id,
        "priority": found.publisher_priority,
        "end_of_group": found.ends_group,
        "properties": pairs(ObjectProperties.parse(found.properties).pairs),
        "status": int(found.status),
        "payload_hex": found.payload.hex(),
    } == vector["decoded"]
    explicit = not octets[0] & DatagramFlag.ZERO_OBJECT_ID
    encoded = encode_datagram(found, write_zero_object_id=explicit)
    assert (encoded == octets) == vector["canonical"]


@pytest.mark.parametrize("vector", named("location-filter-resolution"))
def test_location_filter_resolution(vector: Vector) -> None:
    """MOQT-22 3.3.1, 9.20.9."""
    octets = bytes.fromhex(vector["hex"])
    reader = Reader(octets, "filter")
    found = LocationFilter.read(reader)
    reader.expect_end()
    assert location_filter(found) == vector["filter"]
    writer = Writer()
    found.write(writer)
    assert bytes(writer) == octets
    at = vector["largest"]
    largest = None if at is None else Location(at["group"], at["object"])
    resolve = getattr(
        found, {"subscribe": "resolve_subscription"}.get(vector["use"], f"resolve_{vector['use']}")
    )
    match vector["expect"]["outcome"]:
        case "reject-request":
            with pytest.raises(FilterRejected) as rejected:
                resolve(largest)
            assert rejected.value.code is RequestErrorCode[vector["expect"]["code"]]
        case "no-fill-stream":
            assert resolve(largest) is None
        case "ok":
            end = vector["decoded"]["end"]
            assert resolve(largest) == LocationRange(
                Location(*vector["decoded"]["start"]), None if end is None else Location(*end)
            )
        case other:
            pytest.fail(other)
