"""Exceptions of the package.

SfumatoError
├── InvalidSpec        invalid round, mechanism, encoding or parameter
│   ├── InvalidSetting setting of a new dataset that is invalid or does not fit the others
│   ├── InvalidEpsilon epsilon out of range or with too many decimals
│   └── InvalidDelta   delta out of range or with too many decimals
├── InvalidPoint       record that does not fit the declared features
├── ReportMalformed    report with bytes that the mechanism cannot produce
├── CapExceeded        round that would exceed the user's cap
├── RoundRefused       round that declares less than its cost, or has changed
├── StoreUnusable      device store that cannot be read, written or locked
├── ApiProblem         problem document of the service (RFC 9457)
├── JobTimeout         job without final state after the time to wait
└── Unreachable        service that did not answer within the retries
"""

from collections.abc import Mapping
from datetime import date
from typing import Any

MAX_NAMED = 5  # maximum number of errors in a message


class SfumatoError(Exception):
    """Base class of the package's exceptions. They can be copied and pickled, so a process pool raises them again."""

    code = "error"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the parts of a copy."""
        return _restore, (type(self), self.args), vars(self) or None


def _restore(kind: type[SfumatoError], args: tuple[Any, ...]) -> SfumatoError:
    """Return an exception without a call of its constructor. `args` are not its parameters."""
    error = kind.__new__(kind)
    error.args = args
    return error


class InvalidSpec(SfumatoError):
    """An invalid round specification, mechanism, encoding or algorithm parameter."""

    code = "validation_failed"


class InvalidSetting(InvalidSpec):
    """A setting of a new dataset that is invalid or does not fit the others. `member` is its name in a request."""

    def __init__(self, member: str, message: str) -> None:
        super().__init__(message)
        self.member = member


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
    """Bytes that the mechanism cannot produce. `index` counts reports from 0, the message from 1."""

    code = "report_malformed"

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"report {index + 1} (counted from 1): {reason}")
        self.index = index
        self.reason = reason


class CapExceeded(SfumatoError):
    """A round with a report that would exceed the user's cap on this device.

    `period` is None for the lifetime cap. Otherwise the next period begins on `next_begin`, in UTC.
    """

    code = "cap_exceeded"

    def __init__(
        self,
        *,
        cost_nano: int,
        spent_nano: int,
        cap_nano: int,
        period: str | None = None,
        next_begin: date | None = None,
    ) -> None:
        per = "" if period is None else f" per {period}"
        later = "" if period is None else f" The next {period} begins on {next_begin} (UTC)."
        super().__init__(
            f"this round costs {cost_nano / 1e9:g}, and {spent_nano / 1e9:g} of the cap of "
            f"{cap_nano / 1e9:g}{per} is spent. No report was sent.{later}"
        )
        self.cost_nano = cost_nano
        self.spent_nano = spent_nano
        self.cap_nano = cap_nano
        self.period = period
        self.next_begin = next_begin


class RoundRefused(SfumatoError):
    """A round that the device rejects, because it declares less than its cost or has changed."""

    code = "round_refused"


class StoreUnusable(SfumatoError):
    """A device store that cannot be read, written or locked.

    The device then sends no report. Without its memory it would perturb the same record a second
    time and would not know its spent epsilon.
    """

    code = "store_unusable"


class ApiProblem(SfumatoError):
    """A problem document of the service."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code", "internal_error"))
        super().__init__(f"{status} {self.code}: {_describe(self.problem)}")


def _describe(problem: Mapping[str, Any]) -> str:
    """Return the detail, followed by the messages in `errors` that it does not contain."""
    text = str(problem.get("detail") or problem.get("title"))
    errors = problem.get("errors")
    places = [each for each in errors if isinstance(each, Mapping)] if isinstance(errors, list) else []
    for each in places[:MAX_NAMED]:
        message = str(each.get("message", ""))
        if message not in text:
            where = str(each.get("parameter") or each.get("pointer") or "")
            text += f"; {where}: {message}" if where else f"; {message}"
    return text


class JobTimeout(SfumatoError, TimeoutError):
    """A job without final state after the time to wait. `job` is its last known state."""

    code = "job_not_finished"

    def __init__(self, job: Any, waited_seconds: float) -> None:
        super().__init__(f"{job.id} is still {job.state} after {waited_seconds:g} s")
        self.job = job


class Unreachable(SfumatoError):
    """A service that did not answer within the retries. A device keeps its report for the next call."""

    code = "unreachable"
