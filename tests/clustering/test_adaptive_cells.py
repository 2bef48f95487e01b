"""Cells of different levels: their geometry, what rounds say of them together, and the regions they make."""

import itertools

import numpy as np
import pytest

from clustering.adaptive_cells import (
    History,
    Partition,
    beside,
    families,
    merge,
    partition_of,
    split,
    uneven,
    uniform,
)
from clustering.cell_regions import cell_bumps, cell_graph, cell_regions, face_pairs
from clustering.decoders import decoder
from clustering.errors import UnfitRound
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
    """Lower corner and side of each cell, in finest boxes, one by one from the bits of its place."""
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
    @pytest.mark.parametrize("seed", range(3))
    def test_published_cells_are_the_cells(self, d, seed):
        partition = random_partition(d, seed)
        again, symbols = partition_of(partition.encoding())
        assert same(again, partition)
        assert sorted(symbols) == list(range(len(symbols)))

    def test_of_one_level_is_published_as_a_plain_grid_in_its_own_order(self):
        encoding = uniform(2, 1).encoding()
        assert encoding == GridEncoding((2, 2))
        partition, symbols = partition_of(GridEncoding((4, 4)))
        map_ = partition.cell_map()
        assert symbols[map_].tolist() == np.arange(16).reshape(4, 4).tolist()

    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_map_has_every_cell_where_its_place_says(self, d):
        partition = random_partition(d, 7)
        map_ = partition.cell_map()
        for number, (corner, side) in enumerate(corners(partition)):
            inside = map_[tuple(slice(c, c + side) for c in corner)]
            assert (inside == number).all()
        assert np.bincount(map_.ravel()) / map_.size == pytest.approx(partition.volumes)

    @pytest.mark.parametrize(
        "encoding",
        [
            GridEncoding((4, 8)),
            GridEncoding((3, 3)),
            GridEncoding((1024, 1024)),
            ShiftedGridEncoding(2, 4, 2),
            TreeGridEncoding(1, (1, *range(2, 11), 10)),
        ],
    )
    def test_other_rounds_are_refused(self, encoding):
        with pytest.raises(UnfitRound, match="dyadic"):
            partition_of(encoding)


class TestSplitAndMerge:
    def test_split_puts_the_halves_in_place(self):
        partition = split(uniform(2, 1), np.array([False, True, False, False]))
        assert partition.levels.tolist() == [1, 2, 2, 2, 2, 1, 1]
        assert partition.places.tolist() == [0, 4, 5, 6, 7, 2, 3]

    @pytest.mark.parametrize("seed", range(4))
    def test_merge_undoes_split(self, seed):
        partition = random_partition(2, seed)
        chosen = np.random.default_rng(seed).random(len(partition.levels)) < 0.3
        parts = split(partition, chosen)
        assert same(merge(parts, np.repeat(chosen, np.where(chosen, 4, 1))), partition)

    def test_families_that_are_not_whole_or_not_all_chosen_stay(self):
        partition = split(uniform(2, 1), np.array([False, True, False, False]))
        assert same(merge(partition, np.array([True, False, False, False, False, True, True])), partition)
        assert same(merge(partition, np.array([False, True, True, True, False, False, False])), partition)

    def test_siblings_are_those_of_one_parent_and_level(self):
        partition = split(uniform(2, 1), np.array([False, True, False, False]))
        family = families(partition)
        assert family[0] == family[5] == family[6] != family[1] == family[2] == family[3] == family[4]
        marked = np.array([True, True, False, False, False, False, False])
        assert beside(partition, marked).tolist() == [False, False, True, True, True, True, True]


class TestFaces:
    @pytest.mark.parametrize("d", [1, 2, 3])
    @pytest.mark.parametrize("seed", range(3))
    def test_pairs_are_those_that_share_a_face_whatever_their_levels(self, d, seed):
        partition = random_partition(d, seed, depth=4 if d < 3 else 3)
        expected = []
        for (i, (a, s)), (j, (b, t)) in itertools.combinations(enumerate(corners(partition)), 2):
            gap = [max(a[k], b[k]) - min(a[k] + s, b[k] + t) for k in range(d)]  # < 0: they overlap there
            if sorted(gap)[-1] == 0 and sum(g == 0 for g in gap) == 1:
                expected.append([i, j])
        assert face_pairs(partition.cell_map()).tolist() == expected


def measured(partition, seed, n_reports=1000):
    rng = np.random.default_rng(seed)
    reading = decoder(design("auto", max(2, len(partition.levels)), 10**9))
    estimates = rng.dirichlet(np.ones(len(partition.levels))) + rng.normal(0, 0.05, len(partition.levels))
    return partition, estimates, reading, n_reports


def least_squares(rounds, leaves):
    """Estimates of the leaves and their covariance, by the normal equations under sum = 1."""
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


class TestHistory:
    @pytest.mark.parametrize("d", [1, 2])
    @pytest.mark.parametrize("seed", range(4))
    def test_estimates_and_variances_are_those_of_least_squares(self, d, seed):
        coarse, fine = uniform(d, 1), uniform(d, 3)
        rounds = [measured(coarse, seed), measured(fine, seed + 1, 3000), measured(uniform(d, 2), seed + 2, 500)]
        history = History(d)
        for each in rounds:
            history.add(*each)
        found, covariance = least_squares(rounds, fine)
        estimates, variances = history.reconcile(3).of(fine)
        assert estimates == pytest.approx(found, abs=1e-12)
        assert variances == pytest.approx(np.diag(covariance), rel=1e-9, abs=1e-15)
        labels = np.random.default_rng(seed).integers(0, 3, len(fine.levels))
        labels[:3] = [0, 1, 2]
        sums = np.array([[labels == r] for r in range(3)], dtype=float)[:, 0]
        assert history.reconcile(3).sum_variances(fine, labels) == pytest.approx(
            np.diag(sums @ covariance @ sums.T), rel=1e-9, abs=1e-15
        )

    @pytest.mark.parametrize("seed", range(4))
    def test_cells_asked_about_in_some_rounds_count_in_all(self, seed):
        first = random_partition(2, seed, depth=2)
        second = split(first, first.levels == 2)
        rounds = [measured(first, seed), measured(second, seed + 1, 4000)]
        history = History(2)
        for each in rounds:
            history.add(*each)
        found, covariance = least_squares(rounds, second)
        estimates, variances = history.reconcile(second.depth).of(second)
        assert estimates == pytest.approx(found, abs=1e-12)
        assert variances == pytest.approx(np.diag(covariance), rel=1e-9, abs=1e-15)

    def test_parts_add_up_and_what_nobody_was_asked_about_is_spread_evenly(self):
        history = History(1)
        history.add(*measured(uniform(1, 1), 1))
        reconciled = history.reconcile(3)
        for finer, coarser in itertools.pairwise(reversed(reconciled.values)):
            assert finer.reshape(-1, 2).sum(axis=1) == pytest.approx(coarser)
        assert reconciled.values[0].tolist() == [1.0]
        assert reconciled.values[3][:4] == pytest.approx([reconciled.values[1][0] / 4] * 4)

    def test_a_round_without_reports_is_no_news(self):
        history = History(1)
        history.add(*measured(uniform(1, 2), 1))
        before = history.reconcile(2).values[2]
        history.add(*measured(uniform(1, 2), 2, n_reports=0))
        assert history.reconcile(2).values[2].tolist() == before.tolist()
        assert history.n_reports == 1000

    def test_nothing_known_at_all_is_even(self):
        assert History(2).reconcile(1).values[1].tolist() == [0.25] * 4


class TestUneven:
    def test_is_zero_where_cells_differ_as_noise_does_and_grows_with_them(self):
        rng = np.random.default_rng(1)
        noise = uneven(rng.normal(0, 2, (20_000, 4)), np.full((20_000, 4), 4.0))
        assert noise.mean() == pytest.approx(0, abs=0.05)
        assert noise.std() == pytest.approx(1, abs=0.05)
        assert uneven(np.array([[0.0, 0, 0, 9]]), np.ones((1, 4)))[0] > 20

    def test_equal_cells_without_noise_are_even_and_others_are_not(self):
        assert uneven(np.ones((1, 2)), np.zeros((1, 2)))[0] < 0
        assert uneven(np.array([[0.0, 1.0]]), np.zeros((1, 2)))[0] == np.inf


def plain_bumps(mass, volume, pairs):
    """Excess of each peak by definition: the components above every level, as sets."""
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
    @pytest.mark.parametrize("seed", range(6))
    def test_bumps_are_those_of_the_definition(self, seed):
        partition = random_partition(2, seed)
        mass = np.random.default_rng(seed).normal(0.01, 0.02, len(partition.levels))
        pairs = face_pairs(partition.cell_map())
        found = cell_bumps(cell_graph(mass, partition.volumes, pairs), core_density=-np.inf)
        expected = {p: e for p, e in plain_bumps(mass, partition.volumes, pairs.tolist()).items() if e > 0}
        assert dict(zip(found.peaks[1:].tolist(), found.excess[1:], strict=True)) == pytest.approx(expected)
        assert (np.diff(found.excess[1:]) <= 0).all()
        assert found.excess[0] == np.inf
        assert found.mass[0] == pytest.approx(mass.sum())

    def test_two_bumps_are_parted_at_the_valley_between_them(self):
        mass = np.array([1.0, 5, 2, 1, 2, 9, 3, 0])
        graph = cell_graph(mass, np.full(8, 1 / 8), face_pairs(np.arange(8)))
        found = cell_bumps(graph)
        assert found.peaks.tolist() == [5, 1]
        assert found.excess[1] == pytest.approx(5)  # 1 + 5 + 2 on the cells above 1, less 3 times 1
        assert cell_regions(graph, found.peaks).tolist()[:3] == [1, 1, 1]
        assert cell_regions(graph, found.peaks).tolist()[4:] == [0, 0, 0, 0]

    def test_only_dense_cores_count_where_that_is_asked(self):
        mass = np.array([0.5, 0.0, 0.1, 0.0, 0.4])
        graph = cell_graph(mass, np.full(5, 1 / 5), face_pairs(np.arange(5)))
        assert cell_bumps(graph).peaks.tolist() == [0, 4, 2]
        assert cell_bumps(graph, core_density=1.0).peaks.tolist() == [0, 4]

    def test_cells_that_touch_at_a_corner_alone_are_apart(self):
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


def test_partition_of_one_level_is_whole():
    assert same(Partition(2, np.array([1] * 4), np.arange(4)), uniform(2, 1))
