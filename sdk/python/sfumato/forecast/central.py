"""How near k-means without noise an algorithm over records will come, by a number of records somebody expects.

The records of a dataset are counted by nobody for a forecast: their number is private. What
is said follows from the parameters and a guess that the caller makes.
"""

from dataclasses import dataclass
from math import ceil

from sfumato.accounting import NANO, parse_epsilon
from sfumato.errors import InvalidSpec
from sfumato.sizing.records import CLUSTERS_BY_U, GRID_FEATURES, ONE_MEAN_BELOW, clusters_told, usable_epsilon
from sfumato.specs import MAX_FEATURES, Auto, CentralAlgorithm, GatedGridKmeans

# ratio - 1 is a x^-b, fitted to runs on 30 real and drawn sets at epsilon .01 to 1 (decision 0009), of
GRID_FIT = (1.22, 0.82)  # x = N epsilon / k, up to four features, times d^2
STEPS_FIT = (2.6, 0.73)  # x = N epsilon / (d k), above
ONE_MEAN_FIT = (19.5, 0.85)  # x = N epsilon / d, above, where one centre is all that can be told
# Between these times ratio - 1 lay four of five runs.
GRID_BAND, STEPS_BAND, ONE_MEAN_BAND = (0.08, 3.5), (0.04, 1.9), (0.3, 1.6)

CLEAR = 30.0  # N epsilon / k below which the centres of a grid are mostly noise


@dataclass(frozen=True, slots=True)
class CentralForecast:
    """What to expect of `gated_grid_kmeans`.

    Attributes
    ----------
    ratio : float or None
        Mean squared distance to the nearest centre over that of k-means without noise, at least 1. None for other
        methods, which were not fitted. With a delta it is what pure epsilon would give: Gaussian noise comes nearer.
    lower, upper : float or None
        Four of five reference runs lay between.
    clusters : int
        How many will be looked for: fewer than asked for where noise would hide the others.
    warnings : tuple of str
        Sentences for a person.
    """

    ratio: float | None
    lower: float | None
    upper: float | None
    clusters: int
    warnings: tuple[str, ...]


def forecast_central(
    params: CentralAlgorithm | Auto, n_features: int, n_records: float, max_per_user: int = 1
) -> CentralForecast:
    """Forecast an algorithm over records; costs nothing and sees none.

    Parameters
    ----------
    params : CentralAlgorithm or Auto
    n_features : int
        1..64.
    n_records : float
        As many as the caller expects, at least 1; in a running algorithm its noisy count.
    max_per_user : int
        Records one user may have, at least 1.

    Raises
    ------
    InvalidSpec
        Another number of features, no records, or no number of clusters.
    """
    if not 1 <= n_features <= MAX_FEATURES:
        raise InvalidSpec(f"records have 1 to {MAX_FEATURES} features")
    if not n_records >= 1 or max_per_user < 1:
        raise InvalidSpec("expected_records and max_per_user are at least 1")
    if params.clusters is None:
        raise InvalidSpec("over records the number of clusters is needed: no method there counts them")
    if not isinstance(params, GatedGridKmeans | Auto):
        said = "How near this method comes to k-means without noise was not fitted; gated_grid_kmeans comes nearer."
        few = _few(n_records, parse_epsilon(params.epsilon) / NANO / max_per_user, params.clusters)
        return CentralForecast(None, None, None, params.clusters, (said, *few))
    epsilon = usable_epsilon(parse_epsilon(params.epsilon), max_per_user)
    clusters = clusters_told(n_records, epsilon, n_features, params.clusters)
    excess, (low, high) = _excess(n_records * epsilon, n_features, params.clusters)
    warnings = _warnings(n_records, epsilon, n_features, params.clusters, clusters)
    return CentralForecast(1 + excess, 1 + low * excess, 1 + high * excess, clusters, warnings)


def _excess(information: float, n_features: int, clusters: int) -> tuple[float, tuple[float, float]]:
    """The expected ratio less one, and its band, by N epsilon."""
    if n_features <= GRID_FEATURES:
        return n_features**2 * _power(GRID_FIT, information / clusters), GRID_BAND
    u = information / n_features
    if u < ONE_MEAN_BELOW:
        return _power(ONE_MEAN_FIT, u), ONE_MEAN_BAND
    # many clusters at little information: more records do not make it worse than one mean was
    return min(_power(STEPS_FIT, u / clusters), _power(ONE_MEAN_FIT, ONE_MEAN_BELOW)), STEPS_BAND


def _power(fit: tuple[float, float], x: float) -> float:
    return float(fit[0] * x ** -fit[1])


def _few(n_records: float, epsilon: float, clusters: int) -> tuple[str, ...]:
    if n_records * epsilon >= CLEAR * clusters:
        return ()
    return (
        f"About {round(n_records)} records are few for {clusters} clusters at this epsilon: centres may be noise "
        f"alone; about {ceil(CLEAR * clusters / epsilon)} would do.",
    )


def _warnings(n_records: float, epsilon: float, n_features: int, clusters: int, told: int) -> tuple[str, ...]:
    if n_features <= GRID_FEATURES:
        return _few(n_records, epsilon, clusters)
    if told == clusters:
        return ()
    enough = ceil(max(ONE_MEAN_BELOW, (clusters - 0.5) / CLUSTERS_BY_U) * n_features / epsilon)
    most = "one centre at their mean is better than more" if told == 1 else f"at most {told} clusters can be told apart"
    return (
        f"About {round(n_records)} records are few for {clusters} clusters in {n_features} features at this epsilon: "
        f"{most}; about {enough} would do for {clusters}.",
    )
