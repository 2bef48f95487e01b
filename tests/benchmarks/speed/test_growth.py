"""Growth: fitted exponents, axes, and frequent statements that scan no large table."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import text

from benchmarks.speed.growth import arrays, axis, databases
from benchmarks.speed.growth.axis import Axis, Point, fit_exponent, measure
from benchmarks.speed.growth.databases import GrowingDatabase, full_scans, recorded_statements
from benchmarks.speed.harness.measurement import Setting
from models.database.engine import Database
from models.database.schema import migrate
from models.ledger import ledger

SETTING = Setting(quick=True, turns=1, progress=lambda _: None)


@pytest.fixture
def grown(tmp_path):
    url = f"sqlite:///{tmp_path / 'growth.db'}"
    migrate(url)
    database = Database(url)
    yield GrowingDatabase("SQLite", database, SETTING)
    database.close()


class TestExponents:
    @pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, -0.3])
    def test_the_exponent_of_a_power_is_exact(self, exponent):
        x = [1, 10, 100, 1000]
        found, error = fit_exponent(x, [3e-4 * size**exponent for size in x])
        assert found == pytest.approx(exponent, abs=1e-12)
        assert error == pytest.approx(0, abs=1e-6)

    def test_scatter_gives_a_standard_error(self):
        rng = np.random.default_rng(1)
        x = np.geomspace(1, 1e6, 40)
        found, error = fit_exponent(x.tolist(), (x * np.exp(rng.normal(0, 0.3, 40))).tolist())
        assert abs(found - 1) < 4 * error
        assert 0.001 < error < 0.05

    @pytest.mark.parametrize(("x", "y"), [([1, 1], [1, 2]), ([1, 2], [0, 1]), ([1, 2], [1, -1])])
    def test_points_without_an_exponent_are_refused(self, x, y):
        with pytest.raises(ValueError, match="two sizes at least"):
            fit_exponent(x, y)


class TestRows:
    AXIS = Axis("things", "things", (1, 10, 100), 1.1, "each is read once")

    def of(self, exponent, **more):
        return list(axis.rows_of(self.AXIS, [Point("things", x, x**exponent, **more) for x in self.AXIS.sizes]))

    def test_linear_growth_meets_its_bar_and_quadratic_does_not(self):
        (linear,), (quadratic,) = self.of(1.0), self.of(2.0)
        assert (linear.is_met, quadratic.is_met) == (True, False)
        assert quadratic.ratio == pytest.approx(1.1 / 2)
        assert linear.note == "each is read once; 1 to 100 things"

    def test_constant_work_has_the_largest_ratio(self):
        (flat,), (falling,) = self.of(0.0), self.of(-1.0)
        assert flat.ratio == falling.ratio == pytest.approx(110)

    def test_memory_and_database_have_rows_if_they_were_measured(self):
        rows = self.of(1.0, peak_bytes=5, database_bytes=7)
        assert [row.name.split(":")[0] for row in rows] == ["time", "memory", "database"]
        assert [row.bar for row in rows] == [1.0, None, None]

    def test_points_are_written(self, tmp_path):
        axis.write(tmp_path, [Point("things", x, float(x), 8 * x, 0) for x in (1, 10, 100)])
        with (tmp_path / axis.POINTS).open() as file:
            assert [row["seconds"] for row in csv.DictReader(file)] == ["1", "10", "100"]


class TestAxes:
    @pytest.mark.release
    def test_every_axis_works_at_its_first_size(self):
        for each in arrays.axes(True):
            (point,) = measure(replace(each, sizes=each.sizes[:1]), 1)
            assert point.seconds > 0
            assert point.peak_bytes > 0

    def test_the_full_axes_reach_the_documented_sizes(self):
        ends = {each.name.split(",")[0].split(" (")[0]: each.sizes[-1] for each in arrays.axes(False)}
        assert ends["reports counted and decoded"] == 10**7
        assert ends["shifted_grid from its tally"] == 10**8
        assert ends["cells decoded"] == 10**6
        assert (ends["features"], ends["clusters"], ends["rounds"]) == (64, 256, 32)


class TestDatabases:
    def test_no_frequent_statement_scans_a_large_table(self, grown):
        grown.fill(600)
        row = grown.plans()
        assert row.is_met, row.note
        assert row.ours >= 10

    def test_a_scan_is_found(self, grown):
        grown.fill(600)
        with recorded_statements(grown.database) as seen, grown.database.reading() as session:
            session.execute(text("SELECT name FROM datasets WHERE name = :name"), {"name": "d1"})
        (found,) = full_scans(grown.database, seen)
        assert found.startswith("datasets: SELECT name")

    def test_inserted_charges_equal_those_of_the_service(self, grown):
        dataset_id = grown._dataset_with_grant("a book")
        grown._extend(dataset_id, 50)
        with grown.database.reading() as session:
            balance = ledger.balance(session, dataset_id)
            remainder = ledger.reserved_for(session, dataset_id, "job_long")
            assert ledger.head(session, dataset_id).seq == 50
        assert balance.charged_nano == 48
        assert remainder.epsilon_nano == balance.reserved_nano
        with grown.database.transaction() as session:
            grown._charge(dataset_id, "job_long", session)

    def test_the_rounds_of_a_job_are_opened_and_closed(self, grown):
        assert grown._seconds_of_rounds(3) > 0
        assert grown._seconds_of_rounds(3) > 0  # the first rounds no longer belong to the job

    def test_timed_operations_leave_no_trace(self, grown):
        grown.fill(databases.N_UNFINISHED)
        size = grown.n_bytes()
        for work in grown.operations().values():
            work()
        with grown.database.reading() as session:
            assert session.execute(text("SELECT count(*) FROM report_batches")).scalar_one() == 0
            assert session.execute(text("SELECT count(*) FROM jobs WHERE state = 'running'")).scalar_one() == 0
        assert grown.n_bytes() == size
