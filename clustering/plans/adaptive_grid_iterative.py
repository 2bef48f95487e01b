"""`adaptive_grid_iterative`: cells split and merged from round to round; AGC1 of paper 000 (STATISTICS 3.1).

Against the paper, in the sound form: no coarse round and no final round; each pass is a
round of its own for its part of the draws, at the full epsilon, and they are counted; what
earlier rounds told of a cell, of its parts or of what it is part of, counts on; a cell is
split where it is not clearly dense but a sibling is, and siblings are merged where all are
clearly dense and alike; and the regions are those of most excess mass.
`variant="paper"` is in `clustering.plans.adaptive_grid_paper`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clustering.adaptive_cells import (
    History,
    Partition,
    Reconciled,
    beside,
    families,
    merge,
    split,
    uneven,
    uniform,
)
from clustering.adaptive_model import Progress, Rounds, adaptive_model
from clustering.plan import Plan
from clustering.plans.adaptive_grid_paper import passes_as_printed
from clustering.plans.adaptive_grid_tree import grow
from clustering.plans.uniform_grid_paper import printed_plan
from sfumato.accounting import parse_epsilon
from sfumato.sizing import MAX_CELLS, SPLITS, PlannedRound, deepest, planned_rounds, start_level
from sfumato.specs import AdaptiveGridIterative, Feature

CLEARLY = 2.0  # standard errors that a dense cell stands above the mean density


def adaptive_grid_iterative(
    params: AdaptiveGridIterative, features: tuple[Feature, ...], expected_reports: int
) -> Plan:
    """The plan: `params.passes` rounds for equal parts of the draws, each over the cells as adapted so far.

    Parameters
    ----------
    params : AdaptiveGridIterative
    features : tuple of Feature
        One to eight.
    expected_reports : int
        Sizes the first cells.

    Raises
    ------
    InvalidSpec
        Another number of features.
    TooFewReports
        No round brought any.
    UnfitRound
        A published round is not of dyadic cells, or tells nothing.
    """
    planned = planned_rounds(params, len(features), expected_reports)
    if params.variant == "paper":
        return (yield from printed_plan(params.clusters, lambda: passes_as_printed(params, features)))

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
    """The rounds, to what they told and the cells as adapted by the end."""
    d = len(features)
    level = start_level(d, expected_reports, parse_epsilon(params.epsilon))
    finest = min(level + SPLITS, deepest(d))
    progress, partition = Progress(History(d)), uniform(d, level)
    for done, asked in enumerate(planned, start=1):
        partition = progress.add((yield asked.spec(features, partition.encoding())))
        if done < len(planned):
            partition = adapt(partition, progress.history.reconcile(partition.depth), finest)
    if params.clusters is None:  # bumps are counted over cells that noise alone does not part
        partition = grow(progress.history.reconcile(partition.depth), partition.depth)
    return progress, partition


def adapt(partition: Partition, reconciled: Reconciled, finest: int) -> Partition:
    """The cells of the next round.

    Split: a cell that is not clearly dense beside a sibling that is. Merged: siblings that
    are all clearly dense and differ by no more than noise explains. Nothing is changed where
    nothing is clear, so noise adds no cells.
    """
    estimates, variances = reconciled.of(partition)
    dense = estimates - partition.volumes > CLEARLY * np.sqrt(variances)
    edge = ~dense & beside(partition, dense) & (partition.levels < finest)
    edge = _most(edge, estimates / partition.volumes, (MAX_CELLS - len(dense)) >> partition.n_features)
    alike = dense & _alike(partition, estimates, variances) & (partition.levels > 1)
    carried = np.repeat(alike, np.where(edge, 1 << partition.n_features, 1))
    return merge(split(partition, edge), carried)


def _most(chosen: NDArray[np.bool_], by: NDArray[np.float64], at_most: int) -> NDArray[np.bool_]:
    """Of the chosen, those of the largest values, where they are too many."""
    (places,) = np.nonzero(chosen)
    kept = np.zeros_like(chosen)
    kept[places[np.argsort(-by[places], kind="stable")[: max(at_most, 0)]]] = True
    return kept


def _alike(partition: Partition, estimates: NDArray[np.float64], variances: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which cells' siblings are all there, and differ by no more than noise explains."""
    n_siblings = 1 << partition.n_features
    family = families(partition)
    whole = np.bincount(family)[family] == n_siblings
    alike = np.zeros(len(family), dtype=np.bool_)
    if whole.any():  # siblings follow one another
        rows = uneven(estimates[whole].reshape(-1, n_siblings), variances[whole].reshape(-1, n_siblings))
        alike[whole] = np.repeat(rows <= 0, n_siblings)
    return alike
