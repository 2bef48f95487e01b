"""A database of the audit's own, and what a ledger is in a few plain lines."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy.orm import Session

from models import ledger
from models.db import SECOND, Database, migrate
from models.ledger import Amounts, Balance
from sfumato.entropy import Entropy, below

START = 1_800_000_000 * SECOND  # of the clock, which ticks once for each look at it
ACTOR = "key_audit"
_PREFIX = "sfumato-audit-"  # of the folders

_EPSILONS = (0, 1_000_000_000, 999_999_999, 333_333_333, 1)  # nano
_DELTAS = (0, 1_000_000_000_000, 333_333_333_333, 1, 0)  # atto


@contextmanager
def temporary_database() -> Iterator[Database]:
    """An empty SQLite database in a folder of its own, gone in the end: never a user's."""
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
    """A database on which the migrations ran, and nothing else; once for each process."""
    with TemporaryDirectory(prefix=_PREFIX) as folder:
        path = Path(folder) / "empty.db"
        migrate(f"sqlite:///{path}")
        return path.read_bytes()


@contextmanager
def undone(database: Database) -> Iterator[Session]:
    """A transaction whose process ends before its commit."""

    class _Ended(BaseException):
        pass

    try:
        with database.transaction() as session:
            yield session
            raise _Ended
    except _Ended:
        pass


def open_books(database: Database, name: str) -> str:
    """A fresh ledger; its dataset's id."""
    with database.transaction() as session:
        ledger.open_ledger(session, name)
    return name


@dataclass
class Book:
    """What a ledger is, of one currency."""

    granted: int = 0
    posted: int = 0
    held: dict[str, int] = field(default_factory=dict)  # by job

    @property
    def reserved(self) -> int:
        return sum(self.held.values())

    def bears(self, kind: str, amount: int, job_id: str | None) -> bool:
        """Whether a charge is to be accepted."""
        if kind == "post" and job_id is not None:
            return amount <= self.held.get(job_id, 0)
        return kind in ("grant", "release") or amount <= self.granted - self.posted - self.reserved

    def enter(self, kind: str, amount: int, job_id: str | None) -> None:
        """Apply a charge."""
        self.granted += amount if kind == "grant" else 0
        self.posted += amount if kind == "post" else 0
        if job_id is not None:
            self.held[job_id] = self.held.get(job_id, 0) + (amount if kind == "reserve" else -amount)


@dataclass
class Books:
    """The two currencies of one dataset, which move together or not at all."""

    epsilon: Book = field(default_factory=Book)
    delta: Book = field(default_factory=Book)

    def bear(self, kind: str, amounts: Amounts, job_id: str | None) -> bool:
        """Whether a charge is to be accepted."""
        return all(book.bears(kind, amount, job_id) for book, amount in self._each(amounts))

    def enter(self, kind: str, amounts: Amounts, job_id: str | None) -> None:
        """Apply a charge."""
        for book, amount in self._each(amounts):
            book.enter(kind, amount, job_id)

    def held(self, job_id: str) -> Amounts:
        """What a job holds."""
        return Amounts(self.epsilon.held.get(job_id, 0), self.delta.held.get(job_id, 0))

    @property
    def balance(self) -> Balance:
        return Balance(
            *(part for book in (self.epsilon, self.delta) for part in (book.granted, book.reserved, book.posted))
        )

    def _each(self, amounts: Amounts) -> Iterator[tuple[Book, int]]:
        yield from zip((self.epsilon, self.delta), amounts, strict=True)


def an_amount(entropy: Entropy, *, least: int = 0, most: int) -> Amounts:
    """Amounts that meet limits: nothing (of delta often), one unit, or up to `most` thirds or wholes."""
    epsilon, delta = (parts[max(least, below(entropy, len(parts)))] for parts in (_EPSILONS, _DELTAS))
    return Amounts(epsilon * (1 + below(entropy, most)), delta * (1 + below(entropy, most)))
