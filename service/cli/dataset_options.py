"""Options of `sfumato datasets create`. Those of settings follow from the declarations of the settings."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from sfumato.kinds import TrustModel
from sfumato.settings import Setting, all_settings

Features = Annotated[
    list[str] | None,
    typer.Option(
        help="Feature with its public bounds, as NAME:LOWER:UPPER[:UNIT[:SHAPE]]. The shape is `periodic` if the "
        "bounds are one period of a circle, and `latitude` or `longitude` for a place on Earth. Repeatable."
    ),
]
Trust = Annotated[
    TrustModel,
    typer.Option(
        help="Trust model: devices send reports to the service (local) or to a shuffler (shuffled), or a client "
        "uploads records (central)."
    ),
]
FirstDelta = Annotated[float, typer.Option(help="Central: first grant of δ, 0 or 1e-15 to 1e-3.")]
Accounting = Annotated[
    Literal["additive", "gaussian"] | None,
    typer.Option(
        help="Central, shuffled: `additive` or `gaussian` sums of costs.", show_default="by the features and δ"
    ),
]
Dimensions = Annotated[
    int | None, typer.Option(min=1, help="Central: dimensions of embeddings, in place of --feature.")
]
Norm = Annotated[float, typer.Option(help="Central: maximum norm of an embedding.")]
Source = Annotated[
    str | None, typer.Option(help="Label of the people in the data. Needs the scope `grants`.", show_default="none")
]
ShufflerName = Annotated[
    str | None, typer.Option(help="Shuffled: name of the organisation that runs the shuffler.", show_default="none")
]
ShufflerUrl = Annotated[
    str | None, typer.Option(help="Shuffled: address to which devices send sealed reports.", show_default="none")
]
ShufflerKey = Annotated[
    str | None,
    typer.Option(help="Shuffled: public key that `sfumato shuffler public-key` prints.", show_default="none"),
]
ShuffledEpsilon = Annotated[
    float | None, typer.Option(help="Shuffled: first grant of ε towards the service.", show_default="none")
]
FirstShuffledDelta = Annotated[
    float, typer.Option(help="Shuffled: first grant of δ towards the service, 1e-15 to 1e-3.")
]
Categories = Annotated[
    list[str] | None,
    typer.Option(help="Attribute with a public vocabulary, as NAME=VALUE,VALUE,... Repeatable."),
]
Bins = Annotated[
    list[str] | None,
    typer.Option(help="Numeric attribute with public edges, as NAME=0,18,65. Repeatable."),
]
Unknown = Annotated[
    Literal["refuse", "other"],
    typer.Option(help="Attributes: refuse an upload with a value outside the vocabulary, or count it as `other`."),
]
Missing = Annotated[
    Literal["refuse", "category"],
    typer.Option(help="Attributes: refuse an upload with a missing value, or count it as `missing`."),
]
ClusterBy = Annotated[
    list[str] | None,
    typer.Option(help="Category by which jobs cluster, as NAME; over records also NAME=WEIGHT, 0.01 to 6. Repeatable."),
]


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
