"""Public directions, and the cut where the density along one has a valley."""

import hashlib
import json

import numpy as np
import pytest

from clustering.decoders import decoder
from clustering.errors import UnfitRound
from clustering.plan import Collected, Tally
from clustering.simulate import SeededEntropy, collect
from clustering.valleys import Cut, best_valley, choose_cuts, directions, find_cuts, side_above
from sfumato.accounting import DRAW_SPAN
from sfumato.mechanisms import design
from sfumato.specs import (
    LATTICE,
    MAX_WEIGHT,
    Feature,
    GridEncoding,
    GrrMechanism,
    ProjectedGridEncoding,
    RoundSpec,
    to_wire,
)


def features(n):
    return tuple(Feature(f"x{i}", 0, 1) for i in range(n))


def answered(encoding, points, epsilon=4, seed=1):
    spec = RoundSpec(features(encoding.n_features), encoding, design("auto", encoding.n_symbols, int(epsilon * 1e9)))
    return collect(spec, points, SeededEntropy(seed), SeededEntropy(seed + 1).words(len(points)))


# of `directions(5, 20, 7)` on the wire
PUBLISHED = "7e922fab73e1eb623a48a46a1a9464142c541b1828cca79117f024ffdbf9f4aa"


class TestDirections:
    def test_are_the_features_and_then_random_ones_scaled_to_the_largest_weight(self):
        encoding = directions(3, 10, 0)
        assert encoding.weights[:3] == ((1, 0, 0), (0, 1, 0), (0, 0, 1))
        assert (encoding.lowers[0], encoding.spans[0]) == (0, LATTICE)
        assert {max(map(abs, row)) for row in encoding.weights[3:]} == {MAX_WEIGHT}
        assert len(set(encoding.weights)) == 10

    def test_are_the_same_on_every_machine_and_others_for_every_seed(self):
        told = json.dumps(to_wire(directions(5, 20, 7)), sort_keys=True)
        assert hashlib.sha256(told.encode()).hexdigest() == PUBLISHED
        assert directions(5, 20, 8).weights[5:] != directions(5, 20, 7).weights[5:]

    def test_fewer_than_features_are_the_first_features(self):
        assert directions(4, 2, 0).weights == ((1, 0, 0, 0), (0, 1, 0, 0))

    @pytest.mark.parametrize("d", [2, 3, 24, 64])
    def test_are_spread_evenly_over_the_sphere(self, d):
        rows = np.concatenate([directions(d, 128, seed).weights[d:] for seed in range(30)])
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        assert np.abs(unit.mean(axis=0)).max() < 5 / np.sqrt(len(unit) * d)
        assert unit.T @ unit / len(unit) == pytest.approx(np.eye(d) / d, abs=5 / d / np.sqrt(len(unit)))

    @pytest.mark.parametrize("d", [2, 8, 64])
    def test_ranges_hold_people_wherever_they_are(self, d):
        encoding = directions(d, 2 * d, 1)
        places = (np.random.default_rng(1).random((20_000, d)) * LATTICE).astype(np.int64)
        along = places @ np.array(encoding.weights).T
        outside = (along < encoding.lowers) | (along > np.add(encoding.lowers, encoding.spans))
        assert outside.mean(axis=0).max() < 0.04
        corners = np.sign(np.array(encoding.weights)) * 0.5 + 0.5  # where each direction's range must end, if anywhere
        ends = (corners * LATTICE * encoding.weights).sum(axis=1)
        assert (np.add(encoding.lowers, encoding.spans) <= ends + 1).all()


class TestValley:
    def test_lies_where_the_smaller_side_stands_highest_above_the_cut(self):
        density = np.array([0, 3, 4, 1, 0, 1, 5, 2, 4, 0]) / 20
        place, excess, score = best_valley(density)
        assert place == 4
        assert excess == pytest.approx(8 / 20)
        assert score == pytest.approx(8 / 20)  # next to nobody is there: one cell of ten is all it looks at

    @pytest.mark.parametrize("density", [np.ones(40), np.arange(40.0), np.exp(-(np.linspace(-3, 3, 40) ** 2))])
    def test_is_nowhere_in_a_density_with_one_top(self, density):
        assert best_valley(density / density.sum()) is None

    def test_is_rather_where_few_are_than_where_most_stand_on_either_side(self):
        density = np.full(40, 1e-6)
        density[2:8], density[20:26], density[26:30], density[30:36] = 0.15, 0.6, 0.2, 0.4
        density /= density.sum()
        place, excess, _ = best_valley(density)
        assert 8 <= place < 20
        shallow = np.maximum(density[30:] - density[28], 0).sum()
        assert shallow > excess  # but a cut there would take many from their group

    def test_weights_sum_to_the_excess(self):
        density = np.random.default_rng(2).dirichlet(np.ones(40))
        place, excess, _ = best_valley(density)
        weights = side_above(density, place)
        assert weights @ density == pytest.approx(excess)
        assert weights.sum() == pytest.approx(0)


class TestCuts:
    def test_lie_between_two_crowds_along_the_directions_that_part_them(self):
        rng = np.random.default_rng(3)
        points = np.stack([np.where(rng.random(60_000) < 0.4, 0.25, 0.75), np.full(60_000, 0.5)], axis=1)
        points = (points + rng.normal(0, 0.06, points.shape)).clip(0, 1)
        encoding = ProjectedGridEncoding(
            ((1, 0), (0, 1), (-3, 1)), (0, 0, -3 * LATTICE), (LATTICE,) * 2 + (4 * LATTICE,), 10, 4
        )
        collected = answered(encoding, points)
        first, second, *_ = find_cuts(collected, decoder(collected.spec.mechanism))
        assert {first.projection, second.projection} == {0, 2}
        for cut in (first, second):
            assert cut.excess == pytest.approx(0.4, abs=0.06)
            assert 0 < cut.error < 0.03
        along = {cut.projection: cut.threshold / LATTICE for cut in (first, second)}
        assert along[0] == pytest.approx(0.5, abs=0.11)
        assert along[2] == pytest.approx(-1.0, abs=0.35)

    def test_a_direction_nobody_was_asked_about_is_left_out(self):
        encoding = directions(2, 4, 0)
        collected = answered(encoding, np.random.default_rng(4).random((4000, 2)) ** 3)
        collected.tally.counts[4:8] = 0
        collected.tally.reports[4:8] = 0
        assert 1 not in {cut.projection for cut in find_cuts(collected, decoder(collected.spec.mechanism))}

    def test_a_round_of_no_directions_is_refused(self):
        spec = RoundSpec(features(2), GridEncoding((4, 4)), design("grr", 16, 10**9))
        with pytest.raises(UnfitRound, match="projections"):
            find_cuts(Collected(spec, Tally.empty(spec)), decoder(spec.mechanism))

    def test_a_direction_of_one_cell_is_refused(self):
        encoding = ProjectedGridEncoding(((1, 0),), (0,), (LATTICE,), 1, 1)
        spec = RoundSpec(features(2), encoding, GrrMechanism(2, DRAW_SPAN))
        with pytest.raises(UnfitRound, match="no valley"):
            find_cuts(Collected(spec, Tally.empty(spec)), decoder(spec.mechanism))

    def test_the_finest_directions_are_fitted(self):
        encoding = ProjectedGridEncoding(((1, 0),), (0,), (LATTICE,), 256, 8)
        collected = answered(encoding, np.random.default_rng(5).choice([0.2, 0.8], (5000, 2)))
        (cut,) = find_cuts(collected, decoder(collected.spec.mechanism))
        assert 0.2 < cut.threshold / LATTICE < 0.8


def cut(*weights, excess=0.1):
    return Cut(0, weights, 0, excess, 0.01, excess)


class TestChoice:
    def test_takes_the_first_that_are_not_alike(self):
        found = [cut(100, 0), cut(-100, 20), cut(100, 100), cut(0, 7), cut(1, 60)]
        assert choose_cuts(found, 2) == [found[0], found[2]]
        assert choose_cuts(found, 8) == [found[0], found[2], found[3]]

    def test_directions_at_an_angle_of_whose_cosine_is_above_nine_tenths_are_alike(self):
        assert cut(1, 0).is_like(cut(91, 41))
        assert not cut(1, 0).is_like(cut(89, 46))
        assert cut(*[MAX_WEIGHT] * 64).is_like(cut(*[-MAX_WEIGHT] * 64))

    def test_a_direction_has_length_one(self):
        assert cut(3, -4).direction == pytest.approx((0.6, -0.8))
