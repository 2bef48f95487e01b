"""Test where clusters with categories are searched, and how many there are."""

import numpy as np
import pytest

from clustering.phases.category_search import CategoryClusters, find_peak, greedy
from clustering.phases.cluster_search import count_clusters, search_clusters
from clustering.phases.waves import limits_for
from clustering.random import PublicWords
from tests.clustering.phases.categories import mixture_of, waves_of

CENTRES = [[0.3, 0.3, 0.7], [0.7, 0.35, 0.3], [0.5, 0.75, 0.5]]
CODES = [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
THREE = mixture_of(CENTRES, [0.5, 0.3, 0.2], CODES, (3, 3, 3))
SAME_PLACE = mixture_of([CENTRES[0], CENTRES[0], CENTRES[1]], [0.4, 0.3, 0.3], CODES, (3, 3, 3))


def fits(waves, seed=3):
    return CategoryClusters(waves, limits_for(3), PublicWords(seed), (0.05, 0.14))


def by_code(mixture):
    """Return the clusters' places by their usual codes."""
    codes = zip(*(each.argmax(axis=1) for each in mixture.shares), strict=True)
    return {tuple(int(each) for each in code): place for code, place in zip(codes, mixture.places.centres, strict=True)}


class TestStart:
    def test_the_peak_has_the_place_and_the_categories_of_the_largest_cluster(self):
        waves = waves_of(THREE)
        peak = find_peak(waves, waves.values, 0.08, PublicWords(1), np.empty((0, 3)))
        assert peak.codes.tolist() == CODES[0]
        assert np.linalg.norm(peak.place - CENTRES[0]) < 0.06

    def test_many_tuples_of_categories_are_sampled(self):
        many = mixture_of([CENTRES[0]], [1.0], [[3, 7]], (20, 20))
        waves = waves_of(many)
        peak = find_peak(waves, waves.values, 0.08, PublicWords(1), np.empty((0, 3)))
        assert np.linalg.norm(peak.place - CENTRES[0]) < 0.06
        assert peak.codes.shape == (2,)

    def test_greedy_clusters_are_at_the_centres(self):
        start = greedy(waves_of(THREE), 3, 0.08, limits_for(3), PublicWords(2))
        assert by_code(start).keys() == {tuple(code) for code in CODES}
        assert start.places.shares.sum() == pytest.approx(1)
        assert start.places.shares.max() == start.places.shares[0]


class TestSearch:
    @pytest.mark.parametrize("true", [THREE, SAME_PLACE], ids=["apart", "one place"])
    def test_finds_the_clusters(self, true):
        waves = waves_of(true, n_waves=600)
        found = search_clusters(fits(waves), 3).mixture
        places = by_code(found)
        for code, centre in by_code(true).items():
            assert np.linalg.norm(places[code] - centre) < 0.05

    def test_finds_the_number_of_clusters(self):
        waves = waves_of(THREE, n_waves=600)
        counted = count_clusters(fits(waves), 100_000, 4, 6)
        assert counted.fitted.n_clusters == 3
        assert max(counted.criteria) <= 6
        assert counted.lower <= 3 <= counted.upper
