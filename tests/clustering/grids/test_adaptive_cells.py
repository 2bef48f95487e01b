"""Test cells of different levels: geometry, joint estimates of several rounds, unevenness and regions."""

import itertools

import numpy as np
import pytest

from clustering.errors import UnfitRound
from clustering.grids.adaptive_cells import (
    CellEstimates,
    families,
    has_marked_sibling,
    merge,
    partition_of,
    split,
    unevenness,
    uniform,
)
from clustering.grids.cell_regions import cell_bumps, cell_graph, cell_regions, face_pairs
from clustering.rounds.decoders import decoder
from sfumato.mechanisms import design
from sfumato.specs import GridEncoding, ShiftedGridEncoding, TreeGridEncoding


def random_partition(n_features, seed, depth=4):
    rng = np.random.default_rng(seed)
    partition = uniform(n_features, 1)
    for level in range(1, depth):
        partition = split(partition, (partition.levels == level) & (rng.random(len(partition.levels)) < 0.5))
    return partition


def same(a, b):
    return np.array_equal(a.levels, b.levels) and np.array_equal(a.places, b.places)


def corners(partition):
    """Return the lower corner and side of each cell, in finest boxes, from the bits of its place."""
    d, found = partition.n_features, []
    for level, place in zip(partition.levels.tolist(), partition.places.tolist(), strict=True):
        corner = [0] * d
        for bit in range(level * d):
            if place >> bit & 1:
                corner[d - 1 - bit % d] |= 1 << bit // d
        side = 1 << partition.depth - level
        found.append(([c * side for c in corner], side))
    return found


class TestPartition:
    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_an_encoding_gives_the_same_cells(self, d):
        partition = random_partition(d, seed=d)
        again, symbols = partition_of(partition.encoding())
        assert same(again, partition)
        assert sorted(symbols) == list(range(len(symbols)))

    def test_one_level_is_a_plain_grid(self):
        assert uniform(2, 1).encoding() == GridEncoding((2, 2))
        partition, symbols = partition_of(GridEncoding((4, 4)))
        map_ = partition.cell_map()
        assert symbols[map_].tolist() == np.arange(16).reshape(4, 4).tolist()

    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_the_map_has_each_cell_at_its_place(self, d):
        partition = random_partition(d, 7)
        map_ = partition.cell_map()
        for number, (corner, side) in enumerate(corners(partition)):
            inside = map_[tuple(slice(c, c + side) for c in corner)]
            assert (inside == number).all()
        assert np.bincount(map_.ravel()) / map_.size == pytest.approx(partition.volumes)

    @pytest.mark.parametrize(
        "encoding",
        [
            GridEncoding((4, 8)),  # unequal sides
            GridEncoding((3, 3)),
            GridEncoding((1024, 1024)),
            ShiftedGridEncoding(2, 4, 2),
            TreeGridEncoding(1, (1, *range(2, 11), 10)),
        ],
    )
    def test_refuses_other_encodings(self, encoding):
        with pytest.raises(UnfitRound, match="dyadic"):
            partition_of(encoding)


class TestSplitAndMerge:
    def test_split_replaces_a_cell_by_its_parts(self):
        partition = split(uniform(2, 1), np.array([False, True, False, False]))
        assert partition.levels.tolist() == [1, 2, 2, 2, 2, 1, 1]
        assert partition.places.tolist() == [0, 4, 5, 6, 7, 2, 3]

    def test_merge_undoes_split(self):
        partition = random_partition(2, seed=1)
        chosen = np.random.default_rng(1).random(len(partition.levels)) < 0.3
        parts = split(partition, chosen)
        assert same(merge(parts, np.repeat(chosen, np.where(chosen, 4, 1))), partition)

    def test_merge_keeps_incomplete_families(self):
        partition = split(uniform(2, 1), np.array([False, True, False, False]))
        assert same(merge(partition, np.array([True, False, False, False, False, True, True])), partition)
        assert same(merge(partition, np.array([False, True, True, True, False, False, False])), partition)

    def test_siblings_have_one_parent_and_level(self):
        partition = split(uniform(2, 1), np.array([False, True, False, False]))
        family = families(partition)
        assert family[0] == family[5] == family[6] != family[1] == family[2] == family[3] == family[4]
        marked = np.array([True, True, False, False, False, False, False])
        assert has_marked_sibling(partition, marked).tolist() == [False, False, True, True, True, True, True]


class TestFaces:
    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_pairs_share_a_face_at_any_levels(self, d):
        partition = random_partition(d, seed=0, depth=4 if d < 3 else 3)
        expected = []
        for (i, (a, s)), (j, (b, t)) in itertools.combinations(enumerate(corners(partition)), 2):
            gap = [max(a[k], b[k]) - min(a[k] + s, b[k] + t) for k in range(d)]  # below 0 where they overlap
            if sorted(gap)[-1] == 0 and sum(g == 0 for g in gap) == 1:
                expected.append([i, j])
        assert face_pairs(partition.cell_map()).tolist() == expected


def measured(partition, seed, n_reports=1000):
    rng = np.random.default_rng(seed)
    reading = decoder(design("auto", max(2, len(partition.levels)), 10**9))
    estimates = rng.dirichlet(np.ones(len(partition.levels))) + rng.normal(0, 0.05, len(partition.levels))
    return partition, estimates, reading, n_reports


def least_squares(rounds, leaves):
    """Return the estimates of the leaves and their covariance, from the normal equations under sum = 1."""
    n_leaves, rows, values, weights = len(leaves.levels), [], [], []
    d = leaves.n_features
    for partition, estimates, reading, n in rounds:
        k = len(estimates)
        precision = n / (reading.zero_variance + (reading.slope_variance + 1 - 1 / k) / k)
        for level, place, estimate in zip(partition.levels, partition.places, estimates, strict=True):
            below = leaves.levels >= level
            rows.append(below & (leaves.places >> np.where(below, leaves.levels - level, 0) * d == place))
            values.append(estimate)
            weights.append(precision)
    a, y, w = np.array(rows, dtype=float), np.array(values), np.array(weights)
    normal = a.T @ (w[:, None] * a)
    bordered = np.block([[normal, np.ones((n_leaves, 1))], [np.ones((1, n_leaves)), np.zeros((1, 1))]])
    inverse = np.linalg.inv(bordered)
    solution = inverse @ np.concatenate([a.T @ (w * y), [1.0]])
    return solution[:n_leaves], inverse[:n_leaves, :n_leaves]


class TestEstimates:
    @pytest.mark.parametrize("d", [1, 2])
    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("levels", ["uniform", "adapted"])
    def test_equal_least_squares(self, d, seed, levels):
        if levels == "uniform":
            leaves = uniform(d, 3)
            rounds = [measured(uniform(d, level), seed + level, n) for level, n in ((1, 1000), (3, 3000), (2, 500))]
        else:
            first = random_partition(d, seed, depth=2)
            leaves = split(first, first.levels == 2)
            rounds = [measured(first, seed), measured(leaves, seed + 1, 4000)]
        history = CellEstimates(d)
        for each in rounds:
            history.add(*each)
        expected, covariance = least_squares(rounds, leaves)
        reconciled = history.reconcile(leaves.depth)
        estimates, variances = reconciled.of(leaves)
        assert estimates == pytest.approx(expected, abs=1e-12)
        assert variances == pytest.approx(np.diag(covariance), rel=1e-9, abs=1e-15)
        labels = np.arange(len(leaves.levels)) % 3
        sums = np.array([labels == r for r in range(labels.max() + 1)], dtype=float)
        assert reconciled.sum_variances(leaves, labels) == pytest.approx(
            np.diag(sums @ covariance @ sums.T), rel=1e-9, abs=1e-15
        )

    def test_parts_add_up_and_unmeasured_levels_are_even(self):
        history = CellEstimates(1)
        history.add(*measured(uniform(1, 1), 1))
        reconciled = history.reconcile(3)
        for finer, coarser in itertools.pairwise(reversed(reconciled.values)):
            assert finer.reshape(-1, 2).sum(axis=1) == pytest.approx(coarser)
        assert reconciled.values[0].tolist() == [1.0]
        assert reconciled.values[3][:4] == pytest.approx([reconciled.values[1][0] / 4] * 4)

    def test_a_round_without_reports_changes_nothing(self):
        history = CellEstimates(1)
        history.add(*measured(uniform(1, 2), 1))
        before = history.reconcile(2).values[2]
        history.add(*measured(uniform(1, 2), 2, n_reports=0))
        assert history.reconcile(2).values[2].tolist() == before.tolist()
        assert history.n_reports == 1000

    def test_no_rounds_give_an_even_density(self):
        assert CellEstimates(2).reconcile(1).values[1].tolist() == [0.25] * 4


class TestUnevenness:
    def test_is_a_standard_score_of_the_differences(self):
        rng = np.random.default_rng(1)
        noise = unevenness(rng.normal(0, 2, (20_000, 4)), np.full((20_000, 4), 4.0))
        assert noise.mean() == pytest.approx(0, abs=0.05)
        assert noise.std() == pytest.approx(1, abs=0.05)
        assert unevenness(np.array([[0.0, 0, 0, 9]]), np.ones((1, 4)))[0] > 20

    def test_without_noise_any_difference_is_significant(self):
        assert unevenness(np.ones((1, 2)), np.zeros((1, 2)))[0] < 0
        assert unevenness(np.array([[0.0, 1.0]]), np.zeros((1, 2)))[0] == np.inf


def plain_bumps(mass, volume, pairs):
    """Return the excess of each peak by definition: components above every level, as sets."""
    density, n = mass / volume, len(mass)
    near = {i: set() for i in range(n)}
    for a, b in pairs:
        near[a].add(b)
        near[b].add(a)
    home, members, ended = {}, {}, {}
    for cell in sorted(range(n), key=lambda i: -density[i]):
        groups = {home[j] for j in near[cell] if j in home}
        excess = {
            g: sum(mass[i] for i in members[g]) - sum(volume[i] for i in members[g]) * density[cell] for g in groups
        }
        stays = max(groups, key=lambda g: excess[g], default=cell)
        members.setdefault(stays, set()).add(cell)
        for g in groups - {stays}:
            ended[g] = excess[g]
            members[stays] |= members.pop(g)
        for i in members[stays]:
            home[i] = stays
    return ended


class TestRegions:
    @pytest.mark.parametrize("seed", range(3))
    def test_bumps_equal_the_definition(self, seed):
        partition = random_partition(2, seed)
        mass = np.random.default_rng(seed).normal(0.01, 0.02, len(partition.levels))
        pairs = face_pairs(partition.cell_map())
        found = cell_bumps(cell_graph(mass, partition.volumes, pairs), core_density=-np.inf)
        expected = {p: e for p, e in plain_bumps(mass, partition.volumes, pairs.tolist()).items() if e > 0}
        assert dict(zip(found.peaks[1:].tolist(), found.excess[1:], strict=True)) == pytest.approx(expected)
        assert (np.diff(found.excess[1:]) <= 0).all()
        assert found.excess[0] == np.inf
        assert found.mass[0] == pytest.approx(mass.sum())

    def test_the_valley_separates_two_bumps(self):
        mass = np.array([1.0, 5, 2, 1, 2, 9, 3, 0])
        graph = cell_graph(mass, np.full(8, 1 / 8), face_pairs(np.arange(8)))
        found = cell_bumps(graph)
        assert found.peaks.tolist() == [5, 1]
        assert found.excess[1] == pytest.approx(5)  # 1 + 5 + 2 in cells above 1, minus 3 times 1
        assert cell_regions(graph, found.peaks).tolist()[:3] == [1, 1, 1]
        assert cell_regions(graph, found.peaks).tolist()[4:] == [0, 0, 0, 0]

    def test_a_core_density_excludes_sparse_peaks(self):
        mass = np.array([0.5, 0.0, 0.1, 0.0, 0.4])
        graph = cell_graph(mass, np.full(5, 1 / 5), face_pairs(np.arange(5)))
        assert cell_bumps(graph).peaks.tolist() == [0, 4, 2]
        assert cell_bumps(graph, core_density=1.0).peaks.tolist() == [0, 4]

    def test_cells_with_a_common_corner_only_are_separate(self):
        mass = np.array([4.0, 0.5, 0.4, 3.0])
        graph = cell_graph(mass, np.full(4, 0.25), face_pairs(np.arange(4).reshape(2, 2)))
        found = cell_bumps(graph)
        assert found.peaks.tolist() == [0, 3]
        assert found.excess[1] == pytest.approx(2.5)

    def test_a_single_cell_is_one_region(self):
        graph = cell_graph(np.ones(1), np.ones(1), face_pairs(np.zeros((1, 1), dtype=np.int64)))
        found = cell_bumps(graph)
        assert found.peaks.tolist() == [0]
        assert cell_regions(graph, found.peaks).tolist() == [0]
