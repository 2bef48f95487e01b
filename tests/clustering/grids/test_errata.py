"""Test each entry of docs/errata.md on Zhang et al. 2023: the printed form fails, and its replacement holds."""

from math import exp, expm1, log, log2, sqrt

import numpy as np
import pytest

from clustering.grids.adaptive_cells import CellEstimates, uniform
from clustering.grids.adaptive_grid_paper import merge_and_split
from clustering.grids.adaptive_grid_tree import grow
from clustering.grids.cell_regions import face_pairs
from clustering.grids.uniform_grid_paper import DenseShare, granularity
from clustering.rounds.decoders import decoder
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.mechanisms import design
from sfumato.sizing.grids import MAX_PRINTED_CELLS, most_printed_cells, uniform_grid_cells
from sfumato.sizing.rounds import DENSE_SHARE, Z
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Feature,
    GridEncoding,
    Participation,
    RoundSpec,
    UniformGrid,
)
from tests.clustering.local_plans import price, run

XY = (Feature("x", 0, 1), Feature("y", 0, 1))


def planned_rounds_of(params, points):
    """Return the rounds of a plan over these points."""
    return run(params, points)[1].specs


def blob(n):
    return np.random.default_rng(1).normal(0.3, 0.05, (n, 2)).clip(0, 1)


class TestVariance:
    def test_of_the_paper_is_that_of_a_frequency_and_not_of_a_number_of_people(self):
        n, k, epsilon = 2000, 16, 1.0
        printed = (k - 2 + exp(epsilon)) / (n * expm1(epsilon) ** 2)
        spec = RoundSpec(XY, GridEncoding((4, 4)), design("grr", k, 10**9))
        reading, points = decoder(spec.mechanism), np.full((n, 2), 0.1)  # the other 15 cells are empty
        draws = np.zeros(n, dtype=np.uint64)
        tallies = [collect(spec, points, SeededEntropy(seed), draws).tally for seed in range(200)]
        frequencies = np.array([reading.frequencies(tally)[0][1:] for tally in tallies])
        assert (frequencies**2).mean() == pytest.approx(printed, rel=0.15)
        assert ((n * frequencies) ** 2).mean() == pytest.approx(n**2 * printed, rel=0.15)
        assert reading.zero_variance / n == pytest.approx(printed, rel=1e-9)


class TestGridSize:
    @pytest.mark.parametrize("epsilon", [1, 2, 4])
    def test_mdee_drops_a_term_of_the_variance(self, epsilon):
        k = 16
        exact = decoder(design("grr", k, epsilon * 10**9)).zero_variance
        mdee = k / expm1(epsilon) ** 2
        assert (exact - mdee) * expm1(epsilon) ** 2 == pytest.approx(exp(epsilon) - 2, rel=1e-6)

    @staticmethod
    def printed(n, epsilon, d, r):
        """Return the granularity of theorem 1 as printed."""
        return (1 / (2 * n**2 * expm1(epsilon) ** 2 * r ** (-1 / d))) ** (1 / (d + 1))

    def test_theorem_1_asks_for_two_million_cells_for_15000_people(self):
        m = self.printed(15_000, 1, 2, 0.3)
        assert m == pytest.approx(7e-4, rel=0.1)
        assert 1 / m**2 > 1.5e6

    def test_theorem_1_cannot_give_the_granularity_of_the_papers_own_table(self):
        possible = [self.printed(300_000, 1, 24, r) for r in np.geomspace(1e-9, 1, 50)]
        assert min(possible) > 0.3  # the table has .014

    def test_theorem_1_as_shares_of_the_people_is_the_minimum_of_the_sum_of_both_errors(self):
        n, d, r, epsilon = 15_000, 2, 0.3, 1
        m = granularity(DenseShare(n, r), epsilon * 10**9, d)

        def msm(m):
            return 1 / (n * expm1(epsilon) ** 2 * m**d) + 2 * d * m * r ** (-1 / d)

        assert msm(m) < min(msm(0.99 * m), msm(1.01 * m))
        assert 10 < 1 / m < 100

    def test_theorem_1_is_limited_to_a_possible_size(self):
        assert most_printed_cells(2) ** 2 == MAX_PRINTED_CELLS
        assert 1 / granularity(DenseShare(10**9, 1.0), 32 * 10**9, 2) > most_printed_cells(2)

    @pytest.mark.parametrize("n", [15_000, 150_000])
    def test_sound_grids_have_dense_cells_that_stand_out(self, n):
        k = uniform_grid_cells(2, n, 10**9) ** 2
        v = decoder(design("auto", k, 10**9)).zero_variance
        assert k <= sqrt(n / v) / (Z * DENSE_SHARE)


class TestFeedback:
    def test_theorem_2_is_met_by_a_feedback_that_makes_the_error_grow(self):
        c_1, c_2, d, r, epsilon = 1, 1, 2, 0.95, 1.0
        assert c_1 <= epsilon / log(1 + epsilon * sqrt((1 + c_2 * d * log(2)) * (1 - r))) - c_2
        before = 1 / expm1(epsilon) ** 2
        after = (r / 2 ** (c_1 * d) + (1 - r) * 2 ** (c_2 * d)) / expm1(epsilon / (c_1 + c_2)) ** 2
        assert after > 2 * before

    def test_theorem_3_leaves_no_height_at_all(self):
        for r in np.linspace(0.01, 1, 30):
            for m in np.geomspace(1e-4, 0.25, 30):
                assert (1 + log(1 / m)) / (1 - r + 2 * log(2)) < log2(1 / m)

    def test_theorem_3_is_empty_once_h_times_the_sparse_share_exceeds_one(self):
        for m, r in ((0.1, 0.5), (0.01, 0.8), (0.3, 0.3)):
            height = log2(1 / m)  # its lower end
            assert height * (1 - r) > 1
            assert (1 + log(1 / m)) / (1 - r + log(2)) < height  # even in one feature

    def test_theorem_4_rests_on_the_split_of_the_budget(self):
        n, h, k = 150_000, 4, 64

        def variance(epsilon, n):
            return decoder(design("auto", k, round(epsilon * 10**9))).zero_variance / n

        assert variance(1, n / h) < variance(1 / h, n)  # the comparison of the theorem
        shares = [
            (s.participation.hi - s.participation.lo) / 2**64
            for s in planned_rounds_of(AdaptiveGridIterative(epsilon=1, passes=h), blob(5000))
        ]
        assert [variance(1, n * share) for share in shares] == pytest.approx([variance(1, n / h)] * h)

    def test_algorithm_2_splits_a_sparse_cell_only_beside_a_dense_sibling(self):
        empty = np.zeros(16, dtype=bool)
        assert merge_and_split(uniform(2, 2), empty, 3).levels.tolist() == [2] * 16
        dense = empty.copy()
        dense[0] = True
        assert merge_and_split(uniform(2, 2), dense, 3).levels.tolist() == [2] + [3] * 12 + [2] * 12

    @pytest.mark.parametrize(("variant", "more"), [("sound", 0), ("paper", 2)])
    @pytest.mark.parametrize("passes", [3, 4])
    def test_algorithm_2_ends(self, variant, more, passes):
        found = planned_rounds_of(AdaptiveGridIterative(epsilon=1, passes=passes, variant=variant), blob(5000))
        assert len(found) == passes + more

    def test_algorithm_3_stops_at_coarse_cells_where_people_are_and_the_sound_tree_does_not(self):
        points = blob(100_000)
        params = {"epsilon": 8, "height": 5}
        printed = simulate(AdaptiveGridTree(**params, variant="paper"), points, seed=1).diagnostics["levels"]
        sound = simulate(AdaptiveGridTree(**params, clusters=1), points, seed=1).diagnostics["levels"]
        assert printed[1] >= 1  # the quarter with all people is denser than the mean
        assert sound[5] >= 16

    def test_even_cells_are_where_the_sound_tree_stops(self):
        history, partition = CellEstimates(2), uniform(2, 3)
        reading = decoder(design("auto", 64, 4 * 10**9))
        history.add(partition, np.full(64, 1 / 64), reading, 10**6)
        assert grow(history.reconcile(3), 3).levels.tolist() == [1] * 4


class TestAggregation:
    def test_equal_cells_that_share_a_face_are_as_far_apart_as_the_threshold(self):
        m = 0.25
        distance = (1.5 - 0.5) * m  # between the centres of neighbours
        assert not distance < m
        assert [0, 1] in face_pairs(uniform(2, 2).cell_map()).tolist()

    def test_the_printed_child_has_no_case_where_the_centres_are_level(self):
        c_i, c_j, m_j, k_over_2 = 0.5, 0.5, 0.25, 1.0
        k = abs(c_i - c_j) / m_j
        cases = [k < -k_over_2, k < 0 and k >= -k_over_2, k > 0 and k <= k_over_2, k > k_over_2]
        assert not any(cases)

    def test_a_fine_cell_is_joined_to_the_coarse_one_it_touches_at_a_face(self):
        cells = np.array([[0, 0, 1, 2], [0, 0, 3, 4], [5, 5, 6, 6], [5, 5, 6, 6]])
        pairs = face_pairs(cells).tolist()
        assert [0, 1] in pairs
        assert [0, 3] in pairs
        assert [0, 6] not in pairs  # a corner


class TestBudget:
    @pytest.mark.parametrize("algorithm", [UniformGrid, AdaptiveGridIterative, AdaptiveGridTree])
    @pytest.mark.parametrize("variant", ["sound", "paper"])
    def test_no_device_spends_more_than_the_epsilon(self, algorithm, variant):
        found = planned_rounds_of(algorithm(epsilon=1.5, variant=variant), blob(5000))
        assert 1.5e9 - 100 <= price(found) <= 1.5e9

    def test_t_passes_at_epsilon_2_each_would_cost_more_than_declared(self):
        found = planned_rounds_of(AdaptiveGridIterative(epsilon=1.5, passes=3, variant="paper"), blob(5000))
        loop = [spec.mechanism.epsilon_nano() for spec in found[1:-1]]
        assert sum(loop) <= 0.5e9  # epsilon_2, as declared
        assert [spec.participation for spec in found] == [Participation()] * 5
        as_printed = 0.5 + 3 * 0.5 + 0.5
        assert as_printed > 1.5

    def test_partition_has_less_variance_than_a_split_of_the_epsilon(self):
        def variance(epsilon, n):
            return decoder(design("auto", 64, round(epsilon * 10**9))).zero_variance / n

        assert variance(1, 150_000 / 3) < 0.5 * variance(1 / 3, 150_000)
