"""Cost of reports that a shuffler releases together, as one set without order or senders.

Neighbours: one person's value is replaced by any other value. Whether a person takes part is not protected. n is the
number of honest reports in one release, that of the person included. Reports of dishonest devices do not count,
because the observer may know them.

The bound is the privacy blanket of Balle, Bell, Gascón and Nissim 2019, "The privacy blanket of the shuffle model"
(arXiv 1903.02837, section 5). Let B be a distribution of values with P(y | x) >= v B(y) for all values y and symbols x.
Each other device sends a value from B with probability v, independent of its symbol, and else a value from the rest of
its distribution. Assume that the observer knows every value from the rest; this can only help it. It then sees the
person's value among m - 1 values from B, with m - 1 ~ Bin(n - 1, v). The probability of this set is proportional to
the mean of P(y | x) / B(y) over its m values. The mean over m gives

    delta(epsilon) <= E[Z_1 + ... + Z_n]_+ / n,

where [.]_+ is the positive part, the Z_i are independent, Z_i is 0 with probability 1 - v, and otherwise
(P(y | x) - e^epsilon P(y | x')) / (v B(y)) with y from B.

One Fourier sum evaluates this expectation. Write S for the sum of the Z_i.

1. V is normal with mean 0 and deviation tau, and independent of S. The positive part is convex, so
   E[S + V]_+ >= E[S]_+ (Jensen). Smoothing S once preserves its mean and takes the place of rounding each Z_i to a
   grid. Its effect does not grow with n.
2. For each t > 0, let Q be the distribution of S + V with weights e^(t s), and M the mean of these weights. Then
   E[S + V]_+ = M E_Q[g], g(s) = s e^(-t s) for s > 0 and else 0, with Fourier transform 1 / (t + i w)^2. By Poisson's
   formula, for each period T, the sum over the integers m of E_Q[g(s + m T)] is
   (1/T) sum over k of E_Q[e^(i w_k s)] / (t + i w_k)^2, w_k = 2 pi k / T. No term of the first sum is negative, and
   m = 0 is E_Q[g]. So the second sum is an upper bound for each t and T.
3. |E_Q[e^(i w s)]| <= e^(-tau^2 w^2 / 2) bounds the terms that are left out.
4. Floats can only increase the bound. Probabilities and the values of Z are exact fractions. A value is rounded up,
   and E[S]_+ rises with it. Each computed weight is at least the true one divided by 1 + eta, so the factor (1 + eta)^n
   covers them. `_bound_sum` bounds the rounding errors of its terms. Assumed are IEEE doubles, and an error of at most
   4 units in the last place in exp, log, sin and cos.

The choice of t, T and tau therefore affects only how close the bound is.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import ATTO, cost, exp_epsilon, format_delta, realised_epsilon
from sfumato.validation import require_at_least, require_share, show

MAX_HONEST = 1 << 30  # maximum number of honest reports; rounding errors grow with it
EPSILON_STEP_NANO = 1_000  # a shuffled epsilon is a whole number of micro-epsilon
TRUST_STATEMENT = (
    "Your report always costs at most ε₀. If the shuffler and the operator do not work together, and at least n of the "
    "reports that are released together with yours come from honest devices, then what the operator sees costs (ε, δ). "
    "If they work together, or most of those reports are fake, ε₀ is your protection. A server that forwards your "
    "report, such as that of the app, sees its time and size only."
)

Pair = tuple[int, int]  # nano-epsilon and atto-delta
ShuffledRound = tuple[tuple[int, int], Pair]  # participation interval [lo, hi) and cost

_U = 2.0**-53  # unit roundoff of a double
_SMOOTHNESS = (8, 32, 128)  # divisors of the length that the smoothing must not reach
_GAIN = 0.01  # relative gain of a smaller tau below which the search ends
_REACH = 9.0  # frequencies up to 9 / tau; the terms beyond are below e^-40
_MAX_TERMS = 1 << 15
_MAX_TILT = 30.0  # t times the deviation of the sum; delta is below e^-450 where a higher t would be closer
_MAX_EXPONENT = 500.0  # e^500 is a double
_TINY = 1e-300  # above every underflow


@dataclass(frozen=True, slots=True)
class Blanket:
    """The blanket of a mechanism, each value of which names a set of symbols.

    With base distribution B, a value y has the probability u B(y) for the symbols that it names, and v B(y) for the
    others, u >= v. The blanket is v B. `named` and `both` are probabilities under B.

    The pair of symbols matters only through `both`. Let it be larger for another pair, by c. Then c of the mass of
    "only the first" and of "only the second" is moved to "both" and "neither". These two values of Z lie between those
    two and have the same sum, so the expectation of each convex function falls (Karamata). The least `both` of all
    pairs therefore covers all pairs, and a mean over public slots as well.

    Attributes
    ----------
    ratio : Fraction
        u / v >= 1. Its logarithm is the local cost.
    named : Fraction
        Probability that a value names one given symbol, in (0, 1).
    both : Fraction
        Least probability that a value names both of two given symbols.
    """

    ratio: Fraction
    named: Fraction
    both: Fraction

    def __post_init__(self) -> None:
        if self.ratio < 1 or not 0 < self.named < 1:
            raise InvalidSpec(
                "a blanket must have a ratio of at least 1 and name a symbol with a probability in (0, 1)"
            )
        if not max(Fraction(0), 2 * self.named - 1) <= self.both < self.named:
            raise InvalidSpec("no values name and separate two symbols with these probabilities")

    @property
    def share(self) -> Fraction:
        """Return v, the probability that a report is independent of its symbol."""
        return 1 / (1 + self.named * (self.ratio - 1))

    @property
    def local_epsilon_nano(self) -> int:
        """Return the cost of one report without a shuffler, in nano-epsilon."""
        return realised_epsilon(self.ratio)


def honest_reports(min_batch: int, honest_share: Fraction) -> int:
    """Return n, the number of honest reports in a release of at least `min_batch`, rounded down.

    Raises
    ------
    InvalidSpec
        The batch is empty, the share is not in (0, 1], or no honest report is left.
    """
    require_at_least(min_batch, 1, "min_batch")
    require_share(float(honest_share), "the honest share")
    n = int(min_batch * honest_share)
    if n < 1:
        raise InvalidSpec(
            f"a batch must have at least one honest report: increase min_batch, {min_batch}, "
            f"or honest_share, {show(float(honest_share))}"
        )
    return n


def delta(blanket: Blanket, n: int, epsilon_nano: int) -> int:
    """Return an upper bound of delta for this epsilon and n honest reports.

    Parameters
    ----------
    blanket : Blanket
    n : int
        Number of honest reports in the release, in 1 .. 2**30. The bound holds for each larger number.
    epsilon_nano : int
        At least 0.

    Returns
    -------
    int
        Atto-delta, rounded up; at most 1e18. 0 from the local epsilon on.

    Raises
    ------
    InvalidSpec
        An argument is out of range.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from sfumato.privacy.shuffling import Blanket, delta
    >>> coin = Blanket(Fraction(3), Fraction(1, 2), Fraction(0))  # binary randomised response at epsilon ln 3
    >>> delta(coin, 10_000, 100_000_000) < 10**12 < delta(coin, 1_000, 100_000_000)
    True
    """
    _check_reports(n)
    if epsilon_nano < 0:
        raise InvalidSpec("epsilon must not be negative")
    if epsilon_nano >= blanket.local_epsilon_nano:
        return 0
    return min(ATTO, math.ceil(Fraction(_bound_delta(blanket, n, exp_epsilon(epsilon_nano))) * ATTO))


def epsilon(blanket: Blanket, n: int, delta_atto: int) -> int:
    """Return an epsilon that n honest reports have for this delta.

    Parameters
    ----------
    blanket : Blanket
    n : int
        Number of honest reports in the release, in 1 .. 2**30.
    delta_atto : int
        In 0 .. 10**18 - 1. With 0, the shuffler gives no advantage.

    Returns
    -------
    int
        Nano-epsilon, a whole number of micro-epsilon or the local epsilon, which is the maximum. `delta` at the result
        is at most `delta_atto`. Another machine may find the next step; to verify an epsilon, compare `delta`.

    Raises
    ------
    InvalidSpec
        An argument is out of range.
    """
    _check_reports(n)
    if not 0 <= delta_atto < ATTO:
        raise InvalidSpec(f"delta must be at least 0 and below 1, not {format_delta(delta_atto)}")
    local = blanket.local_epsilon_nano
    low, high = -1, -(-local // EPSILON_STEP_NANO)  # steps; the upper one is covered
    while high - low > 1:
        middle = (low + high) // 2
        if delta(blanket, n, middle * EPSILON_STEP_NANO) <= delta_atto:
            high = middle
        else:
            low = middle
    return min(local, high * EPSILON_STEP_NANO)


def shuffled_cost(collections: Iterable[Iterable[ShuffledRound]]) -> Pair:
    """Return the cost of shuffled rounds for one device, as nano-epsilon and atto-delta.

    In each collection a device makes one secret draw, independent of its value, and answers the rounds with an interval
    that contains it. Pairs (epsilon, delta) of these rounds add up (basic composition, also for rounds that depend on
    earlier ones). The maximum over the draws covers each device. Pairs of collections add up.
    """
    epsilon_nano = delta_atto = 0
    for rounds in collections:
        listed = list(rounds)
        epsilon_nano += cost((interval, pair[0]) for interval, pair in listed)
        delta_atto += cost((interval, pair[1]) for interval, pair in listed)
    return epsilon_nano, delta_atto


def _check_reports(n: int) -> None:
    if not 1 <= n <= MAX_HONEST:
        raise InvalidSpec(f"a release must have 1 to {MAX_HONEST} honest reports")


def _bound_delta(blanket: Blanket, n: int, growth: Fraction) -> float:
    """Return an upper bound of delta at e^epsilon >= `growth`, for `growth` below the ratio."""
    ratio, share = blanket.ratio, blanket.share
    one = blanket.named - blanket.both
    outcomes = (
        (share * blanket.both, ratio * (1 - growth)),
        (share * one, ratio - growth),
        (share * one, 1 - growth * ratio),
        (share * (1 - blanket.both - 2 * one), 1 - growth),
        (1 - share, Fraction(0)),
    )
    # the bound for n = 1, which holds for each n, because E[S]_+ / n falls with n
    lone = _round_up(sum((mass * max(value, Fraction(0)) for mass, value in outcomes), Fraction(0)))
    masses = np.array([float(mass) for mass, _ in outcomes if mass])
    values = np.array([_round_up(value) for mass, value in outcomes if mass])
    t = _find_tilt(masses, values, n)
    best = math.inf
    for smoothness in _SMOOTHNESS:
        bound = _bound_sum(masses, values, n, t, smoothness)
        if not bound < (1 - _GAIN) * best:
            return min(bound, best, lone)
        best = bound
    return min(best, lone)


def _round_up(value: Fraction) -> float:
    """Return a float at or above a fraction; zero is exact."""
    return math.nextafter(float(value), math.inf) if value else 0.0


def _tilt(masses: NDArray[np.float64], values: NDArray[np.float64], t: float) -> tuple[NDArray[np.float64], float]:
    """Return the distribution with weights e^(t z), and the mean of these weights."""
    raised = masses * np.exp(t * values)
    mean = float(raised.sum())
    return np.maximum(raised / mean, _TINY), mean


def _moments(weights: NDArray[np.float64], values: NDArray[np.float64], n: int) -> tuple[float, float]:
    """Return the mean and the standard deviation of a sum of n values."""
    mean = float(weights @ values)
    return n * mean, math.sqrt(n * float(weights @ (values - mean) ** 2))


def _find_tilt(masses: NDArray[np.float64], values: NDArray[np.float64], n: int) -> float:
    """Return t near the minimum of n log E[e^(t Z)] - 2 log t, where the bound is close, or a lower t."""
    highest = _MAX_EXPONENT / float(values.max())

    def is_low(t: float) -> bool:
        mean, deviation = _moments(_tilt(masses, values, t)[0], values, n)
        return t < highest and t * mean < 2 and t * deviation < _MAX_TILT

    low = high = 1 / float(np.abs(values).max())
    while is_low(high):
        low, high = high, 2 * high
    while not is_low(low):
        low, high = low / 2, low
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return low


def _bound_sum(masses: NDArray[np.float64], values: NDArray[np.float64], n: int, t: float, smoothness: int) -> float:
    """Return an upper bound of E[Z_1 + ... + Z_n]_+ / n, infinite if rounding errors could be large.

    Parameters
    ----------
    masses, values : ndarray of shape (n_outcomes,)
        Probabilities to the nearest double, and values of Z, rounded up.
    n : int
    t : float
        Above 0.
    smoothness : int
        Divisor of the length that tau must not reach: 1/t, or the deviation of Q if that is less.
    """
    weights, mean = _tilt(masses, values, t)
    _, deviation = _moments(weights, values, n)
    tau = min(deviation, 1 / t) / smoothness
    # 24 bits, so that each multiple k <= 2**15 is a double
    fraction, exponent = math.frexp(2 * math.pi / (8 * deviation + 30 / t))
    step = math.ldexp(math.floor(fraction * 2**24), exponent - 24)
    n_terms = math.ceil(_REACH / tau / step)
    if not 0 < n_terms <= _MAX_TERMS:
        return math.inf
    frequencies = step * np.arange(n_terms + 1)

    # E[e^(i w Z)] per frequency. An angle has the relative error u, a sine or cosine the error 8 u, and a sum of five
    # products the error 5 u. So the error of the complex sum is at most `error`; the factor 1.5 exceeds sqrt(2).
    angles = np.outer(frequencies, values)
    means = (np.cos(angles) @ weights) + 1j * (np.sin(angles) @ weights)
    error = 1.5 * _U * (float(frequencies[-1] * (weights @ np.abs(values))) + 16)
    # A product of complex numbers has the relative error sqrt(5) u (Brent, Percival and Zimmermann 2007), and each way
    # to multiply n factors needs n - 1 products. Means are at most 1 + 8 u + error.
    if n * (error + 12 * _U) > 0.01:
        return math.inf
    powers = _power(means, n)
    power_error = 1.03 * n * (error + 2.3 * _U) + _TINY

    # The terms without powers: their exponents are at most 41 and their phases at most 9, so that their relative error
    # is at most 256 u. Over all integers k, the sum of |t + i w_k|^-2 / T is coth(t T / 2) / 2 t, and t T >= 30.
    phases = tau * tau * t * frequencies
    damping = np.exp(-((tau * frequencies) ** 2) / 2) * (np.cos(phases) + 1j * np.sin(phases))
    conjugates = t - 1j * frequencies
    terms = (powers * damping * conjugates * conjugates).real / (t**2 + frequencies**2) ** 2
    total = step / (2 * math.pi) * (2 * float(terms.sum()) - float(terms[0]))
    sum_error = 0.51 / t * (power_error + 1.02 * (256 + n_terms + 8) * _U)
    last = float(frequencies[-1])
    left_out = 1.02 * math.exp(-((tau * last) ** 2) / 2) / (math.pi * last)  # 2/T times the integral of w^-2

    # (1 + eta)^n for the weights, and 2e-12 for the last operations, with a logarithm of at most 700
    eta = (float(t * np.abs(values).max()) + 16) * _U
    exponent_of_mean = n * math.log(mean) + (tau * t) ** 2 / 2 + n * eta + 2e-12
    if exponent_of_mean > 700:
        return math.inf
    return max(_TINY, math.exp(exponent_of_mean) * (max(total, 0.0) + sum_error + left_out) / n)


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """Return the power of each element, by at most 2 log2(exponent) products."""
    result = base
    for bit in bin(exponent)[3:]:
        result = result * result
        if bit == "1":
            result = result * base
    return result
