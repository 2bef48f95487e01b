"""Count the users of a dataset in bounded memory."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from models.encryption import Keyring
from models.records.records import user_columns
from models.tables.datasets import Dataset

_USERS_AT_ONCE = 1 << 20  # distinct users in memory while users are counted
_PENDING_USERS = 1 << 18  # records that are added to them at once
BYTES_PER_COUNTED = 100  # memory per distinct user
COUNT_BYTES = BYTES_PER_COUNTED * (_USERS_AT_ONCE + 2 * _PENDING_USERS)


class UserCounts(NamedTuple):
    """Numbers of users and usable records. Private."""

    n_users: int
    n_used: int  # records used, at most max_records_per_user per user


def count_users(session: Session, dataset: Dataset, keyring: Keyring) -> UserCounts:
    """Return the numbers of users and usable records. Raise the errors of `records.load`.

    Memory: at most `COUNT_BYTES`, for any number of records. If the users do not fit, the records are read again for
    each further range of pseudonyms.

    Parameters
    ----------
    session : Session
        A session of `Database.reading`, because the segments may be read several times.
    """
    n_users = n_used = 0
    ranges = [(0, 1 << 16)]  # bounds of the first 16 bits of a pseudonym
    while ranges:
        low, high = ranges.pop()
        users, counts = np.empty((0, 2), dtype=np.uint64), np.empty(0, dtype=np.int64)
        pending: list[NDArray[np.uint64]] = []
        n_pending = 0
        for own in user_columns(session, dataset, keyring):
            pending.append(own[_in_range(own, low, high)])
            n_pending += len(pending[-1])
            if n_pending < _PENDING_USERS:
                continue
            users, counts = _add_users(users, counts, pending)
            pending, n_pending = [], 0
            while len(users) > _USERS_AT_ONCE and high - low > 1:
                middle = (low + high) // 2
                ranges.append((middle, high))
                is_kept = _in_range(users, low, middle)
                users, counts, high = users[is_kept], counts[is_kept], middle
        users, counts = _add_users(users, counts, pending)
        n_users += len(users)
        n_used += int(np.minimum(counts, dataset.max_records_per_user).sum())
    return UserCounts(n_users, n_used)


def _in_range(pseudonyms: NDArray[np.uint64], low: int, high: int) -> NDArray[np.bool_]:
    """Return which pseudonyms have first bits in [low, high)."""
    first = pseudonyms[:, 0] >> np.uint64(48)
    return (first >= np.uint64(low)) & (first < np.uint64(high))


def _add_users(
    users: NDArray[np.uint64], counts: NDArray[np.int64], pending: list[NDArray[np.uint64]]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the distinct users with their numbers of records, after adding pseudonyms of records."""
    every = np.concatenate([users, *pending])
    weights = np.concatenate([counts, np.ones(len(every) - len(users), dtype=np.int64)])
    if not len(every):
        return users, counts
    order = np.argsort(every[:, 0])
    first = every[order, 0]
    second = every[order, 1]
    if ((first[1:] == first[:-1]) & (second[1:] != second[:-1])).any():  # almost never: pseudonyms are uniform
        order = np.lexsort((every[:, 1], every[:, 0]))
    every, weights = every[order], weights[order]
    is_first = np.ones(len(every), dtype=np.bool_)
    is_first[1:] = (every[1:] != every[:-1]).any(axis=1)
    return every[is_first], np.add.reduceat(weights, np.flatnonzero(is_first))
