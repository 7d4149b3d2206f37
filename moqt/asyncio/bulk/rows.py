"""Packets of one size as the rows of a matrix: what is the same for each is done for all at once.

Only the AEAD itself is called for each row.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
from cryptography.exceptions import InvalidTag

from moqt.asyncio.bulk.protection import SAMPLE_OCTETS, TAG_OCTETS, header_masks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aioquic._crypto import HeaderProtection
    from numpy.typing import NDArray

    Octets = NDArray[np.uint8]

FEWEST_ROWS = 12
"""With fewer, setting up the arrays costs more than a loop over the packets."""

FEWEST_STRIDES = 4
"""With fewer, slices are copied one by one."""

NUMBER_OCTETS = 2
"""Of packet numbers in rows; others are rare."""

_NONCE_OCTETS = 12
_NONCE = Struct(f"{_NONCE_OCTETS}s")


def _cut(headers: bytes, octets: int) -> Iterator[tuple[bytes]]:
    """Return headers of so many octets each, one by one."""
    return Struct(f"{octets}s").iter_unpack(headers)


def nonces(iv: int, first_number: int, rows: int) -> bytes:
    """Return the nonces of packets in order, one after another (RFC 9001 5.3)."""
    low = np.arange(first_number, first_number + rows, dtype=np.uint64)
    low ^= np.uint64(iv & 0xFFFFFFFFFFFFFFFF)
    found = np.empty((rows, _NONCE_OCTETS), np.uint8)
    found[:, :4] = np.frombuffer((iv >> 64).to_bytes(4, "big"), np.uint8)
    found[:, 4:] = low.astype(">u8").view(np.uint8).reshape(rows, 8)
    return found.tobytes()


def open_rows(
    grid: Octets,
    datagrams: memoryview,
    masks: bytes,
    *,
    connection_id: bytes,
    expected: int,
    open_into: Callable[..., int],
    iv: int,
    plain: memoryview,
) -> tuple[int, int, int]:
    """Open packets whose headers are alike but for their number, which counts up from `expected`.

    `grid`: uint8 [packets, octets], the octets of `datagrams`; `masks`: one for each, 16 octets
    apart. Payloads are written one after another to `plain`. Returns how many were opened from the
    first on, the octets of each payload, and the header's first octet.
    """
    rows, octets = grid.shape
    mask = np.frombuffer(masks, np.uint8, rows * SAMPLE_OCTETS).reshape(rows, SAMPLE_OCTETS)
    first = int(grid[0, 0] ^ (mask[0, 0] & 0x1F))
    if first & 0xDB != 0x40 | NUMBER_OCTETS - 1:
        return 0, 0, first
    number_at = 1 + len(connection_id)
    body_at = number_at + NUMBER_OCTETS
    headers_grid = grid[:, :body_at].copy()
    headers_grid[:, 0] ^= mask[:, 0] & 0x1F
    headers_grid[:, number_at:] ^= mask[:, 1 : 1 + NUMBER_OCTETS]
    alike = np.empty((rows, body_at), np.uint8)
    alike[:, :number_at] = np.frombuffer(bytes((first,)) + connection_id, np.uint8)
    numbers = np.arange(expected, expected + rows, dtype=np.uint64).astype(">u2")
    alike[:, number_at:] = numbers.view(np.uint8).reshape(rows, NUMBER_OCTETS)
    rows = rows_alike(headers_grid, alike)
    headers = alike.tobytes()
    nonce = nonces(iv, expected, rows)
    size = octets - body_at - TAG_OCTETS
    at = written = 0
    try:
        for one, header in zip(_NONCE.iter_unpack(nonce), _cut(headers, body_at), strict=False):
            open_into(
                one[0],
                datagrams[at + body_at : at + octets],
                header[0],
                plain[written : written + size],
            )
            at += octets
            written += size
    except InvalidTag:
        return at // octets, size, first
    return rows, size, first


def rows_alike(found: Octets, expected: Octets) -> int:
    """Return how many rows, from the first on, are as expected."""
    if found.tobytes() == expected.tobytes():
        return len(found)
    return int(np.argmax((found != expected).any(axis=1)))


def payload_of_rows(
    plain: Octets, *, frame_octets: int, offset_at: int, offset: int, scratch: memoryview
) -> tuple[int, memoryview]:
    """Return the octets of rows that are STREAM frames of one stream, each behind the other.

    `plain`: uint8 [packets, octets], the payloads; the frame of the first row has `frame_octets` of
    header, its offset `offset` at `offset_at`. Returns how many rows are of that kind, from the
    first on, and their octets, in `scratch`.
    """
    rows, octets = plain.shape
    heads = plain[:, :frame_octets]
    width = 1 << (int(plain[0, offset_at]) >> 6)
    step = octets - frame_octets
    if not step or offset + rows * step > 1 << 8 * width - 2:
        rows = 1
    expected = np.empty((rows, frame_octets), np.uint8)
    expected[:] = heads[0]
    mark = width.bit_length() - 1 << 8 * width - 2
    first_offset = offset | mark
    offsets = np.arange(rows, dtype=np.uint64) * np.uint64(step) + np.uint64(first_offset)
    octets_of_offsets = offsets.astype(">u8").view(np.uint8).reshape(rows, 8)
    expected[:, offset_at : offset_at + width] = octets_of_offsets[:, 8 - width :]
    rows = rows_alike(heads[:rows], expected)
    octets_of_all = np.frombuffer(scratch, np.uint8, rows * step)
    octets_of_all.reshape(rows, step)[:] = plain[:rows, frame_octets:]
    return rows, scratch[: rows * step]


def spread(
    buffer: memoryview, pieces: Sequence[memoryview | bytes], *, at: int, step: int, stride: int
) -> None:
    """Write the octets of `pieces` to their places in packets that are `stride` octets apart: the
    first `step` at `at`, and so on."""
    room = step
    for piece in pieces:
        view = memoryview(piece)
        octets = len(view)
        done = 0
        while done < octets:
            rows = (octets - done) // step
            if room == step and rows >= FEWEST_STRIDES:
                source = np.frombuffer(view, np.uint8, rows * step, done).reshape(rows, step)
                np.ndarray((rows, step), np.uint8, buffer, at, (stride, 1))[:] = source
                at += rows * stride
                done += rows * step
                continue
            count = min(room, octets - done)
            buffer[at : at + count] = view[done : done + count]
            at += count
            done += count
            room -= count
            if not room:
                at, room = at + stride - step, step


def seal_rows(
    buffer: memoryview,
    *,
    rows: int,
    start_of_header: bytes,
    first_number: int,
    start_of_frame: bytes,
    offset: bytes,
    seal_into: Callable[..., int],
    iv: int,
    protection: HeaderProtection,
) -> None:
    """Complete packets of one stream in `buffer`, which they fill, in order from `first_number` on.

    Each is a short header up to its number; `start_of_frame`, a STREAM frame up to its offset; the
    offset, in as many octets as `offset`, the first one's; its octets of the stream, which are
    there; and the tag.
    """
    octets = len(buffer) // rows
    number_at = len(start_of_header)
    body_at = number_at + NUMBER_OCTETS
    offset_at = body_at + len(start_of_frame)
    data_at = offset_at + len(offset)
    step = octets - TAG_OCTETS - data_at
    grid = np.frombuffer(buffer, np.uint8).reshape(rows, octets)
    head = start_of_header + bytes(NUMBER_OCTETS) + start_of_frame
    grid[:, :offset_at] = np.frombuffer(head, np.uint8)
    numbers = np.arange(first_number, first_number + rows, dtype=np.uint64).astype(">u2")
    grid[:, number_at:body_at] = numbers.view(np.uint8).reshape(rows, NUMBER_OCTETS)
    headers = grid[:, :body_at].tobytes()
    first_offset = int.from_bytes(offset, "big")
    offsets = np.arange(first_offset, first_offset + rows * step, step, dtype=np.uint64)
    octets_of_offsets = offsets.astype(">u8").view(np.uint8).reshape(rows, 8)
    grid[:, offset_at:data_at] = octets_of_offsets[:, 8 - len(offset) :]
    nonce = nonces(iv, first_number, rows)
    at = 0
    for one, header in zip(_NONCE.iter_unpack(nonce), _cut(headers, body_at), strict=True):
        end = at + octets
        seal_into(
            one[0],
            buffer[at + body_at : end - TAG_OCTETS],
            header[0],
            buffer[at + body_at : end],
        )
        at = end
    sample_at = number_at + 4
    samples = grid[:, sample_at : sample_at + SAMPLE_OCTETS].tobytes()
    mask = np.frombuffer(header_masks(protection, samples), np.uint8).reshape(rows, SAMPLE_OCTETS)
    grid[:, 0] ^= mask[:, 0] & 0x1F
    grid[:, number_at:body_at] ^= mask[:, 1:3]
