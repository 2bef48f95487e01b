"""Caps of periods: calendar arithmetic, clocks that jump, and what a dishonest service can obtain."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, get_args

import numpy as np
import pytest

from sfumato.device.periods import LAST_DAY, Period, find_day, first_day, next_begin
from sfumato.device.store import FileStore, MemoryStore
from sfumato.errors import CapExceeded, InvalidEpsilon, InvalidSpec
from tests.sfumato.scripted import RECORD, ScriptedService, open_round

EPOCH = date(1970, 1, 1)
PERIODS = get_args(Period)


def key_of(period: str, on: date) -> tuple[int, ...]:
    """Return the period of a date, by the calendar of Python."""
    quarter = (on.month - 1) // 3
    return {
        "day": (on.toordinal(),),
        "week": on.isocalendar()[:2],
        "month": (on.year, on.month),
        "quarter": (on.year, quarter),
        "year": (on.year,),
    }[period]


class TestCalendar:
    @pytest.mark.parametrize("period", PERIODS)
    def test_periods_are_those_of_the_calendar(self, period: Period) -> None:
        randomness = np.random.default_rng(PERIODS.index(period))
        days = [*range(800), *randomness.integers(LAST_DAY, size=2000).tolist(), LAST_DAY]
        for day in days:
            on, begin, after = EPOCH + timedelta(day), first_day(period, day), next_begin(period, day)
            assert key_of(period, EPOCH + timedelta(begin)) == key_of(period, on)
            assert key_of(period, EPOCH + timedelta(begin - 1)) != key_of(period, on)
            assert key_of(period, after) != key_of(period, on)
            assert key_of(period, after - timedelta(1)) == key_of(period, on)

    def test_a_day_is_never_before_an_earlier_one(self) -> None:
        assert find_day(86_400 * 5 + 1, [3, 4]) == 5
        assert find_day(86_400 * 5 - 1, [7, 4]) == 7
        assert [find_day(each, []) for each in (-1e9, float("nan"), float("inf"), 1e300)] == [0, 0, 0, LAST_DAY]


class Clock:
    def __init__(self, at: str) -> None:
        self.set(at)

    def set(self, at: str) -> None:
        self.seconds = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()

    def __call__(self) -> float:
        return self.seconds


def scripted(**options: Any) -> tuple[ScriptedService, Clock, Any]:
    service, clock = ScriptedService(open_round("rnd_1")), Clock("2026-11-27T10:00:00")
    device = service.device(**({"cap": 32, "cap_per_period": ("week", 1.5), "clock": clock} | options))
    return service, clock, device


class TestDevice:
    def test_the_error_states_the_next_period(self) -> None:
        service, _, device = scripted()
        device.report(RECORD)
        service.rounds = [open_round("rnd_2")]
        with pytest.raises(
            CapExceeded, match=r"cap of 1\.5 per week is spent.*next week begins on 2026-11-30"
        ) as caught:
            device.report(RECORD)
        assert (caught.value.period, caught.value.next_begin) == ("week", date(2026, 11, 30))
        assert (device.spent, device.spent_in_period, len(service.sent)) == (1.0, 1.0, 1)

    def test_a_dry_run_states_both_limits(self) -> None:
        service, clock, device = scripted()
        device.report(RECORD)
        service.rounds = [open_round("rnd_2")]
        preview = device.dry_run(RECORD)
        assert isinstance(preview.rounds[0].error, CapExceeded)
        clock.set("2026-11-30T00:00:00")
        later = device.dry_run(RECORD)
        assert (later.rounds[0].would, later.spent, later.cap) == ("send", 1.0, 32.0)
        assert (later.period, later.spent_in_period, later.cap_in_period) == ("week", 0.0, 1.5)
        assert device.spent_in_period == 0.0

    def test_without_a_period_there_is_no_second_limit(self) -> None:
        _, _, device = scripted(cap_per_period=None)
        device.report(RECORD)
        assert (device.spent_in_period, device.dry_run(RECORD).cap_in_period) == (None, None)

    def test_a_period_that_the_app_sets_later_knows_earlier_answers(self, tmp_path: Any) -> None:
        store = FileStore(tmp_path / "device.json")
        _, _, first = scripted(store=store, cap_per_period=None)
        first.report(RECORD)
        service, _, device = scripted(store=FileStore(tmp_path / "device.json"), cap_per_period=("month", "1.9"))
        service.rounds = [open_round("rnd_2")]
        with pytest.raises(CapExceeded):
            device.report(RECORD)

    @pytest.mark.parametrize("limit", [("fortnight", 1), ("week",), "week", ("week", 1, 2), 1, (None, 1)])
    def test_an_unknown_period_is_refused(self, limit: Any) -> None:
        with pytest.raises(InvalidSpec, match="cap_per_period must be a period and an epsilon"):
            scripted(cap_per_period=limit)

    def test_an_epsilon_out_of_range_is_refused(self) -> None:
        with pytest.raises(InvalidEpsilon):
            scripted(cap_per_period=("week", 0))

    def test_no_clock_and_no_service_gets_more_than_one_report_per_period(self) -> None:
        """A service that opens rounds without end, with false times, and a clock that jumps in both directions."""
        randomness = np.random.default_rng(7)
        for period in PERIODS:
            service, clock, device = scripted(cap_per_period=(period, Decimal("1.5")), cap=32, store=MemoryStore())
            greatest, periods = 0.0, set()
            for number in range(30):
                clock.seconds += float(randomness.choice([-1, 1]) * randomness.exponential(864_000))
                false_time = "1999-01-01T00:00:00.000000Z"
                service.rounds = [open_round(f"rnd_{number}", index=number * 1000, closes_at=false_time)]
                greatest = max(greatest, clock.seconds)
                try:
                    device.report(RECORD)
                except CapExceeded:
                    continue
                key = key_of(period, datetime.fromtimestamp(greatest, UTC).date())
                assert key not in periods
                periods.add(key)
            assert 1 <= len(periods) == len(service.sent) < 30
