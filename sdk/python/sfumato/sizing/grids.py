"""How plans over grids size them: shifted grids, plain grids, dyadic cells, and grids as printed."""

from sfumato.accounting import parse_epsilon
from sfumato.errors import InvalidSpec
from sfumato.sizing.rounds import (
    PlannedRound,
    draws,
    effective_reports,
    largest,
    precision_of,
    reports_to_tell,
    spending,
    whole_round,
)
from sfumato.specs import (
    MAX_SUBSET_SYMBOLS,
    MAX_SYMBOLS,
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Draw,
    GridEncoding,
    ShiftedGrid,
    ShiftedGridEncoding,
    UniformGrid,
)

MAX_GRID_FEATURES = 8  # of plain grids and trees

# shifted_grid
MAX_SHIFTED_FEATURES = 3
MAX_FINE_CELLS = 1 << 19  # of the label map: what a fit takes in seconds

# N_eff below which; s for one, two and three features. Two: STATISTICS 3.2. One and three were
# measured: one feature is flat from 12 to 64, three lose by s=8 below 1e5 and by s=10 below 4e5.
_CELLS_BY_EFFECTIVE_REPORTS = ((1e5, (16, 8, 5)), (4e5, (24, 12, 6)), (float("inf"), (32, 16, 8)))

# uniform_grid
MAX_UNIFORM_CELLS = 1024  # per feature
MAX_PRINTED_CELLS = 1 << 16  # of any grid as printed: Theorem 1 can ask for more cells than there are people
COARSE_CELLS = 16  # per feature, where that is at most MAX_PRINTED_CELLS; the paper does not say

# dyadic cells
MAX_DEPTH_BITS = 16  # levels times features: 65,536 finest boxes
MAX_DEPTH = 9  # 512 cells per feature
MAX_CELLS = MAX_SUBSET_SYMBOLS  # of one round: what subset selection carries
DYADIC_DENSE_SHARE = 0.25  # r of the detectability rule k <= sqrt(N/v) / (z r), see `start_level`
SPLITS = 1  # levels below the first; with 2, aniso at epsilon 1 and 2 lost .1 or more of its ARI

# Levels times features of the lowest tree: 16 leaves per feature in two. What lies below what
# can be told from noise is pooled; against 8 leaves the mean ARI on moons, circles and aniso
# (150,000 points, epsilon .5) was as good (.42 for .42): aniso gained what moons lost.
LEAST_BITS = 8


def of_shifted_grid(params: ShiftedGrid, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    if not 1 <= n_features <= MAX_SHIFTED_FEATURES:
        raise InvalidSpec(f"shifted_grid takes 1 to {MAX_SHIFTED_FEATURES} features")
    cells = params.cells or shifted_grid_cells(n_features, expected_reports, parse_epsilon(params.epsilon))
    encoding = ShiftedGridEncoding(n_features, cells, params.shifts)
    if encoding.fine_cells**n_features > MAX_FINE_CELLS:
        raise InvalidSpec(f"cells and shifts make more than {MAX_FINE_CELLS} fine cells")
    return (whole_round(params.epsilon, encoding),)


def shifted_grid_cells(n_features: int, n_reports: int, epsilon_nano: int) -> int:
    """s, coarse cells per feature, by N_eff."""
    effective = effective_reports(n_reports, epsilon_nano)
    return next(cells for below, cells in _CELLS_BY_EFFECTIVE_REPORTS if effective < below)[n_features - 1]


def of_grid(
    params: UniformGrid | AdaptiveGridIterative | AdaptiveGridTree, n_features: int, expected_reports: int
) -> tuple[PlannedRound, ...]:
    if not 1 <= n_features <= MAX_GRID_FEATURES:
        raise InvalidSpec(f"{params.type} takes 1 to {MAX_GRID_FEATURES} features")
    if params.variant == "paper":
        return _as_printed(params, n_features)
    if isinstance(params, UniformGrid):
        cells = params.cells or uniform_grid_cells(n_features, expected_reports, parse_epsilon(params.epsilon))
        return (whole_round(params.epsilon, GridEncoding((cells,) * n_features)),)
    if isinstance(params, AdaptiveGridIterative):
        return _of_passes(params, n_features, expected_reports)
    return _of_tree(params, n_features, expected_reports)


# ---- shifted_grid, uniform_grid ----


def uniform_grid_cells(n_features: int, n_reports: int, epsilon_nano: int) -> int:
    """Cells per feature of the finest grid whose dense cells can be told from noise.

    If a share r of k cells holds everybody, a dense cell holds about 1/(r k), and it is told
    from noise when that is z standard errors: k <= sqrt(N/v) / (z r), and a little less for
    sampling (`reports_to_tell`). The paper spends half of its epsilon on r. Here r = 1/2
    without a look at anybody: fewer than half of the cells exceed the mean density in all but
    the flattest data. On nine sets of 15,000 and 150,000 points at epsilon .5 to 4 the mean
    ARI was .43 for every r from 1/4 to 1/2, and .36 at r = 1.
    """
    most = min(MAX_UNIFORM_CELLS, int(round(MAX_SYMBOLS ** (1 / n_features), 6)))

    def is_detectable(cells: int) -> bool:
        k = cells**n_features
        return reports_to_tell(k, precision_of("auto", k, epsilon_nano).zero_variance) <= n_reports

    return largest(is_detectable, 2, most)


# ---- adaptive_grid_iterative, adaptive_grid_tree ----


def _of_passes(params: AdaptiveGridIterative, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    level = start_level(n_features, expected_reports, parse_epsilon(params.epsilon))
    finest = min(level + SPLITS, deepest(n_features))
    most = max(1 << level * n_features, min(MAX_CELLS, 1 << finest * n_features))
    first, *later = draws([1] * params.passes)
    epsilon_nano = parse_epsilon(params.epsilon)
    return (
        whole_round(params.epsilon, dyadic(n_features, level), first),
        *(PlannedRound(draw, "auto", epsilon_nano, most, adapts=True) for draw in later),
    )


def _of_tree(params: AdaptiveGridTree, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    height = params.height or max(
        LEAST_BITS // n_features, start_level(n_features, expected_reports, parse_epsilon(params.epsilon))
    )
    check_height(n_features, height)
    levels = range(1, height + 1)
    parts = draws([1 << level * n_features for level in levels])
    return tuple(
        whole_round(params.epsilon, dyadic(n_features, level), draw) for level, draw in zip(levels, parts, strict=True)
    )


def deepest(n_features: int) -> int:
    """The finest level of dyadic cells that a plan uses."""
    return min(MAX_DEPTH, MAX_DEPTH_BITS // n_features)


def check_height(n_features: int, height: int) -> None:
    """Raise InvalidSpec for a tree whose leaves are too many."""
    if height > deepest(n_features):
        raise InvalidSpec(f"a tree over {n_features} features has at most {deepest(n_features)} levels")


def dyadic(n_features: int, level: int) -> GridEncoding:
    """All cells of one level."""
    return GridEncoding((1 << level,) * n_features)


def start_level(n_features: int, n_reports: int, epsilon_nano: int) -> int:
    """The finest level whose dense cells can be told from noise, at least 1.

    k <= sqrt(N/v) / (z r), as `uniform_grid` sizes its grid, with r = 1/4: levels come in
    steps of 2**d cells, and cells that cannot be told from noise one by one still add up
    along a cluster.
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
    params: UniformGrid | AdaptiveGridIterative | AdaptiveGridTree, n_features: int
) -> tuple[PlannedRound, ...]:
    """A coarse round for every draw; the passes or levels; a last round for every draw: their costs add up."""
    parts = spending(parse_epsilon(params.epsilon), 2 if isinstance(params, UniformGrid) else 3)
    loop: list[tuple[Draw, int]] = []
    if isinstance(params, AdaptiveGridIterative):
        loop = [(Draw(), part) for part in spending(parts[1], params.passes)]
    elif isinstance(params, AdaptiveGridTree):
        if params.height is not None:
            check_height(n_features, params.height)
        loop = [(draw, parts[1]) for draw in draws([1] * (params.height or 1))]
    coarse = GridEncoding((min(COARSE_CELLS, most_printed_cells(n_features)),) * n_features)
    return (
        PlannedRound(Draw(), "grr", parts[0], coarse.n_symbols, coarse),
        *(PlannedRound(draw, "grr", nano, MAX_PRINTED_CELLS, adapts=True) for draw, nano in loop),
        PlannedRound(Draw(), "grr", parts[-1], MAX_PRINTED_CELLS, adapts=True),
    )


def most_printed_cells(n_features: int) -> int:
    """Cells per feature of the finest grid of at most MAX_PRINTED_CELLS."""
    return int(round(MAX_PRINTED_CELLS ** (1 / n_features), 6))
