"""Caps of a device: for its lifetime, and for a period.

The lifetime cap does not stop a server that opens the rounds of a year within a day. The cap of a period does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import cast, get_args

from sfumato.device.periods import Period, find_day, first_day, next_begin
from sfumato.device.store import Memory
from sfumato.errors import CapExceeded, InvalidSpec
from sfumato.privacy.accounting import parse_epsilon


@dataclass(frozen=True, slots=True)
class PeriodCap:
    """The largest epsilon that a device spends on a dataset within a period."""

    period: Period
    cap_nano: int

    @classmethod
    def read(cls, pair: tuple[str, int | float | str | Decimal]) -> "PeriodCap":
        """Return the cap of a pair, such as `("week", 1)`. Raise InvalidSpec or InvalidEpsilon."""
        if not isinstance(cast(object, pair), tuple | list) or len(pair) != 2 or pair[0] not in get_args(Period):
            periods = ", ".join(get_args(Period))
            raise InvalidSpec(
                f'cap_per_period must be a period and an epsilon, such as ("week", 1); periods: {periods}'
            )
        return cls(cast(Period, pair[0]), parse_epsilon(pair[1]))


@dataclass(frozen=True, slots=True)
class Caps:
    """The largest epsilon that a device spends on a dataset: in all, and in a period if one is given."""

    lifetime_nano: int
    period: PeriodCap | None
    clock: Callable[[], float]

    def today(self, memory: Memory) -> int:
        """Return the day of an answer that is given now."""
        return find_day(self.clock(), (memo.day for memo in memory.memos.values()))

    def spent_in_period(self, memory: Memory, day: int) -> int:
        """Return the nano-epsilon spent in the period that contains a day, or 0 without a period."""
        return 0 if self.period is None else memory.spent_nano_since(first_day(self.period.period, day))

    def check(self, memory: Memory, cost_nano: int, day: int) -> None:
        """Raise CapExceeded if a cost on a day does not fit the lifetime cap or that of the period."""
        if memory.spent_nano + cost_nano > self.lifetime_nano:
            raise CapExceeded(cost_nano=cost_nano, spent_nano=memory.spent_nano, cap_nano=self.lifetime_nano)
        spent_nano = self.spent_in_period(memory, day)
        if self.period is not None and spent_nano + cost_nano > self.period.cap_nano:
            raise CapExceeded(
                cost_nano=cost_nano,
                spent_nano=spent_nano,
                cap_nano=self.period.cap_nano,
                period=self.period.period,
                next_begin=next_begin(self.period.period, day),
            )
