"""Bulk transfer: KVCS in several datagram sizes, and what else moves the same octets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.bench.case import MEBI, Case, Section
from tests.bench.kvcs_round import DISCOVERED, Workload, figures, kvcs_round
from tests.bench.one_way import one_way_round
from tests.bench.peers import peer_round

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.bench.case import Figures, Scale

__all__ = ["cases"]

OBJECT_OCTETS = MEBI
"""Of every Object here, and of every piece that others are given to send."""

STOCK_ROUNDS = 3
"""Of the slow packet path, which no target is about."""

TCP = "tests.bench.side.tcp_main"
QUIC = "tests.bench.side.quic_main"

KVCS: dict[str, tuple[str, dict[str, Any]]] = {
    "kvcs-1452": ("KVCS verified, 1,452-octet datagrams", {"datagram": 1452}),
    "kvcs-8900": ("KVCS verified, 8,900-octet datagrams", {"datagram": 8900}),
    "kvcs-discovered": ("KVCS verified, discovered size", {"datagram": DISCOVERED}),
    "kvcs-default": ("KVCS verified, all defaults", {}),
    "kvcs-default-asyncio": ("KVCS verified, all defaults, asyncio loop", {"uvloop": False}),
    "kvcs-1452-no-digest": (
        "KVCS without digests, 1,452",
        {"datagram": 1452, "digests": False},
    ),
    "kvcs-8900-no-digest": (
        "KVCS without digests, 8,900",
        {"datagram": 8900, "digests": False},
    ),
    "kvcs-discovered-no-digest": (
        "KVCS without digests, discovered size",
        {"datagram": DISCOVERED, "digests": False},
    ),
    "kvcs-1452-stock": (
        "KVCS verified, 1,452, fast_path=False",
        {"datagram": 1452, "fast_path": False},
    ),
    "kvcs-8900-stock": (
        "KVCS verified, 8,900, fast_path=False",
        {"datagram": 8900, "fast_path": False},
    ),
}

OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "aioquic-1452": (
        "aioquic raw stream, uvloop, no pacer, 1,452",
        QUIC,
        {"datagram": 1452, "hashed": False},
    ),
    "aioquic-8900": (
        "aioquic raw stream, uvloop, no pacer, 8,900",
        QUIC,
        {"datagram": 8900, "hashed": False},
    ),
    "tls-sha-asyncio": (
        "TLS 1.3 + SHA-256 over TCP, asyncio",
        TCP,
        {"tls": True, "blocking": False, "hashed": True},
    ),
    "tls-sha-blocking": (
        "TLS 1.3 + SHA-256 over TCP, blocking",
        TCP,
        {"tls": True, "blocking": True, "hashed": True},
    ),
    "tcp-blocking": (
        "plain TCP, blocking, no digest",
        TCP,
        {"tls": False, "blocking": True, "hashed": False},
    ),
}

PEERS: dict[str, tuple[str, str]] = {
    "aiomoqt": ("aiomoqt, draft 22, + SHA-256", "tests.bench.peer.aiomoqt_main"),
    "moq-rs": ("moq-rs, moq-lite, + SHA-256", "tests.bench.peer.moq_rs_main"),
}


def cases(scale: Scale) -> Sequence[Case]:
    """Return the cases."""
    plan = {"octets": scale.octets, "piece_octets": OBJECT_OCTETS}
    made: list[Case] = []

    def add(name: str, title: str, run: Callable[[], Figures]) -> None:
        rounds = STOCK_ROUNDS if name.endswith("-stock") else None
        made.append(Case(name=name, title=title, section=Section.BULK, run=run, rounds=rounds))

    for name, (title, options) in KVCS.items():
        workload = Workload.of(
            name,
            octets=scale.octets,
            object_octets=OBJECT_OCTETS,
            profile_dir=scale.profile_dir,
            **options,
        )
        add(name, title, partial(_kvcs, workload))
    for name, (title, module, more) in OTHERS.items():
        add(name, title, partial(one_way_round, module, {**plan, **more}))
    for name, (title, module) in PEERS.items():
        add(name, title, partial(peer_round, module, plan, scale.peers_python))
    return made


def _kvcs(workload: Workload) -> Figures:
    return figures(workload, kvcs_round(workload))
