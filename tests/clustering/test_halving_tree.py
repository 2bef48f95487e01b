"""The tree of halved cells: what its decisions cost, by enumeration; how they are drawn, by counting; how it looks."""

from fractions import Fraction
from itertools import pairwise
from math import comb, exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering import halving_tree as module
from clustering.central.box_tree import BoxCells
from clustering.curator import Curator, MemoryJournal, Records
from clustering.halving_tree import decay_of, grown, tree_of
from clustering.kernels.halving_tree import descend
from clustering.noise import representable
from clustering.seeded_entropy import SeededEntropy
from sfumato.accounting import NANO
from sfumato.specs import LATTICE
from tests import naive

SCALES = [Fraction(3, 20), Fraction(3, 4), Fraction(3), Fraction(7, 2), Fraction(30)]


def chances_of(biased: int, scale: float) -> tuple[float, float]:
    """P(biased + Z > 0) and what is left, by the series of the discrete Laplace law, far out into its tail."""
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
    """The largest log ratio of any outcome's chance, with a record and without it.

    Over all numbers of records on its path, which never grow downwards, at most `most`; by
    the outcome being a product over that path.
    """
    chances = {x: chances_of(x, scale) for x in range(-decay, most + 1)}

    def ratio(count: int, level: int, *, is_split: bool) -> float:
        with_it, without = (chances[biased(n, level, decay)] for n in (count, count - 1))
        outcome = 0 if is_split else 1
        return abs(log(with_it[outcome] / without[outcome]))

    # the best sum of splits from a level on, when a node there holds so many records
    below = [0.0] * (most + 1)
    for level in reversed(range(depth)):
        here = [0.0] * (most + 1)
        for count in range(1, most + 1):
            here[count] = ratio(count, level, is_split=True) + max(below[: count + 1])
        below = here
    return max(below + [ratio(count, 0, is_split=False) for count in range(1, most + 1)])


class TestCost:
    @pytest.mark.parametrize("scale", SCALES)
    def test_no_outcome_tells_of_a_record_more_than_was_charged(self, scale: Fraction) -> None:
        decay = decay_of(scale)
        dearest = dearest_path(float(scale), decay, 6 * decay + 3, 12)
        assert dearest <= 3 / float(scale) + 1e-9

    @pytest.mark.parametrize("scale", SCALES[2:])  # below, D being whole leaves some slack
    def test_with_a_third_less_noise_one_would(self, scale: Fraction) -> None:
        decay = decay_of(scale * Fraction(7, 10))
        dearest = dearest_path(0.7 * float(scale), decay, 6 * decay + 3, 12)
        assert dearest > 3 / float(scale)

    @pytest.mark.parametrize("scale", [Fraction(3), Fraction(30)])
    def test_without_enough_decay_one_would(self, scale: Fraction) -> None:
        assert dearest_path(float(scale), max(1, decay_of(scale) // 3), 20 * decay_of(scale), 24) > 3 / float(scale)

    @given(st.fractions(min_value=Fraction(1, 50), max_value=10**9))
    def test_the_decay_is_the_least_that_halves_the_tail(self, scale: Fraction) -> None:
        t, s = representable(scale)
        decay = decay_of(scale)
        assert decay * s >= log(2) * t * (1 - 1e-12)
        assert (decay - 1) * s <= log(2) * t * (1 + 1e-9)


def tail(n: int, p: float, seen: int) -> float:
    """Chance of a count at least as far from n p as the one seen, on its side."""
    side = range(seen, n + 1) if seen > n * p else range(seen + 1)
    return sum(exp(log(comb(n, i)) + i * log(p) + (n - i) * log(1 - p)) for i in side)


class TestDraws:
    EPSILON_NANO, RECORDS, TRIES = 2 * NANO, 2, 2000

    @pytest.fixture(autouse=True)
    def shallow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_DEPTH", 2)

    def path_splits(self, epsilon_nano: int, max_per_user: int = 1) -> tuple[int, int]:
        """How often the root is split, and how often the node below it that holds everybody, where it was asked."""
        records = Records(np.zeros((self.RECORDS, 1), dtype=np.int32), max_per_user)
        roots, nodes = 0, 0
        for seed in range(self.TRIES):
            answer = Curator(records, epsilon_nano, MemoryJournal(), SeededEntropy(seed)).halving_tree(epsilon_nano)
            roots += int(answer[0])
            nodes += int(answer[0] and answer[1])
        return roots, nodes

    def expected(self) -> tuple[float, float]:
        scale = 3 * NANO / self.EPSILON_NANO
        decay = decay_of(Fraction(3 * NANO, self.EPSILON_NANO))
        return split_chance(self.RECORDS, scale), split_chance(self.RECORDS - decay, scale)

    def test_a_node_is_split_as_often_as_the_noise_says(self) -> None:
        roots, nodes = self.path_splits(self.EPSILON_NANO)
        at_root, below = self.expected()
        assert tail(self.TRIES, at_root, roots) > 1e-6
        assert tail(roots, below, nodes) > 1e-6

    def test_seventy_percent_of_the_noise_is_caught(self) -> None:
        roots, _ = self.path_splits(self.EPSILON_NANO * 10 // 7)
        assert tail(self.TRIES, self.expected()[0], roots) < 1e-12

    def test_the_noise_grows_with_the_records_a_user_may_have(self) -> None:
        roots, nodes = self.path_splits(3 * self.EPSILON_NANO, max_per_user=3)
        at_root, below = self.expected()
        assert tail(self.TRIES, at_root, roots) > 1e-6
        assert tail(roots, below, nodes) > 1e-6


class TestTree:
    def grow(self, points: np.ndarray, scale: Fraction = Fraction(1, 10), seed: int = 0) -> np.ndarray:
        return grown(points.astype(np.int32), scale, SeededEntropy(seed))

    def test_next_to_no_noise_halves_what_holds_more_records_than_it_is_deep(self) -> None:
        points = np.random.default_rng(5).integers(0, LATTICE, (200, 2))
        tree = tree_of(self.grow(points, Fraction(1, 500)), 2)
        held = [
            int(((points >= low) & (points < high)).all(axis=1).sum())
            for low, high in zip(tree.lows, tree.highs, strict=True)
        ]
        for node, count in enumerate(held):
            assert (tree.first[node] >= 0) == (count > tree.levels[node])
            if tree.first[node] >= 0:
                assert tree.features[node] == tree.levels[node] % 2

    def test_leaves_are_a_partition_that_the_decisions_alone_tell(self) -> None:
        points = np.random.default_rng(6).integers(0, LATTICE, (500, 3)).astype(np.int32)
        is_split = self.grow(points)
        tree = tree_of(is_split, 3)
        assert len(tree.first) == len(is_split)
        assert ((tree.first >= 0) == (is_split == 1)).all()
        assert np.prod(tree.sides(tree.leaves), axis=1).sum() == pytest.approx(1)
        cells = BoxCells(tree, tree.leaves)
        number = cells.index(points)
        leaf = tree.leaves[number]
        assert ((tree.lows[leaf] <= points) & (points < tree.highs[leaf])).all()

    def test_it_is_no_deeper_and_no_larger_than_its_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        same = np.full((1000, 1), 12345)
        assert tree_of(self.grow(same), 1).levels.max() == 20  # one feature has no more halves
        monkeypatch.setattr(module, "MAX_DEPTH", 7)
        assert tree_of(self.grow(same), 1).levels.max() == 7
        monkeypatch.setattr(module, "MAX_NODES", 21)
        is_split = self.grow(np.random.default_rng(7).integers(0, LATTICE, (1000, 1)))
        assert len(is_split) == 21
        assert is_split.sum() == 10

    def test_no_records_make_a_small_tree(self) -> None:
        sizes = [len(self.grow(np.zeros((0, 5), dtype=np.int32), Fraction(3), seed)) for seed in range(200)]
        assert 1 < np.mean(sizes) < 5
        assert max(sizes) < 60

    @settings(deadline=None, max_examples=30)
    @given(st.data(), st.integers(1, 30), st.integers(1, 3))
    def test_a_level_is_what_its_plain_twin_says(self, data: st.DataObject, n: int, d: int) -> None:
        points = np.array(
            data.draw(st.lists(st.lists(st.integers(0, LATTICE - 1), min_size=d, max_size=d), min_size=n, max_size=n))
        ).astype(np.int32)
        nodes = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))).astype(np.int32)
        first_child = np.array([-1, 3, 5, -1, -1, -1, -1])
        feature, bit = data.draw(st.integers(0, d - 1)), data.draw(st.integers(0, 19))
        counts = np.zeros(7, dtype=np.int64)
        expected = naive.halved(points.tolist(), first_child.tolist(), nodes.tolist(), feature, bit)
        descend(points, nodes, first_child, feature, bit, counts)
        assert nodes.tolist() == expected
        assert counts.tolist() == [sum(x == c for x in expected) if c >= 3 else 0 for c in range(7)]

    def test_levels_are_next_to_one_another(self) -> None:
        levels = tree_of(self.grow(np.random.default_rng(8).integers(0, LATTICE, (300, 2))), 2).levels
        assert all(a <= b for a, b in pairwise(levels.tolist()))
