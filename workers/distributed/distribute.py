"""Distribution of large aggregations, vector passes and sums over records over the workers of a Dask scheduler.

The results equal those of a single process. A tally is a sum over ids, and each id belongs to one part. A sum over
records is the sum over its parts. If the scheduler fails, the log has the cause, and the caller or this module computes
the result locally.
"""

from collections.abc import Callable
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from clustering.central.queries import RecordSum
from clustering.centroids.fuzzy_cmeans import BLOCK_POINTS
from clustering.centroids.noisy_fcm import scaled
from clustering.rounds.tally import Sample, Tally
from models.database.engine import Database
from models.database.types import new_id
from models.encryption import Keyring
from models.errors import Conflict
from models.records import records
from models.tables.datasets import Dataset
from models.tables.rounds import Round
from sfumato.specs import MAX_SAMPLE_VALUES
from workers.aggregation.aggregate import Aggregation, Part
from workers.aggregation.duplicate_filter import new_keys
from workers.distributed import dask_tasks
from workers.distributed.dask_client import Scheduler, SchedulerUnavailable
from workers.distributed.dask_tasks import PartCount, RecordPart, VectorRange

MIN_REPORTS = 1 << 22  # smaller logs are aggregated locally
PARTS_PER_WORKER = 1  # parts of the ids; for each part, a worker reads the whole log
MIN_VALUES = 1 << 21  # coordinates of a sample; a local pass over fewer is as fast as the calls

log = structlog.get_logger(__name__)


def aggregate_round(closed: Round, scheduler: Scheduler) -> Aggregation | None:
    """Aggregate a large round on the scheduler's workers.

    Return None if the caller must aggregate locally: the round is small, the scheduler is unavailable, or the round has
    more vectors than a sample.
    """
    if closed.n_received < MIN_REPORTS:
        return None
    try:
        return aggregate_on_workers(closed, scheduler)
    except SchedulerUnavailable as unavailable:
        log.warning("aggregation_not_distributed", round_id=closed.id, cause=str(unavailable))
        return None


def aggregate_on_workers(closed: Round, scheduler: Scheduler) -> Aggregation | None:
    """Aggregate a round on the scheduler's workers. Return None if it has more vectors than a sample.

    Each worker reads the whole log and counts the ids of its part. All reports with one id are in the same part, so the
    first one counts, as in a single process, and the workers do not communicate.

    Raises
    ------
    SchedulerUnavailable
    """
    n_workers = scheduler.count_workers()
    n_parts, keys = n_workers * PARTS_PER_WORKER, new_keys()
    arguments = [(closed.id, Part(number, n_parts, keys), closed.n_received) for number in range(n_parts)]
    parts: list[PartCount] = scheduler.call(dask_tasks.count_part, arguments)
    if len({(part.counts.n_broken, part.counts.n_bytes) for part in parts}) != 1:
        raise SchedulerUnavailable("its workers have read different logs")
    log.info("aggregation_distributed", round_id=closed.id, n_workers=n_workers, n_parts=n_parts)
    tally = _merge([part.tally for part in parts])
    if tally is None or any(part.n_left_out for part in parts):
        return None
    n_malformed = sum(part.counts.n_malformed for part in parts) + parts[0].counts.n_broken
    return Aggregation(tally, sum(part.counts.n_repeated for part in parts), n_malformed)


def _merge(parts: list[Tally | Sample]) -> Tally | Sample | None:
    """Return the sum of the tallies or the union of the samples, or None if it exceeds a sample's capacity."""
    tallies = [part for part in parts if isinstance(part, Tally)]
    if tallies:
        total = tallies[0]
        for each in tallies[1:]:
            total = total + each
        return total
    values = [part.values for part in parts if isinstance(part, Sample)]
    return None if sum(each.size for each in values) > MAX_SAMPLE_VALUES else Sample(np.concatenate(values))


class DistributedVectors:
    """A round's vectors, on which the scheduler's workers compute.

    Implements `clustering.rounds.plan.MapBlocks`. Each worker reads the sample from the database and keeps its
    part. The results come back in the order of the blocks.

    Parameters
    ----------
    scheduler : Scheduler
    tallied : Round
        The aggregated round.
    sample : Sample
        The vectors of the round, for local passes after the workers failed.
    """

    def __init__(self, scheduler: Scheduler, tallied: Round, sample: Sample) -> None:
        self._scheduler: Scheduler | None = scheduler
        self._round, self._sample = tallied, sample

    def __call__(self, function: Callable[..., NDArray[np.float64]], *arguments: Any) -> NDArray[np.float64]:
        if self._scheduler is not None:
            try:
                return self._call_workers(self._scheduler, function, arguments)
            except SchedulerUnavailable as unavailable:
                log.warning("vectors_not_distributed", round_id=self._round.id, cause=str(unavailable))
                self._scheduler = None
        return function(scaled(self._round.spec, self._sample), *arguments)

    def _call_workers(
        self, scheduler: Scheduler, function: Callable[..., NDArray[np.float64]], arguments: tuple[Any, ...]
    ) -> NDArray[np.float64]:
        n_parts, n_vectors = scheduler.count_workers(), self._sample.n_reports
        n_blocks = ceil(n_vectors / BLOCK_POINTS)
        cuts = [min(n_vectors, n_blocks * part // n_parts * BLOCK_POINTS) for part in range(n_parts + 1)]
        calls = [(VectorRange(self._round.id, *ends), function, *arguments) for ends in pairwise(cuts)]
        return np.concatenate(scheduler.call(dask_tasks.map_vectors, calls))


def distribute_vectors(tallied: Round, tally: Tally | Sample, scheduler: Scheduler) -> DistributedVectors | None:
    """Return a round's vectors on the scheduler's workers, or None if it has few or no vectors."""
    if not isinstance(tally, Sample) or tally.values.size < MIN_VALUES:
        return None
    return DistributedVectors(scheduler, tallied, tally)


class DistributedRecords:
    """The records of a dataset, divided among the Dask workers' memories.

    Implements the record source of a curator.

    Parameters
    ----------
    scheduler : Scheduler
    dataset_id : str
    digest : str
        Version of the records: `models.records.records.digest`.
    n_features, max_per_user : int
    n_parts : int
    load : callable
        Loads all records into this process.
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
        self._parts = [RecordPart(dataset_id, digest, part, n_parts) for part in range(n_parts)]
        self._token = new_id("use")
        self._load = load
        self._points: NDArray[np.int32] | None = None

    def open(self) -> None:
        """Load the parts on the workers.

        Raises
        ------
        SchedulerUnavailable
        """
        if self._scheduler is not None:
            self._scheduler.call(dask_tasks.load_records, [(self._token, part) for part in self._parts])

    @property
    def is_local(self) -> bool:
        """Return whether sums are computed in this process, because the workers failed once."""
        return self._scheduler is None

    @property
    def points(self) -> NDArray[np.int32]:
        """Return all records, loaded into this process. Raise Conflict if they changed since the job began."""
        if self._points is None:
            self._points = self._load()
        return self._points

    def total(self, work: RecordSum) -> tuple[NDArray[np.int64], ...]:
        """Return the sums over all records: from the workers, or computed here after the workers failed once."""
        if self._scheduler is not None:
            try:
                parts = self._scheduler.call(
                    dask_tasks.sum_records, [(self._token, part, work) for part in self._parts]
                )
            except SchedulerUnavailable as unavailable:
                log.warning("records_not_distributed", cause=str(unavailable))
                self._scheduler = None
            else:
                return tuple(np.sum(arrays, axis=0, dtype=np.int64) for arrays in zip(*parts, strict=True))
        return work(self.points)

    def close(self) -> None:
        """Drop the records from the workers' memory."""
        if self._scheduler is not None:
            self._scheduler.call_all(dask_tasks.forget_records, self._token)


def open_records(
    database: Database, dataset_id: str, keyring: Keyring, scheduler: Scheduler
) -> DistributedRecords | None:
    """Load a dataset's records on the scheduler's workers. Return None if the caller must load them locally.

    The number of records does not influence this choice, because the scheduler's log would reveal it.
    """
    try:
        return _open_records(database, dataset_id, keyring, scheduler)
    except SchedulerUnavailable as unavailable:
        log.warning("records_not_distributed", cause=str(unavailable))
        return None


def _open_records(database: Database, dataset_id: str, keyring: Keyring, scheduler: Scheduler) -> DistributedRecords:
    if not scheduler.is_confidential:
        raise SchedulerUnavailable("sums over records on other machines require tls://")
    n_workers = scheduler.count_workers()
    with database.reading() as session:
        dataset = session.get_one(Dataset, dataset_id)
        digest = records.digest(session, dataset_id)

    def load() -> NDArray[np.int32]:
        with database.reading() as session:
            if records.digest(session, dataset_id) != digest:
                raise Conflict("this dataset's records have changed since the job began")
            return records.load(session, dataset_id, keyring).points

    distributed = DistributedRecords(
        scheduler,
        dataset_id,
        digest,
        n_features=dataset.n_columns,
        max_per_user=dataset.max_records_per_user,
        n_parts=n_workers,
        load=load,
    )
    distributed.open()
    return distributed
