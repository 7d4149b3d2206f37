"""One target for each parser entry: any octets give a value or the documented error.

What was read is written and read again, and must be the same. Anything else that is raised, a hang
or unbounded memory is a finding.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from kvcs.conformance.reading import read_manifest
from kvcs.cose import SignedManifest
from kvcs.errors import (
    CodecError,
    ContainerInvalid,
    InvalidDescriptor,
    InvalidName,
    ManifestInvalid,
    ObjectRejected,
    SignatureInvalid,
)
from kvcs.geometry import SegmentSpan
from kvcs.kvsp import BlockShape, Component, Descriptor
from kvcs.kvsp.codecs import BSZSTD, RAW, ZSTD
from kvcs.kvsp.container import parse_container
from kvcs.manifest import Manifest
from kvcs.names import NamespaceForm, PublicationName, parse_track_name
from kvcs.payload import ExpectedTrack, parse_header, verify_data
from moqt.codes import GroupOrder
from moqt.errors import RemoteProtocolError
from moqt.tools.dump import Kind, decode
from moqt.tools.timeline import NotQlog, read_events, timeline
from moqt.types import FullTrackName, Object, TrackNamespace
from moqt.uri import MoqtUri
from moqt.wire import vi64
from moqt.wire.cursor import Reader, Writer
from moqt.wire.datagrams import encode_datagram, parse_datagram
from moqt.wire.fetch_objects import FetchReader
from moqt.wire.fields import read_full_track_name, read_namespace
from moqt.wire.filters import (
    FilterRejected,
    LocationFilter,
    RangeFilter,
    RangeFilterKind,
    RangeFilters,
)
from moqt.wire.framing import MAX_MESSAGE_OCTETS, MessageReader, encode_message
from moqt.wire.object_reader import ObjectTooLarge
from moqt.wire.options import read_options, write_options
from moqt.wire.params import Scope, check_scope, read_parameters, write_parameters
from moqt.wire.properties import ObjectProperties, TrackProperties
from moqt.wire.streams import FetchHeader, SubgroupHeader, parse_stream_head
from moqt.wire.subgroup_objects import SubgroupReader
from moqt.wire.tokens import AuthorizationToken
from tests.fuzz.script import run_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from moqt.types import ObjectHeader
    from moqt.wire.messages import Message
    from moqt.wire.object_reader import StreamItem

__all__ = ["DESCRIPTOR", "TARGETS"]

TARGETS: dict[str, Callable[[bytes], None]] = {}
"""By name; a function's name without `fuzz_`."""

MAX_OBJECT_OCTETS = 1000

DESCRIPTOR = Descriptor(
    model="m", layers=2, block_tokens=4, kv_heads=1, head_dim=2, dtype="bfloat16"
)


def target(function: Callable[[bytes], None]) -> Callable[[bytes], None]:
    TARGETS[function.__name__.removeprefix("fuzz_")] = function
    return function


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


@target
def fuzz_integer(data: bytes) -> None:
    found = vi64.decode(data)
    if found is not None:
        value, length = found
        assert vi64.decode(vi64.encode(value)) == (value, vi64.encoded_length(value))
        assert vi64.encoded_length(value) <= length <= len(data)


@target
def fuzz_messages(data: bytes) -> None:
    """The first octet says where the rest is cut."""
    if not data:
        return
    cut, octets = data[0], data[1:]
    found, error = _read_messages(octets)
    found_in_pieces, error_in_pieces = _read_messages(octets[:cut], octets[cut:])
    assert error == error_in_pieces
    if error:
        return
    assert found == found_in_pieces
    for message in found:
        try:
            again = encode_message(message)
        except ValueError:  # what we would not send: a reason that grew by U+FFFD, filters refused
            continue
        assert MessageReader().feed(again) == [message]


def _read_messages(*pieces: bytes) -> tuple[list[Message], str]:
    """Return the messages of a stream, and the error that ended it."""
    reader = MessageReader()
    found: list[Message] = []
    try:
        for piece in pieces:
            found += reader.feed(piece)
    except RemoteProtocolError as error:
        return found, str(error)
    assert reader.octets_pending < MAX_MESSAGE_OCTETS
    return found, ""


@target
def fuzz_setup_options(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        options = read_options(Reader(data, "SETUP"))
        writer = Writer()
        write_options(writer, options)
        assert read_options(Reader(bytes(writer), "SETUP")) == options


SCOPES = [scope for scope in Scope if scope is not Scope.FILL]


@target
def fuzz_parameters(data: bytes) -> None:
    """The first octet chooses the message that they stand in."""
    if not data:
        return
    scope = SCOPES[data[0] % len(SCOPES)]
    with suppress(RemoteProtocolError):
        parameters = read_parameters(Reader(data[1:], "parameters"), scope)
        assert check_scope(parameters, scope) is None
        with suppress(FilterRejected):
            parameters.check_filters(32)
        writer = Writer()
        try:
            write_parameters(writer, parameters, scope)
        except ValueError:  # a filter that is to be refused
            return
        assert read_parameters(Reader(bytes(writer), "parameters"), scope) == parameters


@target
def fuzz_location_filter(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        found = LocationFilter.read(Reader(data, "LOCATION_FILTER"))
        writer = Writer()
        found.write(writer)
        assert LocationFilter.read(Reader(bytes(writer), "LOCATION_FILTER")) == found
        for resolve in (found.resolve_subscription, found.resolve_fetch):
            with suppress(FilterRejected):
                resolve(None)


RANGE_KINDS = list(RangeFilterKind)


@target
def fuzz_range_filter(data: bytes) -> None:
    """The first octet chooses the kind."""
    if len(data) < 2:
        return
    kind = RANGE_KINDS[data[0] % len(RANGE_KINDS)]
    with suppress(RemoteProtocolError):
        found = RangeFilter.parse(kind, data[1:])
        with suppress(FilterRejected):
            RangeFilters((found,)).check(32)
        if found.fault is None and found.ranges:  # without one it is never sent
            assert RangeFilter.parse(kind, found.serialize()) == found


@target
def fuzz_token(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        token = AuthorizationToken.parse(data)
        assert AuthorizationToken.parse(token.serialize()) == token


@target
def fuzz_properties(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        found = ObjectProperties.parse(data)
        found.malformation(1, 1)
        assert ObjectProperties.parse(found.serialize()) == found
    with suppress(RemoteProtocolError):
        track = TrackProperties.parse(data)
        assert track.default_group_order in GroupOrder
        assert track.malformation is None or track.pairs
        assert TrackProperties.parse(track.serialize()) == track


@target
def fuzz_names_on_the_wire(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        namespace = read_namespace(Reader(data, "namespace"))
        assert TrackNamespace.parse(str(namespace)) == namespace
    with suppress(RemoteProtocolError):
        name = read_full_track_name(Reader(data, "name"))
        assert FullTrackName.parse(str(name)) == name


@target
def fuzz_datagram(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        found = parse_datagram(data)
        assert parse_datagram(encode_datagram(found)) == found


@target
def fuzz_data_stream(data: bytes) -> None:
    """Subgroup and fetch streams; the first octet says where the rest is cut, and the order."""
    if not data:
        return
    cut, octets = data[0] >> 1, data[1:]
    order = GroupOrder.DESCENDING if data[0] & 1 else GroupOrder.ASCENDING
    try:
        parsed = parse_stream_head(octets)
    except RemoteProtocolError:
        return
    if parsed is None:
        return
    head, start = parsed
    if not isinstance(head, SubgroupHeader | FetchHeader):
        return
    rest = octets[start:]
    whole = _read_stream(head, start, [rest], order)
    assert _read_stream(head, start, [rest[:cut], rest[cut:]], order) == whole


def _read_stream(
    head: SubgroupHeader | FetchHeader, start: int, pieces: list[bytes], order: GroupOrder
) -> tuple[list[StreamItem], str]:
    """Return what a reader finds, and the error that ended it."""
    reader: SubgroupReader | FetchReader
    if isinstance(head, SubgroupHeader):
        reader = SubgroupReader(
            head, start=start, place=_no_place, max_object_octets=MAX_OBJECT_OCTETS
        )
    else:
        reader = FetchReader(
            head,
            start=start,
            place=_no_place,
            max_object_octets=MAX_OBJECT_OCTETS,
            group_order=order,
        )
    found: list[StreamItem] = []
    at = start
    try:
        for index, piece in enumerate(pieces):
            found += reader.receive(at, piece, index == len(pieces) - 1)
            at += len(piece)
    except (RemoteProtocolError, ObjectTooLarge) as error:
        return found + reader.take_items(), str(error)
    assert reader.is_finished
    assert reader.octets_pending == 0
    octets = sum(item.header.payload_length for item in found if isinstance(item, Object))
    assert octets <= at
    return found, ""


def _no_place(header: ObjectHeader) -> None:
    """Offer no place: the reader keeps payloads."""


@target
def fuzz_session(data: bytes) -> None:
    """A whole session: `script` says how octets become what a peer does."""
    run_script(data)


@target
def fuzz_uri(data: bytes) -> None:
    with suppress(ValueError):
        uri = MoqtUri.parse(_text(data))
        assert MoqtUri.parse(str(uri)) == uri


@target
def fuzz_name_text(data: bytes) -> None:
    text = _text(data)
    with suppress(ValueError):
        assert str(FullTrackName.parse(text)) == text
    with suppress(ValueError):
        assert str(TrackNamespace.parse(text)) == text


@target
def fuzz_publication_name(data: bytes) -> None:
    """Fields are separated by 0xFF; the text form is data too."""
    fields = tuple(field for field in data.split(b"\xff") if field)
    for form in NamespaceForm:
        with suppress(InvalidName, ValueError):
            namespace = TrackNamespace(fields)
            assert PublicationName.parse(namespace, form).namespace(form) == namespace


@target
def fuzz_track_name(data: bytes) -> None:
    with suppress(InvalidName):
        name = parse_track_name(data)
        assert (name if isinstance(name, bytes) else str(name).encode()) == data


@target
def fuzz_descriptor(data: bytes) -> None:
    with suppress(InvalidDescriptor):
        descriptor = Descriptor.from_json(data)
        assert Descriptor.from_json(descriptor.jcs()) == descriptor
        for layer in (0, descriptor.layers - 1):
            assert descriptor.geometry(layer).kv_heads > 0


@target
def fuzz_manifest(data: bytes) -> None:
    with suppress(ManifestInvalid):
        manifest = Manifest.load(data)
        assert Manifest.load(manifest.dump()) == manifest
    reading = read_manifest(data, is_signed=False, trusted=None)
    assert (reading.manifest is None) == bool(reading.json_problem)


@target
def fuzz_signed_manifest(data: bytes) -> None:
    with suppress(SignatureInvalid):
        signed = SignedManifest.parse(data)
        assert isinstance(signed.payload, bytes)
    read_manifest(data, is_signed=True, trusted=None)


@target
def fuzz_payload(data: bytes) -> None:
    track = ExpectedTrack(
        component=Component.K,
        codec=RAW.value,
        span=SegmentSpan(segment=0, first_block=0, blocks=4),
        layers=4,
        block_tokens=4,
    )
    with suppress(ObjectRejected):
        header = parse_header(data)
        digest = track.checked_digest(
            data,
            group_id=header.layer,
            object_id=header.block_index,
            payload_octets=len(data),
        )
        assert digest == header.data_digest
        track.check_location(header.layer, header.block_index)
        verify_data(digest, (data[68:],))


@target
def fuzz_container(data: bytes) -> None:
    with suppress(ContainerInvalid):
        container = parse_container(data, DESCRIPTOR)
        assert len(container.layers) == DESCRIPTOR.layers


@target
def fuzz_codec(data: bytes) -> None:
    """The first octet chooses codec and component."""
    if not data:
        return
    codec = (RAW, ZSTD, BSZSTD)[data[0] % 3]
    component = (Component.K, Component.KV)[data[0] >> 7]
    shape = BlockShape(DESCRIPTOR.geometry(0), component, DESCRIPTOR.block_tokens)
    with suppress(CodecError):
        raw = codec.decode(data[1:], shape)
        assert len(raw) == shape.raw_octets
        sections = []
        at = 0
        for section in shape.sections:
            sections.append(raw[at : at + section])
            at += section
        assert codec.decode(b"".join(codec.encode(sections, shape)), shape) == raw


DUMPED = list(Kind)


@target
def fuzz_dump(data: bytes) -> None:
    """What the tool says of captured octets; the first octet chooses what they are taken for."""
    if not data:
        return
    kind = DUMPED[data[0] % len(DUMPED)]
    records = decode(kind, data[1:], descending=bool(data[0] & 0x80))
    assert records or not data[1:]
    assert all(json.loads(json.dumps(record)) == record for record in records)
    assert all(record["offset"] <= len(data) for record in records)


@target
def fuzz_qlog(data: bytes) -> None:
    with suppress(NotQlog):
        for line in timeline(read_events(data)):
            assert line.isprintable()
