"""Functions that parse resources from JSON values. Members that a newer service adds are ignored."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from sfumato.api.budgets import Budget
from sfumato.api.resources import (
    AttributeCounts,
    Dataset,
    Job,
    Key,
    RecordCounts,
    RecordUpload,
    Result,
    Round,
    Source,
    Wire,
)
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.precision import Verdict
from sfumato.privacy.ledger import MU2_MEMBERS, Balance, Head, LedgerEntry
from sfumato.profiles.cluster_profile import ClusterProfile, profile_from_wire
from sfumato.specs import Feature, RoundSpec, features_from_wire, round_spec_from_wire
from sfumato.specs.attributes import Attribute, attributes_from_wire

T = TypeVar("T")


def to_rfc3339(at: datetime | None) -> str | None:
    """Return a time for a request; None for None. Raise InvalidSpec without a time zone."""
    if at is not None and at.tzinfo is None:
        raise InvalidSpec("the time must have a time zone: pass for example datetime.now(UTC)")
    return None if at is None else at.isoformat()


def parse_time(text: str) -> datetime:
    """Return a time from RFC 3339. Raise ValueError if it has no zone."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a time must have a zone")
    return time


def _parse_int(value: object) -> int:
    if type(value) is not int:
        raise ValueError("the value must be an integer")
    return value


# functions that parse a member with this annotation; others are kept as they are
_READERS: dict[Any, Callable[[Any], Any]] = {
    int: _parse_int,
    float: float,
    datetime: parse_time,
    RoundSpec: round_spec_from_wire,
    ClusterModel: model_from_wire,
    ClusterProfile: profile_from_wire,
    Verdict: Verdict,
    tuple[Feature, ...]: features_from_wire,
    tuple[Attribute, ...]: attributes_from_wire,
}


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the function that parses a member with an annotation."""
    if is_dataclass(hint) and isinstance(hint, type):
        return _READERS.get(hint) or parser(hint)
    options = get_args(hint)
    if hint not in _READERS and get_origin(hint) is tuple:
        read_item = _reader(options[0])
        return lambda items: tuple(read_item(item) for item in items)
    if NoneType in options:
        read = _reader(next(option for option in options if option is not NoneType))
        return lambda value: None if value is None else read(value)
    return _READERS.get(hint, lambda value: value)


def parser(resource: type[T]) -> Callable[[Wire], T]:
    """Return the function that parses a resource by its annotations. A missing member has its default."""
    readers = {name: _reader(hint) for name, hint in get_type_hints(resource).items()}
    required = {each.name for each in fields(cast(Any, resource)) if each.default is MISSING}

    def parse(wire: Wire) -> T:
        return resource(
            **{name: read(wire[name]) for name, read in readers.items() if name in required or name in wire}
        )

    parse.__name__ = resource.__name__
    return parse


_parse_dataset = parser(Dataset)
parse_source = parser(Source)
parse_record_counts = parser(RecordCounts)
_parse_attribute_counts = parser(AttributeCounts)
parse_ledger_entry = parser(LedgerEntry)
parse_round = parser(Round)
parse_job = parser(Job)
parse_result = parser(Result)
parse_key = parser(Key)
_REMAINING = ("remaining_nano", "remaining_delta_atto", "remaining_shuffled_nano", "remaining_shuffled_delta_atto")
_AMOUNTS = (*Balance._fields, *_REMAINING)


def parse_dataset(wire: Wire) -> Dataset:
    """Return a dataset from JSON values."""
    features = wire["features"]
    return _parse_dataset({**wire, "embedding": features if isinstance(features, Mapping) else None})


def parse_record_upload(wire: Wire) -> RecordUpload:
    """Return an upload from JSON values."""
    counts = {
        name: wire.get(name, 0)
        for name in ("n_records", "n_clipped", "n_zeros", "n_constant", "n_lacking", "n_repeated")
    }
    attributes = tuple(_parse_attribute_counts(each) for each in wire.get("attributes", ()))
    return RecordUpload(wire["id"], **counts, warnings=tuple(wire.get("warnings", ())), attributes=attributes)


def parse_budget(wire: Wire) -> Budget:
    """Return a budget from JSON values. A missing delta or shuffled amount is 0."""
    optional = {name for name in _AMOUNTS if name.endswith("_atto") or "shuffled" in name}
    names = [name for name in _AMOUNTS if "mu2" not in name]
    amounts = {name: _parse_int(wire.get(name, 0) if name in optional else wire[name]) for name in names}
    mu2 = {name: wire.get(name) for name in MU2_MEMBERS[1:]}
    if any(value is not None for value in mu2.values()):
        amounts |= {name: _parse_int(value) for name, value in mu2.items()}
    remaining = {name: amounts.pop(name) for name in _REMAINING}
    head = Head(wire["ledger_seq"], wire["ledger_hash"])
    spent = wire.get("spent", {})
    return Budget(
        dataset_id=wire["dataset_id"],
        balance=Balance(**amounts),
        head=head,
        **remaining,
        last_job_id=spent.get("last_job_id"),
        more_jobs=spent.get("more_jobs"),
    )


def parse_point_labels(wire: Wire) -> NDArray[np.int64]:
    """Return labels of points from JSON values."""
    return np.asarray(wire["labels"], dtype=np.int64)
