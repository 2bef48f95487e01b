"""Errors that reject a state change, each with the problem code of the API.

SfumatoError
└── ChangeRejected
    ├── NotFound              not_found
    ├── Conflict              conflict
    ├── DuplicateContent      duplicate_content
    ├── MostlyClipped         mostly_clipped
    ├── BudgetExhausted       budget_exhausted
    ├── CeilingExceeded       budget_exhausted
    ├── RoundClosed           round_closed
    ├── TooFewReports         too_few_reports
    ├── RoundEmpty            too_few_reports
    ├── JobNotFinished        job_not_finished
    ├── IdempotencyKeyReused  idempotency_key_reused
    ├── LimitExceeded         validation_failed
    ├── RecordsKeyMissing     unavailable
    ├── RecordsUnreadable     internal_error
    └── StaleFence            (never leaves a worker)
"""

from collections.abc import Callable
from typing import Literal

from sfumato.errors import SfumatoError
from sfumato.privacy.accounting import format_delta, format_epsilon
from sfumato.privacy.gaussian_privacy import PICO

BudgetKind = Literal["epsilon", "delta", "shuffled_epsilon", "shuffled_delta", "mu2"]


_FORMATS: dict[BudgetKind, Callable[[int], str]] = {
    "epsilon": format_epsilon,
    "delta": format_delta,
    "shuffled_epsilon": format_epsilon,
    "shuffled_delta": format_delta,
    "mu2": lambda pico: f"{pico / PICO:.6g}",
}


class ChangeRejected(SfumatoError):
    """A rejected state change. The transaction is rolled back."""

    code = "conflict"


class NotFound(ChangeRejected):
    """The object does not exist in this tenant, or the key may not access it."""

    code = "not_found"

    def __init__(self, kind: str) -> None:
        super().__init__(f"no such {kind}: check the id, and the tenant and dataset of the key")


class Conflict(ChangeRejected):
    """The object's state does not allow the change."""

    code = "conflict"


class DuplicateContent(ChangeRejected):
    """The dataset already has an upload of the same records."""

    code = "duplicate_content"


class MostlyClipped(ChangeRejected):
    """More than half of the records of an upload are outside of the bounds."""

    code = "mostly_clipped"


class BudgetExhausted(ChangeRejected):
    """The dataset's budget is too small. The amounts are nano-epsilon if an epsilon is short, else atto-delta."""

    code = "budget_exhausted"

    def __init__(
        self,
        short: BudgetKind,
        *,
        requested: int,
        granted: int,
        reserved: int,
        charged: int,
        entries: tuple[str, ...] = (),
    ) -> None:
        format_amount = _FORMATS[short]
        name = short.replace("_", " ")
        super().__init__(
            f"this needs {name} {format_amount(requested)}, {format_amount(granted - reserved - charged)} is free: "
            f"{format_amount(granted)} granted, {format_amount(charged)} charged, {format_amount(reserved)} reserved; "
            "grant more or request less"
        )
        self.short = short
        self.requested = requested
        self.granted = granted
        self.reserved = reserved
        self.charged = charged
        self.entries = entries  # ids of the newest entries that reserved or charged the amount


class CeilingExceeded(ChangeRejected):
    """A ceiling of the operator is too small. The amounts are nano-epsilon if an epsilon is short, else atto-delta."""

    code = "budget_exhausted"

    def __init__(
        self,
        ceiling: Literal["dataset", "source", "grants"],
        short: BudgetKind,
        *,
        limit: int,
        spent: int,
        requested: int,
    ) -> None:
        format_amount = _FORMATS[short]
        needs = f"this needs {short.replace('_', ' ')} {format_amount(requested)}"
        spent_as = "granted to the dataset" if ceiling == "dataset" else "charged or reserved in datasets of the source"
        text = (
            f"the operator's limit of a {ceiling} is {format_amount(limit)}, and {format_amount(spent)} is {spent_as}; "
            "request less, or a higher limit"
        )
        if ceiling == "grants":
            text = (
                f"datasets over the same people together spend at most the largest grant of one of them, "
                f"{format_amount(limit)}, and {format_amount(spent)} is charged or reserved in them, deleted ones "
                "included; request less, have more granted, or set the source if these are other people"
            )
        super().__init__(f"{needs}; {text}")
        self.ceiling: Literal["dataset", "source"] = "dataset" if ceiling == "dataset" else "source"
        self.short = short
        self.limit = limit
        self.spent = spent
        self.requested = requested


class RoundClosed(ChangeRejected):
    """The round accepts no more reports."""

    code = "round_closed"


class TooFewReports(ChangeRejected):
    """Fewer reports than the round's minimum."""

    code = "too_few_reports"

    def __init__(self, *, n_reports: int, min_reports: int) -> None:
        super().__init__(
            f"the round is closed with {n_reports} reports, at least {min_reports} are needed: submit a new job with a "
            "longer collect_seconds, more devices or a lower minimum"
        )
        self.n_reports = n_reports
        self.min_reports = min_reports


class RoundEmpty(ChangeRejected):
    """A round without reports, which would close without a result."""

    code = "too_few_reports"


class JobNotFinished(ChangeRejected):
    """The job has no result, or none yet."""

    code = "job_not_finished"


class IdempotencyKeyReused(ChangeRejected):
    """The idempotency key was used for another request."""

    code = "idempotency_key_reused"


class LimitExceeded(ChangeRejected):
    """A limit of the operator would be exceeded."""

    code = "validation_failed"


class RecordsKeyMissing(ChangeRejected):
    """The master key for this dataset's records is missing. The message names the setting."""

    code = "unavailable"


class RecordsUnreadable(ChangeRejected):
    """Stored records were changed."""

    code = "internal_error"


class StaleFence(ChangeRejected):
    """Another worker has claimed the job. This worker's results are discarded."""
