"""The format of a segment: packed coordinates, then the users' pseudonyms, encrypted together."""

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from models import encryption
from models.errors import RecordsUnreadable
from models.records.record_keys import DataKey
from models.tables.datasets import Dataset, RecordSegment

PSEUDONYM_BYTES = 16
COORDINATE_BYTES = 3  # the lattice has 20 bits


def record_bytes(n_columns: int, *, with_user: bool) -> int:
    """Return the length of a record in a segment."""
    return COORDINATE_BYTES * n_columns + PSEUDONYM_BYTES * with_user


def coordinates(plain: bytes, n_records: int, n_columns: int) -> NDArray[np.int32]:
    """Return the coordinates and codes in the plain text of a segment: shape (n_records, n_columns)."""
    octets = np.frombuffer(plain, dtype=np.uint8, count=n_records * n_columns * COORDINATE_BYTES)
    points = np.zeros((n_records, n_columns), dtype="<i4")
    points.view(np.uint8).reshape(n_records, n_columns, 4)[..., :COORDINATE_BYTES] = octets.reshape(
        n_records, n_columns, COORDINATE_BYTES
    )
    return points.astype(np.int32, copy=False)


def users_of(plain: bytes, n_records: int) -> NDArray[np.uint64]:
    """Return the user pseudonyms in the plain text of a segment, shape (n_records, 2)."""
    return np.frombuffer(plain, dtype="<u8", offset=len(plain) - n_records * PSEUDONYM_BYTES).reshape(n_records, 2)


def belongs_to(dataset_id: str, key_id: str, upload_id: str, index: int, n_records: int) -> bytes:
    """Return the associated data of the ciphertext of a segment."""
    return f"sfumato segment|{dataset_id}|{key_id}|{upload_id}|{index}|{n_records}".encode()


def open_segment(session: Session, dataset: Dataset, key: DataKey, place: tuple[str, int]) -> tuple[bytes, int]:
    """Return the plain text and the number of records of the segment at a place: upload and index.

    Raise RecordsUnreadable.
    """
    segment = session.get_one(RecordSegment, (dataset.id, *place))
    plain = unseal(dataset, key, place, segment.n_records, segment.sealed), segment.n_records
    session.expunge(segment)  # a segment is large
    return plain


def unseal(dataset: Dataset, key: DataKey, place: tuple[str, int], n_records: int, sealed: bytes) -> bytes:
    """Return the plain text of an encrypted segment. Raise RecordsUnreadable."""
    plain = encryption.unseal(key.records, sealed, belongs_to(dataset.id, key.id, *place, n_records))
    if len(plain) != n_records * record_bytes(dataset.n_columns, with_user=dataset.user_feature is not None):
        raise RecordsUnreadable("stored records have another length than their dataset requires")
    return plain
