"""Schemas of the algorithms and their parameters, generated from the SDK's declarations.

`sfumato.specs.ALGORITHMS` lists the algorithms. Names, types, ranges, defaults and descriptions come
from their dataclasses, so a new algorithm needs no change here.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, model_serializer, model_validator
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType

from service.schemas.base import Delta, Double, Epsilon, Wire, check, integer
from sfumato import specs
from sfumato.privacy.accounting import parse_delta, parse_epsilon
from sfumato.validation import Parameter, parameters_of


class AlgorithmParameters(Wire):
    """The parameters of an algorithm. The SDK's dataclass validates them; None is left out of responses."""

    type: str

    @model_validator(mode="after")
    def _check_parameters(self) -> "AlgorithmParameters":
        check(lambda: specs.algorithm_from_wire(self.model_dump()))
        return self

    @model_serializer(mode="wrap")
    def _drop_none(self, serialise: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in serialise(self).items() if value is not None}


_CHECKED: dict[Any, Any] = {parse_epsilon: Epsilon, parse_delta: Delta}


def _annotation(name: str, parameter: Parameter) -> Any:
    """Return the pydantic annotation of a parameter. `name` is the name of its enum, if it has choices."""
    kind: Any = parameter.kind
    if parameter.choices:
        choices: Any = Literal[parameter.choices]
        kind = TypeAliasType(  # type: ignore[misc]
            name, Annotated[choices, Field(description=_description(parameter))]
        )
    elif parameter.kind is int:
        kind = Annotated[int, integer(int(parameter.minimum or 0), int(parameter.maximum or 0))]
    elif parameter.kind is float:
        kind = Annotated[Double, Field(ge=parameter.minimum, le=parameter.maximum)]
        if parameter.check is not None:
            kind = _CHECKED[parameter.check]
    if not parameter.is_optional:
        return kind
    absent: Any = Annotated[None, SkipJsonSchema()]  # type: ignore[type-arg]
    return kind | absent


def _description(parameter: Parameter) -> str:
    parts = [parameter.description]
    parts += [f"Unit: {parameter.unit}."] if parameter.unit else []
    parts += [f"Default: {parameter.automatic}."] if parameter.automatic else []
    return " ".join(parts)


def _schema(algorithm: Any) -> type[AlgorithmParameters]:
    """Return the schema of an algorithm."""
    parameters = parameters_of(algorithm)
    members: dict[str, Any] = {"type": (Literal[algorithm.type], ...)}
    for each in fields(algorithm):
        default = ... if each.default is MISSING else each.default
        parameter = parameters[each.name]
        annotation = _annotation(algorithm.__name__ + each.name.title(), parameter)
        members[each.name] = (annotation, Field(default, description=_description(parameter)))
    values = {name: parameter.example for name, parameter in parameters.items() if parameter.example is not None}
    return create_model(
        algorithm.__name__,
        __base__=AlgorithmParameters,
        __doc__=" ".join((algorithm.__doc__ or "").partition("\n\n")[0].split()),
        __module__=__name__,
        __cls_kwargs__={"json_schema_extra": {"examples": [{"type": algorithm.type, **values}]}},
        **members,
    )


if TYPE_CHECKING:
    AlgorithmType = str
else:
    AlgorithmType = TypeAliasType(
        "AlgorithmType", Annotated[Literal[tuple(specs.ALGORITHMS)], Field(description="Type of an algorithm.")]
    )

SCHEMAS: dict[str, type[AlgorithmParameters]] = {tag: _schema(kind) for tag, kind in specs.ALGORITHMS.items()}

if TYPE_CHECKING:
    Algorithm = AlgorithmParameters
else:
    Algorithm = TypeAliasType(
        "Algorithm",
        Annotated[
            reduce(or_, SCHEMAS.values()),
            Field(discriminator="type", description="The algorithm and its parameters."),
        ],
    )


def algorithm_to_domain(algorithm: Algorithm) -> specs.AnyAlgorithm:
    """Return the SDK's dataclass of the parameters."""
    return specs.algorithm_from_wire(algorithm.model_dump())
