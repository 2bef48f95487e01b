"""The amounts of a ledger entry as one value, and the balance after it."""

from typing import NamedTuple, Self

from models.errors import BudgetKind
from models.tables.ledger import Kind, LedgerEntry
from sfumato.privacy import ledger as published
from sfumato.privacy.accountant import is_allowed, release_delta
from sfumato.privacy.shuffling import Pair


class Amounts(NamedTuple):
    """The amounts of an entry: two of the budget, two of the shuffled budget, and mu^2.

    Beside amounts of the shuffled budget, mu^2 is that of a release of a shuffler.
    """

    epsilon_nano: int = 0
    delta_atto: int = 0
    shuffled_nano: int = 0
    shuffled_delta_atto: int = 0
    mu2_pico: int = 0  # under Gaussian accounting

    @property
    def shuffled(self) -> Pair:
        """Return the amounts of the shuffled budget."""
        return self.shuffled_nano, self.shuffled_delta_atto

    def plus(self, other: "Amounts") -> "Amounts":
        """Return the sums."""
        return Amounts(*(one + two for one, two in zip(self, other, strict=True)))

    def minus(self, other: "Amounts") -> "Amounts":
        """Return the differences, which may be negative."""
        return Amounts(*(one - two for one, two in zip(self, other, strict=True)))

    def reservable(self) -> "Amounts":
        """Return the part that a reservation covers: releases of a shuffler have no reservations."""
        mu2_pico = 0 if any(self.shuffled) else self.mu2_pico
        return self._replace(shuffled_nano=0, shuffled_delta_atto=0, mu2_pico=mu2_pico)

    @classmethod
    def of(cls, row: LedgerEntry) -> Self:
        """Return the amounts of an entry."""
        return cls(*(getattr(row, name) or 0 for name in cls._fields))


# A new ledger with Gaussian accounting starts with these amounts.
GAUSSIAN_START = {"granted_mu2_pico": 0, "reserved_mu2_pico": 0, "charged_mu2_pico": 0}


class Currency(NamedTuple):
    """Names of an amount, and of its balance. Without reservations, `reserved` is empty."""

    kind: BudgetKind
    amount: str
    granted: str
    reserved: str
    charged: str


CURRENCIES = (
    Currency("epsilon", "epsilon_nano", "granted_nano", "reserved_nano", "charged_nano"),
    Currency("delta", "delta_atto", "granted_delta_atto", "reserved_delta_atto", "charged_delta_atto"),
    Currency("shuffled_epsilon", "shuffled_nano", "granted_shuffled_nano", "", "charged_shuffled_nano"),
    Currency("shuffled_delta", "shuffled_delta_atto", "granted_shuffled_delta_atto", "", "charged_shuffled_delta_atto"),
    Currency("mu2", "mu2_pico", "granted_mu2_pico", "reserved_mu2_pico", "charged_mu2_pico"),
)


_SIDES = {
    Kind.GRANT: ("granted", 1),
    Kind.RESERVE: ("reserved", 1),
    Kind.CHARGE: ("charged", 1),
    Kind.GAUSSIAN: ("charged", 1),
    Kind.RELEASE: ("reserved", -1),
    Kind.EXPIRE: ("granted", -1),
}


class Balance(published.Balance):
    """The published amounts after an entry, with what follows from them."""

    __slots__ = ()

    @property
    def free(self) -> Amounts:
        """Return the amounts that are neither reserved nor charged."""
        return Amounts(*(granted - reserved - charged for granted, reserved, charged in map(self.of, CURRENCIES)))

    @property
    def slack(self) -> Amounts:
        """Return the free amounts that are limited, and 0 for the others. A negative amount exceeds its limit."""
        free = self.free
        if self.accounting == "additive":
            return free
        if self.release_accounting == "gaussian":
            left = release_delta(self.granted_shuffled_delta_atto) - self.charged_shuffled_delta_atto
            return free._replace(shuffled_nano=0, shuffled_delta_atto=left)
        mu2_pico = 0 if is_allowed("gaussian", self.granted_cost, self.used_cost) else free.mu2_pico
        return free._replace(epsilon_nano=0, delta_atto=0, mu2_pico=mu2_pico)

    @property
    def is_over(self) -> bool:
        """Return whether more is reserved and charged than granted."""
        return min(self.slack) < 0

    def of(self, currency: Currency) -> tuple[int, int, int]:
        """Return what is granted, reserved and charged of an amount."""
        granted, reserved, charged = (
            (getattr(self, name) if name else 0) or 0
            for name in (currency.granted, currency.reserved, currency.charged)
        )
        return granted, reserved, charged

    def after(self, kind: Kind, amounts: Amounts, reservation: str | None) -> "Balance":
        """Return the balance after an entry. Amounts move by one rule, and the limit of mu^2 follows the grants."""
        is_gaussian = kind is Kind.GAUSSIAN or self.accounting == "gaussian"
        moved, sides = self._asdict(), [(*_SIDES[kind], amounts)]
        if kind is Kind.CHARGE and reservation:
            sides.append(("reserved", -1, amounts.reservable()))
        for side, sign, parts in sides:
            for each, amount in zip(CURRENCIES if is_gaussian else CURRENCIES[:-1], parts, strict=False):
                if amount and (name := getattr(each, side)):
                    moved[name] = (moved[name] or 0) + sign * amount
        if is_gaussian:
            moved |= {name: moved[name] or 0 for name in ("reserved_mu2_pico", "charged_mu2_pico")}
        after = Balance(**moved)
        if is_gaussian and kind in (Kind.GRANT, Kind.GAUSSIAN, Kind.EXPIRE):
            return after._replace(granted_mu2_pico=after.limit_mu2)
        return after


def balance_after(entry: LedgerEntry) -> Balance:
    """Return the balance that an entry stores."""
    return Balance(*(getattr(entry, name) for name in Balance._fields))
