"""Test box trees: the least-squares fit of counts, and the noisy tree of `dp_quadtree_kmeans`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustering.central.algorithms.dp_quadtree_kmeans import MAX_HEIGHT, choose_height, count_tree
from clustering.central.privtree import BoxTree, fit_counts, halve, whole_box
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from sfumato.specs import LATTICE
from tests.clustering.central.journals import KeepingJournal, NoEntropy, curator_of


def grown(data: st.DataObject, d: int) -> BoxTree:
    tree = whole_box(d)
    for _ in range(data.draw(st.integers(0, 4))):
        chosen = data.draw(st.lists(st.sampled_from(tree.leaves.tolist()), unique=True, max_size=3))
        tree = halve(tree, np.array(sorted(chosen), dtype=np.int64), data.draw(st.integers(0, d - 1)))
    return tree


class TestHalve:
    @given(st.data(), st.integers(1, 3))
    def test_leaves_partition_the_box(self, data: st.DataObject, d: int) -> None:
        tree = grown(data, d)
        volumes = tree.sides(tree.leaves).prod(axis=1)
        assert volumes.sum() == pytest.approx(1)
        assert ((tree.middles(tree.leaves) > 0) & (tree.middles(tree.leaves) < 1)).all()

    def test_single_place_is_not_halved(self) -> None:
        tree = whole_box(1)
        for _ in range(25):
            tree = halve(tree, tree.leaves[tree.lows[tree.leaves, 0] == 0], 0)
        assert (tree.highs - tree.lows).min() == 1
        assert tree.levels.max() == 20
        assert tree.highs.max() == LATTICE


class TestFitCounts:
    @given(st.data(), st.integers(1, 2))
    def test_equals_generic_least_squares(self, data: st.DataObject, d: int) -> None:
        tree = grown(data, d)
        m, leaves = len(tree.first), tree.leaves
        counts = np.array(data.draw(st.lists(st.integers(-50, 50), min_size=m, max_size=m)), dtype=float)
        variances = np.array(data.draw(st.lists(st.sampled_from([0.5, 1.0, 7.0]), min_size=m, max_size=m)))
        skipped = [node for node in range(m) if tree.first[node] >= 0 and data.draw(st.booleans())]
        variances[skipped] = np.inf
        holds = (tree.lows[:, None] <= tree.lows[leaves]).all(axis=2) & (tree.highs[:, None] >= tree.highs[leaves]).all(
            axis=2
        )
        counted = np.isfinite(variances)
        weight = 1 / np.sqrt(variances[counted])
        best = np.linalg.lstsq(holds[counted] * weight[:, None], counts[counted] * weight, rcond=None)[0]
        fitted, spread = fit_counts(tree, counts, variances)
        assert fitted == pytest.approx(holds @ best, abs=1e-8)
        covariance = np.linalg.inv((holds[counted] * weight[:, None]).T @ (holds[counted] * weight[:, None]))
        assert (np.diag(covariance) <= spread[leaves] + 1e-9).all()  # an upper bound


class TestNoisyTree:
    def records(self, n: int = 20_000, d: int = 2) -> np.ndarray:
        random = np.random.default_rng(0)
        return (np.clip(random.normal(0.3, 0.02, (n, d)), 0, 0.999) * LATTICE).astype(np.int32)

    def test_dense_regions_get_small_boxes(self) -> None:
        tree = count_tree(curator_of(self.records()), 2, 5, NANO)
        near = (np.abs(tree.synopsis.middles - 0.3) < 0.05).all(axis=1)
        volumes = tree.synopsis.sides.prod(axis=1)
        assert volumes[near].mean() < volumes[~near].mean() / 20
        assert tree.synopsis.counts.sum() == pytest.approx(20_000, rel=0.01)
        assert tree.synopsis.counts[near].sum() == pytest.approx(20_000, rel=0.1)
        assert tree.records.value == pytest.approx(20_000, rel=0.05)

    def test_variances_match_repeated_counts(self) -> None:
        trees = [count_tree(curator_of(self.records(0), seed=s), 3, 2, NANO, height=1) for s in range(800)]
        whole = [tree.synopsis.counts.sum() for tree in trees if len(tree.synopsis.counts) == 1]
        reported = [tree.synopsis.variances[0] for tree in trees if len(tree.synopsis.counts) == 1]
        assert len(whole) > 250
        # one box counted twice; the condition that noise left it whole hardly affects the average
        assert np.var(whole) == pytest.approx(reported[0], rel=0.3)  # 250 values give a variance to 9 %

    def test_leaves_spend_the_remainder(self) -> None:
        journal = KeepingJournal()
        curator = curator_of(np.zeros((0, 2)), NANO, journal=journal, seed=1)
        count_tree(curator, 2, 5, NANO, height=20)
        assert curator.left_nano == 0
        assert len(journal.charges) < 22
        assert journal.charges[-1].epsilon_nano >= 0.686 * NANO

    def test_growth_on_noise_is_limited(self) -> None:
        tree = count_tree(curator_of(np.zeros((0, 3)), NANO // 1000), 3, 256, NANO // 1000, height=MAX_HEIGHT)
        assert len(tree.synopsis.counts) <= 1 << 17

    def test_rejects_too_small_epsilon_before_drawing(self) -> None:
        with pytest.raises(InvalidSpec):
            count_tree(curator_of(self.records(), 60, entropy=NoEntropy()), 2, 5, 60)


class TestHeight:
    @pytest.mark.parametrize(
        ("records_epsilon", "d", "k", "height"), [(1e4, 2, 15, 5), (1e3, 2, 15, 4), (1e5, 8, 8, 20)]
    )
    def test_has_room_for_the_cells_of_a_grid(self, records_epsilon: float, d: int, k: int, height: int) -> None:
        assert choose_height(records_epsilon, d, k) == height

    @pytest.mark.parametrize("d", [1, 2, 64])
    def test_stays_within_bounds_for_any_noise(self, d: int) -> None:
        assert 1 <= choose_height(-1e9, d, 1) <= choose_height(1e18, d, 256) == MAX_HEIGHT
