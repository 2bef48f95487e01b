"""Schemas of features, encodings, mechanisms and round specifications."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Discriminator, FailFast, Field, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType

from service.schemas.base import Double, Wire, Word, check, example, integer
from service.schemas.declarations import schema_of
from sfumato import specs
from sfumato.specs.attributes import MAX_ATTRIBUTES, MAX_VALUES, MAX_WEIGHT, MIN_WEIGHT, attribute_from_wire
from sfumato.validation import NAME_PATTERN, UNIT_PATTERN

MAX_BOUND = 1e150  # plots and standard errors square distances


Coordinate = TypeAliasType(
    "Coordinate", Annotated[specs.Coordinate, Field(description="The part of a place on Earth that a feature is.")]
)


class Feature(Wire):
    """One feature of a record, with its public bounds."""

    model_config = example(name="longitude", lower=-180.0, upper=180.0, unit="degrees")

    name: str = Field(
        min_length=1,
        max_length=64,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="Name of the feature; unique in the dataset.",
    )
    lower: Double = Field(
        ge=-MAX_BOUND,
        le=MAX_BOUND,
        description="Lower bound, in the unit of the feature. Smaller values are outside; see `out_of_bounds`.",
    )
    upper: Double = Field(ge=-MAX_BOUND, le=MAX_BOUND, description="Upper bound; greater than `lower`.")
    unit: str = Field("", max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$", description="Unit, as text.")
    periodic: bool = Field(
        False,
        description="Whether the values lie on a circle, such as longitudes and hours of the day. The bounds are one "
        "period: a full turn, if the unit is degrees, radians, hours or minutes. `false`, which is meant if the member "
        "is absent.",
    )
    coordinate: Coordinate | SkipJsonSchema[None] = Field(
        None,
        description="The part of a place on Earth that the feature is, in degrees. A dataset has one latitude and one "
        "longitude, or none of both. Latitudes are scaled by their sine, so that equal areas have equal shares of the "
        "grid. Longitudes are moved by whole turns towards the bounds. `upper` may be a longitude west of `lower`, if "
        "the bounds cross the antimeridian.",
    )

    @model_validator(mode="after")
    def _possible(self) -> "Feature":
        check(
            self.to_domain,
            "lower must be less than upper, the bounds of a periodic feature one period, and the bounds of a latitude "
            "or longitude a region on Earth in degrees",
        )
        return self

    def to_domain(self) -> specs.Feature:
        """Return the feature as a dataclass of the SDK."""
        return specs.Feature(self.name, self.lower, self.upper, self.unit, self.periodic, self.coordinate)


class Embedding(Wire):
    """Vectors in an L2 ball around the origin. Their features are named `x0`, `x1`, and so on."""

    model_config = example(dimensions=768, norm=1.0)

    dimensions: Annotated[int, integer(1, specs.MAX_RECORD_FEATURES)] = Field(description="Number of features.")
    norm: Double = Field(
        1.0, gt=0, le=specs.MAX_NORM, description="Largest L2 norm of a vector. Longer vectors are out of bounds."
    )


Features = TypeAliasType(
    "Features",
    Annotated[
        Annotated[list[Feature], Field(min_length=1, max_length=specs.MAX_RECORD_FEATURES), Tag("list")]
        | Annotated[Embedding, Tag("embedding")],
        Discriminator(
            lambda value: "embedding" if isinstance(value, dict | Embedding) else "list",
        ),
        Field(
            description="Features of a record, in order: at most 64 if `trust` is `local`, otherwise at most 1,536. "
            "An object is for central datasets: it bounds the norm of a record instead of each value."
        ),
    ],
)


AttributeUnknown = TypeAliasType(
    "AttributeUnknown",
    Annotated[
        Literal["refuse", "other"],
        Field(description="Treatment of a value outside the vocabulary: refuse the upload, or count it as `other`."),
    ],
)
AttributeMissing = TypeAliasType(
    "AttributeMissing",
    Annotated[
        Literal["refuse", "category"],
        Field(description="Treatment of a missing value: refuse the upload, or count it as the category `missing`."),
    ],
)
AttributeUse = TypeAliasType(
    "AttributeUse",
    Annotated[
        Literal["describe", "cluster"],
        Field(
            description="`describe`: profiles alone read the attribute. `cluster`: jobs cluster by it, too, unless "
            "their `features` leave it out."
        ),
    ],
)
NumericUse = TypeAliasType(
    "NumericUse",
    Annotated[Literal["describe"], Field(description="Numbers that form clusters are features.")],
)
_AttributeText = Annotated[str, Field(min_length=1, max_length=64, pattern=NAME_PATTERN)]


class _Attribute(Wire):
    """An attribute. The SDK's dataclass validates it."""

    @model_validator(mode="after")
    def _check_attribute(self) -> Self:
        check(lambda: attribute_from_wire(self.model_dump()))
        return self


class CategoricalAttribute(_Attribute):
    """A column with a public vocabulary."""

    model_config = example(name="plan", kind="categorical", values=["free", "basic", "pro"], unknown="other")

    name: _AttributeText = Field(description="Name of the column; unique in the dataset, 1 to 64 bytes.")
    kind: Literal["categorical"]
    values: list[_AttributeText] = Field(
        min_length=2,
        max_length=MAX_VALUES,
        json_schema_extra={"uniqueItems": True},
        description="Values of 1 to 64 bytes, compared in Unicode's form NFC without outer white space.",
    )
    unknown: AttributeUnknown = "refuse"
    missing: AttributeMissing = "refuse"
    use: AttributeUse = "describe"
    weight: Annotated[Double, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT)] = Field(
        1.0,
        description="With the use `cluster`: part of the attribute in squared distances. With 1, evenly frequent "
        "categories vary half as much as an even feature.",
    )


class NumericAttribute(_Attribute):
    """A column of numbers with public bins."""

    model_config = example(name="age", kind="numeric", bins=[0.0, 18.0, 30.0, 45.0, 65.0, 120.0], unit="years")

    name: _AttributeText = Field(description="Name of the column; unique in the dataset, 1 to 64 bytes.")
    kind: Literal["numeric"]
    bins: list[Annotated[Double, Field(ge=-MAX_BOUND, le=MAX_BOUND)]] = Field(
        min_length=3,
        max_length=MAX_VALUES + 1,
        description="Ascending edges. Values beyond them are treated as `out_of_bounds` of the dataset states.",
    )
    missing: AttributeMissing = "refuse"
    use: NumericUse = "describe"
    unit: str = Field("", max_length=64, pattern=UNIT_PATTERN, description="Unit, as text.")


Attribute = TypeAliasType(
    "Attribute",
    Annotated[
        CategoricalAttribute | NumericAttribute,
        Field(discriminator="kind", description="A column that describes or forms clusters."),
    ],
)
Attributes = Annotated[list[Attribute], Field(max_length=MAX_ATTRIBUTES)]


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


# ---- conversion to the SDK's dataclasses ----


def features_to_domain(features: list[Feature] | Embedding) -> tuple[specs.Feature, ...] | specs.Embedding:
    """Convert the features of a dataset to dataclasses of the SDK."""
    if isinstance(features, Embedding):
        return specs.Embedding(features.dimensions, features.norm)
    return tuple(each.to_domain() for each in features)


def encoding_to_domain(encoding: Encoding) -> specs.Encoding:
    """Convert an encoding to the dataclass of the SDK."""
    return specs.encoding_from_wire(encoding.model_dump())
