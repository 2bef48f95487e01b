"""Trees of boxes: least squares that is least squares, and a synopsis that adapts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustering.central.box_tree import BoxTree, fit_counts, halve, whole_box
from clustering.central.noisy_tree import MAX_HEIGHT, height_for, noisy_tree
from sfumato.accounting import NANO
from sfumato.errors import InvalidSpec
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
    def test_leaves_make_up_the_box(self, data: st.DataObject, d: int) -> None:
        tree = grown(data, d)
        volumes = tree.sides(tree.leaves).prod(axis=1)
        assert volumes.sum() == pytest.approx(1)
        assert ((tree.middles(tree.leaves) > 0) & (tree.middles(tree.leaves) < 1)).all()

    def test_one_lattice_place_is_not_halved(self) -> None:
        tree = whole_box(1)
        for _ in range(25):
            tree = halve(tree, tree.leaves[tree.lows[tree.leaves, 0] == 0], 0)
        assert (tree.highs - tree.lows).min() == 1
        assert tree.levels.max() == 20
        assert tree.highs.max() == LATTICE


class TestFitCounts:
    @given(st.data(), st.integers(1, 2))
    def test_is_least_squares_by_another_route(self, data: st.DataObject, d: int) -> None:
        tree = grown(data, d)
        m, leaves = len(tree.first), tree.leaves
        counts = np.array(data.draw(st.lists(st.integers(-50, 50), min_size=m, max_size=m)), dtype=float)
        variances = np.array(data.draw(st.lists(st.sampled_from([0.5, 1.0, 7.0]), min_size=m, max_size=m)))
        skipped = [node for node in range(m) if tree.first[node] >= 0 and data.draw(st.booleans())]
        variances[skipped] = np.inf
        holds = (tree.lows[:, None] <= tree.lows[leaves]).all(axis=2) & (tree.highs[:, None] >= tree.highs[leaves]).all(
            axis=2
        )
        asked = np.isfinite(variances)
        weight = 1 / np.sqrt(variances[asked])
        best = np.linalg.lstsq(holds[asked] * weight[:, None], counts[asked] * weight, rcond=None)[0]
        fitted, spread = fit_counts(tree, counts, variances)
        assert fitted == pytest.approx(holds @ best, abs=1e-8)
        covariance = np.linalg.inv((holds[asked] * weight[:, None]).T @ (holds[asked] * weight[:, None]))
        assert (np.diag(covariance) <= spread[leaves] + 1e-9).all()  # an upper bound, as promised


class TestNoisyTree:
    def records(self, n: int = 20_000, d: int = 2) -> np.ndarray:
        random = np.random.default_rng(0)
        return (np.clip(random.normal(0.3, 0.02, (n, d)), 0, 0.999) * LATTICE).astype(np.int32)

    def test_boxes_are_small_where_records_are(self) -> None:
        tree = noisy_tree(curator_of(self.records()), 2, 5, NANO)
        near = (np.abs(tree.synopsis.middles - 0.3) < 0.05).all(axis=1)
        volumes = tree.synopsis.sides.prod(axis=1)
        assert volumes[near].mean() < volumes[~near].mean() / 20
        assert tree.synopsis.counts.sum() == pytest.approx(20_000, rel=0.01)
        assert tree.synopsis.counts[near].sum() == pytest.approx(20_000, rel=0.1)
        assert tree.records.value == pytest.approx(20_000, rel=0.05)

    def test_its_variances_are_those_of_its_counts(self) -> None:
        trees = [noisy_tree(curator_of(self.records(0), seed=s), 3, 2, NANO, height=1) for s in range(1500)]
        whole = [tree.synopsis.counts.sum() for tree in trees if len(tree.synopsis.counts) == 1]
        said = [tree.synopsis.variances[0] for tree in trees if len(tree.synopsis.counts) == 1]
        assert len(whole) > 500
        # one box, counted twice; noise left it whole, which hardly tells on the average of both counts
        assert np.var(whole) == pytest.approx(said[0], rel=0.25)

    def test_what_levels_leave_is_the_leaves(self) -> None:
        journal = KeepingJournal()
        curator = curator_of(np.zeros((0, 2)), NANO, journal=journal, seed=1)
        noisy_tree(curator, 2, 5, NANO, height=20)
        assert curator.left_nano == 0
        assert len(journal.charges) < 22
        assert journal.charges[-1].epsilon_nano >= 0.686 * NANO

    def test_it_does_not_grow_for_ever_on_noise(self) -> None:
        tree = noisy_tree(curator_of(np.zeros((0, 3)), NANO // 1000), 3, 256, NANO // 1000, height=MAX_HEIGHT)
        assert len(tree.synopsis.counts) <= 1 << 17

    def test_too_small_an_epsilon_is_refused_before_anything_is_drawn(self) -> None:
        with pytest.raises(InvalidSpec):
            noisy_tree(curator_of(self.records(), 60, entropy=NoEntropy()), 2, 5, 60)


class TestHeight:
    @pytest.mark.parametrize(
        ("records_epsilon", "d", "k", "height"), [(1e4, 2, 15, 5), (1e3, 2, 15, 4), (1e5, 8, 8, 20)]
    )
    def test_makes_room_for_a_grids_cells(self, records_epsilon: float, d: int, k: int, height: int) -> None:
        assert height_for(records_epsilon, d, k) == height

    @pytest.mark.parametrize("d", [1, 2, 64])
    def test_stays_within_bounds_whatever_noise_says(self, d: int) -> None:
        assert 1 <= height_for(-1e9, d, 1) <= height_for(1e18, d, 256) == MAX_HEIGHT
