"""Rounds and the report log.

A round publishes one spec to the devices until it is full, past its time, or closed:

    open ──(full | past closes_at | closed by a key | job ended)──► closed ──(aggregation)──► tallied
                                                                       │                         ▲
                                   (every aggregating worker was lost) └──► failed ──(a job's aggregation)

The transaction that opens a round also charges its cost.

The report log is append-only. Each row contains the packed reports of one round from one group commit, or one large
request. A packed report is the report id (16 bytes), the slot (4 bytes, little-endian) and the value (fixed width per
mechanism). A row contains no time and no device; its number gives the order of commits only. Rows are never changed.
The rows of a tallied round are deleted unless it opened with `keep_reports`, which its devices read.

The round of a shuffled dataset accepts one batch of sealed reports instead, which its shuffler signs. The batch closes
the round. Its rows contain sealed reports until a worker opens them for the tally. Each round has an HPKE key pair; the
private key is encrypted by a master key and deleted with the reports.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, deferred, mapped_column

from models.database.types import Base, CanonicalJson, Id
from sfumato.privacy.accounting import NANO
from sfumato.privacy.shuffling import honest_reports
from sfumato.sizing.rounds import expected_reports
from sfumato.specs import Participation, RoundSpec, round_spec_from_wire

RELEASE_SECONDS = 3_600  # seconds after `closes_at` in which the shuffler may release a round


class RoundState(StrEnum):
    """State of a round."""

    OPEN = "open"  # accepts reports
    CLOSED = "closed"  # accepts no reports; aggregation is due
    TALLIED = "tallied"  # the tally is stored; the retention rule has removed the reports
    FAILED = "failed"  # all aggregating workers were lost; reports remain, and a job may aggregate them


class Round(Base):
    """One spec, its cost, and its tally."""

    __tablename__ = "rounds"
    __table_args__ = (
        UniqueConstraint("job_id", "index"),
        # Without statistics, SQLite picks the index that covers most columns of a query. Each query has its own index.
        Index("ix_rounds_of_dataset", "dataset_id", "id"),
        Index("ix_rounds_of_dataset_by_state", "dataset_id", "state", "closes_at"),
        Index("ix_rounds_of_job_by_state", "job_id", "state"),
        Index("ix_rounds_of_collection", "collection_id", "id"),
        Index("ix_rounds_by_time", "state", "closes_at"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    job_id: Mapped[str | None] = mapped_column(Id, comment="job that opened the round; null for a standalone round")
    collection_id: Mapped[str] = mapped_column(Id, comment="job, round or cycle, with one draw per device")
    index: Mapped[int] = mapped_column(Integer, comment="0, 1, ... within the collection")
    spec_wire: Mapped[dict[str, Any]] = mapped_column("spec", CanonicalJson, comment="published spec; never changed")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="cost of a report for a device, in nano-epsilon")
    target_reports: Mapped[int] = mapped_column(BigInteger, comment="number of reports that closes the round")
    min_reports: Mapped[int] = mapped_column(BigInteger, comment="minimum number of reports in the tally")
    keep_reports: Mapped[bool] = mapped_column(Boolean, comment="true keeps reports after the tally; never changed")
    closes_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch; end of the round")
    state: Mapped[str] = mapped_column(String(8), comment="open, closed, tallied or failed")
    n_received: Mapped[int] = mapped_column(BigInteger, comment="acknowledged reports, including duplicates")
    opened_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    closed_at: Mapped[int | None] = mapped_column(BigInteger)
    tallied_at: Mapped[int | None] = mapped_column(BigInteger)
    aggregation_lease_until: Mapped[int | None] = mapped_column(BigInteger, comment="end of the worker's lease")
    aggregation_attempts: Mapped[int] = mapped_column(Integer, comment="claims by workers to aggregate the round")
    n_reports: Mapped[int | None] = mapped_column(BigInteger, comment="distinct reports in the tally")
    tally: Mapped[bytes | None] = deferred(mapped_column(LargeBinary, comment="the tally, packed"))
    min_batch: Mapped[int | None] = mapped_column(
        BigInteger, comment="minimum number of reports in a release; shuffled only"
    )
    honest_share_nano: Mapped[int | None] = mapped_column(
        BigInteger, comment="share of honest reports, in units of 1e-9"
    )
    shuffled_nano: Mapped[int | None] = mapped_column(BigInteger, comment="cost of the release, in nano-epsilon")
    shuffled_delta_atto: Mapped[int | None] = mapped_column(BigInteger, comment="cost of the release, in atto-delta")
    shuffled_mu2_pico: Mapped[int | None] = mapped_column(
        BigInteger, comment="mu^2 of the release, in 1e-12; null if additive"
    )
    hpke_public_key: Mapped[bytes | None] = mapped_column(LargeBinary(32), comment="X25519 key that seals reports")
    count_at: Mapped[int | None] = mapped_column(
        BigInteger, comment="received reports at which distinct ones are counted next; null for the target"
    )
    release_digest: Mapped[bytes | None] = mapped_column(LargeBinary(32), comment="SHA-256 of the released batch")

    @property
    def spec(self) -> RoundSpec:
        """Return the published spec."""
        return round_spec_from_wire(self.spec_wire)

    @property
    def release(self) -> "ReleaseTerms | None":
        """Return the terms of the release; None if devices send their reports to the service."""
        if self.min_batch is None:
            return None
        return ReleaseTerms(self.min_batch, self.honest_share_nano or 0, self.shuffled_delta_atto or 0)


class RoundKey(Base):
    """The HPKE private key of a round, encrypted. The row is deleted with the reports."""

    __tablename__ = "round_keys"

    round_id: Mapped[str] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    sealed_by: Mapped[str] = mapped_column(String(16), index=True, comment="id of the master key")
    sealed: Mapped[bytes] = mapped_column(LargeBinary, comment="nonce, ciphertext and tag of the HPKE private key")

    @property
    def belongs_to(self) -> bytes:
        """Return the associated data of the ciphertext."""
        return f"sfumato round key|{self.round_id}".encode()


@dataclass(frozen=True, slots=True)
class ReleaseTerms:
    """Conditions under which a shuffler releases a round, from which its shuffled cost follows.

    Attributes
    ----------
    min_batch : int
        Minimum number of reports in a release.
    honest_share_nano : int
        Share of the reports that come from honest devices, in units of 1e-9.
    delta_atto : int
        Delta of the release, in atto-delta.
    """

    min_batch: int
    honest_share_nano: int
    delta_atto: int

    @property
    def n_honest(self) -> int:
        """Return n, the number of honest reports in a release of `min_batch` reports. Raise InvalidSpec if it is 0."""
        return honest_reports(self.min_batch, Fraction(self.honest_share_nano, NANO))


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a job's only round in a collection that several jobs share.

    Attributes
    ----------
    collection_id : str
        The cycle. The round charges its reservation.
    participation : Participation
        Participation draws that answer the round, disjoint from those of the other rounds.
    closes_at : int
        End of the round, in microseconds since the epoch.
    """

    collection_id: str
    participation: Participation
    closes_at: int


@dataclass(frozen=True, slots=True)
class CollectionTarget:
    """Number of reports and time limit of a collection.

    Attributes
    ----------
    target_reports : int
        Devices expected to take part, each in the rounds that its participation draw selects.
    min_reports : int
        Devices needed.
    seconds : int
        Time for which each round stays open, in seconds.
    release : ReleaseTerms, optional
        Terms of a shuffled collection; `min_batch` counts devices of all rounds.
    """

    target_reports: int
    min_reports: int
    seconds: int
    release: ReleaseTerms | None = None

    def share(self, participation: Participation) -> "CollectionTarget":
        """Return the target of one round: its share of each number, see `expected_reports`."""
        release = self.release
        if release is not None:
            release = replace(release, min_batch=expected_reports(release.min_batch, participation))
        return CollectionTarget(
            expected_reports(self.target_reports, participation),
            expected_reports(self.min_reports, participation),
            self.seconds,
            release,
        )


Octets = bytes | memoryview


class ReportBatch(Base):
    """The reports of one round from one group commit."""

    __tablename__ = "report_batches"

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True, comment="order of arrival"
    )
    round_id: Mapped[str] = mapped_column(ForeignKey("rounds.id"), index=True)
    n_reports: Mapped[int] = mapped_column(Integer)
    packed: Mapped[bytes] = mapped_column(LargeBinary, comment="n_reports packed reports of equal width")
