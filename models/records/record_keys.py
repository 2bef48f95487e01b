"""Data keys of datasets: create, decrypt, re-encrypt and delete them. `models.tables.datasets` describes the rows."""

import hmac
from dataclasses import dataclass, field

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from models.database.types import SCRUBBED, new_id
from models.encryption import Keyring, new_secret
from models.errors import Conflict
from models.tables.datasets import RecordKey
from runtime.settings import KEY_BYTES


@dataclass(frozen=True, slots=True)
class DataKey:
    """The decrypted secrets of a dataset."""

    dataset_id: str
    id: str
    records: bytes = field(repr=False)  # encrypts segments
    pseudonyms: bytes = field(repr=False)  # keys the pseudonyms of users

    @property
    def uploads(self) -> bytes:
        """Return the key of the stored hashes of idempotency keys, bodies and records, which prevents guessing them.

        It is deleted with the records. The hashes then reveal nothing, and a repeated upload counts as new.
        """
        return hmac.digest(self.pseudonyms, b" uploads", "sha256")  # user ids do not begin with a space


def open_or_create(session: Session, dataset_id: str, keyring: Keyring) -> DataKey:
    """Return the dataset's key, or create one. The caller has locked the dataset's row.

    Raises
    ------
    RecordsKeyMissing
        If the keyring lacks the master key.
    RecordsUnreadable
        If the stored key was changed.
    """
    stored = session.get(RecordKey, dataset_id, populate_existing=True)
    if stored is not None:
        return _decrypt(stored, keyring)
    stored = RecordKey(dataset_id=dataset_id, id=new_id("rk"))
    keyring.seal_row(stored, new_secret() + new_secret())
    session.add(stored)
    session.flush()
    return _decrypt(stored, keyring)


def open_key(session: Session, dataset_id: str, keyring: Keyring) -> DataKey | None:
    """Return the dataset's key, or None if it has no records. Raise RecordsKeyMissing, RecordsUnreadable."""
    stored = session.get(RecordKey, dataset_id)
    return None if stored is None else _decrypt(stored, keyring)


def check_current(session: Session, key: DataKey) -> None:
    """Raise Conflict if the dataset's records were deleted since the key was read."""
    current = session.scalar(select(RecordKey.id).where(RecordKey.dataset_id == key.dataset_id))
    if current != key.id:
        raise Conflict("this dataset's records were deleted during the upload; send it again")


def destroy(session: Session, dataset_id: str) -> None:
    """Delete the key irrecoverably."""
    session.execute(delete(RecordKey).where(RecordKey.dataset_id == dataset_id))
    session.info[SCRUBBED] = True


def _decrypt(stored: RecordKey, keyring: Keyring) -> DataKey:
    secrets = keyring.open_row(stored)
    return DataKey(stored.dataset_id, stored.id, secrets[:KEY_BYTES], secrets[KEY_BYTES:])
