"""Test that projections are exact, depend on one record only, and stream their sums."""

import numpy as np
import pytest

from clustering.central import cells as cells_module
from clustering.central import queries
from clustering.central.cells import NearestCells
from clustering.central.mapped_records import MappedRecords
from clustering.central.projection import ProjectedCells, Projection, make_projection
from clustering.central.queries import CellMoments, Records, count_records
from sfumato.specs import LATTICE


def projection_of(d: int, m: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(d, m)))[0]
    return make_projection(rng.integers(0, LATTICE, d), directions), directions


def points_of(n: int, d: int):
    return np.random.default_rng(n).integers(0, LATTICE, (n, d)).astype(np.int32)


class DistantRecords(Records):
    """Records as if they were in another process."""

    @property
    def is_local(self) -> bool:
        return False


@pytest.mark.parametrize(("d", "m"), [(1, 1), (5, 5), (64, 16), (1536, 16)])
def test_coordinates_equal_those_in_big_integers(d: int, m: int) -> None:
    projection, directions = projection_of(d, m)
    points = np.concatenate([points_of(6, d), np.zeros((1, d), np.int32), np.full((1, d), LATTICE - 1, np.int32)])
    coordinates = projection.apply(points)
    for point, row in zip(points.tolist(), coordinates.tolist(), strict=True):
        steps = [x - int(o) for x, o in zip(point, projection.middle, strict=True)]
        exact = [sum(s * int(b) for s, b in zip(steps, column, strict=True)) >> 16 for column in projection.basis.T]
        assert row == exact
    assert coordinates == pytest.approx((points - projection.middle) @ directions, abs=0.01 * LATTICE)


def test_undo_returns_to_the_plane() -> None:
    projection, _ = projection_of(6, 6)
    points = points_of(20, 6)
    back = projection.undo((projection.apply(points) + 0.5) / LATTICE)
    assert back == pytest.approx((points + 0.5) / LATTICE, abs=1e-4)


def test_blocks_do_not_change_cells_or_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    projection, _ = projection_of(30, 3)
    points = points_of(100, 30)
    centres = np.random.default_rng(1).integers(-LATTICE, LATTICE, (4, 3))
    inner = CellMoments(NearestCells(centres), centres, np.full(4, LATTICE), "products")
    whole = [part.tolist() for part in inner(projection.apply(points))]
    labels = ProjectedCells(projection, NearestCells(centres)).index(points).tolist()
    monkeypatch.setattr(cells_module, "BLOCK_VALUES", 7 * 30)
    source = MappedRecords(Records(points, 3), projection)
    assert [part.tolist() for part in source.total(inner)] == whole
    assert ProjectedCells(projection, NearestCells(centres)).index(points).tolist() == labels
    assert (source.n_features, source.max_per_user, len(source.points)) == (3, 3, 100)
    elsewhere = MappedRecords(DistantRecords(points, 3), projection)
    assert [part.tolist() for part in elsewhere.total(inner)] == whole
    empty = MappedRecords(Records(points[:0]), projection).total(inner)
    assert [part.shape for part in empty] == [(4, 3), (4,), (4, 6)]
    assert not any(part.any() for part in empty)


@pytest.mark.parametrize(
    ("m", "source", "passes"),
    [(3, Records, 1), (4, Records, 2), (3, DistantRecords, 2)],
    ids=["kept", "wide", "distant"],
)
def test_only_local_records_that_become_much_narrower_are_kept(
    m: int, source: type[Records], passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    projection, _ = projection_of(30, m)
    applied: list[int] = []
    apply = Projection.apply

    def count(self: Projection, points: np.ndarray) -> np.ndarray:
        applied.append(len(points))
        return apply(self, points)

    monkeypatch.setattr(Projection, "apply", count)
    records = MappedRecords(source(points_of(100, 30), 3), projection)
    sums = [records.total(count_records)[0].tolist() for _ in range(2)]
    assert sums == [[100], [100]]
    assert sum(applied) == 100 * passes
    assert records.is_local == (source is Records)


def test_products_of_many_records_are_added_in_exact_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    points, centres = points_of(100, 5), points_of(3, 5).astype(np.int64)
    inner = CellMoments(NearestCells(centres), centres, np.full(3, LATTICE // 2), "products")
    whole = [part.tolist() for part in inner(points)]
    monkeypatch.setattr(queries, "EXACT_RECORDS", 7)
    assert [part.tolist() for part in inner(points)] == whole
