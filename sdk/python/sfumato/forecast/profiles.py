"""Forecast of a profile: the noise of its counts, and the error of a share in each cluster, before it is spent."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

from sfumato.errors import InvalidSpec
from sfumato.sizing.profiles import plan_profile
from sfumato.specs.central import Profile

WARN_ERROR = 0.05  # error of a share from which on a forecast warns
MIN_DEVIATIONS = 4.0  # deviations of the noise that a describable cluster has at least


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
        For each cluster, the largest standard error of the noise of a share.
    too_small : tuple of int
        Clusters with too few records to describe.
    warnings : tuple of str
    """

    epsilon_nano: int
    delta_atto: int
    n_described: int
    first_pass: float
    noise_per_count: float
    share_errors: tuple[float, ...]
    too_small: tuple[int, ...]
    warnings: tuple[str, ...]


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
    if expected_records < 1 or n_values < 2 or not sizes:
        raise InvalidSpec("a forecast needs at least one record, one cluster and two values")
    plan = plan_profile(params, len(params.attributes), max_records_per_user)
    of_number = sqrt(plan.variance * n_values / plan.n_tables)
    numbers = [max(size, 0.0) * expected_records for size in sizes]
    small = tuple(c for c, number in enumerate(numbers) if number < max(MIN_DEVIATIONS * of_number, 1.0))
    errors = tuple(min(sqrt(plan.variance) / number, 1.0) if number >= 1 else 1.0 for number in numbers)
    noisy = [str(c) for c, error in enumerate(errors) if error > WARN_ERROR and c not in small]
    warnings = []
    if small:
        named = ", ".join(map(str, small))
        warnings.append(f"Too few records to describe these clusters at this epsilon: {named}.")
    if noisy:
        warnings.append(
            f"Shares in these clusters have errors above {WARN_ERROR:.0%} at this epsilon: {', '.join(noisy)}. "
            "Increase epsilon, or name fewer attributes."
        )
    return ProfileForecast(
        epsilon_nano=params.epsilon_nano,
        delta_atto=params.delta_atto if plan.has_block else 0,
        n_described=plan.n_tables,
        first_pass=plan.first_pass,
        noise_per_count=sqrt(plan.variance),
        share_errors=errors,
        too_small=small,
        warnings=tuple(warnings),
    )


def profile_forecast_to_wire(forecast: ProfileForecast) -> dict[str, Any]:
    """Return a forecast as JSON values."""
    lists = {name: list(getattr(forecast, name)) for name in ("share_errors", "too_small", "warnings")}
    return asdict(forecast) | lists


def profile_forecast_from_wire(wire: Mapping[str, Any]) -> ProfileForecast:
    """Return the forecast that `profile_forecast_to_wire` wrote. Raise InvalidSpec for another document."""
    try:
        values = {name: wire[name] for name in ProfileForecast.__slots__}
        lists = {name: tuple(values[name]) for name in ("share_errors", "too_small", "warnings")}
        return ProfileForecast(**(values | lists))
    except (KeyError, TypeError) as error:
        raise InvalidSpec("this is not a forecast of a profile") from error
