"""`adaptive_grid_iterative`: cells that are split and merged between rounds; AGC1 of Zhang et al. 2023.

Differences from the paper: there is no coarse and no final round. Each pass is a round for
its part of the devices at the full epsilon, and the number of passes is bounded. Estimates of
earlier rounds for a cell, its parts and its ancestors are reused. A cell is split if it is not
clearly dense and a sibling is. Siblings are merged if all are clearly dense and alike.
Regions have the greatest excess of mass.
`clustering.grids.adaptive_grid_paper` has `variant="paper"`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clustering.grids.adaptive_cells import (
    CellEstimates,
    ConsistentEstimates,
    Partition,
    families,
    has_marked_sibling,
    merge,
    split,
    unevenness,
    uniform,
)
from clustering.grids.adaptive_grid_paper import paper_pass_rounds
from clustering.grids.adaptive_grid_tree import grow
from clustering.grids.adaptive_model import RoundEstimates, Rounds, adaptive_model
from clustering.grids.uniform_grid_paper import run_paper_plan
from clustering.rounds.plan import Plan
from sfumato.sizing import planned_rounds
from sfumato.sizing.grids import MAX_CELLS, SPLITS, deepest, start_level
from sfumato.sizing.rounds import PlannedRound
from sfumato.specs import AdaptiveGridIterative, Feature

CLEARLY = 2.0  # least excess of a clearly dense cell over the mean density, in standard errors


def adaptive_grid_iterative(
    params: AdaptiveGridIterative, features: tuple[Feature, ...], expected_reports: int
) -> Plan:
    """Return the plan: `params.passes` rounds for equal parts of the devices, each over the adapted cells.

    Parameters
    ----------
    params : AdaptiveGridIterative
    features : tuple of Feature
        One to eight.
    expected_reports : int
        Determines the size of the first cells.

    Raises
    ------
    InvalidSpec
        The number of features is not supported.
    TooFewReports
        No round has reports.
    UnfitRound
        A published round does not have dyadic cells, or carries no information.
    """
    planned = planned_rounds(params, len(features), expected_reports)
    if params.variant == "paper":
        return (yield from run_paper_plan(params.clusters, lambda: paper_pass_rounds(params, features)))

    def rounds() -> Rounds:
        return _passes(params, features, expected_reports, planned)

    progress, partition = yield from rounds()
    return adaptive_model(params.clusters, features, progress, partition, rounds)


def _passes(
    params: AdaptiveGridIterative,
    features: tuple[Feature, ...],
    expected_reports: int,
    planned: Sequence[PlannedRound],
) -> Rounds:
    """Run the rounds and return their estimates and the final cells."""
    d = len(features)
    level = start_level(d, expected_reports, params.epsilon_nano)
    finest = min(level + SPLITS, deepest(d))
    progress, partition = RoundEstimates(CellEstimates(d)), uniform(d, level)
    for done, planned_round in enumerate(planned, start=1):
        partition = progress.add((yield planned_round.spec(features, partition.encoding())))
        if done < len(planned):
            partition = adapt(partition, progress.history.reconcile(partition.depth), finest)
    if params.clusters is None:  # count bumps over cells that noise alone does not split
        partition = grow(progress.history.reconcile(partition.depth), partition.depth)
    return progress, partition


def adapt(partition: Partition, reconciled: ConsistentEstimates, finest: int) -> Partition:
    """Return the cells of the next round.

    A cell is split if it is not clearly dense and a sibling is. Siblings are merged if all are
    clearly dense and differ no more than by noise. Other cells stay, so noise adds no cells.
    """
    estimates, variances = reconciled.of(partition)
    dense = estimates - partition.volumes > CLEARLY * np.sqrt(variances)
    edge = ~dense & has_marked_sibling(partition, dense) & (partition.levels < finest)
    edge = _most(edge, estimates / partition.volumes, (MAX_CELLS - len(dense)) >> partition.n_features)
    alike = dense & _alike(partition, estimates, variances) & (partition.levels > 1)
    carried = np.repeat(alike, np.where(edge, 1 << partition.n_features, 1))
    return merge(split(partition, edge), carried)


def _most(chosen: NDArray[np.bool_], by: NDArray[np.float64], at_most: int) -> NDArray[np.bool_]:
    """Return the chosen cells with the largest values, at most `at_most`."""
    (places,) = np.nonzero(chosen)
    kept = np.zeros_like(chosen)
    kept[places[np.argsort(-by[places], kind="stable")[: max(at_most, 0)]]] = True
    return kept


def _alike(partition: Partition, estimates: NDArray[np.float64], variances: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether each cell's family is complete and differs no more than by noise."""
    n_siblings = 1 << partition.n_features
    family = families(partition)
    whole = np.bincount(family)[family] == n_siblings
    alike = np.zeros(len(family), dtype=np.bool_)
    if whole.any():  # siblings are adjacent
        rows = unevenness(estimates[whole].reshape(-1, n_siblings), variances[whole].reshape(-1, n_siblings))
        alike[whole] = np.repeat(rows <= 0, n_siblings)
    return alike
