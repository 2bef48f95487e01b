"""How epsilon and delta are divided above four features: all of it, and by the noise that is less."""

import numpy as np
import pytest

from clustering.central.gated_grid import Task
from clustering.central.private_lloyd import absolute, euclidean
from clustering.central.step_plan import CONCENTRATED, LESS_NOISE, STEP, Budget, StepPlan, step_plan
from sfumato.accounting import ATTO, NANO
from sfumato.concentrated import rho_of
from sfumato.errors import InvalidSpec
from tests.clustering.central.journals import curator_of

DELTA = ATTO // 10**6


def planned(
    d: int, epsilon_nano: int, delta_atto: int = DELTA, *, n: float = 20_000, k: int = 8, max_per_user: int = 1
) -> StepPlan:
    curator = curator_of(np.zeros((0, d)), max_per_user=max_per_user)
    task = Task(n, k, epsilon_nano / NANO / max_per_user)
    return step_plan(task, Budget(epsilon_nano, delta_atto), curator)


def paid(plan: StepPlan) -> int:
    return sum(sum(shares) for shares in plan.parts)


class TestStepPlan:
    @pytest.mark.parametrize("k", [1, 8])
    @pytest.mark.parametrize("epsilon_nano", [10_007, NANO // 3, 32 * NANO])
    def test_plain_parts_are_all_of_epsilon(self, epsilon_nano: int, k: int) -> None:
        plan = planned(12, epsilon_nano, 0, k=k)
        assert plan.delta_atto == 0
        assert paid(plan) == plan.to_steps
        assert plan.to_tree + plan.to_steps == epsilon_nano
        assert (plan.to_tree == 0) == (k == 1)

    @pytest.mark.parametrize("k", [1, 8])
    def test_concentrated_parts_are_all_of_epsilon_and_of_what_rho_that_pays_for(self, k: int) -> None:
        plan = planned(30, NANO // 7, k=k)
        assert plan.delta_atto == DELTA
        assert len(plan.parts) == (8 if k == 1 else 4)  # with less of the epsilon, fewer
        assert paid(plan) == rho_of(plan.to_steps, DELTA)
        assert plan.to_tree + plan.to_steps == NANO // 7
        assert (plan.to_tree == 0) == (k == 1)

    def test_it_is_concentrated_where_that_is_less_noise(self) -> None:
        assert planned(16, NANO).delta_atto
        assert planned(5, NANO).delta_atto  # of eight steps
        assert planned(5, NANO, 100 * DELTA, n=500).delta_atto  # of four for one
        assert not planned(5, NANO, 10**6, n=500).delta_atto  # with a tiny delta

    @pytest.mark.parametrize("d", [5, 9, 24, 64])
    @pytest.mark.parametrize("epsilon_nano", [10**6, 10**8, NANO, 10 * NANO])
    def test_it_is_concentrated_for_less_noise_alone(self, d: int, epsilon_nano: int) -> None:
        with_delta, without = planned(d, epsilon_nano), planned(d, epsilon_nano, 0)
        assert with_delta == without or LESS_NOISE * with_delta.noise <= without.noise
        assert (with_delta == without) == (with_delta.delta_atto == 0)

    def test_users_with_several_records_change_no_choice(self) -> None:
        """Either noise grows with them."""
        for delta_atto in (10**6, 100 * DELTA):  # of which one is too little for a block
            alone, users = (planned(5, NANO, delta_atto, n=500 * m, max_per_user=m) for m in (1, 4))
            assert alone.delta_atto == users.delta_atto == delta_atto * (delta_atto > DELTA)
            assert users.noise == pytest.approx(4 * alone.noise)

    def test_what_pays_for_no_rho_is_plain(self) -> None:
        assert rho_of(1000, 1000) < CONCENTRATED[0][1] * sum(STEP)
        assert planned(30, 1000, 1000, n=1e9).delta_atto == 0

    def test_what_cannot_be_divided_is_refused(self) -> None:
        with pytest.raises(InvalidSpec, match="too small"):
            planned(30, 5)


class TestNorms:
    @pytest.mark.parametrize("d", [5, 16, 64])
    def test_they_are_those_of_normal_residuals(self, d: int) -> None:
        residuals = np.random.default_rng(d).normal(0, 1, (20_000, d))
        spread = np.sqrt((residuals**2).sum(axis=1).mean())
        for norm, order in ((absolute(d), 1), (euclidean(d), 2)):
            lengths = np.linalg.norm(residuals, order, axis=1) / spread
            assert lengths.mean() == pytest.approx(norm.mean, rel=0.06)
            assert (lengths <= norm.first).mean() > 0.9
            assert np.linalg.norm(np.ones(d), order) == pytest.approx(norm.longest)
