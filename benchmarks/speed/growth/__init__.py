"""Growth of time, memory and database size with the work, as exponents of a least-squares fit.

An exponent of 1 is linear growth. A row compares the exponent (`ours`) with the largest one allowed (the reference).
growth.csv has every point.
"""

from collections.abc import Iterator

from benchmarks.speed.growth import arrays
from benchmarks.speed.growth.axis import Axis, Point, measure, rows_of, write
from benchmarks.speed.growth.databases import open_databases
from benchmarks.speed.harness.measurement import Measurement, Setting


def rows(setting: Setting) -> Iterator[Measurement]:
    """Yield a row per axis and measure, and the query plans of frequent statements."""
    points: list[Point] = []

    def fitted(axis: Axis, found: list[Point]) -> Iterator[Measurement]:
        points.extend(found)
        yield from rows_of(axis, found)

    try:
        for axis in arrays.axes(setting.quick):
            setting.progress(f"  growth: {axis.name}")
            yield from fitted(axis, measure(axis, setting.turns))
        for database in open_databases(setting):
            for axis, found in database.axes():
                yield from fitted(axis, found)
            yield database.plans()
    finally:
        if setting.folder is not None and points:
            write(setting.folder, points)
