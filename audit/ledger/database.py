"""A temporary database for ledger checks, and a reference ledger in a few plain lines."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy.orm import Session

from models.database.engine import Database
from models.database.schema import migrate
from models.database.types import SECOND
from models.ledger import ledger
from models.ledger.amounts import Amounts, Balance
from sfumato.privacy.entropy import Entropy, below

START = 1_800_000_000 * SECOND  # first time of the clock, which advances by a second per reading
ACTOR = "key_audit"
_PREFIX = "sfumato-audit-"  # prefix of temporary folders

_EPSILONS = (0, 1_000_000_000, 999_999_999, 333_333_333, 1)  # nano
_DELTAS = (0, 1_000_000_000_000, 333_333_333_333, 1, 0)  # atto


@contextmanager
def temporary_database() -> Iterator[Database]:
    """Create an empty SQLite database in a temporary folder, and delete it at the end."""
    with TemporaryDirectory(prefix=_PREFIX) as folder:
        path = Path(folder) / "ledger.db"
        path.write_bytes(_migrated())
        ticks = count(START, SECOND)
        database = Database(f"sqlite:///{path}", clock=lambda: next(ticks))
        try:
            yield database
        finally:
            database.close()


@cache
def _migrated() -> bytes:
    """Return an empty database after all migrations; built once per process."""
    with TemporaryDirectory(prefix=_PREFIX) as folder:
        path = Path(folder) / "empty.db"
        migrate(f"sqlite:///{path}")
        return path.read_bytes()


@contextmanager
def roll_back(database: Database) -> Iterator[Session]:
    """Open a transaction that ends before its commit, as if the process crashed."""

    class _End(BaseException):
        pass

    try:
        with database.transaction() as session:
            yield session
            raise _End
    except _End:
        pass


def open_ledger(database: Database, name: str) -> str:
    """Open a ledger and return its dataset id."""
    with database.transaction() as session:
        ledger.open_ledger(session, name)
    return name


@dataclass
class Account:
    """The reference ledger of one currency."""

    granted: int = 0
    charged: int = 0
    reserved_by_job: dict[str, int] = field(default_factory=dict)  # per job

    @property
    def reserved(self) -> int:
        return sum(self.reserved_by_job.values())

    def accepts(self, kind: str, amount: int, job_id: str | None) -> bool:
        """Return whether a charge fits."""
        if kind == "charge" and job_id is not None:
            return amount <= self.reserved_by_job.get(job_id, 0)
        return kind in ("grant", "release", "open", "expire") or amount <= self.granted - self.charged - self.reserved

    def apply(self, kind: str, amount: int, job_id: str | None) -> None:
        """Apply a charge."""
        self.granted += {"grant": amount, "expire": -amount}.get(kind, 0)
        self.charged += amount if kind == "charge" else 0
        if job_id is not None:
            self.reserved_by_job[job_id] = self.reserved_by_job.get(job_id, 0) + (
                amount if kind == "reserve" else -amount
            )


@dataclass
class ReferenceLedger:
    """The accounts of epsilon and delta of one dataset. Both change together or not at all."""

    epsilon: Account = field(default_factory=Account)
    delta: Account = field(default_factory=Account)

    def accepts(self, kind: str, amounts: Amounts, job_id: str | None) -> bool:
        """Return whether a charge fits."""
        return all(account.accepts(kind, amount, job_id) for account, amount in self._each(amounts))

    def apply(self, kind: str, amounts: Amounts, job_id: str | None) -> None:
        """Apply a charge."""
        for account, amount in self._each(amounts):
            account.apply(kind, amount, job_id)

    def reserved_for(self, job_id: str) -> Amounts:
        """Return the reserved amounts of a job."""
        return Amounts(self.epsilon.reserved_by_job.get(job_id, 0), self.delta.reserved_by_job.get(job_id, 0))

    @property
    def balance(self) -> Balance:
        return Balance(
            *(
                part
                for account in (self.epsilon, self.delta)
                for part in (account.granted, account.reserved, account.charged)
            )
        )

    def _each(self, amounts: Amounts) -> Iterator[tuple[Account, int]]:
        yield from zip((self.epsilon, self.delta), amounts[:2], strict=True)


def draw_amounts(entropy: Entropy, *, least: int = 0, most: int) -> Amounts:
    """Draw amounts close to limits: nothing (often for delta), one unit, or up to `most` thirds or wholes."""
    epsilon, delta = (parts[max(least, below(entropy, len(parts)))] for parts in (_EPSILONS, _DELTAS))
    return Amounts(epsilon * (1 + below(entropy, most)), delta * (1 + below(entropy, most)))
