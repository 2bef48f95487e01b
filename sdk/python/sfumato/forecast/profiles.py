"""Forecast of a profile: the noise of its counts, and the error of a share in each cluster, before it is spent.

Over reports, n (p - p^)^2 of the share of a value in a cluster with a share f of the people is m v / f^2 from the noise
of the reports, for m attributes and a mechanism with the variance v. The draw of one attribute by each person adds
(m - 1) p (1 - p) / f.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from typing import Any

from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.model.precision import precision
from sfumato.sizing.profiles import plan_profile
from sfumato.specs.central import Profile
from sfumato.validation import require, require_at_least

WARN_ERROR = 0.05  # error of a share from which on a forecast warns
MIN_DEVIATIONS = 4.0  # deviations of the noise that a describable cluster has at least
TYPICAL_SHARE = 0.05  # share of a value, for errors over reports
AIM_ERROR = 0.02  # error of a share for which a forecast states the reports


_LISTS = ("share_errors", "too_small", "warnings", "reports_needed")


@dataclass(frozen=True, slots=True)
class ProfileForecast:
    """The forecast of a profile.

    Attributes
    ----------
    epsilon_nano, delta_atto : int
        Maximum cost. δ is 0 if Gaussian noise would not be less.
    n_described : int
        Number of attributes that the forecast expects to be described.
    first_pass : float
        Share of ε that releases the association of each attribute.
    noise_per_count : float
        Standard deviation of the noise of a count, in records.
    share_errors : tuple of float
        For each cluster, the largest standard error of the noise of a share. Over reports, that of a share of 5 %, with
        the draw of one attribute by each device.
    too_small : tuple of int
        Clusters with too few records to describe.
    warnings : tuple of str
    reports_needed : tuple of int
        Over reports: for each cluster, the number of reports with which a share has an error of 2 points. Empty over
        records.
    """

    epsilon_nano: int
    delta_atto: int
    n_described: int
    first_pass: float
    noise_per_count: float
    share_errors: tuple[float, ...]
    too_small: tuple[int, ...]
    warnings: tuple[str, ...]
    reports_needed: tuple[int, ...] = ()


def forecast_profile(
    params: Profile, sizes: Sequence[float], *, expected_records: int, n_values: int = 8, max_records_per_user: int = 1
) -> ProfileForecast:
    """Return the forecast of a profile. It uses no records and costs no privacy budget.

    Parameters
    ----------
    params : Profile
    sizes : sequence of float
        Released sizes of the clusters, as shares of people.
    expected_records : int
        The caller's estimate of the number of records, at least 1.
    n_values : int
        Number of values of an attribute, at least 2.
    max_records_per_user : int
        The dataset's declaration, at least 1.

    Raises
    ------
    InvalidSpec
        The number of records or of values is too small, or there are no clusters.

    Examples
    --------
    >>> from sfumato import Profile
    >>> from sfumato.forecast import forecast_profile
    >>> profile = Profile(of="job_1", attributes=["plan", "age"], epsilon=0.5)
    >>> forecast_profile(profile, [0.7, 0.3], expected_records=20_000).noise_per_count.__round__()
    6
    """
    _check(expected_records, "expected_records", n_values, sizes)
    plan = plan_profile(params, len(params.attributes), max_records_per_user)
    of_number = sqrt(plan.variance * n_values / plan.n_tables)
    numbers = [max(size, 0.0) * expected_records for size in sizes]
    small = tuple(c for c, number in enumerate(numbers) if number < max(MIN_DEVIATIONS * of_number, 1.0))
    errors = tuple(min(sqrt(plan.variance) / number, 1.0) if number >= 1 else 1.0 for number in numbers)
    remedy = "Increase epsilon, or name fewer attributes."
    return ProfileForecast(
        epsilon_nano=params.epsilon_nano,
        delta_atto=params.delta_atto if plan.has_block else 0,
        n_described=plan.n_tables,
        first_pass=plan.first_pass,
        noise_per_count=sqrt(plan.variance),
        share_errors=errors,
        too_small=small,
        warnings=_warn(errors, small, remedy),
    )


def forecast_reported_profile(
    params: Profile, sizes: Sequence[float], *, expected_reports: int, n_values: int = 8, counts_outside: bool = True
) -> ProfileForecast:
    """Return the forecast of a profile over a round of reports. It uses no reports and costs no privacy budget.

    Parameters
    ----------
    params : Profile
    sizes : sequence of float
        Released sizes of the clusters, as shares of people.
    expected_reports : int
        The caller's estimate of the number of reports, at least 1.
    n_values : int
        Largest number of values of an attribute, at least 2.
    counts_outside : bool
        Whether the round counts people outside of the bounds.

    Raises
    ------
    InvalidSpec
        The number of reports or of values is too small, or there are no clusters.

    Examples
    --------
    >>> from sfumato import Profile
    >>> from sfumato.forecast import forecast_reported_profile
    >>> profile = Profile(of="job_1", attributes=["plan", "age"], epsilon=2)
    >>> forecast = forecast_reported_profile(profile, [0.7, 0.3], expected_reports=100_000)
    >>> [round(error, 3) for error in forecast.share_errors]
    [0.005, 0.011]
    """
    _check(expected_reports, "expected_reports", n_values, sizes)
    m = len(params.attributes)
    of = precision(design("auto", len(sizes) * n_values + counts_outside, params.epsilon_nano))
    needed = tuple(reports_for(share, of.zero_variance, of.slope_variance, m, AIM_ERROR) for share in sizes)
    errors = tuple(min(AIM_ERROR * sqrt(least / expected_reports), 1.0) for least in needed)
    of_number = sqrt(of.zero_variance * n_values * expected_reports)
    least = max(MIN_DEVIATIONS * of_number, 1.0)
    small = tuple(c for c, share in enumerate(sizes) if share * expected_reports < least)
    return ProfileForecast(
        epsilon_nano=params.epsilon_nano,
        delta_atto=0,
        n_described=m,
        first_pass=0.0,
        noise_per_count=sqrt(of.zero_variance * m * expected_reports),
        share_errors=errors,
        too_small=small,
        warnings=_warn(errors, small, "Collect more reports, increase epsilon, or name fewer attributes."),
        reports_needed=needed,
    )


def reports_for(size: float, variance: float, slope: float, n_attributes: int, error: float) -> int:
    """Return the number of reports with which a share of 5 % has this standard error in a cluster of this size.

    `variance` and `slope` are those of `Precision`. The number is at most 1e12.
    """
    size, p = max(size, 1e-4), TYPICAL_SHARE
    of_noise = n_attributes * (variance + slope * size * p) / size**2
    of_draw = (n_attributes - 1) * p * (1 - p) / size
    return min(ceil((of_noise + of_draw) / error**2), 10**12)


def _check(expected: int, name: str, n_values: int, sizes: Sequence[float]) -> None:
    """Raise InvalidSpec unless there are people, values and clusters."""
    require_at_least(expected, 1, name)
    require_at_least(n_values, 2, "n_values")
    require(len(sizes) > 0, "sizes must name at least one cluster")


def _warn(errors: Sequence[float], small: Sequence[int], remedy: str) -> tuple[str, ...]:
    noisy = [str(c) for c, error in enumerate(errors) if error > WARN_ERROR and c not in small]
    warnings = []
    if small:
        named = ", ".join(map(str, small))
        warnings.append(f"Too few records to describe these clusters at this epsilon: {named}.")
    if noisy:
        warnings.append(
            f"Shares in these clusters have errors above {WARN_ERROR:.0%} at this epsilon: {', '.join(noisy)}. {remedy}"
        )
    return tuple(warnings)


def profile_forecast_to_wire(forecast: ProfileForecast) -> dict[str, Any]:
    """Return a forecast as JSON values."""
    lists = {name: list(getattr(forecast, name)) for name in _LISTS}
    return asdict(forecast) | lists


def profile_forecast_from_wire(wire: Mapping[str, Any]) -> ProfileForecast:
    """Return the forecast that `profile_forecast_to_wire` wrote. Raise InvalidSpec for another document."""
    try:
        values = {"reports_needed": ()} | {name: wire[name] for name in ProfileForecast.__slots__ if name in wire}
        lists = {name: tuple(values[name]) for name in _LISTS}
        return ProfileForecast(**(values | lists))
    except (KeyError, TypeError) as error:
        raise InvalidSpec("this is not a forecast of a profile") from error
