"""The generated tables of docs/scale.md, algorithms.md, privacy.md and glossary.md are current."""

import pytest

from tools import page_tables


class TestPages:
    def test_have_the_current_tables(self) -> None:
        for page, fill in page_tables.PAGES:
            assert page.read_text() == fill(page.read_text()), "run python -m tools.page_tables"

    def test_need_a_block_for_each_table(self) -> None:
        with pytest.raises(ValueError, match="capacity-day"):
            page_tables.fill_scale(page_tables.SCALE.read_text().replace("capacity-day", "capacity-other"))
        text = page_tables.ALGORITHMS_PAGE.read_text().replace("parameters-shifted_grid", "parameters-other")
        with pytest.raises(ValueError, match="shifted_grid"):
            page_tables.fill_algorithms(text)


class TestRates:
    def test_come_from_the_measured_rows(self) -> None:
        rates = page_tables.read_rates({"single": ["ingest", "single reports, PostgreSQL, 64 connections"]})
        assert 1_000 < rates["single"] < 1_000_000

    def test_of_a_row_that_was_not_measured_are_an_error(self) -> None:
        with pytest.raises(KeyError, match="no such row"):
            page_tables.read_rates({"single": ["ingest", "no such row"]})


class TestArithmetic:
    def test_doubles_the_gateways_at_half_load(self) -> None:
        given = {"reports_per_day": [86_400_000.0], "peak_factor": 3, "load": 0.5}
        given |= {"flush_seconds": 0.005, "longest_wait_seconds": 0.02}
        rates = {"single": 1000.0, "packed": 1e6}
        row = page_tables.table_of_days(given, rates).splitlines()[-1]
        assert row == "| 86,400,000 | 3,000/s | 3 | 6 | 0.003 | 30 ms | 2 |"

    def test_counts_the_fingerprints_that_do_not_fit_in_memory(self) -> None:
        given = {"reports_per_round": [3e9], "fingerprints_in_memory": 1_000_000_000, "fingerprint_bytes": 8}
        rates = {"aggregation": 1e8, "repeats": 5e7}
        row = page_tables.table_of_rounds(given, rates).splitlines()[-1]
        assert row == "| 3,000,000,000 | 16.0 GB | 30 s | 60 s |"
