"""Where the fit of a sketch starts, how it leaves a wrong optimum, and how clusters are counted."""

import numpy as np
import pytest

from clustering.phase_model import Limits, Mixture, climb, nll, sketch_of
from clustering.phase_search import PublicWords, count, first_harmonics, greedy, peak, search, swapped
from clustering.phase_waves import limits_for, waves_for
from clustering.simulate import SeededEntropy, collect
from sfumato.mechanisms import design
from sfumato.specs import Feature, RoundSpec
from tests import naive_phase

CENTRES = np.array([[0.25, 0.3, 0.7], [0.75, 0.3, 0.3], [0.5, 0.8, 0.55]])


def sketched(n=30_000, epsilon=2.0, centres=CENTRES, shares=(0.5, 0.3, 0.2), seed=1):
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(centres), n, p=shares)
    points = (centres[labels] + rng.normal(0, 0.06, (n, centres.shape[1]))).clip(0, 1)
    encoding = waves_for(centres.shape[1], None, 256, round(epsilon * 1e9), seed)
    features = tuple(Feature(f"x{i}", 0, 1) for i in range(centres.shape[1]))
    spec = RoundSpec(features, encoding, design("window", 16, round(epsilon * 1e9)))
    entropy = SeededEntropy(seed)
    answered = collect(spec, points, entropy, entropy.words(n))
    return sketch_of(encoding, spec.mechanism, answered.tally)


def apart(found, true):
    """How far each true centre is from the nearest found one."""
    return np.linalg.norm(found[None] - true[:, None], axis=2).min(axis=1)


class TestPublicWords:
    def test_are_the_raw_words_of_the_seed(self):
        words = PublicWords(7)
        drawn = [*words.uniform(2, 3).ravel(), *words.uniform(4)]
        assert drawn == naive_phase.raw_uniform(7, 10)
        assert PublicWords(8).uniform(1)[0] != drawn[0]

    def test_stay_the_same_in_every_version(self):
        """Rounds are published from these; another stream would be another design."""
        assert PublicWords(0).uniform(3) == pytest.approx([0.636961687321454, 0.2697867137638703, 0.0409735239519687])


class TestStart:
    def test_first_harmonics_are_the_characteristic_function_of_the_people(self):
        given = sketched(n=200_000)
        reports = given.counts.sum(axis=1)
        damped = np.exp(-(given.omegas**2).sum(axis=1) * 0.06**2 / 2)
        true = (np.exp(1j * given.omegas @ CENTRES.T) @ [0.5, 0.3, 0.2]) * damped
        errors = first_harmonics(given) / reports - true
        noise = 1 / (abs(given.harmonics[0]) * np.sqrt(2 * reports))  # a part's: of a phase spread evenly
        assert 0.8 < np.sqrt(np.mean(np.abs(errors) ** 2) / np.mean(2 * noise**2)) < 1.2

    def test_the_waves_agree_most_where_most_people_are(self):
        given = sketched()
        assert apart(peak(given, first_harmonics(given), 0.06, PublicWords(1))[None], CENTRES[:1])[0] < 0.05

    def test_atoms_are_taken_one_after_the_other(self):
        given = sketched()
        start = greedy(given, 3, 0.08, limits_for(3), PublicWords(2))
        assert (apart(start.centres, CENTRES) < 0.06).all()
        assert start.shares == pytest.approx([0.5, 0.3, 0.2], abs=0.05)
        assert start.shares.sum() == pytest.approx(1)
        assert (start.widths == 0.08).all()

    def test_more_atoms_than_there_are_are_found_all_the_same(self):
        start = greedy(sketched(n=2000), 40, 0.08, limits_for(3), PublicWords(2))
        assert np.isfinite(start.centres).all()
        assert start.shares.min() > 0


class TestSearch:
    def test_finds_what_is_there_from_equal_seeds_equally(self):
        given = sketched()
        one, other = (search(given, 3, limits_for(3), PublicWords(4)) for _ in range(2))
        assert (apart(one.mixture.centres, CENTRES) < 0.03).all()
        assert (one.mixture.centres == other.mixture.centres).all()

    def test_a_cluster_that_sits_beside_another_is_moved_to_where_one_is_missing(self):
        given, limits = sketched(), limits_for(3)
        twins = np.array([CENTRES[0] - 0.02, CENTRES[0] + 0.02, CENTRES[1]])
        stuck = climb(given, Mixture(twins, np.array([0.3, 0.3, 0.4]), np.full(3, 0.08)), limits, 3)
        moved = swapped(given, stuck, limits, PublicWords(5))
        assert apart(stuck.mixture.centres, CENTRES)[2] > 0.15
        assert moved.nll < stuck.nll
        assert (apart(moved.mixture.centres, CENTRES) < 0.05).all()

    def test_nothing_is_moved_where_it_is_best(self):
        given, limits = sketched(), limits_for(3)
        best = search(given, 3, limits, PublicWords(6))
        assert swapped(given, best, limits, PublicWords(7)) == best


class TestCount:
    @pytest.mark.parametrize("n_clusters", [1, 2, 3])
    def test_is_that_of_the_clusters(self, n_clusters):
        shares = np.array([[1.0], [0.6, 0.4], [0.5, 0.3, 0.2]][n_clusters - 1])
        given = sketched(centres=CENTRES[:n_clusters], shares=shares)
        counted = count(given, 30_000, limits_for(3), PublicWords(8))
        assert len(counted.fitted.mixture.shares) == n_clusters
        assert int(np.argmin(counted.criteria)) == n_clusters - 1
        assert len(counted.criteria) == n_clusters + 2

    def test_the_criterion_charges_each_cluster_its_parameters(self):
        given = sketched(n=5000)
        counted = count(given, 5000, limits_for(3), PublicWords(9))
        n_clusters = len(counted.fitted.mixture.shares)
        charge = n_clusters * (3 + 2) * np.log(5000)
        assert counted.criteria[n_clusters - 1] == pytest.approx(2 * nll(given, counted.fitted.mixture) + charge)

    def test_of_people_spread_evenly_is_one(self):
        rng = np.random.default_rng(10)
        encoding = waves_for(3, None, 128, 10**9, 10)
        spec = RoundSpec(tuple(Feature(f"x{i}", 0, 1) for i in range(3)), encoding, design("window", 16, 10**9))
        entropy = SeededEntropy(10)
        answered = collect(spec, rng.random((30_000, 3)), entropy, entropy.words(30_000))
        sketch = sketch_of(encoding, spec.mechanism, answered.tally)
        assert len(count(sketch, 30_000, limits_for(3), PublicWords(10)).fitted.mixture.shares) == 1

    def test_of_one_report_is_one(self):
        given = sketched(n=1)
        assert len(count(given, 1, Limits(0.02, 0.015, 0.35, (0.1,)), PublicWords(11)).fitted.mixture.shares) == 1
