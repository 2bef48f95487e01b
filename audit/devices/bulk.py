"""Black-box check of the transcripts of very many devices in arrays.

`sfumato.device.bulk.perturb_records` runs a collection of three rounds for equally many devices with each of two
records. The lower bound on epsilon (`audit.checks.bounds`) must not exceed the charge of the collection. The check uses
outputs only and detects any excess of 30 %. `audit.devices.exact` and `audit.mechanisms.exact_channels` detect smaller
ones.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.checks.bounds import distinguish_outcomes
from audit.checks.check import Check, Finding, Setting
from audit.devices.simulated_service import make_round
from sfumato.device.bulk import perturb_records
from sfumato.privacy.accounting import NANO, cost
from sfumato.privacy.entropy import Entropy
from sfumato.specs import Participation, RoundSpec

ReportRound = Callable[[RoundSpec, NDArray[np.float64], NDArray[np.uint64], Entropy], NDArray[np.int64]]

_N_DEVICES = 500_000  # per record in a quick audit
_MAX_DEVICES = 5_000_000

ROUNDS: tuple[RoundSpec, ...] = (
    make_round(0.5, Participation.between(0, 0.5)),
    make_round(1.0, Participation.between(0.5, 1)),
    make_round(0.5, Participation.between(0, 0.25)),
)


def participates(spec: RoundSpec, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which devices participate in a round: bool of shape (n,)."""
    return (draws >= np.uint64(spec.participation.lo)) & (draws <= np.uint64(spec.participation.hi - 1))


def report_with_shared_draws(
    spec: RoundSpec, records: NDArray[np.float64], draws: NDArray[np.uint64], entropy: Entropy
) -> NDArray[np.int64]:
    """Return each device's code in a round, with one draw per collection: 0 without a report, else 1 plus the value."""
    codes = np.zeros(len(records), dtype=np.int64)
    codes[participates(spec, draws)] = 1 + perturb_records(spec, records, entropy, draws=draws).values[:, 0]
    return codes


def sample_transcripts(report_round: ReportRound, record: float, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Return the codes of n devices in all rounds as one number each, one base-9 digit per round."""
    codes = np.zeros(n, dtype=np.int64)
    draws = entropy.words(n)
    for spec in ROUNDS:
        codes = 9 * codes + report_round(spec, np.full((n, 1), record), draws, entropy)
    return codes


def check_transcripts(report_round: ReportRound, setting: Setting) -> list[Finding]:
    """Check how well transcripts distinguish the records 0.1 and 0.9."""
    n = min(setting.effort.trials(_N_DEVICES), _MAX_DEVICES)
    sample, other = (sample_transcripts(report_round, x, n, setting.entropy(f"bulk {x}")).tolist() for x in (0.1, 0.9))
    charged = (
        cost(((spec.participation.lo, spec.participation.hi), spec.mechanism.epsilon_nano()) for spec in ROUNDS) / NANO
    )
    bound = distinguish_outcomes(sample, other)
    why = "" if bound.epsilon <= charged else "transcripts distinguish records better than the charge allows"
    claim = "transcripts distinguish records by at most the charge"
    return [Finding("devices in arrays", claim, "black box", bound.trials, charged, bound.epsilon, not why, why)]


CHECKS: tuple[Check, ...] = (Check("devices in arrays", partial(check_transcripts, report_with_shared_draws)),)
