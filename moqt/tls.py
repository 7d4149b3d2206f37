"""Certificates and keys: made for trying out, and loaded with errors that say what is wrong.

Everything here takes a path, or the PEM text itself.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CertificateFacts",
    "CertificatePair",
    "Identity",
    "Pem",
    "certificate_facts",
    "generate_certificate",
    "load_identity",
    "load_trust",
]

Pem = str | os.PathLike[str] | bytes
"""A path, or PEM text (recognised by its "-----BEGIN")."""

_BEGIN = "-----BEGIN "
_CLOCK_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    private_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server shows: its certificate, the chain above it, its key."""

    certificate: x509.Certificate
    chain: tuple[x509.Certificate, ...]
    private_key: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What a certificate says of itself, for people; nothing here was verified.

    `names`: its subject alternative names. `sha256`: of the DER, as 64 hex digits.
    """

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before: datetime.datetime
    not_after: datetime.datetime
    sha256: str


def certificate_facts(certificate: x509.Certificate) -> CertificateFacts:
    """Read a certificate; one whose extensions are broken has no names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        names = x509.SubjectAlternativeName([])
    return CertificateFacts(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=tuple(str(name.value) for name in names),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def generate_certificate(hosts: Sequence[str], *, days: int = 30) -> CertificatePair:
    """Return a self-signed P-256 certificate for `hosts`: DNS names and IP addresses.

    It is its own trust anchor, so clients are given it as `ca`. For tests and for trying out.
    Raises: ValueError without a host, or for a host that is neither.
    """
    if not hosts:
        raise ValueError("a certificate needs at least one host")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([_general_name(h) for h in hosts]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .sign(key, hashes.SHA256())
    )
    return CertificatePair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def load_trust(ca: Pem) -> bytes:
    """Return the certificates of `ca` as PEM, one after the other and nothing else.

    Raises: ValueError when it holds none, OSError when the file can't be read.
    """
    certificates = _certificates(_read(ca), _describe(ca, "ca"))
    return b"".join(c.public_bytes(serialization.Encoding.PEM) for c in certificates)


def load_identity(certificate: Pem, private_key: Pem) -> Identity:
    """Load a server's certificate, followed by its chain if there is one, and its key.

    Raises: ValueError for what isn't that, an encrypted key, or a key of another certificate;
    OSError when a file can't be read.
    """
    whose = _describe(certificate, "certificate")
    first, *chain = _certificates(_read(certificate), whose)
    where = _describe(private_key, "private_key")
    try:
        key = serialization.load_pem_private_key(_read(private_key), password=None)
    except TypeError as error:
        raise ValueError(f"{where}: the private key is encrypted; decrypt it first") from error
    except ValueError as error:
        raise ValueError(f"{where}: no PEM private key found") from error
    if _public(key.public_key()) != _public(first.public_key()):
        raise ValueError(f"{where}: not the private key of {whose}")
    return Identity(first, tuple(chain), key)


def _public(key: Any) -> bytes:
    encoded: bytes = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def _certificates(pem: bytes, where: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ValueError(f"{where}: no PEM certificate found") from error


def _read(source: Pem) -> bytes:
    if isinstance(source, bytes):
        return source
    if isinstance(source, str) and _BEGIN in source:
        return source.encode()
    return Path(source).read_bytes()


def _describe(source: Pem, parameter: str) -> str:
    """Return the file's name; for PEM text the parameter that it was given as."""
    if isinstance(source, bytes) or (isinstance(source, str) and _BEGIN in source):
        return f"{parameter} (PEM text)"
    return os.fspath(source)
