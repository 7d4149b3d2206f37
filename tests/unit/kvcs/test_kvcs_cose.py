"""manifest.cose and producer keys: KVCS 3.6, RFC 9052."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

import cbor2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from pycose import headers
from pycose.algorithms import EdDSA, Es256
from pycose.keys.cosekey import CoseKey
from pycose.messages.sign1message import Sign1Message

from kvcs.cose import SignedManifest, sign, verify
from kvcs.errors import InvalidKey, PublicationUnusable, SignatureInvalid, UnknownKey
from kvcs.keys import ProducerKey, PublicKey, SigningAlgorithm, TrustedKeys

if TYPE_CHECKING:
    from pathlib import Path

PAYLOAD = b'{"kvcs": 1}'
KEYS = {algorithm: ProducerKey.generate(algorithm) for algorithm in SigningAlgorithm}
TRUSTED = TrustedKeys(key.public for key in KEYS.values())
COSE = {SigningAlgorithm.ES256: Es256, SigningAlgorithm.EDDSA: EdDSA}


def pem_of(key: ProducerKey, tmp_path: Path) -> bytes:
    path = tmp_path / "key.pem"
    key.save(path)
    return path.read_bytes()


def structure(
    key: ProducerKey,
    *,
    protected: dict[Any, Any] | None = None,
    unprotected: dict[Any, Any] | None = None,
) -> bytes:
    """A COSE_Sign1 made by hand, untagged, with a signature that holds."""
    usual = {1: key.algorithm.value, 4: key.key_id}
    head = cbor2.dumps(usual if protected is None else protected)
    signature = key.sign(cbor2.dumps(["Signature1", head, b"", PAYLOAD]))
    return cbor2.dumps([head, unprotected or {}, PAYLOAD, signature])


@pytest.mark.parametrize("algorithm", SigningAlgorithm)
def test_what_is_signed_is_verified_tagged_or_not(algorithm: SigningAlgorithm) -> None:
    """K3.6#7."""
    octets = sign(PAYLOAD, KEYS[algorithm])
    assert octets[0] == 0xD2  # tag 18
    assert verify(octets, TRUSTED) == verify(octets[1:], TRUSTED) == PAYLOAD
    read = SignedManifest.parse(memoryview(octets))
    assert (read.payload, read.key_id) == (PAYLOAD, KEYS[algorithm].key_id)
    assert read.algorithm is algorithm


@pytest.mark.parametrize("algorithm", SigningAlgorithm)
def test_pycose_s_own_signatures_agree(algorithm: SigningAlgorithm, tmp_path: Path) -> None:
    """K3.6#7."""
    key = KEYS[algorithm]
    cose_key = CoseKey.from_pem_private_key(pem_of(key, tmp_path).decode())
    ours = Sign1Message.decode(sign(PAYLOAD, key))
    ours.key = cose_key
    assert ours.verify_signature()
    theirs = Sign1Message(
        phdr={headers.Algorithm: COSE[algorithm]},
        uhdr={headers.KID: key.key_id},
        payload=PAYLOAD,
    )
    theirs.key = cose_key
    assert verify(theirs.encode(), TRUSTED) == PAYLOAD


@pytest.mark.parametrize("algorithm", SigningAlgorithm)
def test_a_signature_of_another_length_does_not_hold(algorithm: SigningAlgorithm) -> None:
    public = KEYS[algorithm].public
    assert not public.is_signature(b"", b"signed")
    assert not public.is_signature(bytes(63), b"signed")
    assert public.is_signature(KEYS[algorithm].sign(b"signed"), b"signed")


@pytest.mark.parametrize("algorithm", SigningAlgorithm)
def test_the_kid_may_be_in_either_header(algorithm: SigningAlgorithm) -> None:
    key = KEYS[algorithm]
    number = algorithm.value
    apart = structure(key, protected={1: number}, unprotected={4: key.key_id})
    assert verify(structure(key), TRUSTED) == verify(apart, TRUSTED) == PAYLOAD
    with pytest.raises(SignatureInvalid):
        verify(structure(key, unprotected={4: key.key_id}), TRUSTED)


@pytest.mark.parametrize("algorithm", SigningAlgorithm)
def test_no_flipped_bit_is_accepted(algorithm: SigningAlgorithm) -> None:
    octets = sign(PAYLOAD, KEYS[algorithm])
    for bit in range(8 * len(octets)):
        damaged = bytearray(octets)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SignatureInvalid):
            verify(bytes(damaged), TRUSTED)


def test_an_unknown_kid_is_told_from_a_wrong_signature() -> None:
    stranger = ProducerKey.generate()
    with pytest.raises(UnknownKey) as unknown:
        verify(sign(PAYLOAD, stranger), TRUSTED)
    assert unknown.value.key_id == stranger.key_id
    impostor = ProducerKey.generate(key_id=KEYS[SigningAlgorithm.EDDSA].key_id)
    with pytest.raises(SignatureInvalid, match="does not hold") as wrong:
        verify(sign(PAYLOAD, impostor), TRUSTED)
    assert not isinstance(wrong.value, UnknownKey)
    assert wrong.value.key_id == impostor.key_id
    assert isinstance(wrong.value, PublicationUnusable)


def test_the_algorithm_is_the_key_s_and_protected() -> None:
    key = KEYS[SigningAlgorithm.EDDSA]
    other = structure(key, protected={1: SigningAlgorithm.ES256.value, 4: key.key_id})
    with pytest.raises(SignatureInvalid, match="names ES256, its key is for EDDSA"):
        verify(other, TRUSTED)
    for protected, unprotected in (
        ({4: key.key_id}, {1: -8}),
        ({1: -37, 4: key.key_id}, {}),
        ({1: -999, 4: key.key_id}, {}),
    ):
        octets = structure(key, protected=protected, unprotected=unprotected)
        with pytest.raises(SignatureInvalid):
            verify(octets, TRUSTED)


@pytest.mark.parametrize("extra", [{4: "text"}, {4: None}, {2: [99]}, {2: []}, {2: [4]}, {1: [-8]}])
def test_headers_that_cannot_be_honoured_are_refused(extra: dict[int, Any]) -> None:
    key = KEYS[SigningAlgorithm.EDDSA]
    octets = structure(key, protected={1: -8, 4: key.key_id} | extra)
    with pytest.raises(SignatureInvalid):
        verify(octets, TRUSTED)


def test_a_structure_without_kid_is_refused() -> None:
    octets = structure(KEYS[SigningAlgorithm.EDDSA], protected={1: -8})
    with pytest.raises(SignatureInvalid, match="no kid"):
        verify(octets, TRUSTED)


@pytest.mark.parametrize(
    "value",
    [
        1,
        [],
        [b"", {}, b""],
        [b"", {}, None, b""],
        ["", {}, b"", b""],
        [b"", [], b"", b""],
        [b"\xff", {}, b"", b""],
        [b"\x01", {}, b"", b""],
        [b"\x81" * 5000, {}, b"", b""],
        cbor2.CBORTag(98, [b"", {}, b"", b""]),
        cbor2.CBORTag(18, 5),
    ],
)
def test_other_cbor_is_no_signed_manifest(value: Any) -> None:
    with pytest.raises(SignatureInvalid):
        SignedManifest.parse(cbor2.dumps(value))


@pytest.mark.parametrize("octets", [b"", b"\xff", b"\x81" * 5000, b"\x5b" + b"\xff" * 8])
def test_octets_that_are_no_cbor_are_refused(octets: bytes) -> None:
    with pytest.raises(SignatureInvalid):
        SignedManifest.parse(octets)


def test_octets_behind_the_structure_and_over_the_bound_are_refused() -> None:
    octets = sign(PAYLOAD, KEYS[SigningAlgorithm.EDDSA])
    with pytest.raises(SignatureInvalid, match="1 octets more"):
        SignedManifest.parse(octets + b"\0")
    with pytest.raises(SignatureInvalid, match="over the bound of 10"):
        SignedManifest.parse(octets, max_octets=10)


@pytest.mark.parametrize("algorithm", SigningAlgorithm)
def test_keys_are_kept_in_files_that_only_the_owner_reads(
    algorithm: SigningAlgorithm, tmp_path: Path
) -> None:
    key = KEYS[algorithm]
    path = tmp_path / "producer.pem"
    key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert verify(sign(PAYLOAD, ProducerKey.load(path)), TRUSTED) == PAYLOAD
    with pytest.raises(FileExistsError):
        key.save(path)
    public = tmp_path / "producer.pub"
    public.write_bytes(key.public.to_pem())
    assert PublicKey.load(public).key_id == key.key_id
    sealed = tmp_path / "sealed.pem"
    key.save(sealed, password=b"secret")
    assert ProducerKey.load(sealed, password=b"secret").key_id == key.key_id
    with pytest.raises(InvalidKey, match="needs a password"):
        ProducerKey.load(sealed)
    with pytest.raises(InvalidKey, match="is not encrypted"):
        ProducerKey.load(path, password=b"secret")


def test_keys_that_were_mixed_up(tmp_path: Path) -> None:
    """Each error says which of both it is, and shows nothing of a private one."""
    key, path = KEYS[SigningAlgorithm.EDDSA], tmp_path / "producer.pem"
    key.save(path)
    with pytest.raises(InvalidKey) as caught:
        PublicKey.load(path)
    assert str(caught.value) == "this is a private key"
    with pytest.raises(InvalidKey, match="this is a public key"):
        ProducerKey.from_pem(key.public.to_pem())


def test_no_text_shows_a_private_key(tmp_path: Path) -> None:
    for algorithm, key in KEYS.items():
        secret = ProducerKey.generate(algorithm)
        path = tmp_path / algorithm.name
        secret.save(path)
        body = b"".join(path.read_bytes().splitlines()[1:-1])
        assert body.decode() not in repr(secret)
        assert repr(key) == f"ProducerKey({algorithm.name}, kid={key.key_id.hex()})"
    assert KEYS[SigningAlgorithm.ES256].key_id.hex() in repr(TRUSTED)


def test_keys_of_other_kinds_are_refused(tmp_path: Path) -> None:
    p384 = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(InvalidKey, match="secp384r1"):
        ProducerKey(p384)
    with pytest.raises(InvalidKey, match="secp384r1"):
        PublicKey(p384.public_key())
    pem = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with pytest.raises(InvalidKey, match="expected a P-256"):
        ProducerKey.from_pem(pem)
    for read in (ProducerKey.from_pem, PublicKey.from_pem):
        with pytest.raises(InvalidKey, match="PEM"):
            read(b"no key")
    with pytest.raises(InvalidKey, match="1 to 64 octets"):
        ProducerKey(ed25519.Ed25519PrivateKey.generate(), key_id=b"x" * 65)


def test_two_keys_under_one_kid_are_refused() -> None:
    trusted = TrustedKeys()
    key = ProducerKey.generate(key_id=b"producer")
    trusted.add(key.public)
    trusted.add(key.public)
    assert len(trusted) == 1
    with pytest.raises(InvalidKey, match="two keys"):
        trusted.add(ProducerKey.generate(key_id=b"producer").public)
    assert trusted.get(b"producer") == key.public
