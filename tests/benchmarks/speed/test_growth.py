"""Growth: exponents that are found again, and hot queries that read no large table from end to end."""

import csv

import numpy as np
import pytest
from sqlalchemy import text

from benchmarks.speed import growth, growth_database, growth_kernels
from benchmarks.speed.growth_axis import Axis, Point, fitted, measured
from benchmarks.speed.growth_database import Grown
from benchmarks.speed.growth_plans import Statements, full_scans
from benchmarks.speed.row import Setting
from models import ledger
from models.db import Database, migrate

SETTING = Setting(quick=True, turns=1, progress=lambda _: None)


@pytest.fixture
def grown(tmp_path):
    url = f"sqlite:///{tmp_path / 'growth.db'}"
    migrate(url)
    database = Database(url)
    yield Grown("SQLite", database, SETTING)
    database.close()


class TestExponents:
    @pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, -0.3])
    def test_a_power_is_found_again(self, exponent):
        x = [1, 10, 100, 1000]
        found = fitted(x, [3e-4 * size**exponent for size in x])
        assert found.exponent == pytest.approx(exponent, abs=1e-12)
        assert found.error == pytest.approx(0, abs=1e-9)

    def test_scatter_is_told(self):
        rng = np.random.default_rng(1)
        x = np.geomspace(1, 1e6, 40)
        found = fitted(x.tolist(), (x * np.exp(rng.normal(0, 0.3, 40))).tolist())
        assert abs(found.exponent - 1) < 4 * found.error
        assert 0.001 < found.error < 0.05

    @pytest.mark.parametrize(("x", "y"), [([1, 1], [1, 2]), ([1, 2], [0, 1]), ([1, 2], [1, -1])])
    def test_what_has_no_exponent_is_refused(self, x, y):
        with pytest.raises(ValueError, match="two sizes at least"):
            fitted(x, y)


class TestRows:
    AXIS = Axis("things", "things", (1, 10, 100), lambda _: lambda: None, 1.1, "each is looked at once")

    def of(self, exponent, **more):
        return list(growth.of(self.AXIS, [Point("things", x, x**exponent, **more) for x in self.AXIS.sizes]))

    def test_linear_growth_meets_its_bar_and_quadratic_does_not(self):
        (linear,), (quadratic,) = self.of(1.0), self.of(2.0)
        assert (linear.is_met, quadratic.is_met) == (True, False)
        assert quadratic.ratio == pytest.approx(1.1 / 2)
        assert linear.note == "each is looked at once; 1 to 100 things"

    def test_what_does_not_grow_is_as_good_as_can_be(self):
        (flat,), (falling,) = self.of(0.0), self.of(-1.0)
        assert flat.ratio == falling.ratio == pytest.approx(110)

    def test_memory_and_database_are_told_where_they_were_looked_at(self):
        rows = self.of(1.0, peak_bytes=5, database_bytes=7)
        assert [row.name.split(":")[0] for row in rows] == ["time", "memory", "database"]
        assert [row.bar for row in rows] == [1.0, None, None]

    def test_points_and_pictures_are_written(self, tmp_path):
        growth.write(tmp_path, [Point("things", x, float(x), 8 * x, 0) for x in (1, 10, 100)])
        with (tmp_path / growth.POINTS).open() as file:
            assert [row["seconds"] for row in csv.DictReader(file)] == ["1", "10", "100"]
        assert (tmp_path / f"{growth.CURVES}.svg").read_text().startswith("<?xml")


class TestAxes:
    @pytest.mark.slow
    @pytest.mark.ci
    def test_every_axis_works_at_its_first_size(self):
        for axis in growth_kernels.axes(True):
            first = Axis(axis.name, axis.unit, axis.sizes[:1], axis.made, axis.bar, axis.why)
            (point,) = measured(first, 1)
            assert point.seconds > 0
            assert point.peak_bytes > 0

    def test_the_whole_goes_as_far_as_it_should(self):
        ends = {axis.name.split(",")[0].split(" (")[0]: axis.sizes[-1] for axis in growth_kernels.axes(False)}
        assert ends["reports counted and decoded"] == 10**7
        assert ends["shifted_grid from its tally"] == 10**8
        assert ends["cells decoded"] == 10**6
        assert (ends["features"], ends["clusters"], ends["rounds"]) == (64, 256, 32)


class TestDatabases:
    def test_no_hot_statement_reads_a_large_table_from_end_to_end(self, grown):
        grown.fill(600)
        row = grown.plans()
        assert row.is_met, row.note
        assert row.ours >= 10

    def test_a_statement_that_does_is_found(self, grown):
        grown.fill(600)
        with Statements(grown.database) as heard, grown.database.reading() as session:
            session.execute(text("SELECT name FROM datasets WHERE name = :name"), {"name": "d1"})
        (found,) = full_scans(grown.database, heard.seen)
        assert found.startswith("datasets: SELECT name")

    def test_the_ledger_is_lengthened_as_posts_would(self, grown):
        book = grown._book("a book")
        grown._lengthen(book, 50)
        with grown.database.reading() as session:
            balance = ledger.balance(session, book)
            held = ledger.reserved_for(session, book, "job_long")
            assert ledger.head(session, book).seq == 50
        assert balance.posted_nano == 48
        assert held.epsilon_nano == balance.reserved_nano
        with grown.database.transaction() as session:
            grown._post(book, "job_long", session)

    def test_a_jobs_rounds_are_opened_and_closed(self, grown):
        assert grown._job_of(3) > 0
        assert grown._job_of(3) > 0  # again: the first ones are nobody's

    def test_what_is_timed_leaves_no_trace(self, grown):
        grown.fill(growth_database.N_UNFINISHED)
        size = grown.n_bytes()
        for work in grown.operations().values():
            work()
        with grown.database.reading() as session:
            assert session.execute(text("SELECT count(*) FROM report_batches")).scalar_one() == 0
            assert session.execute(text("SELECT count(*) FROM jobs WHERE state = 'running'")).scalar_one() == 0
        assert grown.n_bytes() == size
