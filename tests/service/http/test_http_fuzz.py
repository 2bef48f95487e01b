"""Bounded runs of the differential fuzzer, and checks that it finds a difference."""

from pathlib import Path
from typing import Any

import pytest

from service.ingestion.report_front import ReportFront
from tests.service import http_fuzz


@pytest.mark.slow
def test_the_front_changes_no_answer(tmp_path: Path) -> None:
    statuses, differences, share = http_fuzz.run(5_000, 0, tmp_path)
    assert differences == []
    assert {"200", "202", "400", "401", "403", "404", "405", "409", "415", "422", "431"} <= set(statuses)
    assert share > 0.2  # the front answers enough of them


@pytest.mark.slow
def test_connections_change_no_answer_of_uvicorn(tmp_path: Path) -> None:
    statuses, differences, _ = http_fuzz.run(2_000, 0, tmp_path, is_uvicorn=True)
    assert differences == []
    assert {"200", "202", "400", "401", "403", "404", "405", "409", "415", "422"} <= set(statuses)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", ["trailer", "space before extension"])  # the others are rare
def test_finds_an_intended_difference_to_uvicorn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: str
) -> None:
    monkeypatch.delitem(http_fuzz.UVICORN_DIFFERS, mutation)
    monkeypatch.setattr(http_fuzz, "IDLE_SECONDS", http_fuzz.IDLE_SECONDS[-1:])
    assert http_fuzz.run(600, 0, tmp_path, is_uvicorn=True)[1]


@pytest.mark.slow
def test_finds_a_wrong_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(front: ReportFront, report_format: Any, read: Any, body: bytes, most: int) -> Any:
        try:
            return read(report_format, body, most)
        except Exception:
            return read(report_format, b'{"report_id":"%032x","slot":0,"value":"AQ=="}' % 0, 1)

    monkeypatch.setattr(ReportFront, "_pack", accept)
    _, differences, _ = http_fuzz.run(500, 0, tmp_path)
    assert differences
