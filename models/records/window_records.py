"""Records of one window of a series: those of the uploads that were completed in it.

An upload is completed once, and windows do not overlap, so that windows have disjoint records. A user has at most
`max_records_per_user` records in all windows together, the first ones. A curator adds noise for that many records of a
user in one window. Let c be this number, and c_t that of the user's records in window t. Then the answers of window t
cost the user ε c_t / c, and those of all windows cost ε at most. Without a user column, c is 1 for each record.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.encryption import Keyring
from models.records import record_keys
from models.records.records import Records
from models.records.segments import coordinates, open_segment, users_of
from models.records.user_bounds import bound_users
from models.tables.datasets import Dataset, RecordSegment


def load(session: Session, dataset_id: str, keyring: Keyring, *, since: int, until: int) -> Records:
    """Load the records of the uploads that were completed from `since` to before `until`.

    With a user column, all earlier records are read as well, because they count towards the limit of their user.
    Records are ordered by the time of their upload's completion. So no later upload changes the selection of a window.
    Memory: the records, one segment, and 17 bytes per earlier record of a dataset with a user column.

    Raises
    ------
    RecordsKeyMissing, RecordsUnreadable
        See `models.records.records.load`.
    """
    found = load_unbounded(session, dataset_id, keyring, since=since, until=until)
    if not len(found.users):
        return Records(found.points, found.max_per_user)
    kept = bound_users(found.users, found.max_per_user)
    return Records(found.points[kept[found.n_before :]], found.max_per_user)


class Unbounded(NamedTuple):
    """The records of a window with all records of each user."""

    points: NDArray[np.int32]  # points of the window alone, as in `Records`
    users: NDArray[np.uint64]  # shape (n, 2): pseudonyms of all records up to the end; empty without a user column
    n_before: int  # records before the window
    max_per_user: int


def load_unbounded(session: Session, dataset_id: str, keyring: Keyring, *, since: int, until: int) -> Unbounded:
    """Load the records of a window, and the users of all records up to its end. See `load`."""
    dataset = session.get_one(Dataset, dataset_id)
    key = record_keys.open_key(session, dataset_id, keyring)
    points = [np.zeros((0, dataset.n_columns), dtype=np.int32)]
    users = [np.zeros((0, 2), dtype=np.uint64)]
    n_before = 0
    for place, completed_at in _places(session, dataset, since, until):
        if key is None:  # without a key there are no segments
            break
        plain, n_records = open_segment(session, dataset, key, place)
        if dataset.user_feature is not None:
            users.append(users_of(plain, n_records))
        if completed_at >= since:
            points.append(coordinates(plain, n_records, dataset.n_columns))
        else:
            n_before += n_records
    return Unbounded(np.concatenate(points), np.concatenate(users), n_before, dataset.max_records_per_user)


def _places(session: Session, dataset: Dataset, since: int, until: int) -> list[tuple[tuple[str, int], int]]:
    """Return the segments that decide on the records of a window, by their time: their places and times.

    Uploads from before the first series have no time. They belong to no window.
    """
    completed_at = func.coalesce(RecordSegment.completed_at, 0)
    query = select(RecordSegment.upload_id, RecordSegment.index, completed_at).where(
        RecordSegment.dataset_id == dataset.id,
        RecordSegment.expires_at.is_(None),
        RecordSegment.n_records > 0,
        completed_at < until,
    )
    if dataset.user_feature is None:
        query = query.where(completed_at >= since)
    rows = session.execute(query.order_by(completed_at, RecordSegment.upload_id, RecordSegment.index))
    return [((upload_id, index), at) for upload_id, index, at in rows]
