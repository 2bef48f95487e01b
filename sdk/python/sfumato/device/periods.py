"""Days, weeks, months, quarters and years by the device's own clock.

A device reads neither the times nor the indices of the service. Its periods never go back: the day of an answer is
never before that of an earlier answer, even if the clock is.

Periods are those of the Gregorian calendar in UTC, so that a change of the time zone begins no new period. Weeks begin
on Monday.
"""

import math
from collections.abc import Iterable
from datetime import date, timedelta
from typing import Literal

Period = Literal["day", "week", "month", "quarter", "year"]

LAST_DAY = 2_900_000  # in the year 9909; a later clock counts as this day
_EPOCH = date(1970, 1, 1)  # a Thursday
_SECONDS = 86_400


def find_day(seconds: float, earlier: Iterable[int]) -> int:
    """Return the day of an answer in days since 1970-01-01.

    Parameters
    ----------
    seconds : float
        The clock of the device, in seconds since 1970-01-01 UTC. A time that is not a number counts as no time.
    earlier : iterable of int
        Days of earlier answers. The result is none before them.
    """
    clock = seconds // _SECONDS if math.isfinite(seconds) else 0
    return max(int(min(max(clock, 0), LAST_DAY)), *earlier, 0)


def first_day(period: Period, day: int) -> int:
    """Return the first day of the period that contains a day, both in days since 1970-01-01."""
    if period == "week":
        return day - (day + 3) % 7
    on = _EPOCH + timedelta(day)
    months = {"year": 12, "quarter": 3, "month": 1}
    if period in months:
        return (on.replace(day=1, month=on.month - (on.month - 1) % months[period]) - _EPOCH).days
    return day


def next_begin(period: Period, day: int) -> date:
    """Return the first day of the next period."""
    lengths = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}
    return _EPOCH + timedelta(first_day(period, first_day(period, day) + lengths[period]))
