"""A tenant with a dataset in a database, and devices that answer its rounds; all seeded."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from sqlalchemy import select

from clustering.simulate import SeededEntropy
from models import dataset as datasets
from models import job as jobs
from models import ledger, result, tenant
from models import round as rounds
from models.dataset import Trust
from models.db import Database
from models.job import Job
from models.round import Collect, Round, RoundState
from models.tenant import Caller, Scope
from sfumato.accounting import NANO
from sfumato.encodings import symbols
from sfumato.entropy import below_many
from sfumato.mechanisms import perturb_many
from sfumato.specs import Feature, RoundSpec

ALGORITHM = {"type": "uniform_grid", "epsilon": 1.0, "clusters": None, "cells": None}


def packed_reports(spec: RoundSpec, n: int, seed: int, *, ids: np.ndarray | None = None) -> bytes:
    """n devices' reports to a round, as the log holds them."""
    entropy = SeededEntropy(seed)
    points = np.random.default_rng(seed).beta(2, 5, size=(n, spec.encoding.n_features))
    slots = below_many(entropy, spec.encoding.n_slots, n)
    values = perturb_many(spec.mechanism, symbols(spec.encoding, points, slots), entropy)
    if ids is None:
        ids = SeededEntropy(seed + 1_000_000).words(2 * n).reshape(n, 2)
    parts = [ids.astype("<u8").view(np.uint8).reshape(n, 16), slots.astype("<u4").view(np.uint8).reshape(n, 4), values]
    return np.concatenate(parts, axis=1).tobytes()


@dataclass
class Collection:
    """One dataset, with 32 epsilon granted."""

    database: Database
    caller: Caller
    dataset_id: str

    @classmethod
    def create(
        cls,
        database: Database,
        *,
        features: tuple[Feature, ...] = (Feature("x", 0.0, 10.0),),
        min_reports: int = 0,
        keep_reports: bool = False,
    ) -> "Collection":
        """A fresh tenant and dataset."""
        now = database.clock()
        with database.transaction() as session:
            owner = tenant.get_or_create_tenant(session, tenant.FIRST_TENANT, now=now)
            key, _ = tenant.create_key(session, owner.id, name="test", scopes=[Scope.ADMIN], now=now)
            caller = Caller(key.id, owner.id, frozenset(key.scopes), None, None)
            made = datasets.create(
                session,
                caller,
                name="test",
                trust=Trust.LOCAL,
                features=features,
                epsilon_nano=32 * NANO,
                min_reports=min_reports,
                keep_reports=keep_reports,
                max_datasets=10,
                now=now,
            )
        return cls(database, caller, made.id)

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
        """Queue a job; its id."""
        with self.database.transaction() as session:
            made = jobs.submit(
                session,
                self.caller,
                datasets.get(session, self.caller, self.dataset_id),
                algorithm=algorithm,
                epsilon_nano=epsilon_nano,
                collect=Collect(target_reports, min_reports, seconds),
                round_ids=round_ids,
                max_active_jobs=1000,
                now=self.database.clock(),
            )
        return made.id

    def open_alone(self, spec: RoundSpec, *, target_reports: int = 200, min_reports: int = 0) -> str:
        """A round of its own; its id."""
        with self.database.transaction() as session:
            return rounds.open_standalone(
                session,
                self.caller,
                datasets.get(session, self.caller, self.dataset_id),
                spec,
                Collect(target_reports, min_reports, 3600),
                max_open_rounds=10,
                now=self.database.clock(),
            ).id

    def job(self, job_id: str) -> Job:
        """The job as it stands."""
        with self.database.reading() as session:
            return session.get_one(Job, job_id)

    def document(self, job_id: str) -> dict:
        """Its result's document."""
        with self.database.reading() as session:
            return result.get(session, job_id).document

    def rounds_of(self, job_id: str) -> list[Round]:
        """Its own rounds."""
        with self.database.reading() as session:
            return rounds.of_job(session, job_id)

    def open_round(self) -> Round | None:
        """The dataset's newest open round."""
        with self.database.reading() as session:
            query = select(Round).where(Round.dataset_id == self.dataset_id, Round.state == RoundState.OPEN)
            return session.scalars(query.order_by(Round.id.desc())).first()

    def answer(self, asked: Round, n: int, *, batches: int = 3, seed: int = 0) -> None:
        """n devices answer, in several groups; a full round closes."""
        width = len(packed_reports(asked.spec, 1, 0))
        packed = packed_reports(asked.spec, n, seed + asked.index)
        cuts = [n * i // batches * width for i in range(batches + 1)]
        for begin, end in pairwise(cuts):
            with self.database.transaction() as session:
                part = packed[begin:end]
                rounds.receive(session, asked.id, len(part) // width, part, now=self.database.clock())

    def fill(self, asked: Round, *, seed: int = 0) -> None:
        """Just as many devices answer as the round waits for; it closes."""
        self.answer(asked, asked.target_reports, seed=seed)

    def close(self, round_id: str, *, now: int | None = None) -> None:
        """Close a round by hand."""
        with self.database.transaction() as session:
            rounds.close(session, self.caller, round_id, now=now or self.database.clock())

    def balance(self) -> ledger.Balance:
        """The ledger's balance; fails where its chain does not hold."""
        with self.database.reading() as session:
            assert ledger.verify(session, self.dataset_id).ok
            return ledger.balance(session, self.dataset_id)

    def posts(self) -> list[int]:
        """What was posted, entry by entry, in nano-epsilon."""
        with self.database.reading() as session:
            entries = ledger.page(session, self.dataset_id, after_seq=0, limit=1000)
        return [entry.epsilon_nano for entry in entries if entry.kind == ledger.Kind.POST]
