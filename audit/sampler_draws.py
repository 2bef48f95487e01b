"""Draws of the samplers that are shipped, in numbers: against their law, and between neighbours.

Chi-square sees another scale from about 3 % on (at 30 % it is beyond doubt), and a sign or a value
that comes too often. What answers of neighbouring data tell apart is bounded from their size and
from their lowest bit, which gives away noise that was computed in floating point (Mironov 2012,
"On significance of the least significant bits for differential privacy"). Neither sees what is
rarer than one draw in some thousands: `audit.sampler_laws` does.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chisquare

from audit.bounds import distinguish
from audit.check import Check, Finding, Setting
from clustering import noise
from sfumato import mechanisms
from sfumato.entropy import Entropy, below_many
from sfumato.exact_coins import bernoulli_exp_many
from sfumato.mechanisms import discrete_laplace as of_devices
from sfumato.specs import DiscreteLaplaceMechanism

Sample = Callable[[int, Entropy], NDArray[np.int64]]
Answers = Callable[[int, int, Entropy], NDArray[Any]]

LEAST_P = 1e-10  # that a sound sampler is refused
EPSILON = 1.0  # of the answers that are told apart

_DRAWS = 40_000
_SCALE = Fraction(7, 2)
_SIGMA_SQUARED = Fraction(21, 2)


def laplace_law(scale: Fraction, sizes: int) -> NDArray[np.float64]:
    """Chances of -sizes or less, ..., sizes or more: shape (2 sizes + 1,)."""
    r = float(np.exp(-1 / float(scale)))
    law = (1 - r) / (1 + r) * r ** np.abs(np.arange(-sizes, sizes + 1))
    law[[0, -1]] = r**sizes / (1 + r)
    return np.asarray(law)


def gaussian_law(variance: Fraction, sizes: int) -> NDArray[np.float64]:
    """The same of the discrete Gaussian law."""
    reach = sizes + int(40 * float(variance) ** 0.5)
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * float(variance)))
    weights /= weights.sum()
    law = weights[reach - sizes : reach + sizes + 1].copy()
    law[[0, -1]] = weights[: reach - sizes + 1].sum()
    return np.asarray(law)


def look_at_draws(sample: Sample, law: NDArray[np.float64], name: str, setting: Setting) -> list[Finding]:
    """Chi-square of draws, -m .. m beyond which they count as the ends."""
    n, reach = setting.effort.trials(_DRAWS), len(law) // 2
    drawn = sample(n, setting.entropy(name))
    seen = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=len(law))
    p = float(chisquare(seen, law * n).pvalue)
    why = "" if p > LEAST_P else f"draws like these have chance {p:.1e}"
    return [Finding(name, "draws follow the law", "chi-square", n, holds=not why, why=why)]


def lowest_bit(answers: NDArray[Any]) -> NDArray[np.float64]:
    """The exponent of the lowest bit that is set in each number; of 0, 64."""
    mantissas, exponents = np.frexp(np.asarray(answers, dtype=np.float64))
    whole = np.abs(np.ldexp(mantissas, 53)).astype(np.int64)
    lowest = np.log2((whole & -whole).astype(np.float64), where=whole != 0, out=np.full(len(whole), 117.0))
    return np.where(whole == 0, 64.0, exponents - 53 + lowest)


def look_at_answers(answers: Answers, name: str, setting: Setting) -> list[Finding]:
    """What answers say of a count of 0 against a count of 1, at epsilon 1."""
    n = setting.effort.trials(_DRAWS)
    seen, other = (answers(count, n, setting.entropy(f"{name} {count}")) for count in (0, 1))
    sizes = distinguish(seen.astype(np.float64), other.astype(np.float64))
    bits = distinguish(lowest_bit(seen), lowest_bit(other))
    most = max(sizes.epsilon, bits.epsilon)
    by = "their lowest bit" if bits.epsilon == most else "their size"
    why = "" if most <= EPSILON else f"{by} tells neighbours apart"
    claim = "answers tell neighbours apart no better"
    return [Finding(name, claim, "black box", 2 * n, EPSILON, most, not why, why)]


def laplace_answers(count: int, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """A count with the noise of the service, at epsilon 1."""
    return count + noise.discrete_laplace(Fraction(1), n, entropy)


def laplace_draws(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """The service's Laplace noise."""
    return noise.discrete_laplace(_SCALE, n, entropy)


def gaussian_draws(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """The service's Gaussian noise."""
    return noise.discrete_gaussian(_SIGMA_SQUARED, n, entropy)


def device_draws(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """The noise of devices, out of the values they send."""
    mechanism = DiscreteLaplaceMechanism(1, 4, _SCALE.numerator, _SCALE.denominator, 60)
    values = mechanisms.perturb_many(mechanism, np.full((n, 1), 2), entropy)
    return of_devices.vectors_of(mechanism, values)[:, 0].astype(np.int64) - 2


def choice_draws(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Choices among 11, about 0."""
    return below_many(entropy, 11, n) - 5


def coin_draws(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Coins of exp(-1/2): heads as 0, tails as 1 or -1 by a fair coin, so that they have a middle."""
    tails = ~bernoulli_exp_many(np.ones(n, dtype=np.int64), 2, entropy)
    return np.where(tails, 2 * below_many(entropy, 2, n) - 1, 0)


LAPLACE_LAW = laplace_law(_SCALE, 14)
GAUSSIAN_LAW = gaussian_law(_SIGMA_SQUARED, 9)
_CHOICES = np.full(11, 1 / 11)
_TAILS = (1 - np.exp(-0.5)) / 2
_COINS = np.array([_TAILS, np.exp(-0.5), _TAILS])


def _of(sample: Sample, law: NDArray[np.float64], name: str) -> Check:
    return Check(name, partial(look_at_draws, sample, law, name))


CHECKS: tuple[Check, ...] = (
    _of(laplace_draws, LAPLACE_LAW, "draws of Laplace noise"),
    _of(gaussian_draws, GAUSSIAN_LAW, "draws of Gaussian noise"),
    _of(device_draws, LAPLACE_LAW, "draws of devices' noise"),
    _of(choice_draws, _CHOICES, "draws of below_many"),
    _of(coin_draws, _COINS, "draws of bernoulli_exp"),
    Check("answers with Laplace noise", partial(look_at_answers, laplace_answers, "answers with Laplace noise")),
)
