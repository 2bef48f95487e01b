"""`uniform_grid` with `variant="paper"`: UGC of paper 000 as printed, where the print is well defined.

Two rounds for every draw, so their costs add up: a coarse one at half of the epsilon, from
which Theorem 1 takes the size of the grid, and the grid itself at the other half. Dense is
what exceeds the mean density; dense cells that touch are a cluster; the rest is in none.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from math import ceil, expm1
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from clustering.cell_places import cell_centre_errors
from clustering.cell_regions import face_pairs
from clustering.confidence import confidence
from clustering.decoders import Decoder, decoder
from clustering.errors import TooFewReports, UnfitRound
from clustering.expected_error import Answer, expected_error, rerun
from clustering.label_regions import by_mass, keep_largest, label_map_model, project_to_shares
from clustering.plan import Collected, Plan
from sfumato.accounting import NANO
from sfumato.errors import InvalidSpec
from sfumato.sizing import MAX_PRINTED_CELLS, PlannedRound, most_printed_cells, planned_rounds
from sfumato.specs import MAX_CLUSTERS, Feature, GridEncoding, RoundSpec, UniformGrid


@dataclass(frozen=True)
class Printed:
    """What the rounds of a printed plan end with.

    Attributes
    ----------
    collected : Collected
        The last round.
    cell_map : ndarray of shape (boxes,) * n_features, int64
        The cell of each finest box.
    estimates : ndarray of shape (n_cells,), float64
    diagnostics : mapping
        Added to what is said of every printed plan.
    """

    collected: Collected
    cell_map: NDArray[np.int64]
    estimates: NDArray[np.float64]
    diagnostics: Mapping[str, Any]


PrintedRounds = Generator[RoundSpec, Collected, Printed]


def grid_as_printed(params: UniformGrid, features: tuple[Feature, ...]) -> PrintedRounds:
    """The rounds: the coarse one, then the grid.

    Parameters
    ----------
    params : UniformGrid
        `cells` takes the place of Theorem 1's answer; the coarse round is asked all the same.
    features : tuple of Feature
        One to eight.

    Raises
    ------
    InvalidSpec
        Another number of features, too many cells, or an epsilon too small to be halved.
    TooFewReports
        A round brought nothing.
    UnfitRound
        A published round is not a plain grid, or tells nothing.
    """
    d = len(features)
    coarse, last = planned_rounds(params, d, 1)
    share = yield from coarse_round(features, coarse)
    cells = params.cells or min(ceil(1 / granularity(share, coarse.epsilon_nano, d)), most_printed_cells(d))
    if cells**d > MAX_PRINTED_CELLS:
        raise InvalidSpec(f"a grid as printed has at most {MAX_PRINTED_CELLS} cells")
    collected = yield last.spec(features, GridEncoding((max(2, cells),) * d))
    encoding, reading = collected.spec.encoding, decoder(collected.spec.mechanism)
    if not isinstance(encoding, GridEncoding):
        raise UnfitRound("uniform_grid goes on from a plain grid")
    estimates = reading.frequencies(collected.tally)[0]
    cell_map = np.arange(encoding.n_symbols, dtype=np.int64).reshape(encoding.cells)
    return Printed(collected, cell_map, estimates, {"dense_share": share.dense})


@dataclass(frozen=True)
class Share:
    """What the coarse round told: how many answered, and r, the share of its cells that are dense."""

    n_reports: int
    dense: float


def coarse_round(features: tuple[Feature, ...], coarse: PlannedRound) -> Generator[RoundSpec, Collected, Share]:
    """Algorithm 1, lines 1 to 12: a round over a coarse grid, and r, its share of dense cells."""
    collected = yield coarse.spec(features)
    if collected.tally.n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    if not isinstance(collected.spec.encoding, GridEncoding):
        raise UnfitRound("the coarse round is over a plain grid")
    estimates = decoder(collected.spec.mechanism).frequencies(collected.tally)[0]
    n_dense = int((estimates > 1 / len(estimates)).sum())
    return Share(collected.tally.n_reports, max(n_dense, 1) / len(estimates))  # r in (0, 1]


def granularity(share: Share, epsilon_nano: int, n_features: int) -> float:
    """m of Theorem 1, the side of a cell as a share of the range, in the form that is well defined.

    Definition 7 adds the squared error of a frequency to a number of people. With both as
    shares of the people, MSM = 1 / (N (e^eps - 1)^2 m^d) + 2 d m r^(-1/d), whose minimum is
        m = (2 N (e^eps - 1)^2 r^(-1/d))^(-1/(d+1)),
    Theorem 1 with N in place of N².
    """
    weight = 2 * share.n_reports * expm1(epsilon_nano / NANO) ** 2 * share.dense ** (-1 / n_features)
    return float(weight ** (-1 / (n_features + 1)))


def printed_plan(clusters: int | None, rounds: Callable[[], PrintedRounds]) -> Plan:
    """Algorithm 4, lines 6 to 17, on the last round: dense cells that touch are a cluster.

    The paper neither knows K nor says what becomes of the others' people. Where K is given,
    the K clusters of most mass are kept, and never more than 256; the cells of no cluster
    are published as the last one and named in the diagnostics.

    Parameters
    ----------
    clusters : int, optional
    rounds : callable
        The rounds from their beginning, for devices and for synthetic people.

    Raises
    ------
    TooFewReports
        The last round brought nothing.
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

    def relabel(answer: Answer) -> NDArray[np.int64]:
        other = rerun(rounds(), answer)
        return _cut(clusters, other).labels[other.cell_map]

    return label_map_model(
        printed.collected.spec.features,
        cut.labels[cell_map],
        density,
        _errors(reading, cut.labels, shares, n_reports),
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
class _Cut:
    """Labels of cells, and what was found; `unclustered` is the label of the cells of no cluster."""

    labels: NDArray[np.int64]
    n_dense: int
    n_found: int
    unclustered: int | None


def _cut(clusters: int | None, printed: Printed) -> _Cut:
    cell_map, estimates = printed.cell_map, printed.estimates
    dense = estimates > np.bincount(cell_map.ravel()) / cell_map.size  # D_g > D, the mean density
    labels = joined(dense, face_pairs(cell_map))
    n_found = int(labels.max(initial=-1)) + 1
    shares = project_to_shares(estimates)
    labels = keep_largest(labels, estimates, clusters or MAX_CLUSTERS)
    labels[labels >= 0] = by_mass(labels[labels >= 0], shares[labels >= 0])[0]
    n_kept = int(labels.max(initial=-1)) + 1
    unclustered = n_kept if (labels < 0).any() else None
    labels[labels < 0] = n_kept
    return _Cut(labels, int(dense.sum()), n_found, unclustered)


def joined(dense: NDArray[np.bool_], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the face-connected regions of dense cells 0, 1, ...; -1 elsewhere."""
    inside = pairs[dense[pairs].all(axis=1)]
    links = coo_array((np.ones(len(inside), dtype=np.int8), (inside[:, 0], inside[:, 1])), shape=(dense.size,) * 2)
    _, component = connected_components(links, directed=False)
    labels = np.full(dense.size, -1, dtype=np.int64)
    labels[dense] = np.unique(component[dense], return_inverse=True)[1]
    return labels


def _errors(
    reading: Decoder, labels: NDArray[np.int64], shares: NDArray[np.float64], n_reports: int
) -> NDArray[np.float64]:
    n_cells = np.bincount(labels).astype(np.float64)
    spreads: NDArray[np.float64] = n_cells * (1 - n_cells / labels.size)
    sizes = np.asarray(np.bincount(labels, weights=shares), dtype=np.float64)
    return reading.standard_errors(spreads, sizes, n_reports)


def _warnings(clusters: int | None, n_found: int, unclustered: int | None) -> tuple[str, ...]:
    said = ["This is the method as its paper prints it, for comparison; the sound form is the default."]
    if n_found == 0:
        said.append("No cell is dense, so everybody is in one cluster.")
    elif unclustered is not None:
        said.append(f"Cluster {unclustered} is none: its cells belong to no cluster.")
    if clusters is None and n_found > MAX_CLUSTERS:
        said.append(f"{n_found} dense regions were found; the {MAX_CLUSTERS} of most mass were kept.")
    elif clusters is not None and n_found < clusters:
        said.append(f"{clusters} clusters were asked for, but only {n_found} dense regions were found.")
    return tuple(said)
