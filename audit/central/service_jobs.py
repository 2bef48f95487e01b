"""Replay check of jobs over records with the service's journal in a database, and of their ledger entries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from audit.central.recordings import Method, RecordedAnswers, Recorder
from audit.central.replay import ReplayResults
from audit.checks.check import Check, Finding, Setting
from audit.checks.neighbours import Pair, make_pairs
from clustering.central.queries import Journal, Query
from clustering.central.run import run
from models import datasets
from models.database.engine import Database
from models.database.schema import migrate
from models.database.types import SECOND
from models.identity import keys, tenants
from models.identity.caller import Caller
from models.jobs import claims, lifecycle
from models.jobs.claims import Claim
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.datasets import Trust
from models.tables.identity import Scope
from models.tables.ledger import Kind
from models.tables.rounds import CollectionTarget
from sfumato.specs import DpKmeans, Feature, PrivateKmeans, to_wire
from workers.central_job import JobJournal

LEDGER_CHARGES = "two runs charge the odometer's costs once, and the hash chain is valid"
LEASE = 20 * SECOND
N_FEATURES = 5
PAIR_NAMES = ("one far point", "user records on the diagonal")

METHODS: tuple[Method, ...] = (
    Method("dp_kmeans", DpKmeans(1.0, 2, init="plusplus", iterations=2), run),
    Method("private_kmeans", PrivateKmeans(4.0, 2), run),
    Method("private_kmeans, delta", PrivateKmeans(4.0, 2, delta=1e-3), run),
)

MakeJournal = Callable[[Database, Claim], Journal]


def check_job_replay(method: Method, setting: Setting, make_journal: MakeJournal = JobJournal) -> Sequence[Finding]:
    """Run a method with its journal in a database. Let the lease expire, and replay the job on a neighbour."""
    results = ReplayResults(method)
    why = ""
    for pair in make_pairs(N_FEATURES):
        if pair.name in PAIR_NAMES:
            with TemporaryDirectory() as folder:
                why = why or _replay_job(results, pair, setting, Path(folder), make_journal)
    finding = Finding(f"{method.name}: job", LEDGER_CHARGES, "replay", results.runs, None, None, not why, why)
    return [*results.findings(), finding]


@dataclass(frozen=True)
class _Job:
    database: Database
    dataset_id: str
    job_id: str

    def claim(self, delay: int = 0) -> Claim:
        """Claim the job, as if `delay` microseconds had passed."""
        with self.database.transaction() as session:
            now = self.database.clock() + delay
            claim = claims.claim(session, now=now, lease_microseconds=LEASE, max_attempts=10)
        if claim is None:
            raise RuntimeError("there is no job to claim")
        return claim

    def charges(self) -> tuple[bool, list[tuple[str, int, int]]]:
        """Return whether the chain is valid, and reference, epsilon and delta of each charge of the job."""
        with self.database.reading() as session:
            is_valid = ledger.verify(session, self.dataset_id).ok
            entries = ledger.page(session, self.dataset_id, after_seq=0, limit=10_000)
        of_job = [entry for entry in entries if entry.kind == Kind.CHARGE and entry.reservation == self.job_id]
        return is_valid, [(entry.reference, entry.epsilon_nano, entry.delta_atto) for entry in of_job]


def _replay_job(results: ReplayResults, pair: Pair, setting: Setting, folder: Path, make_journal: MakeJournal) -> str:
    """Replay a pair in a database of its own. Return the fault in the ledger, or an empty text."""
    url = f"sqlite:///{folder / 'audit.db'}"
    migrate(url)
    database = Database(url)
    try:
        job = _submit_job(database, results.method)
        journal = make_journal(database, job.claim())
        entropy = setting.entropy(f"service/{results.method.name}/{pair.name}")
        first = results.run_and_check(pair, pair.more, Recorder(journal, entropy))
        if first is None:
            return f"{pair.name}: the run sent no query"
        journal = make_journal(database, job.claim(delay=2 * LEASE))
        results.replay_run(pair, first, pair.less, Recorder(journal, RecordedAnswers((), ())))
        is_valid, charges = job.charges()
    finally:
        database.close()
    if not is_valid:
        return f"{pair.name}: the hash chain of the ledger is invalid"
    if charges != _expected_charges(job.job_id, first.curator.odometer):
        return f"{pair.name}: {sum(nano for _, nano, _ in charges)} nano-epsilon charged in {len(charges)} rows"
    return ""


def _expected_charges(job_id: str, odometer: Sequence[Query]) -> list[tuple[str, int, int]]:
    return [(f"{job_id}#{index}", query.epsilon_nano, query.delta_atto) for index, query in enumerate(odometer)]


def _submit_job(database: Database, method: Method) -> _Job:
    """Create a tenant with a central dataset and submit one job."""
    now, epsilon_nano = database.clock(), method.params.epsilon_nano
    delta_atto = method.params.delta_atto
    with database.transaction() as session:
        owner = tenants.get_or_create_tenant(session, tenants.FIRST_TENANT, now=now)
        key, _ = keys.create_key(session, owner.id, name="audit", scopes=[Scope.ADMIN], now=now)
        caller = Caller(key.id, owner.id, frozenset(key.scopes), None, None)
        dataset = datasets.create(
            session,
            caller,
            name="audit",
            trust=Trust.CENTRAL,
            features=tuple(Feature(f"x{i}", 0.0, 1.0) for i in range(N_FEATURES)),
            epsilon_nano=epsilon_nano,
            delta_atto=delta_atto,
            min_reports=1,
            keep_reports=False,
            max_datasets=1,
            now=now,
        )
        job = lifecycle.submit(
            session,
            caller,
            dataset,
            lifecycle.NewJob(to_wire(method.params), Amounts(epsilon_nano, delta_atto), CollectionTarget(0, 0, 0)),
            max_active_jobs=1,
            now=now,
        )
    return _Job(database, dataset.id, job.id)


def _make_check(method: Method) -> Check:
    return Check(f"{method.name}, job replay", lambda setting: check_job_replay(method, setting))


CHECKS: tuple[Check, ...] = tuple(_make_check(method) for method in METHODS)
