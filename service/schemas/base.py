"""Base class, scalar types, problems and timestamps that all schemas share.

Input is validated strictly. The dataclasses of `sfumato` check what a schema cannot express. They run inside the
validators, so that a problem points at the member concerned. Timestamps are microseconds since the epoch in the tables,
and RFC 3339 in UTC with six decimals in the API.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from types import NoneType
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue, SkipJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypeAliasType

from models.database.types import EPOCH, timestamp
from service.http.problems import MAX_ERRORS, NULL
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import parse_delta, parse_epsilon
from sfumato.validation import NAME_PATTERN

MAX_INT = 2**53 - 1  # the largest integer that every JSON parser reads exactly
EXAMPLE_ULID = "01jd0b1v3tq5c9m8x2h7r4k6ez"

_DOUBLE: JsonDict = {"format": "double"}
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z_0-9]{0,39}")

Double = Annotated[float, Field(allow_inf_nan=False, json_schema_extra=_DOUBLE)]


@dataclass(frozen=True, slots=True)
class _Integer:
    """Constraints of an integer. Like JSON Schema, it accepts 7.0 as 7."""

    ge: int
    le: int

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = core_schema.int_schema(ge=self.ge, le=self.le, strict=True)
        return core_schema.no_info_before_validator_function(_to_integer, inner)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema) | {"format": "int64"}


def _to_integer(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def integer(ge: int = 0, le: int = MAX_INT) -> Any:
    """Return the constraints of an integer field."""
    return _Integer(ge, le)


def check(validate: Callable[[], object], message: str | None = None) -> None:
    """Run a domain check and report its error, or `message` if the error would repeat the input."""
    try:
        validate()
    except InvalidSpec as error:
        raise PydanticCustomError("spec", "{message}", {"message": message or str(error)}) from None


def domain_validator(domain_check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that runs a check of the SDK."""

    def validate(value: float) -> float:
        check(lambda: domain_check(value))
        return value

    return AfterValidator(validate)


def decimal_number(least: float, ge: float, le: float, decimals: int) -> Any:
    """Return the constraints of a decimal number: at least `least`, or 0 if `ge` is 0.

    The document states the decimals, and a domain check counts them. `multipleOf` would not do: validators divide
    doubles, and 0.5 / 1e-9 is no whole number.
    """
    schema: JsonDict = _DOUBLE | {"x-decimals": decimals}
    if ge == 0:
        schema["not"] = {"exclusiveMinimum": 0, "exclusiveMaximum": least}
    return Field(ge=ge, le=le, json_schema_extra=schema)


Epsilon = Annotated[float, decimal_number(1e-6, 1e-6, 32, 9), domain_validator(parse_epsilon)]
# may be 0 if delta is granted
GrantedEpsilon = Annotated[
    float, decimal_number(1e-6, 0, 32, 9), domain_validator(lambda epsilon: epsilon and parse_epsilon(epsilon))
]
Delta = Annotated[float, decimal_number(1e-15, 0, 1e-3, 18), domain_validator(parse_delta)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NAME_PATTERN)]
Word = Annotated[
    str, StringConstraints(pattern="^[0-9]{1,20}$")
]  # a 64-bit integer in decimal: JSON numbers are exact up to 2**53 only


class Wire(BaseModel):
    """Base class of all schemas: strict types, no unknown members, and null only where the document allows it."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_field_and_no_hidden_null(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if not value.keys() <= cls.model_fields.keys():
            # A name that is no identifier may be a value, so only identifiers are repeated.
            others = (name for name in value if name not in cls.model_fields and _IDENTIFIER.fullmatch(name))
            unknown = list(islice(others, MAX_ERRORS))
            known = ", ".join(cls.model_fields)
            raise PydanticCustomError("unknown_field", "unknown field: use {known}", {"known": known, "names": unknown})
        # None is the default of an optional member, but the document does not allow null (SkipJsonSchema).
        return {
            name: NULL if item is None and NoneType not in get_args(cls.model_fields[name].annotation) else item
            for name, item in value.items()
        }


def example(**members: Any) -> ConfigDict:
    """Return a pydantic configuration with one example."""
    return examples(members)


def examples(*each: JsonDict, constraints: JsonDict | None = None) -> ConfigDict:
    """Return a pydantic configuration with several examples, and with constraints between members for the document."""
    return ConfigDict(json_schema_extra={"examples": [*each], **(constraints or {})})


def exactly_one_of(*names: str) -> JsonDict:
    """Return a JSON Schema of objects with exactly one of these members."""
    return {"oneOf": [{"required": [name]} for name in names]}


# ---- problems ----

BudgetKind = TypeAliasType(
    "BudgetKind",
    Annotated[
        Literal["epsilon", "delta", "shuffled_epsilon", "shuffled_delta", "mu2"],
        Field(
            description="Kind of a privacy budget. `shuffled_epsilon` and `shuffled_delta` are the cost towards an "
            "observer of releases. `mu2` counts under Gaussian accounting."
        ),
    ],
)
CeilingOf = TypeAliasType(
    "CeilingOf",
    Annotated[Literal["dataset", "source"], Field(description="Object of a limit of the operator on privacy budgets.")],
)


class FieldError(Wire):
    """One error in a request."""

    pointer: str = Field(description="JSON Pointer (RFC 6901) to a member of the body; empty for the whole body.")
    parameter: str | SkipJsonSchema[None] = Field(None, description="Name of the path, query or header parameter.")
    message: str = Field(description="What is wrong. Never contains input.")


class Problem(Wire):
    """Reason why a request was rejected (RFC 9457)."""

    type: str = Field(description="URI of the problem code.")
    title: str = Field(description="Name of the problem class; the same for every problem with this code.")
    status: Annotated[int, integer(400, 599)] = Field(description="HTTP status.")
    detail: str = Field(description="What is wrong in this request.")
    code: str = Field(description="Machine-readable problem code.", examples=["budget_exhausted"])
    request_id: str = Field(description="Id of the request in the log of the service.")
    errors: list[FieldError] | SkipJsonSchema[None] = Field(
        None, description="`validation_failed`: the first 20 errors."
    )
    index: Annotated[int, integer()] | SkipJsonSchema[None] = Field(
        None, description="`report_malformed`: index of the first malformed report, from 0."
    )
    least_records: Annotated[int, integer(1)] | SkipJsonSchema[None] = Field(
        None, description="`no_records`: smallest useful number of records."
    )
    reports_needed: Annotated[int, integer(1)] | SkipJsonSchema[None] = Field(
        None, description="`insufficient_reports`: number of reports that would be sufficient; absent if no number is."
    )
    short: BudgetKind | SkipJsonSchema[None] = Field(
        None, description="`budget_exhausted`: the budget that is exhausted; the amounts refer to it."
    )
    requested: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: requested amount.")
    granted: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: granted amount.")
    reserved: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: amount reserved by jobs.")
    charged: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: charged amount.")
    ceiling: CeilingOf | SkipJsonSchema[None] = Field(
        None, description="`budget_exhausted`: object of the limit that is exceeded, if one is."
    )
    limit: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: limit of the operator.")
    spent: Double | SkipJsonSchema[None] = Field(
        None,
        description="`budget_exhausted`: amount granted to the dataset, or charged and reserved in its source.",
    )
    entries: list[str] | SkipJsonSchema[None] = Field(
        None, description="`budget_exhausted`: newest ledger entries that reserve or charge the budget."
    )


_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def optional_timestamp(microseconds: int | None) -> str | None:
    """Format microseconds since the epoch; return None for None."""
    return None if microseconds is None else timestamp(microseconds)


def from_timestamp(text: str) -> int:
    """Parse an RFC 3339 time into microseconds since the epoch, truncated. Raise ValueError for other formats."""
    if not _RFC_3339.fullmatch(text):
        raise ValueError("the time must have the format of RFC 3339")
    at = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.upper()))
    return (at - EPOCH) // timedelta(microseconds=1)
