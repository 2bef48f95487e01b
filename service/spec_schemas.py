"""The wire's features, encodings, mechanisms and round specs."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import TypeAliasType

from service.schemas import Double, Wire, Word, check, example, integer
from sfumato import specs


class Feature(Wire):
    """One feature of a record, with its public bounds."""

    model_config = example(name="longitude", lower=-180.0, upper=180.0, unit="degrees")

    name: str = Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$", description="Unlike the others'.")
    lower: Double = Field(description="Smallest value, in the feature's unit; what lies below is clipped.")
    upper: Double = Field(description="Largest value; above `lower`.")
    unit: str = Field("", max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$", description="For people.")

    @model_validator(mode="after")
    def _possible(self) -> "Feature":
        message = "lower must lie below upper, and not too far"
        check(lambda: specs.Feature(self.name, self.lower, self.upper, self.unit), message)
        return self


class GridEncoding(Wire):
    """A plain grid: the symbol is the cell, row-major, the first feature slowest."""

    model_config = example(type="grid", cells=[32, 16])

    type: Literal["grid"]
    cells: list[Annotated[int, integer(ge=1)]] = Field(
        min_length=1, max_length=specs.MAX_FEATURES, description="Cells of each feature."
    )

    @model_validator(mode="after")
    def _possible(self) -> "GridEncoding":
        check(lambda: specs.encoding_from_wire(self.model_dump()))
        return self


class ShiftedGridEncoding(Wire):
    """A coarse grid under `shifts` public shifts a feature; the slot says which shift."""

    model_config = example(type="shifted_grid", n_features=2, cells=10, shifts=4)

    type: Literal["shifted_grid"]
    n_features: Annotated[int, integer(1, 8)] = Field(description="How many features.")
    cells: Annotated[int, integer(1, 4096)] = Field(description="Coarse cells a feature.")
    shifts: Annotated[int, integer(1, 64)] = Field(description="Shifts a feature.")

    @model_validator(mode="after")
    def _possible(self) -> "ShiftedGridEncoding":
        check(lambda: specs.encoding_from_wire(self.model_dump()))
        return self


class TreeGridEncoding(Wire):
    """Cells of different levels that tile the box, listed as a tree is walked; the symbol is the place in the list."""

    model_config = example(type="tree_grid", n_features=2, levels=[1, 1, 2, 2, 2, 2, 1])

    type: Literal["tree_grid"]
    n_features: Annotated[int, integer(1, 8)] = Field(description="How many features.")
    levels: list[Annotated[int, integer(0, specs.MAX_TREE_BITS)]] = Field(
        min_length=2,
        max_length=specs.MAX_TREE_CELLS,
        description="Level of each cell: its sides are 2^-level of the range. "
        "The 2^n_features halves of a box follow one another, the first feature's half slowest.",
    )

    @model_validator(mode="after")
    def _possible(self) -> "TreeGridEncoding":
        check(lambda: specs.encoding_from_wire(self.model_dump()))
        return self


def _weights(max_length: int) -> Any:
    return Field(
        min_length=1, max_length=max_length, description="One row a direction, one integer a feature; no row all zero."
    )


_WeightRow = Annotated[
    list[Annotated[int, integer(-specs.MAX_WEIGHT, specs.MAX_WEIGHT)]],
    Field(min_length=1, max_length=specs.MAX_FEATURES),
]
_Projection = Annotated[int, integer(-specs.MAX_PROJECTION, specs.MAX_PROJECTION)]


class ProjectedGridEncoding(Wire):
    """One of several public directions, in coarse cells under one of several public shifts; the slot says which."""

    model_config = example(
        type="projected_grid",
        weights=[[1, 0], [16384, -9216]],
        lowers=[0, -9663676416],
        spans=[1048576, 26843545600],
        cells=10,
        shifts=4,
    )

    type: Literal["projected_grid"]
    weights: list[_WeightRow] = _weights(specs.MAX_PROJECTIONS)
    lowers: list[_Projection] = Field(
        max_length=specs.MAX_PROJECTIONS,
        description="Where each direction's range begins: a place along it is the sum of weight times floor(x 2^20), "
        "for x scaled to [0, 1].",
    )
    spans: list[Annotated[int, integer(1, 2 * specs.MAX_PROJECTION)]] = Field(
        max_length=specs.MAX_PROJECTIONS, description="Width of each direction's range; places outside are clipped."
    )
    cells: Annotated[int, integer(1, specs.MAX_PROJECTED_CELLS)] = Field(description="Coarse cells of a range.")
    shifts: Annotated[int, integer(1, specs.MAX_PROJECTED_SHIFTS)] = Field(description="Shifts of a direction.")

    @model_validator(mode="after")
    def _possible(self) -> "ProjectedGridEncoding":
        check(lambda: specs.encoding_from_wire(self.model_dump()))
        return self


class HalfspaceCodeEncoding(Wire):
    """On which side of each public cut a point lies: bit b of the symbol says of cut b."""

    model_config = example(type="halfspace_code", weights=[[1, 0], [16384, -9216]], thresholds=[524288, 3758096384])

    type: Literal["halfspace_code"]
    weights: list[_WeightRow] = _weights(specs.MAX_CODE_BITS)
    thresholds: list[_Projection] = Field(
        max_length=specs.MAX_CODE_BITS,
        description="The bit is set where the sum of weight times floor(x 2^20) is at least this.",
    )

    @model_validator(mode="after")
    def _possible(self) -> "HalfspaceCodeEncoding":
        check(lambda: specs.encoding_from_wire(self.model_dump()))
        return self


class LatticeEncoding(Wire):
    """A point as a vector of integers; a round of them keeps a sample of noisy vectors instead of counts."""

    model_config = example(type="lattice", n_features=4, steps=1000)

    type: Literal["lattice"]
    n_features: Annotated[int, integer(1, specs.MAX_FEATURES)] = Field(description="How many features.")
    steps: Annotated[int, integer(1, specs.MAX_STEPS)] = Field(
        description="A coordinate in [0, 1] is floor(x * steps + 1/2)."
    )


_CentroidRow = Annotated[
    list[Annotated[int, integer(0, specs.LATTICE - 1)]], Field(min_length=1, max_length=specs.MAX_FEATURES)
]


def _centroids(symbol: str) -> Any:
    return Field(
        min_length=1,
        max_length=specs.MAX_CENTROIDS,
        description=f"Of each its coordinates as floor(x 2^20). The symbol is {symbol}.",
    )


class NearestCentroidEncoding(Wire):
    """Which public centroid is nearest, and on which side of it a point lies in the feature the slot says."""

    model_config = example(type="nearest_centroid", centroids=[[262144, 786432], [524288, 131072]])

    type: Literal["nearest_centroid"]
    centroids: list[_CentroidRow] = _centroids(
        "2 c, and one more where the point's coordinate lies above that of centroid c"
    )

    @model_validator(mode="after")
    def _possible(self) -> "NearestCentroidEncoding":
        check(lambda: specs.encoding_from_wire(self.model_dump()))
        return self


class CentroidSignEncoding(Wire):
    """One bit about the nearest public centroid: a public sign of it, times the side of it a point lies on."""

    model_config = example(type="centroid_sign", centroids=[[262144, 786432], [524288, 131072]])

    type: Literal["centroid_sign"]
    centroids: list[_CentroidRow] = _centroids(
        "1 where the point's coordinate lies above that of centroid c and (-1)^popcount(h & c) is +1, or neither; "
        "the slot is the feature times the number of rows, the next power of two of that of centroids, plus the row h"
    )

    @model_validator(mode="after")
    def _possible(self) -> "CentroidSignEncoding":
        check(lambda: specs.encoding_from_wire(self.model_dump()))
        return self


class PhaseEncoding(Wire):
    """Which of L equal parts of a turn a point's phase along a public wave falls in; the slot says which wave."""

    model_config = example(type="phase", weights=[[652, 0], [-1210, 4377]], phases=16)

    type: Literal["phase"]
    weights: list[_WeightRow] = Field(
        min_length=1,
        max_length=specs.MAX_PHASE_SLOTS,
        description="One row a wave, one integer a feature; no row all zero. "
        "The phase is the sum of weight times floor(x 2^20), modulo 2^30, for x scaled to [0, 1].",
    )
    phases: Annotated[int, integer(4, specs.MAX_PHASES)] = Field(
        description="L, parts of a turn: the symbol is floor(L phase / 2^30)."
    )

    @model_validator(mode="after")
    def _possible(self) -> "PhaseEncoding":
        check(lambda: specs.encoding_from_wire(self.model_dump()))
        return self


Encoding = TypeAliasType(
    "Encoding",
    Annotated[
        GridEncoding
        | ShiftedGridEncoding
        | TreeGridEncoding
        | ProjectedGridEncoding
        | HalfspaceCodeEncoding
        | LatticeEncoding
        | NearestCentroidEncoding
        | CentroidSignEncoding
        | PhaseEncoding,
        Field(discriminator="type", description="How a point becomes a symbol."),
    ],
)


class GrrMechanism(Wire):
    """k-ary randomised response: keeps the symbol where a random 64-bit word lies below `keep_threshold`."""

    model_config = example(type="grr", n_symbols=4, keep_threshold="13116093003189305344")

    type: Literal["grr"]
    n_symbols: Annotated[int, integer(2, specs.MAX_SYMBOLS)] = Field(description="k, how many symbols.")
    keep_threshold: Word = Field(description="floor(p 2^64), decimal.")


class SsMechanism(Wire):
    """Subset selection: a subset that holds the symbol where a random 64-bit word lies below `hold_threshold`."""

    model_config = example(type="ss", n_symbols=121, subset_size=14, hold_threshold="9142189234563317760")

    type: Literal["ss"]
    n_symbols: Annotated[int, integer(2, specs.MAX_SUBSET_SYMBOLS)] = Field(description="k, how many symbols.")
    subset_size: Annotated[int, integer(1, specs.MAX_SUBSET_SYMBOLS)] = Field(description="d, symbols in a subset.")
    hold_threshold: Word = Field(description="floor(p 2^64), decimal.")


class OueMechanism(Wire):
    """Optimised unary encoding: k bits, the own one set by a fair coin, another below `other_threshold`."""

    model_config = example(type="oue", n_symbols=121, other_threshold="4961093570831980854")

    type: Literal["oue"]
    n_symbols: Annotated[int, integer(2, specs.MAX_SUBSET_SYMBOLS)] = Field(description="k, how many symbols.")
    other_threshold: Word = Field(description="ceil(q 2^64), decimal.")


class OlhMechanism(Wire):
    """Local hashing: a public seed, and the hashed symbol, kept where a 64-bit word lies below `keep_threshold`."""

    model_config = example(type="olh", n_symbols=121, hash_range=4, keep_threshold="8768971294881393556")

    type: Literal["olh"]
    n_symbols: Annotated[int, integer(2, specs.MAX_SYMBOLS)] = Field(description="k, how many symbols.")
    hash_range: Annotated[int, integer(2, specs.MAX_HASH_RANGE)] = Field(description="g, values of the hash.")
    keep_threshold: Word = Field(description="floor(p 2^64), decimal.")


class HrMechanism(Wire):
    """Hadamard response: a random Walsh coefficient's sign, kept where a 64-bit word lies below `keep_threshold`."""

    model_config = example(type="hr", n_symbols=121, keep_threshold="13485650502877570762")

    type: Literal["hr"]
    n_symbols: Annotated[int, integer(2, specs.MAX_SYMBOLS)] = Field(description="k, how many symbols.")
    keep_threshold: Word = Field(description="floor(p 2^64), decimal.")


class DiscreteLaplaceMechanism(Wire):
    """Exact discrete Laplace noise on every feature of a lattice's vector, drawn with integers alone."""

    model_config = example(
        type="discrete_laplace", n_features=4, steps=1000, scale_numerator=4000, scale_denominator=1, margin=64_000
    )

    type: Literal["discrete_laplace"]
    n_features: Annotated[int, integer(1, specs.MAX_FEATURES)] = Field(description="K, how many features.")
    steps: Annotated[int, integer(1, specs.MAX_STEPS)] = Field(description="Of the lattice.")
    scale_numerator: Annotated[int, integer(1, specs.MAX_SCALE_PART)] = Field(
        description="Of the scale, in lattice units: K steps / epsilon."
    )
    scale_denominator: Annotated[int, integer(1, specs.MAX_SCALE_PART)] = Field(description="Of the scale.")
    margin: Annotated[int, integer(0, specs.MAX_MARGIN)] = Field(
        description="What is sent of a feature is clamped to -margin .. steps + margin."
    )


class WindowMechanism(Wire):
    """Symbols on a circle: one of a window around the own one where a 64-bit word lies below `inside_threshold`."""

    model_config = example(type="window", n_symbols=16, window_size=6, inside_threshold="11439616490394810368")

    type: Literal["window"]
    n_symbols: Annotated[int, integer(2, specs.MAX_WINDOW_SYMBOLS)] = Field(description="k, how many symbols.")
    window_size: Annotated[int, integer(1, specs.MAX_WINDOW_SYMBOLS)] = Field(description="w, symbols in the window.")
    inside_threshold: Word = Field(description="floor(p 2^64), decimal.")


Mechanism = TypeAliasType(
    "Mechanism",
    Annotated[
        GrrMechanism
        | SsMechanism
        | OueMechanism
        | OlhMechanism
        | HrMechanism
        | DiscreteLaplaceMechanism
        | WindowMechanism,
        Field(discriminator="type", description="How a symbol is perturbed."),
    ],
)


class Draw(Wire):
    """The interval [lo, hi) of a device's secret 64-bit draw that answers a round."""

    model_config = example(lo="0", hi="18446744073709551616")

    lo: Word = Field(description="First draw that answers, decimal.")
    hi: Word = Field(description="First draw above it that does not, decimal; at most 2^64.")

    @model_validator(mode="after")
    def _possible(self) -> "Draw":
        check(lambda: specs.Draw(int(self.lo), int(self.hi)))
        return self


class RoundSpec(Wire):
    """Everything a device needs to answer a round; the same for every device."""

    version: Literal[1]
    features: list[Feature] = Field(description="What a record holds, in order.")
    encoding: Encoding
    mechanism: Mechanism
    draw: Draw


# ---- to the domain ----


def feature_to_domain(feature: Feature) -> specs.Feature:
    """The feature as everything behind the wire knows it."""
    return specs.Feature(feature.name, feature.lower, feature.upper, feature.unit)


def encoding_to_domain(encoding: Encoding) -> specs.Encoding:
    """The encoding as everything behind the wire knows it."""
    return specs.encoding_from_wire(encoding.model_dump())
