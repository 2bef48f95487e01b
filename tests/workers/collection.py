"""A tenant with a dataset, and seeded devices that report to its rounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from sqlalchemy import select

from clustering.simulate import SeededEntropy, unit_features
from models import datasets
from models.collection import report_intake, rounds
from models.database.engine import Database
from models.identity import keys, tenants
from models.identity.caller import Caller
from models.jobs import jobs, lifecycle
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.datasets import Trust
from models.tables.identity import Scope
from models.tables.jobs import Job
from models.tables.ledger import Kind, LedgerEntry
from models.tables.rounds import CollectionTarget, Round, RoundState
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import below_many
from sfumato.records.outside import encode_many
from sfumato.specs import Feature, RoundSpec

ALGORITHM = {"type": "uniform_grid", "epsilon": 1.0, "clusters": None, "cells": None}


def packed_reports(spec: RoundSpec, n: int, seed: int, *, ids: np.ndarray | None = None) -> bytes:
    """Return the packed reports of n devices to a round."""
    entropy = SeededEntropy(seed)
    points = np.random.default_rng(seed).beta(2, 5, size=(n, spec.encoding.n_features))
    slots = below_many(entropy, spec.encoding.n_slots, n)
    in_unit = replace(spec, features=unit_features(points.shape[1]))
    values = spec.mechanism.perturb_many(encode_many(in_unit, points, slots, entropy), entropy)
    if ids is None:
        ids = SeededEntropy(seed + 1_000_000).words(2 * n).reshape(n, 2)
    parts = [ids.astype("<u8").view(np.uint8).reshape(n, 16), slots.astype("<u4").view(np.uint8).reshape(n, 4), values]
    return np.concatenate(parts, axis=1).tobytes()


def create_caller(database: Database) -> Caller:
    """Create a tenant and an admin key."""
    now = database.clock()
    with database.transaction() as session:
        owner = tenants.get_or_create_tenant(session, tenants.FIRST_TENANT, now=now)
        key, _ = keys.create_key(session, owner.id, name="test", scopes=[Scope.ADMIN], now=now)
    return Caller(key.id, owner.id, frozenset(key.scopes), None, None)


@dataclass
class OwnDataset:
    """A dataset and an admin key of its tenant."""

    database: Database
    caller: Caller
    dataset_id: str

    def cancel(self, job_id: str) -> Job:
        """Cancel a job as its tenant."""
        with self.database.transaction() as session:
            return lifecycle.cancel(session, self.caller, job_id, now=self.database.clock())

    def job(self, job_id: str) -> Job:
        """Return the stored job."""
        with self.database.reading() as session:
            return session.get_one(Job, job_id)

    def document(self, job_id: str) -> dict:
        """Return the result document of a job."""
        with self.database.reading() as session:
            return jobs.get_result(session, job_id).document

    def balance(self) -> ledger.Balance:
        """Verify the ledger and return its balance."""
        with self.database.reading() as session:
            assert ledger.verify(session, self.dataset_id).ok
            return ledger.balance(session, self.dataset_id)

    def charges(self) -> list[LedgerEntry]:
        """Return the charges in order."""
        with self.database.reading() as session:
            entries = ledger.page(session, self.dataset_id, after_seq=0, limit=10_000)
        return [entry for entry in entries if entry.kind == Kind.CHARGE]


class Collection(OwnDataset):
    """A dataset with a grant of 32 epsilon, and seeded devices."""

    @classmethod
    def create(
        cls,
        database: Database,
        *,
        features: tuple[Feature, ...] = (Feature("x", 0.0, 10.0),),
        min_reports: int = 1,
        keep_reports: bool = False,
    ) -> "Collection":
        """Create a tenant and a dataset."""
        caller = create_caller(database)
        with database.transaction() as session:
            created = datasets.create(
                session,
                caller,
                name="test",
                trust=Trust.LOCAL,
                features=features,
                epsilon_nano=32 * NANO,
                min_reports=min_reports,
                keep_reports=keep_reports,
                max_datasets=10,
                now=database.clock(),
            )
        return cls(database, caller, created.id)

    def submit(
        self,
        *,
        target_reports: int = 200,
        min_reports: int = 0,
        seconds: int = 3600,
        round_ids: Sequence[str] = (),
        algorithm: dict = ALGORITHM,
        epsilon_nano: int = NANO,
    ) -> str:
        """Submit a job and return its id."""
        with self.database.transaction() as session:
            return lifecycle.submit(
                session,
                self.caller,
                datasets.get(session, self.caller, self.dataset_id),
                lifecycle.NewJob(
                    algorithm,
                    Amounts(epsilon_nano),
                    CollectionTarget(target_reports, min_reports, seconds),
                    round_ids=round_ids,
                ),
                max_active_jobs=1000,
                now=self.database.clock(),
            ).id

    def open_alone(self, spec: RoundSpec, *, target_reports: int = 200, min_reports: int = 0) -> str:
        """Open a standalone round and return its id."""
        with self.database.transaction() as session:
            return rounds.open_standalone(
                session,
                self.caller,
                datasets.get(session, self.caller, self.dataset_id),
                spec,
                CollectionTarget(target_reports, min_reports, 3600),
                max_open_rounds=10,
                now=self.database.clock(),
            ).id

    def rounds_of(self, job_id: str) -> list[Round]:
        """Return the rounds of a job."""
        with self.database.reading() as session:
            return rounds.list_for_job(session, job_id)

    def find_open_round(self) -> Round | None:
        """Return the newest open round of the dataset."""
        with self.database.reading() as session:
            query = select(Round).where(Round.dataset_id == self.dataset_id, Round.state == RoundState.OPEN)
            return session.scalars(query.order_by(Round.id.desc())).first()

    def get_open_round(self) -> Round:
        """Return the newest open round, which must exist."""
        opened = self.find_open_round()
        assert opened is not None
        return opened

    def answer(self, opened: Round, n: int, *, batches: int = 3, seed: int = 0) -> None:
        """Store the reports of n devices in several groups. A full round closes."""
        width = len(packed_reports(opened.spec, 1, 0))
        packed = packed_reports(opened.spec, n, seed + opened.index)
        cuts = [n * i // batches * width for i in range(batches + 1)]
        for begin, end in pairwise(cuts):
            with self.database.transaction() as session:
                part = packed[begin:end]
                report_intake.receive(session, opened.id, len(part) // width, part, now=self.database.clock())

    def fill(self, opened: Round, *, seed: int = 0) -> None:
        """Store exactly as many reports as the round needs, so that it closes."""
        self.answer(opened, opened.target_reports, seed=seed)

    def close(self, round_id: str, *, now: int | None = None) -> None:
        """Close a round as its tenant."""
        with self.database.transaction() as session:
            rounds.close(session, self.caller, round_id, now=now or self.database.clock())
