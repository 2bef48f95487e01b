"""What a state change may refuse, each with the problem code the API answers.

SfumatoError
└── Refused
    ├── NotFound              not_found
    ├── Conflict              conflict
    ├── BudgetExhausted       budget_exhausted
    ├── RoundClosed           round_closed
    ├── TooFewReports         too_few_reports
    ├── JobNotFinished        job_not_finished
    ├── IdempotencyKeyReused  idempotency_key_reused
    ├── LimitExceeded         validation_failed
    ├── RecordsKeyMissing     unavailable
    ├── RecordsUnreadable     internal_error
    └── StaleFence            (never leaves a worker)
"""

from typing import Literal

from sfumato.accounting import format_delta, format_epsilon
from sfumato.errors import SfumatoError


class Refused(SfumatoError):
    """A state change that cannot be; the transaction is rolled back."""

    code = "conflict"


class NotFound(Refused):
    """No such thing in this tenant; what a key may not see is not found either."""

    code = "not_found"

    def __init__(self, what: str) -> None:
        super().__init__(f"no such {what}")


class Conflict(Refused):
    """The thing is in another state than this needs."""

    code = "conflict"


class BudgetExhausted(Refused):
    """The dataset's budget cannot bear the charge; the amounts are of what is short, nano-epsilon or atto-delta."""

    code = "budget_exhausted"

    def __init__(
        self,
        short: Literal["epsilon", "delta"],
        *,
        requested: int,
        granted: int,
        reserved: int,
        posted: int,
        entries: tuple[str, ...] = (),
    ) -> None:
        written = format_epsilon if short == "epsilon" else format_delta
        super().__init__(
            f"this needs {short} {written(requested)}, {written(granted - reserved - posted)} is free: "
            f"{written(granted)} granted, {written(posted)} posted, {written(reserved)} reserved; "
            "grant more, or ask for less"
        )
        self.short = short
        self.requested = requested
        self.granted = granted
        self.reserved = reserved
        self.posted = posted
        self.entries = entries  # the newest ledger entries that hold or spent it


class RoundClosed(Refused):
    """The round takes no more reports."""

    code = "round_closed"


class TooFewReports(Refused):
    """Fewer reports than the round's minimum."""

    code = "too_few_reports"

    def __init__(self, *, n_reports: int, min_reports: int) -> None:
        super().__init__(f"{n_reports} reports arrived, at least {min_reports} are needed")
        self.n_reports = n_reports
        self.min_reports = min_reports


class JobNotFinished(Refused):
    """The job has no result, or none yet."""

    code = "job_not_finished"


class IdempotencyKeyReused(Refused):
    """The idempotency key was used for another request."""

    code = "idempotency_key_reused"


class LimitExceeded(Refused):
    """More of something than the operator allows."""

    code = "validation_failed"


class RecordsKeyMissing(Refused):
    """No key, or not the one, that opens this dataset's records; the message says what to set."""

    code = "unavailable"


class RecordsUnreadable(Refused):
    """Stored records that are not as they were written."""

    code = "internal_error"


class StaleFence(Refused):
    """Somebody else holds the job by now; what this worker computed is void."""
