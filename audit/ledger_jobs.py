"""Jobs and the ledger: whatever becomes of a job, what was drawn for it is posted and the rest is given back.

Jobs over records and jobs that ask devices are submitted, claimed, worked on, lost, failed,
cancelled, at random and through the functions the workers use. After every step each job holds
what it declared less what was drawn for it, or nothing once it is over; so one that fails before
its first draw releases all, and one that fails later has posted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from audit.accounting_reference import Charged, cost_by_hand, places
from audit.check import Check, Finding, Setting
from audit.ledger_world import temporary_database, undone
from clustering.questions import Question
from models import answer, ledger, tenant
from models import dataset as datasets
from models import job as jobs
from models import round as rounds
from models.answer import Asked
from models.dataset import Dataset, Trust
from models.db import SECOND, Database
from models.errors import BudgetExhausted, Conflict, StaleFence
from models.job import Claim, Job, JobState
from models.ledger import Amounts, Balance
from models.round import Collect
from models.tenant import Caller, Scope
from sfumato import mechanisms
from sfumato.accounting import ATTO, NANO
from sfumato.entropy import Entropy, below
from sfumato.specs import Draw, Feature, GridEncoding, RoundSpec
from workers.central import Canceled, JobJournal

STEPS = 1000
STEPS_OF_A_WALK = 60
VERIFIED_EVERY = 20  # steps
MOST_ATTEMPTS = 4
LEASE = 20 * SECOND

FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
GRANTED = Amounts(1000 * NANO, ATTO // 2000)
DELTA = 1_000_000_000_000  # atto, of one question
CLAIM = "what was drawn is posted, whatever becomes of the job; what it holds beyond that is given back"


def _charge(database: Database, held: Claim, index: int, question: Question) -> None:
    JobJournal(database, held).charge(index, question)


def _keep(database: Database, held: Claim, index: int) -> None:
    JobJournal(database, held).keep(index, np.arange(3))


def _fail(database: Database, held: Claim) -> None:
    with database.transaction() as session:
        jobs.fail(session, held, JobState.FAILED, code="audit", detail="", now=database.clock())


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker does for a job over records: by default what the service's does."""

    charge: Callable[[Database, Claim, int, Question], None] = _charge
    keep: Callable[[Database, Claim, int], None] = _keep
    fail: Callable[[Database, Claim], None] = _fail


@dataclass
class Watched:
    """A job, and what is known of it without the ledger."""

    id: str
    dataset_id: str
    is_central: bool
    declared: Amounts
    price: Amounts  # of a question: alike, as answers of an algorithm's steps are
    asked: list[Question] = field(default_factory=list)  # and drawn
    n_kept: int = 0
    opened: list[Charged] = field(default_factory=list)
    held: Claim | None = None

    @property
    def spent(self) -> Amounts:
        if self.is_central:
            return Amounts(sum(q.epsilon_nano for q in self.asked), sum(q.delta_atto for q in self.asked))
        return Amounts(cost_by_hand(self.opened, places(self.opened)), 0)

    @property
    def left(self) -> Amounts:
        return Amounts(*(declared - spent for declared, spent in zip(self.declared, self.spent, strict=True)))


class JobWalk:
    """Two datasets with jobs in them, one of records and one of devices."""

    def __init__(self, database: Database, entropy: Entropy, work: Work, name: str) -> None:
        self.database, self.entropy, self.work = database, entropy, work
        self.caller = _new_caller(database, name)
        self.dataset_ids = {trust: self._new_dataset(trust) for trust in (Trust.CENTRAL, Trust.LOCAL)}
        self.jobs: dict[str, Watched] = {}
        self.fault = ""
        self.n_steps = 0

    def step(self) -> None:
        """Something, at random, and what it leaves."""
        choices = (
            *[self.submit] * 4, *[self.claim] * 6, *[self.draw] * 6, *[self.close] * 2, *[self.repeat] * 3, self.crash,
            self.keep, *[self.fail] * 2, self.succeed, self.cancel, *[self.lapse] * 2,
        )  # fmt: skip
        self.n_steps += 1
        choices[below(self.entropy, len(choices))]()
        self.compare(and_chains=self.n_steps % VERIFIED_EVERY == 0)

    def submit(self) -> None:
        """A job that declares some questions' worth, or so."""
        is_central = below(self.entropy, 3) > 0
        price = Amounts(NANO // 3, DELTA * below(self.entropy, 2) if is_central else 0)
        n = 1 + below(self.entropy, 5)
        declared = Amounts(price.epsilon_nano * n + below(self.entropy, 2), price.delta_atto * n)
        dataset_id = self.dataset_ids[Trust.CENTRAL if is_central else Trust.LOCAL]
        with self.database.transaction() as session:
            job = jobs.submit(
                session,
                self.caller,
                session.get_one(Dataset, dataset_id),
                algorithm={"type": "audit"},
                epsilon_nano=declared.epsilon_nano,
                delta_atto=declared.delta_atto,
                collect=Collect(0 if is_central else 10, 0, 3600),
                max_active_jobs=1000,
                now=self.database.clock(),
            )
        self.jobs[job.id] = Watched(job.id, dataset_id, is_central, declared, price)

    def claim(self, later: int = 0) -> None:
        """A worker takes whatever needs one; it may find that a job is to be ended."""
        now = self.database.clock() + later
        with self.database.transaction() as session:
            held = jobs.claim(session, now=now, lease_microseconds=LEASE, max_attempts=MOST_ATTEMPTS)
        if held is not None and held.job_id in self.jobs:  # not one of another walk
            self.jobs[held.job_id].held = held

    def lapse(self) -> None:
        """Workers were away for longer than their leases: whoever claims next goes on in their place."""
        stale = {id: watched.held for id, watched in self.jobs.items()}
        self.claim(later=1000 * LEASE)
        for id, before in stale.items():
            if before is not None and self.jobs[id].held != before:
                self._refused_as_stale(self.jobs[id], before)

    def _refused_as_stale(self, watched: Watched, before: Claim) -> None:
        try:
            self.work.charge(self.database, before, len(watched.asked), _question(watched, len(watched.asked)))
        except (StaleFence, BudgetExhausted, Canceled):
            return
        self.fault = self.fault or "a worker that was overtaken has charged"

    def draw(self) -> None:
        """The next question of a job over records, or the next round of one that asks devices."""
        for watched in self._held():
            try:
                if watched.is_central:
                    question = _question(watched, len(watched.asked))
                    self.work.charge(self.database, _of(watched), len(watched.asked), question)
                    watched.asked.append(question)  # from here on its noise is drawn
                else:
                    self._open(watched)
            except BudgetExhausted:
                self._check_refused(watched)
            except Canceled:
                watched.held = None

    def _check_refused(self, watched: Watched) -> None:
        fits = all(price <= left for price, left in zip(watched.price, watched.left, strict=True))
        if watched.is_central and fits:
            self.fault = self.fault or "a question that the job's reservation bears was refused"

    def _open(self, watched: Watched) -> None:
        lo = below(self.entropy, 4)
        hi = lo + 1 + below(self.entropy, 4 - lo)
        mechanism = mechanisms.design("grr", 4, watched.price.epsilon_nano)
        spec = RoundSpec(FEATURES, GridEncoding((2, 2)), mechanism, Draw.between(lo / 4, hi / 4))
        with self.database.transaction() as session:
            job = jobs.held_job(session, _of(watched))
            opened = rounds.open_for_job(
                session,
                session.get_one(Dataset, watched.dataset_id),
                spec,
                job.collect,
                job_id=job.id,
                actor=job.created_by,
                now=self.database.clock(),
            )
            jobs.suspend(session, _of(watched), now=self.database.clock())
        watched.opened.append(((spec.draw.lo, spec.draw.hi), opened.epsilon_nano))
        watched.held = None

    def close(self) -> None:
        """Devices have answered: the rounds of one job close, so that it needs a worker again."""
        for watched in self.jobs.values():
            if watched.opened and below(self.entropy, 2):
                with self.database.transaction() as session:
                    rounds.close_all(session, now=self.database.clock(), job_id=watched.id)

    def repeat(self) -> None:
        """A job is run again from its beginning: every question it asked is asked once more."""
        for watched in self._held():
            for index, question in enumerate(watched.asked):
                try:
                    self.work.charge(self.database, _of(watched), index, question)
                except Canceled:
                    watched.held = None
                    break
                except (BudgetExhausted, Conflict):
                    self.fault = self.fault or "a question that was paid for was refused when it was asked again"

    def crash(self) -> None:
        """A worker ends when a charge is written and not committed: nothing is drawn."""
        for watched in self._held():
            if watched.is_central and watched.price.epsilon_nano <= watched.left.epsilon_nano:
                asked = _question(watched, len(watched.asked))
                with undone(self.database) as session:
                    terms = Asked(asked.what, asked.epsilon_nano, asked.n_values, asked.digest, asked.delta_atto)
                    answer.charge(session, _of(watched), len(watched.asked), terms, now=self.database.clock())

    def keep(self) -> None:
        """An answer is written down."""
        for watched in self._held():
            if watched.n_kept < len(watched.asked):
                self.work.keep(self.database, _of(watched), watched.n_kept)
                watched.n_kept += 1

    def fail(self) -> None:
        """A worker gives a job up."""
        for watched in self._held():
            self.work.fail(self.database, _of(watched))

    def succeed(self) -> None:
        """A worker publishes a result."""
        for watched in self._held():
            with self.database.transaction() as session:
                jobs.succeed(session, _of(watched), {}, software_version="0", now=self.database.clock())

    def cancel(self) -> None:
        """Its tenant wants it no more: at once, or as soon as its worker lets go."""
        for watched in list(self.jobs.values())[-1:]:
            with self.database.transaction() as session:
                jobs.cancel(session, self.caller, watched.id, now=self.database.clock())

    def compare(self, *, and_chains: bool = True) -> None:
        """What the ledger says of every job and of both datasets, against what was declared and drawn."""
        totals = {dataset_id: [0, 0, 0, 0] for dataset_id in self.dataset_ids.values()}
        with self.database.reading() as session:
            for watched in self.jobs.values():
                is_over = session.get_one(Job, watched.id).is_final
                kept_back = Amounts(0, 0) if is_over else watched.left
                if ledger.reserved_for(session, watched.dataset_id, watched.id) != kept_back:
                    state = "over" if is_over else "not over"
                    self.fault = self.fault or f"a job that is {state} holds something else than was not drawn"
                if is_over:
                    watched.held = None
                for place, amount in enumerate((*kept_back, *watched.spent)):
                    totals[watched.dataset_id][place] += amount
            for trust, dataset_id in self.dataset_ids.items():
                granted = Amounts(GRANTED.epsilon_nano, GRANTED.delta_atto if trust is Trust.CENTRAL else 0)
                held, held_delta, spent, spent_delta = totals[dataset_id]
                true = Balance(granted.epsilon_nano, held, spent, granted.delta_atto, held_delta, spent_delta)
                if ledger.balance(session, dataset_id) != true:
                    self.fault = self.fault or "the ledger does not stand where grants, draws and reservations put it"
                if and_chains and not ledger.verify(session, dataset_id).ok:
                    self.fault = self.fault or "the chain does not hold"

    def _held(self) -> list[Watched]:
        """One job that a worker holds, or none."""
        held = [watched for watched in self.jobs.values() if watched.held is not None]
        return [held[below(self.entropy, len(held))]] if held else []

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


def _new_caller(database: Database, name: str) -> Caller:
    now = database.clock()
    with database.transaction() as session:
        owner = tenant.get_or_create_tenant(session, name, now=now)
        _, secret = tenant.create_key(session, owner.id, name="audit", scopes=[Scope.ADMIN], now=now)
        caller = tenant.authenticate(session, tenant.hash_secret(secret), now=now)
    if caller is None:
        raise AssertionError("a key that was just made is not known")
    return caller


def _question(watched: Watched, index: int) -> Question:
    return Question("counts", watched.price.epsilon_nano, 3, f"digest {index}", delta_atto=watched.price.delta_atto)


def _of(watched: Watched) -> Claim:
    if watched.held is None:
        raise AssertionError("nobody holds this job")
    return watched.held


def walked(database: Database, setting: Setting, n_steps: int, work: Work) -> Finding:
    """Walks of so many steps in all, each in datasets and with jobs of its own."""
    why = ""
    for first in range(0, n_steps, STEPS_OF_A_WALK):
        walk = JobWalk(database, setting.entropy(f"jobs/{first}"), work, f"audit {setting.seed} {first}")
        for _ in range(min(STEPS_OF_A_WALK, n_steps - first)):
            walk.step()
            if walk.fault:
                why = walk.fault
                break
        if why:
            break
        with database.transaction() as session:  # so that the next walk's claims find jobs of its own
            for dataset_id in walk.dataset_ids.values():
                jobs.cancel_all(session, dataset_id, now=database.clock())
        for _ in walk.jobs:
            walk.claim(later=1000 * LEASE)
        walk.compare()
        why = walk.fault
    return Finding("ledger: jobs", CLAIM, "walk", n_steps, holds=not why, why=why)


def looked_at(setting: Setting, *, work: Work | None = None) -> list[Finding]:
    """Jobs in a database of the audit's own."""
    with temporary_database() as database:
        return [walked(database, setting, setting.effort.trials(STEPS), work or Work())]


CHECKS: tuple[Check, ...] = (Check("ledger: jobs", looked_at),)
