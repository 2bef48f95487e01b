"""The reference of the settings as a page: every variable, what it takes and its default, from the code."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from models.settings import Settings

_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", SecretStr: "text"}


def page() -> str:
    """The Markdown."""
    rows = [
        f"| `SFUMATO_{name.upper()}` | {takes(field)} | {default(field)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            "Environment variables of gateways, workers and the command line. What to think of when one is set stands",
            "in [operations](operations.md#settings).",
            "",
            "| variable | takes | default | |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def takes(field: FieldInfo) -> str:
    """Kind and range of a setting."""
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    return ", ".join([*(_NAMES.get(kind, "path") for kind in kinds), *_bounds(field.metadata)])


def default(field: FieldInfo) -> str:
    """A setting's default, or that it has none."""
    if field.default in (None, ""):
        return "none"
    return f"`{written(field.default)}`"


def written(value: object) -> str:
    """A value as it is written in the environment."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for name, sign in _SIGNS.items():
        for each in metadata:
            if (limit := getattr(each, name, None)) is not None:
                yield f"{sign} {written(limit)}"
