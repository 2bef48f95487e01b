"""Schemas of the features and attributes of a dataset."""

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType

from service.schemas.base import Double, Wire, check, example, integer
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


def features_to_domain(features: list[Feature] | Embedding) -> tuple[specs.Feature, ...] | specs.Embedding:
    """Convert the features of a dataset to dataclasses of the SDK."""
    if isinstance(features, Embedding):
        return specs.Embedding(features.dimensions, features.norm)
    return tuple(each.to_domain() for each in features)
