"""A plain twin of HPKE base mode (RFC 9180, sections 4 and 5), with X25519, HKDF-SHA256 and AES-128-GCM.

Unlike the library it takes the ephemeral key's input and additional data, as RFC 9180's vectors need them.
"""

import hmac

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEM_SUITE = b"KEM" + (0x20).to_bytes(2, "big")
HPKE_SUITE = b"HPKE" + b"".join(each.to_bytes(2, "big") for each in (0x20, 1, 1))


def labeled_extract(suite: bytes, salt: bytes, label: bytes, key: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + key, "sha256")


def labeled_expand(suite: bytes, secret: bytes, label: bytes, info: bytes, length: int) -> bytes:
    """One block of HKDF's expansion, as no length exceeds 32."""
    return hmac.digest(secret, length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info + b"\1", "sha256")[:length]


def derive_private_key(ikm: bytes) -> X25519PrivateKey:
    secret = labeled_extract(KEM_SUITE, b"", b"dkp_prk", ikm)
    return X25519PrivateKey.from_private_bytes(labeled_expand(KEM_SUITE, secret, b"sk", b"", 32))


def seal(plaintext: bytes, public_key: bytes, info: bytes, ikm: bytes, aad: bytes = b"") -> bytes:
    ephemeral = derive_private_key(ikm)
    encapsulated = ephemeral.public_key().public_bytes_raw()
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(public_key))
    secret = labeled_extract(KEM_SUITE, b"", b"eae_prk", shared)
    secret = labeled_expand(KEM_SUITE, secret, b"shared_secret", encapsulated + public_key, 32)
    hashes = [labeled_extract(HPKE_SUITE, b"", *each) for each in ((b"psk_id_hash", b""), (b"info_hash", info))]
    context = b"\0" + b"".join(hashes)
    secret = labeled_extract(HPKE_SUITE, secret, b"secret", b"")
    key = labeled_expand(HPKE_SUITE, secret, b"key", context, 16)
    nonce = labeled_expand(HPKE_SUITE, secret, b"base_nonce", context, 12)
    return encapsulated + AESGCM(key).encrypt(nonce, plaintext, aad)
