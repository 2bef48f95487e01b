"""The wire's vocabulary: scalars and problems; what all schemas have in common.

Strict about what comes in, exact about what goes out. What fits its schema can still be
refused by the domain's own dataclasses, which check what a schema cannot say; they are
asked there, so that the problem points to the place.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.config import JsonDict
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from sfumato.accounting import parse_delta, parse_epsilon
from sfumato.errors import InvalidSpec

MAX_INT = 2**53 - 1  # the largest integer every JSON reader keeps exactly
EXAMPLE_ULID = "01jd0b1v3tq5c9m8x2h7r4k6ez"

_DOUBLE: JsonDict = {"format": "double"}
_INT64: JsonDict = {"format": "int64"}

Double = Annotated[float, Field(allow_inf_nan=False, json_schema_extra=_DOUBLE)]


def integer(ge: int = 0, le: int = MAX_INT) -> Any:
    """Constraints of an integer."""
    return Field(ge=ge, le=le, json_schema_extra=_INT64)


def check(ask: Callable[[], object], message: str | None = None) -> None:
    """Ask the domain; say what it says, or `message` where that would name what was sent."""
    try:
        ask()
    except InvalidSpec as error:
        raise PydanticCustomError("spec", "{message}", {"message": message or str(error)}) from None


def _check_epsilon(epsilon: float) -> float:
    check(lambda: parse_epsilon(epsilon))
    return epsilon


Epsilon = Annotated[
    float,
    Field(ge=1e-6, le=32, allow_inf_nan=False, json_schema_extra=_DOUBLE),
    AfterValidator(_check_epsilon),
]


def _check_granted(epsilon: float) -> float:
    return epsilon if epsilon == 0 else _check_epsilon(epsilon)


GrantedEpsilon = Annotated[Double, Field(ge=0, le=32), AfterValidator(_check_granted)]  # 0: beside a delta


def _check_delta(delta: float) -> float:
    check(lambda: parse_delta(delta))
    return delta


Delta = Annotated[Double, Field(ge=0, le=1e-3), AfterValidator(_check_delta)]
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
    return examples(members)


def examples(*each: JsonDict) -> ConfigDict:
    """The same of several."""
    return ConfigDict(json_schema_extra={"examples": [*each]})


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
    reports_needed: Annotated[int, integer(1)] | SkipJsonSchema[None] = Field(
        None, description="`insufficient_reports`: how many would do; left out where no number would."
    )
    short: Literal["epsilon", "delta"] | SkipJsonSchema[None] = Field(
        None, description="`budget_exhausted`: which of the two is short; the amounts are of it."
    )
    requested: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: asked for.")
    granted: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: granted.")
    reserved: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: held by jobs.")
    posted: Double | SkipJsonSchema[None] = Field(None, description="`budget_exhausted`: spent.")
    entries: list[str] | SkipJsonSchema[None] = Field(
        None, description="`budget_exhausted`: the newest ledger entries that hold or spent it."
    )
