"""Opens 1-RTT packets (RFC 9001 5): the mirror of `moqt.asyncio.bulk.sealing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag

from moqt.asyncio.bulk.protection import SAMPLE_OCTETS, TAG_OCTETS, header_masks
from moqt.asyncio.bulk.rows import open_rows

if TYPE_CHECKING:
    from aioquic.quic.crypto import CryptoContext

_FIXED_BITS, _FIXED = 0xD8, 0x40  # a short header, and its reserved bits


class Sealed(NamedTuple):
    """A packet that seems to be one for this key: its header, without protection."""

    number: int
    first_octet: int
    header: bytes
    size: int
    """Octets of its payload."""


class FrameHead(NamedTuple):
    """The head of a STREAM frame that fills its packet, but for its offset."""

    kind: int
    stream_id: int
    start: bytes
    """Its octets in front of the offset."""
    offset_octets: int
    end: bytes
    """Its octets behind the offset: the length, if it has one."""
    payload_octets: int
    """Of its packet."""


class Opener:
    """Opens what comes under one key to one connection ID."""

    def __init__(self, crypto: CryptoContext, connection_id: bytes) -> None:
        aead, protection = crypto.aead, crypto.hp
        assert aead is not None
        assert protection is not None
        self._open_into, self._iv = aead._aead.decrypt_into, aead._iv
        self._protection = protection
        self._connection_id = connection_id
        self._number_at = 1 + len(connection_id)
        self._sample_at = self._number_at + 4
        self.least_octets = self._sample_at + SAMPLE_OCTETS
        """Less is no packet: a sample would end beyond it."""
        # the first octet of a header, and what follows from it; mostly they are all alike
        self.first_octet = -1
        self._is_fit = False
        self._start = b""
        self._number_octets = self._body_at = 0

    def masks(self, datagrams: memoryview, starts: range) -> bytes:
        """Return the masks of the packets that begin there, 16 octets apart."""
        first, stop = self._sample_at, self._sample_at + SAMPLE_OCTETS
        samples = b"".join([datagrams[at + first : at + stop] for at in starts])
        return header_masks(self._protection, samples)

    def look(self, datagram: memoryview, mask: bytes, expected: int) -> Sealed | None:
        """Read a header; None: it's not of a packet that `open` could open.

        `expected` is the number that would be next.
        """
        first = datagram[0] ^ (mask[0] & 0x1F)
        self._look_at_first(first)
        body_at = self._body_at
        size = len(datagram) - body_at - TAG_OCTETS
        if size <= 0 or not self._is_fit:
            return None
        octets = self._number_octets
        truncated = int.from_bytes(datagram[self._number_at : body_at], "big") ^ int.from_bytes(
            mask[1 : 1 + octets], "big"
        )
        window = 1 << 8 * octets  # the number nearest to the one expected (RFC 9000 A.3)
        number = expected + ((truncated - expected) & (window - 1))
        if number > expected + (window >> 1) and number >= window:
            number -= window
        return Sealed(number, first, self._start + truncated.to_bytes(octets, "big"), size)

    def _look_at_first(self, first: int) -> None:
        if first == self.first_octet:
            return
        self.first_octet = first
        self._is_fit = first & _FIXED_BITS == _FIXED
        self._start = bytes((first,)) + self._connection_id
        self._number_octets = (first & 3) + 1
        self._body_at = self._number_at + self._number_octets

    def open(self, sealed: Sealed, datagram: memoryview, plain: memoryview) -> bool:
        """Write a packet's payload to `plain`, which is as large; False: it isn't for this key, and
        what is there now means nothing."""
        try:
            self._open_into(
                (self._iv ^ sealed.number).to_bytes(12, "big"),
                datagram[len(sealed.header) :],
                sealed.header,
                plain,
            )
        except InvalidTag:
            return False
        return True

    def open_on(
        self,
        datagrams: memoryview,
        masks: bytes,
        segment_octets: int,
        *,
        number: int,
        head: FrameHead,
        offset: int,
        view: memoryview,
        stop: int,
    ) -> tuple[int, int]:
        """Open packets of so many octets that count up from `number`, while each has a frame like
        `head` that goes on where the one before ended: the first at `offset`, whose octets are to
        be at `stop` of `view`, and so on.

        A packet is opened with the head of its frame over the end of the octets before, which is
        put back: so all octets lie together, and nothing is moved. Returns how many were opened,
        and the octets of the stream in each. What is behind them in `view` means nothing.
        """
        self._look_at_first(datagrams[0] ^ (masks[0] & 0x1F))
        body_at = self._body_at
        size = segment_octets - body_at - TAG_OCTETS
        head_octets = len(head.start) + head.offset_octets + len(head.end)
        step = size - head_octets
        rows = len(datagrams) // segment_octets
        limit = 1 << 8 * head.offset_octets - 2
        if (
            not self._is_fit
            or size != head.payload_octets
            or not step
            or offset + rows * step > limit
        ):
            return 0, step
        mark = head.offset_octets.bit_length() - 1 << 8 * head.offset_octets - 2
        expected = int.from_bytes(
            head.start + (offset | mark).to_bytes(head.offset_octets, "big") + head.end, "big"
        )
        expected_step = step << 8 * len(head.end)
        start, number_at, octets = self._start, self._number_at, self._number_octets
        last_number = (1 << 8 * octets) - 1
        open_into, iv = self._open_into, self._iv
        at = mask_at = row = 0
        frame_at = stop - head_octets
        try:
            for row in range(rows):
                truncated = (number & last_number).to_bytes(octets, "big")
                body = at + body_at
                found = int.from_bytes(datagrams[at + number_at : body], "big")
                mask = int.from_bytes(masks[mask_at + 1 : mask_at + 1 + octets], "big")
                if found ^ mask != number & last_number:
                    return row, step
                at += segment_octets
                kept = bytes(view[frame_at:stop])
                open_into(
                    (iv ^ number).to_bytes(12, "big"),
                    datagrams[body:at],
                    start + truncated,
                    view[frame_at : frame_at + size],
                )
                is_next = view[frame_at:stop] == expected.to_bytes(head_octets, "big")
                view[frame_at:stop] = kept
                if not is_next:
                    return row, step
                expected += expected_step
                number += 1
                mask_at += SAMPLE_OCTETS
                frame_at += step
                stop += step
        except InvalidTag:
            view[frame_at:stop] = kept
            return row, step
        return rows, step

    def open_rows(
        self,
        datagrams: memoryview,
        segment_octets: int,
        expected: int,
        plain: memoryview,
    ) -> tuple[int, int, int]:
        """Open what is alike of packets of so many octets: `moqt.asyncio.bulk.rows.open_rows`."""
        grid = np.frombuffer(datagrams, np.uint8).reshape(-1, segment_octets)
        samples = grid[:, self._sample_at : self._sample_at + SAMPLE_OCTETS].tobytes()
        return open_rows(
            grid,
            datagrams,
            header_masks(self._protection, samples),
            connection_id=self._connection_id,
            expected=expected,
            open_into=self._open_into,
            iv=self._iv,
            plain=plain,
        )
