"""Test the incremental mixture: its sizes, families, cloud and few reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.centroids.weighted_kmeans import weighted_kmeans
from clustering.phases import incremental_mixture
from clustering.phases.gaussian_components import Components, characteristic_of, full_shape
from clustering.phases.incremental_mixture import Frame, fit_cloud, fit_sizes, max_components
from clustering.phases.mixture_fit import Sketch, sketch_of
from clustering.phases.particles import centroids_of
from clustering.phases.waves import waves_for
from clustering.random import PublicWords
from clustering.rounds.tally import Tally
from sfumato.mechanisms import design
from tests.clustering.local_plans import mixture
from tests.clustering.phases.sketches import sketch_points


def sketched(points, epsilon=4.0, n_waves=256, lengths=(3.0, 20.0)) -> Sketch:
    return sketch_points(points, epsilon, n_waves, lengths=lengths)


def ellipsoids(n, n_features, seed=1, width=0.2):
    """Return points of two long clusters that overlap, along none of the features."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(n_features, n_features)))[0]
    widths = width * 0.6 ** np.arange(n_features)
    points = rng.normal(size=(n, n_features)) * widths @ axes.T + 0.5
    points[rng.random(n) < 0.4] += 0.08 * axes[:, -1]
    return points.clip(0, 1)


def inertia(points, centres):
    return np.min([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=0).mean()


class TestSizes:
    @pytest.mark.parametrize(
        ("clusters", "n_features", "n_spreads", "most"),
        [
            (1, 1, 1, 2),
            (10, 2, 1, 16),
            (10, 4, 10, 10),
            (64, 2, 1, 64),  # 256 parameters, four each
            (64, 64, 64, 1),
            (64, 64, 1, 3),
        ],
    )
    def test_are_limited_by_clusters_and_parameters(self, clusters, n_features, n_spreads, most):
        assert max_components(clusters, n_features, n_spreads) == most

    def test_increase_until_the_score_gets_worse(self):
        seen = characteristic_of(sketched(mixture(20_000, [[0.3, 0.4], [0.7, 0.6]])[0], 2.0))
        (family,) = incremental_mixture._families(seen, PublicWords(0))
        sizes, losses, scores = [], [], []
        for fitted in fit_sizes(seen, family, 30, PublicWords(1)):
            sizes.append(len(fitted.components.shares))
            losses.append(fitted.loss)
            scores.append(incremental_mixture.score_of(family, fitted))
        assert sizes[:3] == [1, 2, 3]
        assert scores[1] < min(scores) + 3  # noise may favour more components slightly
        assert sizes == list(range(1, np.argmin(scores) + 1 + incremental_mixture.PATIENCE + 1))
        assert losses[1] < 0.8 * losses[0]

    def test_large_sizes_are_skipped(self, monkeypatch):
        seen = characteristic_of(sketched(np.random.default_rng(1).random((2000, 1)), 8.0, 32, lengths=(3.0, 60.0)))
        (family,) = incremental_mixture._families(seen, PublicWords(0))
        monkeypatch.setattr(incremental_mixture, "PATIENCE", 100)
        sizes = [len(fitted.components.shares) for fitted in fit_sizes(seen, family, 27, PublicWords(1))]
        assert sizes == [*range(1, 16), 17, 19, 21, 23, 26, 27]


class TestFamilies:
    @pytest.mark.parametrize(
        ("n_features", "names"),
        [
            (2, ["round"]),
            (3, ["full"]),
            (5, ["full"]),
            (6, ["turned", "round"]),
            (25, ["diagonal", "round"]),
        ],
    )
    def test_depend_on_the_number_of_features(self, n_features, names):
        seen = characteristic_of(sketched(ellipsoids(2000, n_features), n_waves=64))
        families = list(incremental_mixture._families(seen, PublicWords(0)))
        assert [family.name for family in families] == names
        assert [family.cost > 0 for family in families] == [False, True][: len(names)]

    def test_turned_axes_are_the_principal_axes(self):
        points = ellipsoids(40_000, 6)
        turned = next(
            iter(incremental_mixture._families(characteristic_of(sketched(points, 8.0, 512)), PublicWords(0)))
        )
        longest = np.linalg.eigh(np.cov(points.T))[1][:, -1]
        assert abs(turned.frame.axes[:, -1] @ longest) > 0.98
        assert turned.frame.axes.T @ turned.frame.axes == pytest.approx(np.eye(6))
        corners = np.array(np.meshgrid(*[[-0.02, 1.02]] * 6)).reshape(6, -1).T
        along = 0.5 + (corners - turned.frame.origin) @ turned.frame.axes
        assert turned.rules.lower == pytest.approx(along.min(axis=0))
        assert turned.rules.upper == pytest.approx(along.max(axis=0))
        assert ((turned.places >= turned.rules.lower) & (turned.places <= turned.rules.upper)).all()

    def test_a_frame_rotates_points_and_frequencies(self):
        rng = np.random.default_rng(1)
        frame = Frame(rng.random(3), np.linalg.qr(rng.normal(size=(3, 3)))[0])
        points = rng.uniform(0.2, 0.8, (50, 3))
        along = 0.5 + (points - frame.origin) @ frame.axes
        assert frame.to_box(along) == pytest.approx(points)
        seen = characteristic_of(sketched(points, n_waves=32))
        means = np.exp(1j * seen.omegas @ points.T).mean(axis=1)
        turned = frame.transform(seen._replace(values=means))
        assert turned.values == pytest.approx(np.exp(1j * turned.omegas @ along.T).mean(axis=1))


class TestCloud:
    @pytest.mark.parametrize(("n_features", "family"), [(2, "round"), (4, "full"), (7, "turned")])
    def test_has_the_moments_of_the_points_and_lies_in_the_box(self, n_features, family):
        points = ellipsoids(40_000, n_features)
        fit = fit_cloud(sketched(points), 3, PublicWords(1), 5000)
        assert fit.family == family
        assert fit.cloud.points.shape == (5000, n_features)
        assert ((fit.cloud.points >= 0) & (fit.cloud.points <= 1)).all()
        assert fit.cloud.weights.sum() == pytest.approx(1)
        assert fit.cloud.points.mean(axis=0) == pytest.approx(points.mean(axis=0), abs=0.01)
        spread = np.sqrt(np.trace(np.cov(points.T)))
        assert np.abs(np.cov(fit.cloud.points.T) - np.cov(points.T)).max() < 0.15 * spread**2
        assert 1 <= fit.n_components <= 6
        assert fit.score > fit.loss > 0

    def test_its_centroids_have_nearly_the_least_inertia(self):
        rng = np.random.default_rng(2)
        points = np.concatenate([ellipsoids(40_000, 8, seed) + rng.uniform(-0.15, 0.15, 8) for seed in range(3)])
        points = points.clip(0, 1)
        sketch = sketched(points, 4.0, 512)
        found = centroids_of(fit_cloud(sketch, 6, PublicWords(1), 8000).cloud, 6, PublicWords(2))
        best = weighted_kmeans(points[::12], np.ones(10_000), 6, PublicWords(3)).centres
        assert inertia(points, found) < 1.12 * inertia(points, best)
        assert inertia(points, best) < 0.7 * inertia(points, [points.mean(axis=0)])

    def test_repeats_with_equal_seeds(self):
        sketch = sketched(ellipsoids(5000, 6), n_waves=64)
        one, same, other = (fit_cloud(sketch, 2, PublicWords(seed), 200) for seed in (1, 1, 2))
        assert (one.cloud.points == same.cloud.points).all()
        assert one[1:] == same[1:]
        assert not np.isclose(one.cloud.points, other.cloud.points).all()


class TestFewReports:
    def test_no_reports_give_a_finite_cloud(self):
        sketch = sketched(np.full((1, 3), 0.5), n_waves=32)
        empty = sketch._replace(omegas=sketch.omegas[:0], counts=sketch.counts[:0])
        fit = fit_cloud(empty, 3, PublicWords(1), 100)
        assert np.isfinite(fit.cloud.points).all()
        assert (fit.n_components, fit.loss) == (1, 0)

    @pytest.mark.parametrize(
        ("n_features", "n", "epsilon"),
        [
            *((n_features, n, epsilon) for n_features in (1, 2, 5, 6, 30) for n, epsilon in ((1, 0.1), (3000, 32.0))),
            (2, 1, 32.0),
            (5, 3000, 1e-6),
            (6, 3000, 1e-6),
        ],
    )
    def test_give_a_finite_cloud_at_any_epsilon(self, n_features, n, epsilon):
        n_waves = 64 if n_features < 10 else 512
        fit = fit_cloud(sketched(np.full((n, n_features), 0.25), epsilon, n_waves), 3, PublicWords(1), 300)
        assert np.isfinite(fit.cloud.points).all()
        assert np.isfinite(fit.score)
        if (n, epsilon) == (3000, 32.0):
            assert fit.cloud.points.mean(axis=0) == pytest.approx(np.full(n_features, 0.25), abs=0.03)

    @settings(max_examples=8)
    @given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 12))
    def test_any_counts_give_a_finite_cloud(self, seed, n_features, clusters):
        rng = np.random.default_rng(seed)
        encoding = waves_for(n_features, clusters, 32, 10**9, seed % 100)
        counts = rng.integers(0, 10 ** int(rng.integers(1, 7)), (32, 16)) * (rng.random((32, 1)) < 0.7)
        sketch = sketch_of(encoding, design("window", 16, 10**9), Tally(counts, counts.sum(axis=1)))
        fit = fit_cloud(sketch, clusters, PublicWords(seed), 64)
        assert np.isfinite(fit.cloud.points).all()
        assert np.isfinite([fit.loss, fit.score]).all()

    def test_accepts_repeated_features(self):
        one = np.random.default_rng(4).beta(2, 5, (20_000, 2))
        fit = fit_cloud(sketched(np.tile(one, 4), 4.0), 4, PublicWords(1), 2000)
        assert np.isfinite(fit.cloud.points).all()
        along = np.corrcoef(fit.cloud.points.T)
        assert along[0, 2] > 0.8
        assert along[1, 7] > 0.8

    @pytest.mark.parametrize(("n_features", "n_waves"), [(24, 128), (64, 256)])
    def test_limits_the_parameters_of_many_features_and_clusters(self, n_features, n_waves):
        points = np.random.default_rng(5).random((20_000, n_features))
        fit = fit_cloud(sketched(points, 4.0, n_waves), 64, PublicWords(1), 500)
        assert np.abs(fit.cloud.points.mean(axis=0) - 0.5).mean() < 0.1
        assert fit.n_components * (n_features + 2) <= incremental_mixture.MOST_PARAMETERS


def test_turned_axes_of_one_component_are_its_principal_axes():
    shape = full_shape(2)
    component = Components(np.array([[0.5, 0.5]]), np.ones(1), np.array([[0.1, 0.1, 0.02]]))
    root = component.roots(shape)[0]
    one = incremental_mixture.Family(
        "full", shape, incremental_mixture._rules(2), Frame(np.full(2, 0.5), np.eye(2)), 0.0, np.full((1, 2), 0.5)
    )
    turned = incremental_mixture._turned(one, component)
    assert turned.frame.axes.T @ (root @ root.T) @ turned.frame.axes == pytest.approx(
        np.diag(np.linalg.eigvalsh(root @ root.T)), abs=1e-12
    )
