"""The ledger of a dataset: grants, reservations, charges, releases and expiries. Entries are never changed or deleted.

    grant ──► free ──reserve──► reserved ──charge──► charged
                ▲                   │
                └─────release───────┘       (a standalone round is charged directly from the free budget)

A cycle of a series has a grant and a reservation of its own. At its end, an expiry removes from the grants what it did
not spend.

Amounts are integers: nano-epsilon and atto-delta. One entry moves both by the same rule. Every entry stores the balance
after it and the hash of the previous entry. Charged plus reserved never exceeds granted, for both amounts.

A shuffled dataset has a second budget: the pair (epsilon, delta) towards an observer of its releases. A round charges
both budgets in one entry. The pair is never reserved, because it depends on the encoding of the round.

Under Gaussian accounting, entries also have mu^2, in units of 1e-12, and `sfumato.privacy.accountant` states what is
allowed. In a shuffled dataset, it is the mu^2 of the releases. Under additive accounting, these four columns are null
and not part of the hash.
"""

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from models.database.types import Base, Id
from sfumato.privacy import ledger as published

NEVER_OVER = (
    "(granted_shuffled_delta_atto = 0 AND granted_mu2_pico IS NOT NULL AND "
    "charged_mu2_pico + reserved_mu2_pico <= granted_mu2_pico) OR "
    "(charged_nano + reserved_nano <= granted_nano AND "
    "(granted_mu2_pico IS NULL OR charged_delta_atto + reserved_delta_atto = 0))"
)
NEVER_OVER_SHUFFLED = (
    "(charged_shuffled_nano <= granted_shuffled_nano AND charged_shuffled_delta_atto <= granted_shuffled_delta_atto "
    "AND (granted_shuffled_delta_atto = 0 OR granted_mu2_pico IS NULL)) OR "
    "(granted_shuffled_delta_atto > 0 AND granted_mu2_pico IS NOT NULL AND reserved_mu2_pico = 0 AND "
    "charged_mu2_pico <= granted_mu2_pico AND 2 * charged_shuffled_delta_atto <= granted_shuffled_delta_atto)"
)
NEVER_OVER_DELTA = "granted_mu2_pico IS NOT NULL OR charged_delta_atto + reserved_delta_atto <= granted_delta_atto"
NOT_NEGATIVE_MU2 = (
    "(mu2_pico IS NULL AND granted_mu2_pico IS NULL AND reserved_mu2_pico IS NULL AND charged_mu2_pico IS NULL) OR "
    "(mu2_pico IS NOT NULL AND granted_mu2_pico IS NOT NULL AND reserved_mu2_pico IS NOT NULL AND "
    "charged_mu2_pico IS NOT NULL AND mu2_pico >= 0 AND reserved_mu2_pico >= 0 AND charged_mu2_pico >= 0)"
)


class Kind(StrEnum):
    """Kind of a ledger entry."""

    GRANT = "grant"  # a privacy officer increases the budget
    RESERVE = "reserve"  # a job reserves its declared cost
    CHARGE = "charge"  # a round or a query spends
    RELEASE = "release"  # a job returns the unspent part of its reservation
    GAUSSIAN = "gaussian"  # a privacy officer switches the dataset to Gaussian accounting
    EXPIRE = "expire"  # the grant of a cycle ends: what was not spent is no longer granted


@dataclass(frozen=True, slots=True)
class Ceiling:
    """An upper limit that the operator sets; None is no limit.

    Attributes
    ----------
    epsilon_nano, delta_atto : int or None
    shuffled_nano : int or None
        Limit of the shuffled epsilon, if it differs from that of epsilon.
    is_largest_grant : bool
        Whether a source is limited by the largest grants of its datasets instead.
    """

    epsilon_nano: int | None = None
    delta_atto: int | None = None
    shuffled_nano: int | None = None
    is_largest_grant: bool = False


class LedgerHead(Base):
    """The end of a dataset's chain. Its row is the lock of the ledger."""

    __tablename__ = "ledger_heads"

    dataset_id: Mapped[str] = mapped_column(Id, primary_key=True, comment="dataset; the ledger outlives it")
    seq: Mapped[int] = mapped_column(BigInteger, comment="number of the last entry; 0 if none")
    hash: Mapped[str] = mapped_column(String(64), comment="hash of the last entry; detects a removed tail")


class LedgerEntry(Base):
    """One grant, reservation, charge, release or expiry. Rows are never changed or deleted."""

    __tablename__ = "ledger_entries"
    __table_args__ = (
        UniqueConstraint("dataset_id", "seq"),
        UniqueConstraint("dataset_id", "kind", "reference"),  # makes retries harmless
        Index("ix_ledger_entries_of_reservation", "dataset_id", "reservation", "seq"),
        Index("ix_ledger_entries_of_kind", "dataset_id", "kind", "seq"),
        CheckConstraint(NEVER_OVER, name="never_over"),
        CheckConstraint("epsilon_nano >= 0 AND charged_nano >= 0 AND reserved_nano >= 0", name="not_negative"),
        CheckConstraint(NEVER_OVER_DELTA, name="never_over_delta"),
        CheckConstraint(NOT_NEGATIVE_MU2, name="not_negative_mu2"),
        CheckConstraint(
            "delta_atto >= 0 AND charged_delta_atto >= 0 AND reserved_delta_atto >= 0", name="not_negative_delta"
        ),
        CheckConstraint(NEVER_OVER_SHUFFLED, name="never_over_shuffled"),
        CheckConstraint(
            "shuffled_nano >= 0 AND charged_shuffled_nano >= 0 AND "
            "shuffled_delta_atto >= 0 AND charged_shuffled_delta_atto >= 0",
            name="not_negative_shuffled",
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("ledger_heads.dataset_id"), comment="dataset of the ledger")
    seq: Mapped[int] = mapped_column(BigInteger, comment="1, 2, 3, ... without a gap")
    kind: Mapped[str] = mapped_column(String(8), comment="grant, reserve, charge, release, gaussian or expire")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="amount in nano-epsilon")
    reference: Mapped[str] = mapped_column(Id, comment="grant, job, round, query or cycle that the entry is for")
    reservation: Mapped[str | None] = mapped_column(Id, comment="job or cycle with the changed reservation")
    actor: Mapped[str] = mapped_column(Id, comment="key of the caller, or operator")
    at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    granted_nano: Mapped[int] = mapped_column(BigInteger, comment="nano-epsilon granted after this entry")
    reserved_nano: Mapped[int] = mapped_column(BigInteger, comment="nano-epsilon reserved after this entry")
    charged_nano: Mapped[int] = mapped_column(BigInteger, comment="nano-epsilon charged after this entry")
    prev_hash: Mapped[str] = mapped_column(String(64), comment="hash of the previous entry; zeros for the first")
    hash: Mapped[str] = mapped_column(String(64), comment="SHA-256 of this entry's canonical JSON without this column")
    delta_atto: Mapped[int] = mapped_column(BigInteger, comment="amount in atto-delta")
    granted_delta_atto: Mapped[int] = mapped_column(BigInteger, comment="atto-delta granted after this entry")
    reserved_delta_atto: Mapped[int] = mapped_column(BigInteger, comment="atto-delta reserved after this entry")
    charged_delta_atto: Mapped[int] = mapped_column(BigInteger, comment="atto-delta charged after this entry")
    shuffled_nano: Mapped[int] = mapped_column(BigInteger, comment="amount of the shuffled budget in nano-epsilon")
    shuffled_delta_atto: Mapped[int] = mapped_column(BigInteger, comment="amount of the shuffled budget in atto-delta")
    granted_shuffled_nano: Mapped[int] = mapped_column(BigInteger, comment="shuffled nano-epsilon granted after this")
    charged_shuffled_nano: Mapped[int] = mapped_column(BigInteger, comment="shuffled nano-epsilon charged after this")
    granted_shuffled_delta_atto: Mapped[int] = mapped_column(BigInteger, comment="shuffled delta granted after this")
    charged_shuffled_delta_atto: Mapped[int] = mapped_column(BigInteger, comment="shuffled delta charged after this")
    mu2_pico: Mapped[int | None] = mapped_column(BigInteger, comment="amount of mu^2 in 1e-12; null if additive")
    granted_mu2_pico: Mapped[int | None] = mapped_column(BigInteger, comment="limit of mu^2 after this entry")
    reserved_mu2_pico: Mapped[int | None] = mapped_column(BigInteger, comment="mu^2 reserved after this entry")
    charged_mu2_pico: Mapped[int | None] = mapped_column(BigInteger, comment="mu^2 charged after this entry")

    hashed_if_present = frozenset(published.MU2_MEMBERS)


class LedgerReservation(Base):
    """The remaining reservation of a job or a cycle. The row exists while an amount remains."""

    __tablename__ = "ledger_reservations"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("ledger_heads.dataset_id"), primary_key=True)
    job_id: Mapped[str] = mapped_column(Id, primary_key=True, comment="job or cycle with the reservation")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="remaining nano-epsilon")
    delta_atto: Mapped[int] = mapped_column(BigInteger, comment="remaining atto-delta")
    mu2_pico: Mapped[int | None] = mapped_column(BigInteger, comment="remaining mu^2; null if additive")
