"""AGC1 and AGC2 of paper 000 as printed, where the print is well defined.

Every device answers the coarse round, the rounds of the feedback loop and the last one, so
their costs add up: a third of the epsilon each. AGC1's third is divided once more among its
passes, which the paper charges once for all; AGC2's loop is for one level a device.
"""

from dataclasses import replace
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from clustering.adaptive_cells import Partition, beside, estimates_of, merge, split, uniform
from clustering.decoders import decoder
from clustering.plan import Collected
from clustering.plans.uniform_grid_paper import Printed, PrintedRounds, Share, coarse_round, granularity
from sfumato.sizing import PlannedRound, deepest, draws, planned_rounds
from sfumato.specs import AdaptiveGridIterative, AdaptiveGridTree, Feature

MAX_SPLITS = 2  # of one first cell: the paper lets them be split for ever


def passes_as_printed(params: AdaptiveGridIterative, features: tuple[Feature, ...]) -> PrintedRounds:
    """Algorithms 1, 2 and 4: the coarse round, T passes, the last round.

    A cell is dense where its pass finds more than the mean density. Siblings that are all
    dense are merged; a sparse cell with a dense sibling is split, as the text says
    (Algorithm 2 splits every sparse cell).

    Raises
    ------
    InvalidSpec
        Another number of features, or an epsilon too small for so many passes.
    TooFewReports
        The coarse or the last round brought nothing.
    UnfitRound
        A published round is not of dyadic cells, or tells nothing.
    """
    d = len(features)
    coarse, *passes, last = planned_rounds(params, d, 1)
    share = yield from coarse_round(features, coarse)
    level = min(max(1, round(-log2(granularity(share, coarse.epsilon_nano, d)))), deepest(d) - 1)
    partition = uniform(d, level)
    for asked_again in passes:
        answered = yield asked_again.spec(features, partition.encoding())
        partition, dense = dense_cells(answered)
        partition = adapt_as_printed(partition, dense, min(level + MAX_SPLITS, deepest(d)))
    return (yield from _last_round(features, partition, last, share))


def tree_as_printed(params: AdaptiveGridTree, features: tuple[Feature, ...]) -> PrintedRounds:
    """Algorithms 1, 3 and 4: the coarse round, one round for each level of the tree, the last round.

    From the first level down, a cell that its level finds dense is a cell of the last round,
    and a sparse one is gone down into.

    Raises
    ------
    InvalidSpec
        Another number of features, too high a tree, or an epsilon too small to be spent in three.
    TooFewReports
        The coarse or the last round brought nothing.
    UnfitRound
        A published round is not of dyadic cells, or tells nothing.
    """
    d = len(features)
    coarse, of_levels, *_, last = planned_rounds(params, d, 1)
    share = yield from coarse_round(features, coarse)
    height = params.height or min(max(1, ceil(-log2(granularity(share, coarse.epsilon_nano, d)))), deepest(d))
    partition = uniform(d, 1)
    for level, draw in enumerate(draws([1] * height), start=1):
        answered = yield replace(of_levels, draw=draw).spec(features, uniform(d, level).encoding())
        asked, dense = dense_cells(answered)
        if level < height and asked.depth == level and (asked.levels == level).all():
            here = partition.levels == level
            partition = split(partition, here & ~dense[np.where(here, partition.places, 0)])
    return (yield from _last_round(features, partition, last, share))


def dense_cells(answered: Collected) -> tuple[Partition, NDArray[np.bool_]]:
    """The cells of a round, and which hold more than the mean density."""
    partition, estimates = estimates_of(answered, decoder(answered.spec.mechanism))
    return partition, estimates > partition.volumes


def adapt_as_printed(partition: Partition, dense: NDArray[np.bool_], finest_level: int) -> Partition:
    """Merge siblings that are all dense, split sparse cells with a dense sibling."""
    edge = ~dense & beside(partition, dense) & (partition.levels < finest_level)
    carried = np.repeat(dense & (partition.levels > 1), np.where(edge, 1 << partition.n_features, 1))
    return merge(split(partition, edge), carried)


def _last_round(features: tuple[Feature, ...], partition: Partition, last: PlannedRound, share: Share) -> PrintedRounds:
    answered = yield last.spec(features, partition.encoding())
    cells, estimates = estimates_of(answered, decoder(answered.spec.mechanism))
    diagnostics = {"dense_share": share.dense, "levels": np.bincount(cells.levels).tolist()}
    return Printed(answered, cells.cell_map(), estimates, diagnostics)
