"""Execution of a claimed job: a local job up to its next round or its result, a job over records to its result.

A plan keeps no state between claims. Each claim starts the plan from the beginning and feeds it the stored tallies. It
aggregates the round that has closed since the last claim. If the plan then needs a new round, the round is opened and
the job waits for devices; otherwise the plan returns the model. Each write checks the fence of the claim, so a stale
worker writes nothing. `workers.central_job` executes jobs over records.
"""

from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from clustering import registry
from clustering.central import run as central_run
from clustering.profiles.reported import profile_reports
from clustering.rounds.law import checking_law
from clustering.rounds.outside import counting_outside
from clustering.rounds.plan import Collected, Plan, drive
from clustering.rounds.tally import read_aggregate
from clustering.series.pooling import pool
from connections.log_records import describe
from models.collection import releases, rounds
from models.database.engine import Database
from models.database.failures import is_database_unavailable
from models.encryption import Keyring, load_keyring
from models.errors import StaleFence, TooFewReports
from models.identity import tenants
from models.jobs import claims, lifecycle
from models.jobs.claims import Claim
from models.ledger import sources
from models.series import following, windows
from models.tables.datasets import Dataset, OutOfBounds, Trust
from models.tables.jobs import Job, JobState
from models.tables.rounds import Round, RoundState
from runtime.settings import settings
from sfumato.errors import InvalidSpec, SfumatoError
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.profiles.profile_round import profile_round
from sfumato.specs import Algorithm, Feature, Profile, RoundSpec, local_algorithm_from_wire, profile_from_wire
from sfumato.specs.attributes import Categorical
from workers import central_job
from workers.aggregation.aggregate import aggregate_round, aggregate_sealed_round
from workers.central_job import RunCentral
from workers.series import follow_series

if TYPE_CHECKING:
    from workers.distributed.dask_client import Scheduler

log = structlog.get_logger(__name__)

StartPlan = Callable[[Algorithm, tuple[Feature, ...], int, tuple[Categorical, ...]], Plan]


class ClaimOutcome(StrEnum):
    """The way in which a claim ended."""

    COLLECTING = "collecting"  # a round is open; the job waits for devices
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the job failed or expired
    CANCELED = "canceled"  # before a round was opened or a query was charged
    STALE = "stale"  # another worker claimed the job; nothing was written


class _Suspended(Exception):
    """The plan needs a round that devices have not answered yet."""

    def __init__(self, outcome: ClaimOutcome) -> None:
        self.outcome = outcome


class _RoundExpired(TooFewReports):
    """A round reached its end time with too few reports."""


def own_keyring() -> Keyring:
    """Return the keys of this process's settings. Raise RecordsKeyMissing if there are none."""
    return load_keyring(settings())


def find_scheduler() -> "Scheduler | None":
    """Return the Dask scheduler of this process's settings, or None. Without one, Dask code is not imported."""
    if settings().dask_scheduler is None:
        return None
    from workers.distributed.dask_client import get_scheduler

    return get_scheduler()


def run(
    database: Database,
    claim: Claim,
    *,
    start: StartPlan = registry.start,
    run_central: RunCentral = central_run.run,
    keyring: Callable[[], Keyring] = own_keyring,
) -> ClaimOutcome:
    """Execute a claimed job up to its next open round or its end.

    Parameters
    ----------
    database : Database
    claim : Claim
        The worker's claim on the job.
    start : callable
        Starts the plan of a local algorithm.
    run_central : callable
        Runs a central algorithm.
    keyring : callable
        Returns the keys that decrypt records, and the private keys of shuffled rounds.

    Raises
    ------
    SQLAlchemyError
        The database is unavailable. The job is unchanged.
    MemoryError
        The job needs more memory than is available.
    """
    try:
        with database.reading() as session:
            job, dataset = _load(session, claim)
            named = rounds.list_by_ids(session, job.dataset_id, job.round_ids, tallies=True) if job.round_ids else []
        if dataset.trust == Trust.CENTRAL:
            document = central_job.compute(database, claim, job, dataset, keyring(), run_central, find_scheduler())
            if job.collection_id is not None:
                _follow_records(database, job, document["model"])
            return _publish(database, claim, document)
        if named:
            pools = local_algorithm_from_wire(job.algorithm).definition.pools
            source: _Source = _EarlierRounds(database, claim, named, keyring, pools=pools)
        else:
            source = _OwnRounds(database, claim, job, keyring)
        return _collect(database, claim, job, dataset, source, start)
    except central_job.Canceled:
        return ClaimOutcome.CANCELED
    except StaleFence:
        return ClaimOutcome.STALE
    except MemoryError:
        raise
    except _RoundExpired as error:
        return _fail(database, claim, JobState.EXPIRED, error.code, str(error))
    except SfumatoError as error:
        return _fail(database, claim, JobState.FAILED, error.code, str(error))
    except Exception as error:
        if is_database_unavailable(error):
            raise
        log.error("job_crashed", job_id=claim.job_id, **describe(error))
        detail = "an unexpected error: the log of the worker has it with the id of this job; report it"
        return _fail(database, claim, JobState.FAILED, "internal_error", detail)


def aggregate_without_job(database: Database, round_id: str, *, keyring: Callable[[], Keyring] = own_keyring) -> None:
    """Store the tally of a closed round that no job aggregates, and scrub its reports by the retention rule.

    Do nothing if the round is not closed or a job has aggregated it.
    """
    with database.reading() as session:
        closed = session.get(Round, round_id)
    if closed is None or closed.state != RoundState.CLOSED:
        return
    tally, n_reports = _aggregate(database, closed, keyring)
    database.run(
        "store_tally", lambda session: rounds.store_tally(session, round_id, tally, n_reports, now=database.clock())
    )


def _load(session: Session, claim: Claim) -> tuple[Job, Dataset]:
    query = select(Job, Dataset).join(Dataset, Dataset.id == Job.dataset_id).where(Job.id == claim.job_id)
    job, dataset = session.execute(query).one()
    return job, dataset


def _collect(
    database: Database, claim: Claim, job: Job, dataset: Dataset, source: "_Source", start: StartPlan
) -> ClaimOutcome:
    is_profile = job.algorithm["type"] == Profile.type
    try:
        if is_profile:
            released = _profile(database, job, dataset, source)
        else:
            model = _cluster(job, dataset, source, start)
            released = {"model": model.to_wire()}
    except _Suspended as suspended:
        return suspended.outcome
    source.finish()
    if not is_profile and job.collection_id is not None:
        _follow(database, claim.job_id, model)
    document = {
        **released,
        "algorithm": job.algorithm,
        "epsilon_nano": rounds.cost_nano(source.used),
        "rounds": [
            {"id": r.id, "index": r.index, "n_reports": r.n_reports, "epsilon_nano": r.epsilon_nano}
            for r in source.used
        ],
    }
    return _publish(database, claim, document)


def _cluster(job: Job, dataset: Dataset, source: "_Source", start: StartPlan) -> ClusterModel:
    """Run the plan of the job's algorithm. Raise _Suspended if it needs a round without a tally."""
    formed = dataset.select(job.features).attributes
    plan = start(local_algorithm_from_wire(job.algorithm), dataset.features, source.expected_reports, formed)
    plan = checking_law(counting_outside(plan, opens_counting=dataset.out_of_bounds == OutOfBounds.COUNT))
    return drive(plan, source.collect)


def _profile(database: Database, job: Job, dataset: Dataset, source: "_Source") -> dict[str, Any]:
    """Return the profile of released clusters, with the clusters. Raise _Suspended if its round has no tally."""
    params = profile_from_wire(job.algorithm)
    of = central_job.load_clusters(database, params)
    counts_outside = dataset.out_of_bounds == OutOfBounds.COUNT
    spec = profile_round(params, of.model, dataset.describe(params.attributes), counts_outside=counts_outside)
    profile = profile_reports(params.of, source.collect(spec))
    return {"model": of.wire, "profile": profile.to_wire()}


def _follow(database: Database, job_id: str, model: ClusterModel | None = None) -> None:
    """Follow the windows of the job's series. An error does not end the job: the next window follows this one, too."""
    try:
        follow_series(database, job_id, model)
    except MemoryError:
        raise
    except Exception as error:
        if is_database_unavailable(error):
            raise
        log.error("window_not_followed", job_id=job_id, **describe(error))


def _follow_records(database: Database, job: Job, wire: dict[str, Any]) -> None:
    """Keep the counts of a window over records, and follow the window."""
    model = model_from_wire(wire)
    assert model.label_map is not None  # noqa: S101 - for the type checker: a series over records has label maps
    n_cells = model.label_map.size
    database.run("keep_counts", lambda session: following.keep_counts(session, job.id, n_cells))
    _follow(database, job.id, model)


def _publish(database: Database, claim: Claim, document: dict[str, Any]) -> ClaimOutcome:
    def publish(session: Session) -> None:
        lifecycle.succeed(session, claim, document, software_version=version("sfumato-server"), now=database.clock())

    database.run("publish_result", publish)
    return ClaimOutcome.SUCCEEDED


class _Source(Protocol):
    """Source of the tallies that a plan needs."""

    used: list[Round]
    expected_reports: int

    def collect(self, spec: RoundSpec) -> Collected:
        """Return the tally of the plan's next round."""

    def finish(self) -> None:
        """Check the rounds after the plan has returned."""


class _OwnRounds:
    """Rounds that the job opens itself, one for each specification of its plan."""

    def __init__(self, database: Database, claim: Claim, job: Job, keyring: Callable[[], Keyring]) -> None:
        self._database, self._claim, self._job, self._keyring = database, claim, job, keyring
        self.expected_reports = job.target_reports
        self.used: list[Round] = []
        with database.reading() as session:
            self._stored = rounds.list_for_job(session, job.id, tallies=True)
            self._slot = windows.find_slot(session, job)

    def collect(self, spec: RoundSpec) -> Collected:
        """Return the tally of the job's next round. If there is no such round, open it and raise _Suspended."""
        index = len(self.used)
        if index == len(self._stored):
            raise _Suspended(self._open(spec))
        tallied = _ensure_tallied(self._database, self._claim, self._stored[index], self._keyring)
        self.used.append(tallied)
        return _read_tally(tallied)

    def _open(self, spec: RoundSpec) -> ClaimOutcome:
        """Charge the cost of the round, publish it, and make the job wait for devices, in one transaction."""
        database, claim = self._database, self._claim

        def open_round(session: Session) -> Round | None:
            ceiling = tenants.limits(session, self._job.tenant_id, settings()).source_ceiling
            if ceiling != sources.UNLIMITED:
                sources.lock_source(session, self._job.dataset_id)  # before the job, see `models.database.engine`
            job = claims.load_claimed(session, claim)
            if job.cancel_requested:  # charge nothing more
                lifecycle.cancel_claimed(session, claim, now=database.clock())
                return None
            dataset = session.get_one(Dataset, job.dataset_id)
            opened = rounds.open_for_job(
                session,
                dataset,
                spec,
                job.collection_target,
                job_id=job.id,
                actor=job.created_by,
                now=database.clock(),
                slot=self._slot,
                ceiling=ceiling,
                keyring=self._keyring,
            )
            lifecycle.wait_for_reports(session, claim, now=database.clock())
            return opened

        opened = database.run("open_round", open_round)
        if opened is None:
            return ClaimOutcome.CANCELED
        log.info("round_opened", job_id=claim.job_id, round_id=opened.id, index=opened.index)
        return ClaimOutcome.COLLECTING

    def finish(self) -> None:
        """Do nothing, because the plan used all its rounds."""


class _EarlierRounds:
    """Rounds collected before, in the order of the job's `round_ids`. They cost nothing.

    With `pools` the tallies of all rounds are added, because the plan has one round and they have one grid.
    """

    def __init__(
        self, database: Database, claim: Claim, named: list[Round], keyring: Callable[[], Keyring], *, pools: bool
    ) -> None:
        self._pools = pools
        self._rounds = [_ensure_tallied(database, claim, each, keyring) for each in named]
        self.expected_reports = max(1, sum(r.n_reports or 0 for r in self._rounds))
        self.used: list[Round] = []

    def collect(self, spec: RoundSpec) -> Collected:
        """Return the tally of the next round. Raise InvalidSpec if there is none or its encoding differs."""
        if len(self.used) == len(self._rounds):
            raise InvalidSpec(f"round_ids names {len(self._rounds)} rounds, but this algorithm needs more")
        earlier = self._rounds[len(self.used)]
        published = earlier.spec.encoding.type
        if published != spec.encoding.type:
            raise InvalidSpec(
                f"round {earlier.id} has the encoding {published}, but this algorithm needs {spec.encoding.type}"
            )
        if self._pools and len(self._rounds) > 1:
            self.used += self._rounds
            return pool([_read_tally(each) for each in self._rounds])
        self.used.append(earlier)
        return _read_tally(earlier)

    def finish(self) -> None:
        """Raise InvalidSpec if the plan did not use all rounds, because the result would ignore reports."""
        if len(self.used) < len(self._rounds):
            raise InvalidSpec(f"round_ids names {len(self._rounds)} rounds, but this algorithm uses {len(self.used)}")


def _read_tally(tallied: Round) -> Collected:
    assert tallied.tally is not None  # noqa: S101 - for the type checker: `_ensure_tallied` loaded it
    tally = read_aggregate(tallied.spec, tallied.tally)
    map_blocks = None
    if (scheduler := find_scheduler()) is not None:
        from workers.distributed import distribute

        map_blocks = distribute.distribute_vectors(tallied, tally, scheduler)
    return Collected(tallied.spec, tally, map_blocks)


def _ensure_tallied(database: Database, claim: Claim, found: Round, keyring: Callable[[], Keyring]) -> Round:
    """Return a closed round with its tally. Aggregate it now if that was not done before.

    The tally is stored and the reports are scrubbed before the number of reports is checked. A round with too few
    reports is therefore scrubbed too.

    Raises
    ------
    TooFewReports
        The round has fewer distinct reports than its minimum.
    """
    if found.state != RoundState.TALLIED:
        round_id = found.id
        tally, n_reports = _aggregate(database, found, keyring)

        def store(session: Session) -> Round:
            claims.load_claimed(session, claim)
            stored = rounds.store_tally(session, round_id, tally, n_reports, now=database.clock())
            session.refresh(stored, ["tally"])  # another worker may have stored the tally first
            return stored

        found = database.run("store_tally", store)
    n_reports = found.n_reports or 0
    if n_reports < found.min_reports:
        has_expired = found.job_id == claim.job_id and (found.closed_at or 0) >= found.closes_at
        raise (_RoundExpired if has_expired else TooFewReports)(n_reports=n_reports, min_reports=found.min_reports)
    return found


def _aggregate(database: Database, closed: Round, keyring: Callable[[], Keyring]) -> tuple[bytes, int]:
    """Aggregate a round and return its packed tally and its number of reports.

    A large round is aggregated on Dask workers if a scheduler is configured. A shuffled round is opened here, because
    its private key leaves no worker.
    """
    aggregation = None
    if closed.release is not None:
        with database.reading() as session:
            private_key = releases.open_key(session, closed.id, keyring())
        aggregation = aggregate_sealed_round(database, closed, private_key)
    elif (scheduler := find_scheduler()) is not None:
        from workers.distributed import distribute

        aggregation = distribute.aggregate_round(closed, scheduler)
    if aggregation is None:
        aggregation = aggregate_round(database, closed)
    log.info(
        "round_aggregated",
        round_id=closed.id,
        n_reports=aggregation.tally.n_reports,
        n_repeated=aggregation.n_repeated,
        n_malformed=aggregation.n_malformed,
        n_left_out=aggregation.n_left_out,
    )
    return aggregation.tally.to_bytes(), aggregation.tally.n_reports


def _fail(database: Database, claim: Claim, state: JobState, code: str, detail: str) -> ClaimOutcome:
    try:
        database.run(
            "fail_job",
            lambda session: lifecycle.fail(session, claim, state, code=code, detail=detail, now=database.clock()),
        )
    except StaleFence:
        return ClaimOutcome.STALE
    log.info("job_failed", job_id=claim.job_id, state=state.value, code=code)
    _follow(database, claim.job_id)  # later windows may have waited for the end of this one
    return ClaimOutcome.FAILED
