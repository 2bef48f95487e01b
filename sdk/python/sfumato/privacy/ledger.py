"""Verification of a ledger's hash chain from its published entries.

For epsilon and delta, a verification proves that the entries are one unbroken chain up to the
published head, and that each balance follows from the one before. It also proves that no job spent
more than its reservation, that no reference was charged twice, and that charged + reserved never
exceeded granted. A cycle of a series reserved exactly its grant, and only what it did not spend
expired. It also states the epsilon that the charges certify together. With a head noted earlier it proves that no
entry before that head was rewritten. It does not prove that the service entered every charge; the service itself must
ensure that.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, get_args

from sfumato.privacy.accountant import (
    Accounting,
    Cost,
    certified_epsilon,
    certified_release_epsilon,
    is_allowed,
    is_counted,
    is_release_allowed,
    limit_mu2,
    limit_release_mu2,
    sum_mu2,
)
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.cycles import Cycles

GENESIS_HASH = "0" * 64

Kind = Literal["grant", "reserve", "charge", "release", "gaussian", "expire"]

MU2_MEMBERS = ("mu2_pico", "granted_mu2_pico", "reserved_mu2_pico", "charged_mu2_pico")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A ledger entry and the balance after it, in nano-epsilon and atto-delta.

    A shuffled dataset has a second budget, the pair (epsilon, delta) towards an observer of its releases.
    """

    id: str
    dataset_id: str
    seq: int  # 1, 2, 3, ...
    kind: Kind
    epsilon_nano: int
    reference: str  # id of the grant, job or round
    reservation: str | None  # id of the job with the reservation that it changes
    actor: str  # id of the key that requested it
    at: datetime
    granted_nano: int
    reserved_nano: int
    charged_nano: int
    prev_hash: str
    hash: str
    delta_atto: int = 0
    granted_delta_atto: int = 0
    reserved_delta_atto: int = 0
    charged_delta_atto: int = 0
    shuffled_nano: int = 0
    shuffled_delta_atto: int = 0
    granted_shuffled_nano: int = 0
    charged_shuffled_nano: int = 0
    granted_shuffled_delta_atto: int = 0
    charged_shuffled_delta_atto: int = 0
    mu2_pico: int | None = None  # the last four are None under additive accounting
    granted_mu2_pico: int | None = None
    reserved_mu2_pico: int | None = None
    charged_mu2_pico: int | None = None

    def computed_hash(self) -> str:
        """Return the SHA-256 of the canonical JSON of all members except `hash`, with the time in microseconds.

        Under additive accounting, the members of mu^2 are left out.
        """
        names = [name for name in self.__slots__ if name != "hash"]
        values = {name: getattr(self, name) for name in names}
        values = {name: value for name, value in values.items() if value is not None or name not in MU2_MEMBERS}
        values["at"] = (self.at - _EPOCH) // _MICROSECOND
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


class Head(NamedTuple):
    """Number and hash of a chain's last entry."""

    seq: int
    hash: str


GENESIS = Head(0, GENESIS_HASH)


class Balance(NamedTuple):
    """The amounts after an entry, in nano-epsilon and atto-delta."""

    granted_nano: int = 0
    reserved_nano: int = 0
    charged_nano: int = 0
    granted_delta_atto: int = 0
    reserved_delta_atto: int = 0
    charged_delta_atto: int = 0
    granted_shuffled_nano: int = 0
    charged_shuffled_nano: int = 0
    granted_shuffled_delta_atto: int = 0
    charged_shuffled_delta_atto: int = 0
    granted_mu2_pico: int | None = None
    reserved_mu2_pico: int | None = None
    charged_mu2_pico: int | None = None

    @property
    def accounting(self) -> Accounting:
        """Return how costs add up."""
        return "additive" if self.granted_mu2_pico is None else "gaussian"

    @property
    def release_accounting(self) -> Accounting:
        """Return how the costs of releases of a shuffler add up. If it is Gaussian, mu^2 is theirs."""
        return self.accounting if self.granted_shuffled_delta_atto else "additive"

    @property
    def own_accounting(self) -> Accounting:
        """Return how the epsilons and deltas of jobs and reports add up, without the releases of a shuffler."""
        return "additive" if self.granted_shuffled_delta_atto else self.accounting

    @property
    def limit_mu2(self) -> int:
        """Return the limit of mu^2 under Gaussian accounting, which follows from the grants."""
        if self.granted_shuffled_delta_atto:
            return limit_release_mu2(self.granted_shuffled_nano, self.granted_shuffled_delta_atto)
        return limit_mu2(self.granted_nano, self.granted_delta_atto)

    @property
    def granted_release_cost(self) -> Cost:
        """Return what is granted towards an observer of releases."""
        return Cost(self.granted_shuffled_nano, self.granted_shuffled_delta_atto, self.granted_mu2_pico or 0)

    @property
    def release_cost(self) -> Cost:
        """Return what the releases of a shuffler are charged."""
        return Cost(self.charged_shuffled_nano, self.charged_shuffled_delta_atto, self.charged_mu2_pico or 0)

    @property
    def certified_release_nano(self) -> int | None:
        """Return the nano-epsilon that all releases certify, rounded up; None if above 32."""
        return certified_release_epsilon(self.release_accounting, self.granted_release_cost, self.release_cost)

    @property
    def granted_cost(self) -> Cost:
        """Return what is granted."""
        return Cost(self.granted_nano, self.granted_delta_atto, self.granted_mu2_pico or 0)

    @property
    def charged_cost(self) -> Cost:
        """Return what is charged."""
        return Cost(self.charged_nano, self.charged_delta_atto, self.charged_mu2_pico or 0)

    @property
    def used_cost(self) -> Cost:
        """Return what is charged or reserved."""
        return Cost(
            self.charged_nano + self.reserved_nano,
            self.charged_delta_atto + self.reserved_delta_atto,
            (self.charged_mu2_pico or 0) + (self.reserved_mu2_pico or 0),
        )


EMPTY = Balance()


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of a verification.

    Attributes
    ----------
    head : Head
        The last valid entry. A later verification can use it as a noted head.
    broken_at : int or None
        Number of the first entry that is invalid or missing.
    reason : str
        Reason why it is invalid; empty if all entries are valid.
    balance : Balance
        The amounts after the last valid entry, added up again from the entries.
    """

    head: Head
    broken_at: int | None = None
    reason: str = ""
    balance: Balance = EMPTY

    @property
    def ok(self) -> bool:
        """Return whether all entries are valid."""
        return self.broken_at is None

    @property
    def certified_delta(self) -> float:
        """Return the delta of `certified_epsilon`: the granted one, or the charged one under additive accounting."""
        return self._certified_atto / ATTO

    @property
    def certified_epsilon(self) -> float | None:
        """Return the epsilon that all charges certify together, rounded up; None if it is above 32.

        Under additive accounting it is the sum of the charges. Charges of releases of a shuffler are not part of it.
        """
        certified = certified_epsilon(self.balance.own_accounting, self.balance.charged_cost, self._certified_atto)
        return None if certified is None else certified / NANO

    @property
    def certified_shuffled_epsilon(self) -> float | None:
        """Return the epsilon that all releases of a shuffler certify, rounded up; None if it is above 32.

        Under additive accounting it is the sum of their charges, and else holds at their granted delta.
        """
        certified = self.balance.certified_release_nano
        return None if certified is None else certified / NANO

    @property
    def _certified_atto(self) -> int:
        is_gaussian = self.balance.own_accounting == "gaussian"
        return self.balance.granted_delta_atto if is_gaussian else self.balance.charged_delta_atto


@dataclass(slots=True)
class _Account:
    """The running amounts of one epsilon or delta."""

    has_reservations: bool = True

    granted: int = 0
    reserved: int = 0
    charged: int = 0
    reservations: dict[str, int] = field(default_factory=dict)  # job id to amount

    def apply(self, entry: LedgerEntry, amount: int) -> bool:
        """Apply the amount. Return False if it exceeds its reservation, or a required reservation is missing."""
        if entry.kind == "grant":
            self.granted += amount
            return True
        if entry.kind == "expire":
            self.granted -= amount
            return self.granted >= 0
        if entry.kind == "gaussian":
            return amount == 0
        if entry.kind == "charge":
            self.charged += amount
            if entry.reservation is None or not self.has_reservations:  # charged to the free budget
                return True
        if not self.has_reservations:
            return amount == 0
        if entry.reservation is None:
            return False
        change = amount if entry.kind == "reserve" else -amount
        remaining = self.reservations.get(entry.reservation, 0) + change
        self.reservations[entry.reservation] = remaining
        self.reserved += change
        return remaining >= 0


@dataclass(slots=True)
class _Running:
    """The state of a verification after an entry."""

    head: Head = GENESIS
    epsilon: _Account = field(default_factory=_Account)
    delta: _Account = field(default_factory=_Account)
    shuffled_epsilon: _Account = field(default_factory=lambda: _Account(has_reservations=False))
    shuffled_delta: _Account = field(default_factory=lambda: _Account(has_reservations=False))
    mu2: _Account = field(default_factory=_Account)
    is_gaussian: bool = False
    additive: Counter[tuple[int, int]] = field(default_factory=Counter)  # amounts charged before Gaussian accounting
    charged: set[tuple[str, str]] = field(default_factory=set)  # kind and reference
    cycles: Cycles = field(default_factory=Cycles)

    @property
    def balance(self) -> Balance:
        reserved = [each for a in (self.epsilon, self.delta) for each in (a.granted, a.reserved, a.charged)]
        shuffled = [each for a in (self.shuffled_epsilon, self.shuffled_delta) for each in (a.granted, a.charged)]
        mu2 = (self.mu2.granted, self.mu2.reserved, self.mu2.charged) if self.is_gaussian else (None, None, None)
        return Balance(*reserved, *shuffled, *mu2)

    @property
    def accounts(self) -> tuple[_Account, ...]:
        return self.epsilon, self.delta, self.shuffled_epsilon, self.shuffled_delta


def verify(
    entries: Iterable[LedgerEntry], dataset_id: str, heads: Sequence[Head], balance: Balance | None = None
) -> Verification:
    """Verify a chain of ledger entries.

    Parameters
    ----------
    entries : iterable of LedgerEntry
        All entries in their order.
    dataset_id : str
        Dataset of the ledger.
    heads : sequence of Head
        The published head first, then heads noted earlier. The chain must contain each of them.
    balance : Balance, optional
        The published balance at the first of the heads.

    Returns
    -------
    Verification

    Examples
    --------
    >>> from sfumato.privacy.ledger import GENESIS, verify
    >>> verify([], "ds_1", [GENESIS]).ok
    True
    """
    verifier = LedgerVerifier(dataset_id, heads, balance)
    for entry in entries:
        verifier.add(entry)
        if verifier.broken is not None:
            break
    return verifier.verification()


class LedgerVerifier:
    """Verifies a chain one entry at a time, for entries that arrive in pages."""

    def __init__(self, dataset_id: str, heads: Sequence[Head], balance: Balance | None = None) -> None:
        self._dataset_id = dataset_id
        self._heads = heads
        self._balance = balance
        self._running = _Running()
        self._valid = self._running.balance
        reason = _contradiction(self._running, heads, balance)
        self.broken = Verification(GENESIS, 0, reason) if reason else None

    def add(self, entry: LedgerEntry) -> None:
        """Verify the next entry. Ignore all entries after the first invalid one."""
        if self.broken is not None:
            return
        before = self._running.head
        reason = _fault(entry, self._dataset_id, self._running)
        self._running.head = Head(entry.seq, entry.hash)
        reason = reason or _contradiction(self._running, self._heads, self._balance)
        if reason:
            self.broken = Verification(before, before.seq + 1, reason, self._valid)
        else:
            self._valid = self._running.balance

    def verification(self) -> Verification:
        """Return the outcome."""
        head = self._running.head
        if self.broken is not None:
            return self.broken
        if any(each.seq > head.seq for each in self._heads):
            return Verification(head, head.seq + 1, "the last entries are missing", self._valid)
        return Verification(head, balance=self._valid)


def _contradiction(running: _Running, heads: Sequence[Head], balance: Balance | None) -> str:
    """Return why a noted head or the published balance contradicts the chain, or an empty string."""
    if any(head.seq == running.head.seq and head.hash != running.head.hash for head in heads):
        return "the chain does not contain the noted head"
    if balance is not None and heads and heads[0].seq == running.head.seq and balance != running.balance:
        return "the published budget differs from the ledger's balance"
    return ""


def _fault(entry: LedgerEntry, dataset_id: str, running: _Running) -> str:
    """Apply an entry. Return why it is invalid, or an empty string."""
    if entry.seq != running.head.seq + 1:
        return "an entry is missing or out of order"
    if entry.dataset_id != dataset_id:
        return "an entry belongs to another dataset"
    if entry.prev_hash != running.head.hash or entry.computed_hash() != entry.hash:
        return "an entry was changed"
    amounts = (entry.epsilon_nano, entry.delta_atto, entry.shuffled_nano, entry.shuffled_delta_atto)
    if entry.kind not in get_args(Kind) or min(amounts) < 0:
        return "an entry has an unknown kind or a negative amount"
    if (entry.kind, entry.reference) in running.charged:
        return "a reference was charged twice"
    running.charged.add((entry.kind, entry.reference))
    within = [account.apply(entry, amount) for account, amount in zip(running.accounts, amounts, strict=True)]
    reason = _count(entry, running)
    if reason:
        return reason
    if reason := running.cycles.fault(entry.kind, entry.reference, entry.reservation, amounts[:2]):
        return reason
    if not all(within):
        return "a job spent more than it had reserved"
    if running.balance != tuple(getattr(entry, name) for name in Balance._fields):
        return "a balance does not add up"
    after = running.balance
    is_within = is_allowed(after.own_accounting, after.granted_cost, after.used_cost)
    if not is_within or not is_release_allowed(
        after.release_accounting, after.granted_release_cost, after.release_cost
    ):
        return "more was spent than granted"
    return ""


def _count(entry: LedgerEntry, running: _Running) -> str:
    """Apply an entry's mu^2. Return why it is invalid, or an empty string."""
    absent = [getattr(entry, name) is None for name in MU2_MEMBERS]
    if entry.kind == "gaussian":
        is_late = running.is_gaussian or running.epsilon.reserved or running.delta.reserved
        is_late = is_late or running.shuffled_delta.charged
        if is_late or any(absent) or entry.epsilon_nano or entry.delta_atto or entry.reservation is not None:
            return "the accounting changed during a reservation, or not from additive"
        if entry.mu2_pico != sum_mu2(running.additive):
            return "an entry counts another mu^2 than it costs"
        running.is_gaussian = True
    elif entry.seq == 1:
        running.is_gaussian = not any(absent)
    if any(each is running.is_gaussian for each in absent):
        return "the accounting changed without an entry"
    if not running.is_gaussian:
        if entry.kind == "charge":
            running.additive[entry.epsilon_nano, entry.delta_atto] += 1
        return ""
    mu2, of_releases = entry.mu2_pico or 0, running.shuffled_delta.granted > 0
    running.mu2.has_reservations = not of_releases
    if mu2 < 0 or (entry.kind in ("grant", "expire") and mu2):
        return "an entry counts another mu^2 than it costs"
    if entry.kind == "charge":
        is_enough = mu2 > 0 or not (entry.shuffled_nano or entry.shuffled_delta_atto)
        if not (is_enough if of_releases else is_counted(Cost(entry.epsilon_nano, entry.delta_atto, mu2))):
            return "an entry counts another mu^2 than it costs"
    if entry.kind == "gaussian":
        running.mu2.charged = mu2
    elif not running.mu2.apply(entry, mu2):
        return "a job spent more than it had reserved"
    if entry.kind in ("grant", "gaussian", "expire"):
        running.mu2.granted = running.balance.limit_mu2
    return ""
