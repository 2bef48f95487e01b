"""Weeks of a series in the demo: the change is an event, the cost is bounded, and the picture exists."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from demo.weeks import run_weeks

pytestmark = pytest.mark.slow


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
