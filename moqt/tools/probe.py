"""`python -m moqt.tools.probe URL`: who answers there, what it announces, what it publishes.

Exit codes: 0 there was a session, 1 there was none, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moqt import errors
from moqt.asyncio.client import InsecureConnectionWarning, connect
from moqt.asyncio.config import TransportConfig
from moqt.asyncio.info import ConnectProgress
from moqt.errors import printable
from moqt.tools import arguments as read
from moqt.tools.hints import connect_hint
from moqt.tools.pipes import until_reader_goes
from moqt.trace.describe import describe
from moqt.types import TrackNamespace
from moqt.uri import MoqtUri

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from moqt.asyncio.info import ConnectionInfo
    from moqt.asyncio.session import MoqtSession
    from moqt.session.access.authorization import AuthToken
    from moqt.tls import CertificateFacts, Pem

__all__ = ["Namespaces", "Report", "main", "probe"]

SETTLE_S = 0.3
"""The list of namespaces is taken to be whole after so long without another, or after twice the
time of the QUIC handshake if that is longer: nothing says so."""

MAX_NAMESPACES = 1000
"""Namespaces that are listed; looking ends there."""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """What SUBSCRIBE_NAMESPACE brought. `refusal`: why it brought nothing."""

    prefix: TrackNamespace
    found: tuple[TrackNamespace, ...] = ()
    first_ms: float | None = None
    refusal: str | None = None

    @property
    def note(self) -> str | None:
        """What may explain that there are none under the prefix."""
        if self.found or self.refusal is not None or not self.prefix.fields:
            return None
        return f"nothing under {self.prefix}: a prefix matches whole fields of a namespace"


@dataclass(frozen=True, slots=True)
class Report:
    """What was learned of one peer. Times are milliseconds from the start of connecting."""

    url: str
    address: str
    info: ConnectionInfo
    own_setup: dict[str, Any]
    peer_setup: dict[str, Any]
    handshake_ms: float
    setup_ms: float
    namespaces: Namespaces

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        info, found = self.info, self.namespaces
        certificate = info.certificate
        return {
            "url": self.url,
            "address": self.address,
            "connection_id": info.connection_id.hex(),
            "alpn": info.alpn,
            "quic_version": info.quic_version,
            "cipher_suite": info.cipher_suite,
            "certificate": None if certificate is None else _certificate_json(certificate),
            "transport_parameters": dict(info.peer_parameters),
            "setup": {"own": self.own_setup, "peer": self.peer_setup},
            "timing_ms": {
                "handshake": round(self.handshake_ms, 2),
                "setup": round(self.setup_ms, 2),
                "first_namespace": None if found.first_ms is None else round(found.first_ms, 2),
            },
            "namespaces": {
                "prefix": str(found.prefix),
                "refusal": found.refusal,
                "found": [str(namespace) for namespace in found.found],
            },
        }

    def lines(self) -> list[str]:
        """Return all of it for people."""
        info, found = self.info, self.namespaces
        shown: list[tuple[str, str]] = [
            ("address", self.address),
            ("time", f"QUIC handshake {self.handshake_ms:.1f} ms, SETUP {self.setup_ms:.1f} ms"),
            ("QUIC", f"version 0x{info.quic_version or 0:x}, {info.cipher_suite}"),
            ("ALPN", info.alpn or "none"),
            ("connection", info.connection_id.hex()),
        ]
        if info.certificate is not None:
            shown += _certificate_lines(info.certificate)
        parameters = sorted(info.peer_parameters.items())
        shown += [("transport", f"{name} {value}") for name, value in parameters]
        shown += [("their SETUP", text) for text in _options_lines(self.peer_setup)]
        shown += [
            ("their SETUP", f"{name} not sent (default 0)")
            for name in _DEFAULTS
            if name not in self.peer_setup
        ]
        shown += [("our SETUP", text) for text in _options_lines(self.own_setup)]
        lines = [self.url, *_columns([(label, printable(text)) for label, text in shown])]
        return lines + _columns(_namespace_lines(found))


_DEFAULTS = ("max_auth_token_cache_size", "max_filter_ranges", "max_request_updates")
"""Numbers of a SETUP that are 0 when they are left out."""


def _namespace_lines(found: Namespaces) -> list[tuple[str, str]]:
    # text forms of namespaces are plain ASCII, and are there to be copied: they are never cut
    prefix = f"under {found.prefix}" if found.prefix.fields else "of all"
    if found.refusal is not None:
        return [("namespaces", f"{prefix}: {printable(found.refusal)}")]
    first = "" if found.first_ms is None else f", the first after {found.first_ms:.1f} ms"
    limit = " (not all)" if len(found.found) >= MAX_NAMESPACES else ""
    return [
        ("namespaces", f"{prefix}: {len(found.found)}{limit}{first}"),
        *(("", str(namespace)) for namespace in found.found),
    ]


def _columns(shown: list[tuple[str, str]]) -> list[str]:
    lines, last = [], None
    for label, text in shown:
        lines.append(f"  {'' if label == last else label:<12} {text}")
        last = label or last
    return lines


def _certificate_json(certificate: CertificateFacts) -> dict[str, Any]:
    return {
        "subject": certificate.subject,
        "issuer": certificate.issuer,
        "names": list(certificate.names),
        "not_before": certificate.not_before.isoformat(),
        "not_after": certificate.not_after.isoformat(),
        "sha256": certificate.sha256,
    }


def _certificate_lines(certificate: CertificateFacts) -> list[tuple[str, str]]:
    issuer = certificate.issuer
    by = "itself" if issuer == certificate.subject else issuer
    dates = f"{certificate.not_before:%Y-%m-%d} to {certificate.not_after:%Y-%m-%d}"
    names = ", ".join(certificate.names) or "no names"
    return [
        ("certificate", f"{certificate.subject}, issued by {by}"),
        ("certificate", f"for {names}"),
        ("certificate", f"valid {dates}"),
        ("certificate", f"SHA-256 {certificate.sha256}"),
    ]


def _options_lines(options: dict[str, Any]) -> list[str]:
    return [f"{name} {value}" for name, value in options.items()] or ["nothing but defaults"]


async def probe(
    url: str,
    *,
    prefix: TrackNamespace,
    timeout_s: float,
    ca: Pem | None = None,
    insecure: bool = False,
    tokens: Sequence[AuthToken] = (),
    qlog_dir: Path | None = None,
    progress: ConnectProgress | None = None,
) -> Report:
    """Connect, read what is announced, and list the namespaces under `prefix` (empty: all).

    `timeout_s`: for the QUIC handshake, again for SETUP, and again for the namespaces. `tokens`
    authorize the session and the request.
    Raises: what `moqt.connect` raises.
    """
    config = TransportConfig(handshake_timeout_s=timeout_s, qlog_dir=qlog_dir)
    start = time.monotonic()
    async with connect(
        url,
        ca=ca,
        insecure=insecure,
        transport_config=config,
        tokens=tokens,
        request_tokens=tokens,
        progress=progress,
    ) as session:
        established = time.monotonic()
        info = session.connection_info
        ready = info.ready_at or established
        assert session.peer_options is not None  # both SETUPs are done
        return Report(
            url=url,
            address=session.remote_address,
            info=info,
            own_setup=describe(session.own_options),
            peer_setup=describe(session.peer_options, whole=True),
            handshake_ms=(ready - start) * 1000,
            setup_ms=(established - ready) * 1000,
            namespaces=await _list_namespaces(
                session,
                prefix,
                start=start,
                timeout_s=timeout_s,
                settle_s=max(SETTLE_S, 2 * (ready - start)),
            ),
        )


async def _list_namespaces(
    session: MoqtSession,
    prefix: TrackNamespace,
    *,
    start: float,
    timeout_s: float,
    settle_s: float,
) -> Namespaces:
    try:
        async with session.subscribe_namespace(prefix, timeout_s=timeout_s) as subscription:
            found = await subscription.listing(
                listen_s=timeout_s, limit=MAX_NAMESPACES, settle_s=settle_s
            )
    except errors.MoqtError as error:
        return Namespaces(prefix, refusal=str(error))
    first_ms = None if found.first_at is None else (found.first_at - start) * 1000
    return Namespaces(prefix, found.namespaces, first_ms)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m moqt.tools.probe",
        description="Show who answers at a moqt:// address: QUIC, TLS, SETUP and namespaces.",
        epilog="Exit codes: 0 there was a session, 1 there was none, 2 a wrong command line.",
        allow_abbrev=False,
    )
    parser.add_argument("url", metavar="URL", help="moqt://HOST:PORT[/PATH]")
    parser.add_argument(
        "--namespace-prefix",
        metavar="TEXT",
        type=read.namespace,
        default=TrackNamespace(()),
        help="list namespaces under this one, whole fields; fields joined by '-', octets as .hh "
        "(default: all)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=read.seconds,
        default=5.0,
        help="for QUIC, for SETUP, and for the namespaces (default: 5)",
    )
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument(
        "--ca",
        metavar="FILE",
        type=read.certificates,
        help="certificates to trust, PEM (default: the public CAs)",
    )
    trust.add_argument(
        "--insecure", action="store_true", help="trust whatever certificate; for trying out only"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        type=read.tokens,
        default=(),
        help="file with the authorization token that the peer asks for",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--qlog", metavar="DIR", type=read.folder, help="leave a qlog there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        authority = MoqtUri.parse(asked.url).authority
    except ValueError as error:
        parser.error(f"URL: {error}")
    if asked.insecure:
        print(f"warning: the certificate of {authority} is not verified", file=sys.stderr)
    progress = ConnectProgress()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureConnectionWarning)  # it was asked for
            report = asyncio.run(
                probe(
                    asked.url,
                    prefix=asked.namespace_prefix,
                    timeout_s=asked.timeout,
                    ca=asked.ca,
                    insecure=asked.insecure,
                    tokens=asked.token_file,
                    qlog_dir=asked.qlog,
                    progress=progress,
                )
            )
    except errors.MoqtError as error:
        hint = connect_hint(error, insecure="--insecure", is_quic_ready=progress.is_quic_ready)
        print(f"error: {error}", file=sys.stderr)
        print(f"hint: {hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(report.to_json(), indent=2) if asked.json else "\n".join(report.lines()))
    if report.namespaces.note is not None:
        print(f"note: {report.namespaces.note}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(until_reader_goes(main))
