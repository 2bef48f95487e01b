"""Valleys of one-dimensional densities: public directions, and the cut between the most people on either side.

A shape in many features shows in its shadows: along some direction, two groups of people are
apart and the density between them is low. Each device reports its place along one public
direction through shifted coarse cells; the density along each is deconvolved as in
`clustering.deconvolution`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.decoders import Decoder
from clustering.deconvolution import Deconvolved, deconvolve
from clustering.errors import UnfitRound
from clustering.plan import Collected, Tally
from clustering.shifted_field import SAMPLING_VARIANCE, field
from sfumato.specs import LATTICE, MAX_WEIGHT, ProjectedGridEncoding, ShiftedGridEncoding

CELLS, SHIFTS = 10, 4  # s and w of a projection: 40 fine cells
LENGTH_SCALE, AMPLITUDE = 0.06, 2.5  # of the log density's prior, as in two features

# A random direction's range about the middle of the box, in units of its weights' length. The box
# reaches sqrt(d)/2, but evenly spread people lie within .65 in 97.6 % of cases at any d.
HALF_RANGE = (13, 20)

# People about a cut are those it takes from their group. Half of their mass less than the excess, as
# what cuts are chosen by, gave a mean ARI .02 above the excess alone (five settings, ten seeds).
ABOUT = 0.05  # of the range, to either side
ABOUT_COST = 0.5

_NO_EXCESS = 1e-9  # rounding error; less than one person in a thousand million
_CHUNKS = 12  # sixteen random bits each, whose sum is all but normal


@dataclass(frozen=True)
class Cut:
    """A public direction cut in two where the density along it has a valley.

    Attributes
    ----------
    projection : int
        Which of the round's directions.
    weights : tuple of int
    threshold : int
        On the lattice's scale; people at or above it are on the upper side.
    excess : float
        The smaller of the two sides' masses above the density at the cut.
    error : float
        Its standard error by noise.
    score : float
        What cuts are chosen by: the excess, less half the mass about the cut.
    """

    projection: int
    weights: tuple[int, ...]
    threshold: int
    excess: float
    error: float
    score: float

    @property
    def direction(self) -> tuple[float, ...]:
        """The weights, made of length one."""
        length = sqrt(sum(weight * weight for weight in self.weights))
        return tuple(weight / length for weight in self.weights)

    def is_like(self, other: "Cut") -> bool:
        """Whether the two directions are all but the same, or opposite: |cos| above .9, by integers."""
        dot, mine, theirs = (
            sum(a * b for a, b in zip(one, two, strict=True))
            for one, two in (
                (self.weights, other.weights),
                (self.weights, self.weights),
                (other.weights, other.weights),
            )
        )
        return 100 * dot * dot > 81 * mine * theirs


def directions(n_features: int, n_projections: int, seed: int) -> ProjectedGridEncoding:
    """The features, then random directions, uniform on the sphere but for rounding.

    Integers from raw PCG64 words alone, so that equal seeds give equal weights with any version
    of anything. The ranges follow from the weights and the bounds of the features.

    Parameters
    ----------
    n_features : int
    n_projections : int
        Where it is less than `n_features`, the first features alone.
    seed : int
        Public.
    """
    axes = np.eye(n_features, dtype=np.int64)[:n_projections].tolist()
    words = np.random.PCG64(seed).random_raw((max(n_projections - n_features, 0), n_features * _CHUNKS // 4))
    chunks = np.asarray(words, dtype="<u8").view("<u2").astype(np.int64).reshape(len(words), n_features, _CHUNKS)
    drawn = (2 * chunks - 0xFFFF).sum(axis=2).tolist()
    weights = [tuple(row) for row in axes] + [_to_weights(row) for row in drawn]
    halves = [_half_range(row) for row in weights]
    middles = [sum(row) * LATTICE // 2 for row in weights]
    return ProjectedGridEncoding(
        tuple(weights),
        tuple(middle - half for middle, half in zip(middles, halves, strict=True)),
        tuple(2 * half for half in halves),
        CELLS,
        SHIFTS,
    )


def _to_weights(drawn: list[int]) -> tuple[int, ...]:
    """Integers in the same proportion, the largest of size MAX_WEIGHT."""
    largest = max(map(abs, drawn))
    return tuple((2 * value * MAX_WEIGHT + largest) // (2 * largest) for value in drawn)


def _half_range(weights: tuple[int, ...]) -> int:
    """Half the range that is looked at along a direction: all of the box, but at most HALF_RANGE."""
    over, under = HALF_RANGE
    most = isqrt((over * LATTICE) ** 2 * sum(weight * weight for weight in weights) // under**2)
    return min(sum(map(abs, weights)) * LATTICE // 2, most)


def find_cuts(collected: Collected, reading: Decoder) -> list[Cut]:
    """The best cut along every direction that has reports and a valley, the best first.

    The directions and the mechanism are taken as published.

    Raises
    ------
    UnfitRound
        The round is not over projections, or too fine.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    if not isinstance(encoding, ProjectedGridEncoding):
        raise UnfitRound("valley_hashing goes on from a round over projections")
    if encoding.fine_cells < 2:
        raise UnfitRound("projections of one cell have no valley")
    found = []
    for projection in range(len(encoding.weights)):
        rows = slice(projection * encoding.shifts, (projection + 1) * encoding.shifts)
        along = Tally(tally.counts[rows], tally.reports[rows])
        if along.n_reports == 0:
            continue
        fitted = density_along(encoding, reading, along)
        valley = best_valley(fitted.density)
        if valley is not None:
            place, excess, score = valley
            error = fitted.standard_error(side_above(fitted.density, place))
            threshold = _threshold(encoding, projection, place)
            found.append(Cut(projection, encoding.weights[projection], threshold, excess, error, score))
    return sorted(found, key=lambda cut: (-cut.score, cut.projection))


def choose_cuts(found: Sequence[Cut], n_cuts: int) -> list[Cut]:
    """The first so many cuts, without those along all but the direction of one before."""
    chosen: list[Cut] = []
    for cut in found:
        if len(chosen) < n_cuts and not any(cut.is_like(other) for other in chosen):
            chosen.append(cut)
    return chosen


def density_along(encoding: ProjectedGridEncoding, reading: Decoder, along: Tally) -> Deconvolved:
    """The density over one direction's fine cells."""
    return deconvolve(
        field(ShiftedGridEncoding(1, encoding.cells, encoding.shifts), reading, along),
        shifts=encoding.shifts,
        precision=along.n_reports / (reading.zero_variance + SAMPLING_VARIANCE),
        length_scale=LENGTH_SCALE,
        amplitude=AMPLITUDE,
    )


def best_valley(density: NDArray[np.float64]) -> tuple[int, float, float] | None:
    """The cell to cut at, the smaller side's mass above the density there, and the cut's score.

    None where no cell has mass above it on both sides. The first of those that are best.
    """
    above = np.maximum(density[None, :] - density[:, None], 0)  # row: the cell cut at
    lower = np.tril(above, -1).sum(axis=1)
    smaller = np.minimum(lower, above.sum(axis=1) - lower)
    if not (smaller > _NO_EXCESS).any():
        return None
    reach = round(ABOUT * density.size)
    about = np.convolve(density, np.ones(2 * reach + 1))[reach : reach + density.size]
    score = np.where(smaller > _NO_EXCESS, smaller - ABOUT_COST * about, -np.inf)
    place = int(score.argmax())
    return place, float(smaller[place]), float(score[place])


def side_above(density: NDArray[np.float64], place: int) -> NDArray[np.float64]:
    """Weights whose sum with the density is the excess of a cut's smaller side."""
    sides = []
    for side in (slice(0, place), slice(place + 1, None)):
        weights = np.zeros(density.size)
        weights[side] = density[side] > density[place]
        weights[place] = -weights.sum()
        sides.append(weights)
    return min(sides, key=lambda weights: float(weights @ density))


def _threshold(encoding: ProjectedGridEncoding, projection: int, place: int) -> int:
    """The middle of a fine cell, on the lattice's scale."""
    fine = encoding.lowers[projection] * 2 * encoding.fine_cells + (2 * place + 1) * encoding.spans[projection]
    return fine // (2 * encoding.fine_cells)
