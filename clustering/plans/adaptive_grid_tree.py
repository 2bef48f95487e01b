"""`adaptive_grid_tree`: every level of a grid tree at once, read from the top; AGC2 of paper 000 (STATISTICS 3.1).

Against the paper, in the sound form: no coarse round and no final round, so the devices of
a level report at the full epsilon; the levels' estimates are made to fit one another, so
that every report counts at every level; the tree goes down where a cell is uneven, not
where it is sparse (by the mean density it would stop at once); and the regions are those
of most excess mass. `variant="paper"` is in `clustering.plans.adaptive_grid_paper`.
"""

from collections.abc import Sequence

import numpy as np

from clustering.adaptive_cells import History, Partition, Reconciled, split, uneven, uniform
from clustering.adaptive_model import Progress, Rounds, adaptive_model
from clustering.plan import Plan
from clustering.plans.adaptive_grid_paper import tree_as_printed
from clustering.plans.uniform_grid_paper import printed_plan
from sfumato.sizing import PlannedRound, planned_rounds
from sfumato.specs import AdaptiveGridTree, Feature

# A cell is gone down into where the unevenness of what is below, by chi², is this many
# standard deviations above that of noise; see `grow`.
UNEVEN = 1.0


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
    planned = planned_rounds(params, len(features), expected_reports)
    if params.variant == "paper":
        return (yield from printed_plan(params.clusters, lambda: tree_as_printed(params, features)))

    def rounds() -> Rounds:
        return _levels(features, planned)

    progress, partition = yield from rounds()
    return adaptive_model(params.clusters, features, progress, partition, rounds)


def _levels(features: tuple[Feature, ...], planned: Sequence[PlannedRound]) -> Rounds:
    """The rounds, to what they told and the cells where the tree stops."""
    progress = Progress(History(len(features)))
    depth = 0
    for asked in planned:  # a level each
        depth = max(depth, progress.add((yield asked.spec(features))).depth)
    return progress, grow(progress.history.reconcile(depth), depth)


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
