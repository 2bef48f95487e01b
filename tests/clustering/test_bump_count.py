"""What noise makes of a density with one bump, and which bumps pass it."""

import numpy as np
import pytest

from clustering.bump_count import Bar, candidates, count, noise_bar, unimodal
from clustering.excess_mass import Bump, bumps


def ridge(*heights):
    """A density in one feature, by its cells."""
    return np.array(heights, dtype=np.float64) / sum(heights)


class TestUnimodal:
    def test_cuts_every_bump_but_the_greatest_down_to_its_saddle(self):
        assert unimodal(ridge(1, 5, 2, 4, 1, 3, 0)) == pytest.approx(ridge(1, 5, 2, 2, 1, 1, 0))

    def test_has_one_bump_whatever_it_is_made_of(self):
        density = np.random.default_rng(1).random((12, 9))
        assert len(bumps(density / density.sum())) > 1
        assert len(bumps(unimodal(density / density.sum()))) == 1

    def test_leaves_one_bump_as_it_is(self):
        density = ridge(1, 2, 3, 2, 1)
        assert unimodal(density) == pytest.approx(density)


class TestBar:
    def test_lies_at_the_mean_of_what_throws_make(self):
        drawn = [ridge(1, 9, 1, 9, 1), ridge(1, 9, 5, 9, 1), ridge(1, 9, 4, 9, 1)]
        heights = [bumps(density)[1].height for density in drawn]
        bar = noise_bar(ridge(1, 2, 1), lambda _, throw: drawn[throw], 3)
        assert bar == pytest.approx(np.mean(heights))

    def test_throws_are_made_from_the_one_bump_density(self):
        seen = []

        def redraw(density, _):
            seen.append(density)
            return density

        assert noise_bar(ridge(1, 5, 2, 4, 1), redraw, 2) == 0
        assert seen[0] == pytest.approx(ridge(1, 5, 2, 2, 1))


WHOLE = Bump((0,), None, 1.0, 1.0)


def bump(excess, mass):
    return Bump((1,), (2,), excess, mass)


class TestCount:
    def test_leaves_out_bumps_too_small_or_too_flat_to_matter(self):
        found = [WHOLE, bump(0.2, 0.8), bump(0.2, 0.5), bump(0.009, 0.009)]
        assert candidates(found) == [bump(0.2, 0.5)]

    def test_none_counts_where_the_highest_is_no_higher_than_noise(self):
        found = [WHOLE, bump(0.2, 0.25), bump(0.1, 0.16)]
        assert count(found, Bar(height=0.41, error=0.0)) == [WHOLE]
        assert count(found, Bar(height=0.39, error=0.0)) == found

    def test_one_that_its_own_error_could_have_made_does_not_count(self):
        found = [WHOLE, bump(0.2, 0.25), bump(0.1, 0.16)]
        assert count(found, Bar(0.1, 0.0), [0.01, 0.08]) == found[:2]
        assert count(found, Bar(0.1, 0.08)) == found[:2]
