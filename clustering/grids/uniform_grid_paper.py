"""`uniform_grid` with `variant="paper"`: UGC of Zhang et al. 2023 as printed, where the printed method is well defined.

All devices report in two rounds, each at half of the epsilon. Theorem 1 derives the size of
the grid from the first, coarse round. A cell is dense if it exceeds the mean density, and
connected dense cells form a cluster. Other cells belong to no cluster.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from math import ceil, expm1
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from clustering.density.cell_centres import cell_centre_errors, cell_size_errors
from clustering.density.confidence import confidence
from clustering.density.expected_error import CollectRound, expected_error, rerun
from clustering.density.label_map import keep_largest, label_map_model, project_to_shares, rank_by_mass
from clustering.errors import TooFewReports, UnfitRound
from clustering.grids.cell_regions import face_pairs
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected, Plan
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from sfumato.sizing import planned_rounds
from sfumato.sizing.grids import MAX_PRINTED_CELLS, most_printed_cells
from sfumato.sizing.rounds import PlannedRound
from sfumato.specs import MAX_CLUSTERS, Feature, GridEncoding, RoundSpec, UniformGrid


@dataclass(frozen=True)
class PaperResult:
    """Result of the rounds of a plan as printed.

    Attributes
    ----------
    collected : Collected
        Last round.
    cell_map : ndarray of shape (boxes,) * n_features, int64
        Cell of each finest box.
    estimates : ndarray of shape (n_cells,), float64
    diagnostics : mapping
        Diagnostics in addition to those of every paper plan.
    """

    collected: Collected
    cell_map: NDArray[np.int64]
    estimates: NDArray[np.float64]
    diagnostics: Mapping[str, Any]


PaperRounds = Generator[RoundSpec, Collected, PaperResult]


def paper_grid_rounds(params: UniformGrid, features: tuple[Feature, ...]) -> PaperRounds:
    """Run the coarse round and the grid round.

    Parameters
    ----------
    params : UniformGrid
        `cells` replaces Theorem 1's size; the coarse round is still collected.
    features : tuple of Feature
        One to eight.

    Raises
    ------
    InvalidSpec
        The number of features or cells is not supported, or epsilon is too small to halve.
    TooFewReports
        A round has no reports.
    UnfitRound
        A published round is not a plain grid, or carries no information.
    """
    d = len(features)
    coarse, last = planned_rounds(params, d, 1)
    share = yield from coarse_round(features, coarse)
    cells = params.cells or min(ceil(1 / granularity(share, coarse.epsilon_nano, d)), most_printed_cells(d))
    if cells**d > MAX_PRINTED_CELLS:
        raise InvalidSpec(f"a grid of the paper variant may have at most {MAX_PRINTED_CELLS} cells")
    collected = yield last.spec(features, GridEncoding((max(2, cells),) * d))
    encoding, reading = collected.spec.encoding, decoder(collected.spec.mechanism)
    if not isinstance(encoding, GridEncoding):
        raise UnfitRound("uniform_grid needs a round of a plain grid")
    estimates = reading.frequencies(collected.tally)[0]
    cell_map = np.arange(encoding.n_symbols, dtype=np.int64).reshape(encoding.cells)
    return PaperResult(collected, cell_map, estimates, {"dense_share": share.dense})


@dataclass(frozen=True)
class DenseShare:
    """Result of the coarse round: the number of reports, and r, the share of dense cells."""

    n_reports: int
    dense: float


def coarse_round(features: tuple[Feature, ...], coarse: PlannedRound) -> Generator[RoundSpec, Collected, DenseShare]:
    """Run Algorithm 1, lines 1 to 12: a round over a coarse grid, for its share r of dense cells."""
    collected = yield coarse.spec(features)
    if collected.tally.n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    if not isinstance(collected.spec.encoding, GridEncoding):
        raise UnfitRound("the coarse round must have a plain grid")
    estimates = decoder(collected.spec.mechanism).frequencies(collected.tally)[0]
    n_dense = int((estimates > 1 / len(estimates)).sum())
    return DenseShare(collected.tally.n_reports, max(n_dense, 1) / len(estimates))  # r in (0, 1]


def granularity(share: DenseShare, epsilon_nano: int, n_features: int) -> float:
    """Return m of Theorem 1, a cell's side as a share of the range, in the well-defined form.

    Definition 7 adds the squared error of a frequency to a number of people. With both as
    shares, MSM = 1 / (N (e^eps - 1)^2 m^d) + 2 d m r^(-1/d). Its minimum is
        m = (2 N (e^eps - 1)^2 r^(-1/d))^(-1/(d+1)),
    Theorem 1 with N in place of N².
    """
    weight = 2 * share.n_reports * expm1(epsilon_nano / NANO) ** 2 * share.dense ** (-1 / n_features)
    return float(weight ** (-1 / (n_features + 1)))


def run_paper_plan(clusters: int | None, rounds: Callable[[], PaperRounds]) -> Plan:
    """Run Algorithm 4, lines 6 to 17, on the last round: connected dense cells form a cluster.

    The paper neither takes K nor defines labels for other cells. For given K, the K clusters of
    most mass are kept, and at most 256 otherwise. Cells of no cluster are published as the last
    cluster, and the diagnostics name it.

    Parameters
    ----------
    clusters : int, optional
    rounds : callable
        Start the rounds from the beginning, for devices and for synthetic rounds.

    Raises
    ------
    TooFewReports
        The last round has no reports.
    """
    printed = yield from rounds()
    n_reports = printed.collected.tally.n_reports
    if n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    reading = decoder(printed.collected.spec.mechanism)
    cell_map, boxes = printed.cell_map, np.bincount(printed.cell_map.ravel())
    shares = project_to_shares(printed.estimates)
    density = (shares / boxes)[cell_map]
    cut = _cut(clusters, printed)

    def relabel(collect: CollectRound) -> NDArray[np.int64]:
        other = rerun(rounds(), collect)
        return _cut(clusters, other).labels[other.cell_map]

    return label_map_model(
        printed.collected.spec.features,
        cut.labels[cell_map],
        density,
        cell_size_errors(cut.labels, shares, reading, n_reports),
        cell_centre_errors(cut.labels, cell_map, printed.estimates, shares, reading, n_reports),
        {
            **confidence(n_reports, reading).diagnostics(),
            "expected_error": expected_error(relabel, density, n_reports),
            "n_cells": len(cut.labels),
            "dense_cells": cut.n_dense,
            "dense_regions": cut.n_found,
            "unclustered": cut.unclustered,
            **printed.diagnostics,
        },
        _warnings(clusters, cut.n_found, cut.unclustered),
    )


@dataclass(frozen=True)
class PaperClusters:
    """Labels of cells. `unclustered` is the label of the cells of no cluster."""

    labels: NDArray[np.int64]
    n_dense: int
    n_found: int
    unclustered: int | None


def _cut(clusters: int | None, printed: PaperResult) -> PaperClusters:
    cell_map, estimates = printed.cell_map, printed.estimates
    dense = estimates > np.bincount(cell_map.ravel()) / cell_map.size  # D_g > D, the mean density
    labels = join_dense_cells(dense, face_pairs(cell_map))
    n_found = int(labels.max(initial=-1)) + 1
    shares = project_to_shares(estimates)
    labels = keep_largest(labels, estimates, clusters or MAX_CLUSTERS)
    labels[labels >= 0] = rank_by_mass(labels[labels >= 0], shares[labels >= 0])[0]
    n_kept = int(labels.max(initial=-1)) + 1
    unclustered = n_kept if (labels < 0).any() else None
    labels[labels < 0] = n_kept
    return PaperClusters(labels, int(dense.sum()), n_found, unclustered)


def join_dense_cells(dense: NDArray[np.bool_], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Label the face-connected regions of dense cells 0, 1, ...; other cells get -1."""
    inside = pairs[dense[pairs].all(axis=1)]
    links = coo_array((np.ones(len(inside), dtype=np.int8), (inside[:, 0], inside[:, 1])), shape=(dense.size,) * 2)
    _, component = connected_components(links, directed=False)
    labels = np.full(dense.size, -1, dtype=np.int64)
    labels[dense] = np.unique(component[dense], return_inverse=True)[1]
    return labels


def _warnings(clusters: int | None, n_found: int, unclustered: int | None) -> tuple[str, ...]:
    messages = ["This is the method as printed in its paper, for comparison. The default variant is corrected."]
    if n_found == 0:
        messages.append("No cell is dense, so there is one cluster.")
    elif unclustered is not None:
        messages.append(f"Cluster {unclustered} contains the cells that belong to no cluster.")
    if clusters is None and n_found > MAX_CLUSTERS:
        messages.append(f"{n_found} dense regions were found; the {MAX_CLUSTERS} of most mass were kept.")
    elif clusters is not None and n_found < clusters:
        messages.append(f"{clusters} clusters were requested, but only {n_found} dense regions were found.")
    return tuple(messages)
