"""Rounds of plans over grids: shifted grids, uniform grids, dyadic cells, and grids as printed."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf, prod

from sfumato.errors import InvalidSpec
from sfumato.sizing.rounds import (
    PlannedRound,
    draws,
    effective_reports,
    largest,
    plans,
    precision_of,
    reports_to_tell,
    spending,
    whole_round,
)
from sfumato.specs import (
    MAX_CELL_SYMBOLS,
    MAX_SYMBOLS,
    AdaptiveGridIterative,
    AdaptiveGridTree,
    DensityMap,
    GridEncoding,
    Participation,
    SeriesAlgorithm,
    ShiftedGrid,
    ShiftedGridEncoding,
    UniformGrid,
)
from sfumato.specs.attributes import Categorical

MAX_GRID_FEATURES = UniformGrid.definition.max_features  # and of trees

# shifted_grid
MAX_SHIFTED_FEATURES = ShiftedGrid.definition.max_features
MAX_FINE_CELLS = 1 << 19  # maximum cells of the label map, for a fit within seconds

# Upper limit of N_eff; s and the length scale for one, two and three features. Two features: decision record 0029. One
# and three were measured: with one, 12 to 64 cells are equal; with three, s=8 below 1e5 and s=10 below 4e5 are worse.
_SHIFTED_GRIDS: tuple[tuple[float, tuple[tuple[int, float], ...]], ...] = (
    (1e4, ((16, 0.06), (8, 0.06), (5, 0.06))),
    (8e4, ((16, 0.06), (16, 0.06), (5, 0.06))),
    (5e5, ((24, 0.04), (16, 0.04), (6, 0.06))),
    (5e6, ((32, 0.04), (20, 0.04), (8, 0.06))),
    (inf, ((32, 0.03), (24, 0.03), (8, 0.06))),
)

# Few clusters in two features are found better with fewer cells, while noise rules: mean ARI of circles .51 -> .72 at
# 150,000 reports and epsilon 1 (ten runs), of moons .96 -> 1 at 15,000 and epsilon 2 (twelve runs). From 15 clusters
# on, it falls by about .07.
FEW_CLUSTERS, FEW_EFFECTIVE, FEW_CLUSTER_CELLS = 4, 8e4, 12

# density_map, over records
MAX_MAP_FEATURES = DensityMap.definition.max_features
MAP_INFORMATION = 1000.0  # N epsilon below which a map is flagged; the mean ARI of 22 sets is .7 there

# Upper limit of N epsilon; cells per feature and length scale for one, two and three features (decision 0022)
_MAP_GRIDS: tuple[tuple[float, tuple[tuple[int, float], ...]], ...] = (
    (600, ((64, 0.04), (16, 0.05), (12, 0.06))),
    (2000, ((128, 0.04), (24, 0.05), (16, 0.06))),
    (6000, ((128, 0.03), (48, 0.04), (16, 0.06))),
    (inf, ((256, 0.02), (64, 0.04), (24, 0.06))),
)

# uniform_grid
MAX_UNIFORM_CELLS = 1024  # per feature
MAX_PRINTED_CELLS = 1 << 16  # maximum for grids as printed; Theorem 1 can require more cells than people
COARSE_CELLS = 16  # cells per feature, within MAX_PRINTED_CELLS; the paper has no value

# dyadic cells
MAX_DEPTH_BITS = 16  # levels times features: 65,536 finest boxes
MAX_DEPTH = 9  # 512 cells per feature
MAX_CELLS = MAX_CELL_SYMBOLS  # maximum cells in a round of subset selection
DYADIC_DENSE_SHARE = 0.25  # r of the detectability rule k <= sqrt(N/v) / (z r), see `start_level`
SPLITS = 1  # levels below the first; with 2, the ARI of aniso fell by .1 or more at epsilon 1 and 2

# Minimum levels times features of a tree: 16 leaves per feature in two features. Levels below the noise are pooled.
# The mean ARI on moons, circles and aniso (150,000 points, epsilon .5) equals that with 8 leaves, .42.
LEAST_BITS = 8


@plans(ShiftedGrid)
def shifted_grid_rounds(params: ShiftedGrid, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    """Return the round of `shifted_grid`."""
    cells = params.cells or shifted_grid_cells(n_features, expected_reports, params.epsilon_nano, params.clusters)
    encoding = ShiftedGridEncoding(n_features, cells, params.shifts)
    if encoding.fine_cells**n_features > MAX_FINE_CELLS:
        raise InvalidSpec(f"cells and shifts make more than {MAX_FINE_CELLS} fine cells")
    return (whole_round(params.epsilon, encoding),)


def categorical_rounds(
    params: ShiftedGrid,
    n_features: int,
    expected_reports: int,
    circles: tuple[int, ...],
    attributes: tuple[Categorical, ...],
) -> tuple[PlannedRound, ...]:
    """Return the round of `shifted_grid` over the categories of an attribute.

    A category with the share s has the effective reports N_eff s^2, because the noise is that of all reports. So the
    grid is that of 1/V^2 of the reports, for V evenly frequent categories. A chosen number of cells is kept. Otherwise
    cells times categories are at most `MAX_CELL_SYMBOLS`.

    Raises
    ------
    InvalidSpec
        The fine cells of all categories are too many to fit, or fewer clusters than categories are requested.
    """
    n_categories = len(attributes[0].categories)
    check_clusters(params.clusters, attributes[0])
    if params.cells is None:
        of_each = None if params.clusters is None else ceil(params.clusters / n_categories)
        n_reports = max(1, expected_reports // n_categories**2)
        most = shifted_grid_cells(n_features, n_reports, params.epsilon_nano, of_each)
        cells = largest(lambda each: (each + 1) ** n_features * n_categories <= MAX_CELL_SYMBOLS, 2, most)
        params = replace(params, cells=cells)
    (only,) = shifted_grid_rounds(params, n_features, expected_reports)
    found = only.over(circles, attributes)
    assert isinstance(found.encoding, ShiftedGridEncoding)  # noqa: S101 - for the type checker
    if prod(found.encoding.fine_shape) > MAX_FINE_CELLS:
        raise InvalidSpec(
            f"cells, shifts and {n_categories} categories make more than {MAX_FINE_CELLS} fine cells: reduce cells"
        )
    return (found,)


def check_clusters(clusters: int | None, attribute: Categorical) -> None:
    """Raise InvalidSpec if fewer clusters are requested than an attribute has categories: each has at least one."""
    n_categories = len(attribute.categories)
    if clusters is not None and clusters < n_categories:
        raise InvalidSpec(
            f"clusters must be at least {n_categories}, because each category of {attribute.name} has clusters of its "
            f"own, not {clusters}: increase it, or leave out the attribute"
        )


def shifted_grid_cells(n_features: int, n_reports: int, epsilon_nano: int, clusters: int | None) -> int:
    """Return s, the coarse cells per feature, from N_eff and the requested number of clusters."""
    n_effective = effective_reports(n_reports, epsilon_nano)
    cells = _shifted_grid(n_features, n_effective)[0]
    is_coarse = n_features == 2 and clusters is not None and clusters <= FEW_CLUSTERS and n_effective < FEW_EFFECTIVE
    return min(cells, FEW_CLUSTER_CELLS) if is_coarse else cells


def shifted_grid_length_scale(n_features: int, n_effective: float) -> float:
    """Return ℓ, the length scale of the prior, from N_eff."""
    return _shifted_grid(n_features, n_effective)[1]


def _shifted_grid(n_features: int, n_effective: float) -> tuple[int, float]:
    return next(grids for below, grids in _SHIFTED_GRIDS if n_effective < below or below == inf)[n_features - 1]


def choose_map_grid(n_features: int, records_epsilon: float) -> tuple[int, float]:
    """Return the cells per feature and the length scale of `density_map`.

    Parameters
    ----------
    n_features : int
        1..3.
    records_epsilon : float
        N epsilon; epsilon per record.
    """
    return next(grids for below, grids in _MAP_GRIDS if records_epsilon < below)[n_features - 1]


def series_cells(algorithm: SeriesAlgorithm, n_features: int, n_expected: int, max_records_per_user: int = 1) -> int:
    """Return the cells per feature that all windows of a series share, for the reports or records of one window."""
    if algorithm.cells is not None:
        return algorithm.cells
    if algorithm.definition.needs_records:
        return choose_map_grid(n_features, n_expected * algorithm.epsilon / max_records_per_user)[0]
    return shifted_grid_cells(n_features, n_expected, algorithm.epsilon_nano, algorithm.clusters)


@plans(UniformGrid)
def grid_rounds(params: UniformGrid, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    """Return the round of `uniform_grid`, or the rounds as printed."""
    if params.variant == "paper":
        return _as_printed(n_features, spending(params.epsilon_nano, 2), [])
    cells = params.cells or uniform_grid_cells(n_features, expected_reports, params.epsilon_nano)
    return (whole_round(params.epsilon, GridEncoding((cells,) * n_features)),)


# ---- shifted_grid, uniform_grid ----


def uniform_grid_cells(n_features: int, n_reports: int, epsilon_nano: int) -> int:
    """Return the cells per feature of the finest grid with dense cells distinguishable from noise.

    If a share r of k cells contains all people, a dense cell contains about 1/(r k). It is
    distinguishable if this is z standard errors: k <= sqrt(N/v) / (z r), slightly less because of
    sampling (`reports_to_tell`). The paper spends half of epsilon on r. Here r = 1/2 without any
    report: in all but the flattest data, fewer than half of the cells exceed the mean density. On
    nine sets of 15,000 and 150,000 points at epsilon .5 to 4 the mean ARI was .43 for every r from 1/4 to 1/2, and
    .36 at r = 1.
    """
    most = min(MAX_UNIFORM_CELLS, int(round(MAX_SYMBOLS ** (1 / n_features), 6)))

    def is_detectable(cells: int) -> bool:
        k = cells**n_features
        return reports_to_tell(k, precision_of("auto", k, epsilon_nano).zero_variance) <= n_reports

    return largest(is_detectable, 2, most)


# ---- adaptive_grid_iterative, adaptive_grid_tree ----


@plans(AdaptiveGridIterative)
def pass_rounds(params: AdaptiveGridIterative, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    """Return the rounds of `adaptive_grid_iterative`: a grid, and a pass for each later part of the devices."""
    if params.variant == "paper":
        parts = spending(params.epsilon_nano, 3)
        passes = [(Participation(), part) for part in spending(parts[1], params.passes)]
        return _as_printed(n_features, parts, passes)
    level = start_level(n_features, expected_reports, params.epsilon_nano)
    finest = min(level + SPLITS, deepest(n_features))
    most = max(1 << level * n_features, min(MAX_CELLS, 1 << finest * n_features))
    first, *later = draws([1] * params.passes)
    epsilon_nano = params.epsilon_nano
    return (
        whole_round(params.epsilon, dyadic(n_features, level), first),
        *(PlannedRound(draw, "auto", epsilon_nano, most, adapts=True) for draw in later),
    )


@plans(AdaptiveGridTree)
def tree_rounds(params: AdaptiveGridTree, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    """Return the rounds of `adaptive_grid_tree`: a level for each part of the devices."""
    if params.variant == "paper":
        if params.height is not None:
            check_height(n_features, params.height)
        parts = spending(params.epsilon_nano, 3)
        return _as_printed(n_features, parts, [(draw, parts[1]) for draw in draws([1] * (params.height or 1))])
    height = params.height or max(
        LEAST_BITS // n_features, start_level(n_features, expected_reports, params.epsilon_nano)
    )
    check_height(n_features, height)
    levels = range(1, height + 1)
    of_levels = zip(levels, draws([1 << level * n_features for level in levels]), strict=True)
    return tuple(whole_round(params.epsilon, dyadic(n_features, level), draw) for level, draw in of_levels)


def deepest(n_features: int) -> int:
    """Return the finest level of dyadic cells that a plan uses."""
    return min(MAX_DEPTH, MAX_DEPTH_BITS // n_features)


def check_height(n_features: int, height: int) -> None:
    """Raise InvalidSpec for a tree with too many leaves."""
    if height > deepest(n_features):
        raise InvalidSpec(f"a tree over {n_features} features may have at most {deepest(n_features)} levels")


def dyadic(n_features: int, level: int) -> GridEncoding:
    """Return the grid of all cells of a level."""
    return GridEncoding((1 << level,) * n_features)


def start_level(n_features: int, n_reports: int, epsilon_nano: int) -> int:
    """Return the finest level with dense cells distinguishable from noise, at least 1.

    The rule k <= sqrt(N/v) / (z r) is that of `uniform_grid`, with r = 1/4: levels differ by a
    factor of 2**d cells, and single cells below the noise still add up along a cluster.
    """
    level = 1
    while level < deepest(n_features) and 1 << (level + 1) * n_features <= MAX_CELLS:
        k = 1 << (level + 1) * n_features
        needed = reports_to_tell(k, precision_of("auto", k, epsilon_nano).zero_variance, DYADIC_DENSE_SHARE)
        if needed > n_reports:
            break
        level += 1
    return level


# ---- as printed ----


def _as_printed(
    n_features: int, parts: Sequence[int], loop: Sequence[tuple[Participation, int]]
) -> tuple[PlannedRound, ...]:
    """Return a coarse round, the passes or levels, and a last round. Their costs add up for each device."""
    coarse = GridEncoding((min(COARSE_CELLS, most_printed_cells(n_features)),) * n_features)
    return (
        PlannedRound(Participation(), "grr", parts[0], coarse.n_symbols, coarse),
        *(PlannedRound(draw, "grr", nano, MAX_PRINTED_CELLS, adapts=True) for draw, nano in loop),
        PlannedRound(Participation(), "grr", parts[-1], MAX_PRINTED_CELLS, adapts=True),
    )


def most_printed_cells(n_features: int) -> int:
    """Return the cells per feature of the finest grid of at most MAX_PRINTED_CELLS."""
    return int(round(MAX_PRINTED_CELLS ** (1 / n_features), 6))
