"""Records of the central model: append-only, encrypted segments of points on the public lattice.

A record is kept as it will be used: clipped to the bounds, scaled, its coordinates cells of
the lattice, three bytes each. Of whose record it is, where the dataset says by which column,
a keyed pseudonym of 16 bytes is kept, and never the id. All records take the same room, so a
segment's length tells how many there are and nothing of what they are: that is why segments
are not compressed. Rows are never changed; the order of uploads, by when they began, and of
records within one is the order of records.
"""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ForeignKey, Integer, LargeBinary, String, Table, delete, func, insert, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import record_key, sealing
from models.dataset import Dataset
from models.db import SCRUBBED, Base, new_id
from models.errors import LimitExceeded, RecordsUnreadable
from models.record_key import DataKey
from models.sealing import Keyring

PSEUDONYM_BYTES = 16
SEGMENT_BYTES = 2 << 20  # sealed as soon as there are as many

_COORDINATE_BYTES = 3  # hold the 20 bits of the lattice
_ROWS_AT_ONCE = 4  # segments in memory
_PART_RECORDS = 1 << 16  # whose users are sorted at once, about
_MAX_PARTS = 256


class RecordSegment(Base):
    """Some records of one upload, sealed."""

    __tablename__ = "record_segments"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), primary_key=True)
    upload_id: Mapped[str] = mapped_column(String(40), primary_key=True, comment="sorts by time")
    index: Mapped[int] = mapped_column(Integer, primary_key=True, comment="0, 1, ... within the upload")
    n_records: Mapped[int] = mapped_column(Integer, comment="private")
    n_clipped: Mapped[int] = mapped_column(Integer, comment="records with a value moved to a bound; private")
    sealed: Mapped[bytes] = mapped_column(LargeBinary, comment="nonce, ciphertext and tag of the records")


class Records(NamedTuple):
    """A dataset's records as a job may use them."""

    points: NDArray[np.int32]  # shape (n, d), lattice coordinates in [0, LATTICE)
    max_per_user: int  # no more of these are any one person's


class Counts(NamedTuple):
    """How many there are: private."""

    n_records: int
    n_uploads: int
    n_clipped: int


class Users(NamedTuple):
    """Whose they are: private."""

    n_users: int
    n_used: int  # records, at most max_records_per_user of each user


class Upload:
    """Records on their way in: packed and sealed as they come, so that no more than a segment is ever open.

    Parameters
    ----------
    key : DataKey
        Of their dataset.
    n_features : int
    """

    def __init__(self, key: DataKey, n_features: int) -> None:
        self.key = key
        self.id = new_id("upl")
        self.segments: list[dict[str, object]] = []
        self.n_records = 0
        self.n_clipped = 0
        self.n_bytes = 0  # held by what is sealed
        self._n_features = n_features
        self._points: list[bytes] = []
        self._users: list[bytes] = []
        self._n_open = 0
        self._clipped_before = 0

    def add(self, points: NDArray[np.int32], users: Sequence[bytes] | None, n_clipped: int) -> None:
        """Take records.

        Parameters
        ----------
        points : ndarray of shape (n, n_features), int32
            Lattice coordinates.
        users : sequence of n bytes, optional
            Ids of the users; for all records of an upload or for none.
        n_clipped : int
            How many of the records had a value moved to a bound.
        """
        little = np.ascontiguousarray(points, dtype="<i4").view(np.uint8).reshape(-1, 4)
        self._points.append(little[:, :_COORDINATE_BYTES].tobytes())
        if users is not None:
            self._users += (hmac.digest(self.key.pseudonyms, user, "sha256")[:PSEUDONYM_BYTES] for user in users)
        self._n_open += len(points)
        self.n_records += len(points)
        self.n_clipped += n_clipped
        if self._n_open * record_bytes(self._n_features, with_user=bool(self._users)) >= SEGMENT_BYTES:
            self.close()

    def close(self) -> None:
        """Seal what is still open."""
        if not self._n_open:
            return
        index = len(self.segments)
        plain = b"".join([*self._points, *self._users])
        sealed = sealing.seal(
            self.key.records, plain, _belongs_to(self.key.dataset_id, self.key.id, self.id, index, self._n_open)
        )
        self.segments.append(
            {
                "dataset_id": self.key.dataset_id,
                "upload_id": self.id,
                "index": index,
                "n_records": self._n_open,
                "n_clipped": self.n_clipped - self._clipped_before,
                "sealed": sealed,
            }
        )
        self.n_bytes += len(sealed)
        self._points, self._users, self._n_open, self._clipped_before = [], [], 0, self.n_clipped


def record_bytes(n_features: int, *, with_user: bool) -> int:
    """What a record takes in a segment."""
    return _COORDINATE_BYTES * n_features + PSEUDONYM_BYTES * with_user


def append(session: Session, upload: Upload, *, max_records: int) -> None:
    """Store an upload, all of it. The caller holds the dataset's row.

    Raises
    ------
    LimitExceeded
        The dataset would hold more than `max_records`.
    Conflict
        The dataset's records were deleted since the upload began.
    """
    upload.close()
    record_key.check_current(session, upload.key)
    if count(session, upload.key.dataset_id).n_records + upload.n_records > max_records:
        raise LimitExceeded(f"a dataset takes {max_records} records")
    if upload.segments:
        session.execute(insert(cast(Table, RecordSegment.__table__)), upload.segments)


def count(session: Session, dataset_id: str) -> Counts:
    """How many records, uploads, and records with a value moved to a bound."""
    row = session.execute(
        select(
            func.coalesce(func.sum(RecordSegment.n_records), 0),
            func.count(RecordSegment.upload_id.distinct()),
            func.coalesce(func.sum(RecordSegment.n_clipped), 0),
        ).where(RecordSegment.dataset_id == dataset_id)
    ).one()
    return Counts(*(int(each) for each in row))


def count_users(session: Session, dataset: Dataset, keyring: Keyring) -> Users:
    """How many users there are, and how many records a job may use. Raises as `load` does."""
    kept, n_users = _bounded(_pseudonyms(session, dataset, keyring), dataset.max_records_per_user)
    return Users(n_users, int(kept.sum()))


def digest(session: Session, dataset_id: str) -> str:
    """Tells the records there are from others, to whoever sees the same database, and nobody how many there are."""
    listed = hashlib.sha256(f"sfumato records|{dataset_id}".encode())
    query = select(RecordSegment.upload_id, RecordSegment.index, RecordSegment.n_records)
    query = query.where(RecordSegment.dataset_id == dataset_id)
    for row in session.execute(query.order_by(RecordSegment.upload_id, RecordSegment.index)):
        listed.update(f"|{row.upload_id}|{row.index}|{row.n_records}".encode())
    return listed.hexdigest()


def load(session: Session, dataset_id: str, keyring: Keyring, *, part: int = 0, n_parts: int = 1) -> Records:
    """A dataset's records, with every user's share bounded already.

    Of a user with more than `max_records_per_user` records the first are used, in the order of records.
    Which these are depends on that user's records alone, so no other person's can change it:
    replacing one user's records replaces at most so many points, and moves no other.

    Memory: the points, one segment, and where there are users 17 bytes a record before the
    points are made.

    Parameters
    ----------
    session : Session
        Of `Database.reading`: it is read twice.
    part, n_parts : int
        Which segments' records alone: a range of them, one of so many that are about equal.

    Raises
    ------
    RecordsKeyMissing
        No master key here opens them.
    RecordsUnreadable
        A segment was changed, or is of another dataset.
    """
    dataset = session.get_one(Dataset, dataset_id)
    n_features = len(dataset.features)
    sizes = _sizes(session, dataset_id)
    chosen = range(len(sizes) * part // n_parts, len(sizes) * (part + 1) // n_parts)
    n_points = sum(sizes[chosen.start : chosen.stop])
    kept: NDArray[np.bool_] | None = None
    if dataset.user_feature is not None:
        everybody, _ = _bounded(_pseudonyms(session, dataset, keyring), dataset.max_records_per_user)
        n_before = sum(sizes[: chosen.start])
        kept = everybody[n_before : n_before + n_points]
        n_points = int(kept.sum())
    points = np.zeros((n_points, n_features), dtype="<i4")
    octets = points.view(np.uint8).reshape(n_points, n_features, 4)[..., :_COORDINATE_BYTES]
    at = seen = 0
    for plain, n_records in _segments(session, dataset, keyring, chosen):
        coordinates = np.frombuffer(plain, dtype=np.uint8, count=n_records * n_features * _COORDINATE_BYTES)
        rows = coordinates.reshape(n_records, n_features, _COORDINATE_BYTES)
        if kept is not None:
            rows = rows[kept[seen : seen + n_records]]
        octets[at : at + len(rows)] = rows
        at, seen = at + len(rows), seen + n_records
    return Records(points.astype(np.int32, copy=False), dataset.max_records_per_user)


def remove_all(session: Session, dataset_id: str) -> None:
    """Remove all records of a dataset for good, and the key that opens them. The caller holds the dataset's row."""
    session.execute(delete(RecordSegment).where(RecordSegment.dataset_id == dataset_id))
    record_key.destroy(session, dataset_id)
    session.info[SCRUBBED] = True


def _sizes(session: Session, dataset_id: str) -> list[int]:
    """How many records each segment holds, in the order of records."""
    query = select(RecordSegment.n_records).where(RecordSegment.dataset_id == dataset_id)
    return list(session.scalars(query.order_by(RecordSegment.upload_id, RecordSegment.index)))


def _segments(
    session: Session, dataset: Dataset, keyring: Keyring, chosen: range | None = None
) -> Iterator[tuple[bytes, int]]:
    """(plain octets, number of records) of each segment, or of the chosen ones, in the order of records."""
    key = record_key.open_key(session, dataset.id, keyring)
    if key is None:
        return
    width = record_bytes(len(dataset.features), with_user=dataset.user_feature is not None)
    query = (
        select(RecordSegment.upload_id, RecordSegment.index, RecordSegment.n_records, RecordSegment.sealed)
        .where(RecordSegment.dataset_id == dataset.id)
        .order_by(RecordSegment.upload_id, RecordSegment.index)
        .execution_options(yield_per=_ROWS_AT_ONCE)
    )
    if chosen is not None:
        query = query.offset(chosen.start).limit(len(chosen))
    with session.execute(query) as rows:
        for upload_id, index, n_records, sealed in rows:
            belongs_to = _belongs_to(dataset.id, key.id, upload_id, index, n_records)
            plain = sealing.unseal(key.records, sealed, belongs_to)
            if len(plain) != n_records * width:
                raise RecordsUnreadable("stored records are of another form than their dataset")
            yield plain, n_records


def _pseudonyms(session: Session, dataset: Dataset, keyring: Keyring) -> NDArray[np.uint64]:
    """Whose each record is, shape (n, 2), in the order of records."""
    found = np.empty((count(session, dataset.id).n_records, 2), dtype=np.uint64)
    at = 0
    for plain, n_records in _segments(session, dataset, keyring):
        users = np.frombuffer(plain, dtype="<u8", offset=len(plain) - n_records * PSEUDONYM_BYTES)
        found[at : at + n_records] = users.reshape(n_records, 2)
        at += n_records
    return found


def _bounded(pseudonyms: NDArray[np.uint64], max_per_user: int) -> tuple[NDArray[np.bool_], int]:
    """Which records are among the first `max_per_user` of their user, and how many users there are."""
    kept = np.zeros(len(pseudonyms), dtype=np.bool_)
    n_parts = min(_MAX_PARTS, 1 + len(pseudonyms) // _PART_RECORDS)
    # all of a user's in one; they are uniform, and 16 bits of them hold `n_parts` itself, which 8 do not
    part_of = pseudonyms.view(np.uint16)[:, 0] % np.uint16(n_parts)
    n_users = 0
    for part in range(n_parts):
        (rows,) = np.nonzero(part_of == part)
        own = pseudonyms[rows]
        order = np.lexsort((own[:, 1], own[:, 0]))  # stable: a user's records stay in their order
        own = own[order]
        is_first = np.ones(len(own), dtype=np.bool_)
        is_first[1:] = (own[1:] != own[:-1]).any(axis=1)
        place = np.arange(len(own))
        nth = place - np.maximum.accumulate(np.where(is_first, place, 0))
        kept[rows[order]] = nth < max_per_user
        n_users += int(is_first.sum())
    return kept, n_users


def _belongs_to(dataset_id: str, key_id: str, upload_id: str, index: int, n_records: int) -> bytes:
    return f"sfumato segment|{dataset_id}|{key_id}|{upload_id}|{index}|{n_records}".encode()
