"""Takes a job as far as it goes: a local one to its next round or its result, a central one to its result.

A plan keeps no state. Every claim starts it afresh, answers it with the tallies that are
stored, folds the round that has closed since, and ends where the plan wants a round that
is not there yet (it is opened, and the job waits for its devices) or with the model.
Every write names the fence the claim holds, so a worker that was overtaken writes nothing.
What a central job does instead is in `workers.central`.
"""

from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import version
from typing import Any, Protocol

import structlog
from sqlalchemy import select
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from clustering import registry
from clustering.central import run as central_run
from clustering.plan import Collected, Plan, drive, read_answers
from models import job as jobs
from models import round as rounds
from models.dataset import Dataset, Trust
from models.db import Database
from models.errors import StaleFence, TooFewReports
from models.job import Claim, Job, JobState
from models.round import Round, RoundState
from models.sealing import Keyring, keyring_of
from models.settings import settings
from sfumato.accounting import cost
from sfumato.errors import InvalidSpec, SfumatoError
from sfumato.specs import Algorithm, Feature, RoundSpec, local_algorithm_from_wire
from workers import central
from workers.central import RunCentral
from workers.process import describe
from workers.scheduler import own_scheduler
from workers.spread import fold_round, passes_over

log = structlog.get_logger(__name__)

StartPlan = Callable[[Algorithm, tuple[Feature, ...], int], Plan]


class Outcome(StrEnum):
    """How a claim ended."""

    COLLECTING = "collecting"  # a round is open, the job waits for devices
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # or expired
    CANCELED = "canceled"  # on the way to opening a round, or to asking a question
    STALE = "stale"  # somebody else holds the job; nothing was written


class _Suspended(Exception):
    """The plan wants a round that devices have not answered yet."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class _OutOfTime(TooFewReports):
    """A round's time ran out with too few reports."""


def own_keyring() -> Keyring:
    """The keys of this process's settings. Raises RecordsKeyMissing."""
    return keyring_of(settings())


def run(
    database: Database,
    held: Claim,
    *,
    start: StartPlan = registry.start,
    run_central: RunCentral = central_run.run,
    keyring: Callable[[], Keyring] = own_keyring,
) -> Outcome:
    """Take a claimed job as far as it goes.

    Parameters
    ----------
    database : Database
    held : Claim
        From `models.job.claim`.
    start : callable
        Which plan runs which algorithm; tests bring their own.
    run_central : callable
        Runs central algorithms; tests bring their own.
    keyring : callable
        The keys that open records; asked where there are any.

    Raises
    ------
    OperationalError, InterfaceError
        The database is away: the job is as it was.
    MemoryError
        The job needs more memory than there is.
    """
    try:
        with database.reading() as session:
            job, dataset = _of(session, held)
            named = rounds.by_ids(session, job.dataset_id, job.round_ids, tallies=True) if job.round_ids else []
        if dataset.trust == Trust.CENTRAL:
            document = central.compute(database, held, job, dataset.features, keyring(), run_central, own_scheduler())
            return _publish(database, held, document)
        source = _EarlierRounds(database, held, named) if named else _OwnRounds(database, held, job)
        return _collect(database, held, job, dataset.features, source, start)
    except central.Canceled:
        return Outcome.CANCELED
    except (StaleFence, MemoryError, OperationalError, InterfaceError) as error:
        if isinstance(error, StaleFence):
            return Outcome.STALE
        raise
    except _OutOfTime as error:
        return _fail(database, held, JobState.EXPIRED, error.code, str(error))
    except SfumatoError as error:
        return _fail(database, held, JobState.FAILED, error.code, str(error))
    except Exception as error:
        log.error("job_crashed", job_id=held.job_id, **describe(error))
        detail = "an unexpected error; the worker's log has it under this job's id"
        return _fail(database, held, JobState.FAILED, "internal_error", detail)


def fold_alone(database: Database, round_id: str) -> None:
    """Tally a closed round that no job will fold, and scrub its reports by the retention rule.

    A round that is not closed, or that a job has folded meanwhile, stays as it is.
    """
    with database.reading() as session:
        closed = session.get(Round, round_id)
    if closed is None or closed.state != RoundState.CLOSED:
        return
    tally, n_reports = _fold(database, closed)
    database.run(
        "store_tally", lambda session: rounds.store_tally(session, round_id, tally, n_reports, now=database.clock())
    )


def _of(session: Session, held: Claim) -> tuple[Job, Dataset]:
    query = select(Job, Dataset).join(Dataset, Dataset.id == Job.dataset_id).where(Job.id == held.job_id)
    job, dataset = session.execute(query).one()
    return job, dataset


def _collect(
    database: Database, held: Claim, job: Job, features: tuple[Feature, ...], source: "_Source", start: StartPlan
) -> Outcome:
    plan = start(local_algorithm_from_wire(job.algorithm), features, source.expected_reports)
    try:
        model = drive(plan, source.collect)
    except _Suspended as suspended:
        return suspended.outcome
    source.finish()
    document = {
        "model": model.to_wire(),
        "algorithm": job.algorithm,
        "epsilon_nano": _cost(source.used),
        "rounds": [
            {"id": r.id, "index": r.index, "n_reports": r.n_reports, "epsilon_nano": r.epsilon_nano}
            for r in source.used
        ],
    }
    return _publish(database, held, document)


def _publish(database: Database, held: Claim, document: dict[str, Any]) -> Outcome:
    def publish(session: Session) -> None:
        jobs.succeed(session, held, document, software_version=version("sfumato-server"), now=database.clock())

    database.run("publish_result", publish)
    return Outcome.SUCCEEDED


def _cost(used: list[Round]) -> int:
    """What the rounds cost a device: within a collection by its draw, over collections in sequence."""
    return sum(
        cost(((r.spec.draw.lo, r.spec.draw.hi), r.epsilon_nano) for r in used if r.collection_id == collection_id)
        for collection_id in {r.collection_id for r in used}
    )


class _Source(Protocol):
    """Where a plan's answers come from."""

    used: list[Round]
    expected_reports: int

    def collect(self, wanted: RoundSpec) -> Collected:
        """The answer to the plan's next round."""

    def finish(self) -> None:
        """The plan has returned."""


class _OwnRounds:
    """The rounds the job opens itself, one for each that its plan wants."""

    def __init__(self, database: Database, held: Claim, job: Job) -> None:
        self._database, self._held, self._job = database, held, job
        self.expected_reports = job.target_reports
        self.used: list[Round] = []
        with database.reading() as session:
            self._stored = rounds.of_job(session, job.id, tallies=True)

    def collect(self, wanted: RoundSpec) -> Collected:
        """The stored answer; where there is none, opens the round and raises _Suspended."""
        index = len(self.used)
        if index == len(self._stored):
            raise _Suspended(self._open(wanted))
        answered = _tallied(self._database, self._held, self._stored[index])
        self.used.append(answered)
        return _collected(answered)

    def _open(self, wanted: RoundSpec) -> Outcome:
        """Post the round's cost, publish it, let the job wait: one transaction."""
        database, held = self._database, self._held

        def open_round(session: Session) -> Round | None:
            job = jobs.held_job(session, held)
            if job.cancel_requested:  # nothing more is spent on it
                jobs.let_go(session, held, now=database.clock())
                return None
            dataset = session.get_one(Dataset, job.dataset_id)
            opened = rounds.open_for_job(
                session, dataset, wanted, job.collect, job_id=job.id, actor=job.created_by, now=database.clock()
            )
            jobs.suspend(session, held, now=database.clock())
            return opened

        opened = database.run("open_round", open_round)
        if opened is None:
            return Outcome.CANCELED
        log.info("round_opened", job_id=held.job_id, round_id=opened.id, index=opened.index)
        return Outcome.COLLECTING

    def finish(self) -> None:
        """Nothing to check: the rounds are the plan's own."""


class _EarlierRounds:
    """Rounds collected before, in the order the job names them; opens and spends nothing."""

    def __init__(self, database: Database, held: Claim, named: list[Round]) -> None:
        self._rounds = [_tallied(database, held, each) for each in named]
        self.expected_reports = max(1, sum(r.n_reports or 0 for r in self._rounds))
        self.used: list[Round] = []

    def collect(self, wanted: RoundSpec) -> Collected:
        """The next round; raises InvalidSpec where there is none or it is of another kind."""
        if len(self.used) == len(self._rounds):
            raise InvalidSpec(f"round_ids names {len(self._rounds)} rounds, this algorithm needs more")
        earlier = self._rounds[len(self.used)]
        published = earlier.spec.encoding.type
        if published != wanted.encoding.type:
            raise InvalidSpec(
                f"{earlier.id} was collected through {published}, this algorithm needs {wanted.encoding.type} there"
            )
        self.used.append(earlier)
        return _collected(earlier)

    def finish(self) -> None:
        """Raise InvalidSpec where rounds are left: the result would be of less than was asked for."""
        if len(self.used) < len(self._rounds):
            raise InvalidSpec(f"round_ids names {len(self._rounds)} rounds, this algorithm uses {len(self.used)}")


def _collected(answered: Round) -> Collected:
    assert answered.tally is not None  # noqa: S101 - for the type checker: `_tallied` loaded it
    answers = read_answers(answered.spec, answered.tally)
    return Collected(answered.spec, answers, passes_over(answered, answers, own_scheduler()))


def _tallied(database: Database, held: Claim, found: Round) -> Round:
    """A closed round, read with its tally, folded now where that was not done yet.

    The tally is stored, and its reports scrubbed, before anything else is asked of it, so
    that a round with too few reports keeps none of them either.

    Raises
    ------
    TooFewReports
        Fewer distinct reports than the round's minimum.
    """
    if found.state != RoundState.TALLIED:
        round_id = found.id
        tally, n_reports = _fold(database, found)

        def store(session: Session) -> Round:
            jobs.held_job(session, held)
            stored = rounds.store_tally(session, round_id, tally, n_reports, now=database.clock())
            session.refresh(stored, ["tally"])  # the stored one: another worker may have come first
            return stored

        found = database.run("store_tally", store)
    n_reports = found.n_reports or 0
    if n_reports < found.min_reports:
        out_of_time = found.job_id == held.job_id and (found.closed_at or 0) >= found.closes_at
        raise (_OutOfTime if out_of_time else TooFewReports)(n_reports=n_reports, min_reports=found.min_reports)
    return found


def _fold(database: Database, closed: Round) -> tuple[bytes, int]:
    folded = fold_round(database, closed, own_scheduler())
    log.info(
        "round_folded",
        round_id=closed.id,
        n_reports=folded.tally.n_reports,
        n_repeated=folded.n_repeated,
        n_malformed=folded.n_malformed,
        n_left_out=folded.n_left_out,
    )
    return folded.tally.to_bytes(), folded.tally.n_reports


def _fail(database: Database, held: Claim, state: JobState, code: str, detail: str) -> Outcome:
    try:
        database.run(
            "fail_job",
            lambda session: jobs.fail(session, held, state, code=code, detail=detail, now=database.clock()),
        )
    except StaleFence:
        return Outcome.STALE
    log.info("job_failed", job_id=held.job_id, state=state.value, code=code)
    return Outcome.FAILED
