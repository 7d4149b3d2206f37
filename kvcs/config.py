"""Every limit of a producer and of a consumer, with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcs.jobs import processors
from kvcs.names import NamespaceForm

__all__ = ["ConsumerConfig", "ProducerConfig"]

KIBI = 1 << 10
MEBI = 1 << 20
GIBI = 1 << 30


def _spare_thread_octets() -> int:
    """Return the default of `ConsumerConfig.thread_octets` on this machine."""
    return 256 * KIBI if processors() > 1 else 4 * MEBI


def _require(name: str, value: float, low: float) -> None:
    if not value >= low:
        raise ValueError(f"{name} is {value}, expected {low} or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Limits of one `Producer`. Raises ValueError for a negative or too small one."""

    namespace_form: NamespaceForm = NamespaceForm.BINARY
    """How namespace fields are written; consumers must be set to the same form."""

    retain_bytes: int = 8 * GIBI
    """Octets of completed publications that are kept for late joiners, together. Beyond it the
    publication that was completed first is withdrawn. The one completed last always stays."""

    retain_s: float = 3600.0
    """How long a completed publication is kept."""

    max_live_bytes: int = 64 * GIBI
    """Octets of publications in production, together: all of it is kept for late joiners. A layer
    beyond it is refused with `ProductionError`."""

    max_publications: int = 1024
    """Publications at once, live and completed; a completed one gives way to a new one."""

    max_segments: int = 4096
    """Segments of one publication."""

    layers_per_manifest: int = 8
    """A manifest version is published at least every so many completed layers (KVCS 3.6)."""

    worker_threads: int = 2
    """Threads that gather, encode and hash layers; for one layer no more of them work than there
    are processors for this process."""

    thread_octets: int = 1 * MEBI
    """A layer of fewer octets is prepared on the loop's own thread: a thread would cost more."""

    reconnect_delay_s: float = 1.0
    """First pause before a lost relay is connected again; it doubles up to `reconnect_max_s`."""

    reconnect_max_s: float = 30.0
    """The longest such pause."""

    close_timeout_s: float = 5.0
    """How long closing waits for the connection's clean end."""

    def __post_init__(self) -> None:
        for name in ("retain_bytes", "max_live_bytes", "thread_octets"):
            _require(name, getattr(self, name), 0)
        for name in ("max_publications", "max_segments", "worker_threads"):
            _require(name, getattr(self, name), 1)
        for name in ("retain_s", "reconnect_delay_s", "reconnect_max_s", "close_timeout_s"):
            _require(name, getattr(self, name), 0)
        if not 1 <= self.layers_per_manifest <= 8:
            raise ValueError(
                f"layers_per_manifest is {self.layers_per_manifest}, expected 1 to 8 (KVCS 3.6)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Limits and preferences of one `Consumer`. Raises ValueError for a negative or too small one.

    Together they bound every wait of a retrieval: finding a publication, its manifest, progress
    (`stall_timeout_s`), and recovery (`recovery_deadline_s`).
    """

    namespace_form: NamespaceForm = NamespaceForm.BINARY
    """How namespace fields are written; producers must be set to the same form."""

    codecs: tuple[str, ...] = ("raw", "bszstd", "zstd")
    """Codec names in order of preference; a segment offered in none of them is unusable."""

    prefer_joint: bool = False
    """Take one "kv" track rather than "k" and "v" where a segment offers both in one codec."""

    discovery_timeout_s: float = 10.0
    """How long a retrieval waits for a publication to appear; 0: only what is there already."""

    discovery_settle_s: float = 0.25
    """How long after its answer a prefix may still report what is there already, before a shorter
    prefix is taken instead. MOQT marks no end of that first list."""

    max_prefixes: int = 64
    """Prefixes of one prompt that are asked for, longest first (KVCS 5.1)."""

    max_publications: int = 32
    """Publications of one prefix that are remembered; further ones are ignored."""

    manifest_timeout_s: float = 10.0
    """Time for the first usable manifest of a publication, from the request on. No further
    publication is tried once `discovery_timeout_s` and this are over."""

    stall_timeout_s: float = 30.0
    """After so long without a verified Object of the layer that is waited for, its Objects count
    as missing and recovery begins. Longer than any pause that producers make."""

    overtaken_timeout_s: float = 2.0
    """After so long without a verified Object of a layer that a later layer of its track has
    overtaken, what lacks of it counts as missing and is asked for by FETCH: some relays drop older
    Groups of a live track."""

    recovery_deadline_s: float = 10.0
    """Time for recovery, from the moment that Objects were found missing and as long as it brings
    none; choose about what recomputing them takes (KVCS 5.4)."""

    request_timeout_s: float = 10.0
    """Time for the answer to one request."""

    connect_timeout_s: float = 5.0
    """Time for one connection, when a lost one is made again and to other endpoints."""

    max_open_requests: int = 64
    """Requests of one retrieval that are open at once at each of its `sessions`; further Groups
    wait."""

    max_retrievals: int = 256
    """Retrievals of one consumer at once."""

    max_sessions: int = 16
    """Sessions that one retrieval is spread over at most (`sessions=`)."""

    max_endpoints: int = 16
    """Connections to other endpoints that are kept: for recovery, and where peers send us."""

    max_redirects: int = 8
    """REDIRECTs that one request follows."""

    thread_octets: int = field(default_factory=_spare_thread_octets)
    """Data of so many octets or more is hashed and decoded in a worker thread. Default: 256 KiB; 4
    MiB where this process has one processor alone, so that a thread gains nothing but that the loop
    is never kept for more than a few milliseconds."""

    worker_threads: int = 2
    """Threads that hash and decode."""

    max_queued_checks: int = 256
    """Objects of one retrieval that wait for a worker thread; then receiving pauses."""

    max_queued_check_octets: int = 16 * MEBI
    """Octets of these that are not in their places yet, being encoded or to be scattered; one
    Object may go beyond it."""

    close_timeout_s: float = 5.0
    """How long closing waits for the connection's clean end."""

    def __post_init__(self) -> None:
        for name in ("max_prefixes", "max_publications", "max_open_requests", "max_retrievals"):
            _require(name, getattr(self, name), 1)
        for name in (
            "discovery_timeout_s",
            "discovery_settle_s",
            "manifest_timeout_s",
            "stall_timeout_s",
            "overtaken_timeout_s",
            "recovery_deadline_s",
            "request_timeout_s",
            "close_timeout_s",
            "thread_octets",
            "max_redirects",
        ):
            _require(name, getattr(self, name), 0)
        _require("worker_threads", self.worker_threads, 1)
        _require("max_queued_checks", self.max_queued_checks, 1)
        _require("max_queued_check_octets", self.max_queued_check_octets, 1)
        _require("max_endpoints", self.max_endpoints, 1)
        _require("max_sessions", self.max_sessions, 1)
        if not self.connect_timeout_s > 0:
            raise ValueError(f"connect_timeout_s is {self.connect_timeout_s}, expected more than 0")
        if not self.codecs:
            raise ValueError("codecs is empty, expected at least one codec name")
