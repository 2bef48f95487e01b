"""Specifications of the encodings, which convert a point to a symbol."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from sfumato.limits import MAX_CELL_SYMBOLS, MAX_FEATURES, MAX_STEPS, MAX_SYMBOLS
from sfumato.specs.attributes import MAX_ATTRIBUTES, Attribute, Categorical, read_attributes
from sfumato.specs.phases import FULL_TURN, LATTICE, PhaseEncoding, check_rows
from sfumato.validation import is_int, require, require_int, show

MAX_TREE_CELLS = 1 << 16
MAX_TREE_BITS = 48  # bits of a cell's place, which a double represents exactly on every device

MAX_CENTROIDS = 256
MAX_SAMPLE_VALUES = 1 << 24  # maximum reports times numbers of a vector in a lattice's round, 64 MB

MAX_MAP_RUNS = 1 << 15  # runs of equal labels in the label map of a round


@dataclass(frozen=True, slots=True)
class GridEncoding:
    """A grid. The symbol is the cell in row-major order, with the first feature slowest."""

    type: ClassVar[str] = "grid"
    cells: tuple[int, ...]  # per feature

    def __post_init__(self) -> None:
        require(
            0 < len(self.cells) <= MAX_FEATURES, f"a grid must have 1 to {MAX_FEATURES} features, not {len(self.cells)}"
        )
        for cells in self.cells:
            require(is_int(cells) and cells >= 1, f"cells per feature must be positive integers, not {show(cells)}")
        require(2 <= self.n_symbols <= MAX_SYMBOLS, f"a grid must have 2 to {MAX_SYMBOLS} cells, not {self.n_symbols}")

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
    """A coarse grid with a public shift, one of `shifts` per feature.

    The fine grid has cells * shifts cells per feature. The slot is the shift, and the symbol is the
    coarse cell of the shifted fine cell, both in row-major order. A shift moves the grid beyond the bounds, so a
    feature has one coarse cell more. On a circle, the first and the last coarse cell are one. With a categorical
    attribute, the symbol is c V + v for coarse cell c and category v of V. A category has no shift.
    """

    type: ClassVar[str] = "shifted_grid"
    n_features: int
    cells: int  # s, coarse cells per feature
    shifts: int  # w, shifts per feature
    circles: tuple[int, ...] = ()  # indices of the periodic features, ascending
    attributes: tuple[Categorical, ...] = ()  # at most one; its category is part of the symbol

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", read_attributes(self.attributes))
        require(
            len(self.attributes) <= 1 and all(isinstance(each, Categorical) for each in self.attributes),
            "a shifted grid takes at most one attribute, and it must be categorical",
        )
        require_int(self.n_features, 1, 8, "n_features of a shifted grid")
        require_int(self.cells, 1, 4096, "cells per feature")
        require_int(self.shifts, 1, 64, "shifts per feature")
        require(
            isinstance(self.circles, tuple)
            and all(is_int(place) and 0 <= place < self.n_features for place in self.circles)
            and list(self.circles) == sorted(set(self.circles)),
            f"circles must be ascending indices of features, 0 to {self.n_features - 1}",
        )
        require(not self.circles or self.cells >= 2, "a circle must have at least 2 cells, not 1")
        require(
            self.n_symbols <= MAX_SYMBOLS,
            f"a shifted grid may have at most {MAX_SYMBOLS} symbols, not {self.n_symbols}: reduce cells or categories",
        )
        require(
            self.n_slots <= MAX_SYMBOLS,
            f"a shifted grid may have at most {MAX_SYMBOLS} slots, not {self.n_slots}: reduce shifts",
        )

    @property
    def n_slots(self) -> int:
        return int(self.shifts**self.n_features)

    @property
    def n_symbols(self) -> int:
        return math.prod(self.symbols_along) * math.prod(self.categories)

    @property
    def categories(self) -> tuple[int, ...]:
        """Return (V,), the number of categories of the attribute, or () without one."""
        return tuple(len(each.categories) for each in self.attributes)

    @property
    def fine_shape(self) -> tuple[int, ...]:
        """Return the fine cells along each feature, then V if there is an attribute."""
        return (*(self.fine_cells,) * self.n_features, *self.categories)

    @property
    def symbols_along(self) -> tuple[int, ...]:
        """Return the number of coarse cells of each feature: s on a circle, and s + 1 between bounds."""
        return tuple(self.cells + (place not in self.circles) for place in range(self.n_features))

    @property
    def fine_cells(self) -> int:
        """Return G, the fine cells per feature."""
        return self.cells * self.shifts


@dataclass(frozen=True, slots=True)
class TreeGridEncoding:
    """Dyadic cells of different levels that tile the box. The symbol is the cell's index in the list.

    A cell of level l has a side of 2**-l of every feature's range. The list is in Z-order: a box of
    level l is either a cell, or its 2**n_features halves of level l + 1 follow each other, with the
    first feature's half slowest. The levels alone therefore determine the place of every cell.
    """

    type: ClassVar[str] = "tree_grid"
    n_features: int
    levels: tuple[int, ...]  # level of every cell

    def __post_init__(self) -> None:
        require_int(self.n_features, 1, 8, "n_features of a tree grid")
        require(
            isinstance(self.levels, tuple) and 2 <= len(self.levels) <= MAX_TREE_CELLS,
            f"a tree grid must have 2 to {MAX_TREE_CELLS} cells",
        )
        require(
            all(is_int(level) and level >= 0 and level * self.n_features <= MAX_TREE_BITS for level in self.levels),
            f"levels must be integers from 0 to {MAX_TREE_BITS // self.n_features}, so that levels times features fit",
        )
        depth = self.depth
        place = 0  # places of the cells' first finest boxes in Z-order
        for level in self.levels:
            size = 1 << (depth - level) * self.n_features
            require(
                place % size == 0,
                f"the cells must tile the box: the cell of level {level} at place {place} crosses another's bounds",
            )
            place += size
        require(place == 1 << depth * self.n_features, "the cells must tile the box: some of it has no cell, or two")

    @property
    def n_slots(self) -> int:
        return 1

    @property
    def n_symbols(self) -> int:
        return len(self.levels)

    @property
    def depth(self) -> int:
        """Return the finest level."""
        return max(self.levels)


@dataclass(frozen=True, slots=True)
class LatticeEncoding:
    """A point as a vector of integers: a coordinate x in [0, 1] is floor(x * steps + 1/2), 0..steps.

    The symbols are these vectors. Only `discrete_laplace` perturbs them. Their rounds store a sample of
    the reports instead of counts.
    """

    type: ClassVar[str] = "lattice"
    n_features: int
    steps: int  # lattice units across a feature's whole range

    def __post_init__(self) -> None:
        require_int(self.n_features, 1, MAX_FEATURES, "n_features of a lattice")
        require_int(self.steps, 1, MAX_STEPS, "steps")

    @property
    def n_slots(self) -> int:
        return 1

    @property
    def n_symbols(self) -> int:
        return int((self.steps + 1) ** self.n_features)


def most_vectors(n_features: int) -> int:
    """Return the number of vectors that a sample holds, each with the mark of a round that counts people outside."""
    return MAX_SAMPLE_VALUES // (n_features + 1)


@dataclass(frozen=True, slots=True)
class NearestCentroidEncoding:
    """The nearest of several public centroids, and the side of it on which the point lies in one feature.

    A coordinate x in [0, 1] is the integer floor(x * 2**20), at most 2**20 - 1, and a centroid is a row
    of such integers. The squared distances are exact in a double, below 2**46 with 64 features, so
    every device finds the same centroid. Ties go to the first one. The slot is the feature. The symbol
    is 2 c, or 2 c + 1 if the point's coordinate is above that of centroid c.
    """

    type: ClassVar[str] = "nearest_centroid"
    centroids: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check_rows(self.centroids, "centroids", MAX_CENTROIDS, 0, LATTICE - 1)

    @property
    def n_features(self) -> int:
        return len(self.centroids[0])

    @property
    def n_slots(self) -> int:
        return len(self.centroids[0])

    @property
    def n_symbols(self) -> int:
        return 2 * len(self.centroids)


@dataclass(frozen=True, slots=True)
class CentroidSignEncoding:
    """One bit: a public sign of the nearest centroid, times the side of it on which the point lies.

    The nearest centroid c and the side are those of `NearestCentroidEncoding`. The signs are a Walsh
    matrix H[h, c] = (-1)^popcount(h & c); its number of rows is the next power of two of the number of
    centroids. The slot is the index of a feature times the number of rows, plus the row h. One more
    feature follows the last one; every point lies above in it. The symbol is 1 if H[h, c] is +1 and the
    point lies above, or if H[h, c] is -1 and the point lies below.
    """

    type: ClassVar[str] = "centroid_sign"
    centroids: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check_rows(self.centroids, "centroids", MAX_CENTROIDS, 0, LATTICE - 1)

    @property
    def n_features(self) -> int:
        return len(self.centroids[0])

    @property
    def n_rows(self) -> int:
        """Return the number of rows of the Walsh matrix."""
        return 1 << (len(self.centroids) - 1).bit_length()

    @property
    def n_slots(self) -> int:
        return (len(self.centroids[0]) + 1) * self.n_rows

    @property
    def n_symbols(self) -> int:
        return 2


@dataclass(frozen=True, slots=True)
class ProfileEncoding:
    """The cluster of a record among published clusters, together with the category of one attribute.

    The clusters are either the nearest of `centroids`, as in `NearestCentroidEncoding`, or labels of the `cells` of a
    grid over the bounds. In row-major order, each label holds from a cell of `starts` on, up to the next one. The slot
    is the attribute. The symbol is c V + v for cluster c and category v, where V is the largest number of categories of
    an attribute. An attribute with the name of a feature has the value of that feature.
    """

    type: ClassVar[str] = "profile"
    attributes: tuple[Attribute, ...]
    centroids: tuple[tuple[int, ...], ...] = ()
    cells: tuple[int, ...] = ()  # per feature
    starts: tuple[int, ...] = ()  # first cell of each run of equal labels, ascending from 0
    labels: tuple[int, ...] = ()  # cluster of each run

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", read_attributes(self.attributes))
        n, names = len(self.attributes), {each.name for each in self.attributes}
        require(1 <= n <= MAX_ATTRIBUTES, f"a profile must have 1 to {MAX_ATTRIBUTES} attributes, not {n}")
        require(len(names) == n, "the attributes of a profile must have unique names")
        has_centroids = bool(self.centroids)
        require(
            has_centroids != bool(self.cells) and bool(self.cells) == bool(self.starts) == bool(self.labels),
            "a profile must have either centroids, or cells with starts and labels",
        )
        if has_centroids:
            check_rows(self.centroids, "centroids", MAX_CENTROIDS, 0, LATTICE - 1)
        else:
            self._check_map()
        require(
            self.n_symbols <= MAX_CELL_SYMBOLS,
            f"clusters times the largest number of categories must be at most {MAX_CELL_SYMBOLS}, not "
            f"{self.n_symbols}: leave out the attribute with the most categories",
        )

    def _check_map(self) -> None:
        require(len(self.cells) <= MAX_FEATURES, f"a map must have at most {MAX_FEATURES} features")
        require(all(is_int(n) and n >= 1 for n in self.cells), "cells per feature must be positive integers")
        n_cells, n_runs = math.prod(self.cells), len(self.starts)
        require(n_cells <= MAX_SYMBOLS, f"a map must have at most {MAX_SYMBOLS} cells, not {n_cells}")
        require(
            n_runs == len(self.labels) and n_runs <= MAX_MAP_RUNS,
            f"a map must have a label for each start, at most {MAX_MAP_RUNS}: {len(self.labels)} for {n_runs} starts",
        )
        require(
            all(map(is_int, self.starts))
            and self.starts[0] == 0
            and all(one < following for one, following in pairwise((*self.starts, n_cells))),
            f"the starts of a map must ascend from 0 and be below its number of cells, {n_cells}",
        )
        require(
            all(is_int(label) and 0 <= label < MAX_CELL_SYMBOLS for label in self.labels),
            f"labels must be integers from 0 to {MAX_CELL_SYMBOLS - 1}",
        )

    @property
    def n_features(self) -> int:
        return len(self.centroids[0]) if self.centroids else len(self.cells)

    @property
    def n_slots(self) -> int:
        return len(self.attributes)

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters K."""
        return len(self.centroids) or max(self.labels) + 1

    @property
    def n_values(self) -> int:
        """Return V, the largest number of categories of an attribute."""
        return max(len(each.categories) for each in self.attributes)

    @property
    def n_symbols(self) -> int:
        return self.n_clusters * self.n_values


Encoding = (
    GridEncoding
    | ShiftedGridEncoding
    | TreeGridEncoding
    | PhaseEncoding
    | LatticeEncoding
    | NearestCentroidEncoding
    | CentroidSignEncoding
    | ProfileEncoding
)


def attributes_of(encoding: Encoding) -> tuple[Attribute, ...]:
    """Return the attributes with categories that are part of the symbols of an encoding."""
    return encoding.attributes if isinstance(encoding, ProfileEncoding | ShiftedGridEncoding | PhaseEncoding) else ()


def require_circles(encoding: Encoding, circles: tuple[int, ...]) -> None:
    """Raise InvalidSpec if an encoding does not suit periodic features with these indices.

    A grid, or a profile of cells, divides a circle into cells, and needs no more. A shifted grid states its circles. A
    wave of phases makes whole turns along a circle, so that the phase is the same on both sides of the seam.
    """
    if isinstance(encoding, ShiftedGridEncoding):
        require(
            circles == encoding.circles,
            f"the circles of the encoding must be the periodic features {list(circles)}, not {list(encoding.circles)}",
        )
    elif isinstance(encoding, PhaseEncoding):
        parts = {row[place] % FULL_TURN for row in encoding.weights for place in circles}
        require(parts <= {0}, f"weights of periodic features must be multiples of {FULL_TURN}, which are whole turns")
    else:
        has_cells = isinstance(encoding, GridEncoding | ProfileEncoding) and bool(encoding.cells)
        require(
            not circles or has_cells,
            f"{encoding.type} does not take periodic features: use grid, shifted_grid, phase or a profile of cells",
        )
