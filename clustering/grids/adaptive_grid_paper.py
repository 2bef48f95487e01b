"""AGC1 and AGC2 of Zhang et al. 2023 as printed, where the printed method is well defined.

Every device reports in the coarse round, the feedback rounds and the last round, so the costs
add up and each gets a third of the epsilon. AGC1 divides its third among its passes; the
paper charges them once. In AGC2 a device reports in the feedback round of one level.
"""

from dataclasses import replace
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from clustering.grids.adaptive_cells import Partition, estimates_of, has_marked_sibling, merge, split, uniform
from clustering.grids.uniform_grid_paper import DenseShare, PaperResult, PaperRounds, coarse_round, granularity
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected
from sfumato.sizing import planned_rounds
from sfumato.sizing.grids import deepest
from sfumato.sizing.rounds import PlannedRound, draws
from sfumato.specs import AdaptiveGridIterative, AdaptiveGridTree, Feature

MAX_SPLITS = 2  # splits of a first cell; the paper has no limit


def paper_pass_rounds(params: AdaptiveGridIterative, features: tuple[Feature, ...]) -> PaperRounds:
    """Run Algorithms 1, 2 and 4: the coarse round, T passes and the last round.

    A cell is dense if its estimate exceeds the mean density. Siblings that are all dense are
    merged. A sparse cell with a dense sibling is split, following the text
    (Algorithm 2 splits every sparse cell).

    Raises
    ------
    InvalidSpec
        The number of features is not supported, or epsilon is too small for the passes.
    TooFewReports
        The coarse or the last round has no reports.
    UnfitRound
        A published round does not have dyadic cells, or carries no information.
    """
    d = len(features)
    coarse, *passes, last = planned_rounds(params, d, 1)
    share = yield from coarse_round(features, coarse)
    level = min(max(1, round(-log2(granularity(share, coarse.epsilon_nano, d)))), deepest(d) - 1)
    partition = uniform(d, level)
    for planned_pass in passes:
        collected = yield planned_pass.spec(features, partition.encoding())
        partition, dense = dense_cells(collected)
        partition = merge_and_split(partition, dense, min(level + MAX_SPLITS, deepest(d)))
    return (yield from _last_round(features, partition, last, share))


def paper_tree_rounds(params: AdaptiveGridTree, features: tuple[Feature, ...]) -> PaperRounds:
    """Run Algorithms 1, 3 and 4: the coarse round, one round per level of the tree, and the last round.

    From the first level down, a dense cell becomes a cell of the last round. A sparse cell is split.

    Raises
    ------
    InvalidSpec
        The number of features or the height is not supported, or epsilon is too small for thirds.
    TooFewReports
        The coarse or the last round has no reports.
    UnfitRound
        A published round does not have dyadic cells, or carries no information.
    """
    d = len(features)
    coarse, of_levels, *_, last = planned_rounds(params, d, 1)
    share = yield from coarse_round(features, coarse)
    height = params.height or min(max(1, ceil(-log2(granularity(share, coarse.epsilon_nano, d)))), deepest(d))
    partition = uniform(d, 1)
    for level, draw in enumerate(draws([1] * height), start=1):
        collected = yield replace(of_levels, participation=draw).spec(features, uniform(d, level).encoding())
        reported, dense = dense_cells(collected)
        if level < height and reported.depth == level and (reported.levels == level).all():
            here = partition.levels == level
            partition = split(partition, here & ~dense[np.where(here, partition.places, 0)])
    return (yield from _last_round(features, partition, last, share))


def dense_cells(collected: Collected) -> tuple[Partition, NDArray[np.bool_]]:
    """Return the cells of a round, and whether each is denser than the mean."""
    partition, estimates = estimates_of(collected, decoder(collected.spec.mechanism))
    return partition, estimates > partition.volumes


def merge_and_split(partition: Partition, dense: NDArray[np.bool_], finest_level: int) -> Partition:
    """Merge siblings that are all dense, and split sparse cells with a dense sibling."""
    edge = ~dense & has_marked_sibling(partition, dense) & (partition.levels < finest_level)
    carried = np.repeat(dense & (partition.levels > 1), np.where(edge, 1 << partition.n_features, 1))
    return merge(split(partition, edge), carried)


def _last_round(
    features: tuple[Feature, ...], partition: Partition, last: PlannedRound, share: DenseShare
) -> PaperRounds:
    collected = yield last.spec(features, partition.encoding())
    cells, estimates = estimates_of(collected, decoder(collected.spec.mechanism))
    diagnostics = {"dense_share": share.dense, "levels": np.bincount(cells.levels).tolist()}
    return PaperResult(collected, cells.cell_map(), estimates, diagnostics)
