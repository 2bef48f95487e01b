"""Work of one job on many machines: folds and sums over records, spread over the workers of a Dask scheduler.

The same integers come out as in one process, whatever is where: a tally is a sum over ids and each
id belongs to one part; a sum over records is one of sums over parts of them. Where the scheduler cannot do
what it was asked, it is done here instead, and the log says why.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import ceil

import numpy as np
import structlog
from numpy.typing import NDArray

from clustering.curator import Records, Work
from clustering.fuzzy import BLOCK_POINTS, Rule, block_sums
from clustering.plan import Sample, Tally
from clustering.plans.noisy_fcm import scaled
from models import record as records
from models import report
from models.dataset import Dataset
from models.db import Database, new_id
from models.errors import Conflict
from models.round import Round
from models.sealing import Keyring
from sfumato.specs import MAX_SAMPLE_VALUES
from workers import remote
from workers.fingerprints import new_keys
from workers.fold import Folded, Part, fold
from workers.remote import PartCount, Share, VectorRange
from workers.scheduler import Scheduler, SchedulerAway

SPREAD_REPORTS = 1 << 22  # that a log holds, at least: fewer are folded here before anybody is asked
PARTS_A_WORKER = 1  # of the ids: each reads the whole log
SPREAD_VALUES = 1 << 21  # of a round's vectors, at least: a pass over fewer takes no longer than asking for it

log = structlog.get_logger(__name__)


def fold_round(database: Database, closed: Round, scheduler: Scheduler | None = None) -> Folded:
    """Fold the log of a closed round, a big one on the scheduler's workers where there is one."""
    if scheduler is not None and closed.n_received >= SPREAD_REPORTS:
        try:
            found = fold_spread(closed, scheduler)
        except SchedulerAway as away:
            log.warning("fold_not_spread", round_id=closed.id, cause=str(away))
        else:
            if found is not None:
                return found
    with database.reading() as session:
        return fold(
            closed.spec,
            lambda: (packed for _, packed in report.batches(session, closed.id)),
            n_expected=closed.n_received,
        )


def fold_spread(closed: Round, scheduler: Scheduler) -> Folded | None:
    """Fold on the scheduler's workers; None where only one process can say which vectors are the first.

    Raises SchedulerAway. Each worker reads the whole log and counts the ids of its part, which depends on the id alone:
    so of reports with one id the same one counts as in one process, the first in log order, and no
    worker needs to hear of what another one met.
    """
    n_workers = scheduler.n_workers()
    n_parts, keys = n_workers * PARTS_A_WORKER, new_keys()
    asked = [(closed.id, Part(number, n_parts, keys), closed.n_received) for number in range(n_parts)]
    found: list[PartCount] = scheduler.call(remote.count_part, asked)
    read = {(part.counted.n_broken, part.counted.n_bytes) for part in found}
    if len(read) != 1:
        raise SchedulerAway("its workers have read different logs")
    log.info("fold_spread", round_id=closed.id, n_workers=n_workers, n_parts=n_parts)
    answers = _merged([part.answers for part in found])
    if answers is None or any(part.n_left_out for part in found):
        return None
    n_malformed = sum(part.counted.n_malformed for part in found) + found[0].counted.n_broken
    return Folded(answers, sum(part.counted.n_repeated for part in found), n_malformed)


def _merged(parts: list[Tally | Sample]) -> Tally | Sample | None:
    """The sum; None where it is more vectors than a sample holds."""
    tallies = [part for part in parts if isinstance(part, Tally)]
    if tallies:
        total = tallies[0]
        for each in tallies[1:]:
            total = total + each
        return total
    values = [part.values for part in parts if isinstance(part, Sample)]
    return None if sum(each.size for each in values) > MAX_SAMPLE_VALUES else Sample(np.concatenate(values))


class SpreadPasses:
    """Passes of fuzzy c-means over a tallied round's vectors, on the scheduler's workers: `clustering.fuzzy.Passes`.

    Each worker reads the round's sample from the database and keeps its part of it; blocks come back in their order.

    Parameters
    ----------
    scheduler : Scheduler
    tallied : Round
        Of vectors.
    sample : Sample
        What was tallied, for passes here once the workers fail.
    """

    def __init__(self, scheduler: Scheduler, tallied: Round, sample: Sample) -> None:
        self._scheduler: Scheduler | None = scheduler
        self._round, self._sample = tallied, sample

    def __call__(self, centres: NDArray[np.float64], rule: Rule) -> NDArray[np.float64]:
        if self._scheduler is not None:
            try:
                return self._spread(self._scheduler, centres, rule)
            except SchedulerAway as away:
                log.warning("vectors_not_spread", round_id=self._round.id, cause=str(away))
                self._scheduler = None
        return block_sums(scaled(self._round.spec, self._sample), centres, rule)

    def _spread(self, scheduler: Scheduler, centres: NDArray[np.float64], rule: Rule) -> NDArray[np.float64]:
        n_parts, n_vectors = scheduler.n_workers(), self._sample.n_reports
        n_blocks = ceil(n_vectors / BLOCK_POINTS)
        cuts = [min(n_vectors, n_blocks * part // n_parts * BLOCK_POINTS) for part in range(n_parts + 1)]
        asked = [(VectorRange(self._round.id, *ends), centres, rule) for ends in pairwise(cuts)]
        return np.concatenate(scheduler.call(remote.vector_sums, asked))


def passes_over(tallied: Round, answers: Tally | Sample, scheduler: Scheduler | None) -> SpreadPasses | None:
    """Passes over a round's vectors on the scheduler's workers; None where they are few, or are none."""
    if scheduler is None or not isinstance(answers, Sample) or answers.values.size < SPREAD_VALUES:
        return None
    return SpreadPasses(scheduler, tallied, answers)


class SpreadRecords:
    """A dataset's records in parts, each in the memory of a Dask worker; here only where something asks for all.

    Parameters
    ----------
    scheduler : Scheduler
    dataset_id : str
    digest : str
        Of the records the job is about: `models.record.digest`.
    n_features, max_per_user : int
    n_parts : int
    load : callable
        Brings all of them here.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        dataset_id: str,
        digest: str,
        *,
        n_features: int,
        max_per_user: int,
        n_parts: int,
        load: Callable[[], NDArray[np.int32]],
    ) -> None:
        self.n_features, self.max_per_user = n_features, max_per_user
        self._scheduler: Scheduler | None = scheduler
        self._shares = [Share(dataset_id, digest, part, n_parts) for part in range(n_parts)]
        self._token = new_id("use")
        self._load = load
        self._points: NDArray[np.int32] | None = None

    def open(self) -> None:
        """Have the workers load their parts. Raises SchedulerAway."""
        if self._scheduler is not None:
            self._scheduler.call(remote.hold, [(self._token, share) for share in self._shares])

    @property
    def points(self) -> NDArray[np.int32]:
        """All of them, here. Raises Conflict where there are others by now."""
        if self._points is None:
            self._points = self._load()
        return self._points

    def total(self, work: Work) -> tuple[NDArray[np.int64], ...]:
        """What all records come to: on the workers, or here from the first time on that they fail."""
        if self._scheduler is not None:
            try:
                parts = self._scheduler.call(remote.add_up, [(self._token, share, work) for share in self._shares])
            except SchedulerAway as away:
                log.warning("records_not_spread", cause=str(away))
                self._scheduler = None
            else:
                return tuple(np.sum(arrays, axis=0, dtype=np.int64) for arrays in zip(*parts, strict=True))
        return work(self.points)

    def close(self) -> None:
        """Have the workers drop what they hold."""
        if self._scheduler is not None:
            self._scheduler.tell_all(remote.forget, self._token)


@contextmanager
def held_records(
    database: Database, dataset_id: str, keyring: Keyring, scheduler: Scheduler | None
) -> Iterator[Records | SpreadRecords]:
    """A dataset's records for a curator: here, or on the scheduler's workers where there is one.

    How many there are decides nothing of where they are, for that would show in the scheduler's log. They are
    loaded before this begins, so that nothing has been asked, or paid, where they cannot be.

    Raises
    ------
    RecordsKeyMissing, RecordsUnreadable
        As `models.record.load`.
    Conflict
        Later, of what asks for all of them here: there are others by then.
    """
    spread = None
    if scheduler is not None:
        try:
            spread = _spread(database, dataset_id, keyring, scheduler)
        except SchedulerAway as away:
            log.warning("records_not_spread", cause=str(away))
    if spread is None:
        with database.reading() as session:
            loaded = records.load(session, dataset_id, keyring)
        yield Records(loaded.points, loaded.max_per_user)
        return
    try:
        yield spread
    finally:
        spread.close()


def _spread(database: Database, dataset_id: str, keyring: Keyring, scheduler: Scheduler) -> SpreadRecords:
    if not scheduler.is_sealed:
        raise SchedulerAway("sums over records go to other machines under tls:// alone")
    n_workers = scheduler.n_workers()
    with database.reading() as session:
        dataset = session.get_one(Dataset, dataset_id)
        digest = records.digest(session, dataset_id)

    def load() -> NDArray[np.int32]:
        with database.reading() as session:
            if records.digest(session, dataset_id) != digest:
                raise Conflict("this dataset's records have changed since the job began")
            return records.load(session, dataset_id, keyring).points

    spread = SpreadRecords(
        scheduler,
        dataset_id,
        digest,
        n_features=len(dataset.features),
        max_per_user=dataset.max_records_per_user,
        n_parts=n_workers,
        load=load,
    )
    spread.open()
    return spread
