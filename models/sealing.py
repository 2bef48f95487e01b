"""Encryption of records at rest: master keys from the settings, data keys wrapped by them, sealed bytes.

AES-256-GCM (NIST SP 800-38D) with a random nonce of 96 bits before every ciphertext. What a
ciphertext belongs to goes along as associated data, so that none can be put in another's
place. A data key seals one dataset's records; a master key seals data keys, so a new master
key means sealing those anew and nothing else.
"""

import hashlib
import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from models.errors import RecordsKeyMissing, RecordsUnreadable

if TYPE_CHECKING:
    from models.settings import Settings

KEY_BYTES = 32
KEY_FILE = "records.key"
NONCE_BYTES = 12

_ID_CHARACTERS = 16


def new_secret() -> bytes:
    """A key of 256 random bits."""
    return secrets.token_bytes(KEY_BYTES)


def write_key(key: bytes) -> str:
    """A key as the setting holds it."""
    return b64encode(key).decode()


def read_keys(text: str) -> tuple[bytes, ...]:
    """Keys as the setting holds them: base64, separated by commas, newest first.

    Raises
    ------
    ValueError
        None, or one that is not 32 bytes; the message holds nothing of them.
    """
    try:
        keys = tuple(b64decode(part.strip(), validate=True) for part in text.split(","))
    except (NotBase64, ValueError):
        keys = ()
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"each key is {KEY_BYTES} bytes, base64, with commas between them") from None
    return keys


def key_id(key: bytes) -> str:
    """What a master key is called in the database: tells which it is, and nothing about it."""
    return hashlib.sha256(b"sfumato records key\0" + key).hexdigest()[:_ID_CHARACTERS]


def seal(key: bytes, plain: bytes, belongs_to: bytes) -> bytes:
    """Nonce, ciphertext and tag, bound to what they belong to."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only those load it who have records

    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, belongs_to)


def unseal(key: bytes, sealed: bytes, belongs_to: bytes) -> bytes:
    """What `seal` was given. Raises RecordsUnreadable where a bit of anything differs."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], belongs_to)
    except (InvalidTag, ValueError):  # too short to be anything
        raise RecordsUnreadable("stored records do not open: they were changed, or are another dataset's") from None


@dataclass(frozen=True, slots=True)
class Keyring:
    """The master keys, newest first: the first one seals, all of them open."""

    keys: tuple[bytes, ...] = field(repr=False)

    @property
    def newest_id(self) -> str:
        """What the key that seals is called."""
        return key_id(self.keys[0])

    def seal(self, plain: bytes, belongs_to: bytes) -> bytes:
        """Seal with the newest key."""
        return seal(self.keys[0], plain, belongs_to + self.newest_id.encode())

    def unseal(self, sealed_by: str, sealed: bytes, belongs_to: bytes) -> bytes:
        """Open with the key of this id; raises RecordsKeyMissing where it is not here."""
        for key in self.keys:
            if key_id(key) == sealed_by:
                return unseal(key, sealed, belongs_to + sealed_by.encode())
        raise RecordsKeyMissing(f"SFUMATO_RECORDS_KEY lacks the key {sealed_by}, which sealed these records")


def keyring_of(settings: "Settings") -> Keyring:
    """The settings' master keys, or the one `sfumato serve` made in the home. Raises RecordsKeyMissing."""
    if settings.records_key is not None:
        return Keyring(read_keys(settings.records_key.get_secret_value()))
    try:
        return Keyring(read_keys((settings.home / KEY_FILE).read_text(encoding="ascii")))
    except FileNotFoundError:
        raise RecordsKeyMissing("no key for records: set SFUMATO_RECORDS_KEY (32 bytes, base64)") from None
    except (OSError, ValueError):
        raise RecordsKeyMissing(f"{KEY_FILE} in the home holds no key for records") from None
