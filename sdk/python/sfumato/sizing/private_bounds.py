"""Cost of private bounds, and the number of records that they need, from public facts."""

from math import ceil, inf, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import EPSILON_MIN_NANO, NANO
from sfumato.privacy.gaussian_privacy import ADDED_VARIANCE, PICO, rho_of
from sfumato.sizing.required_reports import GRID_FEATURES, affords_block
from sfumato.specs import AlgorithmParameters

COUNT, LOCATING, SIZING = 5, 40, 35  # maximum per mille of epsilon for the number of records, places and sizes
BLOCK_LOCATING, BLOCK_SIZING = 100, 40  # maximum per mille of a block's rho; noise grows as with 7 % of epsilon
ROUNDS = 2  # histograms of each feature
SHARE = COUNT + LOCATING + SIZING
FINE_BINS = 64  # bins per feature, or half with few records
FALSE_ALARMS = 0.05  # probability that noise alone exceeds the threshold in a bin of a round
# Records in thresholds below which no bounds are searched, by the largest number of features (decision 0031)
NEEDED = ((2, 10.0), (4, 6.0), (inf, 3.0))
NEEDED_IN_BLOCK = 2.4
WIDE = 0.2  # part of the bounds that clusters occupy, below which results are worse


class BoundsPlan(NamedTuple):
    """The division of a job's cost between its bounds and its algorithm.

    Attributes
    ----------
    count_nano : int
        Nano-epsilon for the number of records.
    locating, sizing : int
        Maximum cost of the histograms and of the nested boxes: nano-epsilon, or pico-rho of the job's block.
    has_block : bool
        Whether the histograms belong to the concentrated block of the algorithm.
    threshold : float
        Noise of one round at the whole cost rarely exceeds it in a bin.
    summed : float
        The same per square root of the number of bins, for sums of many bins.
    needed : float
        Records in thresholds below which no bounds are searched.
    """

    count_nano: int
    locating: int
    sizing: int
    has_block: bool
    threshold: float
    summed: float
    needed: float

    @property
    def needed_records(self) -> int:
        """Return the number of records below which no bounds are found."""
        return ceil(self.needed * self.threshold)

    def cost_of(self, threshold: float, n_features: int) -> int:
        """Return the cost of a round of histograms with this threshold, at most an equal part."""
        share = self.threshold / threshold
        wanted = int(self.locating * (share**2 if self.has_block else share))
        least = n_features if self.has_block else 1  # each histogram costs a whole number of pico-rho
        return max(min(wanted, self.locating // ROUNDS), least)

    def noise_growth(self, cost: int) -> float:
        """Return the threshold of a round of this cost in thresholds of the whole cost."""
        return float((self.locating / cost) ** (0.5 if self.has_block else 1.0))


def plan_bounds(
    params: AlgorithmParameters, n_features: int, max_per_user: int = 1, n_searched: int | None = None
) -> BoundsPlan:
    """Return the plan of private bounds.

    The shares of categories have no bounds to search, so that `n_searched` of the features have histograms; by default
    all.

    Raises
    ------
    InvalidSpec
        Epsilon is too small to be divided.
    """
    epsilon_nano, delta_atto = params.epsilon_nano, params.delta_atto
    count_nano, locating, sizing = (epsilon_nano * share // 1000 for share in (COUNT, LOCATING, SIZING))
    if epsilon_nano - count_nano - locating - sizing < EPSILON_MIN_NANO:
        raise InvalidSpec("epsilon is too small for private bounds: increase epsilon, or use the declared bounds")
    n_searched = n_searched or n_features
    chance = FALSE_ALARMS / (2 * n_searched * FINE_BINS)
    z = -NormalDist().inv_cdf(chance)
    if (
        params.definition.has_block
        and n_features > GRID_FEATURES
        and affords_block(epsilon_nano - count_nano, delta_atto, max_per_user)
    ):
        rho = rho_of(epsilon_nano - count_nano, delta_atto)
        locating, sizing = rho * BLOCK_LOCATING // 1000, rho * BLOCK_SIZING // 1000
        deviation = sqrt(max_per_user**2 * n_searched * PICO / (2 * locating) + ADDED_VARIANCE)
        return BoundsPlan(count_nano, locating, sizing, True, z * deviation, z * deviation, NEEDED_IN_BLOCK)
    scale = max_per_user * n_searched * NANO / locating
    needed = next(factor for most, factor in NEEDED if n_searched <= most)
    return BoundsPlan(count_nano, locating, sizing, False, scale * -log(2 * chance), scale * z * sqrt(2), needed)
