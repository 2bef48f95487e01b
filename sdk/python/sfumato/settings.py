"""Settings of a dataset besides its features and grants: one class for each trust model.

A setting is declared once, in the class of each trust model that has it. The checks of a new dataset, the schemas, the
OpenAPI document, the options of the command line, the console's form and view, the documentation of
`Client.create_dataset` and the table of docs/privacy.md follow from the declarations. The module loads nothing but the
standard library, because the command line needs it at its start.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, TypeVar, cast

from sfumato.errors import InvalidSetting, InvalidSpec
from sfumato.kinds import TrustModel
from sfumato.limits import (
    MAX_FEATURES,
    MAX_INT32,
    MAX_PHASE_ATTRIBUTES,
    MAX_PHASE_CATEGORIES,
    MAX_RECORD_FEATURES,
    MAX_RECORDS_PER_USER,
)
from sfumato.plain import to_plain
from sfumato.validation import NAME_PATTERN, Parameter, parameter, parameters_of

if TYPE_CHECKING:
    from sfumato.specs.attributes import Attribute

Function = TypeVar("Function", bound=Callable[..., Any])

_OUTSIDE_LABEL = "Records outside of the bounds"
_OUTSIDE = (
    "Treatment of a record with a value outside its bounds. `count`, of local and shuffled datasets: its report states "
    "`outside`, perturbed like all others, and results state the share outside. `clip`: the value is moved to the "
    "bound, and an upload counts such records. `refuse`, of central datasets: the upload is rejected."
)


_ATTRIBUTES = (
    "Columns of a record that describe or form clusters, with public vocabularies or bins. A vocabulary that is taken "
    f"from the records would reveal rare values. Over reports, up to {MAX_PHASE_ATTRIBUTES} attributes may form "
    f"clusters, each of at most {MAX_PHASE_CATEGORIES} categories. One of few values may form clusters of any shape, "
    "of up to three features."
)


@dataclass(frozen=True, slots=True)
class Shuffler:
    """The shuffler of a dataset, which signs its releases.

    Attributes
    ----------
    name : str
        Organisation that runs it.
    url : str
        Address to which devices send sealed reports.
    public_key : str
        Ed25519 public key, base64.
    """

    name: str
    url: str
    public_key: str


class DatasetOptions(TypedDict, total=False):
    """Keyword arguments for the settings of all trust models. None is the default of a setting."""

    min_reports: int
    keep_reports: bool
    shuffler: Shuffler | None
    user_feature: str | None
    fold_user_case: bool
    max_records_per_user: int
    attributes: "Sequence[Attribute]"
    out_of_bounds: Literal["count", "clip", "refuse"] | None


class DatasetSettings:
    """Base class of the settings of a trust model. It validates every setting.

    Attributes
    ----------
    trust : {'local', 'shuffled', 'central'}
    max_features : int
        Largest number of features of a dataset.
    ignored : tuple of str
        Settings of other trust models that are stored and have no effect.
    """

    __slots__ = ()
    trust: ClassVar[TrustModel]
    max_features: ClassVar[int] = MAX_FEATURES
    ignored: ClassVar[tuple[str, ...]] = ()
    attributes: "tuple[Attribute, ...]"

    def __post_init__(self) -> None:
        for name, declaration in parameters_of(type(self)).items():
            value = to_plain(getattr(self, name))
            object.__setattr__(self, name, value)
            try:
                declaration.validate(name, value)
            except InvalidSpec as error:
                raise InvalidSetting(name, str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReportSettings(DatasetSettings):
    """Settings of datasets with reports."""

    min_reports: int = parameter(
        "Minimum number of reports of a round. A round with fewer is not used.",
        label="Minimum reports per round",
        default=100,
        minimum=1,
        maximum=MAX_INT32,
    )
    attributes: tuple["Attribute", ...] = parameter(_ATTRIBUTES, label="Attributes", default=(), is_object=True)

    def __post_init__(self) -> None:
        super(_ReportSettings, self).__post_init__()
        object.__setattr__(self, "attributes", tuple(self.attributes))
        forming = [each.name for each in self.attributes if each.use != "describe"]
        if len(forming) > MAX_PHASE_ATTRIBUTES:
            raise InvalidSetting(
                "attributes",
                f"at most {MAX_PHASE_ATTRIBUTES} attributes of a {self.trust} dataset may have the use cluster, not "
                f"{len(forming)}: let {forming[MAX_PHASE_ATTRIBUTES]} describe",
            )
        if weighed := [each.name for each in self.attributes if getattr(each, "weight", 1) != 1]:
            message = f"a weight has no effect in a {self.trust} dataset, whose reports have no distances: "
            raise InvalidSetting("attributes", f"{message}remove the weight of {weighed[0]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings(_ReportSettings):
    """Settings of a local dataset."""

    trust: ClassVar[TrustModel] = "local"
    keep_reports: bool = parameter(
        "Whether reports are kept after their tally, for rounds that open from now on. Devices refuse these rounds "
        "unless their owners accept.",
        label="Keep reports after counting",
        default=False,
    )
    out_of_bounds: Literal["count", "clip"] = parameter(_OUTSIDE, label=_OUTSIDE_LABEL, default="count")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledSettings(_ReportSettings):
    """Settings of a shuffled dataset. It keeps no reports, because opened reports could be linked to later ones."""

    trust: ClassVar[TrustModel] = "shuffled"
    shuffler: Shuffler = parameter(  # noqa: RUF009 -- it returns a field
        "The shuffler. It cannot be changed later, because devices pin it.", label="Shuffler", is_object=True
    )
    out_of_bounds: Literal["count", "clip"] = parameter(_OUTSIDE, label=_OUTSIDE_LABEL, default="count")


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralSettings(DatasetSettings):
    """Settings of a central dataset.

    `max_records_per_user` bounds the influence of a person on a result, and records depend on the others, so none of
    them changes later.
    """

    trust: ClassVar[TrustModel] = "central"
    max_features: ClassVar[int] = MAX_RECORD_FEATURES
    ignored: ClassVar[tuple[str, ...]] = ("min_reports",)
    user_feature: str | None = parameter(
        "Column of an upload that has the user id. It is not one of the features.",
        label="User column",
        automatic="each record is a separate person",
        example="user",
        pattern=NAME_PATTERN,
    )
    fold_user_case: bool = parameter(
        "Whether user ids that differ only in upper and lower case are one user.",
        label="Ignore upper and lower case in user ids",
        default=False,
    )
    max_records_per_user: int = parameter(
        "Maximum number of records of one user that a job uses: those of the earliest uploads. It is public.",
        label="Records used per user",
        default=1,
        minimum=1,
        maximum=MAX_RECORDS_PER_USER,
    )
    attributes: tuple["Attribute", ...] = parameter(_ATTRIBUTES, label="Attributes", default=(), is_object=True)
    out_of_bounds: Literal["clip", "refuse"] = parameter(_OUTSIDE, label=_OUTSIDE_LABEL, default="clip")

    def __post_init__(self) -> None:
        super(CentralSettings, self).__post_init__()
        object.__setattr__(self, "attributes", tuple(self.attributes))
        if self.user_feature is None:
            if self.fold_user_case:
                raise InvalidSetting("fold_user_case", "fold_user_case needs a user_feature")
            if self.max_records_per_user != 1:
                message = "max_records_per_user needs a user_feature: without it, each record is a separate person"
                raise InvalidSetting("max_records_per_user", message)


SETTINGS: Mapping[TrustModel, type[DatasetSettings]] = {
    kind.trust: kind for kind in (LocalSettings, ShuffledSettings, CentralSettings)
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, as its classes declare it together.

    Attributes
    ----------
    name : str
    parameter : Parameter
        The declaration. `choices` are those of all classes.
    trusts : tuple of str
        Trust models of the datasets that have it.
    default : object
        Default, or None if the setting is required, or if the default depends on the trust model.
    """

    name: str
    parameter: Parameter
    trusts: tuple[TrustModel, ...]
    default: Any

    @property
    def applies_to(self) -> str:
        """Return the trust models as words: 'central', or 'local and shuffled'."""
        return " and ".join(self.trusts)

    @property
    def text(self) -> str:
        """Return the description, with the trust models and a default that is no single value."""
        parts = [self.parameter.description]
        parts += [f"Default: {self.parameter.automatic}."] if self.parameter.automatic else []
        parts += [f"Only {self.applies_to} datasets have it."] if len(self.trusts) < len(SETTINGS) else []
        return " ".join(parts)


@cache
def all_settings() -> Mapping[str, Setting]:
    """Return the settings of all trust models by name."""
    found: dict[str, Setting] = {}
    for trust, kind in SETTINGS.items():
        declared = parameters_of(kind)
        for each in fields(cast(Any, kind)):
            own, default = declared[each.name], None if each.default is MISSING else each.default
            if (known := found.get(each.name)) is None:
                found[each.name] = Setting(each.name, own, (trust,), default)
                continue
            choices = tuple(dict.fromkeys((*known.parameter.choices, *own.choices)))
            merged = replace(known.parameter, choices=choices)
            if differs := known.default != default:
                merged = replace(merged, automatic=f"{known.default}, or {default} for {trust} datasets")
            found[each.name] = Setting(each.name, merged, (*known.trusts, trust), None if differs else default)
    return found


def settings_of(trust: str, given: DatasetOptions) -> DatasetSettings:
    """Return the settings of a new dataset. None, or an absent setting, is the default.

    Raises
    ------
    InvalidSetting
        A setting is invalid or missing, or belongs to another trust model and is not its default.
    """
    kind = SETTINGS[cast(TrustModel, trust)]
    own = parameters_of(kind)
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        require_applicable(trust, name, value)
    for each in fields(cast(Any, kind)):
        if each.default is MISSING and each.name not in chosen:
            raise InvalidSetting(each.name, f"a {trust} dataset needs a {each.name}")
    return kind(**{name: value for name, value in chosen.items() if name in own})


def require_applicable(trust: str, name: str, value: object) -> None:
    """Raise InvalidSetting if datasets of a trust model have no such setting, and the value is not its default."""
    setting = all_settings()[name]
    kind = SETTINGS[cast(TrustModel, trust)]
    if trust not in setting.trusts and name not in kind.ignored and value != setting.default:
        raise InvalidSetting(name, f"{name} applies to {setting.applies_to} datasets only: leave it out")


def declares_settings(function: Function) -> Function:
    """Decorate a function: show the declared settings in its signature and its docstring in place of `**settings`."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    declared, lines = [], list[str]()
    for name, setting in all_settings().items():
        parameter = setting.parameter
        kind: Any = Literal[parameter.choices] if parameter.choices else parameter.kind
        kind = kind if setting.default is not None else kind | None
        declared.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=setting.default, annotation=kind)
        )
        text = f"{{{', '.join(map(repr, parameter.choices))}}}" if parameter.choices else parameter.kind.__name__
        lines += [f"{name} : {text}" + (", optional" if setting.default is None else "")]
        lines += wrap(setting.text, 100, initial_indent="    ", subsequent_indent="    ")
    function.__signature__ = signature.replace(parameters=[*own, *declared])  # type: ignore[attr-defined]
    shown = {each.name: each.annotation for each in (*own[1:], *declared)}
    function.__annotations__ = shown | {"return": signature.return_annotation}
    if function.__doc__:
        function.__doc__ = function.__doc__.replace("**settings", "\n        ".join(lines))
    return function
