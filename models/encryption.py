"""Encryption of records, webhook secrets and private keys of rounds at rest.

Master keys from the settings encrypt data keys. A data key encrypts the records of one dataset. After a rotation of the
master key, only the data keys, webhook secrets and private keys are encrypted again.

The cipher is AES-256-GCM (NIST SP 800-38D) with a random nonce of 96 bits before each ciphertext. The associated data
names the object that a ciphertext belongs to, so that a ciphertext is invalid in any other place.
"""

import hashlib
import secrets
from base64 import b64encode
from dataclasses import dataclass, field
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.database.types import SCRUBBED
from models.errors import RecordsKeyMissing, RecordsUnreadable
from models.tables.datasets import RecordKey
from models.tables.rounds import RoundKey
from models.tables.webhooks import WebhookSecret
from runtime.settings import KEY_BYTES, Settings, read_keys

KEY_FILE = "records.key"
NONCE_BYTES = 12

_ID_CHARACTERS = 16

SealedRow = RecordKey | WebhookSecret | RoundKey
# tables with secrets that a master key encrypts
SEALED: tuple[type[SealedRow], ...] = (RecordKey, WebhookSecret, RoundKey)


def new_secret() -> bytes:
    """Return a random key of 256 bits."""
    return secrets.token_bytes(KEY_BYTES)


def encode_key(key: bytes) -> str:
    """Return a key in the form of the setting `records_key`."""
    return b64encode(key).decode()


def key_id(key: bytes) -> str:
    """Return the id of a master key in the database. It identifies the key and reveals nothing about it."""
    return hashlib.sha256(b"sfumato records key\0" + key).hexdigest()[:_ID_CHARACTERS]


def seal(key: bytes, plain: bytes, belongs_to: bytes) -> bytes:
    """Encrypt `plain` and bind it to `belongs_to`. Return nonce, ciphertext and tag."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # loaded here: processes without records skip it

    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, belongs_to)


def unseal(key: bytes, sealed: bytes, belongs_to: bytes) -> bytes:
    """Decrypt the result of `seal`. Raise RecordsUnreadable if any bit of the three arguments differs."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], belongs_to)
    except (InvalidTag, ValueError):  # ValueError: shorter than a tag
        raise RecordsUnreadable("stored records cannot be decrypted: they were changed or moved") from None


@dataclass(frozen=True, slots=True)
class Keyring:
    """The master keys, newest first. The newest key encrypts; all keys decrypt."""

    keys: tuple[bytes, ...] = field(repr=False)

    @property
    def newest_id(self) -> str:
        """Return the id of the key that encrypts."""
        return key_id(self.keys[0])

    def seal(self, plain: bytes, belongs_to: bytes) -> bytes:
        """Encrypt with the newest key."""
        return seal(self.keys[0], plain, belongs_to + self.newest_id.encode())

    def unseal(self, sealed_by: str, sealed: bytes, belongs_to: bytes) -> bytes:
        """Decrypt with the key of this id. Raise RecordsKeyMissing if the keyring lacks it."""
        for key in self.keys:
            if key_id(key) == sealed_by:
                return unseal(key, sealed, belongs_to + sealed_by.encode())
        raise RecordsKeyMissing(f"SFUMATO_RECORDS_KEY lacks the key {sealed_by}, which encrypted these records")

    def open_row(self, row: SealedRow) -> bytes:
        """Decrypt the secret of a row. Raise RecordsKeyMissing, RecordsUnreadable."""
        return self.unseal(row.sealed_by, row.sealed, row.belongs_to)

    def seal_row(self, row: SealedRow, secret: bytes) -> None:
        """Encrypt a secret with the newest key and store it in a row, which has its ids already."""
        row.sealed, row.sealed_by = self.seal(secret, row.belongs_to), self.newest_id


def load_keyring(settings: Settings) -> Keyring:
    """Return the master keys of the settings, else the one in the home directory. Raise RecordsKeyMissing."""
    if settings.records_key is not None:
        return Keyring(read_keys(settings.records_key.get_secret_value()))
    try:
        return Keyring(read_keys((settings.home / KEY_FILE).read_text(encoding="ascii")))
    except FileNotFoundError:
        raise RecordsKeyMissing("no key for records: set SFUMATO_RECORDS_KEY (32 bytes, base64)") from None
    except (OSError, ValueError):
        raise RecordsKeyMissing(f"{KEY_FILE} in the home directory contains no valid key for records") from None


# ---- rotation of master keys ----


def list_master_keys(session: Session, table: type[SealedRow]) -> set[str]:
    """Return the ids of the master keys that encrypt the rows of a table."""
    return set(session.scalars(select(table.sealed_by).distinct()))


def list_outdated(session: Session, table: type[SealedRow], keyring: Keyring, *, after: str, limit: int) -> list[str]:
    """Return the primary keys after `after` of rows that the newest master key does not encrypt, in order."""
    (key,) = table.__mapper__.primary_key
    query = select(key).where(table.sealed_by != keyring.newest_id, key > after)
    return list(session.scalars(query.order_by(key).limit(limit)))


def reseal(session: Session, table: type[SealedRow], row_id: str, keyring: Keyring) -> None:
    """Encrypt the secret of a row with the newest master key, unless the row is deleted or up to date.

    Raises
    ------
    RecordsKeyMissing
        If the keyring lacks the row's master key. The row does not change.
    RecordsUnreadable
        If the row was changed.
    """
    row = cast(SealedRow | None, session.get(table, row_id, with_for_update=True, populate_existing=True))
    if row is None or row.sealed_by == keyring.newest_id:
        return
    keyring.seal_row(row, keyring.open_row(row))
    session.info[SCRUBBED] = True  # removes the secret encrypted by the older master key from the write-ahead log
