"""Walking a ledger's hash chain from outside, with nothing but its published entries.

What a walk proves: the entries shown are one unbroken chain that ends in the published
head, each balance follows from the one before, no job spent more than it had reserved,
nothing was charged twice under one name, and posted + reserved never went over granted; all
this of epsilon and of delta.
Compared with a head noted earlier it also proves that nothing before it was rewritten. It
does not prove that everything the service did was entered: that is the service's own duty.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, get_args

GENESIS_HASH = "0" * 64
DELTA_MEMBERS = frozenset({"delta_atto", "granted_delta_atto", "reserved_delta_atto", "posted_delta_atto"})

Kind = Literal["grant", "reserve", "post", "release"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One charge or grant, and the balance after it; amounts in nano-epsilon and atto-delta."""

    id: str
    dataset_id: str
    seq: int  # 1, 2, 3, ...
    kind: Kind
    epsilon_nano: int
    reference: str  # what it is for: a grant, job or round
    reservation: str | None  # the job whose reservation it touches
    actor: str  # the key that asked for it
    at: datetime
    granted_nano: int
    reserved_nano: int
    posted_nano: int
    prev_hash: str
    hash: str
    delta_atto: int = 0
    granted_delta_atto: int = 0
    reserved_delta_atto: int = 0
    posted_delta_atto: int = 0

    def computed_hash(self) -> str:
        """SHA-256 of the canonical JSON of everything but `hash`; the time in microseconds.

        What is said of delta counts where any of it is not 0: older entries say nothing of it.
        """
        left_out = {"hash"} if any(getattr(self, name) for name in DELTA_MEMBERS) else {"hash", *DELTA_MEMBERS}
        values = {name: getattr(self, name) for name in self.__slots__ if name not in left_out}
        values["at"] = (self.at - _EPOCH) // _MICROSECOND
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


class Head(NamedTuple):
    """The end of a chain: its last entry's number and hash."""

    seq: int
    hash: str


GENESIS = Head(0, GENESIS_HASH)


class Balance(NamedTuple):
    """Nano-epsilon and atto-delta after some entry."""

    granted_nano: int = 0
    reserved_nano: int = 0
    posted_nano: int = 0
    granted_delta_atto: int = 0
    reserved_delta_atto: int = 0
    posted_delta_atto: int = 0


@dataclass(frozen=True, slots=True)
class Verification:
    """What a walk found.

    Attributes
    ----------
    head : Head
        The last entry that holds: worth noting, to compare with next time.
    broken_at : int or None
        Number of the first entry that does not hold, or is missing.
    reason : str
        Why; empty where all hold.
    """

    head: Head
    broken_at: int | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.broken_at is None


@dataclass(slots=True)
class _Pot:
    """What runs along of epsilon, or of delta."""

    granted: int = 0
    reserved: int = 0
    posted: int = 0
    held: dict[str, int] = field(default_factory=dict)  # by job

    def apply(self, entry: LedgerEntry, amount: int) -> bool:
        """Move the amount; False where a reservation does not bear it, or none is named."""
        if entry.kind == "grant":
            self.granted += amount
            return True
        if entry.kind == "post":
            self.posted += amount
            if entry.reservation is None:  # a round of its own: straight from what is free
                return True
        if entry.reservation is None:
            return False
        change = amount if entry.kind == "reserve" else -amount
        held = self.held.get(entry.reservation, 0) + change
        self.held[entry.reservation] = held
        self.reserved += change
        return held >= 0


@dataclass(slots=True)
class _Running:
    head: Head = GENESIS
    epsilon: _Pot = field(default_factory=_Pot)
    delta: _Pot = field(default_factory=_Pot)
    charged: set[tuple[str, str]] = field(default_factory=set)  # kind and reference

    @property
    def balance(self) -> Balance:
        return Balance(*(amount for pot in self.pots for amount in (pot.granted, pot.reserved, pot.posted)))

    @property
    def pots(self) -> tuple[_Pot, _Pot]:
        return self.epsilon, self.delta


def verify(
    entries: Iterable[LedgerEntry], dataset_id: str, heads: Sequence[Head], balance: Balance | None = None
) -> Verification:
    """Walk a chain.

    Parameters
    ----------
    entries : iterable of LedgerEntry
        From the first on, in the order shown.
    dataset_id : str
        Whose ledger it is meant to be.
    heads : sequence of Head
        Ends the chain has, or had when they were noted: each is to be on its way.
    balance : Balance, optional
        What the first of the heads is said to stand at.

    Returns
    -------
    Verification

    Examples
    --------
    >>> from sfumato.ledger import GENESIS, verify
    >>> verify([], "ds_1", [GENESIS]).ok
    True
    """
    walk = Walk(dataset_id, heads, balance)
    for entry in entries:
        walk.take(entry)
        if walk.broken is not None:
            break
    return walk.verification()


class Walk:
    """`verify`, one entry at a time: for entries that arrive page by page."""

    def __init__(self, dataset_id: str, heads: Sequence[Head], balance: Balance | None = None) -> None:
        self._dataset_id = dataset_id
        self._heads = heads
        self._balance = balance
        self._running = _Running()
        reason = _contradiction(self._running, heads, balance)
        self.broken = Verification(GENESIS, 0, reason) if reason else None

    def take(self, entry: LedgerEntry) -> None:
        """Go one step further; after the first that does not hold nothing more is looked at."""
        if self.broken is not None:
            return
        before = self._running.head
        reason = _fault(entry, self._dataset_id, self._running)
        self._running.head = Head(entry.seq, entry.hash)
        reason = reason or _contradiction(self._running, self._heads, self._balance)
        if reason:
            self.broken = Verification(before, before.seq + 1, reason)

    def verification(self) -> Verification:
        """What was found."""
        head = self._running.head
        if self.broken is not None:
            return self.broken
        if any(each.seq > head.seq for each in self._heads):
            return Verification(head, head.seq + 1, "the last entries are missing")
        return Verification(head)


def _contradiction(running: _Running, heads: Sequence[Head], balance: Balance | None) -> str:
    """Why what is known of this place of the chain does not hold, or nothing."""
    if any(head.seq == running.head.seq and head.hash != running.head.hash for head in heads):
        return "the chain does not lead to the head that was noted"
    if balance is not None and heads and heads[0].seq == running.head.seq and balance != running.balance:
        return "the budget is not the ledger's balance"
    return ""


def _fault(entry: LedgerEntry, dataset_id: str, running: _Running) -> str:
    """Apply an entry to what runs along; why it does not hold, or nothing."""
    if entry.seq != running.head.seq + 1:
        return "an entry is missing or out of order"
    if entry.dataset_id != dataset_id:
        return "an entry is of another dataset"
    if entry.prev_hash != running.head.hash or entry.computed_hash() != entry.hash:
        return "an entry was changed"
    if entry.kind not in get_args(Kind) or entry.epsilon_nano < 0 or entry.delta_atto < 0:
        return "an entry is of no known kind, or negative"
    if (entry.kind, entry.reference) in running.charged:
        return "something was charged twice"
    running.charged.add((entry.kind, entry.reference))
    borne = running.epsilon.apply(entry, entry.epsilon_nano), running.delta.apply(entry, entry.delta_atto)
    if not all(borne):
        return "a job spent more than it had reserved"
    if running.balance != tuple(getattr(entry, name) for name in Balance._fields):
        return "a balance does not add up"
    if any(pot.posted + pot.reserved > pot.granted for pot in running.pots):
        return "more was spent than granted"
    return ""
