"""Cost of the check for irrelevant features, and the records that it needs."""

from math import ceil
from typing import NamedTuple, TypeVar

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import EPSILON_MIN_NANO, NANO
from sfumato.specs import AlgorithmParameters

GAPS, HISTOGRAMS = 3, 5  # per cent of ε for the gap counts and for the histograms
P = TypeVar("P", bound=AlgorithmParameters)

PER_FEATURE = 160.0  # N ε / d, with the ε of the check, below which it finds too little


class CheckPlan(NamedTuple):
    """The division of a job's ε between its clusters and the check, in nano-epsilon."""

    rest: int
    gaps: int
    histograms: int

    @property
    def cost(self) -> int:
        """Return the cost of the check."""
        return self.gaps + self.histograms

    def needed_records(self, n_features: int, max_per_user: int = 1) -> int:
        """Return the number of records that the check needs."""
        return ceil(PER_FEATURE * n_features * max_per_user * NANO / self.cost)


def plan_check(epsilon_nano: int) -> CheckPlan:
    """Return the division of ε. Raise InvalidSpec if it is too small."""
    gaps, histograms = epsilon_nano * GAPS // 100, epsilon_nano * HISTOGRAMS // 100
    plan = CheckPlan(epsilon_nano - gaps - histograms, gaps, histograms)
    if plan.rest < EPSILON_MIN_NANO:
        raise InvalidSpec("epsilon is too small for check_features: increase epsilon, or set check_features to false")
    return plan


def split_check(params: P) -> tuple[P, CheckPlan | None]:
    """Return the parameters with what the check leaves, and its plan; None if the job has no check.

    Raises
    ------
    InvalidSpec
        Epsilon is too small to be divided.
    """
    if not getattr(params, "check_features", False):
        return params, None
    plan = plan_check(params.epsilon_nano)
    return params.with_epsilon(plan.rest / NANO, check_features=False), plan
