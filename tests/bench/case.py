"""What a benchmark case is: a name, and a function that runs one round and returns figures.

A module with cases has a function `cases(scale) -> Sequence[Case]` and is listed in
`tests.bench.catalogue`. Cases of one section are run interleaved: round 1 of each, round 2 of each
and so on, so that figures of one round were taken within the same minute and may be divided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypeAlias

__all__ = [
    "CACHE_OCTETS",
    "MEBI",
    "Case",
    "CaseFailed",
    "Figures",
    "Metric",
    "NotRun",
    "Scale",
    "Section",
]

MEBI = 1 << 20


class Metric(StrEnum):
    """What is measured; the value is its column title, unit included. MB and GB are decimal."""

    SPEED = "MB/s"
    SENDER_CPU = "sender CPU s/GB"
    RECEIVER_CPU = "receiver CPU s/GB"
    SENDER_PEAK = "sender peak MiB"
    """The whole process at its largest, less the octets of the caller's tensors."""
    SENDER_GROWTH = "sender growth MiB"
    """Its largest during the transfer, less what it had just before."""
    RECEIVER_PEAK = "receiver peak MiB"
    RECEIVER_GROWTH = "receiver growth MiB"
    SENDER_RESIDENT = "producer resident MiB"
    """What the process has in memory, less the caller's tensors."""
    SENDER_FILES = "producer files MiB"
    """Of that, pages of files: libraries, which processes share."""
    RECEIVER_RESIDENT = "consumer resident MiB"
    RECEIVER_FILES = "consumer files MiB"
    OBJECTS = "Objects/s"
    LAYER_TIME = "ms a layer"
    """Time of the whole transfer over its layers."""
    P50 = "p50 ms"
    """From `put_layer` (called) to the layer in the consumer's hands."""
    P99 = "p99 ms"
    SENDER_TOTAL_CPU = "producer CPU ms"
    RECEIVER_TOTAL_CPU = "consumers CPU ms"
    SENDER_UNIT_CPU = "producer CPU us/unit"
    RECEIVER_UNIT_CPU = "consumer CPU us/unit"
    UNITS = "units"
    PUBLISH_CPU = "CPU us a publish"
    LISTED_CPU = "CPU us a listed name"
    """Of both ends, for one name that SUBSCRIBE_NAMESPACE reports."""
    UTILISATION = "share of the link"
    TCP_SHARE = "share beside TCP"
    """Of what both moved over the link at the same time: a half is fair."""
    QUEUE_DROPS = "dropped %"
    """Of the packets sent, those for which the link's queue had no room."""
    DATAGRAM = "datagram octets"
    """Largest UDP payload that the sender used at the end, where the library tells."""
    RETRIES = "recovery steps"
    """Requests for what had not come by itself: none, if all is well."""
    DATAGRAMS_SENT = "datagrams to a consumer"
    """Handed to the socket by the producer; this and what follows: by its counters, the mean."""
    PACKETS_LOST = "packets lost a consumer"
    """Of those, what the producer's loss recovery took for lost."""
    DATAGRAMS_RECEIVED = "datagrams to the producer a consumer"
    """Acknowledgements, mostly."""
    WAKEUPS = "producer wake-ups a consumer"
    """How often the producer worked on a consumer's connection."""


class Section(Enum):
    """Where a case is shown. Its cases are interleaved with each other."""

    BULK = "Bulk transfer"
    OBJECTS = "Object sizes"
    CONSUMERS = "Several consumers"
    LATENCY = "Layer latency"
    GROWTH = "Growth"
    LINKS = "Emulated links"
    MEMORY = "Resident memory"


CACHE_OCTETS = 512 * MEBI
"""The cache of 4,096 tokens of Llama 3 8B: 32 layers of 16 MiB."""

Figures: TypeAlias = Mapping[Metric, float]
"""The figures of one case in one round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is moved. Cases take their sizes from it."""

    octets: int = CACHE_OCTETS
    """Payload of one bulk transfer."""
    peers_python: str | None = None
    """The interpreter with the other implementations (`.venv-peers`); None: there is none."""
    is_quick: bool = False
    """Leave out the largest sizes: for a small machine."""
    profile_dir: str | None = None
    """Where the sides of kvcs leave profiles; profiling changes all figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration. `run` runs one round: it starts what it needs and leaves nothing behind.

    `run` raises NotRun for what this machine lacks, and CaseFailed for what went wrong; neither
    ends the other cases.
    """

    name: str
    """For `--only` and the JSON, as in "kvcs-1452"."""
    title: str
    """For tables, as in "KVCS verified, 1,452-octet datagrams"."""
    section: Section
    run: Callable[[], Figures]
    rounds: int | None = None
    """Rounds if fewer than asked for are enough, as for a link whose time is given."""


class NotRun(Exception):
    """Why a case can't be run here."""


class CaseFailed(Exception):
    """What went wrong in a round."""
