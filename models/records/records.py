"""Store, count, load and delete encrypted records. `models.tables.datasets` describes the format."""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Table, delete, func, insert, select
from sqlalchemy.orm import Session

from models import encryption
from models.database.types import SCRUBBED, new_id
from models.encryption import Keyring
from models.errors import DuplicateContent, LimitExceeded, RecordsUnreadable
from models.records import record_keys
from models.records.record_keys import DataKey
from models.tables.datasets import Dataset, RecordSegment
from sfumato.specs import MAX_FEATURES

PSEUDONYM_BYTES = 16
SEGMENT_BYTES = 2 << 20  # a segment is encrypted when it has this length

_COORDINATE_BYTES = 3  # the lattice has 20 bits
_ROWS_PER_FETCH = 4  # segments in memory
_PART_RECORDS = 1 << 16  # approximate number of records whose users are sorted at once
_MAX_PARTS = 256


class Records(NamedTuple):
    """A dataset's records with a bounded number per user."""

    points: NDArray[np.int32]  # shape (n, d), lattice coordinates in [0, LATTICE)
    max_per_user: int  # largest number of points per user


class RecordCounts(NamedTuple):
    """Numbers of records and uploads. Private."""

    n_records: int
    n_uploads: int
    n_clipped: int


class UserCounts(NamedTuple):
    """Numbers of users and usable records. Private."""

    n_users: int
    n_used: int  # records used, at most max_records_per_user per user


class Upload:
    """An upload of records. Records are packed and encrypted as they arrive, so at most one segment is in plain text.

    Parameters
    ----------
    key : DataKey
        Data key of the dataset.
    n_features : int
    """

    def __init__(self, key: DataKey, n_features: int) -> None:
        self.key = key
        self.id = new_id("upl")
        self.segments: list[dict[str, object]] = []
        self.n_records = 0
        self.n_clipped = 0
        self.n_bytes = 0  # length of the encrypted segments
        self.n_features = n_features
        self._points: list[bytes] = []
        self._users: list[bytes] = []
        self._n_open = 0
        self._clipped_before = 0
        self._points_hash = hmac.new(key.uploads, b"points\n", "sha256")
        self._users_hash = hmac.new(key.uploads, b"users\n", "sha256")

    @property
    def content(self) -> bytes:
        """Return a keyed hash of the records so far, as stored and in order. It is the same for every format."""
        return hmac.digest(self.key.uploads, self._points_hash.digest() + self._users_hash.digest(), "sha256")

    def add(self, points: NDArray[np.int32], users: Sequence[bytes] | None, n_clipped: int) -> None:
        """Add records.

        Parameters
        ----------
        points : ndarray of shape (n, n_features), int32
            Lattice coordinates.
        users : sequence of n bytes, optional
            Ids of the users, for all records of the upload or for none.
        n_clipped : int
            Number of records with a value moved to a bound.
        """
        little = np.ascontiguousarray(points, dtype="<i4").view(np.uint8).reshape(-1, 4)
        self._points.append(little[:, :_COORDINATE_BYTES].tobytes())
        self._points_hash.update(self._points[-1])
        if users is not None:
            pseudonyms = [hmac.digest(self.key.pseudonyms, user, "sha256")[:PSEUDONYM_BYTES] for user in users]
            self._users += pseudonyms
            self._users_hash.update(b"".join(pseudonyms))
        self._n_open += len(points)
        self.n_records += len(points)
        self.n_clipped += n_clipped
        if self._n_open * record_bytes(self.n_features, with_user=bool(self._users)) >= SEGMENT_BYTES:
            self.close()

    def close(self) -> None:
        """Encrypt the remaining records."""
        if not self._n_open:
            return
        index = len(self.segments)
        plain = b"".join([*self._points, *self._users])
        sealed = encryption.seal(
            self.key.records, plain, _belongs_to(self.key.dataset_id, self.key.id, self.id, index, self._n_open)
        )
        self.segments.append(
            {
                "dataset_id": self.key.dataset_id,
                "upload_id": self.id,
                "index": index,
                "n_records": self._n_open,
                "n_clipped": self.n_clipped - self._clipped_before,
                "content": None,
                "sealed": sealed,
            }
        )
        self.n_bytes += len(sealed)
        self._points, self._users, self._n_open, self._clipped_before = [], [], 0, self.n_clipped


def record_bytes(n_features: int, *, with_user: bool) -> int:
    """Return the length of a record in a segment."""
    return _COORDINATE_BYTES * n_features + PSEUDONYM_BYTES * with_user


def append(session: Session, upload: Upload, *, max_records: int, allow_duplicates: bool = False) -> None:
    """Store a whole upload. The caller has locked the dataset's row.

    Raises
    ------
    DuplicateContent
        If the dataset has an upload of the same records in the same order, unless `allow_duplicates`.
    LimitExceeded
        If the dataset would have more than `max_records` records, or more than the numbers of `max_records`
        records of 64 features. The memory of a job is therefore bounded for any number of features.
    Conflict
        If the dataset's records were deleted since the upload began.
    """
    upload.close()
    record_keys.check_current(session, upload.key)
    most = max_records * MAX_FEATURES // max(upload.n_features, MAX_FEATURES)
    if count(session, upload.key.dataset_id).n_records + upload.n_records > most:
        wide = f" of {upload.n_features} features" if upload.n_features > MAX_FEATURES else ""
        raise LimitExceeded(f"a dataset may have at most {most} records{wide}")
    if upload.segments:
        upload.segments[0]["content"] = upload.content
        same = (RecordSegment.dataset_id == upload.key.dataset_id, RecordSegment.content == upload.content)
        if not allow_duplicates and session.scalar(select(RecordSegment.index).where(*same).limit(1)) is not None:
            n_records = f"{upload.n_records} record{'s' * (upload.n_records > 1)}"
            raise DuplicateContent(
                f"this dataset already has an upload of the same {n_records} in this order; nothing was stored. "
                "Send allow_duplicates=true if they belong to further people with equal values."
            )
        session.execute(insert(cast(Table, RecordSegment.__table__)), upload.segments)


def count(session: Session, dataset_id: str) -> RecordCounts:
    """Return the numbers of records, uploads and clipped records."""
    row = session.execute(
        select(
            func.coalesce(func.sum(RecordSegment.n_records), 0),
            func.count(RecordSegment.upload_id.distinct()),
            func.coalesce(func.sum(RecordSegment.n_clipped), 0),
        ).where(RecordSegment.dataset_id == dataset_id)
    ).one()
    return RecordCounts(*(int(each) for each in row))


def count_users(session: Session, dataset: Dataset, keyring: Keyring) -> UserCounts:
    """Return the numbers of users and usable records. Raise the errors of `load`."""
    kept, n_users = _bound_users(_pseudonyms(session, dataset, keyring), dataset.max_records_per_user)
    return UserCounts(n_users, int(kept.sum()))


def digest(session: Session, dataset_id: str) -> str:
    """Return a digest of the ids and lengths of the segments. It changes with the records."""
    content = hashlib.sha256(f"sfumato records|{dataset_id}".encode())
    query = select(RecordSegment.upload_id, RecordSegment.index, RecordSegment.n_records)
    query = query.where(RecordSegment.dataset_id == dataset_id)
    for row in session.execute(query.order_by(RecordSegment.upload_id, RecordSegment.index)):
        content.update(f"|{row.upload_id}|{row.index}|{row.n_records}".encode())
    return content.hexdigest()


def load(session: Session, dataset_id: str, keyring: Keyring, *, part: int = 0, n_parts: int = 1) -> Records:
    """Load a dataset's records with at most `max_records_per_user` records per user.

    The first records of a user are used. The selection depends on that user's records only, so replacing one user's
    records changes at most `max_records_per_user` points.

    Memory: the points, one segment, and with a user column 17 bytes per record before the points are allocated.

    Parameters
    ----------
    session : Session
        A session of `Database.reading`, because the segments are read twice.
    part, n_parts : int
        Load only the records of one part, if the segments are divided into `n_parts` ranges of about equal length.

    Raises
    ------
    RecordsKeyMissing
        If the keyring lacks the master key.
    RecordsUnreadable
        If a segment was changed or belongs to another dataset.
    """
    dataset = session.get_one(Dataset, dataset_id)
    n_features = dataset.n_features
    sizes = _sizes(session, dataset_id)
    chosen = range(len(sizes) * part // n_parts, len(sizes) * (part + 1) // n_parts)
    n_points = sum(sizes[chosen.start : chosen.stop])
    kept: NDArray[np.bool_] | None = None
    if dataset.user_feature is not None:
        kept_of_all, _ = _bound_users(_pseudonyms(session, dataset, keyring), dataset.max_records_per_user)
        n_before = sum(sizes[: chosen.start])
        kept = kept_of_all[n_before : n_before + n_points]
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
    """Delete all records of a dataset and their key irrecoverably. The caller has locked the dataset's row."""
    session.execute(delete(RecordSegment).where(RecordSegment.dataset_id == dataset_id))
    record_keys.destroy(session, dataset_id)
    session.info[SCRUBBED] = True


def _sizes(session: Session, dataset_id: str) -> list[int]:
    """Return the number of records in each segment, in order."""
    query = select(RecordSegment.n_records).where(RecordSegment.dataset_id == dataset_id)
    return list(session.scalars(query.order_by(RecordSegment.upload_id, RecordSegment.index)))


def _segments(
    session: Session, dataset: Dataset, keyring: Keyring, chosen: range | None = None
) -> Iterator[tuple[bytes, int]]:
    """Yield the plain text and number of records of each segment, or of the chosen ones, in order."""
    key = record_keys.open_key(session, dataset.id, keyring)
    if key is None:
        return
    width = record_bytes(dataset.n_features, with_user=dataset.user_feature is not None)
    query = (
        select(RecordSegment.upload_id, RecordSegment.index, RecordSegment.n_records, RecordSegment.sealed)
        .where(RecordSegment.dataset_id == dataset.id)
        .order_by(RecordSegment.upload_id, RecordSegment.index)
        .execution_options(yield_per=_ROWS_PER_FETCH)
    )
    if chosen is not None:
        query = query.offset(chosen.start).limit(len(chosen))
    with session.execute(query) as rows:
        for upload_id, index, n_records, sealed in rows:
            belongs_to = _belongs_to(dataset.id, key.id, upload_id, index, n_records)
            plain = encryption.unseal(key.records, sealed, belongs_to)
            if len(plain) != n_records * width:
                raise RecordsUnreadable("stored records have another length than their dataset requires")
            yield plain, n_records


def _pseudonyms(session: Session, dataset: Dataset, keyring: Keyring) -> NDArray[np.uint64]:
    """Return the user pseudonym of each record in order, shape (n, 2)."""
    found = np.empty((count(session, dataset.id).n_records, 2), dtype=np.uint64)
    at = 0
    for plain, n_records in _segments(session, dataset, keyring):
        users = np.frombuffer(plain, dtype="<u8", offset=len(plain) - n_records * PSEUDONYM_BYTES)
        found[at : at + n_records] = users.reshape(n_records, 2)
        at += n_records
    return found


def _bound_users(pseudonyms: NDArray[np.uint64], max_per_user: int) -> tuple[NDArray[np.bool_], int]:
    """Return a mask of the first `max_per_user` records of each user, and the number of users."""
    kept = np.zeros(len(pseudonyms), dtype=np.bool_)
    n_parts = min(_MAX_PARTS, 1 + len(pseudonyms) // _PART_RECORDS)
    # A part has all records of its users. Pseudonyms are uniform; 16 of their bits are enough for `n_parts`.
    part_of = pseudonyms.view(np.uint16)[:, 0] % np.uint16(n_parts)
    n_users = 0
    for part in range(n_parts):
        (rows,) = np.nonzero(part_of == part)
        own = pseudonyms[rows]
        order = np.lexsort((own[:, 1], own[:, 0]))  # stable: keeps the order of a user's records
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
