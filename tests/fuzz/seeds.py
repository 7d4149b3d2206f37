"""Writes the corpus: `python -m tests.fuzz.seeds`. Files that are there already stay.

Seeds come from the golden vectors, a few for each shape of value; the fuzzer finds the rest. What
once failed is added to the same folders by hand and is run by pytest ever after.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cbor2

from kvcs.geometry import SegmentSpan
from kvcs.kvsp import BlockShape, Component
from kvcs.kvsp.codecs import BSZSTD, RAW, ZSTD
from kvcs.kvsp.container import LayerSections, pack_container
from kvcs.manifest import Manifest, SegmentEntry
from kvcs.names import DataTrackName
from kvcs.payload import MAGIC, VERSION, Header, data_digest, pack_header
from moqt.codes import PublishDoneCode
from moqt.session.config import Role
from moqt.types import Location
from moqt.wire.datagrams import ObjectDatagram, encode_datagram
from moqt.wire.filters import LocationFilter
from moqt.wire.framing import encode_message
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Goaway,
    Namespace,
    Publish,
    PublishDone,
    PublishNamespace,
    PublishStateNotify,
    RequestOk,
    RequestUpdate,
    Setup,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    TrackStatus,
)
from moqt.wire.options import SetupOptions
from moqt.wire.params import FillParameters, Parameters
from tests.fuzz.script import NAME, NAMESPACE, Step, Verb, write_script
from tests.fuzz.targets import DESCRIPTOR, RANGE_KINDS, SCOPES, TARGETS
from tests.session.receiving import fetched, subgroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moqt.wire.messages import Message

FOLDER = Path(__file__).parent / "corpus"
VECTORS = Path(__file__).parents[1] / "vectors"

MAX_SEED_OCTETS = 400
MAX_SEEDS = 24
"""Of one target; the longest ones are left out."""


_QLOG = {
    "traces": [
        {
            "events": [
                {
                    "time": 1.5,
                    "name": "moqt:control_message_created",
                    "data": {
                        "stream_id": 0,
                        "message": {"type": "subscribe", "request_id": 0, "track_alias": 7},
                    },
                },
                {
                    "time": 2,
                    "name": "moqt:subgroup_header_parsed",
                    "data": {"stream_id": 3, "track_alias": 7, "group_id": 1},
                },
                {"time": 3, "name": "loglevel:info", "data": {"message": "x"}},
            ]
        }
    ]
}

_DONE = PublishDone(code=PublishDoneCode.TRACK_ENDED, stream_count=1)


def _vectors(*kinds: str) -> list[bytes]:
    """Return sound and unsound vectors, of each message type the shortest few."""
    every = json.loads((VECTORS / "moqt22.json").read_text())["vectors"]
    found = sorted(
        (bytes.fromhex(v["hex"]) for v in every if v["kind"] in kinds),
        key=lambda octets: (len(octets), octets),
    )
    by_head: dict[bytes, list[bytes]] = {}
    for octets in found:
        by_head.setdefault(octets[:2], []).append(octets)
    return [octets for alike in by_head.values() for octets in alike[-2:]]


def _session_scripts() -> Iterator[bytes]:
    def said(*messages: Message) -> bytes:
        return b"".join(map(encode_message, messages))

    filled = Parameters(fill=FillParameters(location_filter=LocationFilter.none()))
    for role, first in ((Role.CLIENT, 1), (Role.SERVER, 0)):
        requests: list[Message] = [
            Subscribe(first, NAME, filled),
            Fetch(first + 2, NAME),
            TrackStatus(first + 4, NAME),
            PublishNamespace(first + 6, NAMESPACE),
            SubscribeNamespace(first + 8, NAMESPACE),
            Publish(first + 10, NAME, 9),
            SubscribeTracks(first + 12, NAMESPACE),
        ]
        answers: list[Message] = [
            SubscribeOk(7, Parameters(largest=Location(1, 1))),
            FetchOk(False, Location(0, 1)),
            RequestOk(),
            RequestOk(),
            RequestOk(),
        ]
        take = [Step(Verb.TAKE), Step(Verb.TAKE, 1), Step(Verb.WAIT, 1)]
        answered = [Step(Verb.SEND, at, said(one)) for at, one in enumerate(answers)]
        asked = [Step(Verb.OPEN_BIDI, octets=said(one)) for one in requests]
        own = first ^ 1
        streams = [
            Step(Verb.OPEN_UNI, octets=subgroup(1, range(2), alias=7, size=8)),
            Step(Verb.OPEN_UNI, octets=fetched(own, [(0, 0), (1, 1)], size=8)),
            Step(Verb.OPEN_UNI, octets=fetched(own + 2, [(0, 0), (0, 1)], size=8)),
            Step(Verb.SEND_SWAPPED, 6, b"\x00\x02ab"),
            Step(
                Verb.DATAGRAM,
                octets=encode_datagram(
                    ObjectDatagram(track_alias=7, group_id=2, object_id=0, payload=b"ab")
                ),
            ),
        ]
        yield write_script(role, [*asked, *take])
        yield write_script(role, [*answered, *streams, *take])
        yield write_script(
            role,
            [
                *answered[:1],
                *streams[:2],
                Step(Verb.SEND, 0, said(_DONE)),
                Step(Verb.SEND, 0, said(PublishStateNotify())),
                Step(Verb.SEND, 2, said(Namespace(NAMESPACE))),
                Step(Verb.RESET, 6),
                Step(Verb.STOP, 0),
                Step(Verb.WAIT, 60),
            ],
        )
        yield write_script(
            role,
            [*asked[:1], Step(Verb.SEND, 6, said(RequestUpdate(first + 2, filled))), *take],
        )
        yield write_script(role, [Step(Verb.SEND, 5, said(Goaway("", 10))), Step(Verb.WAIT, 20)])
        setup = Setup(SetupOptions(max_filter_ranges=4, implementation="x"))
        yield write_script(role, [Step(Verb.OPEN_UNI, octets=said(setup)), *take], setup=False)


def _manifest() -> Manifest:
    track = DataTrackName(Component.K, "raw", 0)
    entry = SegmentEntry(
        span=SegmentSpan(segment=0, first_block=0, blocks=1),
        block_keys_sha256=bytes(32),
        tracks=(track,),
        complete=True,
        object_digests={track: (bytes(32), bytes(32))},
    )
    return Manifest(descriptor=DESCRIPTOR, deterministic=False, segments=(entry,))


def _signed() -> list[bytes]:
    payload = _manifest().dump()[:40]
    return [
        cbor2.dumps([cbor2.dumps({1: number, 4: b"kid"}), {}, payload, bytes(64)])
        for number in (-7, -8)
    ] + [cbor2.dumps(cbor2.CBORTag(18, [cbor2.dumps({1: -8}), {4: b"kid"}, b"", b""]))]


def _codecs() -> Iterator[bytes]:
    for index, codec in enumerate((RAW, ZSTD, BSZSTD)):
        for component, flag in ((Component.K, 0), (Component.KV, 0x80)):
            shape = BlockShape(DESCRIPTOR.geometry(0), component, DESCRIPTOR.block_tokens)
            sections = [bytes(range(size)) for size in shape.sections]
            # 0x80 % 3 is 2, so that the codec is chosen by what is added to it
            first = next(o for o in range(flag, flag + 3) if o % 3 == index)
            yield bytes((first,)) + b"".join(codec.encode(sections, shape))


def _payload() -> bytes:
    data = bytes(16)
    header = Header(
        MAGIC, VERSION, Component.K, 0, 1, 2, 8, 4, RAW.value, 0, len(data), data_digest([data])
    )
    return pack_header(header) + data


def _containers() -> Iterator[bytes]:
    layers = [LayerSections(memoryview(bytes(16)), memoryview(bytes(16))) for _ in range(2)]
    for codec in (RAW, ZSTD):
        yield pack_container(DESCRIPTOR, layers, block_key=bytes(32), token_start=0, codec=codec)


def _location_filters() -> Iterator[bytes]:
    from moqt.wire.cursor import Writer

    for one in (
        LocationFilter.none(),
        LocationFilter.next_object(),
        LocationFilter.relative(1),
        LocationFilter.absolute(Location(1, 2)),
        LocationFilter.groups(first=1, last=300),
        LocationFilter.range(Location(1, 2), Location(1, 2)),
    ):
        writer = Writer()
        one.write(writer)
        yield bytes(writer)


def seeds() -> dict[str, list[bytes]]:
    """Return the seeds of each target."""
    control = _vectors("control")
    bodies = [octets[3:] for octets in control]
    names = [b"\x02\x02kv\x01a", b"\x01\x06kvcs-1\x08manifest", b"\x00\x00"]
    digest = bytes(range(1, 33))
    fields = (b"kvcs-1", digest, digest, digest, digest[:16])
    value: dict[str, Any] = DESCRIPTOR.to_dict()
    overridden = {**value, "layer_overrides": {"1": {"v_head_dim": 0}}, "layout": "hnd"}
    return {
        "integer": _vectors("varint"),
        "messages": [b"\x05" + octets for octets in control] + [b"\x03" + b"".join(control[:2])],
        "setup_options": [octets for octets in bodies if len(octets) < 60][:12],
        "parameters": [
            bytes((at % len(SCOPES),)) + octets for at, octets in enumerate(sorted(bodies, key=len))
        ],
        "location_filter": list(_location_filters()),
        "range_filter": [
            bytes((at,)) + octets
            for at in range(len(RANGE_KINDS))
            for octets in (b"\x00\x02\x03\x01\x00", b"\x01\x04\x02\x03")
        ],
        "token": [b"\x00\x05", b"\x01\x05\x02abc", b"\x02\x05", b"\x03\x02abc"],
        "properties": [b"\x02\x05", b"\x0e\x40\x80", b"\x0b\x04\x02\x05\x04\x06", b"\x3c\x02"],
        "names_on_the_wire": names,
        "datagram": _vectors("datagram"),
        "data_stream": [b"\x0a" + octets for octets in _vectors("subgroup-stream", "fetch-stream")],
        "session": list(_session_scripts()),
        "uri": [b"moqt://host:4443/path?q=1#kv-a--k", b"moqt://[::1]/", b"moqt://h"],
        "name_text": [b"kv-a--k", b"kvcs.2d1-.00.ff--manifest", b"--"],
        "publication_name": [
            b"\xff".join(fields),
            b"\xff".join((fields[0], *(field.hex().encode() for field in fields[1:]))),
        ],
        "track_name": [b"manifest", b"manifest.cose", b"k.raw.s0", b"kv.zstd.s10"],
        "descriptor": [DESCRIPTOR.jcs(), json.dumps(overridden).encode()],
        "manifest": [_manifest().dump()],
        "signed_manifest": _signed(),
        "payload": [_payload()],
        "container": list(_containers()),
        "codec": list(_codecs()),
        "dump": [
            *(b"\x02" + octets for octets in control[:8]),
            *(b"\x03" + octets for octets in _vectors("subgroup-stream")[:4]),
            *(b"\x04" + octets for octets in _vectors("fetch-stream")[:4]),
            *(b"\x05" + octets for octets in _vectors("datagram")[:4]),
        ],
        "qlog": [json.dumps(_QLOG).encode()],
    }


def main() -> None:
    made = seeds()
    assert made.keys() == TARGETS.keys(), made.keys() ^ TARGETS.keys()
    for name, every in made.items():
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        few = sorted((s for s in every if len(s) <= MAX_SEED_OCTETS), key=len)[:MAX_SEEDS]
        for seed in few or every[:1]:
            (folder / hashlib.sha256(seed).hexdigest()[:12]).write_bytes(seed)


if __name__ == "__main__":
    main()
