"""Codecs: how raw tensor octets become an Object's Data and come back (kvsp-1, 4).

A codec knows from a `BlockShape` how long the raw Data is before it decodes anything, so Data that
would become anything else is refused before memory is taken.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kvcs.errors import CodecError, RejectReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import zstandard

    from kvcs.kvsp.shapes import BlockShape

__all__ = [
    "BSZSTD",
    "CODECS",
    "RAW",
    "ZSTD",
    "BszstdCodec",
    "Codec",
    "CodecRegistry",
    "Octets",
    "RawCodec",
    "ZstdCodec",
]

Octets: TypeAlias = "bytes | bytearray | memoryview"

ZSTD_LEVEL = 1
"""Floats gain nothing from higher levels and lose speed."""

MAX_WINDOW_OCTETS = 8 << 20
"""The window that a frame without a content size may ask for (RFC 8878 3.1.1.1.2 recommends it).

Without the bound 18 octets make a decoder take 128 MiB before it looks at the content.
"""

_PLANE_HEAD_OCTETS = 5
_STORED = 0
_FRAME = 1


class Codec(ABC):
    """One entry of the KVSP Codecs registry. Instances may be used from several threads at once."""

    value: int
    """The number in an Object's header."""
    name: str
    """The name in a Track Name: 1 to 32 of a-z, 0-9 and "-"."""
    is_lossless: bool

    @abstractmethod
    def encode(self, sections: Sequence[Octets], shape: BlockShape) -> list[Octets]:
        """Return Data as buffers in order, from the raw sections in order (K, then V).

        Codec raw returns the very buffers it got; the others return new memory.
        Raises: CodecError when the sections are not as long as `shape` says.
        """

    @abstractmethod
    def decode_into(self, data: Octets, shape: BlockShape, out: Sequence[memoryview]) -> None:
        """Write the raw Data of one block into the buffers of `out`, one after the other.

        `out` is writable, flat octets, `shape.raw_octets` in all; on an error its content is
        undefined.
        Raises: CodecError(DATA_SIZE, DECODED_SIZE or DECODE_FAILED); ValueError for a wrong `out`.
        """

    @abstractmethod
    def max_data_octets(self, shape: BlockShape) -> int:
        """Return the longest Data that this codec accepts for a block."""

    def check_data_octets(self, data_octets: int, shape: BlockShape) -> None:
        """Check a length before its octets arrive. Raises: CodecError(DATA_SIZE)."""
        most = self.max_data_octets(shape)
        if not 0 < data_octets <= most:
            raise CodecError(
                f"codec {self.name}: Data has {data_octets} octets, expected 1 to {most}",
                reason=RejectReason.DATA_SIZE,
            )

    def decode(self, data: Octets, shape: BlockShape) -> memoryview:
        """Return the raw Data of one block in new memory. Raises: CodecError."""
        self.check_data_octets(len(data), shape)
        out = memoryview(bytearray(shape.raw_octets))
        self.decode_into(data, shape, (out,))
        return out

    def _check_sections(self, sections: Sequence[Octets], shape: BlockShape) -> None:
        lengths = tuple(map(len, sections))
        if lengths != shape.sections:
            raise CodecError(
                f"codec {self.name}: raw sections have {lengths} octets, expected {shape.sections}"
            )

    def __repr__(self) -> str:
        return f"<codec {self.name} ({self.value})>"


def _fill(out: Sequence[memoryview], raw: Octets) -> None:
    """Copy `raw` over the buffers of `out`; ValueError when they are not as long together."""
    source = memoryview(raw)
    room = sum(map(len, out))
    if room != len(source):
        raise ValueError(f"the buffers to decode into have {room} octets, expected {len(source)}")
    at = 0
    for buffer in out:
        buffer[:] = source[at : at + len(buffer)]
        at += len(buffer)


class RawCodec(Codec):
    """The elements as they are: C-contiguous, little-endian, in the descriptor's layout."""

    value = 0
    name = "raw"
    is_lossless = True

    def encode(self, sections: Sequence[Octets], shape: BlockShape) -> list[Octets]:
        """Return the very buffers of `sections`."""
        self._check_sections(sections, shape)
        return list(sections)

    def decode_into(self, data: Octets, shape: BlockShape, out: Sequence[memoryview]) -> None:
        """Copy Data into `out`."""
        self.check_data_octets(len(data), shape)
        _fill(out, data)

    def max_data_octets(self, shape: BlockShape) -> int:
        """Return the exact length."""
        return shape.raw_octets

    def check_data_octets(self, data_octets: int, shape: BlockShape) -> None:
        """Check that the length is exactly tokens x heads x dim x itemsize."""
        if data_octets != shape.raw_octets:
            raise CodecError(
                f"codec raw: Data has {data_octets} octets, expected {shape.raw_octets}",
                reason=RejectReason.DATA_SIZE,
            )


class _Frames(threading.local):
    """zstd contexts; they are costly to make and belong to one thread at a time.

    `zstandard` is imported when a frame is made or read: a process that moves raw Objects alone
    has no use for the 0.6 MiB it takes.
    """

    def __init__(self, level: int) -> None:
        self._level = level

    @cached_property
    def compressor(self) -> zstandard.ZstdCompressor:
        import zstandard

        return zstandard.ZstdCompressor(level=self._level)

    @cached_property
    def decompressor(self) -> zstandard.ZstdDecompressor:
        import zstandard

        return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_OCTETS)

    def pack(self, parts: Sequence[Octets]) -> list[Octets]:
        if len(parts) == 1:
            return [self.compressor.compress(parts[0])]
        packer = self.compressor.compressobj(size=sum(map(len, parts)))
        packed = [*map(packer.compress, parts), packer.flush()]
        return [octets for octets in packed if octets]

    def unpack(self, frame: Octets, raw_octets: int) -> bytes:
        """Return the content of exactly one frame of exactly `raw_octets` octets."""
        import zstandard

        try:
            declared = zstandard.get_frame_parameters(frame).content_size
            if declared not in (raw_octets, zstandard.CONTENTSIZE_UNKNOWN):
                raise CodecError(
                    f"a zstd frame declares {declared} octets, expected {raw_octets}",
                    reason=RejectReason.DECODED_SIZE,
                )
            raw = self.decompressor.decompress(
                frame, max_output_size=raw_octets, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise CodecError(f"a zstd frame does not decode: {error}") from error
        if len(raw) != raw_octets:
            raise CodecError(
                f"a zstd frame has {len(raw)} octets, expected {raw_octets}",
                reason=RejectReason.DECODED_SIZE,
            )
        return raw


def _frame_bound(raw_octets: int) -> int:
    """The longest frame accepted: zstd's own bound and some air for other encoders."""
    return raw_octets + raw_octets // 128 + 1024


class ZstdCodec(Codec):
    """One zstd frame of the raw Data."""

    value = 1
    name = "zstd"
    is_lossless = True

    def __init__(self, level: int = ZSTD_LEVEL) -> None:
        self._frames = _Frames(level)

    def encode(self, sections: Sequence[Octets], shape: BlockShape) -> list[Octets]:
        """Return one frame over all sections."""
        self._check_sections(sections, shape)
        return self._frames.pack(sections)

    def decode_into(self, data: Octets, shape: BlockShape, out: Sequence[memoryview]) -> None:
        """Decode one frame into `out`."""
        self.check_data_octets(len(data), shape)
        _fill(out, self._frames.unpack(data, shape.raw_octets))

    def max_data_octets(self, shape: BlockShape) -> int:
        """Return a frame's bound."""
        return _frame_bound(shape.raw_octets)


class BszstdCodec(Codec):
    """Byte planes, least significant first; each is a zstd frame, or stored if that is no shorter.

    Per plane: one octet (0 stored, 1 frame), the length (32), the octets.
    """

    value = 2
    name = "bszstd"
    is_lossless = True

    def __init__(self, level: int = ZSTD_LEVEL) -> None:
        self._frames = _Frames(level)

    def encode(self, sections: Sequence[Octets], shape: BlockShape) -> list[Octets]:
        """Return the planes of K, then those of V, each behind its head."""
        self._check_sections(sections, shape)
        data: list[Octets] = []
        for section in sections:
            elements = np.frombuffer(section, np.uint8).reshape(-1, shape.itemsize)
            for plane in np.ascontiguousarray(elements.T):
                stored: memoryview = plane.data
                (frame,) = self._frames.pack([stored])
                kind, octets = (_FRAME, frame) if len(frame) < len(stored) else (_STORED, stored)
                data.append(bytes((kind,)) + len(octets).to_bytes(4, "big"))
                data.append(octets)
        return data

    def decode_into(self, data: Octets, shape: BlockShape, out: Sequence[memoryview]) -> None:
        """Decode plane by plane into `out`."""
        self.check_data_octets(len(data), shape)
        view = memoryview(data)
        raw = np.empty(shape.raw_octets, np.uint8)
        at = start = 0
        for section in shape.sections:
            elements = raw[start : start + section].reshape(-1, shape.itemsize)
            for plane in range(shape.itemsize):
                octets, at = self._plane(view, at, len(elements))
                elements[:, plane] = np.frombuffer(octets, np.uint8)
            start += section
        if at != len(view):
            raise CodecError(f"codec bszstd: {len(view) - at} octets behind the last plane")
        _fill(out, raw.data)

    def _plane(self, view: memoryview, at: int, octets: int) -> tuple[Octets, int]:
        """Return one plane of exactly `octets` octets, and where the next one starts."""
        body = at + _PLANE_HEAD_OCTETS
        if body > len(view):
            raise CodecError(f"codec bszstd: Data ends in the head of a plane at octet {at}")
        kind = view[at]
        end = body + int.from_bytes(view[at + 1 : body], "big")
        if end > len(view):
            raise CodecError(f"codec bszstd: the plane at octet {at} reaches behind the Data")
        if kind == _FRAME:
            return self._frames.unpack(view[body:end], octets), end
        if kind != _STORED:
            raise CodecError(f"codec bszstd: the plane at octet {at} is of kind {kind}, not 0 or 1")
        if end - body != octets:
            raise CodecError(
                f"codec bszstd: a stored plane has {end - body} octets, expected {octets}",
                reason=RejectReason.DECODED_SIZE,
            )
        return view[body:end], end

    def max_data_octets(self, shape: BlockShape) -> int:
        """Return the bound over all planes."""
        return sum(
            shape.itemsize * (_PLANE_HEAD_OCTETS + _frame_bound(section // shape.itemsize))
            for section in shape.sections
        )


class CodecRegistry:
    """Codecs by value and by name. Add to it before tracks are published or retrieved."""

    def __init__(self, codecs: Iterable[Codec] = ()) -> None:
        self._by_value: dict[int, Codec] = {}
        self._by_name: dict[str, Codec] = {}
        for codec in codecs:
            self.register(codec)

    def register(self, codec: Codec) -> None:
        """Add a codec. Raises: ValueError when its value or name is taken or not allowed."""
        if not 0 <= codec.value <= 0xFFFF:
            raise ValueError(f"codec value {codec.value} is not in 0..65535")
        allowed = set("abcdefghijklmnopqrstuvwxyz0123456789-")
        if not 1 <= len(codec.name) <= 32 or not allowed.issuperset(codec.name):
            raise ValueError(f"codec name {codec.name!r} is not 1 to 32 of a-z, 0-9 and '-'")
        if codec.value in self._by_value or codec.name in self._by_name:
            raise ValueError(f"codec {codec.name} ({codec.value}): value or name is taken")
        self._by_value[codec.value] = self._by_name[codec.name] = codec

    def by_value(self, value: int) -> Codec:
        """Return the codec of a number. Raises: CodecError(CODEC) when there is none."""
        if value not in self._by_value:
            raise CodecError(f"no codec has the value {value}", reason=RejectReason.CODEC)
        return self._by_value[value]

    def by_name(self, name: str) -> Codec:
        """Return the codec of a name. Raises: CodecError(CODEC) when there is none."""
        if name not in self._by_name:
            known = ", ".join(sorted(self._by_name))
            raise CodecError(
                f"no codec is named {name[:40]!r}; known: {known}", reason=RejectReason.CODEC
            )
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name


RAW = RawCodec()
ZSTD = ZstdCodec()
BSZSTD = BszstdCodec()

CODECS = CodecRegistry((RAW, ZSTD, BSZSTD))
"""The codecs that producers and consumers of this process know."""
