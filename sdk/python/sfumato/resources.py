"""What the service answers, as frozen dataclasses; fields a newer service adds are passed over."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.cluster_model import ClusterModel, model_from_wire
from sfumato.forecast import Forecast, RecordsForecast, forecast_from_wire, records_forecast_from_wire
from sfumato.ledger import Balance, Head, LedgerEntry
from sfumato.specs import Feature, RoundSpec, features_from_wire, round_spec_from_wire

Wire = Mapping[str, Any]

JobState = Literal["queued", "running", "collecting", "succeeded", "failed", "canceled", "expired"]
FINAL_STATES: frozenset[JobState] = frozenset({"succeeded", "failed", "canceled", "expired"})


@dataclass(frozen=True, slots=True)
class Dataset:
    """What is asked about, and how."""

    id: str
    name: str
    trust: Literal["local", "central"]
    features: tuple[Feature, ...]
    min_reports: int
    keep_reports: bool
    created_at: datetime
    user_feature: str | None = None  # the column that says whose a record is
    max_records_per_user: int = 1
    out_of_bounds: Literal["clip", "refuse"] = "clip"
    etag: str | None = field(default=None, compare=False, repr=False)  # of what was read: for `if_match`


@dataclass(frozen=True, slots=True)
class RecordUpload:
    """Records that are stored; every part is whole."""

    ids: tuple[str, ...]  # of the parts
    n_records: int
    n_clipped: int  # records with a value moved to a bound


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """How many records a central dataset has: private."""

    n_records: int
    n_uploads: int
    n_clipped: int
    n_users: int | None  # None where the dataset has no user_feature
    n_used: int  # of each user the first max_records_per_user


@dataclass(frozen=True, slots=True)
class Budget:
    """A dataset's balance in nano-epsilon and atto-delta, and the ledger's head it stands at."""

    dataset_id: str
    balance: Balance
    remaining_nano: int  # granted less reserved and posted
    head: Head
    remaining_delta_atto: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One spec put to the devices."""

    id: str
    dataset_id: str
    job_id: str | None
    collection_id: str
    index: int
    state: Literal["open", "closed", "tallied", "failed"]
    epsilon: float  # what an answer costs a device
    spec: RoundSpec
    target_reports: int
    min_reports: int
    n_received: int  # acknowledged, repeats included
    n_reports: int | None  # distinct, once tallied
    opened_at: datetime
    closes_at: datetime
    closed_at: datetime | None
    tallied_at: datetime | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job's collection is."""

    rounds_opened: int
    open_round_id: str | None
    n_received: int
    target_reports: int | None


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed or expired."""

    code: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """One request for clusters."""

    id: str
    dataset_id: str
    algorithm: Wire  # its type and parameters
    round_ids: tuple[str, ...]  # earlier rounds it works on
    state: JobState
    epsilon: float  # reserved at submission
    target_reports: int | None  # None over earlier rounds and over records
    min_reports: int
    collect_seconds: int
    progress: Progress
    attempts: int
    error: JobError | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    delta: float = 0.0  # reserved at submission

    @property
    def is_final(self) -> bool:
        """Whether it is over, one way or another."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, slots=True)
class ResultRound:
    """A round a result rests on."""

    id: str
    index: int
    n_reports: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Charge:
    """A question a job over records asked, and what it cost."""

    what: str
    n_values: int  # numbers in the answer
    epsilon_nano: int
    reference: str  # of the ledger's posting
    delta_atto: int = 0
    rho_pico: int = 0  # its share of the concentrated block that was charged for it, in 1e-12


@dataclass(frozen=True, slots=True)
class Result:
    """What a job released."""

    job_id: str
    dataset_id: str
    algorithm: Wire
    epsilon: float  # what the collection cost; over records, the odometer's sum
    rounds: tuple[ResultRound, ...]
    model: ClusterModel
    software_version: str
    created_at: datetime
    odometer: tuple[Charge, ...] = ()  # over records: every question in order
    delta: float = 0.0  # over records, the odometer's sum; 0 for a pure guarantee


@dataclass(frozen=True, slots=True)
class Key:
    """A bearer key; its secret is shown once, when it is made."""

    id: str
    name: str
    scopes: tuple[str, ...]
    dataset_id: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    secret: str | None = field(default=None, repr=False)


# ---- from the wire ----


_DECLARED = ("user_feature", "max_records_per_user", "out_of_bounds")


def dataset(wire: Wire) -> Dataset:
    """A dataset."""
    return Dataset(
        id=wire["id"],
        name=wire["name"],
        trust=wire["trust"],
        features=features_from_wire(wire["features"]),
        min_reports=wire["min_reports"],
        keep_reports=wire["keep_reports"],
        created_at=moment(wire["created_at"]),
        **{name: wire[name] for name in _DECLARED if name in wire},
    )


def record_upload(wire: Wire) -> RecordUpload:
    """Records that are stored."""
    return RecordUpload((wire["id"],), wire["n_records"], wire["n_clipped"])


def record_counts(wire: Wire) -> RecordCounts:
    """How many records there are."""
    return RecordCounts(**{name: wire[name] for name in RecordCounts.__slots__})


def budget(wire: Wire) -> Budget:
    """A budget."""
    return Budget(
        dataset_id=wire["dataset_id"],
        balance=Balance(*(_amount(wire, name) for name in Balance._fields)),
        remaining_nano=wire["remaining_nano"],
        head=Head(wire["ledger_seq"], wire["ledger_hash"]),
        remaining_delta_atto=_amount(wire, "remaining_delta_atto"),
    )


def ledger_entry(wire: Wire) -> LedgerEntry:
    """A ledger entry."""
    numbers = {name for name in LedgerEntry.__slots__ if name == "seq" or name.endswith(("_nano", "_atto"))}
    values: dict[str, Any] = {
        name: _amount(wire, name) if name in numbers else wire[name] for name in LedgerEntry.__slots__
    }
    return LedgerEntry(**values | {"at": moment(wire["at"])})


def _amount(wire: Wire, name: str) -> int:
    """An integer; of delta 0 where a service of before there was one says nothing of it."""
    value = wire.get(name, 0) if name.endswith("_atto") else wire[name]
    if type(value) is not int:
        raise ValueError("an amount is an integer")
    return value


def collection_round(wire: Wire) -> Round:
    """A round."""
    plain = ("id", "dataset_id", "job_id", "collection_id", "index", "state", "epsilon")
    counts = ("target_reports", "min_reports", "n_received", "n_reports")
    return Round(
        **{name: wire[name] for name in (*plain, *counts)},
        spec=round_spec_from_wire(wire["spec"]),
        opened_at=moment(wire["opened_at"]),
        closes_at=moment(wire["closes_at"]),
        closed_at=moment_or_none(wire["closed_at"]),
        tallied_at=moment_or_none(wire["tallied_at"]),
    )


def job(wire: Wire) -> Job:
    """A job."""
    progress, error = wire["progress"], wire["error"]
    plain = ("id", "dataset_id", "algorithm", "state", "epsilon", "target_reports", "min_reports", "collect_seconds")
    return Job(
        **{name: wire[name] for name in plain},
        round_ids=tuple(wire["round_ids"]),
        progress=Progress(**{name: progress[name] for name in Progress.__slots__}),
        attempts=wire["attempts"],
        delta=wire.get("delta", 0.0),
        error=None if error is None else JobError(error["code"], error.get("detail")),
        created_at=moment(wire["created_at"]),
        started_at=moment_or_none(wire["started_at"]),
        finished_at=moment_or_none(wire["finished_at"]),
    )


def result(wire: Wire) -> Result:
    """A result."""
    return Result(
        job_id=wire["job_id"],
        dataset_id=wire["dataset_id"],
        algorithm=wire["algorithm"],
        epsilon=wire["epsilon"],
        rounds=tuple(ResultRound(r["id"], r["index"], r["n_reports"], r["epsilon"]) for r in wire["rounds"]),
        model=model_from_wire(wire["model"]),
        software_version=wire["software_version"],
        created_at=moment(wire["created_at"]),
        odometer=tuple(_charge(asked) for asked in wire.get("odometer", ())),
        delta=wire.get("delta", 0.0),
    )


def _charge(wire: Wire) -> Charge:
    return Charge(
        wire["what"],
        wire["n_values"],
        _amount(wire, "epsilon_nano"),
        wire["reference"],
        _amount(wire, "delta_atto"),
        wire.get("rho_pico", 0),
    )


def forecast(wire: Wire) -> Forecast:
    """A forecast."""
    return forecast_from_wire(wire)


def records_forecast(wire: Wire) -> RecordsForecast:
    """A forecast over records."""
    return records_forecast_from_wire(wire)


def point_labels(wire: Wire) -> NDArray[np.int64]:
    """Labels of points."""
    return np.asarray(wire["labels"], dtype=np.int64)


def key(wire: Wire) -> Key:
    """A key."""
    return Key(
        id=wire["id"],
        name=wire["name"],
        scopes=tuple(wire["scopes"]),
        dataset_id=wire["dataset_id"],
        created_at=moment(wire["created_at"]),
        expires_at=moment_or_none(wire["expires_at"]),
        revoked_at=moment_or_none(wire["revoked_at"]),
        secret=wire.get("secret"),
    )


def moment(text: str) -> datetime:
    """A time; raises ValueError where it has no zone."""
    read = datetime.fromisoformat(text)
    if read.tzinfo is None:
        raise ValueError("a time has a zone")
    return read


def moment_or_none(text: str | None) -> datetime | None:
    """A time, where there is one."""
    return None if text is None else moment(text)
