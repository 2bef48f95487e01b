"""Private bounds: their cost, their result, and records scaled by them."""

from dataclasses import replace

import numpy as np
import pytest

from clustering.central.bounds import find_hulls, judge_bounds
from clustering.central.mapped_records import MappedRecords
from clustering.central.narrowing import Bounds, BoxShells, FeatureHistograms
from clustering.central.noise import GaussianNoise, LaplaceNoise
from clustering.central.queries import Records, count_records
from clustering.central.run import run
from clustering.errors import TooFewRecords
from clustering.simulate import simulate_central
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.specs import CENTRAL_ALGORITHMS, LATTICE, Auto, DensityMap, Feature, PrivateKmeans
from tests.clustering.central.journals import KeepingJournal, NoEntropy, curator_of, remove_noise

PURE, BLOCK = PrivateKmeans(1.0, 2, bounds="private"), PrivateKmeans(1.0, 2, delta=1e-6, bounds="private")
DELTA_ATTO = ATTO // 10**6


def two_far_places(n: int, d: int, spread: float = 0.004) -> np.ndarray:
    """Return points of two clusters in about 5 % of the box, aside from its middle."""
    rng = np.random.default_rng(d)
    return 0.3 + 0.03 * (np.arange(n) % 2)[:, None] + spread * rng.normal(size=(n, d))


def features_of(d: int, upper: float = 1.0) -> tuple[Feature, ...]:
    return tuple(Feature(f"x{i}", 0.0, upper) for i in range(d))


def run_over(params, points, journal=None, **other):
    curator = curator_of(
        np.floor(points * LATTICE), NANO, journal=journal, delta_atto=DELTA_ATTO if params.delta else 0, **other
    )
    return run(params, features_of(points.shape[1]), curator), curator


class TestSearch:
    @pytest.mark.parametrize(("params", "d"), [(PURE, 2), (BLOCK, 6)])
    def test_finds_bounds_around_nearly_all_records(self, params, d: int) -> None:
        points = two_far_places(20_000, d)
        model, curator = run_over(params, points)
        lowers, uppers = ([getattr(each, end) for each in model.features] for end in ("lower", "upper"))
        assert ((points >= lowers) & (points <= uppers)).all(axis=1).mean() > 0.98
        assert max(np.subtract(uppers, lowers)) < 0.25
        assert sorted(model.centroids[:, 0]) == pytest.approx([0.3, 0.33], abs=0.003)
        assert model.diagnostics["private_bounds"]["shares_of_declared"] == pytest.approx(np.subtract(uppers, lowers))
        assert model.privacy["features"] == "post_processed"
        assert curator.spent_nano == NANO

    def test_costs_at_most_eight_percent(self) -> None:
        _, pure = run_over(PURE, two_far_places(5000, 2))
        found = pure.odometer[:4]
        assert [query.description for query in found] == ["count", "histograms", "histograms", "counts"]
        assert sum(query.epsilon_nano for query in found) == NANO * 8 // 100
        _, block = run_over(BLOCK, two_far_places(3000, 6))
        count, opened, *queries = block.odometer
        assert (count.epsilon_nano, opened.epsilon_nano) == (NANO // 200, NANO - NANO // 200)
        assert sum(query.rho_pico for query in queries[:3]) <= 0.14 * sum(query.rho_pico for query in queries)
        assert [query.description for query in block.odometer].count("concentrated block") == 1

    def test_many_records_need_a_smaller_part(self) -> None:
        _, curator = run_over(PURE, two_far_places(200_000, 2))
        assert sum(query.epsilon_nano for query in curator.odometer[1:3]) < 0.03 * NANO

    def test_few_records_are_refused_after_their_count_with_the_number_that_would_do(self) -> None:
        journal = KeepingJournal()
        with pytest.raises(TooFewRecords, match=r"few for private bounds of 8 features.*about [0-9]{4} would do"):
            run_over(PURE, two_far_places(500, 8), journal)
        assert [query.epsilon_nano for query in journal.charges] == [NANO // 200]

    def test_a_tiny_epsilon_is_rejected_before_any_charge(self) -> None:
        journal = KeepingJournal()
        with pytest.raises(InvalidSpec, match="too small for private bounds"):
            run_over(replace(PURE, epsilon=1e-6), two_far_places(500, 2), journal)
        assert journal.charges == []

    def test_a_small_cluster_aside_stays_inside(self) -> None:
        points = two_far_places(20_000, 2)
        points[:600] += 0.3
        model, _ = run_over(PURE, points)
        assert min(each.upper for each in model.features) > 0.6

    def test_the_width_that_holds_95_percent_lies_in_its_interval(self) -> None:
        points = two_far_places(12_000, 2)
        n_held, upper = 0, []
        for seed in range(10):
            model = simulate_central(replace(PURE, epsilon=0.5), points, seed=seed)
            found = model.diagnostics["private_bounds"]
            middles = [(each.lower + each.upper) / 2 for each in model.features]
            shares = np.array(found["shares_of_declared"])
            held = np.quantile((2 * np.abs(points - middles) / shares).max(axis=1), 0.95) * shares
            interval = found["width_of_95_percent"]
            n_held += bool((interval["lower"] <= held).all() and (held <= interval["upper"]).all())
            upper.append(interval["upper"][0] / held[0])
        assert n_held >= 7  # fewer has probability .12 at .8
        assert np.median(upper) < 3

    def test_features_declared_alike_keep_one_scale(self) -> None:
        points = two_far_places(20_000, 3) * [1, 1, 0.1]
        alike = simulate_central(PURE, points, seed=1).features
        assert len({round(each.upper - each.lower, 9) for each in alike}) == 1
        other = tuple(replace(each, unit=unit) for each, unit in zip(features_of(3), "aab", strict=True))
        a, b, c = (each.upper - each.lower for each in simulate_central(PURE, points, seed=1, features=other).features)
        assert a == pytest.approx(b)
        assert c < a / 4

    def test_right_bounds_stay(self) -> None:
        points = np.random.default_rng(0).random((20_000, 2))
        assert all(each.upper - each.lower > 0.9 for each in simulate_central(PURE, points, seed=0).features)

    @pytest.mark.parametrize("algorithm", CENTRAL_ALGORITHMS.values())
    def test_every_algorithm_takes_private_bounds(self, algorithm) -> None:
        model = simulate_central(algorithm(epsilon=4, clusters=2, bounds="private"), two_far_places(3000, 2), seed=1)
        assert model.features[0].upper < 0.6
        assert np.ptp(model.centroids[:, 0]) < 0.3

    @pytest.mark.parametrize(("params", "d"), [(PURE, 2), (BLOCK, 5)])
    def test_a_job_that_runs_again_gets_the_stored_answers(self, params, d: int) -> None:
        points, journal = two_far_places(5000, d), KeepingJournal()
        first, _ = run_over(params, points, journal)
        again, _ = run_over(params, points[1:], KeepingJournal(journal.answers), entropy=NoEntropy())
        assert again.to_wire() == first.to_wire()


class TestNoise:
    @pytest.mark.parametrize("max_per_user", [1, 3])
    def test_grows_with_features_and_records_per_user(self, monkeypatch: pytest.MonkeyPatch, max_per_user: int) -> None:
        noises = remove_noise(monkeypatch, LaplaceNoise)
        _, curator = run_over(PURE, two_far_places(20_000, 2), max_per_user=max_per_user)
        cost = curator.odometer[1].epsilon_nano
        assert noises[1].scale(int(noises[1].sensitivities[0])) == 2 * max_per_user * NANO / cost
        gaussian = remove_noise(monkeypatch, GaussianNoise)
        _, curator = run_over(BLOCK, two_far_places(20_000, 6), max_per_user=max_per_user)
        rho = curator.odometer[2].rho_pico
        assert float(gaussian[0].variance(1)) == pytest.approx(6 * max_per_user**2 * 1e12 / (2 * rho) + 3, rel=1e-5)


class TestHulls:
    def test_contain_single_bins_and_sums_that_stand_out(self) -> None:
        counts = np.zeros((3, 16), dtype=np.int64)
        counts[0, 5] = 200
        counts[0, 9:13] = 60  # each below the threshold
        counts[1] = 30
        lows, highs = find_hulls(counts, 100.0, 100.0)
        assert (lows[0], highs[0]) == (5, 13)
        assert (lows[1], highs[1], lows[2], highs[2]) == (0, 16, 0, 16)

    def test_of_noise_alone_are_the_whole_range(self) -> None:
        noise = np.random.default_rng(0).normal(0, 20, (50, 64)).astype(np.int64)
        lows, highs = find_hulls(noise, 90.0, 90.0)
        assert (highs - lows == 64).all()


class TestNarrowedRecords:
    BOUNDS = Bounds(np.array([1000, 0]), np.array([2048, LATTICE]))

    def test_scale_and_clip_each_record(self) -> None:
        points = np.array([[0, 7], [1000, 0], [2023, 5], [3047, LATTICE - 1], [9999, 9]], dtype=np.int32)
        scaled = MappedRecords(Records(points), self.BOUNDS).points
        assert scaled[:, 1].tolist() == points[:, 1].tolist()
        assert scaled[:, 0].tolist() == [0, 256, LATTICE // 2 - 256, LATTICE - 256, LATTICE - 1]

    def test_features_have_the_bounds_of_the_scaled_records(self) -> None:
        first, second = self.BOUNDS.scale_features(features_of(2, 1024.0))
        assert (first.lower, first.upper) == (1000 / 1024, 3048 / 1024)
        assert (second.lower, second.upper) == (0.0, 1024.0)

    def test_sums_equal_those_of_one_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("clustering.central.cells.BLOCK_VALUES", 64)
        points = np.random.default_rng(1).integers(0, LATTICE, (500, 2)).astype(np.int32)
        records = MappedRecords(Records(points, 3), self.BOUNDS)
        histograms = FeatureHistograms(Bounds(np.array([5, 0]), np.array([LATTICE // 2, 300_000])), 8)
        assert records.total(histograms)[0].tolist() == histograms(records.points)[0].tolist()
        assert records.total(count_records)[0].tolist() == [500]
        assert (records.max_per_user, records.n_features) == (3, 2)

    def test_histograms_and_boxes_count_each_record_by_its_place(self) -> None:
        points = np.random.default_rng(2).integers(0, LATTICE, (300, 2)).astype(np.int32)
        given = Bounds(np.array([200_000, 500_000]), np.array([400_000, 100_000]))
        counts = np.zeros((2, 4), dtype=np.int64)
        shells = []
        for record in points.tolist():
            sizes = []
            for j, (low, width) in enumerate(zip(given.lows.tolist(), given.widths.tolist(), strict=True)):
                if low <= record[j] < low + width:
                    counts[j, (record[j] - low) * 4 // width] += 1
                sizes.append(abs(record[j] + 0.5 - (low + width / 2)) / (width / 2))
            shells.append(sum(max(sizes) > factor for factor in (0.5, 2.0)))
        assert FeatureHistograms(given, 4)(points)[0].tolist() == counts.ravel().tolist()
        assert BoxShells(given, np.array([0.5, 2.0])).index(points).tolist() == shells


class TestWideBounds:
    @pytest.mark.parametrize("params", [replace(PURE, bounds="declared"), DensityMap(1.0), Auto(1.0, 2)], ids=str)
    def test_far_too_wide_bounds_are_a_warning(self, params) -> None:
        model = simulate_central(params, two_far_places(20_000, 2), seed=1)
        assert "private bounds" in model.warnings[-1]
        assert model.verdict != "reliable"
        assert "declared bounds" in model.verdict_reason

    def test_right_bounds_are_not(self) -> None:
        points = np.random.default_rng(0).random((5000, 2))
        model = simulate_central(replace(PURE, bounds="declared"), points, seed=0)
        assert judge_bounds(model, in_ball=False, is_searched=False) is model
        narrowed = simulate_central(PURE, two_far_places(20_000, 2), seed=1)
        assert not any("declared bounds" in each for each in narrowed.warnings)

    def test_the_bounds_of_a_search_are_judged_too(self) -> None:
        model = simulate_central(replace(PURE, bounds="declared"), two_far_places(20_000, 2), seed=1)
        assert "More records" in judge_bounds(model, in_ball=False, is_searched=True).warnings[-1]

    def test_embeddings_fill_their_ball(self) -> None:
        points = np.random.default_rng(3).normal(size=(4000, 128))
        points = 0.5 + 0.5 * points / np.linalg.norm(points, axis=1)[:, None]
        params = PrivateKmeans(2.0, 2, delta=1e-6)
        with_ball, without = (simulate_central(params, points, seed=1, in_ball=ball) for ball in (True, False))
        assert not any("bounds" in each for each in with_ball.warnings)
        assert any("bounds" in each for each in without.warnings)
