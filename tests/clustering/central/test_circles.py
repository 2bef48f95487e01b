"""Points on circles for periodic features over records: the map, its cells, results, and their errors."""

from math import pi

import numpy as np
import pytest

from clustering.central.cells import GridCells, NearestAlongCircles
from clustering.central.circles import RecordCircles as Circles
from clustering.central.private_kmeans import concentrated_kmeans
from clustering.central.profile_clusters import label_records
from clustering.circles import DIAMETER
from clustering.metrics import adjusted_rand_index
from clustering.simulate import simulate_central
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.records.encodings import differences, scale_errors
from sfumato.specs import LATTICE, DpKmeans, Feature, Place, PrivateKmeans
from tests.clustering.central.journals import curator_of

HOUR, X = Feature("hour", 0, 24, "h", periodic=True), Feature("x", -5, 5)
CENTRES = np.array([[0.5, 0.5], [0.8, 0.3], [0.2, 0.7]])  # in feature ranges


def people(turn: float, n: int = 6000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return places of three groups in feature ranges, turned along the circle, and their labels."""
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, 3, n)
    points = (CENTRES[labels] + chance.normal(0, 0.04, (n, 2))).clip(0, 1)
    return np.column_stack([(points[:, 0] + turn) % 1, points[:, 1]]), labels


def fit(params: PrivateKmeans, turn: float, *more: Feature) -> tuple[ClusterModel, float, np.ndarray]:
    """Return a model, its agreement with the groups, and the errors of its centres in feature ranges."""
    points, labels = people(turn)
    others = np.random.default_rng(1).normal(0.5, 0.05, (len(points), len(more))).clip(0, 1)
    features = (HOUR, X, *more)
    model = simulate_central(params, np.column_stack([points, others]), seed=1, features=features)
    lower, ranges = (np.array([getattr(each, name) for each in features]) for name in ("lower", "period"))
    assert model.centroids is not None
    found = (model.centroids - lower)[:, :2] / ranges[:2]
    wanted = np.column_stack([(CENTRES[:, 0] + turn) % 1, CENTRES[:, 1]])
    away = differences(found[:, None], wanted, (0,))
    nearest = (away**2).sum(axis=2).argmin(axis=1)
    records = lower + np.column_stack([points, others]) * ranges
    return model, adjusted_rand_index(labels, model.assign(records)), away[np.arange(len(found)), nearest]


class TestMap:
    def test_without_a_circle_changes_nothing(self) -> None:
        points, cells = np.random.default_rng(0).integers(0, LATTICE, (50, 2), dtype=np.int32), GridCells((3, 3))
        assert Circles(2).apply(points).tolist() == points.tolist()
        assert Circles(2).to_points(points / LATTICE).tolist() == (points / LATTICE).tolist()
        assert Circles(2).cells(cells) is cells

    def test_a_short_way_keeps_its_length_across_the_seam(self) -> None:
        circles = Circles(3, (1,))
        pairs = np.array([[0.2, 0.999, 0.7], [0.2, 0.001, 0.7], [0.2, 0.499, 0.7], [0.2, 0.501, 0.7]])
        points = circles.to_points(pairs)
        assert points.shape == (4, 4)
        ways = np.linalg.norm(points[[0, 2]] - points[[1, 3]], axis=1)
        assert ways == pytest.approx([0.002, 0.002], rel=1e-4)
        assert np.linalg.norm(points[:, 1:3] - 0.5, axis=1) == pytest.approx(np.full(4, DIAMETER / 2))
        assert circles.along(points) == pytest.approx(pairs)

    def test_a_record_returns_to_its_place(self) -> None:
        circles = Circles(2, (0, 1))
        records = np.random.default_rng(1).integers(0, LATTICE, (5000, 2), dtype=np.int32)
        mapped = circles.apply(records)
        assert mapped.min() >= 0
        assert mapped.max() < LATTICE
        back = circles.along((mapped + 0.5) / LATTICE) * LATTICE
        away = np.abs(differences(back / LATTICE, (records + 0.5) / LATTICE, (0, 1))) * LATTICE
        assert away.max() < 2  # places

    def test_cells_of_records_are_cells_of_their_points(self) -> None:
        circles = Circles(2, (0,))
        records = ((np.random.default_rng(2).integers(0, 32, (500, 2)) + 0.5) * LATTICE / 32).astype(np.int32)
        cells = GridCells((8, 8))
        found = circles.cells(cells)
        assert found.n_cells == 64
        assert found.index(circles.apply(records)).tolist() == cells.index(records).tolist()

    def test_the_context_restores_the_records(self) -> None:
        curator = curator_of(np.zeros((5, 3), dtype=np.int32), 10**9)
        with curator.on_circles((0, 2)) as circles:
            assert curator.n_features == curator.domain.n_features == circles.n_features == 5
            assert curator.domain.disks == (0, 3)
            assert curator.domain.n_planned == 3
            assert curator.domain.radius == pytest.approx((0.25 + 2 * (DIAMETER / 2) ** 2) ** 0.5)
            outside = curator.domain.confine(np.full((1, 5), 1.0))
            assert np.hypot(*(outside[0, :2] - 0.5)) == pytest.approx(DIAMETER / 2)
            assert outside[0, 2] == 1.0
        assert curator.n_features == curator.domain.n_features == 3
        assert curator.circles.places == ()


class TestResults:
    @pytest.mark.parametrize("params", [PrivateKmeans(1.0, 3), PrivateKmeans(2.0), PrivateKmeans(1.0, 3, delta=1e-6)])
    def test_are_as_good_over_the_seam_as_in_the_middle(self, params: PrivateKmeans) -> None:
        for turn in (0.0, 0.5):
            model, ari, errors = fit(params, turn)
            assert ari > 0.97
            assert np.abs(errors).max() < 0.01
            assert [each.name for each in model.features] == ["hour", "x"]
            assert not [text for text in model.warnings if "bounds" in text]
            assert model_from_wire(model.to_wire()).features == model.features

    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    def test_more_than_four_features(self, delta: float) -> None:
        more = tuple(Feature(f"y{i}", 0, 1) for i in range(4))
        for turn in (0.0, 0.5):
            _, ari, errors = fit(PrivateKmeans(4.0, 3, delta=delta), turn, *more)
            assert ari > 0.95
            assert np.abs(errors).max() < 0.03

    def test_repair_rounds_after_the_grid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(concentrated_kmeans, "hides_clusters", lambda *_: True)
        chance = np.random.default_rng(3)
        labels = chance.integers(0, 12, 60_000)
        hours = (2 * labels + chance.normal(0, 0.15, len(labels))) % 24
        params = PrivateKmeans(8.0, 12, delta=1e-6)
        model = simulate_central(params, hours[:, None] / 24, seed=1, features=(HOUR,))
        assert "concentrated" in model.diagnostics["route"]
        assert adjusted_rand_index(labels, model.assign(hours[:, None])) > 0.99
        assert model.centroids is not None
        wanted = np.abs(differences(model.centroids / 24, np.arange(12) / 12, (0,)))
        assert wanted.min(axis=1).max() < 0.01

    def test_errors_are_those_of_repeated_runs(self) -> None:
        ratios = []
        for seed in range(12):
            points, _ = people(0.5, 2000, seed)
            model = simulate_central(PrivateKmeans(1.0, 3), points, seed=seed, features=(HOUR, X))
            assert model.centroids is not None
            assert model.centroid_errors is not None
            found = (model.centroids[:, 0] / 24)[:, None]
            away = differences(found[:, None], ((CENTRES[:, :1] + 0.5) % 1), (0,))[..., 0]
            ratios.append(np.abs(away).min(axis=1) / (model.centroid_errors[:, 0] / 24))
        assert 0.6 < np.sqrt(np.mean(np.square(ratios))) < 1.4

    def test_errors_of_latitudes_are_those_of_their_sines(self) -> None:
        points, _ = people(0.5)
        earth, plain = (
            simulate_central(PrivateKmeans(1.0, 3), points, seed=1, features=features)
            for features in (Place().features[::-1], (HOUR, X))
        )
        assert earth.centroids is not None
        assert plain.centroids is not None
        assert earth.centroid_errors is not None
        assert plain.centroid_errors is not None
        scaled = scale_errors(earth.features, earth.centroids, earth.centroid_errors)
        assert scaled == pytest.approx(plain.centroid_errors / [24, 10])
        assert np.ptp(earth.centroid_errors[:, 1] / scaled[:, 1]) > 5

    def test_a_cluster_all_around_the_circle_has_no_certain_centre(self) -> None:
        hours = np.linspace(0, 1, 4000, endpoint=False)
        model = simulate_central(PrivateKmeans(0.2, 1), hours[:, None], seed=1, features=(HOUR,))
        assert model.centroid_errors is not None
        assert 2 < model.centroid_errors[0, 0] <= 12

    def test_a_check_of_features_names_the_hour_without_a_gap(self) -> None:
        chance = np.random.default_rng(5)
        points = np.column_stack([chance.random(30_000), chance.choice([0.2, 0.8], 30_000)])
        points[:, 1] += chance.normal(0, 0.03, len(points))
        params = PrivateKmeans(8.0, 6, check_features=True)
        model = simulate_central(params, points.clip(0, 1), seed=1, features=(HOUR, X))
        assert model.feature_check is not None
        assert "x" not in model.feature_check.irrelevant

    def test_profiles_label_records_as_the_model_does(self) -> None:
        model, *_ = fit(PrivateKmeans(1.0, 3), 0.5)
        labelling = label_records(model, (HOUR, X))
        records = np.random.default_rng(7).integers(0, LATTICE, (500, 2), dtype=np.int32)
        assert isinstance(labelling.cells, NearestAlongCircles)
        values = np.array([0, -5]) + (records + 0.5) / LATTICE * np.array([24, 10])
        assert (labelling.cells.index(records) == model.assign(values)).mean() > 0.99

    def test_published_methods_refuse_circles(self) -> None:
        with pytest.raises(InvalidSpec, match=r"dp_kmeans does not take .*use density_map or private_kmeans"):
            simulate_central(DpKmeans(1.0, 2), np.zeros((10, 1)), seed=1, features=(HOUR,))


def test_a_period_is_as_long_as_the_circle() -> None:
    assert pytest.approx(1.0) == pi * DIAMETER
