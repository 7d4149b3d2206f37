"""A consumer without I/O: which Objects are verified, which are missing, which layers are usable.

`Assembly` knows the wanted Objects of one retrieval. It hands out the place of an Object's octets
(`place`), judges what arrived (`receive`), and names usable layers and missing Objects. Objects may
come in any order, from several sessions, and more than once.

A place is a lease: it has one holder at a time, which gives it back by `abandoned` or `receive`.
Memory of a verified Object is never a place again. A second copy that comes while a place is out
goes to other memory; verified, it is kept aside as a spare, and used if the holder fails.
Source: KVCS 3.5, 3.6, 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kvcs.coverage import Coverage
from kvcs.errors import (
    CodecError,
    MissingObject,
    ObjectRejected,
    PublicationUnusable,
    RejectReason,
    TensorMismatch,
)
from kvcs.kvsp.shapes import Component
from kvcs.kvsp.tensors import LayerTensor
from kvcs.manifest import DIGEST_OCTETS
from kvcs.payload import HEADER_OCTETS, verify_data
from kvcs.wanted import Lease, ObjectState, TrackState, Verification, WantedTrack
from moqt.codes import ObjectStatus
from moqt.session.receive.sink import COMPARED_OCTETS

if TYPE_CHECKING:
    from kvcs.destinations import Destinations
    from kvcs.geometry import SegmentSpan
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.kvsp.shapes import AnyArray
    from kvcs.stats import RetrievalStats
    from moqt.types import ObjectHeader

__all__ = ["Assembly", "Lease", "Outcome", "UsableLayer", "Verification", "WantedTrack"]

# Looked up for each Object; members of an enum take longer.
_ABSENT = int(ObjectState.ABSENT)
_LEASED = int(ObjectState.LEASED)
_CHECKING = int(ObjectState.CHECKING)
_VERIFIED = int(ObjectState.VERIFIED)


@dataclass(frozen=True, slots=True)
class UsableLayer:
    """One layer, verified: every Object that was asked for, in all tracks (KVCS 5.4).

    `k`, `v`: the descriptor's layout and dtype; `v` None where the layer has no V tensor. They are
    the caller's own arrays (`into`), else belong to whoever holds this.
    """

    index: int
    k: AnyArray
    v: AnyArray | None


class Outcome(Enum):
    """What became of an Object that arrived."""

    VERIFIED = "verified"
    SPARE = "verified, while another copy holds its place"
    DUPLICATE = "verified before"
    DISCARDED = "not asked for"
    REJECTED = "failed a check"
    UNCHECKED = "was not verified any more"
    STATUS = "said that there is no content"


class Assembly(Coverage):
    """The wanted Objects of one retrieval: layers `first_layer` to `last_layer` of `blocks` blocks.

    `blocks` counts from the start of the context, over all segments. `require_listed`: a layer is
    usable only when the manifest lists the digests of all its Objects (a signed manifest is what
    makes them authentic).
    """

    def __init__(
        self,
        descriptor: Descriptor,
        destinations: Destinations,
        *,
        first_layer: int,
        last_layer: int,
        blocks: int,
        require_listed: bool,
        stats: RetrievalStats,
    ) -> None:
        super().__init__(
            descriptor,
            first_layer=first_layer,
            last_layer=last_layer,
            blocks=blocks,
            require_listed=require_listed,
        )
        self.stats = stats
        self._destinations = destinations
        self._scratch = bytearray()

    # Commands

    def add_track(self, wanted: WantedTrack) -> int:
        """Add a wanted track and return its number. Tracks of a segment cover its span together."""
        state = TrackState(wanted, self._descriptor, self.layers)
        for at, size in enumerate(state.sizes):
            self._pending[at] += size
        self._tracks.append(state)
        return len(self._tracks) - 1

    def cover(self, span: SegmentSpan) -> None:
        """Take note that a segment's wanted tracks were all added."""
        self._spans[span.segment] = span
        self._is_covered = not any(True for _ in self._gaps())

    def list_digests(self, track: int, layer: int, digests: bytes) -> list[int]:
        """Take the Data Digests of all Objects of a layer as the manifest lists them (KVCS 3.6).

        Verified Objects that differ are missing again; returns their blocks. Raises:
        PublicationUnusable when such a layer was handed over already.
        """
        state = self._tracks[track]
        at = layer - self.layers.start
        rejected: list[int] = []
        if not 0 <= at < len(self.layers) or state.listed[at] is not None:
            return rejected
        blocks = range(state.wanted.skip, len(state.states[at]))
        state.listed[at] = listed = digests[
            DIGEST_OCTETS * blocks.start : DIGEST_OCTETS * blocks.stop
        ]
        if state.digests[at] == listed and not state.recomputed[at]:
            return rejected
        for block in blocks:
            if state.states[at][block] != _VERIFIED or block in state.recomputed[at]:
                continue
            octets = state.digest_octets(block)
            if state.digests[at][octets] == listed[octets]:
                continue
            if layer in self._handed_over:
                raise PublicationUnusable(
                    f"layer {layer} of track {state.wanted.name} was handed over, but the manifest "
                    f"lists another digest for block {block} (KVCS 3.6)"
                )
            state.states[at][block] = ObjectState.ABSENT
            self._count(state, at, 1)
            self.stats.objects -= 1
            self._reject(state, layer, block, RejectReason.MANIFEST_DIGEST)
            rejected.append(block)
        return rejected

    # What arrives

    def lease(self, track: int, header: ObjectHeader, holder: object) -> Lease | None:
        """Return the place of an Object that begins now; None: it goes to other memory.

        None for what is not wanted, not raw, of another size, verified, or leased already.
        """
        state = self._tracks[track]
        layer, block = header.group_id, header.object_id
        at = layer - self._first
        if (
            not 0 <= at < len(state.states)
            or block >= len(state.states[at])
            or state.states[at][block]  # ABSENT is 0
            or header.payload_length != state.placed_octets[at]
        ):
            return None
        runs = self._runs(state, at, block)
        if runs is None:
            return None
        return self._let(state, track, at, block, holder, runs)

    def scratch(self, track: int, header: ObjectHeader) -> tuple[memoryview, ...] | None:
        """Return a place for an Object that is not wanted or verified already; its content is void.

        But for its beginning, one memory for all of them: a run may bring many, and what the
        session compares of each must not be the last one's. None: the Object is wanted, or too long
        to be one of ours.
        """
        state = self._tracks[track]
        at = header.group_id - self._first
        if 0 <= at < len(state.states) and header.object_id < len(state.states[at]):
            if state.states[at][header.object_id] < ObjectState.VERIFIED:
                return None
        if not len(self._scratch):
            longest = max(
                state.wanted.codec.max_data_octets(shape)
                for state in self._tracks
                for shape in state.shapes
            )
            self._scratch = bytearray(HEADER_OCTETS + longest)
        if header.payload_length > len(self._scratch):
            return None
        own = memoryview(bytearray(min(COMPARED_OCTETS, header.payload_length)))
        return own, memoryview(self._scratch)[len(own) : header.payload_length]

    def abandoned(self, lease: Lease) -> None:
        """Take a place back whose Object will not be completed."""
        state = self._tracks[lease.track]
        key = (lease.layer, lease.block)
        if state.leases.get(key) is lease:
            self._end_lease(state, lease)
            self._use_spare(state, key)

    def release(self, holder: object) -> None:
        """Take back all places of a holder that is gone."""
        for state in self._tracks:
            for lease in [lease for lease in state.leases.values() if lease.holder is holder]:
                self.abandoned(lease)

    def receive(
        self,
        track: int,
        header: ObjectHeader,
        *,
        lease: Lease | None = None,
        payload: memoryview | None = None,
        at_once: bool = False,
    ) -> Outcome | Verification:
        """Judge an Object that arrived whole: in its `lease`, or as `payload` in other memory.

        Both None: it went to `scratch`, or has no payload. A `Verification`, which `at_once` never
        gives, is to be run, then given to `finish`.
        """
        state = self._tracks[track]
        layer, block = header.group_id, header.object_id
        if header.status is not ObjectStatus.NORMAL:
            self._note_status(state, header)
            return Outcome.STATUS
        self.stats.objects_received += 1
        try:
            at = layer - self._first
            if lease is None:  # else it is wanted
                state.expected.check_location(layer, block)
                if not 0 <= at < len(state.states) or block not in state.wanted:
                    self.stats.discarded += 1
                    return Outcome.DISCARDED
                if block >= len(state.states[at]):
                    raise ObjectRejected(
                        RejectReason.COMPONENT,
                        f"layer {layer} has no {state.wanted.name.component.text} tensor",
                    )
                if state.states[at][block] == ObjectState.VERIFIED:
                    self.stats.duplicates += 1
                    return Outcome.DUPLICATE
            elif at_once and state.leases.get((layer, block)) is lease:
                self._verify_in_place(state, header, lease)
                return Outcome.VERIFIED
            verification = self._verification(state, track, header, lease, payload)
        except ObjectRejected as error:
            if lease is not None:
                self._end_lease(state, lease)
            self._reject(state, layer, block, error.reason)
            if lease is not None:
                self._use_spare(state, (layer, block))
            return Outcome.REJECTED
        if not at_once:
            return verification
        verification.run()
        return self.finish(verification)

    def finish(self, verification: Verification) -> Outcome:
        """Take the result of a `Verification`; one that was not run gives its place back."""
        track, layer, block = verification.where
        state = self._tracks[track]
        at = layer - self._first
        self.stats.buffered_octets -= HEADER_OCTETS + verification.octets
        lease = verification.lease
        if lease is not None:
            self._end_lease(state, lease)
        if not verification.is_verified:
            return self._fail(state, layer, block, verification)
        if state.is_listed_otherwise(at, block, verification.digest):
            return self._fail(state, layer, block, verification, RejectReason.MANIFEST_DIGEST)
        current = state.states[at][block]
        if current == _ABSENT:
            self._bring(state, layer, block, verification)
            return Outcome.VERIFIED
        if current == ObjectState.VERIFIED:
            self.stats.duplicates += 1
            return Outcome.DUPLICATE
        state.spares[layer, block] = verification
        return Outcome.SPARE

    def _fail(
        self,
        state: TrackState,
        layer: int,
        block: int,
        verification: Verification,
        reason: RejectReason | None = None,
    ) -> Outcome:
        if reason is None and verification.error is not None:
            reason = verification.error.reason
        if reason is not None:
            self._reject(state, layer, block, reason)
        if verification.lease is not None:
            self._use_spare(state, (layer, block))
        return Outcome.UNCHECKED if reason is None else Outcome.REJECTED

    def recomputed(
        self, missing: MissingObject, k: AnyArray | None, v: AnyArray | None = None
    ) -> bool:
        """Take one block that the caller recomputed; False when it is there or on its way.

        `k`, `v`: the block's tensors in the descriptor's layout, as the component has them.
        Raises: TensorMismatch.
        """
        found = self._find(missing)
        if found is None:
            return False
        state, at = found
        if state.states[at][missing.block] != ObjectState.ABSENT:
            return False
        block_tokens = self._descriptor.block_tokens
        geometry = self._descriptor.geometry(missing.layer)
        given = {Component.K: k, Component.V: v}
        sections = []
        for part in state.parts[at]:
            array = given[part]
            if array is None:
                raise TensorMismatch(f"recomputed {missing}: no {part.text} array was given")
            tensor = LayerTensor(array, geometry, part)
            if tensor.tokens != block_tokens:
                raise TensorMismatch(
                    f"recomputed {missing}: {tensor.tokens} tokens, a block has {block_tokens}"
                )
            sections += tensor.cut(first_token=0, block_tokens=block_tokens, blocks=1, copy=False)
        self._write(state, missing.layer, missing.block, tuple(sections))
        state.recomputed[at].add(missing.block)
        state.states[at][missing.block] = ObjectState.VERIFIED
        self._count(state, at, -1)
        state.reasons.pop((missing.layer, missing.block), None)
        self.stats.recomputed += 1
        return True

    # Handing over

    def next_usable(self) -> UsableLayer | None:
        """Return the next layer in order once it is usable, once; None: not yet, or no more."""
        if self._next not in self.layers or not self.is_usable(self._next):
            return None
        layer = self._next
        self._advance(layer)
        return self._hand_over(layer)

    def next_remaining(self) -> UsableLayer | None:
        """Return the next usable layer whatever is missing before it; None when there is none."""
        for layer in self.layers:
            if layer not in self._handed_over and self.is_usable(layer):
                self._advance(layer)
                return self._hand_over(layer)
        return None

    def _advance(self, layer: int) -> None:
        self._handed_over.add(layer)
        while self._next in self._handed_over:
            self._next += 1

    def _hand_over(self, layer: int) -> UsableLayer:
        k, v = self._destinations.arrays(layer)
        self._destinations.drop(layer)
        for state in self._tracks:
            state.memory[layer - self._first] = None
        self.stats.layers += 1
        return UsableLayer(layer, k, v)

    # Inside

    def _find(self, missing: MissingObject) -> tuple[TrackState, int] | None:
        at = missing.layer - self.layers.start
        for state in self._tracks:
            if (
                state.wanted.span.segment == missing.segment
                and state.wanted.name.component is missing.component
                and 0 <= at < len(state.states)
                and missing.block in state.wanted
                and missing.block < len(state.states[at])
            ):
                return state, at
        return None

    def _let(
        self,
        state: TrackState,
        track: int,
        at: int,
        block: int,
        holder: object,
        runs: tuple[memoryview, ...] | None,
    ) -> Lease:
        layer = self._first + at
        lease = Lease(track, layer, block, holder, runs=runs)
        state.leases[layer, block] = lease
        state.states[at][block] = _LEASED
        return lease

    def _end_lease(self, state: TrackState, lease: Lease) -> None:
        lease.holder = None  # it may refer to the lease
        key = (lease.layer, lease.block)
        if state.leases.get(key) is lease:
            del state.leases[key]
            states = state.states[lease.layer - self._first]
            if states[lease.block] == _CHECKING:
                state.checking -= 1
            states[lease.block] = _ABSENT

    def _verify_in_place(self, state: TrackState, header: ObjectHeader, lease: Lease) -> None:
        """As a `Verification`, for what is in its place, and at once. Raises: ObjectRejected."""
        layer, block = header.group_id, header.object_id
        digest = state.expected.checked_digest(
            lease.buffers[0],
            group_id=layer,
            object_id=block,
            payload_octets=header.payload_length,
        )
        verify_data(digest, lease.buffers[1:])
        if state.is_listed_otherwise(layer - self._first, block, digest):
            raise ObjectRejected(RejectReason.MANIFEST_DIGEST, "the manifest lists another digest")
        del state.leases[layer, block]
        lease.holder = None  # it may refer to the lease
        self._accept(state, layer, block, digest, header.payload_length)

    def _verification(
        self,
        state: TrackState,
        track: int,
        header: ObjectHeader,
        lease: Lease | None,
        payload: memoryview | None,
    ) -> Verification:
        layer, block = header.group_id, header.object_id
        at = layer - self._first
        is_placed = lease is not None
        if lease is not None:
            head, data = lease.buffers[0], lease.buffers[1:]
        else:
            head = memoryview(b"") if payload is None else payload
            data = (head[HEADER_OCTETS:],)
        digest = state.expected.checked_digest(
            head, group_id=layer, object_id=block, payload_octets=header.payload_length
        )
        octets = header.payload_length - HEADER_OCTETS
        if lease is None:
            try:
                state.wanted.codec.check_data_octets(octets, state.shapes[at])
            except CodecError as error:
                raise ObjectRejected(error.reason, str(error)) from error
            if state.states[at][block] == _ABSENT:
                runs = self._runs(state, at, block)
                lease = self._let(state, track, at, block, None, runs)
        verification = Verification(
            (track, layer, block),
            digest,
            octets,
            data,
            lease=lease,
            is_placed=is_placed,
            codec=state.wanted.codec,
            shape=state.shapes[at],
        )
        if lease is not None:
            lease.holder = verification  # whoever received it may go now
            if state.states[at][block] == _LEASED:
                state.states[at][block] = _CHECKING
                state.checking += 1
        self.stats.buffered_octets += header.payload_length
        return verification

    def _bring(self, state: TrackState, layer: int, block: int, verification: Verification) -> None:
        """Take a verified Object that may yet have to be written to its place."""
        if not verification.is_placed:
            self._write(state, layer, block, verification.raw)
        octets = HEADER_OCTETS + verification.octets
        self._accept(state, layer, block, verification.digest, octets)

    def _accept(
        self, state: TrackState, layer: int, block: int, digest: bytes, octets: int
    ) -> None:
        """Take an Object that is verified and in its place."""
        at = layer - self._first
        state.digests[at][state.digest_octets(block)] = digest
        state.states[at][block] = _VERIFIED
        self._count(state, at, -1)
        if state.reasons:
            state.reasons.pop((layer, block), None)
        if state.spares:
            state.spares.pop((layer, block), None)
        self.stats.objects += 1
        self.stats.octets += octets

    def _use_spare(self, state: TrackState, key: tuple[int, int]) -> None:
        spare = state.spares.pop(key, None)
        if spare is None:
            return
        layer, block = key
        if state.is_listed_otherwise(
            layer - self.layers.start, block, spare.digest
        ):  # listed since it was checked
            self._reject(state, layer, block, RejectReason.MANIFEST_DIGEST)
        else:
            self._bring(state, layer, block, spare)

    def _reject(self, state: TrackState, layer: int, block: int, reason: RejectReason) -> None:
        self.stats.rejected[reason] += 1
        at = layer - self.layers.start
        if 0 <= at < len(state.states) and block < len(state.states[at]):
            state.reasons[layer, block] = reason

    def _note_status(self, state: TrackState, header: ObjectHeader) -> None:
        """A status Object says that no Object at or behind its place exists in the Group."""
        at = header.group_id - self.layers.start
        if not 0 <= at < len(state.states):
            return
        for block in range(header.object_id, len(state.states[at])):
            if state.states[at][block] == ObjectState.ABSENT:
                state.reasons.setdefault((header.group_id, block), RejectReason.STATUS)

    def _runs(self, state: TrackState, at: int, block: int) -> tuple[memoryview, ...] | None:
        """Return the memory of a block in its arrays; None: strides leave no runs."""
        memory = state.memory[at]
        if memory is None:
            memory = state.memory[at] = self._destinations.memory(
                self._first + at,
                state.shapes[at],
                first_token=state.first_token(0),
                blocks=state.wanted.blocks,
            )
        if memory.views:
            return memory.block(block)
        first_token = state.first_token(block)
        return self._destinations.runs(self._first + at, state.shapes[at], first_token)

    def _write(
        self, state: TrackState, layer: int, block: int, raw: tuple[memoryview, ...]
    ) -> None:
        shape = state.shapes[layer - self.layers.start]
        self._destinations.write(layer, shape, state.first_token(block), raw)
