"""Fields that several schemas share: ids, times, amounts and counts."""

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.schemas.base import (
    EXAMPLE_ULID,
    Double,
    decimal_number,
    domain_validator,
    from_timestamp,
    integer,
)
from sfumato.privacy.accounting import parse_delta
from sfumato.privacy.shuffling import MAX_HONEST
from sfumato.specs import MAX_RECORD_FEATURES

ULID = "[0-9a-hjkmnp-tv-z]{26}"
_DATE_TIME = {"format": "date-time"}
Time = Annotated[str, Field(json_schema_extra=_DATE_TIME)]  # RFC 3339, UTC, six decimals
Amount = Annotated[Double, Field(ge=0)]  # an epsilon or a delta in the ledger
Nano = Annotated[int, integer()]  # epsilon in units of 1e-9
Atto = Annotated[int, integer()]  # delta in units of 1e-18
Mu2 = Annotated[int, integer()]  # mu^2 in units of 1e-12
Count = Annotated[int, integer()]
Cursor = Annotated[str | None, Field(description="Cursor of the next page; null on the last page.")]

LimitRule = TypeAliasType(
    "LimitRule",
    Annotated[
        Literal["amounts", "grants", "none"],
        Field(
            description="What limits a source. `amounts`: amounts that the operator set. `grants`, the default: the "
            "largest grants of one of its datasets. `none`: nothing."
        ),
    ],
)


def id_field(prefix: str) -> Any:
    """Return the pattern and example of an id."""
    return Field(pattern=f"^{prefix}_{ULID}$", examples=[f"{prefix}_{EXAMPLE_ULID}"])


DatasetId = Annotated[str, id_field("ds")]
RoundId = Annotated[str, id_field("rnd")]
JobId = Annotated[str, id_field("job")]
KeyId = Annotated[str, id_field("key")]
EntryId = Annotated[str, id_field("led")]
ClusterId = Annotated[str, id_field("clu")]


def check_time(value: str) -> str:
    """Return the time unchanged if it has the format of RFC 3339; otherwise raise a validation error."""
    try:
        from_timestamp(value)
    except ValueError:
        raise PydanticCustomError("time", "the time must have the format of RFC 3339, with a time zone") from None
    return value


# Every enum has a name, because code generators otherwise invent one for each place where it is used.
Scope = TypeAliasType(
    "Scope",
    Annotated[
        Literal["admin", "datasets", "grants", "records", "jobs", "device", "ledger"],
        Field(description="Scope of a key: a group of operations."),
    ],
)
PublicKey = Annotated[
    str,
    Field(
        pattern="^[A-Za-z0-9+/]{43}=$",
        json_schema_extra={"contentEncoding": "base64"},
        examples=["11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="],
    ),
]
MAX_COLLECT_SECONDS = 366 * 86_400
WEEK_SECONDS = 604_800
DEFAULT_RELEASE_DELTA = 1e-6
HonestShare = Annotated[float, decimal_number(1e-9, 1e-9, 1, 9)]
ReleaseDelta = Annotated[float, decimal_number(1e-15, 1e-15, 1e-3, 18), domain_validator(parse_delta)]
MinBatch = Annotated[int, integer(1, MAX_HONEST)]
FeatureNames = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=64)]],
    Field(min_length=1, max_length=MAX_RECORD_FEATURES, json_schema_extra={"uniqueItems": True}),
]
