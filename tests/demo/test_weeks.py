"""Weeks of a series: the demo, the tutorial, and the service with a clock that they set."""

import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from demo.practice import Practice
from demo.weeks import run_weeks
from sfumato import Feature, MemoryStore, ShiftedGrid
from sfumato.errors import CapExceeded
from tests.blocks import blocks_of

MONDAY, WEEK = datetime(2027, 1, 18, tzinfo=UTC), timedelta(weeks=1)


@pytest.mark.slow
def test_a_change_in_the_middle_is_an_event(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=200)
    found = run_weeks(8, 1, tmp_path, console)
    assert found["epsilon_charged"] == 4.0  # two cycles of four weeks
    assert found["ledger_verified"]
    (event,) = found["events"]  # type: ignore[misc,attr-defined]
    assert event["change"] == 4
    assert "grown" in event["kinds"]
    assert (tmp_path / "series.svg").stat().st_size > 1000
    assert "Shares of the clusters" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_tutorial_runs_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the blocks of docs/tutorials/weeks.md."""
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}
    text = ""
    for block in blocks_of("docs/tutorials/weeks.md"):
        exec(compile(block.text, block.name, "exec"), known)  # noqa: S102 - the code of the page
        printed = capsys.readouterr().out
        promised = re.findall(r"^print\(.*\)  # (.+)$", block.text, flags=re.MULTILINE)
        assert [line for line in promised if line not in printed.splitlines()] == [], printed
        text += printed
    alarms = [int(week) for week in re.findall(r"^alarm in week (\d+)", text, re.MULTILINE)]
    assert {14, 15, 16} & set(alarms)
    assert (tmp_path / "weeks.svg").stat().st_size > 1000


class TestPractice:
    def test_time_passes_only_when_it_is_set(self) -> None:
        features, algorithm = [Feature("x", 0, 1)], ShiftedGrid(epsilon=2, cells=4)
        with Practice(MONDAY - WEEK) as practice:
            client = practice.client
            dataset = client.create_dataset("people", features, epsilon=1)
            series = client.create_series(
                dataset.id, "weekly", algorithm, first=MONDAY.date(), count=3, cycle=1, target_reports=10_000
            )
            assert [each.state for each in client.windows(series.id)] == ["planned"]
            practice.set_clock(MONDAY)
            (window,) = client.rounds(dataset.id, state="open")
            device = practice.device(dataset.id, cap=8, cap_per_period=("quarter", 2), store=MemoryStore())
            assert device.report([0.5]).outcome == "sent"
            practice.set_clock(MONDAY + 2 * WEEK)
            found = list(client.windows(series.id, oldest_first=True))
            assert [each.state for each in found] == ["empty", "missed", "open"]
            assert found[0].n_reports == client.get_round(window.id).n_reports == 1
            with pytest.raises(CapExceeded, match="next quarter begins on 2027-04-01"):
                device.report([0.5])
            assert client.get_series(series.id).epsilon_charged == 4.0
            assert client.verify_ledger(dataset.id).ok

    def test_a_time_without_a_zone_is_refused(self) -> None:
        with pytest.raises(ValueError, match="time zone"):
            Practice(datetime(2027, 1, 18))
