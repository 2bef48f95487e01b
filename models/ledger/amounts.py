"""The amounts of a ledger entry as one value, and the balance after it."""

from typing import NamedTuple, Self

from models.errors import BudgetKind
from models.tables.ledger import Kind, LedgerEntry
from sfumato.privacy import ledger as published
from sfumato.privacy.shuffling import Pair


class Amounts(NamedTuple):
    """The amounts of an entry: two of the budget, and two of the shuffled budget."""

    epsilon_nano: int = 0
    delta_atto: int = 0
    shuffled_nano: int = 0
    shuffled_delta_atto: int = 0

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
        """Return the part that a reservation covers: the shuffled budget has no reservations."""
        return self._replace(shuffled_nano=0, shuffled_delta_atto=0)

    @classmethod
    def of(cls, row: LedgerEntry) -> Self:
        """Return the amounts of an entry."""
        return cls(*(getattr(row, name) for name in cls._fields))


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
)


class Balance(published.Balance):
    """The published amounts after an entry, with what follows from them."""

    __slots__ = ()

    @property
    def free(self) -> Amounts:
        """Return the amounts that are neither reserved nor charged."""
        return Amounts(*(granted - reserved - charged for granted, reserved, charged in map(self.of, CURRENCIES)))

    @property
    def is_over(self) -> bool:
        """Return whether more is reserved and charged than granted."""
        return min(self.free) < 0

    def of(self, currency: Currency) -> tuple[int, int, int]:
        """Return what is granted, reserved and charged of an amount."""
        reserved = getattr(self, currency.reserved) if currency.reserved else 0
        return getattr(self, currency.granted), reserved, getattr(self, currency.charged)

    def after(self, kind: Kind, amounts: Amounts, reservation: str | None) -> "Balance":
        """Return the balance after an entry. All amounts move by the same rule."""
        granted, reserved, charged = {  # signs
            Kind.GRANT: (1, 0, 0),
            Kind.RESERVE: (0, 1, 0),
            Kind.CHARGE: (0, -1 if reservation else 0, 1),
            Kind.RELEASE: (0, -1, 0),
        }[kind]
        moved = {}
        for each in CURRENCIES:
            signs = [(each.granted, granted), (each.charged, charged)]
            for name, sign in [*signs, (each.reserved, reserved)] if each.reserved else signs:
                moved[name] = getattr(self, name) + sign * getattr(amounts, each.amount)
        return Balance(**moved)


def balance_after(entry: LedgerEntry) -> Balance:
    """Return the balance that an entry stores."""
    return Balance(*(getattr(entry, name) for name in Balance._fields))
