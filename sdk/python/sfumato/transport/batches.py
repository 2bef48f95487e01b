"""Batches: the sealed reports of a round as the shuffler releases them, signed, in one request body.

    body      = signature (64 bytes) || length (4 bytes, big-endian) || sealed reports
    signed    = label || round id || count (8 bytes, big-endian) || SHA-256(sealed reports)

All sealed reports have the stated length. Their number follows from the length of the body. The signature is Ed25519.
Needs the extra `shuffled`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.errors import InvalidSpec

MEDIA_TYPE = "application/vnd.sfumato.batch"
LABEL = b"sfumato batch 1"
SIGNING_KEY_BYTES = 32  # length of each Ed25519 key
SIGNATURE_BYTES = 64
HEAD_BYTES = 68  # bytes before the first sealed report


@dataclass(frozen=True, slots=True)
class Batch:
    """The sealed reports of one release.

    Attributes
    ----------
    signature : bytes
        64 bytes.
    length : int
        Length of each sealed report, at least 1.
    sealed : bytes
        The sealed reports, one after the other.
    """

    signature: bytes
    length: int
    sealed: bytes

    @property
    def count(self) -> int:
        """Return the number of sealed reports."""
        return len(self.sealed) // self.length

    @property
    def reports(self) -> list[bytes]:
        """Return the sealed reports in the order of the release."""
        return [self.sealed[at : at + self.length] for at in range(0, len(self.sealed), self.length)]

    @property
    def body(self) -> bytes:
        """Return the request body."""
        return self.signature + self.length.to_bytes(4, "big") + self.sealed


def generate_signing_key_pair() -> tuple[bytes, bytes]:
    """Return a new Ed25519 private key and its public key, 32 bytes each."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def sign_release(round_id: str, reports: Sequence[bytes], private_key: bytes) -> Batch:
    """Return the signed batch of sealed reports, in their order. The caller permutes them.

    Raises
    ------
    InvalidSpec
        There is no report, the lengths differ, or the key has the wrong length.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    _check_key(private_key)
    if len({len(report) for report in reports}) != 1 or not reports[0]:
        raise InvalidSpec("the sealed reports of a batch must have one length of at least 1 byte")
    sealed = b"".join(reports)
    signed = _signed_bytes(round_id, len(reports), hashlib.sha256(sealed).digest())
    return Batch(Ed25519PrivateKey.from_private_bytes(private_key).sign(signed), len(reports[0]), sealed)


def verify_digest(round_id: str, count: int, digest: bytes, signature: bytes, public_key: bytes) -> bool:
    """Return whether a batch is signed for this round by the owner of the key.

    Parameters
    ----------
    round_id : str
    count : int
        Number of sealed reports.
    digest : bytes
        SHA-256 of the sealed reports, which need not be in memory.
    signature, public_key : bytes

    Raises
    ------
    InvalidSpec
        The key has the wrong length.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    _check_key(public_key)
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
        key.verify(signature, _signed_bytes(round_id, count, digest))
    except (InvalidSignature, ValueError):
        return False
    return True


def _signed_bytes(round_id: str, count: int, digest: bytes) -> bytes:
    """Return the signed bytes. All parts but the round id have fixed lengths, so that they are unambiguous."""
    return LABEL + round_id.encode() + count.to_bytes(8, "big") + digest


def _check_key(key: bytes) -> None:
    if len(key) != SIGNING_KEY_BYTES:
        raise InvalidSpec(f"an Ed25519 key must have {SIGNING_KEY_BYTES} bytes")
