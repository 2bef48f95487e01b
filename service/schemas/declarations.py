"""Schemas that are generated from the declarations of the SDK's dataclasses."""

from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, create_model
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType

from service.schemas.base import Delta, Double, Epsilon, Wire, Word, integer
from service.schemas.fields import FeatureNames
from sfumato.privacy.accounting import parse_delta, parse_epsilon
from sfumato.validation import MAX_NAME, MAX_NAMES, Parameter, parameters_of

Schema = TypeVar("Schema", bound=Wire)

_CHECKED: dict[Any, Any] = {parse_epsilon: Epsilon, parse_delta: Delta}


def annotation_of(name: str, parameter: Parameter) -> Any:
    """Return the pydantic annotation of a parameter. `name` is the name of its enum, if it has choices."""
    kind: Any = parameter.kind
    if parameter.is_word:
        kind = Word
    elif parameter.choices:
        choices: Any = Literal[parameter.choices]
        kind = TypeAliasType(  # type: ignore[misc]
            name, Annotated[choices, Field(description=description_of(parameter))]
        )
    elif parameter.kind is tuple:
        kind = Annotated[FeatureNames, Field(max_length=int(parameter.maximum or MAX_NAMES))]
    elif parameter.kind is str:
        kind = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=parameter.pattern or None)]
    elif parameter.kind is int:
        kind = Annotated[int, integer(int(parameter.minimum or 0), int(parameter.maximum or 0))]
    elif parameter.kind is float:
        kind = Annotated[Double, Field(ge=parameter.minimum, le=parameter.maximum)]
        if parameter.check is not None:
            kind = _CHECKED[parameter.check]
    if not (parameter.is_optional or parameter.replaced_by):
        return kind
    absent: Any = Annotated[None, SkipJsonSchema()]  # type: ignore[type-arg]
    return kind | absent


def description_of(parameter: Parameter) -> str:
    """Return the description with the unit and the meaning of an absent value."""
    parts = [parameter.description]
    parts += [f"Unit: {parameter.unit}."] if parameter.unit else []
    parts += [f"Default: {parameter.automatic}."] if parameter.automatic else []
    return " ".join(parts)


def schema_of(declared: Any, base: type[Schema]) -> type[Schema]:
    """Return the schema of an algorithm's or a mechanism's dataclass, with its `type`.

    The first paragraph of the docstring describes it; names, types, ranges, defaults and descriptions come from the
    declared parameters.
    """
    parameters = parameters_of(declared)
    members: dict[str, Any] = {"type": (Literal[declared.type], ...)}
    for each in fields(declared):
        default = ... if each.default is MISSING else each.default
        parameter = parameters[each.name]
        annotation = annotation_of(declared.__name__ + each.name.title(), parameter)
        members[each.name] = (annotation, Field(default, description=description_of(parameter)))
    values = {
        name: str(parameter.example) if parameter.is_word else parameter.example
        for name, parameter in parameters.items()
        if parameter.example is not None
    }
    alternatives = [(name, each.replaced_by) for name, each in parameters.items() if each.replaced_by]
    needed: Any = [{"anyOf": [{"required": [name]} for name in names]} for names in alternatives]
    extra = {"examples": [{"type": declared.type, **values}]} | ({"allOf": needed} if needed else {})
    return create_model(
        declared.__name__,
        __base__=base,
        __doc__=" ".join((declared.__doc__ or "").partition("\n\n")[0].split()),
        __module__=__name__,
        __cls_kwargs__={"json_schema_extra": extra},
        **members,
    )
