"""Composition of shuffled rounds over the same people, by a Gaussian cost of each release.

The accountant of `sfumato.privacy.shuffling` bounds delta(epsilon) of a release for each epsilon >= 0, and neighbours
are symmetric. Let delta_mu be the curve of mu-Gaussian privacy. If for every epsilon

    delta(epsilon) <= delta_0 + (1 - delta_0) delta_mu(epsilon),

then the release is at least as private as a mechanism that reveals all with probability delta_0, and otherwise one
normal value with a shift of mu. The right side is the curve of f_{0, delta_0} composed with G_mu, and curves and
trade-off functions are dual (Dong, Roth and Su 2019, "Gaussian differential privacy", section 2.4). Trade-off functions
compose, also for releases that depend on earlier ones (section 3.1). So rounds with (mu_i, delta_i) together cost
(epsilon, sum of delta_i + delta_mu(epsilon)) for mu^2 = sum of mu_i^2 and each epsilon.

Both curves fall with epsilon. Between two steps of a grid it is therefore enough to compare delta at the lower one with
delta_mu at the upper one. Beyond the last step delta is at most delta_0. All roundings increase the cost.
"""

from decimal import Context, Decimal, localcontext
from itertools import pairwise

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import ATTO, format_delta
from sfumato.privacy.gaussian_privacy import PICO, delta_in_floats, least_delta
from sfumato.privacy.shuffling import Blanket, delta, epsilon

STEPS = 128  # steps of the grid, each 1/128 of the epsilon at delta_0
_GROWTH = 10**6  # mu^2 grows by its millionth part until it is verified
_LARGEST_MU2 = 64 * PICO

GaussianCost = tuple[int, int]  # mu^2 in units of 1e-12, and atto-delta


def gaussian_cost(blanket: Blanket, n: int, delta_atto: int) -> GaussianCost:
    """Return (mu^2, delta_0) of a release with n honest reports.

    Parameters
    ----------
    blanket : Blanket
    n : int
        Number of honest reports, in 1 .. 2**30.
    delta_atto : int
        The delta_0 to use, in 1 .. 10^18 - 1. A tenth of the delta of the round is a good choice.

    Returns
    -------
    tuple of int
        mu^2 in units of 1e-12, rounded up, and `delta_atto`.

    Raises
    ------
    InvalidSpec
        An argument is out of range, or no mu up to 8 covers the release.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from sfumato.privacy.gaussian_privacy import epsilon_of
    >>> from sfumato.privacy.shuffled_rounds import gaussian_cost
    >>> from sfumato.privacy.shuffling import Blanket, epsilon
    >>> coin = Blanket(Fraction(3), Fraction(1, 2), Fraction(0))  # binary randomised response at epsilon ln 3
    >>> mu2_pico, delta_atto = gaussian_cost(coin, 10_000, 10**11)
    >>> year = epsilon_of(52 * mu2_pico, 52 * (10**12 - delta_atto))
    >>> year < 52 * epsilon(coin, 10_000, 10**12) // 5
    True
    """
    if not 0 < delta_atto < ATTO:
        raise InvalidSpec(f"delta must be above 0 and below 1, not {format_delta(delta_atto)}")
    top = epsilon(blanket, n, delta_atto)
    grid = [top * step // STEPS for step in range(STEPS + 1)]
    # pairs of an epsilon, rounded up, and the delta that mu has to cover there
    needs = [(above, delta(blanket, n, below)) for below, above in pairwise(grid)]
    needs = [(above, covered) for above, covered in needs if covered > delta_atto]
    mu2 = _guess(needs, delta_atto)
    while not _covers(mu2, needs, delta_atto):
        mu2 += mu2 // _GROWTH + 1
        if mu2 > _LARGEST_MU2:
            raise InvalidSpec("the release is not private enough for a Gaussian cost: use more reports or a lower ε")
    return mu2, delta_atto


def _guess(needs: list[tuple[int, int]], delta_atto: int) -> int:
    """Return about the least mu^2 that covers all needs."""
    low, high = 0, _LARGEST_MU2
    while high - low > max(1, low // _GROWTH):
        middle = (low + high) // 2
        rest = 1 - delta_atto / ATTO
        is_enough = all(
            (covered - delta_atto) / ATTO <= rest * delta_in_floats(middle, above / 1e9) for above, covered in needs
        )
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def _covers(mu2_pico: int, needs: list[tuple[int, int]], delta_atto: int) -> bool:
    """Return whether (mu^2, delta_0) certainly covers all needs."""
    with localcontext(Context(prec=80)):
        rest = 1 - Decimal(delta_atto) / ATTO
        return all(
            Decimal(covered - delta_atto) / ATTO <= rest * least_delta(mu2_pico, above) for above, covered in needs
        )
