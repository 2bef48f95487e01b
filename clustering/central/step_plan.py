"""How `gated_grid_kmeans` divides epsilon and delta above four features, by public numbers and a noisy count."""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from clustering.central.budget import split
from clustering.central.gated_grid import Task
from clustering.central.private_lloyd import absolute, euclidean
from clustering.concentrated_block import deviation_of
from clustering.curator import Curator, Shares
from sfumato.concentrated import rho_of
from sfumato.sizing.records import ONE_MEAN_BELOW

STEP = (17, 2, 1)  # of a step: for the sums, the counts and the sizes

# u is N epsilon / d.
U_OF_A_STEP = 10.0  # u of each cluster that a step is worth
MAX_STEPS = 8
STEPS_SHARE = ((1, 65), (3, 75), (MAX_STEPS, 88))  # percent of epsilon that up to so many steps take

# Noise of a concentrated step grows with the root of their number only, so there are many: up to so many plain ones
# stand for so many, which take so many percent of epsilon.
CONCENTRATED = ((1, 4, 85), (MAX_STEPS, 8, 92))
LESS_NOISE = 1.2  # times less, at least: seeds get less of epsilon, and delta is not spent for nothing


class Budget(NamedTuple):
    """What seeds and steps may cost."""

    epsilon_nano: int
    delta_atto: int


class StepPlan(NamedTuple):
    """What is asked."""

    to_tree: int  # nano-epsilon; 0: one centre, which needs no seeds
    to_steps: int  # nano-epsilon
    delta_atto: int  # 0: the steps cost pure epsilon
    parts: Sequence[Shares]  # of each step, in nano-epsilon, or in pico-rho
    noise: float  # of a sum of residuals over all steps, in root mean square distances

    @property
    def route(self) -> str:
        concentrated = "concentrated " * bool(self.delta_atto)
        if self.to_tree == 0:
            return f"{concentrated}one mean"
        return f"tree and {len(self.parts)} {concentrated}step{'s' * (len(self.parts) > 1)}"


def step_plan(task: Task, budget: Budget, curator: Curator) -> StepPlan:
    """The plan with less noise, by enough; without a delta there is one.

    Raises
    ------
    InvalidSpec
        An epsilon too small to be divided.
    """
    plain = _plain(task, budget.epsilon_nano, curator)
    concentrated = _concentrated(task, budget, len(plain.parts), curator)
    if concentrated is None or plain.noise < LESS_NOISE * concentrated.noise:
        return plain
    return concentrated


def _plain(task: Task, epsilon_nano: int, curator: Curator) -> StepPlan:
    """Steps with Laplace noise, as many as there are records for."""
    u = task.n_records * task.epsilon / curator.n_features
    n_steps = min(max(round(u / task.n_clusters / U_OF_A_STEP), 1), MAX_STEPS)
    if task.n_clusters == 1:
        to_tree, to_steps = 0, epsilon_nano
        n_steps = 1 if u < ONE_MEAN_BELOW else n_steps
    else:
        percent = next(share for most, share in STEPS_SHARE if n_steps <= most)
        to_tree, to_steps = split(epsilon_nano, 100 - percent, percent)
    parts = _parts(to_steps, n_steps)
    noise = curator.deviation(parts[0].residuals) * absolute(curator.n_features).first / sqrt(n_steps)
    return StepPlan(to_tree, to_steps, 0, parts, noise)


def _concentrated(task: Task, budget: Budget, n_plain: int, curator: Curator) -> StepPlan | None:
    """Steps with Gaussian noise, where there would be `n_plain` others; none where nothing pays for them."""
    if budget.delta_atto == 0:
        return None
    n_steps, percent = next((n, share) for most, n, share in CONCENTRATED if n_plain <= most)
    if task.n_clusters == 1:
        to_tree, to_steps = 0, budget.epsilon_nano
    else:
        to_tree, to_steps = split(budget.epsilon_nano, 100 - percent, percent)
    rho_pico = rho_of(to_steps, budget.delta_atto)
    if rho_pico < n_steps * sum(STEP):
        return None
    parts = _parts(rho_pico, n_steps)
    deviation = deviation_of(parts[0].residuals, curator.max_per_user)
    noise = deviation * euclidean(curator.n_features).first / sqrt(n_steps)
    return StepPlan(to_tree, to_steps, budget.delta_atto, parts, noise)


def _parts(cost: int, n_steps: int) -> Sequence[Shares]:
    parts = split(cost, *STEP * n_steps)
    return [Shares(*parts[3 * t : 3 * t + 3]) for t in range(n_steps)]
