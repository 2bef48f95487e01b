"""Schemas of encodings, mechanisms and round specifications."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import FailFast, Field, model_validator
from typing_extensions import TypeAliasType

from service.schemas.base import Wire, Word, check, example, integer
from service.schemas.declarations import schema_of
from service.schemas.features import Attributes, CategoricalAttribute, Feature
from sfumato import specs


class _Encoding(Wire):
    """An encoding. The SDK's dataclass validates it."""

    @model_validator(mode="after")
    def _check_encoding(self) -> Self:
        check(lambda: specs.encoding_from_wire(self.model_dump()))
        return self


class GridEncoding(_Encoding):
    """A grid. The symbol is the row-major index of the cell; the first feature varies slowest."""

    model_config = example(type="grid", cells=[32, 16])

    type: Literal["grid"]
    cells: list[Annotated[int, integer(ge=1)]] = Field(
        min_length=1, max_length=specs.MAX_FEATURES, description="Number of cells of each feature."
    )


class ShiftedGridEncoding(_Encoding):
    """A coarse grid with `shifts` public shifts per feature. The slot selects the shift."""

    model_config = example(type="shifted_grid", n_features=2, cells=10, shifts=4)

    type: Literal["shifted_grid"]
    n_features: Annotated[int, integer(1, 8)] = Field(description="Number of features.")
    cells: Annotated[int, integer(1, 4096)] = Field(description="Number of coarse cells per feature.")
    shifts: Annotated[int, integer(1, 64)] = Field(description="Number of shifts per feature.")
    circles: list[Annotated[int, integer(0, 7)]] = Field(
        [],
        max_length=8,
        description="Indices of the periodic features, ascending. The first and the last coarse cell of such a feature "
        "are one. If absent, there are none; in a new round, those of the dataset.",
    )
    attributes: list[CategoricalAttribute] = Field(
        [],
        max_length=1,
        description="At most one attribute. The symbol is c V + v for coarse cell c and category v of V. If absent, "
        "there is none.",
    )


class TreeGridEncoding(_Encoding):
    """Cells of different levels that tile the box, listed in depth-first order. The symbol is the index in the list."""

    model_config = example(type="tree_grid", n_features=2, levels=[1, 1, 2, 2, 2, 2, 1])

    type: Literal["tree_grid"]
    n_features: Annotated[int, integer(1, 8)] = Field(description="Number of features.")
    levels: Annotated[list[Annotated[int, integer(0, specs.MAX_TREE_BITS)]], FailFast()] = Field(
        min_length=2,
        max_length=specs.MAX_TREE_CELLS,
        description="Level of each cell: its sides are 2^-level of the range. "
        "The 2^n_features children of a box are listed in order; the half of the first feature varies slowest.",
    )


_WeightRow = Annotated[
    list[Annotated[int, integer(-specs.MAX_WEIGHT, specs.MAX_WEIGHT)]],
    FailFast(),
    Field(min_length=1, max_length=specs.MAX_FEATURES),
]
_CharacterRow = Annotated[
    list[Annotated[int, integer(0, specs.MAX_PHASE_CATEGORIES - 1)]],
    FailFast(),
    Field(min_length=1, max_length=specs.MAX_PHASE_ATTRIBUTES),
]


class LatticeEncoding(_Encoding):
    """A point as a vector of integers. A round with this encoding keeps a sample of noisy vectors instead of counts."""

    model_config = example(type="lattice", n_features=4, steps=1000)

    type: Literal["lattice"]
    n_features: Annotated[int, integer(1, specs.MAX_FEATURES)] = Field(description="Number of features.")
    steps: Annotated[int, integer(1, specs.MAX_STEPS)] = Field(
        description="Number of steps: a coordinate x in [0, 1] becomes floor(x * steps + 1/2)."
    )


_CentroidRow = Annotated[
    list[Annotated[int, integer(0, specs.LATTICE - 1)]],
    FailFast(),  # a list of any length has one error
    Field(min_length=1, max_length=specs.MAX_FEATURES),
]


def _centroids(symbol: str) -> Any:
    return Field(
        min_length=1,
        max_length=specs.MAX_CENTROIDS,
        description=f"Coordinates of each centroid as floor(x 2^20). The symbol is {symbol}.",
    )


class NearestCentroidEncoding(_Encoding):
    """The nearest public centroid, and the side of it on which the point lies in the feature that the slot selects."""

    model_config = example(type="nearest_centroid", centroids=[[262144, 786432], [524288, 131072]])

    type: Literal["nearest_centroid"]
    centroids: list[_CentroidRow] = _centroids("2 c, plus 1 if the coordinate of the point is above that of centroid c")


class CentroidSignEncoding(_Encoding):
    """One bit: a public sign of the nearest public centroid, times the side of it on which the point lies."""

    model_config = example(type="centroid_sign", centroids=[[262144, 786432], [524288, 131072]])

    type: Literal["centroid_sign"]
    centroids: list[_CentroidRow] = _centroids(
        "1 if the coordinate of the point is above that of centroid c and (-1)^popcount(h & c) is +1, or if "
        "neither holds. "
        "The slot is the feature times the number of rows, plus the row h. The number of rows is that of centroids, "
        "rounded up to a power of two"
    )


class PhaseEncoding(_Encoding):
    """The part of a turn, of L equal parts, with the phase of a point along the public wave that the slot selects."""

    model_config = example(type="phase", weights=[[652, 0], [-1210, 4377]], phases=16)

    type: Literal["phase"]
    weights: Annotated[list[_WeightRow], FailFast()] = Field(
        min_length=1,
        max_length=specs.MAX_PHASE_SLOTS,
        description="One row per wave, one integer per feature; not all are zero. A row of zeros shows the share of "
        "records outside of the bounds. "
        "The phase is the sum of weight times floor(x 2^20), modulo 2^30, for x scaled to [0, 1].",
    )
    phases: Annotated[int, integer(4, specs.MAX_PHASES)] = Field(
        description="Number L of parts of a turn: the symbol is floor(L phase / 2^30)."
    )
    attributes: list[CategoricalAttribute] = Field(
        [],
        max_length=specs.MAX_PHASE_ATTRIBUTES,
        description=f"Attributes of at most {specs.MAX_PHASE_CATEGORIES} categories. Category c of m adds "
        "floor((a c mod m) 2^30 / m) to the phase, for the character a of the wave. If absent, there are none.",
    )
    characters: Annotated[list[_CharacterRow], FailFast()] = Field(
        [],
        max_length=specs.MAX_PHASE_SLOTS,
        description="With attributes, one row per wave: for each attribute an integer a below its number of "
        "categories. 0 leaves the attribute out of the wave. A row of zero weights has zeros.",
    )


class ProfileEncoding(_Encoding):
    """The cluster of a record among published clusters, together with the category of the slot's attribute.

    The clusters are the nearest of `centroids`, or labels of the `cells` of a grid.
    """

    model_config = example(
        type="profile",
        attributes=[{"name": "plan", "kind": "categorical", "values": ["free", "pro"], "missing": "category"}],
        centroids=[[262144, 786432], [524288, 131072]],
    )

    type: Literal["profile"]
    attributes: Attributes = Field(
        min_length=1,
        description="Attributes in the order of the slots. One with the name of a feature has the feature's value. "
        "The symbol is c V + v for cluster c and category v, with V the largest number of categories.",
    )
    centroids: list[_CentroidRow] = Field(
        [], max_length=specs.MAX_CENTROIDS, description="Coordinates of each centroid as floor(x 2^20), or empty."
    )
    cells: list[Annotated[int, integer(ge=1)]] = Field(
        [], max_length=specs.MAX_FEATURES, description="Number of cells of each feature; empty with centroids."
    )
    starts: Annotated[list[Annotated[int, integer(ge=0)]], FailFast()] = Field(
        [],
        max_length=specs.MAX_MAP_RUNS,
        description="First cell of each run of equal labels, row-major, ascending from 0; empty with centroids.",
    )
    labels: Annotated[list[Annotated[int, integer(0, specs.MAX_CELL_SYMBOLS - 1)]], FailFast()] = Field(
        [], max_length=specs.MAX_MAP_RUNS, description="Cluster of each run of cells; empty with centroids."
    )


Encoding = TypeAliasType(
    "Encoding",
    Annotated[
        GridEncoding
        | ShiftedGridEncoding
        | TreeGridEncoding
        | LatticeEncoding
        | NearestCentroidEncoding
        | CentroidSignEncoding
        | PhaseEncoding
        | ProfileEncoding,
        Field(discriminator="type", description="Encoding: how a point becomes a symbol."),
    ],
)


MECHANISM_SCHEMAS: dict[str, type[Wire]] = {tag: schema_of(kind, Wire) for tag, kind in specs.MECHANISMS.items()}

if TYPE_CHECKING:
    Mechanism = Wire
else:
    Mechanism = TypeAliasType(
        "Mechanism",
        Annotated[
            reduce(or_, MECHANISM_SCHEMAS.values()),
            Field(discriminator="type", description="Mechanism: how a symbol is perturbed."),
        ],
    )


class Participation(Wire):
    """Interval [lo, hi) of participation draws. A device answers the round if its secret 64-bit draw lies in it."""

    model_config = example(lo="0", hi="18446744073709551616")

    lo: Word = Field(description="Start of the interval, inclusive, in decimal.")
    hi: Word = Field(description="End of the interval, exclusive, in decimal; at most 2^64.")

    @model_validator(mode="after")
    def _possible(self) -> "Participation":
        check(lambda: specs.Participation(int(self.lo), int(self.hi)))
        return self


RoundOutOfBounds = TypeAliasType(
    "RoundOutOfBounds",
    Annotated[
        Literal["count", "clip"],
        Field(description="Treatment of records outside of the bounds in a round; `refuse` is for records only."),
    ],
)


class RoundSpec(Wire):
    """Specification of a round: everything that a device needs to answer it. It is the same for every device."""

    # a range, because generators write text for a number that is a constant
    version: Annotated[int, integer(1, 1)] = Field(description="Version of the format of round specifications.")
    features: list[Feature] = Field(description="Features of a record, in order.")
    encoding: Encoding
    mechanism: Mechanism
    participation: Participation
    out_of_bounds: RoundOutOfBounds = Field(
        "clip",
        description="Treatment of a record with a value outside its bounds. `count`: grids, trees and nearest "
        "centroids have one more symbol, the last one, for such a record; a phase or sign is chosen at random; "
        "a vector has one more number, see `mark`. `clip`, which is meant if the member is absent: each value is moved "
        "to its nearest bound.",
    )


def encoding_to_domain(encoding: Encoding) -> specs.Encoding:
    """Convert an encoding to the dataclass of the SDK."""
    return specs.encoding_from_wire(encoding.model_dump())
