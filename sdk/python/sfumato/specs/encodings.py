"""Encodings: how a point becomes a symbol, as published."""

import math
from dataclasses import dataclass
from typing import ClassVar

from sfumato.specs.checks import is_int, require

MAX_FEATURES = 64
MAX_SYMBOLS = 1 << 20  # of any encoding
MAX_TREE_CELLS = 1 << 16
MAX_TREE_BITS = 48  # of a cell's place: exact in a double, so that every device can compute it

# Projections are integers: a coordinate is one of LATTICE places, a weight is at most MAX_WEIGHT,
# so with 64 features no sum leaves 2**40, and every product a device makes is below 2**53.
LATTICE = 1 << 20
MAX_WEIGHT = 1 << 14
MAX_PROJECTION = MAX_FEATURES * MAX_WEIGHT * LATTICE
MAX_PROJECTIONS = 128
MAX_PROJECTED_CELLS = 256
MAX_PROJECTED_SHIFTS = 8
MAX_CODE_BITS = 12
MAX_CENTROIDS = 256
MAX_STEPS = 1 << 16  # lattice units across a feature's range
MAX_SAMPLE_VALUES = 1 << 24  # reports times features that a lattice's round keeps: 64 MB

Symbol = int | tuple[int, ...]  # a number, or of a lattice a vector

TURN = 1 << 30  # of a phase: 1024 weights across a feature's whole range
MAX_PHASES = 1 << 10
MAX_PHASE_SLOTS = 1 << 10


@dataclass(frozen=True, slots=True)
class GridEncoding:
    """A plain grid: the symbol is the cell, row-major, the first feature slowest."""

    type: ClassVar[str] = "grid"
    cells: tuple[int, ...]  # per feature

    def __post_init__(self) -> None:
        require(0 < len(self.cells) <= MAX_FEATURES, "a grid has 1 to 64 features")
        require(all(is_int(c) and c >= 1 for c in self.cells), "cells per feature are positive integers")
        require(2 <= self.n_symbols <= MAX_SYMBOLS, f"a grid has 2 to {MAX_SYMBOLS} cells")

    @property
    def n_features(self) -> int:
        return len(self.cells)

    @property
    def n_slots(self) -> int:
        return 1

    @property
    def n_symbols(self) -> int:
        return math.prod(self.cells)


@dataclass(frozen=True, slots=True)
class ShiftedGridEncoding:
    """A coarse grid under one of `shifts` per feature public shifts (STATISTICS 3.2).

    The fine grid has cells * shifts cells a feature. The slot is the shift, row-major;
    the symbol is the coarse cell of the shifted fine cell, row-major.
    """

    type: ClassVar[str] = "shifted_grid"
    n_features: int
    cells: int  # s, coarse cells per feature
    shifts: int  # w, shifts per feature

    def __post_init__(self) -> None:
        require(is_int(self.n_features) and 1 <= self.n_features <= 8, "a shifted grid has 1 to 8 features")
        require(is_int(self.cells) and 1 <= self.cells <= 4096, "cells per feature lie in 1..4096")
        require(is_int(self.shifts) and 1 <= self.shifts <= 64, "shifts per feature lie in 1..64")
        require(self.n_symbols <= MAX_SYMBOLS, f"a shifted grid has at most {MAX_SYMBOLS} symbols")
        require(self.n_slots <= MAX_SYMBOLS, f"a shifted grid has at most {MAX_SYMBOLS} slots")

    @property
    def n_slots(self) -> int:
        return int(self.shifts**self.n_features)

    @property
    def n_symbols(self) -> int:
        return int((self.cells + 1) ** self.n_features)

    @property
    def fine_cells(self) -> int:
        """G, fine cells per feature."""
        return self.cells * self.shifts


@dataclass(frozen=True, slots=True)
class TreeGridEncoding:
    """Dyadic cells of different levels that tile the box: the symbol is the cell's place in the list.

    A cell of level l has sides of 2**-l of every feature's range. The cells are listed as a
    tree is walked: a box of level l is a cell, or its 2**n_features halves of level l + 1
    follow one another, the first feature's half slowest (Z-order). So the levels alone say
    where every cell lies.
    """

    type: ClassVar[str] = "tree_grid"
    n_features: int
    levels: tuple[int, ...]  # of every cell

    def __post_init__(self) -> None:
        require(is_int(self.n_features) and 1 <= self.n_features <= 8, "a tree grid has 1 to 8 features")
        require(
            isinstance(self.levels, tuple) and 2 <= len(self.levels) <= MAX_TREE_CELLS,
            f"a tree grid has 2 to {MAX_TREE_CELLS} cells",
        )
        require(
            all(is_int(level) and level >= 0 and level * self.n_features <= MAX_TREE_BITS for level in self.levels),
            f"levels are integers from 0, levels times features at most {MAX_TREE_BITS}",
        )
        depth = self.depth
        place = 0  # of the cell's first finest box, along the walk
        for level in self.levels:
            size = 1 << (depth - level) * self.n_features
            require(place % size == 0, "these cells do not tile the box: one lies across another's bounds")
            place += size
        require(place == 1 << depth * self.n_features, "these cells do not tile the box")

    @property
    def n_slots(self) -> int:
        return 1

    @property
    def n_symbols(self) -> int:
        return len(self.levels)

    @property
    def depth(self) -> int:
        """The finest level."""
        return max(self.levels)


@dataclass(frozen=True, slots=True)
class ProjectedGridEncoding:
    """One of several public projections, cut into coarse cells under one of several public shifts.

    A coordinate in [0, 1] is the integer floor(x * 2**20), at most 2**20 - 1; a projection is the
    sum of weight times coordinate. Its range, from a lower end on and clipped at both, has
    cells * shifts fine cells. The slot is projection * shifts + shift; the symbol is the coarse
    cell of the shifted fine cell.
    """

    type: ClassVar[str] = "projected_grid"
    weights: tuple[tuple[int, ...], ...]  # of each projection, per feature
    lowers: tuple[int, ...]  # where each projection's range begins
    spans: tuple[int, ...]  # how wide it is
    cells: int  # s, coarse cells
    shifts: int  # w

    def __post_init__(self) -> None:
        _check_weights(self.weights, MAX_PROJECTIONS)
        for name, least, most in (("lowers", -MAX_PROJECTION, MAX_PROJECTION), ("spans", 1, 2 * MAX_PROJECTION)):
            ends = getattr(self, name)
            require(isinstance(ends, tuple) and len(ends) == len(self.weights), f"{name} has one for each projection")
            require(all(is_int(e) and least <= e <= most for e in ends), f"{name} are integers in {least}..{most}")
        for name, most in (("cells", MAX_PROJECTED_CELLS), ("shifts", MAX_PROJECTED_SHIFTS)):
            require(is_int(getattr(self, name)) and 1 <= getattr(self, name) <= most, f"{name} lies in 1..{most}")

    @property
    def n_features(self) -> int:
        return len(self.weights[0])

    @property
    def n_slots(self) -> int:
        return len(self.weights) * self.shifts

    @property
    def n_symbols(self) -> int:
        return self.cells + 1

    @property
    def fine_cells(self) -> int:
        """G, fine cells of a projection."""
        return self.cells * self.shifts


@dataclass(frozen=True, slots=True)
class HalfspaceCodeEncoding:
    """On which side of each of B public cuts a point lies: bit b of the symbol says of cut b.

    A projection is that of `ProjectedGridEncoding`; the bit is set where it is at least the
    cut's threshold.
    """

    type: ClassVar[str] = "halfspace_code"
    weights: tuple[tuple[int, ...], ...]  # of each cut, per feature
    thresholds: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_weights(self.weights, MAX_CODE_BITS)
        require(
            isinstance(self.thresholds, tuple) and len(self.thresholds) == len(self.weights),
            "thresholds has one for each cut",
        )
        require(
            all(is_int(t) and -MAX_PROJECTION <= t <= MAX_PROJECTION for t in self.thresholds),
            f"thresholds are integers in -{MAX_PROJECTION}..{MAX_PROJECTION}",
        )

    @property
    def n_features(self) -> int:
        return len(self.weights[0])

    @property
    def n_slots(self) -> int:
        return 1

    @property
    def n_symbols(self) -> int:
        return 1 << len(self.weights)


def _check_weights(weights: tuple[tuple[int, ...], ...], most: int) -> None:
    require(isinstance(weights, tuple) and 1 <= len(weights) <= most, f"there are 1 to {most} rows of weights")
    require(all(isinstance(row, tuple) for row in weights), "weights are rows of integers")
    n_features = len(weights[0])
    require(1 <= n_features <= MAX_FEATURES, f"a row has 1 to {MAX_FEATURES} weights")
    require(all(len(row) == n_features for row in weights), "rows of weights are of one length")
    require(
        all(is_int(weight) and -MAX_WEIGHT <= weight <= MAX_WEIGHT for row in weights for weight in row),
        f"weights are integers in -{MAX_WEIGHT}..{MAX_WEIGHT}",
    )
    require(all(any(row) for row in weights), "a row of weights is not all zero")


@dataclass(frozen=True, slots=True)
class PhaseEncoding:
    """The phase of one of several public waves: which of L equal parts of a turn a point falls in.

    The slot is the wave. A coordinate in [0, 1] is the integer floor(x * 2**20), at most
    2**20 - 1; the sum of weight times coordinate, modulo a turn of 2**30, is the phase, and
    the symbol is floor(L * phase / 2**30). So a wave's angular frequency is 2 pi weight / 1024
    radians across a feature's range.

    The weights travel themselves, rather than a seed they could be made of. A device then
    needs one sum of products, a remainder and a division, on integers below 2**53: any
    language does that exactly with what it has, JavaScript with its plain numbers. A seed
    would save bytes and ask every client for the same generator, the same normal deviates
    and the same square roots to the last bit, and a plan could no longer choose its waves.
    A wave in 8 features takes about 40 bytes, 512 of them 20 kB, the same for every device and
    sent once for a round (then the ETag is all that travels); the most there can be, 1024
    waves in 64 features, take about 300 kB.
    """

    type: ClassVar[str] = "phase"
    weights: tuple[tuple[int, ...], ...]  # of each wave, per feature
    phases: int  # L

    def __post_init__(self) -> None:
        _check_weights(self.weights, MAX_PHASE_SLOTS)
        require(is_int(self.phases) and 4 <= self.phases <= MAX_PHASES, f"phases lies in 4..{MAX_PHASES}")

    @property
    def n_features(self) -> int:
        return len(self.weights[0])

    @property
    def n_slots(self) -> int:
        return len(self.weights)

    @property
    def n_symbols(self) -> int:
        return self.phases


@dataclass(frozen=True, slots=True)
class LatticeEncoding:
    """A point as a vector of integers: a coordinate in [0, 1] is floor(x * steps + 1/2), 0..steps.

    Its symbols are those vectors; only `discrete_laplace` perturbs them, and a round of them
    keeps a sample of what was reported where others keep counts.
    """

    type: ClassVar[str] = "lattice"
    n_features: int
    steps: int  # lattice units across a feature's whole range

    def __post_init__(self) -> None:
        require(
            is_int(self.n_features) and 1 <= self.n_features <= MAX_FEATURES,
            f"a lattice has 1 to {MAX_FEATURES} features",
        )
        require(is_int(self.steps) and 1 <= self.steps <= MAX_STEPS, f"steps lies in 1..{MAX_STEPS}")

    @property
    def n_slots(self) -> int:
        return 1

    @property
    def n_symbols(self) -> int:
        return int((self.steps + 1) ** self.n_features)


@dataclass(frozen=True, slots=True)
class NearestCentroidEncoding:
    """Which of several public centroids is the nearest, and on which side of it a point lies in one feature.

    A coordinate in [0, 1] is the integer floor(x * 2**20), at most 2**20 - 1, and a centroid is
    a row of such integers. Distances are squared and summed in them: with 64 features below
    2**46, exact in a double, so that every device finds the same one; of equally near ones it
    is the first. The slot is the feature; the symbol is 2 c, and one more where the point's
    coordinate lies above that of centroid c.
    """

    type: ClassVar[str] = "nearest_centroid"
    centroids: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        _check_centroids(self.centroids)

    @property
    def n_features(self) -> int:
        return len(self.centroids[0])

    @property
    def n_slots(self) -> int:
        return len(self.centroids[0])

    @property
    def n_symbols(self) -> int:
        return 2 * len(self.centroids)


def _check_centroids(centroids: tuple[tuple[int, ...], ...]) -> None:
    require(
        isinstance(centroids, tuple) and 1 <= len(centroids) <= MAX_CENTROIDS,
        f"there are 1 to {MAX_CENTROIDS} centroids",
    )
    require(all(isinstance(row, tuple) for row in centroids), "centroids are rows of integers")
    n_features = len(centroids[0])
    require(1 <= n_features <= MAX_FEATURES, f"a centroid has 1 to {MAX_FEATURES} coordinates")
    require(all(len(row) == n_features for row in centroids), "centroids are rows of one length")
    require(
        all(is_int(place) and 0 <= place < LATTICE for row in centroids for place in row),
        f"coordinates are integers in 0..{LATTICE - 1}",
    )


@dataclass(frozen=True, slots=True)
class CentroidSignEncoding:
    """One bit about the nearest of several public centroids: a public sign of it, times the side a point lies on.

    The nearest centroid c is that of `NearestCentroidEncoding`, and so is the side. Signs are a
    Walsh matrix, H[h, c] = (-1)^popcount(h & c), with as many rows as the next power of two of
    the number of centroids. The slot is a feature's number times the number of rows, plus the
    row h; after the features comes one more, of which every point is said to lie above. The
    symbol is 1 where H[h, c] is +1 and the point lies above, or neither.
    """

    type: ClassVar[str] = "centroid_sign"
    centroids: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        _check_centroids(self.centroids)

    @property
    def n_features(self) -> int:
        return len(self.centroids[0])

    @property
    def n_rows(self) -> int:
        """Of the Walsh matrix."""
        return 1 << (len(self.centroids) - 1).bit_length()

    @property
    def n_slots(self) -> int:
        return (len(self.centroids[0]) + 1) * self.n_rows

    @property
    def n_symbols(self) -> int:
        return 2


Encoding = (
    GridEncoding
    | ShiftedGridEncoding
    | TreeGridEncoding
    | ProjectedGridEncoding
    | HalfspaceCodeEncoding
    | PhaseEncoding
    | LatticeEncoding
    | NearestCentroidEncoding
    | CentroidSignEncoding
)
