"""Broken loads of the records of a window, each with one fault."""

from functools import partial
from typing import Any

import numpy as np

from audit.central.window_records import SUBJECT, check_windows
from audit.checks.check import Leak
from models.records import records, window_records
from models.records.records import Records
from models.records.user_bounds import bound_users


def load_without_end(session: Any, dataset_id: str, keyring: Any, *, since: int, until: int) -> Records:
    """Load the records of the window before as well, as if windows overlapped."""
    return window_records.load(session, dataset_id, keyring, since=since - (until - since), until=until)


def bound_each_window(session: Any, dataset_id: str, keyring: Any, *, since: int, until: int) -> Records:
    """Bound the records of a user in this window alone, so that each window may have the whole number."""
    found = window_records.load_unbounded(session, dataset_id, keyring, since=since, until=until)
    inside = found.users[found.n_before :]
    kept = bound_users(inside, found.max_per_user)
    return Records(found.points[kept], found.max_per_user)


def keep_the_last(session: Any, dataset_id: str, keyring: Any, *, since: int, until: int) -> Records:
    """Keep the last records of a user instead of the first, so that a window does not know what earlier ones had."""
    found = window_records.load_unbounded(session, dataset_id, keyring, since=since, until=until)
    kept = bound_users(np.ascontiguousarray(found.users[::-1]), found.max_per_user)
    return Records(found.points[kept[::-1][found.n_before :]], found.max_per_user)


def fill_the_window(session: Any, dataset_id: str, keyring: Any, *, since: int, until: int) -> Records:
    """Keep every second record of the dataset, so that the selection depends on other users."""
    found = window_records.load_unbounded(session, dataset_id, keyring, since=since, until=until)
    whole = records.Records(found.points[::2], found.max_per_user)
    kept = bound_users(np.ascontiguousarray(found.users[found.n_before :][::2]), 1)
    return Records(whole.points[kept], found.max_per_user)


LEAKS: tuple[Leak, ...] = tuple(
    Leak(name, SUBJECT, partial(check_windows, load=load))
    for name, load in (
        ("windows that overlap", load_without_end),
        ("a limit of a user in each window", bound_each_window),
        ("the last records of a user", keep_the_last),
        ("a selection by other users", fill_the_window),
    )
)
