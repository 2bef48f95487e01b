"""`adaptive_grid_iterative`: its rounds, what it splits and merges, and the form its paper prints."""

from itertools import pairwise

import numpy as np
import pytest

from clustering.adaptive_cells import History, split, uniform
from clustering.decoders import decoder
from clustering.metrics import adjusted_rand_index
from clustering.plan import Collected, Tally, drive
from clustering.plans.adaptive_grid_iterative import adapt, adaptive_grid_iterative
from clustering.plans.adaptive_grid_paper import adapt_as_printed
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.accounting import cost
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design, epsilon_nano
from sfumato.specs import AdaptiveGridIterative, Draw, Feature, GridEncoding, TreeGridEncoding

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

    drive(adaptive_grid_iterative(params, XY, len(points)), answer)
    return asked


def known(partition, estimates, n_reports):
    """What is known after a round with these very estimates."""
    history = History(partition.n_features)
    reading = decoder(design("auto", len(partition.levels), 4 * 10**9))
    history.add(partition, np.asarray(estimates, dtype=float), reading, n_reports)
    return history.reconcile(partition.depth)


class TestRounds:
    @pytest.mark.parametrize("passes", [3, 5])
    def test_each_is_at_the_full_epsilon_for_its_own_part_of_the_draws(self, passes):
        points, _ = blobs(100_000)
        asked = rounds(AdaptiveGridIterative(epsilon=2, passes=passes), points)
        assert len(asked) == passes
        assert asked[0].draw.lo == 0
        assert asked[-1].draw.hi == 2**64
        assert all(one.draw.hi == other.draw.lo for one, other in pairwise(asked))
        paid = [((spec.draw.lo, spec.draw.hi), epsilon_nano(spec.mechanism)) for spec in asked]
        assert 2e9 - 10 <= cost(paid) <= 2e9

    def test_begin_with_a_grid_and_go_on_with_cells_adapted_to_the_people(self):
        points, _ = blobs(100_000)
        asked = rounds(AdaptiveGridIterative(epsilon=2), points)
        assert isinstance(asked[0].encoding, GridEncoding)
        assert isinstance(asked[1].encoding, TreeGridEncoding)
        assert asked[1].encoding.depth == asked[0].encoding.cells[0].bit_length()

    def test_as_printed_are_two_more_and_add_up_to_the_epsilon(self):
        points, _ = blobs(20_000)
        asked = rounds(AdaptiveGridIterative(epsilon=3, passes=4, variant="paper"), points)
        assert [spec.mechanism.type for spec in asked] == ["grr"] * 6
        assert [spec.draw for spec in asked] == [Draw()] * 6
        paid = [epsilon_nano(spec.mechanism) for spec in asked]
        assert [round(nano / 1e9, 6) for nano in paid] == [1, 0.25, 0.25, 0.25, 0.25, 1]
        assert sum(paid) <= 3e9

    def test_as_printed_with_too_small_an_epsilon_for_the_passes_are_refused(self):
        plan = adaptive_grid_iterative(AdaptiveGridIterative(epsilon=2e-5, passes=8, variant="paper"), XY, 100)
        with pytest.raises(InvalidSpec, match="8 parts"):
            next(plan)


class TestAdapt:
    def test_splits_a_sparse_cell_beside_a_dense_sibling_and_no_other(self):
        values = np.full(16, 0.01)
        values[0] = 0.85  # of the first family
        adapted = adapt(uniform(2, 2), known(uniform(2, 2), values, 10**6), finest=3)
        assert adapted.levels.tolist() == [2] + [3] * 12 + [2] * 12

    def test_splits_nothing_where_nothing_is_clear(self):
        values = np.random.default_rng(1).normal(1 / 16, 0.002, 16)
        adapted = adapt(uniform(2, 2), known(uniform(2, 2), values / values.sum(), 1000), finest=3)
        assert adapted.levels.tolist() == [2] * 16

    def test_goes_no_finer_than_it_may(self):
        values = np.full(16, 0.01)
        values[0] = 0.85
        adapted = adapt(uniform(2, 2), known(uniform(2, 2), values, 10**6), finest=2)
        assert adapted.levels.tolist() == [2] * 16

    def test_merges_siblings_that_are_dense_and_alike(self):
        values = np.zeros(16)
        values[:4] = 0.25
        adapted = adapt(uniform(2, 2), known(uniform(2, 2), values, 10**6), finest=3)
        assert adapted.levels.tolist() == [1] + [2] * 12

    def test_keeps_dense_siblings_that_differ(self):
        values = np.zeros(16)
        values[:4] = [0.4, 0.2, 0.2, 0.2]
        adapted = adapt(uniform(2, 2), known(uniform(2, 2), values, 10**6), finest=3)
        assert adapted.levels.tolist() == [2] * 16

    def test_as_printed_merges_all_dense_siblings_and_splits_beside_one(self):
        dense = np.zeros(16, dtype=bool)
        dense[:4] = dense[5] = True
        adapted = adapt_as_printed(uniform(2, 2), dense, 3)
        assert adapted.levels.tolist() == [1] + [3] * 4 + [2] + [3] * 8 + [2] * 8

    def test_as_printed_never_merges_to_the_whole(self):
        assert adapt_as_printed(uniform(2, 1), np.ones(4, dtype=bool), 3).levels.tolist() == [1] * 4

    def test_what_earlier_rounds_told_counts_on(self):
        points, _ = blobs(60_000)
        spec = next(adaptive_grid_iterative(AdaptiveGridIterative(epsilon=1), XY, len(points)))
        answered = collect(spec, points, SeededEntropy(1), SeededEntropy(2).words(len(points)))
        silent = []

        def answer(wanted):
            if not silent:
                silent.append(wanted)
                return answered
            return Collected(wanted, Tally.empty(wanted))

        model = drive(adaptive_grid_iterative(AdaptiveGridIterative(epsilon=1, clusters=2), XY, 60_000), answer)
        assert model.diagnostics["reports_by_round"] == [answered.tally.n_reports, 0, 0]
        assert model.sizes == pytest.approx([0.5, 0.5], abs=4 * model.size_errors.max())


class TestClusters:
    def test_are_found(self):
        points, labels = blobs(100_000)
        model = simulate(AdaptiveGridIterative(epsilon=1, clusters=2), points, seed=1)
        assert adjusted_rand_index(model.assign(points), labels) > 0.95
        assert model.diagnostics["detectable"] == [True, True]
        assert model.sizes == pytest.approx([0.5, 0.5], abs=4 * model.size_errors.max())
        assert model.warnings == ()

    def test_are_counted_where_nobody_said_how_many(self):
        points, _ = blobs(100_000)
        assert simulate(AdaptiveGridIterative(epsilon=2), points, seed=2).n_clusters == 2

    def test_published_cells_are_gone_on_from(self):
        points, labels = blobs(60_000)
        other = split(uniform(2, 3), np.arange(64) % 5 == 0).encoding()

        def answer(spec):
            changed = type(spec)(spec.features, other, design("grr", other.n_symbols, 6 * 10**9), spec.draw)
            return collect(changed, points, SeededEntropy(3), SeededEntropy(4).words(len(points)))

        model = drive(adaptive_grid_iterative(AdaptiveGridIterative(epsilon=1, clusters=2), XY, 60_000), answer)
        assert model.diagnostics["n_cells"] == other.n_symbols
        assert adjusted_rand_index(model.assign(points), labels) > 0.9
