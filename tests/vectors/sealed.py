"""Vectors of sealed and wrapped reports and of signed rounds.

A plain twin of HPKE makes both layers, because the library takes no ephemeral key.
"""

import hashlib
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfumato.device.sealing import LABEL, OUTER_LABEL
from tests.vectors import hpke

CASES = (
    # name, round id, round bytes, slot, value
    ("a value of one byte", "rnd_1", b'{"id":"rnd_1"}', 0, b"\x05"),
    ("the largest slot and a long value", "rnd_Zz-9_", b'{ "id": "rnd_Zz-9_" }\n', 2**32 - 1, bytes(range(256))),
    ("no value and no round bytes", "r", b"", 65_536, b""),
    ("round bytes that are not ASCII", "rnd_2", '{"unit":"°"}'.encode(), 258, b"\0\xff\0"),
)


def sealed_vectors() -> list[dict[str, Any]]:
    return [_vector(f"sfumato {at}".encode(), *case) for at, case in enumerate(CASES)]


def _vector(seed: bytes, name: str, round_id: str, round_bytes: bytes, slot: int, value: bytes) -> dict[str, Any]:
    private_key = hpke.derive_private_key(hashlib.sha256(seed + b" key").digest())
    public_key = private_key.public_key().public_bytes_raw()
    ephemeral_ikm = hashlib.sha256(seed + b" ephemeral").digest()
    report_id = hashlib.sha256(seed + b" report").digest()[:16]
    info = LABEL + round_id.encode() + hashlib.sha256(round_bytes).digest()
    sealed = hpke.seal(report_id + slot.to_bytes(4, "big") + value, public_key, info, ephemeral_ikm)
    outer_key = hpke.derive_private_key(hashlib.sha256(seed + b" outer key").digest())
    outer_public_key = outer_key.public_key().public_bytes_raw()
    outer_ikm = hashlib.sha256(seed + b" outer ephemeral").digest()
    wrapped = hpke.seal(sealed, outer_public_key, OUTER_LABEL + round_id.encode(), outer_ikm)
    signing_key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed + b" signing").digest())
    announced = b"sfumato round 2" + round_id.encode() + hashlib.sha256(round_bytes).digest() + outer_public_key
    parts = {"private_key": private_key.private_bytes_raw(), "public_key": public_key, "ephemeral_ikm": ephemeral_ikm,
             "round": round_bytes, "report_id": report_id, "value": value, "sealed": sealed,
             "outer_private_key": outer_key.private_bytes_raw(), "outer_public_key": outer_public_key,
             "outer_ephemeral_ikm": outer_ikm, "wrapped": wrapped,
             "shuffler_public_key": signing_key.public_key().public_bytes_raw(),
             "signature": signing_key.sign(announced)}  # fmt: skip
    return {"name": name, "round_id": round_id, "slot": slot} | {key: part.hex() for key, part in parts.items()}
