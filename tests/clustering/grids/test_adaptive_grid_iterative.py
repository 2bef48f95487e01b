"""Test `adaptive_grid_iterative`: its rounds, its splits and merges, and the printed variant."""

from itertools import pairwise

import numpy as np
import pytest

from clustering.grids.adaptive_cells import CellEstimates, split, uniform
from clustering.grids.adaptive_grid_iterative import adapt, adaptive_grid_iterative
from clustering.grids.adaptive_grid_paper import merge_and_split
from clustering.metrics import adjusted_rand_index
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Tally
from clustering.simulate import simulate
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.specs import AdaptiveGridIterative, GridEncoding, Participation, RoundSpec, TreeGridEncoding
from tests.clustering.local_plans import Devices, features, mixture, price, run

XY = features(2)


def blobs(n):
    return mixture(n, [[0.25, 0.25], [0.75, 0.75]])


class TestRounds:
    @pytest.mark.parametrize("passes", [3, 5])
    def test_partition_the_devices_and_use_the_full_epsilon(self, passes):
        _, devices = run(AdaptiveGridIterative(epsilon=2, passes=passes), blobs(100_000)[0])
        assert len(devices.specs) == passes
        assert (devices.participations[0].lo, devices.participations[-1].hi) == (0, 2**64)
        assert all(one.hi == other.lo for one, other in pairwise(devices.participations))
        assert 2e9 - 10 <= price(devices.specs) <= 2e9
        first, second = (spec.encoding for spec in devices.specs[:2])
        assert isinstance(first, GridEncoding)
        assert isinstance(second, TreeGridEncoding)
        assert second.depth == first.cells[0].bit_length()

    def test_the_printed_variant_has_two_more_rounds_at_the_same_cost(self):
        _, devices = run(AdaptiveGridIterative(epsilon=3, passes=4, variant="paper"), blobs(20_000)[0])
        assert [spec.mechanism.type for spec in devices.specs] == ["grr"] * 6
        assert devices.participations == [Participation()] * 6
        costs = [spec.mechanism.epsilon_nano() for spec in devices.specs]
        assert [round(nano / 1e9, 6) for nano in costs] == [1, 0.25, 0.25, 0.25, 0.25, 1]
        assert sum(costs) <= 3e9

    def test_the_printed_variant_refuses_an_epsilon_too_small_for_its_passes(self):
        plan = adaptive_grid_iterative(AdaptiveGridIterative(epsilon=2e-5, passes=8, variant="paper"), XY, 100)
        with pytest.raises(InvalidSpec, match="8 parts"):
            next(plan)


class TestAdapt:
    ONE_DENSE = np.where(np.arange(16) == 0, 0.85, 0.01)
    NOISE = np.random.default_rng(1).normal(1 / 16, 0.002, 16)
    DENSE_FAMILY = np.where(np.arange(16) < 4, 0.25, 0.0)

    @pytest.mark.parametrize(
        ("values", "n_reports", "finest", "levels"),
        [
            (ONE_DENSE, 10**6, 3, [2] + [3] * 12 + [2] * 12),  # sparse siblings of a dense cell
            (ONE_DENSE, 10**6, 2, [2] * 16),  # no finer level is allowed
            (NOISE / NOISE.sum(), 1000, 3, [2] * 16),
            (DENSE_FAMILY, 10**6, 3, [1] + [2] * 12),  # equal siblings
            (np.array([0.4, 0.2, 0.2, 0.2] + [0] * 12), 10**6, 3, [2] * 16),  # dense siblings that differ
        ],
    )
    def test_splits_sparse_siblings_and_merges_equal_dense_ones(self, values, n_reports, finest, levels):
        history = CellEstimates(2)
        history.add(uniform(2, 2), values, decoder(design("auto", 16, 4 * 10**9)), n_reports)
        assert adapt(uniform(2, 2), history.reconcile(2), finest=finest).levels.tolist() == levels

    def test_the_printed_variant_merges_all_dense_siblings(self):
        dense = np.zeros(16, dtype=bool)
        dense[:4] = dense[5] = True
        adapted = merge_and_split(uniform(2, 2), dense, 3)
        assert adapted.levels.tolist() == [1] + [3] * 4 + [2] + [3] * 8 + [2] * 8
        assert merge_and_split(uniform(2, 1), np.ones(4, dtype=bool), 3).levels.tolist() == [1] * 4

    def test_rounds_without_reports_keep_earlier_estimates(self):
        devices = Devices(blobs(60_000)[0])

        def only_first(spec):
            return Collected(spec, Tally.empty(spec)) if devices.rounds else devices(spec)

        model = drive(adaptive_grid_iterative(AdaptiveGridIterative(epsilon=1, clusters=2), XY, 60_000), only_first)
        assert model.diagnostics["reports_by_round"] == [devices.rounds[0].tally.n_reports, 0, 0]
        assert model.sizes == pytest.approx([0.5, 0.5], abs=4 * model.size_errors.max())


class TestClusters:
    def test_are_found(self):
        points, labels = blobs(100_000)
        model = simulate(AdaptiveGridIterative(epsilon=1, clusters=2), points, seed=1)
        assert adjusted_rand_index(model.assign(points), labels) > 0.95
        assert model.diagnostics["detectable"] == [True, True]
        assert model.sizes == pytest.approx([0.5, 0.5], abs=4 * model.size_errors.max())
        assert model.warnings == ()

    def test_are_counted_if_their_number_is_open(self):
        assert simulate(AdaptiveGridIterative(epsilon=2), blobs(100_000)[0], seed=2).n_clusters == 2

    def test_follow_from_the_published_cells(self):
        points, labels = blobs(60_000)
        devices = Devices(points)
        other = split(uniform(2, 3), np.arange(64) % 5 == 0).encoding()

        def collect(spec):
            return devices(RoundSpec(XY, other, design("grr", other.n_symbols, 6 * 10**9), spec.participation))

        model = drive(adaptive_grid_iterative(AdaptiveGridIterative(epsilon=1, clusters=2), XY, 60_000), collect)
        assert model.diagnostics["n_cells"] == other.n_symbols
        assert adjusted_rand_index(model.assign(points), labels) > 0.9
