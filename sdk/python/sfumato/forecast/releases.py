"""Cost of a collection towards an observer of its releases, and the local epsilon for a given cost."""

from dataclasses import replace
from fractions import Fraction
from typing import NotRequired, TypedDict, Unpack

from sfumato.errors import InvalidSpec
from sfumato.forecast.auto import resolve
from sfumato.privacy import shuffling
from sfumato.privacy.accounting import EPSILON_MAX_NANO, NANO, cost, format_epsilon
from sfumato.privacy.shuffled_rounds import gaussian_cost
from sfumato.privacy.shuffling import Blanket, Pair
from sfumato.sizing import planned_rounds
from sfumato.sizing.rounds import expected_reports as reports_of_part
from sfumato.specs import Algorithm
from sfumato.specs.attributes import Categorical

LOCAL_STEP_NANO = NANO // 100  # local costs that `local_epsilon_for` tries


class ForecastTerms(TypedDict):
    """Terms of the releases of a collection.

    Attributes
    ----------
    n_features, expected_reports : int
        As for `forecast`.
    min_batch : int
        Number of devices with reports in releases. A round with a part of the participation draws has its share, less
        three standard deviations.
    honest_share : Fraction
        Share of the reports from honest devices, in (0, 1].
    delta_atto : int
        Delta of each release.
    circles : tuple of int
        Indices of the periodic features; none by default.
    attributes : tuple of Categorical
        Attributes by which the job clusters; none by default.
    """

    n_features: int
    expected_reports: int
    min_batch: int
    honest_share: Fraction
    delta_atto: int
    circles: NotRequired[tuple[int, ...]]
    attributes: NotRequired[tuple[Categorical, ...]]


def forecast_releases(algorithm: Algorithm, **terms: Unpack[ForecastTerms]) -> Pair:
    """Return the cost of the collection's releases for one device, as nano-epsilon and atto-delta.

    The service charges this pair for a shuffled job in addition to the local epsilon, when the rounds open.

    Parameters
    ----------
    algorithm : Algorithm
    **terms
        The members of `ForecastTerms`.

    Raises
    ------
    InvalidSpec
        An argument is out of range, no blanket is known, or a round depends on earlier ones.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from sfumato import UniformGrid
    >>> from sfumato.forecast import forecast_releases
    >>> terms = {"min_batch": 100_000, "honest_share": Fraction(1), "delta_atto": 10**12}
    >>> pair = forecast_releases(UniformGrid(epsilon=4), n_features=2, expected_reports=100_000, **terms)
    >>> pair[0] < 100_000_000  # a tenth
    True
    """
    delta_atto = terms["delta_atto"]
    releases = _plan(algorithm, terms)
    pairs = [(each, (shuffling.epsilon(blanket, n, delta_atto), delta_atto)) for each, blanket, n in releases]
    return shuffling.shuffled_cost([pairs])


def forecast_release_mu2(algorithm: Algorithm, **terms: Unpack[ForecastTerms]) -> int:
    """Return mu^2 of the collection's releases for one device, in units of 1e-12.

    A shuffled dataset with Gaussian accounting counts it, beside the delta of `forecast_releases`. The parameters and
    the errors are those of `forecast_releases`. Raise InvalidSpec also if no mu^2 covers a release.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from sfumato import UniformGrid
    >>> from sfumato.forecast import forecast_release_mu2
    >>> terms = {"min_batch": 100_000, "honest_share": Fraction(1), "delta_atto": 10**12}
    >>> forecast_release_mu2(UniformGrid(epsilon=4), n_features=2, expected_reports=100_000, **terms) < 10**9
    True
    """
    releases = _plan(algorithm, terms)
    return cost((each, gaussian_cost(blanket, n, terms["delta_atto"])[0]) for each, blanket, n in releases)


def _plan(algorithm: Algorithm, terms: ForecastTerms) -> list[tuple[tuple[int, int], Blanket, int]]:
    """Return the participation interval, the blanket and the number of honest reports of each release."""
    n_features, expected_reports = terms["n_features"], terms["expected_reports"]
    formed = terms.get("circles", ()), terms.get("attributes", ())
    algorithm, _ = resolve(algorithm, n_features, expected_reports, formed[1])
    releases = []
    for each in planned_rounds(algorithm, n_features, expected_reports, *formed):
        if each.adapts:
            raise InvalidSpec(
                f"a round of {algorithm.type} depends on earlier rounds: its release has a cost when the round opens"
            )
        n_honest = shuffling.honest_reports(
            reports_of_part(terms["min_batch"], each.participation), terms["honest_share"]
        )
        releases.append(((each.participation.lo, each.participation.hi), each.mechanism().blanket(), n_honest))
    return releases


def local_epsilon_for(algorithm: Algorithm, shuffled_nano: int, **terms: Unpack[ForecastTerms]) -> int:
    """Return a local epsilon with which the releases of the collection cost at most `shuffled_nano`.

    A bisection over multiples of 0.01 finds it. The cost has small steps where a subset or the grid changes its size.

    Parameters
    ----------
    algorithm : Algorithm
        Its epsilon has no effect.
    shuffled_nano : int
        Largest nano-epsilon towards an observer of the releases.
    **terms
        The members of `ForecastTerms`.

    Returns
    -------
    int
        Nano-epsilon, a multiple of 0.01 in [0.01, 32].

    Raises
    ------
    InvalidSpec
        As for `forecast_releases`, or 0.01 already costs more.
    """

    def costs(step: int) -> int:
        tried = replace(algorithm, epsilon=step * LOCAL_STEP_NANO / NANO)
        return forecast_releases(tried, **terms)[0]

    low, high = 0, EPSILON_MAX_NANO // LOCAL_STEP_NANO + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if costs(middle) <= shuffled_nano else (low, middle)
    if low == 0:
        raise InvalidSpec(f"a local epsilon of 0.01 costs more than {format_epsilon(shuffled_nano)} after the shuffler")
    return low * LOCAL_STEP_NANO
