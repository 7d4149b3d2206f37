"""The 68-octet header in front of each Object's Data: pack, parse, check (KVCS 3.5).

Data itself is never copied here: a header is packed beside it and checked beside it.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from kvcs.errors import ObjectRejected, RejectReason
from kvcs.geometry import layer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcs.geometry import SegmentSpan
    from kvcs.kvsp.shapes import Component

__all__ = [
    "HEADER_OCTETS",
    "MAGIC",
    "VERSION",
    "ExpectedTrack",
    "Header",
    "data_digest",
    "pack_header",
    "pack_headers",
    "parse_header",
    "verify_data",
]

MAGIC = 0x4B564F31
VERSION = 1

_LAYOUT = struct.Struct(">IBBHIIQIHHI32s")
_BEFORE_DIGEST = struct.Struct(">IBBHIIQIHHI")

_HEADER_TYPE = np.dtype(
    [
        ("magic", ">u4"),
        ("version", "u1"),
        ("component", "u1"),
        ("flags", ">u2"),
        ("layer", ">u4"),
        ("block_index", ">u4"),
        ("token_start", ">u8"),
        ("token_count", ">u4"),
        ("codec", ">u2"),
        ("reserved", ">u2"),
        ("data_length", ">u4"),
        ("data_digest", "V32"),
    ]
)
"""The same, for numpy."""

HEADER_OCTETS = _LAYOUT.size
"""68."""

Octets: TypeAlias = "bytes | bytearray | memoryview"


class Header(NamedTuple):
    """A header's fields in wire order, as numbers: nothing is checked yet.

    A named tuple, since one is made for each Object and tuples are made by one C call.
    `flags` and `reserved` are zero when sent and ignored on receipt.
    """

    magic: int
    version: int
    component: int
    flags: int
    layer: int
    block_index: int
    token_start: int
    token_count: int
    codec: int
    reserved: int
    data_length: int
    data_digest: bytes


def data_digest(data: Sequence[Octets]) -> bytes:
    """Return the SHA-256 over the buffers in order; large ones are hashed without the GIL."""
    digest = hashlib.sha256(data[0])
    for buffer in data[1:]:
        digest.update(buffer)
    return digest.digest()


def pack_headers(
    lengths: Sequence[int],
    digests: bytes,
    *,
    component: Component,
    layer: int,
    span: SegmentSpan,
    block_tokens: int,
    codec: int,
) -> bytes:
    """Return the headers of the Objects of one layer in one track, by Object ID: 68 octets each,
    one after the other.

    `lengths` and `digests` are theirs, from Object 0 on; a digest has 32 octets. `codec` is the
    registry value.
    Raises: OverflowError when a length or another field does not fit its width.
    """
    headers = np.zeros(len(lengths), _HEADER_TYPE)
    headers["magic"] = MAGIC
    headers["version"] = VERSION
    headers["component"] = component
    headers["layer"] = layer
    headers["block_index"] = blocks = np.arange(len(lengths), dtype=np.uint64)
    headers["token_start"] = blocks * np.uint64(block_tokens) + np.uint64(
        span.token_start(0, block_tokens)
    )
    headers["token_count"] = block_tokens
    headers["codec"] = codec
    headers["data_length"] = lengths
    headers["data_digest"] = np.frombuffer(digests, "V32")
    return headers.tobytes()


def pack_header(header: Header) -> bytes:
    """Return the 68 octets of one header; struct.error when a field does not fit its width."""
    return _LAYOUT.pack(*header)


def parse_header(payload: Octets) -> Header:
    """Return the header at the start of a payload.

    Raises: ObjectRejected(HEADER_TRUNCATED) when there are fewer than 68 octets.
    """
    if len(payload) < HEADER_OCTETS:
        raise ObjectRejected(
            RejectReason.HEADER_TRUNCATED,
            f"the payload has {len(payload)} octets, a header has {HEADER_OCTETS} (KVCS 3.5)",
        )
    return Header._make(_LAYOUT.unpack_from(payload))


def verify_data(digest: bytes, data: Sequence[Octets]) -> None:
    """Check that `data`, the Object's Data as buffers in order, has the header's Data Digest.

    Raises: ObjectRejected(DATA_DIGEST).
    """
    if data_digest(data) != digest:
        raise ObjectRejected(
            RejectReason.DATA_DIGEST, "Data has another SHA-256 than its header says (KVCS 3.5)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTrack:
    """What the Objects of one data track must say about themselves (KVCS 3.5)."""

    component: Component
    codec: int
    span: SegmentSpan
    layers: int
    block_tokens: int

    def check_location(self, group_id: int, object_id: int) -> None:
        """Check that an Object's Location is a layer and a block of this track.

        Raises: ObjectRejected(LAYER_OUT_OF_RANGE or BLOCK_OUT_OF_RANGE).
        """
        if layer_of(group_id, self.layers) is None:
            raise ObjectRejected(
                RejectReason.LAYER_OUT_OF_RANGE,
                f"Group {group_id} Object {object_id}: there are {self.layers} layers (KVCS 3.3)",
            )
        if not 0 <= object_id < self.span.blocks:
            raise ObjectRejected(
                RejectReason.BLOCK_OUT_OF_RANGE,
                f"Group {group_id} Object {object_id}: segment {self.span.segment} has "
                f"{self.span.blocks} blocks (KVCS 3.4)",
            )

    def checked_digest(
        self, payload: Octets, *, group_id: int, object_id: int, payload_octets: int
    ) -> bytes:
        """Check the header of the Object at a Location of this track; return its Data Digest.

        `payload` has the header, and may go on; `payload_octets` is the length of header and Data.
        Flags and Reserved are ignored; the digest is for `verify_data`.
        Raises: ObjectRejected, HEADER_TRUNCATED or the reason of the first field that is wrong.
        """
        digest_at = _BEFORE_DIGEST.size
        try:
            is_plain = payload[:digest_at] == _BEFORE_DIGEST.pack(
                MAGIC,
                VERSION,
                self.component,
                0,
                group_id,
                object_id,
                self.span.token_start(object_id, self.block_tokens),
                self.block_tokens,
                self.codec,
                0,
                payload_octets - HEADER_OCTETS,
            )
        except struct.error:  # no header can say that
            is_plain = False
        if is_plain:
            return bytes(payload[digest_at:HEADER_OCTETS])
        # flags that are set, or a fault: look at each field
        header = parse_header(payload)
        self._check_fields(header, group_id, object_id, payload_octets)
        return header.data_digest

    def _check_fields(
        self, header: Header, group_id: int, object_id: int, payload_octets: int
    ) -> None:
        """Check each field but the digest; Flags and Reserved are ignored.

        Raises: ObjectRejected with the reason of the first field that is wrong.
        """
        token_start = self.span.token_start(object_id, self.block_tokens)
        data_octets = payload_octets - HEADER_OCTETS
        checks = (
            (RejectReason.MAGIC, "Magic", header.magic, MAGIC),
            (RejectReason.VERSION, "Version", header.version, VERSION),
            (RejectReason.COMPONENT, "Component", header.component, int(self.component)),
            (RejectReason.LAYER, "Layer", header.layer, group_id),
            (RejectReason.BLOCK_INDEX, "Block Index", header.block_index, object_id),
            (RejectReason.TOKEN_START, "Token Start", header.token_start, token_start),
            (RejectReason.TOKEN_COUNT, "Token Count", header.token_count, self.block_tokens),
            (RejectReason.CODEC, "Codec", header.codec, self.codec),
            (RejectReason.DATA_LENGTH, "Data Length", header.data_length, data_octets),
        )
        for reason, name, came, expected in checks:
            if came != expected:
                raise ObjectRejected(
                    reason,
                    f"Group {group_id} Object {object_id}: {name} field is {came}, "
                    f"expected {expected} (KVCS 3.5)",
                )
