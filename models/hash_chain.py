"""Hash chains of numbered entries: the ledger of a dataset, and the audit trail of a tenant.

Each entry has the number and the hash after those of the previous entry. A head row stores the number and hash of the
last entry, and its lock serialises appends. A changed, missing or removed entry therefore breaks the chain.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from models.database.types import canonical_json
from sfumato.privacy.ledger import GENESIS_HASH, Head

_ENTRIES_PER_PAGE = 1000


class Linked(Protocol):
    """An entry of a chain: a row with a number, the previous hash, and a hash."""

    __table__: ClassVar[Any]
    seq: Any
    prev_hash: Any
    hash: Any


E = TypeVar("E", bound=Linked)


@dataclass(frozen=True, slots=True)
class ChainVerification:
    """The outcome of a verification.

    Attributes
    ----------
    n_entries : int
        Number of valid entries.
    head_hash : str
        Hash of the last valid entry.
    broken_at : int or None
        Number of the first invalid entry; None if the chain is valid.
    reason : str
    """

    n_entries: int
    head_hash: str
    broken_at: int | None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Return whether the chain is valid."""
        return self.broken_at is None


def hash_entry(entry: Linked) -> str:
    """Return the SHA-256 of the canonical JSON of all columns except `hash`.

    A table may name columns that are part of it only where they are not null (`hashed_if_present`).
    """
    optional: frozenset[str] = getattr(entry, "hashed_if_present", frozenset())
    values = {c.key: getattr(entry, c.key) for c in entry.__table__.columns if c.key != "hash"}
    values = {name: value for name, value in values.items() if value is not None or name not in optional}
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()


def append(session: Session, head: Any, entry: Linked) -> None:
    """Add an entry at the end of a chain. The caller has locked the head row."""
    entry.seq, entry.prev_hash = head.seq + 1, head.hash
    entry.hash = hash_entry(entry)
    head.seq, head.hash = entry.seq, entry.hash
    session.add(entry)
    session.flush()


def read_all(session: Session, query: Select[E], seq: InstrumentedAttribute[int]) -> Iterator[E]:
    """Yield the entries of a query in order, with at most `_ENTRIES_PER_PAGE` of them in memory."""
    after = -(1 << 63)
    fresh = query.order_by(seq).limit(_ENTRIES_PER_PAGE).execution_options(populate_existing=True)
    while entries := session.scalars(fresh.where(seq > after)).all():
        yield from entries
        after = entries[-1].seq


def verify(
    read_end: Callable[[], Head], entries: Iterable[E], check: Callable[[E], str] = lambda _: ""
) -> ChainVerification:
    """Verify numbers and hashes of a chain, and that it ends where its head row states.

    Outside `Database.reading`, entries may be appended during the verification. The end is therefore read before and
    after it.

    Parameters
    ----------
    read_end : callable
        Reads the head row.
    entries : iterable
        All entries in order.
    check : callable, optional
        Returns why the content of an entry is invalid, or an empty string.
    """
    first = read_end()
    hashes = {0: GENESIS_HASH}
    n_entries, last_hash = 0, GENESIS_HASH
    for entry in entries:
        reason = ""
        if entry.seq != n_entries + 1:
            reason = "an entry is missing"
        elif entry.prev_hash != last_hash or entry.hash != hash_entry(entry):
            reason = "an entry was changed"
        reason = reason or check(entry)
        if reason:
            return ChainVerification(n_entries, last_hash, n_entries + 1, reason)
        n_entries, last_hash = entry.seq, entry.hash
        if n_entries == first.seq:
            hashes[n_entries] = last_hash
    if n_entries < first.seq:
        return ChainVerification(n_entries, last_hash, n_entries + 1, "the last entries are missing")
    last = read_end()
    hashes[n_entries] = last_hash
    if hashes[first.seq] != first.hash or hashes.get(last.seq, last.hash) != last.hash:
        return ChainVerification(n_entries, last_hash, max(1, n_entries), "the last hash differs from the head's")
    if n_entries > last.seq:
        return ChainVerification(n_entries, last_hash, last.seq + 1, "an entry was added after the head's")
    return ChainVerification(n_entries, last_hash, None)
