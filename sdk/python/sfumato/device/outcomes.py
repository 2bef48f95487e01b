"""Outcomes of a device's call: of each round, and of the call."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from sfumato.errors import SfumatoError


class Outcome(StrEnum):
    """The outcome of a round on this device."""

    SENT = "sent"  # the service acknowledged the report in this call
    ALREADY_ANSWERED = "already_answered"  # the device answered the round in an earlier call
    NOT_SELECTED = "not_selected"  # the device's draw lies outside the round's interval
    TOO_LATE = "too_late"  # the round closed before the report arrived; the device counts its cost
    REFUSED = "refused"  # no receipt, and the error has the reason; `Device.pending` lists the report if it is kept
    NO_OPEN_ROUND = "no_open_round"  # the dataset has no open round


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """The outcome of one round. `epsilon` is its cost for this device, or 0 if the device did not answer.

    `outside` names the features with a value outside of the bounds, if this call perturbed the record. The report
    then states `outside`, or has the values moved to the bounds if the round has `out_of_bounds` "clip".
    """

    round_id: str
    outcome: Outcome
    epsilon: float = 0.0
    error: SfumatoError | None = None
    outside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of one call of `Device.report`.

    Attributes
    ----------
    outcome : Outcome
        The first of sent, too_late, already_answered and not_selected that a round has, or
        no_open_round.
    rounds : tuple of RoundOutcome
        All open rounds in the service's order, then the earlier rounds with reports that were resent.
    retry_after_seconds : float or None
        Delay before the next call if no round is open.
    store : str or None
        Path of the device's file without links. None if the store has another form.
    """

    outcome: Outcome
    rounds: tuple[RoundOutcome, ...] = ()
    retry_after_seconds: float | None = None
    store: str | None = None

    @property
    def outside(self) -> tuple[str, ...]:
        """Return the features with a value outside of the bounds of a round that this call answered."""
        return tuple(dict.fromkeys(name for each in self.rounds for name in each.outside))


def is_refused(outcome: RoundOutcome | None) -> bool:
    """Return whether a round ended with an error."""
    return outcome is not None and outcome.outcome is Outcome.REFUSED


def overall_outcome(rounds: Collection[RoundOutcome], is_open: bool) -> Outcome:
    """Return the outcome of a call from those of its rounds. Raise the first error if no report arrived."""
    outcomes = {each.outcome for each in rounds}
    errors = [each.error for each in rounds if each.error is not None]
    if errors and not outcomes & {Outcome.SENT, Outcome.TOO_LATE}:
        raise errors[0]
    if not is_open:
        return Outcome.NO_OPEN_ROUND
    order = (Outcome.SENT, Outcome.TOO_LATE, Outcome.ALREADY_ANSWERED, Outcome.NOT_SELECTED)
    return next(outcome for outcome in order if outcome in outcomes)
