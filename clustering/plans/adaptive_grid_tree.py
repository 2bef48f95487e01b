"""`adaptive_grid_tree`: every level of a grid tree at once, read from the top; AGC2 of paper 000 (STATISTICS 3.1).

Against the paper, in the sound form: no coarse round and no final round, so the devices of
a level report at the full epsilon; the levels' estimates are made to fit one another, so
that every report counts at every level; the tree goes down where a cell is uneven, not
where it is sparse (by the mean density it would stop at once); and the regions are those
of most excess mass. `variant="paper"` is in `clustering.plans.adaptive_grid_paper`.
"""

import numpy as np

from clustering.adaptive_cells import History, Partition, Reconciled, deepest, split, uneven, uniform
from clustering.adaptive_model import Progress, adaptive_model, check_features, draws, start_level
from clustering.plan import Plan
from clustering.plans.adaptive_grid_paper import tree_as_printed
from sfumato.accounting import parse_epsilon
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.specs import AdaptiveGridTree, Feature, RoundSpec

# A cell is gone down into where the unevenness of what is below, by chi², is this many
# standard deviations above that of noise; see `grow`.
UNEVEN = 1.0

# Levels times features of the lowest tree: 16 leaves per feature in two. What lies below what
# can be told from noise is pooled; against 8 leaves the mean ARI on moons, circles and aniso
# (150,000 points, epsilon .5) was as good (.42 for .42): aniso gained what moons lost.
LEAST_BITS = 8


def adaptive_grid_tree(params: AdaptiveGridTree, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan: one round for each level, for draws in proportion to its number of cells.

    Parameters
    ----------
    params : AdaptiveGridTree
    features : tuple of Feature
        One to eight.
    expected_reports : int
        Sets the height where `params.height` does not, from 16 leaves per feature up.

    Raises
    ------
    InvalidSpec
        Another number of features, or too high a tree.
    TooFewReports
        No round brought any.
    UnfitRound
        A published round is not of dyadic cells, or tells nothing.
    """
    check_features("adaptive_grid_tree", features)
    if params.variant == "paper":
        return (yield from tree_as_printed(params, features))
    d, epsilon_nano = len(features), parse_epsilon(params.epsilon)
    height = params.height or max(LEAST_BITS // d, start_level(d, expected_reports, epsilon_nano))
    check_height(d, height)
    progress = Progress(History(d))
    depth = 0
    for level, draw in zip(
        range(1, height + 1), draws([1 << level * d for level in range(1, height + 1)]), strict=True
    ):
        encoding = uniform(d, level).encoding()
        mechanism = design("auto", encoding.n_symbols, epsilon_nano)
        depth = max(depth, progress.add((yield RoundSpec(features, encoding, mechanism, draw))).depth)
    partition = grow(progress.history.reconcile(depth), depth)
    return adaptive_model(params.clusters, features, progress, partition)


def check_height(n_features: int, height: int) -> None:
    """Raise InvalidSpec for a tree whose leaves are too many."""
    if height > deepest(n_features):
        raise InvalidSpec(f"a tree over {n_features} features has at most {deepest(n_features)} levels")


def grow(reconciled: Reconciled, depth: int) -> Partition:
    """The cells where the tree stops: even ones, and the leaves.

    A cell is even where at every level below the estimates differ by no more than noise
    explains, and `UNEVEN` standard deviations of chi² more. The whole box is always gone down
    into.
    """
    partition = uniform(reconciled.n_features, 1)
    for level in range(1, depth):
        n_cells = 1 << level * reconciled.n_features
        goes_on = np.zeros(n_cells, dtype=np.bool_)
        for below in range(level + 1, depth + 1):
            values, variances = reconciled.values[below], reconciled.variances[below]
            goes_on |= uneven(values.reshape(n_cells, -1), variances.reshape(n_cells, -1)) > UNEVEN
        here = partition.levels == level
        partition = split(partition, here & goes_on[np.where(here, partition.places, 0)])
    return partition
