"""A tenant with a central dataset in a database, records in it, and what its jobs leave behind; all seeded."""

import hashlib
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select

from models import dataset as datasets
from models import job as jobs
from models import ledger, record_key, result, tenant
from models import record as records
from models.answer import Answer
from models.dataset import Trust
from models.db import Database
from models.job import Job
from models.round import Collect
from models.sealing import Keyring, write_key
from models.tenant import Caller, Scope
from sfumato.accounting import NANO
from sfumato.specs import LATTICE, Feature

MASTER_KEY = hashlib.sha256(b"a test's").digest()
KEYRING = Keyring((MASTER_KEY,))
RECORDS_KEY = write_key(MASTER_KEY)  # as the setting holds it
ALGORITHM = {"type": "gated_grid_kmeans", "epsilon": 1.0, "clusters": 2, "seed": 0}
N_RECORDS = 1237
GRANTED = 4 * NANO


@dataclass
class Archive:
    """One central dataset of two features."""

    database: Database
    caller: Caller
    dataset_id: str

    @classmethod
    def create(
        cls, database: Database, *, n_records: int = N_RECORDS, max_per_user: int = 1, delta_atto: int = 0
    ) -> "Archive":
        """A fresh tenant and dataset; of several records a user all are one user's."""
        now = database.clock()
        features = (Feature("x", 0.0, 10.0), Feature("y", -1.0, 1.0))
        with database.transaction() as session:
            owner = tenant.get_or_create_tenant(session, tenant.FIRST_TENANT, now=now)
            key, _ = tenant.create_key(session, owner.id, name="test", scopes=[Scope.ADMIN], now=now)
            caller = Caller(key.id, owner.id, frozenset(key.scopes), None, None)
            made = datasets.create(
                session,
                caller,
                name="test",
                trust=Trust.CENTRAL,
                features=features,
                epsilon_nano=GRANTED,
                min_reports=1,
                keep_reports=False,
                max_datasets=10,
                user_feature=None if max_per_user == 1 else "user",
                max_records_per_user=max_per_user,
                delta_atto=delta_atto,
                now=now,
            )
        archive = cls(database, caller, made.id)
        if n_records:
            archive.add(n_records, users=None if max_per_user == 1 else [b"one"] * n_records)
        return archive

    def add(self, n_records: int, *, users: list[bytes] | None = None, seed: int = 0) -> None:
        """An upload."""
        points = np.random.default_rng(seed).beta(2, 5, size=(n_records, 2)) * LATTICE
        with self.database.transaction() as session:
            upload = records.Upload(record_key.open_or_make(session, self.dataset_id, KEYRING), 2)
            upload.add(points.astype(np.int32), users, 0)
            records.append(session, upload, max_records=10**9)

    def submit(self, *, epsilon_nano: int = NANO, delta_atto: int = 0, algorithm: dict = ALGORITHM) -> str:
        """Queue a job; its id."""
        with self.database.transaction() as session:
            return jobs.submit(
                session,
                self.caller,
                datasets.get(session, self.caller, self.dataset_id),
                algorithm=algorithm,
                epsilon_nano=epsilon_nano,
                delta_atto=delta_atto,
                collect=Collect(0, 0, 0),
                max_active_jobs=1000,
                now=self.database.clock(),
            ).id

    def cancel(self, job_id: str) -> Job:
        """Cancel as its tenant."""
        with self.database.transaction() as session:
            return jobs.cancel(session, self.caller, job_id, now=self.database.clock())

    def job(self, job_id: str) -> Job:
        """The job as it stands."""
        with self.database.reading() as session:
            return session.get_one(Job, job_id)

    def document(self, job_id: str) -> dict:
        """Its result's document."""
        with self.database.reading() as session:
            return result.get(session, job_id).document

    def answers(self, job_id: str) -> list[Answer]:
        """What is stored of its questions."""
        with self.database.reading() as session:
            return list(session.scalars(select(Answer).where(Answer.job_id == job_id).order_by(Answer.index)))

    def balance(self) -> ledger.Balance:
        """The ledger's balance; fails where its chain does not hold."""
        with self.database.reading() as session:
            assert ledger.verify(session, self.dataset_id).ok
            return ledger.balance(session, self.dataset_id)

    def posts(self, job_id: str) -> list[tuple[str, int]]:
        """What was posted for a job: reference and nano-epsilon, in order."""
        return [(entry.reference, entry.epsilon_nano) for entry in self._posts(job_id)]

    def posted_deltas(self, job_id: str) -> list[int]:
        """The same in atto-delta."""
        return [entry.delta_atto for entry in self._posts(job_id)]

    def _posts(self, job_id: str) -> list[ledger.LedgerEntry]:
        with self.database.reading() as session:
            entries = ledger.page(session, self.dataset_id, after_seq=0, limit=10_000)
        return [entry for entry in entries if entry.kind == ledger.Kind.POST and entry.reservation == job_id]

    def check(self, job_id: str) -> None:
        """One result; the ledger's postings are its odometer to the nano and the atto; nothing is left behind."""
        document = self.document(job_id)
        prices = [asked["epsilon_nano"] for asked in document["odometer"]]
        assert self.posts(job_id) == [(f"{job_id}#{index}", price) for index, price in enumerate(prices)]
        assert document["epsilon_nano"] == sum(prices) <= self.job(job_id).epsilon_nano
        deltas = [asked["delta_atto"] for asked in document["odometer"]]
        assert self.posted_deltas(job_id) == deltas
        assert document["delta_atto"] == sum(deltas) <= self.job(job_id).delta_atto
        with self.database.reading() as session:
            assert ledger.reserved_for(session, self.dataset_id, job_id) == (0, 0)
        assert self.answers(job_id) == []
        assert not self.balance().is_over
