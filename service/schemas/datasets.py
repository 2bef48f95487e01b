"""Schemas of datasets and records."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import Field, StringConstraints, create_model, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from models.datasets import SOURCE_PATTERN
from service.schemas.base import (
    Delta,
    Double,
    Epsilon,
    Name,
    Wire,
    check,
    example,
    examples,
    integer,
)
from service.schemas.declarations import annotation_of
from service.schemas.features import Attributes, Features
from service.schemas.fields import Count, Cursor, DatasetId, PublicKey, Time, id_field
from service.schemas.ledger import Accounting, ShuffledGrant
from sfumato import settings
from sfumato.limits import MAX_INT32
from sfumato.settings import DatasetOptions, all_settings
from sfumato.specs import check_place
from sfumato.specs.attributes import attributes_from_wire

Source = Annotated[
    str,
    Field(
        pattern=SOURCE_PATTERN,
        description="Label of the people in the data. Charges to all datasets of one source add up.",
    ),
]


TrustModel = TypeAliasType(
    "TrustModel",
    Annotated[
        Literal["local", "shuffled", "central"],
        Field(
            description="`local`: devices perturb their records, and the service never sees them. `shuffled`: as "
            "`local`, and a shuffler releases the reports of a round together, sealed, permuted and without senders. "
            "`central`: the service stores records and releases noisy results."
        ),
    ],
)


class Shuffler(Wire):
    """The shuffler of a dataset. Devices send it sealed reports, and it signs each release."""

    name: Name = Field(description="Name of the organisation that runs the shuffler.")
    url: Annotated[str, StringConstraints(max_length=2000, pattern="^https?://[!-~]+$")] = Field(
        description="Address to which devices send sealed reports.", examples=["https://shuffler.example"]
    )
    public_key: PublicKey = Field(
        description="Ed25519 public key of the shuffler, base64.",
    )


class _NewDataset(Wire):
    """A dataset to create: its features, trust model and first grant."""

    model_config = examples(
        {
            "name": "commuters",
            "trust": "local",
            "features": [
                {"name": "longitude", "lower": -180.0, "upper": 180.0, "unit": "degrees"},
                {"name": "latitude", "lower": -90.0, "upper": 90.0, "unit": "degrees"},
            ],
            "epsilon": 8.0,
        },
        {
            "name": "articles",
            "trust": "central",
            "features": {"dimensions": 768, "norm": 1.0},
            "epsilon": 4.0,
            "delta": 1e-6,
        },
        {
            "name": "commuters",
            "trust": "shuffled",
            "features": [{"name": "distance", "lower": 0.0, "upper": 100.0, "unit": "km"}],
            "epsilon": 8.0,
            "shuffled": {"epsilon": 1.0, "delta": 1e-6},
            "shuffler": {
                "name": "Example Foundation",
                "url": "https://shuffler.example",
                "public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
            },
        },
    )

    name: Name = Field(description="Display name.")
    trust: TrustModel
    features: Features
    epsilon: Epsilon = Field(description="Epsilon of the first grant.")
    delta: Delta = Field(
        0.0,
        description=(
            "Central only: delta of the first grant, 0 or 1e-15 to 1e-3. With 0, jobs have pure guarantees only."
        ),
    )
    accounting: Accounting | SkipJsonSchema[None] = Field(
        None,
        description="How costs add up. `gaussian` needs a delta, which is that of the shuffled grant if there is one. "
        "By default `gaussian` for records with a delta and more than four features, where `private_kmeans` uses "
        "concentrated blocks; else `additive`.",
    )
    source: Source | SkipJsonSchema[None] = Field(
        None,
        description="Label of the people in the data; needs the scope `grants`. Datasets without a label share one "
        "source.",
    )
    shuffled: ShuffledGrant | SkipJsonSchema[None] = Field(
        None, description="Shuffled only, required: first grant towards an observer of the releases."
    )

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if isinstance(self.features, list) and len({each.name for each in self.features}) < len(self.features):
            raise PydanticCustomError("names", "feature names must be unique", {"names": ["features"]})
        if isinstance(self.features, list):
            features = [each.to_domain() for each in self.features]
            check(lambda: check_place(features))
        return self

    def options(self) -> DatasetOptions:
        """Return the settings as values of the domain."""
        given: dict[str, Any] = {name: getattr(self, name) for name in all_settings()}
        shuffler = given["shuffler"]
        given["shuffler"] = None if shuffler is None else settings.Shuffler(**shuffler.model_dump())
        given["attributes"] = attributes_from_wire([each.model_dump() for each in given["attributes"]])
        return cast(DatasetOptions, given)


class DatasetChange(Wire):
    """Changes of a dataset; absent members stay unchanged."""

    model_config = example(min_reports=500)

    name: Name | SkipJsonSchema[None] = Field(None, description="Display name.")
    min_reports: Annotated[int, integer(1, MAX_INT32)] | SkipJsonSchema[None] = Field(
        None, description="Minimal number of reports of rounds that open from now on."
    )
    keep_reports: bool | SkipJsonSchema[None] = Field(
        None,
        description="Whether reports are kept after their tally, for rounds that open from now on. Devices refuse "
        "these rounds unless their owners accept.",
    )
    source: Source | SkipJsonSchema[None] = Field(
        None, description="Label of the people in the data; needs the scope `grants`."
    )
    accounting: Literal["gaussian"] | SkipJsonSchema[None] = Field(
        None,
        description="Switches the dataset from additive to Gaussian accounting for good, while no job has a "
        "reservation; needs the scope `grants`.",
    )


class _Dataset(Wire):
    """Records of one population: features with public bounds, trust model and privacy budget."""

    id: DatasetId
    name: Name
    trust: TrustModel
    features: Features
    accounting: Accounting
    source: Source | None = Field(description="Label of the people in the data; null for the source without a label.")
    created_at: Time


_OBJECTS: dict[str, Any] = {"shuffler": Shuffler, "attributes": Attributes}  # settings with a schema of their own


def _members(*, is_new: bool) -> dict[str, Any]:
    """Return the members of the settings of all trust models, of a new dataset or of a stored one."""
    found: dict[str, Any] = {}
    for name, setting in all_settings().items():
        declared = setting.parameter
        kind = _OBJECTS.get(name) or annotation_of(name.title().replace("_", ""), replace(declared, is_optional=False))
        if is_new:
            absent: Any = Annotated[None, SkipJsonSchema()]  # type: ignore[type-arg]
            default = [] if setting.default == () else setting.default
            found[name] = (kind | absent if default is None else kind, Field(default, description=setting.text))
        else:
            may_lack = setting.default is None and not declared.choices
            text = declared.description + (" Null if there is none." if may_lack else "")
            found[name] = (kind | None if may_lack else kind, Field(description=text))
    return found


def _with_settings(base: type[Wire], *, is_new: bool) -> type[Wire]:
    """Return a schema with the settings, under the public name of its base."""
    members = _members(is_new=is_new)
    return create_model(base.__name__[1:], __base__=base, __doc__=base.__doc__, __module__=__name__, **members)


if TYPE_CHECKING:
    NewDataset = _NewDataset
    Dataset = _Dataset
else:
    NewDataset = _with_settings(_NewDataset, is_new=True)
    Dataset = _with_settings(_Dataset, is_new=False)


class CreatedDataset(Dataset):
    """A new dataset, with a warning if other datasets are over the same people."""

    n_same_people: Count = Field(
        description="Number of other datasets over the same people, deleted ones included: of the same source, or "
        "without a source of the same name."
    )
    warnings: list[str] = Field(description="What to check, as sentences.")


class DatasetPage(Wire):
    """Datasets, newest first."""

    items: list[Dataset]
    next_cursor: Cursor


# ---- records ----


class RecordRows(Wire):
    """Records as rows of values."""

    model_config = example(columns=["longitude", "latitude"], rows=[[2.35, 48.86], [-0.58, 44.84]])

    columns: list[Name] = Field(min_length=1, description="Declared columns in any order, each once.")
    rows: list[list[Double | str | None]] = Field(
        min_length=1,
        description="Values in the order of `columns`: numbers; a user id is text or an integer; an attribute is text, "
        "a number, or null if it is missing. Variants of a user id "
        "(Unicode forms, surrounding spaces) are one user; control and invisible characters are refused.",
    )


class AttributeCounts(Wire):
    """Values of an upload that are not among the declared ones of an attribute. They are private."""

    name: str = Field(description="Name of the attribute.")
    n_other: Count = Field(description="Number of values outside the vocabulary, which became `other`.")
    n_missing: Count = Field(description="Number of missing values, which became `missing`.")
    n_outside: Count = Field(description="Number of values beyond the edges, which were moved to the nearest bin.")


class RecordUpload(Wire):
    """Confirmation that all records of an upload are stored."""

    id: Annotated[str, id_field("upl")]
    n_records: Count
    n_clipped: Count = Field(description="Number of records with a value that was moved to a bound.")
    n_zeros: Count = Field(description="Embeddings: number of zero vectors, which suggest missing data; otherwise 0.")
    n_constant: Count = Field(
        description="Number of features with one value in all records of the upload, after clipping; 0 for one record."
    )
    n_lacking: Count | None = Field(
        description="Number of records that the dataset lacks for a job over two clusters at its whole granted ε, or "
        "at the largest possible ε if the key may not read the budget. With fewer records every result is mostly "
        "noise. 0 if there are enough, null for a part that is not the last one."
    )
    n_repeated: Count = Field(
        description="Number of records that the dataset had already, if they are at least half of 20 or more records; "
        "otherwise 0. Not counted with `allow_duplicates`."
    )
    warnings: list[str] = Field(
        description="Faults that the records may have. If more than 1 % of the records of the upload, with all its "
        "parts, were clipped: how many, and how many values of which features are at a bound."
    )
    attributes: list[AttributeCounts] = Field(
        description="Values that are not declared, for each attribute of the dataset. Stated nowhere else."
    )


class RecordCounts(Wire):
    """Number of records of a dataset. It is private and shown nowhere else."""

    n_records: Count
    n_uploads: Count
    n_clipped: Count = Field(description="Number of records with a value that was moved to a bound.")
    n_users: Count | None = Field(description="Number of users; null if the dataset has no `user_feature`.")
    n_used: Count = Field(description="Number of records that a job uses: at most `max_records_per_user` of each user.")
