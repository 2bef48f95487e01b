"""Check the ledger entries of jobs: all used budget is charged, and the rest is released.

Central and local jobs are submitted, claimed, worked on, lost, failed and cancelled at random, with the workers'
functions. After every step, the reservation of a job must be its declared budget minus its charges, or nothing at its
end. Therefore, a job that fails before its first query releases everything, and a later failure keeps the charges.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from audit.checks.check import Check, Finding, Setting
from audit.ledger.accounting import ChargedRound, largest_cost, list_critical_draws
from audit.ledger.database import roll_back, temporary_database
from clustering.central.queries import Query
from models import datasets
from models.collection import rounds
from models.database.engine import Database
from models.database.types import SECOND
from models.errors import BudgetExhausted, Conflict, StaleFence
from models.identity import keys, tenants
from models.identity.caller import Caller
from models.jobs import claims, curator_answers, lifecycle
from models.jobs.claims import Claim
from models.jobs.curator_answers import ChargedQuery
from models.ledger import ledger
from models.ledger.amounts import Amounts, Balance
from models.tables.datasets import Dataset, Trust
from models.tables.identity import Scope
from models.tables.jobs import Job, JobState
from models.tables.rounds import CollectionTarget
from sfumato import mechanisms
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.entropy import Entropy, below
from sfumato.specs import Feature, GridEncoding, Participation, RoundSpec
from workers.central_job import Canceled, JobJournal

N_STEPS = 1000
STEPS_PER_WALK = 60
STEPS_PER_VERIFICATION = 20  # steps between verifications of the chains
MAX_ATTEMPTS = 4
LEASE = 20 * SECOND

FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
GRANTED = Amounts(1000 * NANO, ATTO // 2000)
DELTA = 1_000_000_000_000  # atto-delta of one query
CLAIM = "the charges of a job equal its used budget, and its end releases the rest"


def _charge(database: Database, claim: Claim, index: int, query: Query) -> None:
    JobJournal(database, claim).charge(index, query)


def _keep(database: Database, claim: Claim, index: int) -> None:
    JobJournal(database, claim).keep(index, np.arange(3))


def _fail(database: Database, claim: Claim) -> None:
    with database.transaction() as session:
        lifecycle.fail(session, claim, JobState.FAILED, code="audit", detail="", now=database.clock())


@dataclass(frozen=True, slots=True)
class WorkerActions:
    """The actions of a worker for a job over records; by default those of the service."""

    charge: Callable[[Database, Claim, int, Query], None] = _charge
    keep: Callable[[Database, Claim, int], None] = _keep
    fail: Callable[[Database, Claim], None] = _fail


@dataclass
class TrackedJob:
    """A job and its expected state, independent of the ledger."""

    id: str
    dataset_id: str
    is_central: bool
    declared: Amounts
    cost: Amounts  # cost of a query; equal for all queries of the job
    queries: list[Query] = field(default_factory=list)  # charged queries
    n_kept: int = 0
    rounds_opened: list[ChargedRound] = field(default_factory=list)
    claim: Claim | None = None

    @property
    def spent(self) -> Amounts:
        if self.is_central:
            return Amounts(sum(q.epsilon_nano for q in self.queries), sum(q.delta_atto for q in self.queries))
        return Amounts(largest_cost(self.rounds_opened, list_critical_draws(self.rounds_opened)), 0)

    @property
    def left(self) -> Amounts:
        return self.declared.minus(self.spent)


class JobWalk:
    """A random walk over two datasets with jobs, one central and one local."""

    def __init__(self, database: Database, entropy: Entropy, actions: WorkerActions, name: str) -> None:
        self.database, self.entropy, self.actions = database, entropy, actions
        self.caller = new_caller(database, name)
        self.dataset_ids = {trust: self._new_dataset(trust) for trust in (Trust.CENTRAL, Trust.LOCAL)}
        self.jobs: dict[str, TrackedJob] = {}
        self.fault = ""
        self.n_steps = 0

    def step(self) -> None:
        """Run a random action and compare the results."""
        choices = (
            *[self.submit] * 4, *[self.claim] * 6, *[self.charge_next] * 6, *[self.close] * 2, *[self.rerun] * 3,
            self.crash, self.keep, *[self.fail] * 2, self.succeed, self.cancel, *[self.expire_leases] * 2,
        )  # fmt: skip
        self.n_steps += 1
        choices[below(self.entropy, len(choices))]()
        self.compare(verify_chains=self.n_steps % STEPS_PER_VERIFICATION == 0)

    def submit(self) -> None:
        """Submit a job that declares the cost of some queries, or one unit more."""
        is_central = below(self.entropy, 3) > 0
        cost = Amounts(NANO // 3, DELTA * below(self.entropy, 2) if is_central else 0)
        n = 1 + below(self.entropy, 5)
        declared = Amounts(cost.epsilon_nano * n + below(self.entropy, 2), cost.delta_atto * n)
        dataset_id = self.dataset_ids[Trust.CENTRAL if is_central else Trust.LOCAL]
        with self.database.transaction() as session:
            row = lifecycle.submit(
                session,
                self.caller,
                session.get_one(Dataset, dataset_id),
                lifecycle.NewJob({"type": "audit"}, declared, CollectionTarget(0 if is_central else 10, 0, 3600)),
                max_active_jobs=1000,
                now=self.database.clock(),
            )
        self.jobs[row.id] = TrackedJob(row.id, dataset_id, is_central, declared, cost)

    def claim(self, delay: int = 0) -> None:
        """Let a worker claim the next job. The claim may end the job."""
        now = self.database.clock() + delay
        with self.database.transaction() as session:
            claim = claims.claim(session, now=now, lease_microseconds=LEASE, max_attempts=MAX_ATTEMPTS)
        if claim is not None and claim.job_id in self.jobs:  # the job may belong to another walk
            self.jobs[claim.job_id].claim = claim

    def expire_leases(self) -> None:
        """Let all leases expire, and let another worker claim the next job."""
        claims_before = {id: job.claim for id, job in self.jobs.items()}
        self.claim(delay=1000 * LEASE)
        for id, stale_claim in claims_before.items():
            if stale_claim is not None and self.jobs[id].claim != stale_claim:
                self._check_stale_claim(self.jobs[id], stale_claim)

    def _check_stale_claim(self, job: TrackedJob, stale_claim: Claim) -> None:
        try:
            self.actions.charge(self.database, stale_claim, len(job.queries), _make_query(job, len(job.queries)))
        except (StaleFence, BudgetExhausted, Canceled):
            return
        self.fault = self.fault or "a worker with a stale claim charged a query"

    def charge_next(self) -> None:
        """Charge the next query of a job over records, or open the next round of a local one."""
        for job in self._pick_claimed():
            try:
                if job.is_central:
                    query = _make_query(job, len(job.queries))
                    self.actions.charge(self.database, _claim_of(job), len(job.queries), query)
                    job.queries.append(query)  # after the charge, noise may be drawn
                else:
                    self._open(job)
            except BudgetExhausted:
                self._check_rejection(job)
            except Canceled:
                job.claim = None

    def _check_rejection(self, job: TrackedJob) -> None:
        fits = all(cost <= left for cost, left in zip(job.cost, job.left, strict=True))
        if job.is_central and fits:
            self.fault = self.fault or "a query within the reservation of the job was rejected"

    def _open(self, job: TrackedJob) -> None:
        lo = below(self.entropy, 4)
        hi = lo + 1 + below(self.entropy, 4 - lo)
        mechanism = mechanisms.design("grr", 4, job.cost.epsilon_nano)
        spec = RoundSpec(FEATURES, GridEncoding((2, 2)), mechanism, Participation.between(lo / 4, hi / 4))
        with self.database.transaction() as session:
            row = claims.load_claimed(session, _claim_of(job))
            rounds_opened = rounds.open_for_job(
                session,
                session.get_one(Dataset, job.dataset_id),
                spec,
                row.collection_target,
                job_id=row.id,
                actor=row.created_by,
                now=self.database.clock(),
            )
            lifecycle.wait_for_reports(session, _claim_of(job), now=self.database.clock())
        job.rounds_opened.append(((spec.participation.lo, spec.participation.hi), rounds_opened.epsilon_nano))
        job.claim = None

    def close(self) -> None:
        """Close the rounds of a job, so that it needs a worker again."""
        for job in self.jobs.values():
            if job.rounds_opened and below(self.entropy, 2):
                with self.database.transaction() as session:
                    rounds.close_all(session, now=self.database.clock(), job_id=job.id)

    def rerun(self) -> None:
        """Run a job again from its beginning: repeat every charged query."""
        for job in self._pick_claimed():
            for index, query in enumerate(job.queries):
                try:
                    self.actions.charge(self.database, _claim_of(job), index, query)
                except Canceled:
                    job.claim = None
                    break
                except (BudgetExhausted, Conflict):
                    self.fault = self.fault or "a repeated query was rejected, although it is charged"

    def crash(self) -> None:
        """End a worker after a charge is written and before the commit. It draws no noise."""
        for job in self._pick_claimed():
            if job.is_central and job.cost.epsilon_nano <= job.left.epsilon_nano:
                query = _make_query(job, len(job.queries))
                with roll_back(self.database) as session:
                    terms = ChargedQuery(
                        query.description, query.epsilon_nano, query.n_values, query.digest, query.delta_atto
                    )
                    curator_answers.charge(session, _claim_of(job), len(job.queries), terms, now=self.database.clock())

    def keep(self) -> None:
        """Store an answer."""
        for job in self._pick_claimed():
            if job.n_kept < len(job.queries):
                self.actions.keep(self.database, _claim_of(job), job.n_kept)
                job.n_kept += 1

    def fail(self) -> None:
        """Let a worker fail a job."""
        for job in self._pick_claimed():
            self.actions.fail(self.database, _claim_of(job))

    def succeed(self) -> None:
        """Let a worker publish a result."""
        for job in self._pick_claimed():
            with self.database.transaction() as session:
                lifecycle.succeed(session, _claim_of(job), {}, software_version="0", now=self.database.clock())

    def cancel(self) -> None:
        """Cancel the newest job. A claimed job ends when its worker releases it."""
        for job in list(self.jobs.values())[-1:]:
            with self.database.transaction() as session:
                lifecycle.cancel(session, self.caller, job.id, now=self.database.clock())

    def compare(self, *, verify_chains: bool = True) -> None:
        """Compare the ledger's reservations and balances with the declared and charged amounts."""
        held = dict.fromkeys(self.dataset_ids.values(), Amounts())
        spent = held.copy()
        with self.database.reading() as session:
            for job in self.jobs.values():
                is_over = session.get_one(Job, job.id).is_final
                reserved = Amounts() if is_over else job.left
                if ledger.reserved_for(session, job.dataset_id, job.id) != reserved:
                    state = "over" if is_over else "not over"
                    self.fault = self.fault or f"a job that is {state} has a reservation other than its unspent budget"
                if is_over:
                    job.claim = None
                held[job.dataset_id] = held[job.dataset_id].plus(reserved)
                spent[job.dataset_id] = spent[job.dataset_id].plus(job.spent)
            for trust, dataset_id in self.dataset_ids.items():
                granted = Amounts(GRANTED.epsilon_nano, GRANTED.delta_atto if trust is Trust.CENTRAL else 0)
                amounts = granted, held[dataset_id], spent[dataset_id]
                true = Balance(*(each.epsilon_nano for each in amounts), *(each.delta_atto for each in amounts))
                if ledger.balance(session, dataset_id) != true:
                    self.fault = self.fault or "the balance is not the sum of grants, charges and reservations"
                if verify_chains and not ledger.verify(session, dataset_id).ok:
                    self.fault = self.fault or "the hash chain is invalid"

    def _pick_claimed(self) -> list[TrackedJob]:
        """Return one claimed job, or none."""
        claim = [job for job in self.jobs.values() if job.claim is not None]
        return [claim[below(self.entropy, len(claim))]] if claim else []

    def _new_dataset(self, trust: Trust) -> str:
        with self.database.transaction() as session:
            return datasets.create(
                session,
                self.caller,
                name="audit",
                trust=trust,
                features=FEATURES,
                epsilon_nano=GRANTED.epsilon_nano,
                delta_atto=GRANTED.delta_atto if trust is Trust.CENTRAL else 0,
                min_reports=1,
                keep_reports=False,
                max_datasets=10,
                now=self.database.clock(),
            ).id


def new_caller(database: Database, name: str) -> Caller:
    """Create a tenant with an admin key. Return the owner of the key."""
    now = database.clock()
    with database.transaction() as session:
        owner = tenants.get_or_create_tenant(session, name, now=now)
        _, secret = keys.create_key(session, owner.id, name="audit", scopes=[Scope.ADMIN], now=now)
        caller = keys.authenticate(session, keys.hash_secret(secret), now=now)
    if caller is None:
        raise AssertionError("a new key is unknown")
    return caller


def _make_query(job: TrackedJob, index: int) -> Query:
    return Query("counts", job.cost.epsilon_nano, 3, f"digest {index}", delta_atto=job.cost.delta_atto)


def _claim_of(job: TrackedJob) -> Claim:
    if job.claim is None:
        raise AssertionError("the job is not claimed")
    return job.claim


def run_walks(database: Database, setting: Setting, n_steps: int, actions: WorkerActions) -> Finding:
    """Run walks with this total number of steps, each with its own datasets and jobs."""
    why = ""
    for start in range(0, n_steps, STEPS_PER_WALK):
        walk = JobWalk(database, setting.entropy(f"jobs/{start}"), actions, f"audit {setting.seed} {start}")
        for _ in range(min(STEPS_PER_WALK, n_steps - start)):
            walk.step()
            if walk.fault:
                why = walk.fault
                break
        if why:
            break
        with database.transaction() as session:  # the next walk must claim only its own jobs
            for dataset_id in walk.dataset_ids.values():
                lifecycle.cancel_all(session, dataset_id, now=database.clock())
        for _ in walk.jobs:
            walk.claim(delay=1000 * LEASE)
        walk.compare()
        why = walk.fault
    return Finding("ledger: jobs", CLAIM, "walk", n_steps, holds=not why, why=why)


def check_jobs(setting: Setting, *, actions: WorkerActions | None = None) -> list[Finding]:
    """Run jobs in a temporary database."""
    with temporary_database() as database:
        return [run_walks(database, setting, setting.effort.trials(N_STEPS), actions or WorkerActions())]


CHECKS: tuple[Check, ...] = (Check("ledger: jobs", check_jobs),)
