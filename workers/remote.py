"""What a Dask worker is asked to do: it reads the database of its own settings, and answers with sums.

Nothing else of ours runs there. Records are opened with the key in that process's own environment, lie in its
memory alone while a job wants them, and never become a result that Dask could keep, move or write to
disk. An error is answered by its type: its message may quote what was being worked on.
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

from clustering.fuzzy import Rule, block_sums
from clustering.plan import Sample, Tally
from clustering.plans.noisy_fcm import scaled
from clustering.questions import Work
from models import record, report
from models.db import Database
from models.round import Round
from models.sealing import keyring_of
from models.settings import settings
from workers.fold import Counted, Part, fold_part
from workers.process import keep_freed_memory, leave_no_core

KEPT_SECONDS = 600.0  # that records stay in memory after they were last asked for

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a task returns.

    Attributes
    ----------
    value : object
        None where it failed.
    failure : str or None
        What kind of error it was.
    """

    value: Any
    failure: str | None = None


class PartCount(NamedTuple):
    """What the reports of one part of the ids come to."""

    answers: Tally | Sample
    n_left_out: int
    counted: Counted


class NotTheSame(Exception):
    """This process sees another database, or another state of it, than who asked."""


class SpillsToDisk(Exception):
    """Dask may write results to this worker's disk, and what it was asked for is private."""


def answered(function: Callable[P, Any]) -> Callable[P, Reply]:
    """Have a task answer in a `Reply`, whatever happens."""

    @wraps(function)
    def task(*args: P.args, **kwargs: P.kwargs) -> Reply:
        try:
            leave_no_core()
            keep_freed_memory()
            return Reply(function(*args, **kwargs))
        except Exception as error:
            return Reply(None, type(error).__name__)

    return task


@lru_cache
def own_database() -> Database:
    """The database of this process's settings."""
    return Database(settings().resolved_database_url, pool_size=2)


# ---- folds ----


@answered
def count_part(round_id: str, part: Part, n_expected: int) -> PartCount:
    """Count the reports of a closed round whose ids are of one part."""
    with own_database().reading() as session:
        closed = session.get(Round, round_id)
        if closed is None:
            raise NotTheSame
        counting, counted = fold_part(
            closed.spec,
            lambda: (packed for _, packed in report.batches(session, round_id)),
            part,
            n_expected=n_expected,
        )
    return PartCount(counting.result(), counting.n_left_out, counted)


# ---- vectors ----


class VectorRange(NamedTuple):
    """Some of a round's vectors, in the order in which its sample keeps them."""

    round_id: str
    begin: int
    end: int


@lru_cache(maxsize=4)
def _vectors(wanted: VectorRange) -> NDArray[np.float64]:
    with own_database().reading() as session:
        found = session.get(Round, wanted.round_id, options=[undefer(Round.tally)])
    if found is None or found.tally is None:
        raise NotTheSame
    return scaled(found.spec, Sample.from_bytes(found.tally))[wanted.begin : wanted.end]


@answered
def vector_sums(wanted: VectorRange, centres: NDArray[np.float64], rule: Rule) -> NDArray[np.float64]:
    """One pass of fuzzy c-means over some vectors, block by block."""
    return block_sums(_vectors(wanted), centres, rule)


# ---- records ----


class Share(NamedTuple):
    """Some of a dataset's records: which part of how many, in the state that the digest tells."""

    dataset_id: str
    digest: str
    part: int
    n_parts: int


class _Kept:
    """Points in memory, dropped some time after they were last asked for."""

    def __init__(self, points: NDArray[np.int32]) -> None:
        self.points = points
        self.asked_at = time.monotonic()


_kept: dict[tuple[str, Share], _Kept] = {}
_lock = threading.Lock()


@answered
def hold(token: str, share: Share) -> None:
    """Load a share of the records, for sums to come."""
    _check_no_spilling()
    _points(token, share)


@answered
def add_up(token: str, share: Share, work: Work) -> tuple[NDArray[np.int64], ...]:
    """What a share of the records comes to.

    Parameters
    ----------
    token : str
        Of the job that asks: records are kept for it, until `forget`.
    share : Share
    work : Work
    """
    _check_no_spilling()
    return work(_points(token, share))


def forget(token: str) -> None:
    """Drop the records that were kept for a job."""
    with _lock:
        for key in [key for key in _kept if key[0] == token]:
            del _kept[key]


def _points(token: str, share: Share) -> NDArray[np.int32]:
    with _lock:
        if (held := _kept.get((token, share))) is not None:
            held.asked_at = time.monotonic()
            return held.points
    with own_database().reading() as session:
        if record.digest(session, share.dataset_id) != share.digest:
            raise NotTheSame
        loaded = record.load(session, share.dataset_id, keyring_of(settings()), part=share.part, n_parts=share.n_parts)
    with _lock:
        _kept[token, share] = _Kept(loaded.points)
    _drop_later()
    return loaded.points


def _drop_later() -> None:
    timer = threading.Timer(KEPT_SECONDS, _drop_old)
    timer.daemon = True
    timer.start()


def _drop_old() -> None:
    """Drop what nobody asked for any more: its job's worker may be gone."""
    with _lock:
        oldest = time.monotonic() - KEPT_SECONDS
        for key in [key for key, held in _kept.items() if held.asked_at <= oldest]:
            del _kept[key]
        is_any = bool(_kept)
    if is_any:
        _drop_later()


def _check_no_spilling() -> None:
    from distributed import get_worker

    if type(get_worker().data) is not dict:  # what else Dask keeps results in may write them to a file
        raise SpillsToDisk
