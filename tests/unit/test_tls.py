from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from moqt.tls import CertificatePair, generate_certificate, load_identity, load_trust

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def pair() -> CertificatePair:
    return generate_certificate(["example.com", "127.0.0.1", "::1"])


def test_a_generated_certificate_names_its_hosts(pair: CertificatePair) -> None:
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["example.com"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert "PRIVATE" not in repr(pair)


def test_no_host_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one host"):
        generate_certificate([])


def test_trust_is_normalised(pair: CertificatePair, tmp_path: Path) -> None:
    """Comments and blank lines around a certificate, as tools write them, don't matter."""
    noisy = b"# mine\n" + pair.certificate + b"\n \n" + pair.certificate + b"# end\n"
    (tmp_path / "ca.pem").write_bytes(noisy)
    clean = pair.certificate * 2
    assert load_trust(noisy) == clean
    assert load_trust(noisy.decode()) == clean
    assert load_trust(tmp_path / "ca.pem") == clean
    assert load_trust(str(tmp_path / "ca.pem")) == clean


def test_an_identity_holds_chain_and_key(pair: CertificatePair) -> None:
    other = generate_certificate(["ca.example"])
    identity = load_identity(pair.certificate + other.certificate, pair.private_key)
    assert identity.certificate == x509.load_pem_x509_certificate(pair.certificate)
    assert len(identity.chain) == 1
    assert "private_key" not in repr(identity)


def test_bad_input_says_what_and_where(pair: CertificatePair, tmp_path: Path) -> None:
    other = generate_certificate(["other.example"])
    key = serialization.load_pem_private_key(pair.private_key, password=None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"pw"),
    )
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    with pytest.raises(ValueError, match=r"bad\.pem: no PEM certificate"):
        load_trust(bad)
    with pytest.raises(ValueError, match=r"bad\.pem: no PEM private key"):
        load_identity(pair.certificate, bad)
    with pytest.raises(ValueError, match="encrypted"):
        load_identity(pair.certificate, locked)
    with pytest.raises(
        ValueError,
        match=r"^private_key \(PEM text\): not the private key of certificate \(PEM text\)$",
    ):
        load_identity(pair.certificate, other.private_key)
    with pytest.raises(FileNotFoundError):
        load_trust(tmp_path / "none.pem")
