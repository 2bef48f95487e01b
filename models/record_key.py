"""A dataset's data key: made with its first upload, sealed by a master key, gone with its records.

With the row goes the only way to read the records, in every copy of the segments that was
made without it.
"""

import hmac
from dataclasses import dataclass, field

from sqlalchemy import ForeignKey, LargeBinary, String, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.db import SCRUBBED, Base, Id, new_id
from models.errors import Conflict
from models.sealing import KEY_BYTES, Keyring, new_secret


class RecordKey(Base):
    """What a dataset's records are sealed with, itself sealed."""

    __tablename__ = "record_keys"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    id: Mapped[str] = mapped_column(Id)
    sealed_by: Mapped[str] = mapped_column(String(16), index=True, comment="the master key that opens it")
    sealed: Mapped[bytes] = mapped_column(LargeBinary, comment="nonce, ciphertext and tag of two secrets")


@dataclass(frozen=True, slots=True)
class DataKey:
    """A dataset's secrets, opened."""

    dataset_id: str
    id: str
    records: bytes = field(repr=False)  # seals segments
    pseudonyms: bytes = field(repr=False)  # of users' ids

    @property
    def uploads(self) -> bytes:
        """What an upload's idempotency key and body are hashed with, so that what is kept of them tests no guess.

        It goes with the records: of what was kept under it nothing can be told any more, and the
        same upload sent later is another one.
        """
        return hmac.digest(self.pseudonyms, b" uploads", "sha256")  # no user's id begins with a space


def open_or_make(session: Session, dataset_id: str, keyring: Keyring) -> DataKey:
    """The dataset's key, a new one where it has none. The caller holds the dataset's row.

    Raises
    ------
    RecordsKeyMissing, RecordsUnreadable
        It was sealed by a master key that is not here; it was changed.
    """
    stored = session.get(RecordKey, dataset_id, populate_existing=True)
    if stored is not None:
        return _opened(stored, keyring)
    made = new_id("rk")
    sealed = keyring.seal(new_secret() + new_secret(), _belongs_to(dataset_id, made))
    stored = RecordKey(dataset_id=dataset_id, id=made, sealed_by=keyring.newest_id, sealed=sealed)
    session.add(stored)
    session.flush()
    return _opened(stored, keyring)


def open_key(session: Session, dataset_id: str, keyring: Keyring) -> DataKey | None:
    """The dataset's key; None where it has no records. Raises RecordsKeyMissing, RecordsUnreadable."""
    stored = session.get(RecordKey, dataset_id)
    return None if stored is None else _opened(stored, keyring)


def check_current(session: Session, key: DataKey) -> None:
    """Raise Conflict where the dataset's records were deleted since the key was opened."""
    current = session.scalar(select(RecordKey.id).where(RecordKey.dataset_id == key.dataset_id))
    if current != key.id:
        raise Conflict("this dataset's records were deleted while the upload was under way; send it again")


def destroy(session: Session, dataset_id: str) -> None:
    """Remove the key for good."""
    session.execute(delete(RecordKey).where(RecordKey.dataset_id == dataset_id))
    session.info[SCRUBBED] = True


def masters_in_use(session: Session) -> set[str]:
    """What the master keys are called that seal data keys."""
    return set(session.scalars(select(RecordKey.sealed_by).distinct()))


def outdated(session: Session, keyring: Keyring, *, after: str, limit: int) -> list[str]:
    """Datasets whose key another than the newest master key seals, in order, from after an id."""
    query = select(RecordKey.dataset_id).where(RecordKey.sealed_by != keyring.newest_id, RecordKey.dataset_id > after)
    return list(session.scalars(query.order_by(RecordKey.dataset_id).limit(limit)))


def reseal(session: Session, dataset_id: str, keyring: Keyring) -> None:
    """Seal a dataset's key with the newest master key; nothing where it is gone or is sealed so.

    Raises
    ------
    RecordsKeyMissing, RecordsUnreadable
        No master key here opens it; it was changed. It stays as it was.
    """
    stored = session.get(RecordKey, dataset_id, with_for_update=True, populate_existing=True)
    if stored is None or stored.sealed_by == keyring.newest_id:
        return
    belongs_to = _belongs_to(dataset_id, stored.id)
    stored.sealed = keyring.seal(keyring.unseal(stored.sealed_by, stored.sealed, belongs_to), belongs_to)
    stored.sealed_by = keyring.newest_id
    session.info[SCRUBBED] = True  # what an older master key opens is not to be found in the log any more


def _opened(stored: RecordKey, keyring: Keyring) -> DataKey:
    secrets = keyring.unseal(stored.sealed_by, stored.sealed, _belongs_to(stored.dataset_id, stored.id))
    return DataKey(stored.dataset_id, stored.id, secrets[:KEY_BYTES], secrets[KEY_BYTES:])


def _belongs_to(dataset_id: str, id_: str) -> bytes:
    return f"sfumato data key|{dataset_id}|{id_}|".encode()
