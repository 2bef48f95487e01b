"""Transcripts of very many devices in arrays, as a stranger sees them: what tells two records apart, from below.

`sfumato.bulk.perturb_records` plays a collection of three rounds for as many devices with one
record as with another. The bound on epsilon (`audit.bounds`) must lie at or below what the
collection posts. It sees any excess of 30 % or more, however it comes about; it knows nothing of
the code. Subtler ones `audit.device_exact` and `audit.exact_mechanisms` see.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.bounds import distinguish_outcomes
from audit.check import Check, Finding, Setting
from audit.device_service import round_of
from sfumato import mechanisms
from sfumato.accounting import NANO, cost
from sfumato.bulk import perturb_records
from sfumato.entropy import Entropy
from sfumato.specs import Draw, RoundSpec

Tell = Callable[[RoundSpec, NDArray[np.float64], NDArray[np.uint64], Entropy], NDArray[np.int64]]

_DEVICES = 500_000  # with each record
_MOST_DEVICES = 5_000_000

ROUNDS: tuple[RoundSpec, ...] = (
    round_of(0.5, Draw.between(0, 0.5)),
    round_of(1.0, Draw.between(0.5, 1)),
    round_of(0.5, Draw.between(0, 0.25)),
)


def answers(spec: RoundSpec, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which devices a round asks: bool of shape (n,)."""
    return (draws >= np.uint64(spec.draw.lo)) & (draws <= np.uint64(spec.draw.hi - 1))


def with_shared_draws(
    spec: RoundSpec, records: NDArray[np.float64], draws: NDArray[np.uint64], entropy: Entropy
) -> NDArray[np.int64]:
    """What each device tells in a round, by the draws of the collection: 0 nothing, else 1 more than its value."""
    told = np.zeros(len(records), dtype=np.int64)
    told[answers(spec, draws)] = 1 + perturb_records(spec, records, entropy, draws=draws).values[:, 0]
    return told


def transcripts(tell: Tell, record: float, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """What each of n devices tells in all rounds, as one number: a digit a round."""
    told = np.zeros(n, dtype=np.int64)
    draws = entropy.words(n)
    for spec in ROUNDS:
        told = 9 * told + tell(spec, np.full((n, 1), record), draws, entropy)
    return told


def look(tell: Tell, setting: Setting) -> list[Finding]:
    """What transcripts of 0.1 and 0.9 tell apart."""
    n = min(setting.effort.trials(_DEVICES), _MOST_DEVICES)
    seen, other = (transcripts(tell, x, n, setting.entropy(f"bulk {x}")).tolist() for x in (0.1, 0.9))
    posted = cost(((s.draw.lo, s.draw.hi), mechanisms.epsilon_nano(s.mechanism)) for s in ROUNDS) / NANO
    bound = distinguish_outcomes(seen, other)
    why = "" if bound.epsilon <= posted else "transcripts tell records apart better than is posted"
    claim = "transcripts tell records apart no better than is posted"
    return [Finding("devices in arrays", claim, "black box", bound.trials, posted, bound.epsilon, not why, why)]


CHECKS: tuple[Check, ...] = (Check("devices in arrays", partial(look, with_shared_draws)),)
