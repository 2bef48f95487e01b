"""How plans size their rounds from public facts: grids, trees, shares of the draws, parts of epsilon.

One place for both who runs a plan and who forecasts one: `planned_rounds` is what a plan
goes by, so that a forecast cannot promise other rounds than will be opened. Public facts are
the parameters, the number of features and the reports expected; nothing here sees a report.
"""

from sfumato.errors import InvalidSpec
from sfumato.sizing.centroids import (
    FIRST_WEIGHT,
    MAX_KMEANS_CELLS,
    MAX_KMEANS_FEATURES,
    asks_density,
    asks_signs,
    centroid_shares,
    first_places,
    grid_kmeans_cells,
    of_grid_kmeans,
    of_ldp_kmeans,
    of_noisy_fcm,
    of_phase_sketch,
    of_valley_hashing,
    phases,
    refinement,
    sketched_reports,
)
from sfumato.sizing.enough import enough_reports, leaning_reports, noisy_reports, steady_reports
from sfumato.sizing.grids import (
    COARSE_CELLS,
    LEAST_BITS,
    MAX_CELLS,
    MAX_DEPTH,
    MAX_DEPTH_BITS,
    MAX_FINE_CELLS,
    MAX_GRID_FEATURES,
    MAX_PRINTED_CELLS,
    MAX_SHIFTED_FEATURES,
    SPLITS,
    check_height,
    deepest,
    dyadic,
    most_printed_cells,
    of_grid,
    of_shifted_grid,
    shifted_grid_cells,
    start_level,
    uniform_grid_cells,
)
from sfumato.sizing.rounds import (
    DENSE_SHARE,
    MAX_JSON_INT,
    MIN_EFFECTIVE_REPORTS,
    PlannedRound,
    Z,
    draws,
    effective_reports,
    largest,
    precision_of,
    reports_to_tell,
    spending,
)
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Algorithm,
    Auto,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    ShiftedGrid,
    UniformGrid,
    ValleyHashing,
)

__all__ = [
    "COARSE_CELLS",
    "DENSE_SHARE",
    "FIRST_WEIGHT",
    "LEAST_BITS",
    "MAX_CELLS",
    "MAX_DEPTH",
    "MAX_DEPTH_BITS",
    "MAX_FINE_CELLS",
    "MAX_GRID_FEATURES",
    "MAX_JSON_INT",
    "MAX_KMEANS_CELLS",
    "MAX_KMEANS_FEATURES",
    "MAX_PRINTED_CELLS",
    "MAX_SHIFTED_FEATURES",
    "MIN_EFFECTIVE_REPORTS",
    "SPLITS",
    "PlannedRound",
    "Z",
    "asks_density",
    "asks_signs",
    "centroid_shares",
    "check_height",
    "deepest",
    "draws",
    "dyadic",
    "effective_reports",
    "enough_reports",
    "first_places",
    "grid_kmeans_cells",
    "largest",
    "leaning_reports",
    "most_printed_cells",
    "noisy_reports",
    "phases",
    "planned_rounds",
    "precision_of",
    "refinement",
    "reports_to_tell",
    "shifted_grid_cells",
    "sketched_reports",
    "spending",
    "start_level",
    "steady_reports",
    "uniform_grid_cells",
]


def planned_rounds(params: Algorithm, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    """The rounds of a plan, in order, before anybody was asked anything.

    Parameters
    ----------
    params : Algorithm
        Not `Auto`, which stands for another: see `sfumato.forecast.choose`.
    n_features : int
    expected_reports : int
        At least 1.

    Raises
    ------
    InvalidSpec
        What the algorithm cannot take: features, cells, an epsilon too small to be divided.
    """
    if isinstance(params, ShiftedGrid):
        return of_shifted_grid(params, n_features, expected_reports)
    if isinstance(params, UniformGrid | AdaptiveGridIterative | AdaptiveGridTree):
        return of_grid(params, n_features, expected_reports)
    if isinstance(params, ValleyHashing):
        return of_valley_hashing(params, n_features)
    if isinstance(params, PhaseSketch):
        return of_phase_sketch(params, n_features, expected_reports)
    if isinstance(params, NoisyFcm):
        return of_noisy_fcm(params, n_features, expected_reports)
    if isinstance(params, GridKmeans):
        return of_grid_kmeans(params, n_features, expected_reports)
    if isinstance(params, LdpKmeans):
        return of_ldp_kmeans(params, n_features, expected_reports)
    assert isinstance(params, Auto)  # noqa: S101 - for the type checker: there is no other
    raise InvalidSpec("auto stands for another algorithm: choose it first")
