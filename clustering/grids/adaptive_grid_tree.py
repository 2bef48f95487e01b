"""`adaptive_grid_tree`: all levels of a grid tree at once, read from the root; AGC2 of Zhang et al. 2023.

Differences from the paper: there is no coarse and no final round, so the devices of a level
report at the full epsilon. The estimates of all levels are made consistent, so every report
contributes to every level. The tree descends where a cell is uneven, not where it is sparse;
with the mean density as threshold it would stop at once. Regions have the greatest excess of
mass. `clustering.grids.adaptive_grid_paper` has `variant="paper"`.
"""

from collections.abc import Sequence

import numpy as np

from clustering.grids.adaptive_cells import CellEstimates, ConsistentEstimates, Partition, split, unevenness, uniform
from clustering.grids.adaptive_grid_paper import paper_tree_rounds
from clustering.grids.adaptive_model import RoundEstimates, Rounds, adaptive_model
from clustering.grids.uniform_grid_paper import run_paper_plan
from clustering.rounds.plan import Plan
from sfumato.sizing import planned_rounds
from sfumato.sizing.rounds import PlannedRound
from sfumato.specs import AdaptiveGridTree, Feature

# Least unevenness of a cell to split, as chi² of its descendants in standard deviations above the mean of noise.
UNEVEN = 1.0


def adaptive_grid_tree(params: AdaptiveGridTree, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """Return the plan: one round per level, with devices in proportion to its number of cells.

    Parameters
    ----------
    params : AdaptiveGridTree
    features : tuple of Feature
        One to eight.
    expected_reports : int
        Determines the height unless `params.height` is given, from 16 leaves per feature up.

    Raises
    ------
    InvalidSpec
        The number of features or the height is not supported.
    TooFewReports
        No round has reports.
    UnfitRound
        A published round does not have dyadic cells, or carries no information.
    """
    planned = planned_rounds(params, len(features), expected_reports)
    if params.variant == "paper":
        return (yield from run_paper_plan(params.clusters, lambda: paper_tree_rounds(params, features)))

    def rounds() -> Rounds:
        return _levels(features, planned)

    progress, partition = yield from rounds()
    return adaptive_model(params.clusters, features, progress, partition, rounds)


def _levels(features: tuple[Feature, ...], planned: Sequence[PlannedRound]) -> Rounds:
    """Run the rounds and return their estimates and the cells where the tree stops."""
    progress = RoundEstimates(CellEstimates(len(features)))
    depth = 0
    for planned_round in planned:  # one round per level
        depth = max(depth, progress.add((yield planned_round.spec(features))).depth)
    return progress, grow(progress.history.reconcile(depth), depth)


def grow(reconciled: ConsistentEstimates, depth: int) -> Partition:
    """Return the cells where the tree stops: even cells, and leaves.

    A cell is even if at every level below, chi² of its estimates is at most `UNEVEN` standard
    deviations above the mean of noise. The whole box is always split.
    """
    partition = uniform(reconciled.n_features, 1)
    for level in range(1, depth):
        n_cells = 1 << level * reconciled.n_features
        is_uneven = np.zeros(n_cells, dtype=np.bool_)
        for below in range(level + 1, depth + 1):
            values, variances = reconciled.values[below], reconciled.variances[below]
            is_uneven |= unevenness(values.reshape(n_cells, -1), variances.reshape(n_cells, -1)) > UNEVEN
        here = partition.levels == level
        partition = split(partition, here & is_uneven[np.where(here, partition.places, 0)])
    return partition
