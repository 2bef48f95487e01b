"""Test how `private_kmeans` divides epsilon above four features without a delta."""

import numpy as np
import pytest

from clustering.central.cells import Domain
from clustering.central.private_kmeans.gated_grid import ProblemSize
from clustering.central.private_kmeans.private_lloyd import LloydFit, l1_scale
from clustering.central.private_kmeans.pure_kmeans import StepPlan, merge_clusters, plan_steps
from clustering.random import PublicWords
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO


def planned(d: int, epsilon_nano: int, *, n: float = 20_000, k: int = 8) -> StepPlan:
    return plan_steps(ProblemSize(n, k, epsilon_nano / NANO), epsilon_nano, d)


class TestStepPlan:
    @pytest.mark.parametrize("k", [1, 8])
    @pytest.mark.parametrize("epsilon_nano", [10_007, NANO // 3, 32 * NANO])
    def test_parts_spend_all_epsilon(self, epsilon_nano: int, k: int) -> None:
        plan = planned(12, epsilon_nano, k=k)
        assert plan.to_tree + sum(sum(shares) for shares in plan.parts) == epsilon_nano
        assert (plan.to_tree == 0) == (k == 1)

    def test_number_of_steps_grows_with_records(self) -> None:
        counts = [len(planned(12, NANO, n=n).parts) for n in (1000, 3000, 6000, 10**6)]
        assert counts == [1, 3, 5, 5]

    def test_first_of_many_steps_have_more_centres(self) -> None:
        few, many = planned(12, NANO, n=3000), planned(12, NANO)
        assert (few.n_wide, many.n_wide) == (0, 3)
        costs = [sum(shares) for shares in many.parts]
        assert costs == sorted(costs)
        shares_of_counts = [shares.counts / cost for shares, cost in zip(many.parts, costs, strict=True)]
        assert shares_of_counts == pytest.approx([0.25] * 4 + [0.1], rel=1e-6)
        assert sum(shares.counts for shares in few.parts) < 0.11 * sum(sum(shares) for shares in few.parts)


class TestMerger:
    def test_noisy_counts_do_not_hide_a_cluster(self) -> None:
        """Two of five centres share a cluster. The noise makes the count of another cluster negative."""
        centres = np.array([[0.1] * 5, [0.2] * 5, [0.5] * 5, [0.9, 0.1, 0.1, 0.1, 0.1], [0.1, 0.9, 0.9, 0.9, 0.9]])
        counts = np.array([600.0, 400.0, -300.0, 900.0, 1500.0])
        fit = LloydFit(centres, np.zeros(5), counts, 400.0**2, np.full(5, 0.05))
        start = merge_clusters(fit, 4, PublicWords(0))
        distances = np.sqrt(((start.centres[:, None] - centres) ** 2).sum(axis=2))
        assert (distances.min(axis=0) < 1e-9).tolist() == [False, False, True, True, True]
        assert start.masses.min() > 0
        merged = int(distances[:, 0].argmin())
        assert start.spreads[merged] > 0.1 > np.delete(start.spreads, merged).max()

    def test_rejects_indivisible_epsilon(self) -> None:
        with pytest.raises(InvalidSpec, match="too small"):
            planned(30, 5)


class TestNorms:
    @pytest.mark.parametrize("d", [5, 16, 64])
    def test_scales_match_normal_residuals(self, d: int) -> None:
        residuals = np.random.default_rng(d).normal(0, 1, (20_000, d))
        spread = np.sqrt((residuals**2).sum(axis=1).mean())
        lengths = np.abs(residuals).sum(axis=1) / spread
        norm = l1_scale(Domain(d))
        assert lengths.mean() == pytest.approx(norm.mean, rel=0.06)
        assert (lengths <= norm.first).mean() > 0.9
        assert norm.longest == pytest.approx(d)
        assert l1_scale(Domain(d, is_ball=True)).longest == pytest.approx(d**0.5)
