"""Store, count, load and delete encrypted records. `models.tables.datasets` describes the format."""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Table, delete, func, insert, select, update
from sqlalchemy.orm import Session

from models import encryption
from models.database.types import SCRUBBED, new_id
from models.encryption import Keyring
from models.errors import Conflict, DuplicateContent, LimitExceeded
from models.records import record_keys
from models.records.record_keys import DataKey
from models.records.segments import COORDINATE_BYTES, PSEUDONYM_BYTES, belongs_to, record_bytes, unseal, users_of
from models.records.user_bounds import bound_users
from models.tables.datasets import Dataset, RecordSegment
from sfumato.specs import MAX_FEATURES

SEGMENT_BYTES = 2 << 20  # a segment is encrypted when it has this length
MAX_SEGMENTS = 1 << 16  # largest number of segments of a part
MAX_PARTS = 10_000

_ROWS_PER_FETCH = 4  # segments in memory


class Records(NamedTuple):
    """A dataset's records with a bounded number per user."""

    points: NDArray[np.int32]  # shape (n, n_columns): lattice coordinates in [0, LATTICE), then codes of attributes
    max_per_user: int  # largest number of points per user


class RecordCounts(NamedTuple):
    """Numbers of records and uploads. Private."""

    n_records: int
    n_uploads: int
    n_clipped: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an upload."""

    name_hash: bytes  # keyed hash of the client's name for the upload
    number: int  # from 1
    is_last: bool
    expires_at: int  # microseconds since the epoch, unless the upload is complete by then


class Upload:
    """An upload of records, or a part of one.

    Records are packed and encrypted as they arrive, so at most one segment is in plain text.

    Parameters
    ----------
    key : DataKey
        Data key of the dataset.
    n_columns : int
        Number of features and attributes.
    part : Part, optional
    upload_id : str, optional
        Id of the upload that earlier parts belong to.
    """

    def __init__(self, key: DataKey, n_columns: int, *, part: Part | None = None, upload_id: str | None = None) -> None:
        self.key = key
        self.part = part
        self.id = upload_id or new_id("upl")
        self.segments: list[dict[str, object]] = []
        self.n_records = 0
        self.n_clipped = 0
        self.n_bytes = 0  # length of the encrypted segments
        self.n_columns = n_columns
        self._points: list[bytes] = []
        self._users: list[bytes] = []
        self._n_open = 0
        self._clipped_before = 0
        self._hashes = new_hashes(key)

    @property
    def content(self) -> bytes:
        """Return a keyed hash of the records so far, as stored and in order. It is the same for every format."""
        return content_of(self.key, self._hashes)

    def add(self, points: NDArray[np.int32], users: Sequence[bytes] | None, n_clipped: int) -> None:
        """Add records.

        Parameters
        ----------
        points : ndarray of shape (n, n_columns), int32
            Lattice coordinates, then codes of attributes.
        users : sequence of n bytes, optional
            Ids of the users, for all records of the upload or for none.
        n_clipped : int
            Number of records with a value moved to a bound.
        """
        little = np.ascontiguousarray(points, dtype="<i4").view(np.uint8).reshape(-1, 4)
        self._points.append(little[:, :COORDINATE_BYTES].tobytes())
        self._hashes[0].update(self._points[-1])
        if users is not None:
            pseudonyms = [hmac.digest(self.key.pseudonyms, user, "sha256")[:PSEUDONYM_BYTES] for user in users]
            self._users += pseudonyms
            self._hashes[1].update(b"".join(pseudonyms))
        self._n_open += len(points)
        self.n_records += len(points)
        self.n_clipped += n_clipped
        if self._n_open * record_bytes(self.n_columns, with_user=bool(self._users)) >= SEGMENT_BYTES:
            self.close()

    def close(self) -> None:
        """Encrypt the remaining records."""
        if not self._n_open:
            return
        # Each part has a range of indices, so that the segments of a part are in order after those of the part before.
        index = len(self.segments) + (0 if self.part is None else self.part.number * MAX_SEGMENTS)
        plain = b"".join([*self._points, *self._users])
        sealed = encryption.seal(
            self.key.records, plain, belongs_to(self.key.dataset_id, self.key.id, self.id, index, self._n_open)
        )
        self.segments.append(
            {
                "dataset_id": self.key.dataset_id,
                "upload_id": self.id,
                "index": index,
                "n_records": self._n_open,
                "n_clipped": self.n_clipped - self._clipped_before,
                "content": None,
                "name_hash": None if self.part is None else self.part.name_hash,
                "expires_at": None if self.part is None else self.part.expires_at,
                "sealed": sealed,
            }
        )
        self.n_bytes += len(sealed)
        self._points, self._users, self._n_open, self._clipped_before = [], [], 0, self.n_clipped


def new_hashes(key: DataKey) -> tuple[hmac.HMAC, hmac.HMAC]:
    """Return the keyed hashes of no points and of no users."""
    return hmac.new(key.uploads, b"points\n", "sha256"), hmac.new(key.uploads, b"users\n", "sha256")


def content_of(key: DataKey, hashes: tuple[hmac.HMAC, hmac.HMAC]) -> bytes:
    """Return the keyed hash of the records of an upload or part from the hashes of their points and users."""
    return hmac.digest(key.uploads, hashes[0].digest() + hashes[1].digest(), "sha256")


def find_upload(session: Session, dataset_id: str, name_hash: bytes) -> str | None:
    """Return the id of the upload in parts with this name."""
    query = select(RecordSegment.upload_id).where(
        RecordSegment.dataset_id == dataset_id, RecordSegment.name_hash == name_hash
    )
    return session.scalar(query.limit(1))


def append(
    session: Session, upload: Upload, *, max_records: int, allow_duplicates: bool = False, now: int | None = None
) -> bool:
    """Store a whole upload, or a part of one. The caller has locked the dataset's row.

    A part that is stored already changes nothing. An upload that is complete at `now` belongs to the windows of series
    that contain this time; without a time, to none.

    Returns
    -------
    bool
        Whether the upload is complete, so that its records count.

    Raises
    ------
    DuplicateContent
        If the dataset has an upload of the same records in the same order, unless `allow_duplicates`.
    LimitExceeded
        If the dataset would have more than `max_records` records, or more than the numbers of `max_records`
        records of 64 features. The memory of a job is therefore bounded for any number of features.
    Conflict
        If the dataset's records were deleted since the upload began, if the part has other records than before, or
        if the last part arrives before another one.
    """
    upload.close()
    record_keys.check_current(session, upload.key)
    part = upload.part
    if part is None or not _is_stored(session, upload, part):
        _check_limit(session, upload, max_records)
        if upload.segments:
            upload.segments[0]["content"] = upload.content
            for segment in upload.segments:
                segment["completed_at"] = now if part is None else None
            session.execute(insert(cast(Table, RecordSegment.__table__)), upload.segments)
    if part is None:
        is_complete = True
    elif part.is_last:
        is_complete = _complete(session, upload, part, now)
    else:
        return False
    if is_complete and not allow_duplicates:
        _check_duplicates(session, upload)
    return is_complete


def _is_stored(session: Session, upload: Upload, part: Part) -> bool:
    """Return whether the part is stored. Raise Conflict if it has other records, or belongs to a complete upload."""
    if find_upload(session, upload.key.dataset_id, part.name_hash) not in (None, upload.id):
        raise Conflict("another part of this upload was stored at the same time; send this part again")
    stored = session.get(RecordSegment, (upload.key.dataset_id, upload.id, part.number * MAX_SEGMENTS))
    if stored is None:
        is_complete = (RecordSegment.upload_id == upload.id, RecordSegment.expires_at.is_(None))
        query = select(RecordSegment.index).where(RecordSegment.dataset_id == upload.key.dataset_id, *is_complete)
        if session.scalar(query.limit(1)) is not None:
            raise Conflict("this upload is complete: send further records with another name of the upload")
        return False
    if stored.content != upload.content:
        raise Conflict(
            f"part {part.number} of this upload is stored with other records: use another name of the upload"
        )
    return True


def _complete(session: Session, upload: Upload, last: Part, now: int | None) -> bool:
    """Make the records of all parts count. Return whether they did not before. Raise Conflict if a part is missing."""
    of_upload = (RecordSegment.dataset_id == upload.key.dataset_id, RecordSegment.upload_id == upload.id)
    rows = session.execute(select(RecordSegment.index, RecordSegment.expires_at).where(*of_upload)).all()
    present = {index // MAX_SEGMENTS for index, _ in rows}
    missing = sorted(set(range(1, last.number)) - present)
    if missing:
        raise Conflict(f"part {missing[0]} of this upload is missing: send it, then the last part again")
    if max(present) > last.number:
        raise Conflict(f"part {max(present)} of this upload is stored already, so part {last.number} is not its last")
    if all(expires_at is None for _, expires_at in rows):
        return False
    session.execute(update(RecordSegment).where(*of_upload).values(expires_at=None, completed_at=now))
    return True


def _check_limit(session: Session, upload: Upload, max_records: int) -> None:
    most = max_records * MAX_FEATURES // max(upload.n_columns, MAX_FEATURES)
    stored = select(func.coalesce(func.sum(RecordSegment.n_records), 0))
    stored = stored.where(RecordSegment.dataset_id == upload.key.dataset_id)  # with those of incomplete uploads
    if int(session.scalar(stored) or 0) + upload.n_records > most:
        wide = f" of {upload.n_columns} columns" if upload.n_columns > MAX_FEATURES else ""
        raise LimitExceeded(f"a dataset may have at most {most} records{wide}")


def _check_duplicates(session: Session, upload: Upload) -> None:
    """Raise DuplicateContent if another complete upload consists of the same records in the same parts."""
    in_dataset = RecordSegment.dataset_id == upload.key.dataset_id
    own = _contents(session, in_dataset, RecordSegment.upload_id == upload.id)[upload.id]
    same = select(RecordSegment.upload_id).where(in_dataset, RecordSegment.content == own[0])
    others = _contents(session, in_dataset, RecordSegment.upload_id.in_(same), RecordSegment.expires_at.is_(None))
    others.pop(upload.id, None)
    if own in others.values():
        query = select(func.sum(RecordSegment.n_records)).where(in_dataset, RecordSegment.upload_id == upload.id)
        number = int(session.scalar(query) or 0)
        raise DuplicateContent(
            f"this dataset already has an upload of the same {number} record{'s' * (number > 1)} in this order; "
            "nothing was stored. Send allow_duplicates=true if they belong to further people with equal values."
        )


def _contents(session: Session, *where: ColumnElement[bool]) -> dict[str, list[bytes]]:
    """Return the keyed hashes of the parts of each upload, in order."""
    query = select(RecordSegment.upload_id, RecordSegment.content).where(*where, RecordSegment.content.is_not(None))
    contents: dict[str, list[bytes]] = {}
    for row in session.execute(query.order_by(RecordSegment.upload_id, RecordSegment.index)):
        contents.setdefault(row.upload_id, []).append(row.content)
    return contents


def delete_expired(session: Session, *, now: int) -> None:
    """Delete incomplete uploads a day after their newest part."""
    newest = func.max(RecordSegment.expires_at)
    query = select(RecordSegment.dataset_id, RecordSegment.upload_id).where(RecordSegment.expires_at.is_not(None))
    expired = query.group_by(RecordSegment.dataset_id, RecordSegment.upload_id).having(newest <= now)
    for dataset_id, upload_id in session.execute(expired).all():
        session.execute(
            delete(RecordSegment).where(RecordSegment.dataset_id == dataset_id, RecordSegment.upload_id == upload_id)
        )
        session.info[SCRUBBED] = True


def _of(dataset_id: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for segments of complete uploads that are not empty after the deletion of a person."""
    return RecordSegment.dataset_id == dataset_id, RecordSegment.expires_at.is_(None), RecordSegment.n_records > 0


def count(session: Session, dataset_id: str) -> RecordCounts:
    """Return the numbers of records, uploads and clipped records."""
    row = session.execute(
        select(
            func.coalesce(func.sum(RecordSegment.n_records), 0),
            func.count(RecordSegment.upload_id.distinct()),
            func.coalesce(func.sum(RecordSegment.n_clipped), 0),
        ).where(*_of(dataset_id))
    ).one()
    return RecordCounts(*(int(each) for each in row))


def digest(session: Session, dataset_id: str) -> str:
    """Return a digest of the ids and lengths of the segments. It changes with the records."""
    content = hashlib.sha256(f"sfumato records|{dataset_id}".encode())
    query = select(RecordSegment.upload_id, RecordSegment.index, RecordSegment.n_records)
    query = query.where(*_of(dataset_id))
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
    n_columns = dataset.n_columns
    sizes = _sizes(session, dataset_id)
    chosen = range(len(sizes) * part // n_parts, len(sizes) * (part + 1) // n_parts)
    n_points = sum(sizes[chosen.start : chosen.stop])
    kept: NDArray[np.bool_] | None = None
    if dataset.user_feature is not None:
        kept_of_all = bound_users(_pseudonyms(session, dataset, keyring), dataset.max_records_per_user)
        n_before = sum(sizes[: chosen.start])
        kept = kept_of_all[n_before : n_before + n_points]
        n_points = int(kept.sum())
    points = np.zeros((n_points, n_columns), dtype="<i4")
    octets = points.view(np.uint8).reshape(n_points, n_columns, 4)[..., :COORDINATE_BYTES]
    at = seen = 0
    for plain, n_records in _segments(session, dataset, keyring, chosen):
        coordinates = np.frombuffer(plain, dtype=np.uint8, count=n_records * n_columns * COORDINATE_BYTES)
        rows = coordinates.reshape(n_records, n_columns, COORDINATE_BYTES)
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
    query = select(RecordSegment.n_records).where(*_of(dataset_id))
    return list(session.scalars(query.order_by(RecordSegment.upload_id, RecordSegment.index)))


def _segments(
    session: Session, dataset: Dataset, keyring: Keyring, chosen: range | None = None
) -> Iterator[tuple[bytes, int]]:
    """Yield the plain text and number of records of each segment, or of the chosen ones, in order."""
    key = record_keys.open_key(session, dataset.id, keyring)
    if key is None:
        return
    query = (
        select(RecordSegment.upload_id, RecordSegment.index, RecordSegment.n_records, RecordSegment.sealed)
        .where(*_of(dataset.id))
        .order_by(RecordSegment.upload_id, RecordSegment.index)
        .execution_options(yield_per=_ROWS_PER_FETCH)
    )
    if chosen is not None:
        query = query.offset(chosen.start).limit(len(chosen))
    with session.execute(query) as rows:
        for upload_id, index, n_records, sealed in rows:
            yield unseal(dataset, key, (upload_id, index), n_records, sealed), n_records


def _pseudonyms(session: Session, dataset: Dataset, keyring: Keyring) -> NDArray[np.uint64]:
    """Return the user pseudonym of each record in order, shape (n, 2)."""
    found = np.empty((count(session, dataset.id).n_records, 2), dtype=np.uint64)
    at = 0
    for users in user_columns(session, dataset, keyring):
        found[at : at + len(users)] = users
        at += len(users)
    return found


def user_columns(session: Session, dataset: Dataset, keyring: Keyring) -> Iterator[NDArray[np.uint64]]:
    """Yield the user pseudonyms of each segment, shape (n, 2)."""
    for plain, n_records in _segments(session, dataset, keyring):
        yield users_of(plain, n_records)
