"""The domain's exceptions, one tree.

SfumatoError
├── InvalidSpec        a round, mechanism, encoding or parameter that cannot be
├── InvalidEpsilon     an epsilon out of range or with too many decimals
├── InvalidDelta       a delta out of range or with too many decimals
├── InvalidPoint       a record that does not fit the declared features
├── ReportMalformed    a report whose bytes the mechanism could not have produced
├── CapExceeded        a round that would cost more than the user allows
├── RoundRefused       a round that says less than it costs, or is no longer what it was
├── StoreUnusable      a device's memory that cannot be trusted
├── ApiProblem         the service answered with a problem (RFC 9457)
├── JobTimeout         a job that was not over in the time one would wait
└── Unreachable        the service could not be reached within the retries
"""

from collections.abc import Mapping
from typing import Any

MAX_NAMED = 5  # places a problem is told of


class SfumatoError(Exception):
    """Base of every error this package raises on purpose."""

    code = "error"


class InvalidSpec(SfumatoError):
    """A round spec, mechanism, encoding or algorithm parameter that cannot be."""

    code = "validation_failed"


class InvalidEpsilon(InvalidSpec):
    """An epsilon outside [1e-6, 32] or with more than nine decimals."""


class InvalidDelta(InvalidSpec):
    """A delta that is neither 0 nor in [1e-15, 1e-3], or with more than 18 decimals."""


class InvalidPoint(SfumatoError):
    """A record with the wrong number of features or a value that is not finite.

    The message names the feature, never the value.
    """

    code = "point_invalid"


class ReportMalformed(SfumatoError):
    """Bytes the mechanism could not have produced; `index` is the report's place."""

    code = "report_malformed"

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"report {index}: {reason}")
        self.index = index
        self.reason = reason


class CapExceeded(SfumatoError):
    """Answering would cost the user more than the cap they set on this device."""

    code = "cap_exceeded"

    def __init__(self, *, asked_nano: int, spent_nano: int, cap_nano: int) -> None:
        super().__init__(
            f"this round costs {asked_nano / 1e9:g}, {spent_nano / 1e9:g} of the cap of "
            f"{cap_nano / 1e9:g} is spent: nothing was sent"
        )
        self.asked_nano = asked_nano
        self.spent_nano = spent_nano
        self.cap_nano = cap_nano


class RoundRefused(SfumatoError):
    """A round this device does not answer: it says less than it costs, or has changed since."""

    code = "round_refused"


class StoreUnusable(SfumatoError):
    """What a device remembers cannot be read, or not be locked.

    Nothing is sent: a device that forgot its answers would perturb the same record anew,
    and would not know what it has spent.
    """

    code = "store_unusable"


class ApiProblem(SfumatoError):
    """A problem document the service answered with."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code", "internal_error"))
        super().__init__(f"{status} {self.code}: {_said(self.problem)}")


def _said(problem: Mapping[str, Any]) -> str:
    """The detail, and what its `errors` add: a request that is wrong in several places has the rest there alone."""
    said = str(problem.get("detail") or problem.get("title"))
    errors = problem.get("errors")
    places = [each for each in errors if isinstance(each, Mapping)] if isinstance(errors, list) else []
    for each in places[:MAX_NAMED]:
        message = str(each.get("message", ""))
        if message not in said:
            where = str(each.get("parameter") or each.get("pointer") or "")
            said += f"; {where}: {message}" if where else f"; {message}"
    return said


class JobTimeout(SfumatoError, TimeoutError):
    """The job is not over yet; `job` is as it was last seen."""

    code = "job_not_finished"

    def __init__(self, job: Any, waited_seconds: float) -> None:
        super().__init__(f"{job.id} is still {job.state} after {waited_seconds:g} s")
        self.job = job


class Unreachable(SfumatoError):
    """No answer within the retries; what was to be sent is kept and can be sent again."""

    code = "unreachable"
