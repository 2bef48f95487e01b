"""Broadcast centroids: what a round tells of them, where they begin, and how they move."""

from dataclasses import replace

import numpy as np
import pytest

from clustering.broadcast_centroids import (
    MARGIN,
    N_CANDIDATES,
    balance,
    gather,
    hear,
    moved,
    spread_out,
    to_lattice,
)
from clustering.errors import UnfitRound
from clustering.phase_search import PublicWords
from clustering.plan import Collected, Tally
from clustering.simulate import SeededEntropy, collect
from sfumato.accounting import DRAW_SPAN
from sfumato.mechanisms import design
from sfumato.specs import LATTICE, Feature, GridEncoding, GrrMechanism, NearestCentroidEncoding, RoundSpec
from tests import naive

XY = (Feature("x", 0, 1), Feature("y", 0, 1))
SHOWN = np.array([[0.25, 0.25], [0.75, 0.75], [0.1, 0.9]])


def heard(points, places=SHOWN, mechanism=None, seed=1):
    encoding = NearestCentroidEncoding(to_lattice(places))
    spec = RoundSpec(XY, encoding, mechanism or GrrMechanism(encoding.n_symbols, DRAW_SPAN))
    return hear(collect(spec, points, SeededEntropy(seed), SeededEntropy(seed + 1).words(len(points))))


def two_blobs(n=20_000, spread=0.05):
    """Three quarters around (.3, .25), the others around (.75, .7); nobody at the third place."""
    rng = np.random.default_rng(3)
    centres = np.repeat([[0.3, 0.25], [0.75, 0.7]], [3 * n // 4, n // 4], axis=0)
    return (centres + spread * rng.standard_normal((n, 2))).clip(0, 1)


class TestHear:
    def test_unperturbed_it_counts_masses_and_sides(self):
        points = two_blobs()
        told = heard(points)
        assert told.masses == pytest.approx([0.75, 0.25, 0], abs=0.001)
        assert told.mass_errors == pytest.approx(np.sqrt([0.75 * 0.25 / 20_000] * 2 + [0]), abs=1e-4)
        above = (points[:15_000, 0] > 0.25).mean()
        assert told.leans[0, 0] == pytest.approx(0.75 * (2 * above - 1), abs=0.02)
        assert told.leans[1, 1] == pytest.approx(0.25 * (2 * (points[15_000:, 1] > 0.75).mean() - 1), abs=0.02)
        assert told.leans[2].tolist() == [0, 0]
        assert told.places == pytest.approx(SHOWN, abs=1e-6)

    def test_places_and_mechanism_are_those_published(self):
        points = two_blobs()
        exact, noisy = heard(points), heard(points, mechanism=design("grr", 6, 4 * 10**9))
        assert (np.abs(noisy.masses - exact.masses) < 5 * noisy.mass_errors).all()
        assert (np.abs(noisy.leans - exact.leans) < 5 * (noisy.lean_errors + exact.lean_errors) + 1e-9).all()
        assert (noisy.lean_errors > exact.lean_errors).all()

    def test_of_another_encoding_is_refused(self):
        spec = RoundSpec(XY, GridEncoding((2, 2)), design("grr", 4, 10**9))
        with pytest.raises(UnfitRound, match="nearest centroids"):
            hear(Collected(spec, Tally.empty(spec)))

    def test_a_round_without_reports_leaves_everything_where_it_was(self):
        told = heard(np.empty((0, 2)))
        assert told.n_reports == 0
        assert np.isinf(told.lean_errors).all()
        assert moved(told, 0.1) == pytest.approx(SHOWN, abs=1e-6)
        assert all(np.isfinite(part).all() for part in balance(told))


class TestMoved:
    def test_a_step_as_long_as_the_spread_all_but_arrives(self):
        told = heard(two_blobs(200_000))
        after = moved(told, 0.05)
        assert np.abs(after[:2] - [[0.3, 0.25], [0.75, 0.7]]).max() < 0.02  # from .05 away
        assert after[2] == pytest.approx(SHOWN[2], abs=1e-6)  # nobody is heard there

    def test_repeated_it_stays_at_the_centres_and_never_leaves_the_box(self):
        points, places = two_blobs(50_000), SHOWN
        for seed in range(6):
            places = moved(heard(points, places, seed=seed), 0.05)
        assert np.abs(places[:2] - [[0.3, 0.25], [0.75, 0.7]]).max() < 0.004
        edge = moved(heard(np.ones((1000, 2)), np.full((1, 2), 0.999)), 0.25)
        assert (edge <= 1).all()

    def test_what_noise_could_have_made_moves_little(self):
        told = heard(two_blobs())
        drowned = told._replace(lean_errors=np.full((3, 2), 100.0), leans=np.full((3, 2), 100.0))
        assert np.abs(moved(drowned, 0.1) - told.places).max() < 0.001


class TestSpreadOut:
    def test_is_farthest_first_among_its_candidates_in_whole_numbers(self):
        chosen = spread_out(12, 3, seed=5)
        pool = spread_out(N_CANDIDATES, 3, seed=5)  # all of them
        assert len({tuple(row) for row in pool.tolist()}) == N_CANDIDATES
        assert chosen.tolist() == naive.farthest_first(pool.tolist(), 12)
        assert chosen.dtype == np.int64

    @pytest.mark.parametrize("d", [1, 2, 8, 64])
    def test_lies_in_the_box_away_from_its_edge_and_far_apart(self, d):
        places = spread_out(64, d, seed=0) / LATTICE
        assert (places >= MARGIN - 1e-6).all()
        assert (places <= 1 - MARGIN).all()
        gaps = np.sqrt(((places[:, None] - places[None]) ** 2).sum(axis=2)) + 9 * np.eye(64)
        assert gaps.min() > 0.5 * 0.8 * 64 ** (-1 / d)

    def test_another_seed_gives_other_places(self):
        assert not np.array_equal(spread_out(8, 2, 0), spread_out(8, 2, 1))
        assert np.array_equal(spread_out(8, 2, 1), spread_out(8, 2, 1))


class TestGather:
    PLACES = spread_out(16, 2, seed=0) / LATTICE

    def test_begins_near_the_clusters(self):
        told = heard(two_blobs(), self.PLACES)
        begun = gather(told, 2, PublicWords(0))
        gaps = np.abs(begun[:, None] - np.array([[0.3, 0.25], [0.75, 0.7]])[None]).max(axis=2)
        assert gaps.min(axis=0).max() < 0.1
        assert set(gaps.argmin(axis=0)) == {0, 1}

    def test_where_few_are_heard_at_places_of_the_round_make_up_the_number(self):
        told = heard(np.full((100, 2), 0.5), self.PLACES)
        begun = gather(told, 6, PublicWords(0))
        assert begun.shape == (6, 2)
        assert sum(any(np.allclose(row, place) for place in told.places) for row in begun) >= 5

    def test_a_lattice_has_no_place_beyond_the_last(self):
        assert to_lattice(np.array([[0.0, 1.0], [0.5, 1 - 1e-12]])) == (
            (0, LATTICE - 1),
            (LATTICE // 2, LATTICE - 1),
        )


def test_a_mechanism_that_says_nothing_is_refused():
    encoding = NearestCentroidEncoding(to_lattice(SHOWN))
    spec = RoundSpec(XY, encoding, design("grr", 6, 10**9))
    dumb = replace(spec, mechanism=GrrMechanism(4, DRAW_SPAN // 4), encoding=NearestCentroidEncoding(((1, 1), (2, 2))))
    with pytest.raises(UnfitRound, match="say nothing"):
        hear(Collected(dumb, Tally.empty(dumb)))
