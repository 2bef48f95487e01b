"""Boundaries of windows: days, weeks or months of a calendar in a time zone, as times in UTC.

A boundary is midnight of the zone. If the clock skips midnight, the boundary is the first moment after the gap; if
midnight occurs twice, it is the first one. A day of 23 or 25 hours is one window.
"""

from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import get_args
from zoneinfo import ZoneInfo, available_timezones

from models.database.types import EPOCH
from models.tables.series import Every
from sfumato.errors import InvalidSpec

PER_YEAR: dict[Every, int] = {"day": 365, "week": 52, "month": 12}  # windows in a year, for statements of cost
LAST_MONTHLY_DAY = 28  # the latest day that all months have


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def find_zone(name: str) -> ZoneInfo:
    """Return a time zone of the IANA database. Raise InvalidSpec."""
    if name not in _zones():
        raise InvalidSpec("the time zone must be a name of the IANA database, such as Europe/Berlin or UTC")
    return ZoneInfo(name)


def check_first(every: Every, first: date) -> None:
    """Raise InvalidSpec if windows cannot begin on a day."""
    if every not in get_args(Every):
        raise InvalidSpec(f"windows must be one of {', '.join(get_args(Every))}")
    if every == "month" and first.day > LAST_MONTHLY_DAY:
        raise InvalidSpec(f"monthly windows must begin on a day up to {LAST_MONTHLY_DAY}, which every month has")


def boundary(every: Every, time_zone: str, first: date, index: int) -> int:
    """Return the start of a window, which is the end of the one before, in microseconds since the epoch.

    Parameters
    ----------
    every : {'day', 'week', 'month'}
    time_zone : str
        Name in the IANA database.
    first : date
        Day on which window 0 begins.
    index : int
        Number of the window, from 0.
    """
    if every == "month":
        months = first.year * 12 + first.month - 1 + index
        day = date(months // 12, months % 12 + 1, first.day)
    else:
        day = first + timedelta(days=index * (7 if every == "week" else 1))
    midnight = datetime(day.year, day.month, day.day, tzinfo=find_zone(time_zone))
    return (midnight.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


def first_day(every: Every, time_zone: str, now: int) -> date:
    """Return the first day after a time on which a window of a calendar begins: any day, a Monday, or the first."""
    today = (EPOCH + timedelta(microseconds=now)).astimezone(find_zone(time_zone)).date()
    if every == "month":
        return date(today.year + today.month // 12, today.month % 12 + 1, 1)
    return today + timedelta(days=7 - today.weekday() if every == "week" else 1)
