"""A tenant with a central dataset and seeded records, and the stored results of its jobs."""

import hashlib

import numpy as np
from sqlalchemy import select

from models import datasets
from models.database.engine import Database
from models.encryption import Keyring, encode_key
from models.jobs import lifecycle
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.records import record_keys, records
from models.tables.datasets import Trust
from models.tables.jobs import QueryAnswer
from models.tables.rounds import CollectionTarget
from sfumato.privacy.accountant import Accounting
from sfumato.privacy.accounting import NANO
from sfumato.specs import LATTICE, Feature
from tests.workers.collection import OwnDataset, create_caller

MASTER_KEY = hashlib.sha256(b"a test's").digest()
KEYRING = Keyring((MASTER_KEY,))
RECORDS_KEY = encode_key(MASTER_KEY)  # the value of the setting
ALGORITHM = {"type": "private_kmeans", "epsilon": 1.0, "clusters": 2, "seed": 0}
N_RECORDS = 1237
GRANTED = 4 * NANO
FEATURES = (Feature("x", 0.0, 10.0), Feature("y", -1.0, 1.0))


class Archive(OwnDataset):
    """A central dataset of two features with seeded records."""

    @classmethod
    def create(
        cls,
        database: Database,
        *,
        n_records: int = N_RECORDS,
        max_per_user: int = 1,
        delta_atto: int = 0,
        epsilon_nano: int = GRANTED,
        accounting: Accounting = "additive",
    ) -> "Archive":
        """Create a tenant and a dataset. If users may have several records, all belong to one user."""
        caller = create_caller(database)
        with database.transaction() as session:
            created = datasets.create(
                session,
                caller,
                name="test",
                trust=Trust.CENTRAL,
                features=FEATURES,
                epsilon_nano=epsilon_nano,
                accounting=accounting,
                min_reports=1,
                keep_reports=False,
                max_datasets=10,
                user_feature=None if max_per_user == 1 else "user",
                max_records_per_user=max_per_user,
                delta_atto=delta_atto,
                now=database.clock(),
            )
        archive = cls(database, caller, created.id)
        if n_records:
            archive.add(n_records, users=None if max_per_user == 1 else [b"one"] * n_records)
        return archive

    def add(
        self, n_records: int, *, users: list[bytes] | None = None, seed: int = 0, shares: np.ndarray | None = None
    ) -> None:
        """Upload records: those of a seed, or points given as shares of the ranges."""
        if shares is None:
            shares = np.random.default_rng(seed).beta(2, 5, size=(n_records, 2))
        points = shares * LATTICE
        with self.database.transaction() as session:
            upload = records.Upload(record_keys.open_or_create(session, self.dataset_id, KEYRING), 2)
            upload.add(points.astype(np.int32), users, 0)
            records.append(session, upload, max_records=10**9, now=self.database.clock())

    def submit(self, *, epsilon_nano: int = NANO, delta_atto: int = 0, algorithm: dict = ALGORITHM) -> str:
        """Submit a job and return its id."""
        with self.database.transaction() as session:
            return lifecycle.submit(
                session,
                self.caller,
                datasets.get(session, self.caller, self.dataset_id),
                lifecycle.NewJob(algorithm, Amounts(epsilon_nano, delta_atto), CollectionTarget(0, 0, 0)),
                max_active_jobs=1000,
                now=self.database.clock(),
            ).id

    def answers(self, job_id: str) -> list[QueryAnswer]:
        """Return the stored query answers of a job."""
        with self.database.reading() as session:
            return list(
                session.scalars(select(QueryAnswer).where(QueryAnswer.job_id == job_id).order_by(QueryAnswer.index))
            )

    def charges_of(self, job_id: str) -> list[tuple[str, int, int]]:
        """Return the charges of a job: (reference, nano-epsilon, atto-delta), in order."""
        charges = [entry for entry in self.charges() if entry.reservation == job_id]
        return [(entry.reference, entry.epsilon_nano, entry.delta_atto) for entry in charges]

    def check(self, job_id: str) -> None:
        """Assert that the charges equal the odometer of the result, and that no query answer remains."""
        document = self.document(job_id)
        costs = [(query["epsilon_nano"], query["delta_atto"]) for query in document["odometer"]]
        assert self.charges_of(job_id) == [(f"{job_id}#{index}", *cost) for index, cost in enumerate(costs)]
        job, totals = self.job(job_id), [sum(amounts) for amounts in zip((0, 0), *costs, strict=True)]
        assert [document["epsilon_nano"], document["delta_atto"]] == totals
        assert (totals[0] <= job.epsilon_nano, totals[1] <= job.delta_atto) == (True, True)
        with self.database.reading() as session:
            assert not any(ledger.reserved_for(session, self.dataset_id, job_id))
        assert self.answers(job_id) == []
        assert not self.balance().is_over
