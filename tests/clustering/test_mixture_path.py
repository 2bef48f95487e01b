"""The mixture path: its families and sizes, what it makes of real shapes of data, and what it makes of none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering import mixture_path as module
from clustering.atoms import Atoms, full_shape
from clustering.characteristic import characteristic_of
from clustering.mixture_path import Frame, PathFit, are_clear, cloud_of, most_atoms, path, round_atoms_score
from clustering.particles import Cloud, centroids_of
from clustering.phase_model import Sketch, sketch_of
from clustering.phase_search import PublicWords, search
from clustering.phase_waves import limits_for, waves_for
from clustering.plan import Tally
from clustering.simulate import SeededEntropy, collect
from clustering.weighted_kmeans import weighted_kmeans
from sfumato.mechanisms import design
from sfumato.specs import Feature, RoundSpec


def sketched(points, epsilon=4.0, n_waves=256, seed=1, lengths=(3.0, 20.0)) -> Sketch:
    n_features = points.shape[1]
    nano = round(epsilon * 1e9)
    encoding = waves_for(n_features, None, n_waves, nano, seed, lengths)
    features = tuple(Feature(f"x{i}", 0, 1) for i in range(n_features))
    spec = RoundSpec(features, encoding, design("window", encoding.phases, nano))
    entropy = SeededEntropy(seed)
    return sketch_of(encoding, spec.mechanism, collect(spec, points, entropy, entropy.words(len(points))).tally)


def ellipsoids(n, n_features, seed=1, width=0.2):
    """Two long clusters across the features, that overlap."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(n_features, n_features)))[0]
    widths = width * 0.6 ** np.arange(n_features)
    points = rng.normal(size=(n, n_features)) * widths @ axes.T + 0.5
    points[rng.random(n) < 0.4] += 0.08 * axes[:, -1]
    return points.clip(0, 1)


def blobs(n, centres, width, seed=1):
    rng = np.random.default_rng(seed)
    centres = np.asarray(centres, dtype=float)
    return (centres[rng.integers(0, len(centres), n)] + rng.normal(0, width, (n, centres.shape[1]))).clip(0, 1)


def inertia(points, centres):
    return np.min([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=0).mean()


class TestSizes:
    @pytest.mark.parametrize(
        ("clusters", "n_features", "n_spreads", "most"),
        [
            (1, 1, 1, 2),
            (4, 2, 1, 6),
            (10, 2, 1, 16),
            (2, 4, 10, 4),
            (10, 4, 10, 10),
            (10, 8, 8, 10),
            (64, 2, 1, 64),  # 256 parameters, four each
            (64, 64, 64, 1),
            (64, 64, 1, 3),
        ],
    )
    def test_are_bounded_by_clusters_and_parameters(self, clusters, n_features, n_spreads, most):
        assert most_atoms(clusters, n_features, n_spreads) == most

    def test_a_path_has_every_size_and_ends_when_it_gets_worse(self):
        seen = characteristic_of(sketched(blobs(20_000, [[0.3, 0.4], [0.7, 0.6]], 0.06), 2.0))
        (family,) = module._families(seen, PublicWords(0))
        sizes, losses, scores = [], [], []
        for fitted in path(seen, family, 30, PublicWords(1)):
            sizes.append(len(fitted.atoms.shares))
            losses.append(fitted.loss)
            scores.append(module.score_of(family, fitted))
        assert sizes[:3] == [1, 2, 3]
        assert scores[1] < min(scores) + 3  # more atoms may gain a little by noise
        assert sizes == list(range(1, np.argmin(scores) + 1 + module.PATIENCE + 1))
        assert losses[1] < 0.8 * losses[0]

    def test_large_sizes_are_fitted_now_and_then(self):
        seen = characteristic_of(sketched(np.random.default_rng(1).random((2000, 1)), 8.0, 32, lengths=(3.0, 60.0)))
        (family,) = module._families(seen, PublicWords(0))
        patient = pytest.MonkeyPatch()
        with patient.context() as changed:
            changed.setattr(module, "PATIENCE", 100)
            sizes = [len(fitted.atoms.shares) for fitted in path(seen, family, 27, PublicWords(1))]
        assert sizes == [*range(1, 16), 17, 19, 21, 23, 26, 27]


class TestFamilies:
    @pytest.mark.parametrize(
        ("n_features", "names"),
        [
            (1, ["round"]),
            (2, ["round"]),
            (3, ["full"]),
            (5, ["full"]),
            (6, ["turned", "round"]),
            (25, ["diagonal", "round"]),
        ],
    )
    def test_are_chosen_by_features(self, n_features, names):
        seen = characteristic_of(sketched(ellipsoids(2000, n_features), n_waves=64))
        families = list(module._families(seen, PublicWords(0)))
        assert [family.name for family in families] == names
        assert [family.cost > 0 for family in families] == [False, True][: len(names)]

    def test_turned_axes_are_those_of_the_people(self):
        points = ellipsoids(60_000, 6)
        turned = next(iter(module._families(characteristic_of(sketched(points, 8.0, 512)), PublicWords(0))))
        longest = np.linalg.eigh(np.cov(points.T))[1][:, -1]
        assert abs(turned.frame.axes[:, -1] @ longest) > 0.98
        assert turned.frame.axes.T @ turned.frame.axes == pytest.approx(np.eye(6))
        corners = np.array(np.meshgrid(*[[-0.02, 1.02]] * 6)).reshape(6, -1).T
        along = 0.5 + (corners - turned.frame.origin) @ turned.frame.axes
        assert turned.rules.lower == pytest.approx(along.min(axis=0))
        assert turned.rules.upper == pytest.approx(along.max(axis=0))
        assert ((turned.places >= turned.rules.lower) & (turned.places <= turned.rules.upper)).all()

    def test_a_frame_sees_the_same_people_along_its_axes(self):
        rng = np.random.default_rng(1)
        frame = Frame(rng.random(3), np.linalg.qr(rng.normal(size=(3, 3)))[0])
        points = rng.uniform(0.2, 0.8, (50, 3))
        along = 0.5 + (points - frame.origin) @ frame.axes
        assert frame.back(along) == pytest.approx(points)
        seen = characteristic_of(sketched(points, n_waves=32))
        means = np.exp(1j * seen.omegas @ points.T).mean(axis=1)
        turned = frame.seen_along(seen._replace(values=means))
        assert turned.values == pytest.approx(np.exp(1j * turned.omegas @ along.T).mean(axis=1))


class TestCloud:
    @pytest.mark.parametrize(("n_features", "family"), [(2, "round"), (4, "full"), (7, "turned")])
    def test_has_the_moments_of_the_people_and_lies_in_the_box(self, n_features, family):
        points = ellipsoids(60_000, n_features)
        fit = cloud_of(sketched(points, n_waves=512), 3, PublicWords(1), 5000)
        assert fit.family == family
        assert fit.cloud.points.shape == (5000, n_features)
        assert ((fit.cloud.points >= 0) & (fit.cloud.points <= 1)).all()
        assert fit.cloud.weights.sum() == pytest.approx(1)
        assert fit.cloud.points.mean(axis=0) == pytest.approx(points.mean(axis=0), abs=0.01)
        spread = np.sqrt(np.trace(np.cov(points.T)))
        assert np.abs(np.cov(fit.cloud.points.T) - np.cov(points.T)).max() < 0.15 * spread**2
        assert 1 <= fit.atoms <= 6
        assert fit.score > fit.loss > 0

    def test_its_centroids_are_nearly_as_good_as_those_of_the_people(self):
        rng = np.random.default_rng(2)
        points = np.concatenate([ellipsoids(40_000, 8, seed) + rng.uniform(-0.15, 0.15, 8) for seed in range(3)])
        points = points.clip(0, 1)
        sketch = sketched(points, 4.0, 512)
        found = centroids_of(cloud_of(sketch, 6, PublicWords(1), 8000).cloud, 6, PublicWords(2))
        best = weighted_kmeans(points[::6], np.ones(len(points[::6])), 6, PublicWords(3)).centres
        assert inertia(points, found) < 1.12 * inertia(points, best)
        assert inertia(points, best) < 0.7 * inertia(points, [points.mean(axis=0)])

    def test_follows_from_its_arguments(self):
        sketch = sketched(ellipsoids(5000, 6), n_waves=64)
        one, same, other = (cloud_of(sketch, 2, PublicWords(seed), 200) for seed in (1, 1, 2))
        assert (one.cloud.points == same.cloud.points).all()
        assert one[1:] == same[1:]
        assert not np.isclose(one.cloud.points, other.cloud.points).all()


class TestClear:
    CENTRES = np.random.default_rng(3).uniform(0.2, 0.8, (4, 4))

    def told(self, points, epsilon, k=4):
        sketch = sketched(points, epsilon, 512)
        found = search(sketch, k, limits_for(points.shape[1]), PublicWords(1)).mixture
        fit = cloud_of(sketch, k, PublicWords(1), 500, found)
        return fit, round_atoms_score(sketch, found)

    def test_round_clusters_are(self):
        fit, round_score = self.told(blobs(30_000, self.CENTRES, 0.05), 1.0)
        assert fit.atoms == 4
        assert are_clear(fit, round_score, 4)

    def test_long_ones_that_overlap_are_not(self):
        fit, round_score = self.told(ellipsoids(30_000, 4), 4.0)
        assert round_score - module.CLEAR_COST > fit.score + 50
        assert not are_clear(fit, round_score, 4)

    @pytest.mark.parametrize(
        ("atoms", "excess", "clear"),
        [(8, 0, True), (4, 5, True), (3, 0, False), (8, 6, False), (1, -59, False), (1, -60, True)],
    )
    def test_are_told_by_score_and_atoms(self, atoms, excess, clear):
        fit = PathFit(Cloud(np.zeros((1, 2)), np.ones(1)), "full", atoms, 900.0, 1000.0)
        assert are_clear(fit, 1000.0 + excess + module.CLEAR_COST, 8) == clear

    def test_what_was_found_is_tried_in_every_family(self):
        """A path cut short at one atom has the four all the same, and better ones than it was given."""
        points = blobs(30_000, self.CENTRES, 0.05)
        sketch = sketched(points, 4.0, 512)
        found = search(sketch, 4, limits_for(4), PublicWords(1)).mixture
        fit = cloud_of(sketch, 1, PublicWords(1), 500, found)
        assert fit.atoms == 4
        assert fit.loss < round_atoms_score(sketch, found) - module.CLEAR_COST - 0.7 * 24

    def test_costs_what_its_parameters_cost_and_being_clear(self):
        points = blobs(30_000, [[0.3, 0.3, 0.3]], 0.05)
        sketch = sketched(points, 4.0, 128)
        mixture = search(sketch, 1, limits_for(3), PublicWords(1)).mixture
        score = round_atoms_score(sketch, mixture)
        n_frequencies = len(characteristic_of(sketch).values)
        noise = score - 0.7 * 5 - 40  # one a frequency, less where the people's own phases agree
        assert 0.6 * n_frequencies < noise < n_frequencies + 5 * n_frequencies**0.5


class TestPoorReports:
    def test_of_nobody_make_a_cloud_all_the_same(self):
        sketch = sketched(np.full((1, 3), 0.5), n_waves=32)
        nobody = sketch._replace(omegas=sketch.omegas[:0], counts=sketch.counts[:0])
        fit = cloud_of(nobody, 3, PublicWords(1), 100)
        assert np.isfinite(fit.cloud.points).all()
        assert (fit.atoms, fit.loss) == (1, 0)

    @pytest.mark.parametrize("n_features", [1, 2, 5, 6, 30])
    @pytest.mark.parametrize(("n", "epsilon"), [(1, 0.1), (1, 32.0), (3000, 1e-6), (3000, 0.1), (3000, 32.0)])
    def test_are_borne_at_any_epsilon(self, n_features, n, epsilon):
        n_waves = 64 if n_features < 10 else 512
        fit = cloud_of(sketched(np.full((n, n_features), 0.25), epsilon, n_waves), 3, PublicWords(1), 300)
        assert np.isfinite(fit.cloud.points).all()
        assert np.isfinite(fit.score)
        if (n, epsilon) == (3000, 32.0):
            assert fit.cloud.points.mean(axis=0) == pytest.approx(np.full(n_features, 0.25), abs=0.03)

    @settings(max_examples=15)
    @given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 12))
    def test_any_counts_make_a_finite_cloud(self, seed, n_features, clusters):
        rng = np.random.default_rng(seed)
        encoding = waves_for(n_features, clusters, 32, 10**9, seed % 100)
        counts = rng.integers(0, 10 ** int(rng.integers(1, 7)), (32, 16)) * (rng.random((32, 1)) < 0.7)
        sketch = sketch_of(encoding, design("window", 16, 10**9), Tally(counts, counts.sum(axis=1)))
        fit = cloud_of(sketch, clusters, PublicWords(seed), 64)
        assert np.isfinite(fit.cloud.points).all()
        assert np.isfinite([fit.loss, fit.score]).all()

    def test_of_features_that_say_the_same_are_borne(self):
        one = np.random.default_rng(4).beta(2, 5, (20_000, 2))
        fit = cloud_of(sketched(np.tile(one, 4), 4.0), 4, PublicWords(1), 2000)
        assert np.isfinite(fit.cloud.points).all()
        along = np.corrcoef(fit.cloud.points.T)
        assert along[0, 2] > 0.8
        assert along[1, 7] > 0.8

    @pytest.mark.parametrize(("n_features", "clusters"), [(64, 64), (24, 64)])
    def test_of_many_features_and_clusters_are_fitted_with_few_atoms(self, n_features, clusters):
        points = np.random.default_rng(5).random((20_000, n_features))
        fit = cloud_of(sketched(points, 4.0, 256), clusters, PublicWords(1), 500)
        assert np.abs(fit.cloud.points.mean(axis=0) - 0.5).mean() < 0.1
        assert fit.atoms * (n_features + 2) <= module.MOST_PARAMETERS


def test_the_longest_axis_of_a_full_atom_is_that_of_its_root():
    shape = full_shape(2)
    atom = Atoms(np.array([[0.5, 0.5]]), np.ones(1), np.array([[0.1, 0.1, 0.02]]))
    root = atom.roots(shape)[0]
    one = module.Family("full", shape, module._rules(2), Frame(np.full(2, 0.5), np.eye(2)), 0.0, np.full((1, 2), 0.5))
    turned = module._turned(one, atom)
    assert turned.frame.axes.T @ (root @ root.T) @ turned.frame.axes == pytest.approx(
        np.diag(np.linalg.eigvalsh(root @ root.T)), abs=1e-12
    )
