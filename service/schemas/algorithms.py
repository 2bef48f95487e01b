"""Schemas of the algorithms and their parameters, generated from the SDK's declarations.

`sfumato.specs.ALGORITHMS` lists the algorithms. Names, types, ranges, defaults and descriptions come
from their dataclasses, so a new algorithm needs no change here.
"""

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_serializer, model_validator
from typing_extensions import TypeAliasType

from service.schemas.base import Wire, check
from service.schemas.declarations import schema_of
from sfumato import specs


class AlgorithmParameters(Wire):
    """The parameters of an algorithm. The SDK's dataclass validates them; None is left out of responses."""

    type: str

    @model_validator(mode="after")
    def _check_parameters(self) -> "AlgorithmParameters":
        check(lambda: specs.job_from_wire(self.model_dump()))
        return self

    @model_serializer(mode="wrap")
    def _drop_none(self, serialise: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in serialise(self).items() if value is not None}


if TYPE_CHECKING:
    AlgorithmType = str
else:
    AlgorithmType = TypeAliasType(
        "AlgorithmType", Annotated[Literal[tuple(specs.JOB_TYPES)], Field(description="Type of an algorithm.")]
    )

JOB_SCHEMAS: dict[str, type[AlgorithmParameters]] = {
    tag: schema_of(kind, AlgorithmParameters) for tag, kind in specs.JOB_TYPES.items()
}
SCHEMAS = {tag: JOB_SCHEMAS[tag] for tag in specs.ALGORITHMS}  # algorithms that find clusters
if TYPE_CHECKING:
    ProfileParameters = AlgorithmParameters
else:
    ProfileParameters = JOB_SCHEMAS[specs.Profile.type]

if TYPE_CHECKING:
    Algorithm = AlgorithmParameters
else:
    Algorithm = TypeAliasType(
        "Algorithm",
        Annotated[
            reduce(or_, JOB_SCHEMAS.values()),
            Field(discriminator="type", description="The algorithm, or a profile of clusters, and its parameters."),
        ],
    )


def algorithm_to_domain(algorithm: Algorithm) -> specs.AnyJob:
    """Return the SDK's dataclass of the parameters."""
    return specs.job_from_wire(algorithm.model_dump())
