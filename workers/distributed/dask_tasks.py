"""Tasks that run on Dask workers: they read the database of the worker's own settings and return sums.

Records are decrypted with the key in the environment of the Dask worker. They stay in its memory while a job needs
them, and never become a result that Dask could store, move or write to disk. A task reports an error by its type only,
because the message may quote private data.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, NamedTuple, ParamSpec

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import undefer

from clustering.central.queries import RecordSum
from clustering.centroids.noisy_fcm import scaled
from clustering.rounds.tally import Sample, Tally
from models.collection import report_log
from models.database.engine import Database
from models.encryption import load_keyring
from models.records import records
from models.tables.rounds import Round
from runtime.process import WORKER_KEPT_BYTES, keep_freed_memory, leave_no_core
from runtime.settings import settings
from workers.aggregation.aggregate import LogCounts, Part, aggregate_part

KEPT_SECONDS = 600.0  # since their last use, until records are dropped from memory

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task.

    Attributes
    ----------
    value : object
        Return value; None if the task failed.
    failure : str or None
        Type of the error.
    """

    value: Any
    failure: str | None = None


class PartCount(NamedTuple):
    """The aggregated reports of one part of the ids."""

    tally: Tally | Sample
    n_left_out: int
    counts: LogCounts


class DifferentDatabase(Exception):
    """The database of this process differs from that of the caller, or has changed."""


class SpillsToDisk(Exception):
    """Dask may write results of this worker to disk, so the worker may not load records."""


def dask_task(function: Callable[P, Any]) -> Callable[P, TaskResult]:
    """Make a function return a `TaskResult` and never raise."""

    @wraps(function)
    def task(*args: P.args, **kwargs: P.kwargs) -> TaskResult:
        try:
            leave_no_core()
            keep_freed_memory(WORKER_KEPT_BYTES)
            return TaskResult(function(*args, **kwargs))
        except Exception as error:
            return TaskResult(None, type(error).__name__)

    return task


@lru_cache
def own_database() -> Database:
    """Return the database of this process's settings."""
    return Database.from_settings(settings())


# ---- aggregation ----


@dask_task
def count_part(round_id: str, part: Part, n_expected: int) -> PartCount:
    """Count the reports of a closed round that have an id in one part."""
    with own_database().reading() as session:
        closed = session.get(Round, round_id)
        if closed is None:
            raise DifferentDatabase
        counting, counts = aggregate_part(
            closed.spec,
            lambda: (packed for _, packed in report_log.batches(session, round_id)),
            part,
            n_expected=n_expected,
        )
    return PartCount(counting.result(), counting.n_left_out, counts)


# ---- vectors ----


class VectorRange(NamedTuple):
    """The vectors `begin` to `end - 1` of a round's sample, in its order."""

    round_id: str
    begin: int
    end: int


@lru_cache(maxsize=4)
def _load_vectors(vectors: VectorRange) -> NDArray[np.float64]:
    with own_database().reading() as session:
        found = session.get(Round, vectors.round_id, options=[undefer(Round.tally)])
    if found is None or found.tally is None:
        raise DifferentDatabase
    return scaled(found.spec, Sample.from_bytes(found.tally))[vectors.begin : vectors.end]


@dask_task
def map_vectors(
    vectors: VectorRange, function: Callable[..., NDArray[np.float64]], *arguments: Any
) -> NDArray[np.float64]:
    """Apply a function of points and further arguments to a range of vectors."""
    return function(_load_vectors(vectors), *arguments)


# ---- records ----


class RecordPart(NamedTuple):
    """Part `part` of `n_parts` of a dataset's records, in the version that `digest` identifies."""

    dataset_id: str
    digest: str
    part: int
    n_parts: int


class _CachedPoints:
    """Points in memory, and the time of their last use."""

    def __init__(self, points: NDArray[np.int32]) -> None:
        self.points = points
        self.used_at = time.monotonic()


_cache: dict[tuple[str, RecordPart], _CachedPoints] = {}
_lock = threading.Lock()


@dask_task
def load_records(token: str, part: RecordPart) -> None:
    """Load a part of the records into memory for later sums."""
    _check_no_spilling()
    _get_points(token, part)


@dask_task
def sum_records(token: str, part: RecordPart, work: RecordSum) -> tuple[NDArray[np.int64], ...]:
    """Return the sums over a part of the records.

    Parameters
    ----------
    token : str
        Token of the job. Its records stay in memory until `forget_records`.
    part : RecordPart
        The records to sum over.
    work : RecordSum
        The sums to compute.
    """
    _check_no_spilling()
    return work(_get_points(token, part))


def forget_records(token: str) -> None:
    """Drop the records of a job from memory."""
    with _lock:
        for key in [key for key in _cache if key[0] == token]:
            del _cache[key]


def _get_points(token: str, part: RecordPart) -> NDArray[np.int32]:
    with _lock:
        if (cached := _cache.get((token, part))) is not None:
            cached.used_at = time.monotonic()
            return cached.points
    with own_database().reading() as session:
        if records.digest(session, part.dataset_id) != part.digest:
            raise DifferentDatabase
        loaded = records.load(session, part.dataset_id, load_keyring(settings()), part=part.part, n_parts=part.n_parts)
    with _lock:
        _cache[token, part] = _CachedPoints(loaded.points)
    _schedule_expiry()
    return loaded.points


def _schedule_expiry() -> None:
    timer = threading.Timer(KEPT_SECONDS, _drop_expired)
    timer.daemon = True
    timer.start()


def _drop_expired() -> None:
    """Drop records that were not used for `KEPT_SECONDS`, because the worker of their job may have died."""
    with _lock:
        oldest = time.monotonic() - KEPT_SECONDS
        for key in [key for key, cached in _cache.items() if cached.used_at <= oldest]:
            del _cache[key]
        is_any = bool(_cache)
    if is_any:
        _schedule_expiry()


def _check_no_spilling() -> None:
    from distributed import get_worker

    if type(get_worker().data) is not dict:  # other containers of Dask may write results to a file
        raise SpillsToDisk
