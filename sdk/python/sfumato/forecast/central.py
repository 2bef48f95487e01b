"""Expected accuracy of an algorithm over records, relative to k-means without noise.

The number of records is private and is not read. The forecast follows from the parameters and the
caller's estimate.
"""

from dataclasses import dataclass, replace
from math import ceil

from sfumato.errors import InvalidSpec
from sfumato.forecast.auto import resolve_central
from sfumato.forecast.families import FAMILIES, Family, FamilyForecast, RouteName, forecast_families
from sfumato.model.precision import Verdict
from sfumato.privacy.accounting import NANO
from sfumato.sizing.feature_checks import split_check
from sfumato.sizing.grids import MAP_INFORMATION
from sfumato.sizing.private_bounds import SHARE, WIDE, plan_bounds
from sfumato.sizing.required_reports import (
    CLEAR_BLOCK,
    CLUSTERS_BY_U,
    GRID_FEATURES,
    MU_NEEDS_FEATURES,
    ONE_MEAN_BELOW,
    affords_block,
    detectable_clusters,
    usable_epsilon,
)
from sfumato.specs import MAX_FEATURES, MAX_RECORD_FEATURES, Auto, CentralAlgorithm
from sfumato.validation import require_at_least, require_share, show

RELIABLE_UPPER = 1.3  # largest upper end of the band of a reliable result
UNCERTAIN_RATIO = 2.0  # largest ratio of an uncertain one

CLEAR = 30.0  # N epsilon / k below which a grid's centres are mostly noise


@dataclass(frozen=True, slots=True)
class CentralForecast:
    """The expected accuracy of an algorithm over records.

    Attributes
    ----------
    ratio : float or None
        Mean squared distance to the nearest centre, divided by that of k-means without noise: that of the
        least favourable family. None for other methods, which were not simulated.
    lower, upper : float or None
        The lowest and the highest end of the bands of all families.
    clusters : int or None
        Number of clusters that the job searches for: fewer than requested if noise would hide the others.
        None if the job estimates it.
    warnings : tuple of str
        Sentences for a person.
    families : tuple of FamilyForecast
        The expected accuracy by family of data. Empty if the ratio is None.
    """

    ratio: float | None
    lower: float | None
    upper: float | None
    clusters: int | None
    warnings: tuple[str, ...]
    families: tuple[FamilyForecast, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Return reliable if the whole band is near 1; doubtful if the ratio is not, or with warnings."""
        if self.warnings or self.ratio is None or self.upper is None or self.ratio > UNCERTAIN_RATIO:
            return Verdict.DOUBTFUL
        return Verdict.RELIABLE if self.upper <= RELIABLE_UPPER else Verdict.UNCERTAIN


def forecast_central(
    params: CentralAlgorithm | Auto,
    n_features: int,
    n_records: float,
    max_per_user: int = 1,
    family: Family | None = None,
    occupied_share: float | None = None,
) -> CentralForecast:
    """Return the expected accuracy of an algorithm over records, without reading records.

    Parameters
    ----------
    params : CentralAlgorithm or Auto
    n_features : int
        1..1536.
    n_records : float
        The caller's estimate, at least 1, or a running algorithm's noisy count.
    max_per_user : int
        Maximum number of records of one user, at least 1.
    family : {"compact", "elongated", "curved", "many_small"}, optional
        The family of the data, if it is known. The forecast is then for this family alone.
    occupied_share : float, optional
        Part of the bounds that the data occupy along their widest feature, in (0, 1]. Private bounds find it.

    Raises
    ------
    InvalidSpec
        The number of records, the family or the part of the bounds is invalid, or see `check_over_records`.
    """
    if occupied_share is not None:
        require_share(occupied_share, "occupied_share")
    require_at_least(n_records, 1, "expected_records")
    require_at_least(max_per_user, 1, "max_per_user")
    if family is not None and family not in FAMILIES:
        raise InvalidSpec(f"family must be one of {', '.join(FAMILIES)}, not {family!r}")
    params, _ = resolve_central(params, n_features)
    check_over_records(params, n_features, max_per_user)
    without, plan = split_check(params)
    if plan is not None:
        rest = forecast_central(without, n_features, n_records, max_per_user, family, occupied_share)
        few = _few_for_a_check(n_records, n_features, plan.needed_records(n_features, max_per_user))
        return replace(rest, warnings=(*few, *rest.warnings))
    if params.bounds == "private":
        needed = plan_bounds(params, n_features, max_per_user).needed_records
        left = params.epsilon_nano * (1000 - SHARE) // 1000 / NANO
        rest = forecast_central(
            params.with_epsilon(left, bounds="declared"), n_features, n_records, max_per_user, family
        )
        return replace(rest, warnings=(*_few_for_bounds(n_records, needed), *rest.warnings))
    if occupied_share is not None and occupied_share <= WIDE:
        clusters = forecast_central(params, n_features, n_records, max_per_user, family).clusters
        return CentralForecast(None, None, None, clusters, (_too_wide(occupied_share),))
    if params.definition.group == "shapes":
        epsilon = params.epsilon_nano / NANO / max_per_user
        return CentralForecast(None, None, None, params.clusters, _few_for_a_map(n_records, epsilon))
    if not params.definition.has_block:
        unknown = "How near this method comes to k-means without noise was not simulated; private_kmeans comes nearer."
        few = _few(n_records, params.epsilon_nano / NANO / max_per_user, params.clusters or 1)
        return CentralForecast(None, None, None, params.clusters, (unknown, *few))
    if params.clusters is None:
        unknown = (
            "The accuracy depends on the number of clusters, which the job estimates; give a number to forecast it."
        )
        few = _few(n_records, params.epsilon_nano / NANO / max_per_user, 2)
        return CentralForecast(None, None, None, None, (unknown, *few))
    epsilon_nano = params.epsilon_nano
    route: RouteName
    if n_features > GRID_FEATURES and affords_block(epsilon_nano, params.delta_atto, max_per_user):
        epsilon, clusters, route = epsilon_nano / NANO / max_per_user, params.clusters, "block"
        warnings = _few_for_a_block(n_records, epsilon, clusters)
    else:
        epsilon, route = usable_epsilon(epsilon_nano, max_per_user), "grid" if n_features <= GRID_FEATURES else "steps"
        clusters = detectable_clusters(n_records, epsilon, n_features, params.clusters)
        warnings = _warnings(n_records, epsilon, n_features, params.clusters, clusters)
    families = forecast_families(route, n_records * epsilon, n_features, params.clusters, family)
    return CentralForecast(
        max(each.ratio for each in families),
        min(each.lower for each in families),
        max(each.upper for each in families),
        clusters,
        warnings,
        families,
    )


def check_over_records(params: CentralAlgorithm, n_features: int, max_per_user: int) -> None:
    """Check that an algorithm over records supports the number of features, and that ε covers private bounds.

    Laplace noise in each of more than 64 features would hide all clusters, so a delta is then required.

    Raises
    ------
    InvalidSpec
        States the limit and the remedy.
    """
    if not 1 <= n_features <= MAX_RECORD_FEATURES:
        raise InvalidSpec(f"records must have 1 to {MAX_RECORD_FEATURES} features, not {show(n_features)}")
    if params.definition.group == "shapes":
        params.require_features(n_features)
    params, _ = split_check(params)
    if params.bounds == "private":
        plan_bounds(params, n_features, max_per_user)
    if getattr(params, "mu", None) is not None and n_features <= GRID_FEATURES:
        raise InvalidSpec(MU_NEEDS_FEATURES)
    if n_features <= MAX_FEATURES:
        return
    if not params.definition.has_block:
        raise InvalidSpec(
            f"{params.type} takes at most {MAX_FEATURES} features: use private_kmeans with a delta, such as 1e-6"
        )
    if not params.delta:
        raise InvalidSpec(
            f"more than {MAX_FEATURES} features need a delta: set delta, such as 1e-6, which the dataset must have "
            "been granted"
        )
    if not affords_block(params.epsilon_nano, params.delta_atto, max_per_user):
        raise InvalidSpec(
            f"this epsilon and delta are too small for more than {MAX_FEATURES} features: increase epsilon or delta"
        )


def _few_for_a_block(n_records: float, epsilon: float, clusters: int) -> tuple[str, ...]:
    if n_records * epsilon >= CLEAR_BLOCK * clusters:
        return ()
    return (
        f"About {round(n_records)} records are few for {clusters} clusters at this epsilon: some centres may be "
        f"noise alone; about {ceil(CLEAR_BLOCK * clusters / epsilon)} would do.",
    )


def _few(n_records: float, epsilon: float, clusters: int) -> tuple[str, ...]:
    if n_records * epsilon >= CLEAR * clusters:
        return ()
    return (
        f"About {round(n_records)} records are few for {clusters} clusters at this epsilon: centres may be noise "
        f"alone; about {ceil(CLEAR * clusters / epsilon)} would do.",
    )


def _few_for_bounds(n_records: float, needed: int) -> tuple[str, ...]:
    if n_records >= needed:
        return ()
    return (
        f"About {round(n_records)} records are few for private bounds at this epsilon: the job would fail; about "
        f"{needed} would do.",
    )


def _too_wide(occupied_share: float) -> str:
    return (
        f"The data occupy about {occupied_share:.2g} of the bounds. The loss was not simulated for such wide bounds "
        "and can be many times larger. Narrower bounds, or private bounds over enough records, avoid it."
    )


def _few_for_a_check(n_records: float, n_features: int, needed: int) -> tuple[str, ...]:
    if n_records >= needed:
        return ()
    return (
        f"About {round(n_records)} records are few for a check of {n_features} features at this epsilon: it would find "
        f"nothing; about {needed} would do.",
    )


def _few_for_a_map(n_records: float, epsilon: float) -> tuple[str, ...]:
    if n_records * epsilon >= MAP_INFORMATION:
        return ()
    return (
        f"About {round(n_records)} records are few for a label map at this epsilon: clusters may be missing or noise; "
        f"about {ceil(MAP_INFORMATION / epsilon)} would do.",
    )


def _warnings(n_records: float, epsilon: float, n_features: int, clusters: int, detectable: int) -> tuple[str, ...]:
    if n_features <= GRID_FEATURES:
        return _few(n_records, epsilon, clusters)
    if detectable == clusters:
        return ()
    enough = ceil(max(ONE_MEAN_BELOW, (clusters - 0.5) / CLUSTERS_BY_U) * n_features / epsilon)
    most = f"at most {detectable} clusters can be separated"
    if detectable == 1:
        most = "one centre at their mean is better than more"
    return (
        f"About {round(n_records)} records are few for {clusters} clusters in {n_features} features at this epsilon: "
        f"{most}; about {enough} would do for {clusters}.",
    )
