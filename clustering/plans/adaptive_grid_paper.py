"""AGC1 and AGC2 of paper 000 as printed, where the print is well defined.

Every device answers the coarse round, the rounds of the feedback loop and the last one, so
their costs add up: a third of the epsilon each. AGC1's third is divided once more among its
passes, which the paper charges once for all; AGC2's loop is for one level a device.
"""

from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from clustering.adaptive_cells import Partition, beside, deepest, estimates_of, merge, split, uniform
from clustering.adaptive_model import draws
from clustering.decoders import decoder
from clustering.plan import Collected, Plan
from clustering.plans.uniform_grid_paper import Share, coarse_round, full_round, granularity, printed_model, spending
from sfumato.accounting import parse_epsilon
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.specs import AdaptiveGridIterative, AdaptiveGridTree, Feature, RoundSpec

MAX_SPLITS = 2  # of one first cell: the paper lets them be split for ever


def passes_as_printed(params: AdaptiveGridIterative, features: tuple[Feature, ...]) -> Plan:
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
    coarse_nano, loop_nano, last_nano = spending(parse_epsilon(params.epsilon), 3)
    (pass_nano, *_) = spending(loop_nano, params.passes)
    share = yield from coarse_round(features, coarse_nano)
    level = min(max(1, round(-log2(granularity(share, coarse_nano, d)))), deepest(d) - 1)
    partition = uniform(d, level)
    for _ in range(params.passes):
        answered = yield full_round(features, partition.encoding(), pass_nano)
        partition, dense = dense_cells(answered)
        partition = adapt_as_printed(partition, dense, min(level + MAX_SPLITS, deepest(d)))
    return (yield from _last_round(params.clusters, features, partition, last_nano, share))


def tree_as_printed(params: AdaptiveGridTree, features: tuple[Feature, ...]) -> Plan:
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
    coarse_nano, loop_nano, last_nano = spending(parse_epsilon(params.epsilon), 3)
    share = yield from coarse_round(features, coarse_nano)
    height = params.height or min(max(1, ceil(-log2(granularity(share, coarse_nano, d)))), deepest(d))
    if height > deepest(d):
        raise InvalidSpec(f"a tree over {d} features has at most {deepest(d)} levels")
    partition = uniform(d, 1)
    for level, draw in enumerate(draws([1] * height), start=1):
        encoding = uniform(d, level).encoding()
        answered = yield RoundSpec(features, encoding, design("grr", encoding.n_symbols, loop_nano), draw)
        asked, dense = dense_cells(answered)
        if level < height and asked.depth == level and (asked.levels == level).all():
            here = partition.levels == level
            partition = split(partition, here & ~dense[np.where(here, partition.places, 0)])
    return (yield from _last_round(params.clusters, features, partition, last_nano, share))


def dense_cells(answered: Collected) -> tuple[Partition, NDArray[np.bool_]]:
    """The cells of a round, and which hold more than the mean density."""
    partition, estimates = estimates_of(answered, decoder(answered.spec.mechanism))
    return partition, estimates > partition.volumes


def adapt_as_printed(partition: Partition, dense: NDArray[np.bool_], finest_level: int) -> Partition:
    """Merge siblings that are all dense, split sparse cells with a dense sibling."""
    edge = ~dense & beside(partition, dense) & (partition.levels < finest_level)
    carried = np.repeat(dense & (partition.levels > 1), np.where(edge, 1 << partition.n_features, 1))
    return merge(split(partition, edge), carried)


def _last_round(
    clusters: int | None, features: tuple[Feature, ...], partition: Partition, epsilon_nano: int, share: Share
) -> Plan:
    answered = yield full_round(features, partition.encoding(), epsilon_nano)
    cells, estimates = estimates_of(answered, decoder(answered.spec.mechanism))
    diagnostics = {"dense_share": share.dense, "levels": np.bincount(cells.levels).tolist()}
    return printed_model(clusters, answered, cells.cell_map(), estimates, diagnostics)
