"""The rounds and the required reports of each local algorithm."""

from sfumato.errors import InvalidSpec
from sfumato.sizing import centroids, grids
from sfumato.sizing import required_reports as _  # noqa: F401 -- it registers the required reports
from sfumato.sizing.rounds import PLANNED, REQUIRED, PlannedRound
from sfumato.specs import Algorithm, PhaseSketch, ShiftedGrid
from sfumato.specs.attributes import Categorical


def planned_rounds(
    params: Algorithm,
    n_features: int,
    expected_reports: int,
    circles: tuple[int, ...] = (),
    attributes: tuple[Categorical, ...] = (),
) -> tuple[PlannedRound, ...]:
    """Return the rounds of a plan in order, before the first report.

    Parameters
    ----------
    params : Algorithm
        Any algorithm except `Auto`; see `sfumato.forecast.choose`.
    n_features : int
    expected_reports : int
        At least 1.
    circles : tuple of int
        Indices of the periodic features.
    attributes : tuple of Categorical
        Attributes by which the job clusters.

    Raises
    ------
    InvalidSpec
        The algorithm does not support the features, their circles, the attributes or the cells, or epsilon is too
        small to be divided.
    """
    if type(params) not in PLANNED:
        raise InvalidSpec("auto stands for another algorithm: choose it first")
    params.require_features(n_features)
    if circles:
        params = params.on_circles()
    if attributes:
        params.require_attributes(attributes)
        if isinstance(params, ShiftedGrid):
            return grids.categorical_rounds(params, n_features, expected_reports, circles, attributes)
        assert isinstance(params, PhaseSketch)  # noqa: S101 - for the type checker: no other takes attributes
        return centroids.categorical_rounds(params, n_features, expected_reports, attributes)
    rounds = PLANNED[type(params)](params, n_features, expected_reports)
    return tuple(each.over(circles) for each in rounds) if circles else rounds


def required_reports(params: Algorithm, n_features: int, expected_reports: int, n_attributes: int = 0) -> float | None:
    """Return the number of reports from which a result of centroids is not flagged, or None for other results.

    With attributes by which the job clusters, more reports are required.

    With more expected reports, `grid_kmeans` uses more cells and needs more reports. The number is that of the grid for
    `expected_reports`.

    Raises
    ------
    InvalidSpec
        The algorithm does not support the arguments.
    """
    rule = REQUIRED.get(type(params))
    if rule is None:
        return None
    params.require_features(n_features)
    return rule(params, n_features, expected_reports) * centroids.category_price(n_attributes)
