"""The wire's vocabulary: scalars, problems, features, encodings, mechanisms, algorithms.

Strict about what comes in, exact about what goes out. What fits its schema can still be
refused by the domain's own dataclasses, which check what a schema cannot say; they are
asked here, so that the problem points to the place.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_serializer, model_validator
from pydantic.config import JsonDict
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from sfumato import specs
from sfumato.accounting import parse_epsilon
from sfumato.errors import InvalidSpec

MAX_INT = 2**53 - 1  # the largest integer every JSON reader keeps exactly
EXAMPLE_ULID = "01jd0b1v3tq5c9m8x2h7r4k6ez"

_DOUBLE: JsonDict = {"format": "double"}
_INT64: JsonDict = {"format": "int64"}

Double = Annotated[float, Field(allow_inf_nan=False, json_schema_extra=_DOUBLE)]


def integer(ge: int = 0, le: int = MAX_INT) -> Any:
    """Constraints of an integer."""
    return Field(ge=ge, le=le, json_schema_extra=_INT64)


def _check(ask: Callable[[], object], message: str | None = None) -> None:
    """Ask the domain; say what it says, or `message` where that would name what was sent."""
    try:
        ask()
    except InvalidSpec as error:
        raise PydanticCustomError("spec", "{message}", {"message": message or str(error)}) from None


def _check_epsilon(epsilon: float) -> float:
    _check(lambda: parse_epsilon(epsilon))
    return epsilon


Epsilon = Annotated[
    float,
    Field(ge=1e-6, le=32, allow_inf_nan=False, json_schema_extra=_DOUBLE),
    AfterValidator(_check_epsilon),
]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Word = Annotated[str, StringConstraints(pattern="^[0-9]{1,20}$")]  # 64 bits, decimal: JSON numbers stop at 2**53


class Wire(BaseModel):
    """What all schemas have in common."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_field(cls, value: Any) -> Any:
        # pydantic's own message would repeat the name, which is the sender's
        if isinstance(value, dict) and not value.keys() <= cls.model_fields.keys():
            known = ", ".join(cls.model_fields)
            raise PydanticCustomError("unknown_field", "unknown field; known are {known}", {"known": known})
        return value


def example(**members: Any) -> ConfigDict:
    """A schema's example, as pydantic's configuration takes it."""
    return ConfigDict(json_schema_extra={"examples": [members]})


# ---- problems ----


class FieldError(Wire):
    """One thing that is wrong with a request."""

    pointer: str = Field(description="JSON Pointer (RFC 6901) into the body; empty for the whole of it.")
    parameter: str | SkipJsonSchema[None] = Field(None, description="Name of the path, query or header parameter.")
    message: str = Field(description="What is wrong, for people. Holds nothing that was sent.")


class Problem(Wire):
    """Why a request was refused (RFC 9457)."""

    type: str = Field(description="A URI that stands for the code.")
    title: str = Field(description="The code in words; always the same for a code.")
    status: Annotated[int, integer(400, 599)] = Field(description="The HTTP status.")
    detail: str = Field(description="What is wrong this time, for people.")
    code: str = Field(description="What programs go by.", examples=["budget_exhausted"])
    request_id: str = Field(description="The request, as the service's log names it.")
    errors: list[FieldError] | SkipJsonSchema[None] = Field(None, description="`validation_failed`: each thing wrong.")
    index: Annotated[int, integer()] | SkipJsonSchema[None] = Field(
        None, description="`report_malformed`: place of the first bad report, from 0."
    )
    requested: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: epsilon asked for.")
    granted: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: epsilon granted.")
    reserved: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: epsilon held by jobs.")
    posted: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: epsilon spent.")
    entries: list[str] | SkipJsonSchema[None] = Field(
        None, description="`budget_exhausted`: the newest ledger entries that hold or spent it."
    )


# ---- features, encodings, mechanisms, round specs ----


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
        _check(lambda: specs.Feature(self.name, self.lower, self.upper, self.unit), message)
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
        _check(lambda: specs.encoding_from_wire(self.model_dump()))
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
        _check(lambda: specs.encoding_from_wire(self.model_dump()))
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
        _check(lambda: specs.encoding_from_wire(self.model_dump()))
        return self


Encoding = TypeAliasType(
    "Encoding",
    Annotated[
        GridEncoding | ShiftedGridEncoding | TreeGridEncoding,
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


Mechanism = TypeAliasType(
    "Mechanism",
    Annotated[
        GrrMechanism | SsMechanism | OueMechanism | OlhMechanism | HrMechanism,
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
        _check(lambda: specs.Draw(int(self.lo), int(self.hi)))
        return self


class RoundSpec(Wire):
    """Everything a device needs to answer a round; the same for every device."""

    version: Literal[1]
    features: list[Feature] = Field(description="What a record holds, in order.")
    encoding: Encoding
    mechanism: Mechanism
    draw: Draw


# ---- algorithms ----


class _Algorithm(Wire):
    @model_validator(mode="after")
    def _possible(self) -> "_Algorithm":
        _check(lambda: specs.algorithm_from_wire(self.model_dump()))
        return self

    @model_serializer(mode="wrap")
    def _left_out_stays_out(self, serialise: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in serialise(self).items() if value is not None}


Variant = Literal["sound", "paper"]


def _variant() -> Any:
    return Field("sound", description="`paper` is the method as its paper prints it, for comparison.")


class ShiftedGrid(_Algorithm):
    """Clusters of any shape in 1 to 3 features: shifted coarse grids, one smooth density, its valleys."""

    model_config = example(type="shifted_grid", epsilon=2.0, clusters=6)

    type: Literal["shifted_grid"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, they are counted."
    )
    cells: Annotated[int, integer(2, 64)] | SkipJsonSchema[None] = Field(
        None, description="Coarse cells a feature; left out, chosen by the reports expected."
    )
    shifts: Annotated[int, integer(1, 8)] = Field(4, description="Shifts a feature.")
    length_scale: Annotated[Double, Field(ge=0.005, le=1)] = Field(
        0.06, description="Correlation length of the log density's prior, as a share of a feature's range."
    )
    amplitude: Annotated[Double, Field(ge=0.1, le=10)] = Field(
        2.5, description="Standard deviation of the log density's prior."
    )


class UniformGrid(_Algorithm):
    """One plain grid; dense cells that touch are joined."""

    model_config = example(type="uniform_grid", epsilon=1.0)

    type: Literal["uniform_grid"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, every connected dense region is one."
    )
    cells: Annotated[int, integer(2, 1024)] | SkipJsonSchema[None] = Field(
        None, description="Cells a feature; left out, chosen by the reports expected."
    )
    variant: Variant = _variant()


class AdaptiveGridIterative(_Algorithm):
    """A grid whose cells are split and merged from round to round."""

    model_config = example(type="adaptive_grid_iterative", epsilon=1.0, clusters=3)

    type: Literal["adaptive_grid_iterative"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, they are counted."
    )
    passes: Annotated[int, integer(3, 8)] = Field(3, description="Rounds over the cells as adapted so far.")
    variant: Variant = _variant()


class AdaptiveGridTree(_Algorithm):
    """All levels of a grid tree at once, each for its part of the devices, read from the top."""

    model_config = example(type="adaptive_grid_tree", epsilon=1.0, clusters=3)

    type: Literal["adaptive_grid_tree"]
    epsilon: Epsilon = Field(description="What one device may spend.")
    clusters: Annotated[int, integer(1, specs.MAX_CLUSTERS)] | SkipJsonSchema[None] = Field(
        None, description="How many clusters; left out, they are counted."
    )
    height: Annotated[int, integer(1, 9)] | SkipJsonSchema[None] = Field(
        None, description="Levels of the tree, each a round; left out, chosen by the reports expected."
    )
    variant: Variant = _variant()


Algorithm = TypeAliasType(
    "Algorithm",
    Annotated[
        ShiftedGrid | UniformGrid | AdaptiveGridIterative | AdaptiveGridTree,
        Field(discriminator="type", description="How clusters are found."),
    ],
)


# ---- to the domain ----


def feature_to_domain(feature: Feature) -> specs.Feature:
    """The feature as everything behind the wire knows it."""
    return specs.Feature(feature.name, feature.lower, feature.upper, feature.unit)


def encoding_to_domain(encoding: GridEncoding | ShiftedGridEncoding | TreeGridEncoding) -> specs.Encoding:
    """The encoding as everything behind the wire knows it."""
    return specs.encoding_from_wire(encoding.model_dump())


def algorithm_to_domain(
    algorithm: ShiftedGrid | UniformGrid | AdaptiveGridIterative | AdaptiveGridTree,
) -> specs.Algorithm:
    """The parameters as everything behind the wire knows them."""
    return specs.algorithm_from_wire(algorithm.model_dump())
