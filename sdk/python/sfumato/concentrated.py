"""Zero-concentrated differential privacy: what a rho is worth in (epsilon, delta), bounded so that no digit flatters.

Answers with Gaussian noise are charged rho, whose sums are exact; a whole block of them is one
charge of (epsilon, delta). By Canonne, Kamath and Steinke 2020, "The discrete Gaussian for
differential privacy", corollary 13, what satisfies rho-concentrated privacy satisfies
(epsilon, delta) with

    delta = exp((a - 1)(a rho - epsilon)) / (a - 1) (1 - 1/a)^a      for each a > 1.

Solved for rho: each a > 1 shows that

    rho(a) = (epsilon (a - 1) + ln delta + a ln a - (a - 1) ln(a - 1)) / (a (a - 1))

is covered. For a fixed rho the logarithm of the right hand side above is convex in a, so rho(a)
rises to one peak and falls. The peak is sought by bisection; wherever the search ends, rho there
is taken from below, so that no error of the search or of rounding can overstate it.
"""

from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from functools import lru_cache

from sfumato.accounting import ATTO, NANO
from sfumato.errors import InvalidSpec

PICO = 1_000_000_000_000  # pico-rho in one rho

_DIGITS = 80
_SEARCHED = (Decimal(-20), Decimal(30))  # ln(a - 1), beyond what any epsilon and delta that are allowed have
_THIRDS = 80  # each leaves two of three parts, all 2^-46 of what was searched


@lru_cache(maxsize=256)
def rho_of(epsilon_nano: int, delta_atto: int) -> int:
    """The largest rho that (epsilon, delta) pays for.

    Parameters
    ----------
    epsilon_nano : int
        At least 1.
    delta_atto : int
        In 1 .. 10^18 - 1.

    Returns
    -------
    int
        Pico-rho, rounded down: rho-concentrated privacy implies (epsilon, delta). 0 where less
        than one pico-rho is covered.

    Raises
    ------
    InvalidSpec
        Nothing to pay with.
    """
    if epsilon_nano < 1 or not 0 < delta_atto < ATTO:
        raise InvalidSpec("concentrated privacy takes an epsilon above 0 and a delta between 0 and 1")
    # floor makes every operation a lower bound; a logarithm is the nearest number whatever the rounding
    with localcontext(Context(prec=_DIGITS, rounding=ROUND_FLOOR)):
        epsilon = Decimal(epsilon_nano) / NANO
        log_delta = (Decimal(delta_atto) / ATTO).ln().next_minus()
        low, high = _SEARCHED
        for _ in range(_THIRDS):
            left, right = low + (high - low) / 3, high - (high - low) / 3
            if _covered(epsilon, log_delta, left) < _covered(epsilon, log_delta, right):
                low = left
            else:
                high = right
        return max(0, int((_covered(epsilon, log_delta, low) * PICO).to_integral_value(ROUND_FLOOR)))


def _covered(epsilon: Decimal, log_delta: Decimal, place: Decimal) -> Decimal:
    """rho(a) from below, at a - 1 near e^place: in the caller's context, which rounds down."""
    beyond = place.exp().quantize(Decimal("1e-20"))  # a - 1; a few digits, so that products of it are exact
    a = 1 + beyond
    gain = a * a.ln().next_minus() + -beyond * beyond.ln().next_plus()
    return (epsilon * beyond + log_delta + gain) / (a * beyond)
