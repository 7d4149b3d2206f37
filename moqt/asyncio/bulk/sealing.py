"""Seals 1-RTT packets that hold one STREAM frame each, without a length (RFC 9001 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moqt.asyncio.bulk.protection import SAMPLE_OCTETS, TAG_OCTETS, header_masks
from moqt.asyncio.bulk.rows import FEWEST_ROWS, NUMBER_OCTETS, seal_rows, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioquic.quic.crypto import CryptoContext

_FIXED_BIT = 0x40
_STREAM_OFF = 0x0C
_FIN = 0x01

_OFFSET_4, _OFFSET_4_MARK, _OFFSET_4_LIMIT = 4, 0x80000000, 1 << 30
_OFFSET_8, _OFFSET_8_MARK = 8, 0xC000000000000000

FAR_NUMBERS = 1 << 14
"""So many packets beyond the last acknowledged one, numbers are written in four octets."""


class Sealer:
    """Seals for one peer with one key, while numbers are written in so many octets."""

    def __init__(
        self,
        crypto: CryptoContext,
        *,
        connection_id: bytes,
        spin_bit: bool,
        is_far: bool,
    ) -> None:
        aead, protection = crypto.aead, crypto.hp
        assert aead is not None
        assert protection is not None
        self._number_octets = 4 if is_far else NUMBER_OCTETS
        first = _FIXED_BIT | spin_bit << 5 | crypto.key_phase << 2 | self._number_octets - 1
        self._start_of_header = bytes((first,)) + connection_id
        self._overhead = len(self._start_of_header) + self._number_octets + 1 + TAG_OCTETS
        self._seal_into, self._iv = aead._aead.encrypt_into, aead._iv
        self._protection = protection

    def payload_octets(self, id_octets: bytes, offset_limit: int, datagram_octets: int) -> int:
        """Return what a packet takes of the stream, whose offsets are below `offset_limit`."""
        offset_octets = _OFFSET_4 if offset_limit < _OFFSET_4_LIMIT else _OFFSET_8
        return datagram_octets - self._overhead - len(id_octets) - offset_octets

    def seal(
        self,
        buffer: memoryview,
        pieces: Sequence[memoryview | bytes],
        *,
        id_octets: bytes,
        start: int,
        stop: int,
        offset_limit: int,
        fin: bool,
        number: int,
        datagram_octets: int,
    ) -> int:
        """Write packets of `datagram_octets` with octets `start` to `stop` of a stream.

        `pieces` are these octets; `fin`: the stream ends with them. Returns the octets written; the
        last packet may be shorter.
        """
        is_short = offset_limit < _OFFSET_4_LIMIT
        mark, width = (_OFFSET_4_MARK, _OFFSET_4) if is_short else (_OFFSET_8_MARK, _OFFSET_8)
        step = datagram_octets - self._overhead - len(id_octets) - width
        kind = bytes((_STREAM_OFF,)) + id_octets
        data_at = datagram_octets - TAG_OCTETS - step
        spread(buffer, pieces, at=data_at, step=step, stride=datagram_octets)
        at = done = 0
        rows = (stop - start - fin) // step  # FIN makes the last packet unlike the others
        if rows >= FEWEST_ROWS and self._number_octets == NUMBER_OCTETS:
            at, done = rows * datagram_octets, rows * step
            seal_rows(
                buffer[:at],
                rows=rows,
                start_of_header=self._start_of_header,
                first_number=number,
                start_of_frame=kind,
                offset=(start | mark).to_bytes(width, "big"),
                seal_into=self._seal_into,
                iv=self._iv,
                protection=self._protection,
            )
            number += rows
            if start + done == stop:
                return at
        number_mask = (1 << (8 * self._number_octets)) - 1
        first_at, samples = at, []
        sample_at = len(self._start_of_header) + 4
        octets = stop - start
        while True:
            end = done + step
            if end >= octets:
                end = octets
                if fin:
                    kind = bytes((_STREAM_OFF | _FIN,)) + id_octets
            header = self._start_of_header + (number & number_mask).to_bytes(
                self._number_octets, "big"
            )
            head = b"".join((header, kind, (start + done | mark).to_bytes(width, "big")))
            body_at, data_at = at + len(header), at + len(head)
            data_end = data_at + end - done
            packet_end = data_end + TAG_OCTETS
            buffer[at:data_at] = head
            self._seal_into(
                (self._iv ^ number).to_bytes(12, "big"),
                buffer[body_at:data_end],
                header,
                buffer[body_at:packet_end],
            )
            samples.append(buffer[at + sample_at : at + sample_at + SAMPLE_OCTETS])
            number += 1
            at, done = packet_end, end
            if done >= octets:
                break
        self._protect(buffer[first_at:at], samples, datagram_octets)
        return at

    def _protect(
        self, packets: memoryview, samples: Sequence[memoryview], datagram_octets: int
    ) -> None:
        masks = header_masks(self._protection, b"".join(samples))
        mask_at = 0
        number_at = len(self._start_of_header)
        for head in range(0, len(packets), datagram_octets):
            packets[head] ^= masks[mask_at] & 0x1F
            head += number_at
            packets[head] ^= masks[mask_at + 1]
            packets[head + 1] ^= masks[mask_at + 2]
            if self._number_octets == 4:
                packets[head + 2] ^= masks[mask_at + 3]
                packets[head + 3] ^= masks[mask_at + 4]
            mask_at += SAMPLE_OCTETS
