"""Jobs, the query answers of jobs over records, results, and stored responses of idempotent requests.

    queued ──claim──► running ──(opens a round)──► collecting ──(rounds closed; claim)──► running
       │                 │  ▲                          │
       │                 │  └──(lease expired; claim)──┘
       └─────────────────┴──► succeeded | failed | canceled | expired

A worker's claim on a running job consists of a lease and a fence. Each claim increases the fence. Every write of a
worker checks its fence, so a stale worker writes nothing. The result, the release in the ledger and the final state are
one transaction.
"""

import json
import zlib
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Boolean, ColumnElement, ForeignKey, Index, Integer, LargeBinary, String, bindparam
from sqlalchemy.orm import Mapped, mapped_column

from models.database.types import SECOND, Base, CanonicalJson, Id
from models.tables.rounds import CollectionTarget, ReleaseTerms

COARSE_MICROSECONDS = 60 * SECOND  # resolution of the public times of a job over records


class JobState(StrEnum):
    """State of a job."""

    QUEUED = "queued"  # waits for a worker
    RUNNING = "running"  # claimed by a worker
    COLLECTING = "collecting"  # waits for reports
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"  # a round ended with too few reports


FINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELED, JobState.EXPIRED})
UNFINISHED = sorted(set(JobState) - FINAL)


class Job(Base):
    """One request for a clustering."""

    __tablename__ = "jobs"
    __table_args__ = (  # serve pages
        Index("ix_jobs_of_tenant", "tenant_id", "id"),
        Index("ix_jobs_of_tenant_and_dataset", "tenant_id", "dataset_id", "id"),
        Index("ix_jobs_of_tenant_by_state", "tenant_id", "state", "id"),
        Index("ix_jobs_of_tenant_by_algorithm", "tenant_id", "algorithm_type", "id"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    algorithm: Mapped[dict[str, Any]] = mapped_column(CanonicalJson, comment="type and parameters")
    round_ids: Mapped[list[str]] = mapped_column(CanonicalJson, comment="earlier rounds to cluster; may be empty")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="nano-epsilon reserved at submission")
    target_reports: Mapped[int] = mapped_column(BigInteger, comment="devices expected to take part; 0 over records")
    min_reports: Mapped[int] = mapped_column(BigInteger, comment="devices needed")
    collect_seconds: Mapped[int] = mapped_column(BigInteger, comment="seconds for which each round stays open")
    state: Mapped[str] = mapped_column(String(10), index=True)
    attempts: Mapped[int] = mapped_column(Integer, comment="claims since the job last made progress")
    fence: Mapped[int] = mapped_column(BigInteger, comment="number of claims; a claim with a lower fence is stale")
    lease_until: Mapped[int | None] = mapped_column(BigInteger, comment="end of the worker's lease")
    cancel_requested: Mapped[bool] = mapped_column(Boolean, comment="true if the worker must cancel the job")
    created_by: Mapped[str] = mapped_column(Id, comment="key that submitted the job; actor of its ledger entries")
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    started_at: Mapped[int | None] = mapped_column(BigInteger, comment="time of the first claim")
    finished_at: Mapped[int | None] = mapped_column(BigInteger)
    error_code: Mapped[str | None] = mapped_column(String(40))
    error_detail: Mapped[str | None] = mapped_column(String(500), comment="message for people, without private values")
    delta_atto: Mapped[int] = mapped_column(BigInteger, comment="atto-delta reserved at submission")
    verdict: Mapped[str | None] = mapped_column(String(10), comment="verdict of the result; null without a result")
    min_batch: Mapped[int | None] = mapped_column(BigInteger, comment="devices needed for releases; shuffled only")
    honest_share_nano: Mapped[int | None] = mapped_column(
        BigInteger, comment="share of honest reports, in units of 1e-9"
    )
    shuffled_delta_atto: Mapped[int | None] = mapped_column(BigInteger, comment="delta of each release, in atto-delta")
    algorithm_type: Mapped[str | None] = mapped_column(String(40), comment="type in `algorithm`, for lists")

    collection_id: Mapped[str | None] = mapped_column(
        Id, comment="cycle of the series that submitted the job, with the reservation; null for other jobs"
    )
    features: Mapped[list[str] | None] = mapped_column(
        CanonicalJson, comment="names of the features that the job uses; null for all"
    )

    @property
    def is_final(self) -> bool:
        """Return whether the job has ended."""
        return self.state in FINAL

    def public_time(self, now: int) -> int:
        """Return the time to publish for an event of this job at `now`.

        The duration of a job over records reveals the number of records. Its times are therefore published as the
        submission time plus 0, 1, 2, 4, 8, ... minutes, rounded down.
        """
        if self.round_ids or self.target_reports:
            return now
        minutes = max(0, now - self.created_at) // COARSE_MICROSECONDS
        return self.created_at + (1 << minutes.bit_length() >> 1) * COARSE_MICROSECONDS

    @property
    def collection_target(self) -> CollectionTarget:
        """Return the target of the whole collection. Each round has a share of it."""
        release = None
        if self.min_batch is not None:
            release = ReleaseTerms(self.min_batch, self.honest_share_nano or 0, self.shuffled_delta_atto or 0)
        return CollectionTarget(self.target_reports, self.min_reports, self.collect_seconds, release)


def is_unfinished(job: type[Job] = Job) -> ColumnElement[bool]:
    """Return the predicate of the partial index on unfinished jobs.

    It uses literal values, because the planner ignores the index for bound parameters.
    """
    return job.state.in_(bindparam("unfinished", UNFINISHED, expanding=True, literal_execute=True, unique=True))


# Claims read unfinished jobs only; their cost does not depend on the number of finished jobs.
# The migration makes it partial. Its predicate here would load two dialects with all their drivers at each start.
Index("ix_jobs_unfinished", Job.tenant_id, Job.id)


class QueryAnswer(Base):
    """A charged query of a job over records, with its answer once the curator has drawn it."""

    __tablename__ = "query_answers"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    index: Mapped[int] = mapped_column(Integer, primary_key=True, comment="0, 1, ... within the job")
    description: Mapped[str] = mapped_column(String(40), comment="name of the query in the odometer")
    n_values: Mapped[int] = mapped_column(BigInteger, comment="number of values in the answer")
    digest: Mapped[str] = mapped_column(String(32), comment="digest of the query's public arguments")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="nano-epsilon charged")
    charged_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    packed: Mapped[bytes | None] = mapped_column(LargeBinary, comment="noisy values; null until stored")
    delta_atto: Mapped[int] = mapped_column(BigInteger, comment="atto-delta charged")


class Result(Base):
    """The released document of a job. It is written once and never deleted; only the names of clusters change."""

    __tablename__ = "results"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    created_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    software_version: Mapped[str] = mapped_column(String(40), comment="version that computed the result")
    packed: Mapped[bytes] = mapped_column(LargeBinary, deferred=True, comment="canonical JSON document, deflated")
    cluster_names: Mapped[list[str] | None] = mapped_column(
        CanonicalJson, comment="names that an analyst gave to the clusters; null for none"
    )

    @property
    def document(self) -> dict[str, Any]:
        """Return the released document as plain JSON values."""
        value: dict[str, Any] = json.loads(zlib.decompress(self.packed))
        return value


class IdempotentResponse(Base):
    """The stored response of a request with an idempotency key."""

    __tablename__ = "idempotent_responses"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True, comment="the client's Idempotency-Key")
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary(32), comment="SHA-256 of method, path and body")
    status: Mapped[int] = mapped_column(Integer, comment="HTTP status; 0 until the first request ends")
    location: Mapped[str | None] = mapped_column(String(200))
    body: Mapped[bytes] = mapped_column(LargeBinary, comment="JSON body")
    created_at: Mapped[int] = mapped_column(BigInteger, index=True, comment="microseconds; deleted a day later")
