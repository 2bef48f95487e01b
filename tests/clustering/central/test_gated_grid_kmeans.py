"""`gated_grid_kmeans`: what it costs, what it asks, what it says where noise is all there is, and how well it does."""

from math import sqrt

import numpy as np
import pytest

from clustering.central.gated_grid import MAX_CELLS, Task, n_coarse_of, splits_of
from clustering.central.gated_grid_kmeans import gated_grid_kmeans
from clustering.central.run import simulate_central
from clustering.curator import Curator, MemoryJournal, Question, Records
from clustering.phase_search import PublicWords
from clustering.seeded_entropy import SeededEntropy
from clustering.weighted_kmeans import weighted_kmeans
from sfumato.accounting import parse_delta, parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.concentrated import rho_of
from sfumato.forecast.central import forecast_central
from sfumato.specs import LATTICE, Feature, GatedGridKmeans


def blobs(n: int, d: int, k: int, seed: int = 0, spread: float = 0.03) -> np.ndarray:
    """Points about k places that lie apart, on the lattice."""
    rng = np.random.default_rng(seed)
    centres = [rng.uniform(0.15, 0.85, d)]
    while len(centres) < k:
        tried = rng.uniform(0.15, 0.85, (200, d))
        gaps = ((tried[:, None] - np.array(centres)) ** 2).sum(axis=2).min(axis=1)
        centres.append(tried[gaps.argmax()])
    points = np.array(centres)[rng.integers(0, k, n)] + rng.normal(0, spread, (n, d))
    return np.clip(np.floor(points * LATTICE), 0, LATTICE - 1).astype(np.int32)


class Recorded(MemoryJournal):
    """Keeps answers; gives back those of an earlier run."""

    def __init__(self, before: "Recorded | None" = None) -> None:
        super().__init__()
        self.before = before
        self.answers: dict[int, np.ndarray] = {}

    def charge(self, index: int, question: Question) -> np.ndarray | None:
        super().charge(index, question)
        return None if self.before is None else self.before.answers.get(index)

    def keep(self, index: int, answer: np.ndarray) -> None:
        self.answers[index] = answer


def run(
    points: np.ndarray,
    params: GatedGridKmeans,
    *,
    seed: int = 1,
    max_per_user: int = 1,
    journal: MemoryJournal | None = None,
) -> tuple[ClusterModel, Curator]:
    features = tuple(Feature(f"x{i}", 0.0, 1.0) for i in range(points.shape[1]))
    curator = Curator(
        Records(points, max_per_user),
        parse_epsilon(params.epsilon),
        journal or MemoryJournal(),
        SeededEntropy(seed),
        parse_delta(params.delta),
    )
    return gated_grid_kmeans(params, features, curator), curator


def distance(points: np.ndarray, centres: np.ndarray) -> float:
    """Mean squared distance to the nearest centre."""
    scaled = (points + 0.5) / LATTICE
    nearest = np.full(len(points), np.inf)
    for centre in centres:
        nearest = np.minimum(nearest, ((scaled - centre) ** 2).sum(axis=1))
    return float(nearest.mean())


ROUTES = [(2, 5, 1.0), (4, 3, 1.0), (4, 3, 0.01), (6, 4, 1.0), (6, 4, 0.005), (12, 8, 0.3), (12, 1, 1.0)]
WITH_DELTA = [(2, 5, 1.0), (6, 4, 1.0), (12, 8, 0.3), (30, 1, 1.0), (30, 4, 0.1)]


class TestCost:
    @pytest.mark.parametrize(("d", "k", "epsilon"), ROUTES)
    def test_questions_cost_epsilon_to_the_nano(self, d: int, k: int, epsilon: float) -> None:
        _, curator = run(blobs(3000, d, k), GatedGridKmeans(epsilon, k))
        assert sum(question.epsilon_nano for question in curator.odometer) == parse_epsilon(epsilon)
        assert {question.delta_atto for question in curator.odometer} == {0}

    @pytest.mark.parametrize(("d", "k", "epsilon"), WITH_DELTA)
    def test_with_a_delta_they_cost_that_too_or_none_of_it(self, d: int, k: int, epsilon: float) -> None:
        model, curator = run(blobs(3000, d, k), GatedGridKmeans(epsilon, k, delta=1e-6))
        blocks = [asked for asked in curator.odometer if asked.delta_atto]
        assert sum(asked.epsilon_nano for asked in curator.odometer) == parse_epsilon(epsilon)
        assert [asked.delta_atto for asked in blocks] == [parse_delta(1e-6)] * (d > 4)
        taken = sum(asked.rho_pico for asked in curator.odometer)
        assert taken == sum(rho_of(asked.epsilon_nano, asked.delta_atto) for asked in blocks)
        assert ("concentrated" in model.diagnostics["route"]) == (d > 4)

    @pytest.mark.parametrize("epsilon", [1e-6, 0.123456789, 31.999999999, 32])
    @pytest.mark.parametrize("d", [1, 4, 5])
    def test_odd_and_extreme_epsilons_too(self, d: int, epsilon: float) -> None:
        model, curator = run(blobs(500, d, 3), GatedGridKmeans(epsilon, 3))
        assert curator.left_nano == 0
        assert np.isfinite(model.centroids).all()

    def test_a_budget_short_of_one_nano_asks_for_nothing_it_cannot_pay(self) -> None:
        points = blobs(500, 2, 3)
        features = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
        curator = Curator(Records(points), parse_epsilon(1) - 1, MemoryJournal(), SeededEntropy(1))
        with pytest.raises(Exception, match="nano-epsilon"):
            gated_grid_kmeans(GatedGridKmeans(1, 3), features, curator)
        assert curator.left_nano > 0


class TestReplay:
    @pytest.mark.parametrize(("d", "k", "epsilon"), ROUTES)
    def test_answers_alone_make_the_same_model_bit_for_bit(self, d: int, k: int, epsilon: float) -> None:
        journal = Recorded()
        params = GatedGridKmeans(epsilon, k, seed=7)
        first, asked = run(blobs(3000, d, k), params, journal=journal)
        again, replayed = run(np.zeros((0, d), dtype=np.int32), params, seed=99, journal=Recorded(journal))
        assert first.to_wire() == again.to_wire()
        assert asked.odometer == replayed.odometer

    @pytest.mark.parametrize(("d", "k", "epsilon"), WITH_DELTA)
    def test_of_concentrated_answers_too(self, d: int, k: int, epsilon: float) -> None:
        journal = Recorded()
        params = GatedGridKmeans(epsilon, k, seed=7, delta=1e-6)
        first, asked = run(blobs(3000, d, k), params, journal=journal)
        again, replayed = run(np.zeros((0, d), dtype=np.int32), params, seed=99, journal=Recorded(journal))
        assert first.to_wire() == again.to_wire()
        assert asked.odometer == replayed.odometer

    def test_a_neighbour_that_gets_the_same_answers_is_asked_the_same(self) -> None:
        points = blobs(2000, 6, 3)
        for n_answers in range(8):
            journal = Recorded()
            _, asked = run(points, GatedGridKmeans(1, 3), journal=journal)
            journal.answers = {index: answer for index, answer in journal.answers.items() if index < n_answers}
            _, other = run(points[1:], GatedGridKmeans(1, 3), seed=5, journal=Recorded(journal))
            told_alike = asked.odometer[: n_answers + 1], other.odometer[: n_answers + 1]
            assert told_alike[0] == told_alike[1]


class TestWhereNoiseIsAllThereIs:
    @pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 8, 23, 64])
    def test_no_records(self, d: int) -> None:
        model, _ = run(np.zeros((0, d), dtype=np.int32), GatedGridKmeans(1, 5))
        assert self.is_sound(model)
        assert model.warnings
        assert model.diagnostics["low_confidence"]

    @pytest.mark.parametrize("d", [2, 6])
    def test_more_clusters_than_records(self, d: int) -> None:
        model, _ = run(blobs(20, d, 2), GatedGridKmeans(1, 50))
        assert self.is_sound(model)
        assert any("few for 50 clusters" in warning for warning in model.warnings)

    @pytest.mark.parametrize("d", [1, 2, 4, 6, 64])
    def test_identical_records(self, d: int) -> None:
        same = np.full((5000, d), 700_000, dtype=np.int32)
        model, _ = run(same, GatedGridKmeans(2, 3))
        assert self.is_sound(model)
        assert distance(same, model.centroids) < 0.001 * d  # type: ignore[arg-type]

    @pytest.mark.parametrize("d", range(1, 65, 7))
    def test_any_number_of_features(self, d: int) -> None:
        model, _ = run(blobs(4000, d, 3), GatedGridKmeans(1, 3))
        assert self.is_sound(model)

    def test_above_four_features_so_few_records_get_one_centre(self) -> None:
        points = blobs(1000, 10, 4)
        model, _ = run(points, GatedGridKmeans(0.1, 4))
        assert model.n_clusters == 1
        assert "one centre at their mean is better" in model.warnings[0]
        assert model.diagnostics["route"] == "one mean"

    @pytest.mark.parametrize("delta", [1e-15, 1e-6, 1e-3])
    @pytest.mark.parametrize("epsilon", [1e-6, 0.01, 32.0])
    @pytest.mark.parametrize("n", [0, 500])
    def test_any_delta(self, n: int, epsilon: float, delta: float) -> None:
        model, curator = run(blobs(n, 12, 3), GatedGridKmeans(epsilon, 3, delta=delta))
        assert self.is_sound(model)
        assert curator.left_nano == 0
        assert curator.left_delta_atto in (0, parse_delta(delta))

    def test_a_clear_result_is_not_flagged(self) -> None:
        for d in (2, 8):
            model, _ = run(blobs(20_000, d, 4), GatedGridKmeans(1, 4))
            assert model.warnings == ()
            assert not model.diagnostics["low_confidence"]

    def is_sound(self, model: ClusterModel) -> bool:
        assert model.centroids is not None
        assert model.centroid_errors is not None
        numbers = [model.centroids, model.centroid_errors, model.sizes, model.size_errors]
        spreads = model.diagnostics["spreads"]
        return (
            all(np.isfinite(array).all() for array in numbers)
            and bool(((model.centroids >= 0) & (model.centroids <= 1)).all())
            and bool(np.isclose(model.sizes.sum(), 1))
            and all(spread is not None and spread >= 0 for spread in spreads)
        )


class TestUsers:
    def test_concentrated_noise_goes_by_them_too(self) -> None:
        points = blobs(30_000, 12, 4)
        alone, users = (run(points, GatedGridKmeans(1, 4, delta=1e-6), max_per_user=m)[0] for m in (1, 10))
        assert "8 concentrated" in alone.diagnostics["route"] == users.diagnostics["route"]
        assert users.size_errors.mean() == pytest.approx(10 * alone.size_errors.mean(), rel=0.05)

    def test_noise_and_sizes_go_by_the_epsilon_of_one_record(self) -> None:
        points = blobs(30_000, 2, 4)
        model, _ = run(points, GatedGridKmeans(1, 4), max_per_user=10)
        alone, _ = run(points, GatedGridKmeans(0.1, 4))
        assert model.diagnostics["q"] == pytest.approx(alone.diagnostics["q"], rel=0.05)
        assert model.size_errors.mean() == pytest.approx(alone.size_errors.mean(), rel=0.3)


@pytest.fixture(scope="module", params=[(2, 15, 10_000), (4, 8, 20_000), (8, 8, 50_000)])
def clear(request: pytest.FixtureRequest) -> tuple[np.ndarray, int, float]:
    """Clusters with room between them, and how near k-means comes to them."""
    d, k, n = request.param
    points = blobs(n, d, k, seed=d)
    fit = weighted_kmeans((points + 0.5) / LATTICE, np.ones(n), k, PublicWords(0))
    return points, k, fit.inertia / n


class TestQuality:
    def test_it_comes_near_k_means_without_noise(self, clear: tuple[np.ndarray, int, float]) -> None:
        points, k, best = clear
        for epsilon, most in ((1.0, 1.02), (0.1, 1.25)):
            found = [run(points, GatedGridKmeans(epsilon, k), seed=seed)[0] for seed in range(5)]
            ratios = [distance(points, model.centroids) / best for model in found]  # type: ignore[arg-type]
            assert np.median(ratios) < most  # at little epsilon one run in twenty loses a cluster

    def test_sizes_and_spreads_are_near_the_truth(self, clear: tuple[np.ndarray, int, float]) -> None:
        points, k, best = clear
        model, _ = run(points, GatedGridKmeans(1, k))
        labels = model.assign((points + 0.5) / LATTICE)
        shares = np.bincount(labels, minlength=k) / len(points)
        assert np.abs(model.sizes - shares).max() < 5 * model.size_errors.max() + 0.01
        assert np.mean(model.diagnostics["spreads"]) == pytest.approx(sqrt(best), rel=0.15)

    def test_with_a_delta_it_comes_nearer_in_many_features(self) -> None:
        points = blobs(4000, 16, 4, spread=0.1)
        best = weighted_kmeans((points + 0.5) / LATTICE, np.ones(len(points)), 4, PublicWords(0)).inertia / len(points)
        excess = [
            np.mean([distance(points, run(points, params, seed=s)[0].centroids) for s in range(4)]) / best - 1  # type: ignore[arg-type]
            for params in (GatedGridKmeans(0.2, 4), GatedGridKmeans(0.2, 4, delta=1e-6))
        ]
        assert excess[1] < 0.7 * excess[0]

    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    def test_centre_errors_are_those_that_repeated_noise_has(self, delta: float) -> None:
        points = blobs(5000, 6, 3)
        runs = [run(points, GatedGridKmeans(1, 3, delta=delta), seed=seed)[0] for seed in range(12)]
        order = [np.argsort(model.centroids[:, 0]) for model in runs]  # type: ignore[index]
        seen = np.std([model.centroids[o] for model, o in zip(runs, order, strict=True)], axis=0)  # type: ignore[index]
        said = np.mean([model.centroid_errors for model in runs])
        assert 0.3 * said < seen.mean() < 2 * said

    def test_equal_seeds_give_equal_models(self) -> None:
        points = (blobs(2000, 3, 4) + 0.5) / LATTICE
        one, two = (simulate_central(GatedGridKmeans(0.5, 4, seed=3), points, seed=2) for _ in range(2))
        assert one.to_wire() == two.to_wire()

    def test_a_box_four_times_too_wide_does_little_harm(self) -> None:
        points = blobs(50_000, 2, 10)
        best = weighted_kmeans((points + 0.5) / LATTICE, np.ones(50_000), 10, PublicWords(0)).inertia / 50_000 / 16
        wide = (points // 4 + LATTICE * 3 // 8).astype(np.int32)
        ratios = [distance(wide, run(wide, GatedGridKmeans(0.1, 10), seed=s)[0].centroids) / best for s in range(5)]  # type: ignore[arg-type]
        assert np.mean(ratios) < 1.1


class TestSizing:
    def test_grids_stay_within_their_limits(self) -> None:
        for d in (1, 2, 3, 4):
            task = Task(1e9, 256, 32.0)
            n_coarse = n_coarse_of(task, d)
            coarse = np.full(n_coarse**d, int(1e9) // n_coarse**d)
            assert int((splits_of(coarse, 25.0, task, d, n_coarse) ** d).sum()) <= MAX_CELLS

    def test_there_are_cells_for_every_cluster(self) -> None:
        for d in (1, 2, 3, 4):
            for k in range(1, 257, 5):
                task = Task(1.0, k, 0.01)
                n_coarse = n_coarse_of(task, d)
                cells = int((splits_of(np.zeros(n_coarse**d, dtype=np.int64), 0.01, task, d, n_coarse) ** d).sum())
                assert cells >= k


class TestForecast:
    def test_a_result_forecasts_by_its_noisy_count(self) -> None:
        model, curator = run(blobs(5000, 2, 4), GatedGridKmeans(0.5, 4))
        expected = forecast_central(GatedGridKmeans(0.5, 4), 2, model.diagnostics["noisy_count"])
        assert model.diagnostics["forecast"]["ratio"] == expected.ratio
        assert curator.odometer[0].what == "count"

    def test_what_was_achieved_follows_the_noise(self) -> None:
        points = blobs(20_000, 8, 4)
        loud, quiet = (run(points, GatedGridKmeans(epsilon, 4))[0].diagnostics for epsilon in (0.1, 1.0))
        assert 1 < quiet["achieved_ratio"] < loud["achieved_ratio"]
        assert quiet["one_mean_ratio"] > 5
