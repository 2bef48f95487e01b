"""Comparison of an upload with the records that its dataset has, by content and in any order.

A keyed hash of 64 bits stands for the stored form of a record and its user. The hashes are computed from the encrypted
segments for each comparison, and are not stored, so deleted records leave none. A repeated upload is found with other
boundaries of its parts, in another order, in another format, and with records added or left out.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from models import encryption
from models.errors import DuplicateContent
from models.records import records
from models.records.record_keys import DataKey
from models.records.records import MAX_SEGMENTS, Upload
from models.records.segments import PSEUDONYM_BYTES, belongs_to, record_bytes
from models.tables.datasets import Dataset, RecordSegment

MIN_COMPARED = 20  # records; in smaller uploads equal values of other people are too likely
WARN_SHARE = 0.5
REFUSE_SHARE = 0.95

_ROWS = 1 << 15  # records that are hashed at once
_SEGMENTS_PER_FETCH = 4


@dataclass(frozen=True, slots=True)
class Comparison:
    """An upload, compared with the records of the dataset at one time. Private.

    Attributes
    ----------
    n_records : int
        Records of the whole upload.
    n_known : int
        Records that the dataset had already. A record that occurs twice in the upload is known twice if the dataset has
        it twice.
    digest : str
        Version of the dataset's records: `records.digest`.
    """

    n_records: int
    n_known: int
    digest: str

    @property
    def n_repeated(self) -> int:
        """Return the number of known records if it suggests a repeated upload, else 0."""
        return self.n_known if self.n_known >= WARN_SHARE * self.n_records else 0

    def check(self) -> None:
        """Raise DuplicateContent if nearly all records are known."""
        if self.n_known and self.n_known >= REFUSE_SHARE * self.n_records:
            raise DuplicateContent(
                f"this dataset already has {self.n_known} of these {self.n_records} records; nothing was stored. "
                "Send allow_duplicates=true if they belong to further people with equal values."
            )


def compare(session: Session, dataset: Dataset, upload: Upload) -> Comparison:
    """Compare a whole upload, or one with its last part, with the complete uploads of its dataset.

    Memory: 32 bytes per record of the upload, and a few segments. Time: about a second per million stored records.
    """
    upload.close()
    version = records.digest(session, dataset.id)
    own = [_hash(upload.key, dataset, plain, n) for plain, n in segments_of(session, upload)]
    n_records = sum(map(len, own))
    if n_records < MIN_COMPARED:
        return Comparison(n_records, 0, version)
    hashes, counts = np.unique(np.concatenate(own), return_counts=True)
    found = np.zeros_like(counts)
    is_other = RecordSegment.dataset_id == dataset.id, RecordSegment.upload_id != upload.id
    complete = RecordSegment.expires_at.is_(None), RecordSegment.n_records > 0
    for plain, n in _stored_segments(session, upload.key, *is_other, *complete):
        others, n_others = np.unique(_hash(upload.key, dataset, plain, n), return_counts=True)
        places = np.minimum(np.searchsorted(hashes, others), len(hashes) - 1)
        is_known = hashes[places] == others
        found[places[is_known]] += n_others[is_known]
    return Comparison(n_records, int(np.minimum(counts, found).sum()), version)


def earlier_parts(upload: Upload) -> list[ColumnElement[bool]]:
    """Return the conditions for the stored segments of the other parts of an upload in parts."""
    assert upload.part is not None  # noqa: S101
    first = upload.part.number * MAX_SEGMENTS
    is_other = (RecordSegment.index < first) | (RecordSegment.index >= first + MAX_SEGMENTS)
    return [RecordSegment.dataset_id == upload.key.dataset_id, RecordSegment.upload_id == upload.id, is_other]


def segments_of(session: Session, upload: Upload) -> Iterator[tuple[bytes, int]]:
    """Yield the plain text and number of records of each segment of a closed upload, with those of its other parts."""
    yield from _own_segments(upload)
    if upload.part is not None:
        yield from _stored_segments(session, upload.key, *earlier_parts(upload))


def _own_segments(upload: Upload) -> Iterator[tuple[bytes, int]]:
    for each in upload.segments:
        index, n_records, sealed = each["index"], each["n_records"], each["sealed"]
        assert isinstance(index, int) and isinstance(n_records, int) and isinstance(sealed, bytes)  # noqa: S101, PT018
        yield _unseal(upload.key, upload.id, index, n_records, sealed), n_records


def _stored_segments(session: Session, key: DataKey, *where: ColumnElement[bool]) -> Iterator[tuple[bytes, int]]:
    query = select(RecordSegment.upload_id, RecordSegment.index, RecordSegment.n_records, RecordSegment.sealed)
    query = query.where(*where).execution_options(yield_per=_SEGMENTS_PER_FETCH)
    with session.execute(query) as rows:
        for upload_id, index, n_records, sealed in rows:
            yield _unseal(key, upload_id, index, n_records, sealed), n_records


def _unseal(key: DataKey, upload_id: str, index: int, n_records: int, sealed: bytes) -> bytes:
    return encryption.unseal(key.records, sealed, belongs_to(key.dataset_id, key.id, upload_id, index, n_records))


def _hash(key: DataKey, dataset: Dataset, plain: bytes, n_records: int) -> NDArray[np.uint64]:
    """Return a hash of each record of a segment: the multilinear hash of its words of four bytes."""
    point_bytes = record_bytes(dataset.n_columns, with_user=False)
    user_bytes = 0 if dataset.user_feature is None else PSEUDONYM_BYTES
    octets = np.frombuffer(plain, dtype=np.uint8)
    points = octets[: n_records * point_bytes].reshape(n_records, point_bytes)
    users = octets[n_records * point_bytes :].reshape(n_records, user_bytes)
    n_words = -(-(point_bytes + user_bytes) // 4)
    factors = np.frombuffer(hashlib.shake_256(b"known records" + key.uploads).digest(8 * n_words), dtype="<u8")
    hashes = np.empty(n_records, dtype=np.uint64)
    padded = np.zeros((min(_ROWS, n_records), 4 * n_words), dtype=np.uint8)
    for start in range(0, n_records, _ROWS):
        rows = padded[: min(_ROWS, n_records - start)]
        rows[:, :point_bytes] = points[start : start + _ROWS]
        rows[:, point_bytes : point_bytes + user_bytes] = users[start : start + _ROWS]
        mixed = (rows.view("<u4").astype(np.uint64) * factors).sum(axis=1, dtype=np.uint64)
        hashes[start : start + _ROWS] = mixed
    return hashes
