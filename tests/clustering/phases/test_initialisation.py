"""Test the starts of a sketch fit, the exchanges that leave a wrong optimum, and the number of clusters."""

from typing import ClassVar, NamedTuple

import numpy as np
import pytest

from clustering.phases.cluster_search import (
    NOISE_COST,
    cluster_cost,
    count_clusters,
    drop_cluster,
    exchange_clusters,
    refine_count,
)
from clustering.phases.initialisation import (
    RoundClusters,
    count,
    find_peak,
    first_harmonics,
    greedy,
    search,
)
from clustering.phases.mixture_fit import Fitted, Mixture, climb, nll, objective
from clustering.phases.waves import limits_for
from clustering.random import PublicWords
from tests import naive_phase
from tests.clustering.local_plans import mixture
from tests.clustering.phases.sketches import sketch_points

CENTRES = np.array([[0.25, 0.3, 0.7], [0.75, 0.3, 0.3], [0.5, 0.8, 0.55]])


def sketched(n=30_000, centres=CENTRES, shares=(0.5, 0.3, 0.2)):
    return sketch_points(mixture(n, centres, shares)[0], epsilon=2.0)


def distances(found, true):
    """Return the distance of each true centre from the nearest found one."""
    return np.linalg.norm(found[None] - true[:, None], axis=2).min(axis=1)


COST = cluster_cost(5, 30_000)


class Reduction(NamedTuple):
    """A fit of so many clusters."""

    n_clusters: int
    nll: float


class Reductions:
    """Fits with better likelihoods after a cluster is left out of a larger fit."""

    start_widths = (0.05,)
    n_parameters = 5
    before: ClassVar = {n: -100.0 * min(n, 6) for n in range(1, 20)}
    after: ClassVar = {n: -600.0 if n > 3 else -400.0 for n in range(1, 20)}

    def place(self, n_clusters, width, n_steps):
        return Reduction(n_clusters, self.before[n_clusters])

    def add(self, fitted, n_steps):
        return Reduction(fitted.n_clusters + 1, self.before[fitted.n_clusters + 1])

    def drop(self, fitted, left_out, n_steps):
        return Reduction(fitted.n_clusters - 1, self.after[fitted.n_clusters - 1] + left_out)

    def climb(self, fitted):
        return fitted


class TestPublicWords:
    def test_are_the_raw_words_of_the_seed(self):
        words = PublicWords(7)
        drawn = [*words.uniform(2, 3).ravel(), *words.uniform(4)]
        assert drawn == naive_phase.raw_uniform(7, 10)
        assert PublicWords(8).uniform(1)[0] != drawn[0]

    def test_are_the_same_in_every_version(self):
        """Published rounds depend on them."""
        assert PublicWords(0).uniform(3) == pytest.approx([0.636961687321454, 0.2697867137638703, 0.0409735239519687])


class TestStart:
    def test_first_harmonics_estimate_the_characteristic_function(self):
        given = sketched(n=200_000)
        reports = given.counts.sum(axis=1)
        damped = np.exp(-(given.omegas**2).sum(axis=1) * 0.06**2 / 2)
        true = (np.exp(1j * given.omegas @ CENTRES.T) @ [0.5, 0.3, 0.2]) * damped
        errors = first_harmonics(given) / reports - true
        noise = 1 / (abs(given.harmonics[0]) * np.sqrt(2 * reports))
        assert 0.8 < np.sqrt(np.mean(np.abs(errors) ** 2) / np.mean(2 * noise**2)) < 1.2

    def test_the_peak_is_the_heaviest_cluster(self):
        given = sketched()
        assert distances(find_peak(given, first_harmonics(given), 0.06, PublicWords(1))[None], CENTRES[:1])[0] < 0.05

    def test_greedy_components_equal_the_clusters(self):
        given = sketched()
        start = greedy(given, 3, 0.08, limits_for(3), PublicWords(2))
        assert (distances(start.centres, CENTRES) < 0.06).all()
        assert start.shares == pytest.approx([0.5, 0.3, 0.2], abs=0.05)
        assert start.shares.sum() == pytest.approx(1)
        assert (start.widths == 0.08).all()

    def test_greedy_accepts_more_components_than_clusters(self):
        start = greedy(sketched(n=2000), 20, 0.08, limits_for(3), PublicWords(2))
        assert np.isfinite(start.centres).all()
        assert start.shares.min() > 0


class TestSearch:
    def test_finds_the_clusters_and_repeats_with_equal_seeds(self):
        given = sketched()
        one, other = (search(given, 3, limits_for(3), PublicWords(4)) for _ in range(2))
        assert (distances(one.mixture.centres, CENTRES) < 0.03).all()
        assert (one.mixture.centres == other.mixture.centres).all()

    def test_a_duplicate_component_moves_to_a_missing_cluster(self):
        given, limits = sketched(), limits_for(3)
        twins = np.array([CENTRES[0] - 0.02, CENTRES[0] + 0.02, CENTRES[1]])
        stuck = climb(given, Mixture(twins, np.array([0.3, 0.3, 0.4]), np.full(3, 0.08)), limits, 3)
        moved = exchange_clusters(RoundClusters(given, limits, PublicWords(5)), stuck)
        assert distances(stuck.mixture.centres, CENTRES)[2] > 0.15
        assert moved.nll < stuck.nll
        assert (distances(moved.mixture.centres, CENTRES) < 0.05).all()

    def test_the_optimum_stays(self):
        given, limits = sketched(), limits_for(3)
        best = search(given, 3, limits, PublicWords(6))
        again = exchange_clusters(RoundClusters(given, limits, PublicWords(7)), best)
        assert again.nll == pytest.approx(best.nll, abs=0.01)
        assert distances(again.mixture.centres, best.mixture.centres).max() < 1e-3


class TestCount:
    @pytest.mark.parametrize("n_clusters", [1, 2, 3])
    def test_finds_the_number_of_clusters(self, n_clusters):
        shares = [[1.0], [0.6, 0.4], [0.5, 0.3, 0.2]][n_clusters - 1]
        given = sketched(centres=CENTRES[:n_clusters], shares=shares)
        counted = count(given, 30_000, 5, limits_for(3), PublicWords(8))
        assert len(counted.fitted.mixture.shares) == n_clusters
        assert (counted.lower, counted.upper) == (n_clusters, n_clusters)
        assert counted.criteria.keys() >= {1, max(1, n_clusters - 2), n_clusters, n_clusters + 1, n_clusters + 2, 5}
        assert min(counted.criteria, key=counted.criteria.__getitem__) == n_clusters
        assert counted.gains is None if n_clusters == 1 else min(counted.gains) > 5
        charge = n_clusters * (3 + 2) * np.log(30_000)
        assert counted.criteria[n_clusters] == pytest.approx(2 * objective(given, counted.fitted.mixture) + charge)

    def test_the_gain_is_that_of_the_likelihood_over_the_penalty(self):
        counted = count(sketched(), 30_000, 5, limits_for(3), PublicWords(8))
        likelihoods = {number: (each - number * 5 * np.log(30_000)) / 2 for number, each in counted.criteria.items()}
        mean, last = (likelihoods[3] - likelihoods[1]) / -2, likelihoods[2] - likelihoods[3]
        assert counted.gains == pytest.approx((mean / np.log(30_000) / 2.5, last / np.log(30_000) / 2.5))

    def test_many_features_have_a_bounded_penalty(self):
        """The penalty of the BIC leaves four of these clusters."""
        chance = np.random.default_rng(0)
        centres = np.array([chance.permutation([0.2, 0.8] * 4) for _ in range(6)])
        points = centres[chance.integers(0, 6, 20_000)] + chance.normal(0, 0.05, (20_000, 8))
        given = sketch_points(points.clip(0, 1), 1.2, 128, seed=0)
        counted = count(given, 20_000, 5, limits_for(8), PublicWords(0))
        assert len(counted.fitted.mixture.shares) == 6
        assert counted.lower <= 6 <= counted.upper
        gain = (counted.criteria[5] - counted.criteria[6] + 10 * NOISE_COST) / 2
        assert counted.gains is not None
        assert counted.gains[1] == pytest.approx(gain / (5 * np.log(20_000)))

    def test_a_cluster_without_people_is_left_out(self):
        """A fit to random phases has a cluster without people, and others that are too narrow."""
        given, limits = sketched(), limits_for(3)
        empty = Mixture(np.vstack([CENTRES, [0.1, 0.9, 0.1]]), np.array([0.4, 0.25, 0.15, 0.2]), np.full(4, 0.03))
        fewer = drop_cluster(RoundClusters(given, limits, PublicWords(9)), Fitted(empty, nll(given, empty), False))
        assert fewer.nll == pytest.approx(search(given, 3, limits, PublicWords(4)).nll, abs=0.01)

    def test_clusters_are_left_out_while_the_criterion_falls(self):
        """The search finds six clusters, although it can reach a better fit of four from them."""
        counted = count_clusters(Reductions(), 30_000, 6)
        assert counted.fitted == Reduction(4, -600.0)
        assert counted.criteria == {n: 2 * Reductions.after[n] + n * COST for n in range(3, 9)} | {
            n: 2 * Reductions.before[n] + n * COST for n in (1, 9)
        }

    def test_clusters_are_added_that_pay_together_only(self):
        """The greedy fit of four clusters is a local optimum. Eight clusters are found from it."""
        chance = np.random.default_rng(2)
        centres = np.array([chance.permutation([0.2, 0.8] * 4) for _ in range(8)])
        points = centres[chance.integers(0, 8, 100_000)] + chance.normal(0, 0.08, (100_000, 8))
        fits = RoundClusters(sketch_points(points.clip(0, 1), 1.2, 256, seed=2), limits_for(8), PublicWords(1))
        found, cost = {4: fits.place(4, 0.08, None)}, cluster_cost(10, 100_000)

        def criterion(number):
            return 2 * found[number].nll + number * cost

        before = criterion(4)
        assert refine_count(fits, found, 4, criterion, 16) == 8
        assert criterion(8) < before - 4 * cost
        assert distances(found[8].mixture.centres, centres).max() < 0.15

    def test_no_more_clusters_than_allowed_are_added(self):
        found = {4: Reduction(4, -400.0)}
        assert refine_count(Reductions(), found, 4, lambda n: 2 * found[n].nll, 5) == 4
        assert found.keys() == {3, 4, 5}

    @pytest.mark.parametrize("n", [1, 20_000])
    def test_an_even_density_or_one_report_is_one_cluster(self, n):
        given = sketch_points(np.random.default_rng(10).random((n, 3)), 1.0, 128, seed=10)
        assert len(count(given, n, 1, limits_for(3), PublicWords(10)).fitted.mixture.shares) == 1
