"""Test `adaptive_grid_tree`: its rounds, its height, the splits of its tree and the printed variant."""

from itertools import pairwise

import numpy as np
import pytest

from clustering.grids.adaptive_cells import CellEstimates, uniform
from clustering.grids.adaptive_grid_tree import adaptive_grid_tree, grow
from clustering.metrics import adjusted_rand_index
from clustering.rounds.decoders import decoder
from clustering.simulate import simulate
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.specs import AdaptiveGridTree, GridEncoding, Participation
from tests.clustering.local_plans import features, mixture, price, run

XY = features(2)


def blobs(n):
    return mixture(n, [[0.25, 0.25], [0.75, 0.75]])


class TestRounds:
    def test_each_level_has_a_share_of_devices_in_proportion_to_its_cells(self):
        _, devices = run(AdaptiveGridTree(epsilon=2, height=3), blobs(20_000)[0])
        assert [spec.encoding for spec in devices.specs] == [GridEncoding((n, n)) for n in (2, 4, 8)]
        lengths = [(participation.hi - participation.lo) / 2**64 for participation in devices.participations]
        assert lengths == pytest.approx([4 / 84, 16 / 84, 64 / 84])
        assert all(one.hi == other.lo for one, other in pairwise(devices.participations))
        assert 2e9 - 10 <= price(devices.specs) <= 2e9

    def test_the_height_grows_with_the_reports_from_16_leaves(self):
        shares = []  # level 1 has 4 of the tree's cells
        for epsilon, n in ((0.5, 1000), (0.5, 150_000), (4, 150_000), (32, 10**9)):
            shares.append(next(adaptive_grid_tree(AdaptiveGridTree(epsilon=epsilon), XY, n)).participation.hi / 2**64)
        assert shares == pytest.approx([4 / 340, 4 / 340, 4 / 1364, 4 / 5460])

    def test_the_printed_variant_has_two_more_rounds_at_the_same_cost(self):
        _, devices = run(AdaptiveGridTree(epsilon=3, height=4, variant="paper"), blobs(20_000)[0])
        assert [spec.mechanism.type for spec in devices.specs] == ["grr"] * 6
        levels = [Participation.between(i / 4, (i + 1) / 4) for i in range(4)]
        assert devices.participations == [Participation(), *levels, Participation()]
        assert 3e9 - 30 <= price(devices.specs) <= 3e9
        assert all(spec.mechanism.epsilon_nano() <= 1e9 for spec in devices.specs)

    @pytest.mark.parametrize("variant", ["sound", "paper"])
    def test_refuses_more_than_8_levels(self, variant):
        with pytest.raises(InvalidSpec, match="at most 8 levels"):
            run(AdaptiveGridTree(epsilon=1, height=9, variant=variant), blobs(100)[0])


class TestGrow:
    @pytest.mark.parametrize(
        ("values", "n_reports", "levels"),
        [
            ([0.1, 0.1, 0.1, 0.1, 0.0, 0.6, 0.0, 0.0], 10**6, [1, 3, 3, 2]),
            ([0.2, 0.0, 0.0, 0.2, 0.15, 0.15, 0.15, 0.15], 10**6, [3, 3, 3, 3, 1]),  # the halves are equal
            ([0.13, 0.12, 0.12, 0.13, 0.12, 0.13, 0.13, 0.12], 1000, [1, 1]),  # the difference is noise
        ],
    )
    def test_splits_cells_with_significantly_different_parts(self, values, n_reports, levels):
        history = CellEstimates(1)
        history.add(uniform(1, 3), np.array(values), decoder(design("auto", 8, 4 * 10**9)), n_reports)
        assert grow(history.reconcile(3), 3).levels.tolist() == levels


class TestClusters:
    def test_are_found(self):
        points, labels = blobs(100_000)
        model = simulate(AdaptiveGridTree(epsilon=1, clusters=2), points, seed=1)
        assert adjusted_rand_index(model.assign(points), labels) > 0.95
        assert model.sizes == pytest.approx([0.5, 0.5], abs=4 * model.size_errors.max())
        assert model.warnings == ()

    def test_are_counted_if_their_number_is_open(self):
        assert simulate(AdaptiveGridTree(epsilon=2), blobs(100_000)[0], seed=2).n_clusters == 2
