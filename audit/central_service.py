"""A central job as the service keeps it: its journal in a database, replayed by who claims it next, and the ledger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from audit.check import Check, Finding, Setting
from audit.neighbours import Pair, pairs
from audit.replay import Method, Replays, Retelling, Tape
from clustering.central.run import run
from clustering.curator import Journal, Question
from models import dataset as datasets
from models import job as jobs
from models import ledger, tenant
from models.dataset import Trust
from models.db import SECOND, Database, migrate
from models.job import Claim
from models.round import Collect
from models.tenant import Caller, Scope
from sfumato.accounting import parse_epsilon
from sfumato.specs import DpKmeans, Feature, GatedGridKmeans, to_wire
from workers.central import JobJournal

POSTED = "what is posted is the odometer, once for two runs, and the chain holds"
LEASE = 20 * SECOND
N_FEATURES = 5
HURTING = ("one far point", "a user's records everywhere")

METHODS: tuple[Method, ...] = (
    Method("dp_kmeans", DpKmeans(1.0, 2, init="plusplus", iterations=2), run),
    Method("gated_grid_kmeans", GatedGridKmeans(4.0, 2), run),
)

MakeJournal = Callable[[Database, Claim], Journal]


def replayed(method: Method, setting: Setting, make_journal: MakeJournal = JobJournal) -> Sequence[Finding]:
    """Run a method with its journal in a database; then its lease lapses, and the next one runs it over a neighbour."""
    replays = Replays(method)
    why = ""
    for pair in pairs(N_FEATURES):
        if pair.name in HURTING:
            with TemporaryDirectory() as folder:
                why = why or _replay(replays, pair, setting, Path(folder), make_journal)
    posted = Finding(f"{method.name}: its job", POSTED, "replay", replays.runs, None, None, not why, why)
    return [*replays.findings(), posted]


@dataclass(frozen=True)
class _Job:
    database: Database
    dataset_id: str
    job_id: str

    def claim(self, later: int = 0) -> Claim:
        """Hold it, as if `later` microseconds had gone by."""
        with self.database.transaction() as session:
            now = self.database.clock() + later
            held = jobs.claim(session, now=now, lease_microseconds=LEASE, max_attempts=10)
        if held is None:
            raise RuntimeError("there is no job to claim")
        return held

    def posts(self) -> tuple[bool, list[tuple[str, int, int]]]:
        """Whether the chain holds, and each posting of the job: reference, epsilon and delta."""
        with self.database.reading() as session:
            is_whole = ledger.verify(session, self.dataset_id).ok
            entries = ledger.page(session, self.dataset_id, after_seq=0, limit=10_000)
        of_job = [entry for entry in entries if entry.kind == ledger.Kind.POST and entry.reservation == self.job_id]
        return is_whole, [(entry.reference, entry.epsilon_nano, entry.delta_atto) for entry in of_job]


def _replay(replays: Replays, pair: Pair, setting: Setting, folder: Path, make_journal: MakeJournal) -> str:
    """One pair, in a database of its own; what is wrong with the ledger, if anything."""
    url = f"sqlite:///{folder / 'audit.db'}"
    migrate(url)
    database = Database(url)
    try:
        job = _submitted(database, replays.method)
        journal = make_journal(database, job.claim())
        entropy = setting.entropy(f"service/{replays.method.name}/{pair.name}")
        first = replays.run_first(pair, pair.more, Tape(journal, entropy))
        if first is None:
            return f"{pair.name}: nothing was asked"
        journal = make_journal(database, job.claim(later=2 * LEASE))
        replays.retell(pair, first, pair.less, Tape(journal, Retelling((), ())))
        is_whole, posts = job.posts()
    finally:
        database.close()
    if not is_whole:
        return f"{pair.name}: the ledger's chain is broken"
    if posts != _expected(job.job_id, first.curator.odometer):
        return f"{pair.name}: {sum(nano for _, nano, _ in posts)} nano-epsilon posted in {len(posts)} rows"
    return ""


def _expected(job_id: str, odometer: Sequence[Question]) -> list[tuple[str, int, int]]:
    return [(f"{job_id}#{index}", asked.epsilon_nano, asked.delta_atto) for index, asked in enumerate(odometer)]


def _submitted(database: Database, method: Method) -> _Job:
    """A tenant's central dataset with all it needs, and one job in the queue."""
    now, epsilon_nano = database.clock(), parse_epsilon(method.params.epsilon)
    with database.transaction() as session:
        owner = tenant.get_or_create_tenant(session, tenant.FIRST_TENANT, now=now)
        key, _ = tenant.create_key(session, owner.id, name="audit", scopes=[Scope.ADMIN], now=now)
        caller = Caller(key.id, owner.id, frozenset(key.scopes), None, None)
        made = datasets.create(
            session,
            caller,
            name="audit",
            trust=Trust.CENTRAL,
            features=tuple(Feature(f"x{i}", 0.0, 1.0) for i in range(N_FEATURES)),
            epsilon_nano=epsilon_nano,
            min_reports=1,
            keep_reports=False,
            max_datasets=1,
            now=now,
        )
        job = jobs.submit(
            session,
            caller,
            made,
            algorithm=to_wire(method.params),
            epsilon_nano=epsilon_nano,
            collect=Collect(0, 0, 0),
            max_active_jobs=1,
            now=now,
        )
    return _Job(database, made.id, job.id)


def _check(method: Method) -> Check:
    return Check(f"{method.name}, its job replayed", lambda setting: replayed(method, setting))


CHECKS: tuple[Check, ...] = tuple(_check(method) for method in METHODS)
