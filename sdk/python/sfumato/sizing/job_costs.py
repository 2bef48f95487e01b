"""Compute the cost of a job over records under Gaussian accounting."""

from sfumato.privacy.accountant import Cost, charge_mu2, most_mu2
from sfumato.sizing.feature_checks import split_check
from sfumato.sizing.private_bounds import plan_bounds
from sfumato.sizing.required_reports import GRID_FEATURES, affords_block
from sfumato.specs import AlgorithmParameters


def job_cost(params: AlgorithmParameters, n_features: int, max_per_user: int = 1) -> Cost:
    """Return the cost that a job reserves: epsilon, delta, and the most mu^2 that it can count.

    `private_kmeans` in more than four features spends a delta in one concentrated block. Up to four features, a noisy
    count decides between a block and pure queries, so that the job reserves mu^2 for both. An algorithm without a delta
    is pure.

    Raises
    ------
    InvalidSpec
        Epsilon is too small for private bounds.
    """
    epsilon_nano, delta_atto = params.epsilon_nano, params.delta_atto
    mu2 = most_mu2(epsilon_nano, delta_atto)
    if not params.definition.has_block or n_features <= GRID_FEATURES:
        return Cost(epsilon_nano, delta_atto, mu2)
    rest, check = split_check(params)
    if check is not None:
        mu2 = job_cost(rest, n_features, max_per_user).mu2_pico
        mu2 += charge_mu2(check.gaps, 0) + charge_mu2(check.histograms, 0)
    elif getattr(params, "bounds", "declared") == "private":
        plan = plan_bounds(params, n_features, max_per_user)
        if plan.has_block:
            mu2 = charge_mu2(plan.count_nano, 0) + charge_mu2(epsilon_nano - plan.count_nano, delta_atto)
    elif affords_block(epsilon_nano, delta_atto, max_per_user):
        mu2 = charge_mu2(epsilon_nano, delta_atto)
    return Cost(epsilon_nano, delta_atto, mu2)
