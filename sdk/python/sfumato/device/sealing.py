"""Sealed reports: reports that the shuffler carries and only the service opens, and their outer layer.

HPKE (RFC 9180) in base mode with X25519, HKDF-SHA256 and AES-128-GCM, once per report:

    info      = label || round id || SHA-256(round bytes)
    plaintext = report id (16 bytes) || slot (4 bytes, big-endian) || value
    sealed    = encapsulated key (32 bytes) || ciphertext || tag (16 bytes)

The round bytes are the round as the device received it. A report for other bytes does not open. All reports of a round
have the same length, because all values of a mechanism have the same length.

A device wraps the sealed report once more for the shuffler, with the same algorithms. A forwarder of reports therefore
sees bytes that occur in no batch, and other bytes each time the device sends the report again:

    info      = outer label || round id
    plaintext = sealed
    wrapped   = encapsulated key (32 bytes) || ciphertext || tag (16 bytes)

Each round has an outer key of its own. The shuffler announces it with the round, and deletes it when it releases the
round. It signs round bytes and outer key with Ed25519, so that a device that pins the shuffler's key accepts both from
it only. The signature covers label || round id || SHA-256(round bytes) || outer key. Needs the extra `shuffled`.
"""

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sfumato.errors import InvalidSpec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hpke import Suite

LABEL = b"sfumato sealed report 1"
KEY_BYTES = 32  # length of each HPKE key
OVERHEAD_BYTES = 68  # length of a sealed report without its value
OUTER_LABEL = b"sfumato outer layer 1"
OUTER_BYTES = 48  # length that the outer layer adds
MAX_SLOT = (1 << 32) - 1
SIGNATURE_HEADER = "Sfumato-Signature"  # base64, beside the round bytes
OUTER_KEY_HEADER = "Sfumato-Outer-Key"  # base64, beside the round bytes

_REPORT_ID_BYTES = 16
_SLOT_BYTES = 4
_ROUND_LABEL = b"sfumato round 2"


class SealedContent(NamedTuple):
    """The plaintext of a sealed report."""

    report_id: bytes
    slot: int
    value: bytes


class RoundKeyPair(NamedTuple):
    """An HPKE key pair of a round, 32 bytes each: the service's, or the shuffler's for the outer layer."""

    private_key: bytes
    public_key: bytes


def generate_round_key_pair() -> RoundKeyPair:
    """Return a new HPKE key pair. Each round has its own."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.generate()
    return RoundKeyPair(key.private_bytes_raw(), key.public_key().public_bytes_raw())


def public_key_of(hpke_private_key: bytes) -> bytes:
    """Return the public key of an HPKE private key, 32 bytes each."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(hpke_private_key).public_key().public_bytes_raw()


def sealed_length(value_bytes: int) -> int:
    """Return the length of each sealed report of a round with values of this length."""
    return OVERHEAD_BYTES + value_bytes


def seal(report_id: bytes, slot: int, value: bytes, round_id: str, round_bytes: bytes, hpke_public_key: bytes) -> bytes:
    """Return a sealed report.

    A second call returns other bytes, so a device stores the sealed report and resends it.

    Parameters
    ----------
    report_id : bytes
        16 random bytes.
    slot : int
        In 0 .. 2**32 - 1.
    value : bytes
        The perturbed value, which costs the round's local epsilon. Sealing is free of cost.
    round_id : str
    round_bytes : bytes
        The round as the device received it.
    hpke_public_key : bytes
        Public key of the round, 32 bytes.

    Raises
    ------
    InvalidSpec
        An argument has the wrong length or range, or the key is not a valid public key.
    """
    if len(report_id) != _REPORT_ID_BYTES or not 0 <= slot <= MAX_SLOT:
        raise InvalidSpec(f"a report id must have {_REPORT_ID_BYTES} bytes, and a slot must lie in 0 .. {MAX_SLOT}")
    plaintext = report_id + slot.to_bytes(_SLOT_BYTES, "big") + value
    return _encrypt(plaintext, hpke_public_key, _info(round_id, round_bytes))


def wrap(sealed: bytes, round_id: str, outer_public_key: bytes) -> bytes:
    """Return a sealed report in an outer layer, which only the shuffler removes.

    A second call returns other bytes of the same length. A device stores the sealed report, and wraps it each time it
    sends it.

    Parameters
    ----------
    sealed : bytes
    round_id : str
    outer_public_key : bytes
        The shuffler's key of the round, 32 bytes, which its signature covers.

    Raises
    ------
    InvalidSpec
        The key has the wrong length or is not a valid public key.
    """
    return _encrypt(sealed, outer_public_key, _outer_info(round_id))


def unwrap(reports: Iterable[bytes], round_id: str, outer_private_key: bytes) -> Iterator[bytes | None]:
    """Yield each report without its outer layer, or None where the layer is missing or for another key or round.

    Raises
    ------
    InvalidSpec
        The key has the wrong length.
    """
    return _decrypt(reports, outer_private_key, _outer_info(round_id))


def open_sealed(
    reports: Iterable[bytes], round_id: str, round_bytes: bytes, hpke_private_key: bytes
) -> Iterator[SealedContent | None]:
    """Yield the content of each sealed report, or None where it does not open.

    A report that was sealed for another key, round or round bytes does not open, and neither does a changed one.

    Parameters
    ----------
    reports : iterable of bytes
    round_id : str
    round_bytes : bytes
        The round as the service published it.
    hpke_private_key : bytes
        Private key of the round, 32 bytes.

    Raises
    ------
    InvalidSpec
        The key has the wrong length.
    """
    start = _REPORT_ID_BYTES + _SLOT_BYTES
    for plaintext in _decrypt(reports, hpke_private_key, _info(round_id, round_bytes)):
        if plaintext is None or len(plaintext) < start:
            yield None
            continue
        slot = int.from_bytes(plaintext[_REPORT_ID_BYTES:start], "big")
        yield SealedContent(plaintext[:_REPORT_ID_BYTES], slot, plaintext[start:])


def sign_round(round_id: str, round_bytes: bytes, outer_public_key: bytes, private_key: bytes) -> bytes:
    """Return the shuffler's signature of a round and its outer key, made with an Ed25519 private key of 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    signed = _announced(round_id, round_bytes, outer_public_key)
    return Ed25519PrivateKey.from_private_bytes(private_key).sign(signed)


def verify_round(
    round_id: str, round_bytes: bytes, outer_public_key: bytes, signature: bytes, public_key: bytes
) -> bool:
    """Return whether the owner of the Ed25519 key announced these bytes. Raise InvalidSpec if the key is not valid."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
    except ValueError:
        raise InvalidSpec("the shuffler's public key is not a valid Ed25519 key") from None
    try:
        key.verify(signature, _announced(round_id, round_bytes, outer_public_key))
    except InvalidSignature:
        return False
    return len(outer_public_key) == KEY_BYTES


def _announced(round_id: str, round_bytes: bytes, outer_public_key: bytes) -> bytes:
    return _ROUND_LABEL + round_id.encode() + hashlib.sha256(round_bytes).digest() + outer_public_key


def _info(round_id: str, round_bytes: bytes) -> bytes:
    """Return the HPKE info. Label and digest have fixed lengths, so that different rounds have different info."""
    return LABEL + round_id.encode() + hashlib.sha256(round_bytes).digest()


def _outer_info(round_id: str) -> bytes:
    """Return the HPKE info of the outer layer. A resend knows the round bytes no more."""
    return OUTER_LABEL + round_id.encode()


def _encrypt(plaintext: bytes, hpke_public_key: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    _check_key(hpke_public_key)
    try:
        return _suite().encrypt(plaintext, X25519PublicKey.from_public_bytes(hpke_public_key), info)
    except ValueError:  # a point of small order
        raise InvalidSpec("the round's HPKE public key is not valid") from None


def _decrypt(ciphertexts: Iterable[bytes], hpke_private_key: bytes, info: bytes) -> Iterator[bytes | None]:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    _check_key(hpke_private_key)
    private_key, suite = X25519PrivateKey.from_private_bytes(hpke_private_key), _suite()
    for ciphertext in ciphertexts:
        try:
            yield suite.decrypt(ciphertext, private_key, info)
        except (InvalidTag, ValueError):
            yield None


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise InvalidSpec(f"an HPKE key must have {KEY_BYTES} bytes")


@lru_cache(maxsize=1)
def _suite() -> "Suite":
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
