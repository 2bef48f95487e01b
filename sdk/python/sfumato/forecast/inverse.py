"""Number of reports that reaches a target, by inversion of the forecast."""

from collections.abc import Callable
from typing import Any, cast

from sfumato.errors import InvalidSpec
from sfumato.forecast.auto import choose, sketched_from
from sfumato.forecast.estimates import Needed, forecast
from sfumato.forecast.monotone import largest_variance
from sfumato.forecast.noise import detectable_mass_of, size_error_of
from sfumato.forecast.quality import ceiling_of, least_favourable
from sfumato.forecast.warnings import insufficient_of
from sfumato.sizing import planned_rounds
from sfumato.sizing.rounds import MAX_JSON_INT
from sfumato.specs import Algorithm, Auto
from sfumato.specs.attributes import Categorical
from sfumato.validation import require_share

_STEP = 2**0.25  # ratio between the numbers of reports at which a met target is checked again
_UNKNOWN = {
    "quality": "Quality was not measured for these parameters.",
    "detectable_mass": "Which clusters stand out does not follow from public facts for this algorithm.",
    "size_error": "The error of a size does not follow from public facts for these parameters.",
}


def reports_needed(
    algorithm: Algorithm,
    n_features: int,
    *,
    quality: float | None = None,
    size_error: float | None = None,
    detectable_mass: float | None = None,
    attributes: tuple[Categorical, ...] = (),
) -> Needed:
    """Return the smallest number of reports from which a target is met.

    From the returned number on, the target stays met: the figures of a forecast never get worse with more reports.

    Parameters
    ----------
    algorithm : Algorithm
    n_features : int
    quality : float, optional
        Median of the adjusted Rand index over the reference sets of the least favourable family, in
        (0, 1]. Insufficient reports do not meet it.
    size_error : float, optional
        `Forecast.size_error`, in (0, 1].
    detectable_mass : float, optional
        `Forecast.detectable_mass`, in (0, 1].
    attributes : tuple of Categorical
        Attributes by which the job clusters; see `forecast`.

    Raises
    ------
    InvalidSpec
        There is not exactly one target, it is out of range, or the algorithm does not support the arguments.
    """
    wishes = {"quality": quality, "size_error": size_error, "detectable_mass": detectable_mass}
    named = {name: wish for name, wish in wishes.items() if wish is not None}
    if len(named) != 1:
        given = ", ".join(named) or "none"
        raise InvalidSpec(f"give exactly one of quality, size_error and detectable_mass, not {given}")
    ((name, wish),) = named.items()
    require_share(wish, name)
    if attributes:
        return _of_categories(algorithm, n_features, attributes, name, wish)
    if isinstance(algorithm, Auto):
        return _of_auto(algorithm, n_features, named)
    planned_rounds(algorithm, n_features, 1)  # raises for unsupported arguments
    if name == "quality":
        return _for_quality(algorithm, n_features, wish)
    if name == "size_error":
        return _for_size_error(algorithm, n_features, wish)
    return _for_detectable_mass(algorithm, n_features, wish)


def _of_categories(
    algorithm: Algorithm, n_features: int, attributes: tuple[Categorical, ...], name: str, wish: float
) -> Needed:
    """Return the number by the forecasts themselves. `auto` may select another algorithm for each number."""

    def reached(n_reports: int) -> float | None:
        made = forecast(algorithm, n_features=n_features, expected_reports=n_reports, attributes=attributes)
        if name != "quality":
            return cast("float | None", getattr(made, name))
        return None if made.quality is None or made.insufficient is not None else made.quality.median

    def is_met(n_reports: int) -> bool:
        found = reached(n_reports)
        return found is not None and (found >= wish if name == "quality" else found <= wish)

    if reached(MAX_JSON_INT) is None:
        return Needed(None, _UNKNOWN[name])
    return _answer(smallest(is_met), f"the {name.replace('_', ' ')} of the forecast is {wish:.3g} or better")


def _of_auto(params: Auto, n_features: int, named: dict[str, float]) -> Needed:
    """Return the number for the algorithm of many reports, at least the number from which `auto` selects it."""
    final = choose(params, n_features, MAX_JSON_INT).algorithm
    needed = reports_needed(final, n_features, **cast(dict[str, Any], named))
    if needed.n_reports is None or type(choose(params, n_features, needed.n_reports).algorithm) is type(final):
        return needed
    changes = sketched_from(params)
    return Needed(changes, f"From {changes} reports on it is {final.type}, for which {needed.n_reports} would do.")


def _for_quality(algorithm: Algorithm, n_features: int, wish: float) -> Needed:
    ceiling = ceiling_of(algorithm, n_features)
    if ceiling is None:
        return Needed(None, _UNKNOWN["quality"])
    if ceiling.median < wish:
        return Needed(None, f"No number of reports reaches it: the ceiling is {ceiling.median:.2f}.")

    def is_met(n_reports: int) -> bool:
        if insufficient_of(algorithm, n_features, n_reports) is not None:
            return False  # the table's first row applies to any smaller number of reports
        band = least_favourable(algorithm, n_features, n_reports)
        return band is not None and band.median >= wish

    return _answer(smallest(is_met), f"half of the reference sets of every family come to {wish:.3g} or more")


def _for_detectable_mass(algorithm: Algorithm, n_features: int, wish: float) -> Needed:
    def is_met(n_reports: int) -> bool:
        least = detectable_mass_of(algorithm, planned_rounds(algorithm, n_features, n_reports), n_reports)
        return least is not None and least <= wish

    if detectable_mass_of(algorithm, planned_rounds(algorithm, n_features, 1), 1) is None:
        return Needed(None, _UNKNOWN["detectable_mass"])
    return _answer(smallest(is_met), f"a cluster of {100 * wish:.3g} % of the people stands out")


def _for_size_error(algorithm: Algorithm, n_features: int, wish: float) -> Needed:
    def is_met(n_reports: int) -> bool:
        variance = largest_variance(algorithm, n_features, n_reports)
        return variance is not None and size_error_of(algorithm, variance) <= wish

    if largest_variance(algorithm, n_features, 1) is None:
        return Needed(None, _UNKNOWN["size_error"])
    return _answer(smallest(is_met), f"a cluster's size is known to {100 * wish:.3g} % of the people")


def _answer(n_reports: int | None, then: str) -> Needed:
    if n_reports is None:
        return Needed(None, "No number of reports that can be counted reaches it at this epsilon.")
    return Needed(n_reports, f"From {n_reports} reports on {then}.")


def smallest(is_met: Callable[[int], bool]) -> int | None:
    """Return the smallest number in 1..2**53-1 from which a condition holds, or None if it never does.

    The condition fails at the preceding number. Above the result it was checked in steps of a fifth.
    """
    if not is_met(MAX_JSON_INT):
        return None
    fails, holds = 0, MAX_JSON_INT
    while True:
        while holds - fails > 1:
            middle = (fails + holds) // 2
            if is_met(middle):
                holds = middle
            else:
                fails = middle
        later = _first_failure(is_met, holds)
        if later is None:
            return holds
        fails, holds = later, MAX_JSON_INT


def _first_failure(is_met: Callable[[int], bool], above: int) -> int | None:
    n_reports = float(above)
    while (n_reports := max(n_reports * _STEP, n_reports + 1)) < MAX_JSON_INT:
        if not is_met(int(n_reports)):
            return int(n_reports)
    return None
