"""`adaptive_grid_tree`: a round for each level, where the tree stops, and the form its paper prints."""

from itertools import pairwise

import numpy as np
import pytest

from clustering.adaptive_cells import History, uniform
from clustering.decoders import decoder
from clustering.metrics import adjusted_rand_index
from clustering.plan import drive
from clustering.plans.adaptive_grid_tree import adaptive_grid_tree, grow
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.accounting import cost
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design, epsilon_nano
from sfumato.specs import AdaptiveGridTree, Draw, Feature, GridEncoding

XY = (Feature("x", 0, 1), Feature("y", 0, 1))


def blobs(n, seed=1):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    return (0.25 + 0.5 * labels[:, None] + rng.normal(0, 0.06, (n, 2))).clip(0, 1), labels


def rounds(params, points):
    asked = []

    def answer(spec):
        asked.append(spec)
        return collect(spec, points, SeededEntropy(len(asked)), SeededEntropy(99).words(len(points)))

    drive(adaptive_grid_tree(params, XY, len(points)), answer)
    return asked


class TestRounds:
    def test_are_one_a_level_at_the_full_epsilon_for_draws_in_proportion_to_its_cells(self):
        points, _ = blobs(50_000)
        asked = rounds(AdaptiveGridTree(epsilon=2, height=3), points)
        assert [spec.encoding for spec in asked] == [GridEncoding((n, n)) for n in (2, 4, 8)]
        lengths = [(spec.draw.hi - spec.draw.lo) / 2**64 for spec in asked]
        assert lengths == pytest.approx([4 / 84, 16 / 84, 64 / 84])
        assert all(one.draw.hi == other.draw.lo for one, other in pairwise(asked))
        paid = [((spec.draw.lo, spec.draw.hi), epsilon_nano(spec.mechanism)) for spec in asked]
        assert 2e9 - 10 <= cost(paid) <= 2e9

    def test_height_grows_with_what_the_reports_can_tell_from_16_leaves_up(self):
        shares = []  # of the draws that level 1 gets: 4 of all cells of the tree
        for epsilon, n in ((0.5, 1000), (0.5, 150_000), (4, 150_000), (32, 10**9)):
            shares.append(next(adaptive_grid_tree(AdaptiveGridTree(epsilon=epsilon), XY, n)).draw.hi / 2**64)
        assert shares == pytest.approx([4 / 340, 4 / 340, 4 / 1364, 4 / 5460])

    def test_as_printed_are_two_more_and_add_up_to_the_epsilon(self):
        points, _ = blobs(20_000)
        asked = rounds(AdaptiveGridTree(epsilon=3, height=4, variant="paper"), points)
        assert [spec.mechanism.type for spec in asked] == ["grr"] * 6
        assert asked[0].draw == asked[-1].draw == Draw()
        assert [spec.draw for spec in asked[1:-1]] == [Draw.between(i / 4, (i + 1) / 4) for i in range(4)]
        paid = [((spec.draw.lo, spec.draw.hi), epsilon_nano(spec.mechanism)) for spec in asked]
        assert 3e9 - 30 <= cost(paid) <= 3e9
        assert all(nano <= 1e9 for _, nano in paid)

    @pytest.mark.parametrize("variant", ["sound", "paper"])
    def test_too_high_a_tree_is_refused(self, variant):
        plan = adaptive_grid_tree(AdaptiveGridTree(epsilon=1, height=9, variant=variant), XY, 1000)
        with pytest.raises(InvalidSpec, match="at most 8 levels"):
            drive(plan, lambda spec: collect(spec, blobs(100)[0], SeededEntropy(1), SeededEntropy(2).words(100)))


class TestGrow:
    def known(self, values, n_reports=10**6):
        history = History(1)
        partition = uniform(1, 3)
        reading = decoder(design("auto", 8, 4 * 10**9))
        history.add(partition, np.asarray(values, dtype=float), reading, n_reports)
        return history.reconcile(3)

    def test_goes_down_where_cells_differ_and_stops_where_they_do_not(self):
        partition = grow(self.known([0.1, 0.1, 0.1, 0.1, 0.0, 0.6, 0.0, 0.0]), 3)
        assert partition.levels.tolist() == [1, 3, 3, 2]

    def test_looks_below_a_cell_whose_halves_are_equal(self):
        partition = grow(self.known([0.2, 0.0, 0.0, 0.2, 0.15, 0.15, 0.15, 0.15]), 3)
        assert partition.levels.tolist() == [3, 3, 3, 3, 1]

    def test_does_not_go_down_after_noise(self):
        values = np.array([0.13, 0.12, 0.12, 0.13, 0.12, 0.13, 0.13, 0.12])
        assert grow(self.known(values, 1000), 3).levels.tolist() == [1, 1]


class TestClusters:
    def test_are_found(self):
        points, labels = blobs(100_000)
        model = simulate(AdaptiveGridTree(epsilon=1, clusters=2), points, seed=1)
        assert adjusted_rand_index(model.assign(points), labels) > 0.95
        assert model.sizes == pytest.approx([0.5, 0.5], abs=4 * model.size_errors.max())
        assert model.warnings == ()

    def test_are_counted_where_nobody_said_how_many(self):
        points, _ = blobs(100_000)
        assert simulate(AdaptiveGridTree(epsilon=2), points, seed=2).n_clusters == 2
