"""Batches of sealed reports as a receiver reads them whole. The service reads them in pieces."""

import hashlib

from sfumato.errors import InvalidSpec
from sfumato.transport.batches import HEAD_BYTES, SIGNATURE_BYTES, Batch, verify_digest


def verify_release(round_id: str, batch: Batch, public_key: bytes) -> bool:
    """Return whether the batch is signed for this round by the owner of the key."""
    return verify_digest(round_id, batch.count, hashlib.sha256(batch.sealed).digest(), batch.signature, public_key)


def parse_batch(body: bytes) -> Batch:
    """Return the batch of a request body. Its signature is not verified yet.

    Raises
    ------
    InvalidSpec
        The body is truncated, contains no report, or is not a whole number of reports of the stated length.
    """
    if len(body) <= HEAD_BYTES:
        raise InvalidSpec(f"a batch must have more than {HEAD_BYTES} bytes")
    batch = Batch(body[:SIGNATURE_BYTES], int.from_bytes(body[SIGNATURE_BYTES:HEAD_BYTES], "big"), body[HEAD_BYTES:])
    if not batch.length or len(batch.sealed) % batch.length:
        raise InvalidSpec(
            f"a batch must be a whole number of sealed reports of the stated length, {batch.length} bytes"
        )
    return batch
