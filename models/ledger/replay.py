"""Replay of the entries of a ledger, which finds the first one that is invalid."""

from collections import Counter

from models.ledger.amounts import GAUSSIAN_START, Amounts, Balance, balance_after
from models.tables.ledger import Kind, LedgerEntry
from sfumato.privacy.accountant import Cost, is_counted, sum_mu2
from sfumato.privacy.cycles import Cycles


class Replay:
    """The balance, the open reservations and the cycles after the entries that were read.

    Memory is bounded by the number of open reservations, not by the length of the ledger.
    """

    def __init__(self) -> None:
        self._balance = Balance()
        self._reserved: dict[str, Amounts] = {}
        self._cycles = Cycles()
        self._additive: Counter[tuple[int, int]] = Counter()  # charges before Gaussian accounting

    def fault(self, entry: LedgerEntry) -> str:
        """Apply the next entry. Return why it is invalid, or an empty text."""
        if entry.seq == 1 and entry.granted_mu2_pico is not None:
            self._balance = Balance(**GAUSSIAN_START)
        amounts = entry.epsilon_nano, entry.delta_atto
        return (
            self._miscount(entry)
            or self._imbalance(entry)
            or self._cycles.fault(entry.kind, entry.reference, entry.reservation, amounts)
        )

    def _miscount(self, entry: LedgerEntry) -> str:
        """Return why the mu^2 of an entry is invalid. Collect the charges before Gaussian accounting."""
        before, amounts = self._balance, Amounts.of(entry)
        if entry.kind == Kind.GAUSSIAN:
            is_late = before.reserved_nano or before.reserved_delta_atto or before.charged_shuffled_delta_atto
            if before.accounting == "gaussian" or is_late:
                return "the accounting changed during a reservation, or not from additive"
            total = sum_mu2(self._additive)
            if total is None or amounts != Amounts(mu2_pico=total):
                return "an entry counts another mu^2 than it costs"
            return ""
        if (entry.mu2_pico is None) is (before.accounting == "gaussian"):
            return "the accounting changed without an entry"
        if before.accounting == "additive":
            if entry.kind == Kind.CHARGE:
                self._additive[amounts.epsilon_nano, amounts.delta_atto] += 1
            return ""
        is_enough, cost = True, Cost(amounts.epsilon_nano, amounts.delta_atto, amounts.mu2_pico)
        if before.release_accounting == "gaussian":
            is_enough = amounts.mu2_pico > 0 or not any(amounts.shuffled)
        elif entry.kind == Kind.CHARGE and min(cost) >= 0:
            is_enough = is_counted(cost)
        has_none = entry.kind in (Kind.GRANT, Kind.EXPIRE)
        if (entry.kind == Kind.CHARGE and not is_enough) or (has_none and amounts.mu2_pico):
            return "an entry counts another mu^2 than it costs"
        return ""

    def _imbalance(self, entry: LedgerEntry) -> str:
        """Apply the amounts of an entry. Return why they are invalid."""
        if entry.kind not in set(Kind):
            return "the kind of an entry is unknown"
        kind, amounts = Kind(entry.kind), Amounts.of(entry)
        if min(amounts) < 0:
            return "an amount is negative"
        if not self._move_reservation(kind, amounts.reservable(), entry.reservation):
            return "a job charged or released more than it had reserved"
        if any(amounts.shuffled) and kind not in (Kind.GRANT, Kind.CHARGE):
            return "the shuffled budget has no reservations"
        after = self._balance.after(kind, amounts, entry.reservation)
        if after != balance_after(entry) or after.is_over:
            return "a balance does not add up"
        self._balance = after
        return ""

    def _move_reservation(self, kind: Kind, amounts: Amounts, job_id: str | None) -> bool:
        """Apply an entry to the open reservations. Return False if its job has not reserved as much."""
        if kind in (Kind.GRANT, Kind.GAUSSIAN, Kind.EXPIRE) or (kind is Kind.CHARGE and job_id is None):
            return True
        if job_id is None:
            return False
        before = self._reserved.pop(job_id, Amounts())
        left = before.plus(amounts) if kind is Kind.RESERVE else before.minus(amounts)
        if any(left):
            self._reserved[job_id] = left
        return min(left) >= 0
