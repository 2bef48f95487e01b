"""Options of `sfumato datasets create` that follow from the declared settings of datasets."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from sfumato.settings import Setting, all_settings


def takes_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: replace its argument `**settings` by an option for each setting that is a single value."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    declared = [_option(each) for each in all_settings().values() if not each.parameter.is_object]
    function.__signature__ = signature.replace(parameters=[*own, *declared])  # type: ignore[attr-defined]
    return function


def _option(setting: Setting) -> inspect.Parameter:
    declared, flag = setting.parameter, f"--{setting.name.replace('_', '-')}"
    kind: Any = Literal[declared.choices] if declared.choices else declared.kind
    only = "" if len(setting.trusts) == 3 else f"{setting.applies_to.capitalize()}: "
    text = only + (declared.description[0].lower() if only else declared.description[0]) + declared.description[1:]
    if declared.kind is bool:
        option = typer.Option(flag, help=text)
    elif setting.default is None:
        option = typer.Option(flag, help=text, show_default=declared.automatic)
    else:
        option = typer.Option(flag, help=text, min=declared.minimum, max=declared.maximum)
    annotation = Annotated[kind if setting.default is not None else kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=setting.default, annotation=annotation
    )
