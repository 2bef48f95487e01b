"""Test PrivTree: cost by enumeration, split frequencies by sampling, and the resulting tree."""

from fractions import Fraction
from itertools import pairwise
from math import comb, exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.central import privtree
from clustering.central.curator import Curator
from clustering.central.noise import representable
from clustering.central.privtree import build_tree, compute_decay, decide_splits
from clustering.central.queries import MemoryJournal, Records
from clustering.kernels.cells import descend
from clustering.random import SeededEntropy
from sfumato.privacy.accounting import NANO
from sfumato.specs import LATTICE
from tests import naive

SCALES = [Fraction(3, 20), Fraction(3, 4), Fraction(3), Fraction(7, 2), Fraction(30)]


def chances_of(biased: int, scale: float) -> tuple[float, float]:
    """Return P(biased + Z > 0) and its complement from the series of the discrete Laplace law."""
    ratio = exp(-1 / scale)
    reach = int(60 * scale) + abs(biased) + 2
    weights = [(z, ratio ** abs(z)) for z in range(-reach, reach + 1)]
    total = sum(weight for _, weight in weights)
    split = sum(weight for z, weight in weights if biased + z > 0)
    return split / total, sum(weight for z, weight in weights if biased + z <= 0) / total


def split_chance(biased: int, scale: float) -> float:
    return chances_of(biased, scale)[0]


def biased(count: int, depth: int, decay: int) -> int:
    return max(-decay, count - decay * depth)


def dearest_path(scale: float, decay: int, most: int, depth: int) -> float:
    """Return the largest log ratio of an outcome's probabilities with and without one record.

    The maximum is over all non-increasing numbers of records on the path, each at most `most`. The
    probability of an outcome is a product over the path.
    """
    chances = {x: chances_of(x, scale) for x in range(-decay, most + 1)}

    def ratio(count: int, level: int, *, is_split: bool) -> float:
        with_it, without = (chances[biased(n, level, decay)] for n in (count, count - 1))
        outcome = 0 if is_split else 1
        return abs(log(with_it[outcome] / without[outcome]))

    # best sum of splits from a level on, by the records of its node
    below = [0.0] * (most + 1)
    for level in reversed(range(depth)):
        here = [0.0] * (most + 1)
        for count in range(1, most + 1):
            here[count] = ratio(count, level, is_split=True) + max(below[: count + 1])
        below = here
    return max(below + [ratio(count, 0, is_split=False) for count in range(1, most + 1)])


class TestCost:
    @pytest.mark.parametrize("scale", SCALES)
    def test_loss_is_at_most_the_charge(self, scale: Fraction) -> None:
        decay = compute_decay(scale)
        dearest = dearest_path(float(scale), decay, 6 * decay + 3, 12)
        assert dearest <= 3 / float(scale) + 1e-9

    @pytest.mark.parametrize("scale", SCALES[2:])  # at smaller scales, rounding D up leaves slack
    def test_loss_exceeds_the_charge_with_less_noise(self, scale: Fraction) -> None:
        decay = compute_decay(scale * Fraction(7, 10))
        dearest = dearest_path(0.7 * float(scale), decay, 6 * decay + 3, 12)
        assert dearest > 3 / float(scale)

    @pytest.mark.parametrize("scale", [Fraction(3), Fraction(30)])
    def test_loss_exceeds_the_charge_with_less_decay(self, scale: Fraction) -> None:
        decay = compute_decay(scale)
        assert dearest_path(float(scale), max(1, decay // 3), 10 * decay, 24) > 3 / float(scale)

    @given(st.fractions(min_value=Fraction(1, 50), max_value=10**9))
    def test_decay_is_the_least_that_halves_the_tail(self, scale: Fraction) -> None:
        t, s = representable(scale)
        decay = compute_decay(scale)
        assert decay * s >= log(2) * t * (1 - 1e-12)
        assert (decay - 1) * s <= log(2) * t * (1 + 1e-9)


def tail(n: int, p: float, seen: int) -> float:
    """Return the probability of a count at least as far from n p as the observed one, on the same side."""
    side = range(seen, n + 1) if seen > n * p else range(seen + 1)
    return sum(exp(log(comb(n, i)) + i * log(p) + (n - i) * log(1 - p)) for i in side)


class TestDraws:
    EPSILON_NANO, RECORDS, TRIES = 2 * NANO, 2, 2000

    @pytest.fixture(autouse=True)
    def shallow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(privtree, "MAX_DEPTH", 2)

    def path_splits(self, epsilon_nano: int, max_per_user: int = 1) -> tuple[int, int]:
        """Return how often the root is split, and how often its child with all records is split if it exists."""
        records = Records(np.zeros((self.RECORDS, 1), dtype=np.int32), max_per_user)
        roots, nodes = 0, 0
        for seed in range(self.TRIES):
            answer = Curator(records, epsilon_nano, MemoryJournal(), SeededEntropy(seed)).halving_tree(epsilon_nano)
            roots += int(answer[0])
            nodes += int(answer[0] and answer[1])
        return roots, nodes

    def expected(self) -> tuple[float, float]:
        scale = 3 * NANO / self.EPSILON_NANO
        decay = compute_decay(Fraction(3 * NANO, self.EPSILON_NANO))
        return split_chance(self.RECORDS, scale), split_chance(self.RECORDS - decay, scale)

    @pytest.mark.slow
    @pytest.mark.parametrize("max_per_user", [1, 3])
    def test_split_frequency_follows_the_law(self, max_per_user: int) -> None:
        roots, nodes = self.path_splits(max_per_user * self.EPSILON_NANO, max_per_user)
        at_root, below = self.expected()
        assert tail(self.TRIES, at_root, roots) > 1e-6
        assert tail(roots, below, nodes) > 1e-6

    @pytest.mark.slow
    def test_detects_noise_at_70_percent(self) -> None:
        roots, _ = self.path_splits(self.EPSILON_NANO * 10 // 7)
        assert tail(self.TRIES, self.expected()[0], roots) < 1e-12


class TestTree:
    def grow(self, points: np.ndarray, scale: Fraction = Fraction(1, 10), seed: int = 0) -> np.ndarray:
        return decide_splits(points.astype(np.int32), scale, SeededEntropy(seed))

    def test_tiny_noise_splits_by_count_and_depth(self) -> None:
        points = np.random.default_rng(5).integers(0, LATTICE, (200, 2))
        tree = build_tree(self.grow(points, Fraction(1, 500)), 2)
        counts_by_node = [
            int(((points >= low) & (points < high)).all(axis=1).sum())
            for low, high in zip(tree.lows, tree.highs, strict=True)
        ]
        for node, count in enumerate(counts_by_node):
            assert (tree.first[node] >= 0) == (count > tree.levels[node])
            if tree.first[node] >= 0:
                assert tree.features[node] == tree.levels[node] % 2

    def test_leaves_follow_from_the_splits(self) -> None:
        points = np.random.default_rng(6).integers(0, LATTICE, (500, 3)).astype(np.int32)
        is_split = self.grow(points)
        tree = build_tree(is_split, 3)
        assert len(tree.first) == len(is_split)
        assert ((tree.first >= 0) == (is_split == 1)).all()
        assert np.prod(tree.sides(tree.leaves), axis=1).sum() == pytest.approx(1)
        cells = tree.cells(tree.leaves)
        number = cells.index(points)
        leaf = tree.leaves[number]
        assert ((tree.lows[leaf] <= points) & (points < tree.highs[leaf])).all()

    def test_respects_limits_of_depth_and_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        same = np.full((1000, 1), 12345)
        assert build_tree(self.grow(same), 1).levels.max() == 20  # one feature has no more halves
        monkeypatch.setattr(privtree, "MAX_DEPTH", 7)
        assert build_tree(self.grow(same), 1).levels.max() == 7
        monkeypatch.setattr(privtree, "MAX_NODES", 21)
        is_split = self.grow(np.random.default_rng(7).integers(0, LATTICE, (1000, 1)))
        assert len(is_split) == 21
        assert is_split.sum() == 10

    def test_tree_is_small_without_records(self) -> None:
        sizes = [len(self.grow(np.zeros((0, 5), dtype=np.int32), Fraction(3), seed)) for seed in range(200)]
        assert 1 < np.mean(sizes) < 5
        assert max(sizes) < 60

    @settings(deadline=None, max_examples=30)
    @given(st.data(), st.integers(1, 30), st.integers(1, 3))
    def test_level_equals_its_plain_twin(self, data: st.DataObject, n: int, d: int) -> None:
        points = np.array(
            data.draw(st.lists(st.lists(st.integers(0, LATTICE - 1), min_size=d, max_size=d), min_size=n, max_size=n))
        ).astype(np.int32)
        nodes = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))).astype(np.int32)
        first_child = np.array([-1, 3, 5, -1, -1, -1, -1])
        feature, bit = data.draw(st.integers(0, d - 1)), data.draw(st.integers(0, 19))
        counts = np.zeros(7, dtype=np.int64)
        expected = naive.descend(points.tolist(), first_child.tolist(), nodes.tolist(), feature, bit)
        descend(points, nodes, first_child, feature, bit, counts)
        assert nodes.tolist() == expected
        assert counts.tolist() == [sum(x == c for x in expected) if c >= 3 else 0 for c in range(7)]

    def test_levels_are_contiguous(self) -> None:
        levels = build_tree(self.grow(np.random.default_rng(8).integers(0, LATTICE, (300, 2))), 2).levels
        assert all(a <= b for a, b in pairwise(levels.tolist()))
