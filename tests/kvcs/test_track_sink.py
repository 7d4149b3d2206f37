"""The consumer's places beside the session's own check of Objects that come twice (MOQT-22 7.1)."""

from __future__ import annotations

from kvcs.assembly import Outcome
from kvcs.track_feed import TrackSink
from kvcs.wanted import Lease, Verification
from moqt.session.events import ObjectReceived, TrackMalformed
from moqt.testing import ScriptedPeer
from moqt.types import Placement
from moqt.wire.streams import SubgroupHeader
from moqt.wire.subgroup_objects import SubgroupWriter
from tests.kvcs.support import TestObject, bench
from tests.session.receiving import ALIAS, established, one

BLOCKS = 4


def subgroup(objects: list[TestObject]) -> bytes:
    """Return a stream with Objects of one Group."""
    head = objects[0].header
    writer = SubgroupWriter(
        SubgroupHeader(
            track_alias=ALIAS,
            group_id=head.group_id,
            subgroup_id=0,
            publisher_priority=head.publisher_priority,
        )
    )
    return bytes(writer.head) + b"".join(
        bytes(writer.encode(each.header)) + each.payload for each in objects
    )


def test_a_layer_that_comes_twice_in_one_run_is_no_malformed_track() -> None:
    """7.1#1: a relay may replay what a fill brings too, and another payload is told all the same.

    All of a run is read before any of it is compared, so each Object needs a beginning of its own.
    """
    table = bench(segments=(BLOCKS,))
    sink = TrackSink(table.assembly, 0)
    layer = [each for each in table.objects if each.track == 0 and each.header.group_id == 1]
    peer = ScriptedPeer()
    established(peer, sink=sink)

    def bring(objects: list[TestObject]) -> list[Outcome]:
        peer.send_octets(peer.open_uni(), subgroup(objects))
        outcomes = []
        for event in peer.take(ObjectReceived):
            placement = event.object.placement
            assert isinstance(placement, Placement)
            assert placement.token is None or isinstance(placement.token, Lease)
            lease = placement.token
            result = table.assembly.receive(0, event.object.header, lease=lease)
            if isinstance(result, Verification):
                result.run()
                result = table.assembly.finish(result)
            outcomes.append(result)
        return outcomes

    assert bring(layer) == [Outcome.VERIFIED] * BLOCKS
    assert bring(layer) == [Outcome.DUPLICATE] * BLOCKS
    assert not peer.take(TrackMalformed)
    swapped = [TestObject(0, layer[n].header, layer[1 - n].payload) for n in (0, 1)]
    assert bring(swapped) == []
    assert "{1,0} came twice, with another payload" in one(peer.take(TrackMalformed)).reason
