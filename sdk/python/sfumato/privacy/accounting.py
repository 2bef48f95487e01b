"""Privacy costs as integers in nano-epsilon and atto-delta, without state.

An epsilon is an integer number of nano-epsilon, a delta one of atto-delta, wherever it is
stored, added or compared; a decimal number only where a person types or reads it.
"""

import re
from collections.abc import Iterable
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation, localcontext
from fractions import Fraction

from sfumato.errors import InvalidDelta, InvalidEpsilon, InvalidSpec
from sfumato.plain import to_plain

NANO = 1_000_000_000
EPSILON_MIN_NANO = 1_000  # 1e-6
EPSILON_MAX_NANO = 32 * NANO  # a larger value would hardly protect the record
ATTO = 10**18
DELTA_MIN_ATTO = 1_000  # 1e-15; smaller values are below the probability of undetected hardware errors
DELTA_MAX_ATTO = ATTO // 1_000  # 1e-3; larger values allow a mechanism that reveals one record in a thousand
DRAW_SPAN = 1 << 64  # number of possible draws, which are 64-bit words

_EPSILON_MIN = Decimal("0.000001")
_EPSILON_MAX = Decimal(32)
_DELTA_MIN = Decimal("1e-15")
_DELTA_MAX = Decimal("0.001")

_DIGITS = 80  # decimal digits of the working precision; 64-bit thresholds need 20
_MAX_TYPED = 64  # maximum length of a number as text
_TYPED = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)  # Decimal takes 1_0 and blanks too


def parse_epsilon(value: int | float | str | Decimal) -> int:
    """Return an epsilon as nano-epsilon.

    Parameters
    ----------
    value : int, float, str or Decimal
        In [1e-6, 32], at most nine decimals. A float is read as it prints
        (0.1 is one tenth); a str has at most 64 characters.

    Returns
    -------
    int
        Nano-epsilon, exactly `value` times 1e9.

    Raises
    ------
    InvalidEpsilon
        Not a number, out of range, or too many decimals.

    Examples
    --------
    >>> from sfumato.privacy.accounting import parse_epsilon
    >>> parse_epsilon(0.1) + parse_epsilon("0.2")
    300000000
    """
    exact = _read(value, "epsilon may have at most nine decimals", "epsilon", InvalidEpsilon)
    if not _EPSILON_MIN <= exact <= _EPSILON_MAX:
        raise InvalidEpsilon("epsilon must lie in [0.000001, 32]")
    nano = Fraction(exact) * NANO  # decimal arithmetic would round a 29th digit away unseen
    if nano.denominator != 1:
        raise InvalidEpsilon("epsilon may have at most nine decimals")
    return nano.numerator


def parse_delta(value: int | float | str | Decimal) -> int:
    """Return a delta as atto-delta.

    Parameters
    ----------
    value : int, float, str or Decimal
        0 (pure differential privacy), or in [1e-15, 1e-3], at most 18 decimals. A float
        is read as it prints (1e-6 is one millionth); a str has at most 64 characters.

    Returns
    -------
    int
        Atto-delta, exactly `value` times 1e18.

    Raises
    ------
    InvalidDelta
        Not a number, out of range, or too many decimals.
    """
    exact = _read(value, "delta may have at most 18 decimals", "delta", InvalidDelta)
    if exact == 0:
        return 0
    if not _DELTA_MIN <= exact <= _DELTA_MAX:
        raise InvalidDelta("delta must be 0 or lie in [1e-15, 1e-3]")
    atto = Fraction(exact) * ATTO
    if atto.denominator != 1:
        raise InvalidDelta("delta may have at most 18 decimals")
    return atto.numerator


def _read(value: int | float | str | Decimal, too_long: str, name: str, error: type[InvalidSpec]) -> Decimal:
    """Return a finite number with the decimals that were written or that print."""
    value = to_plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise error(f"{name} must be a number")
    if isinstance(value, str) and len(value) > _MAX_TYPED:
        raise error(too_long)
    if isinstance(value, str) and _TYPED.fullmatch(value) is None:
        raise error(f"{name} must be a number in the digits 0 to 9, such as 1.5, without spaces")
    try:
        exact = Decimal(repr(float(value)) if isinstance(value, float) else value)
    except (InvalidOperation, ValueError):
        raise error(f"{name} must be a number") from None
    if not exact.is_finite():
        raise error(f"{name} must be finite")
    return exact


def format_epsilon(nano: int) -> str:
    """Return nano-epsilon as a plain decimal: 1_500_000_000 -> '1.5'."""
    sign = "-" if nano < 0 else ""
    whole, rest = divmod(abs(nano), NANO)
    return f"{sign}{whole}" + (f".{rest:09d}".rstrip("0") if rest else "")


def format_delta(atto: int) -> str:
    """Return atto-delta as a short decimal: 0 -> '0', 1_500_000_000_000 -> '1.5e-6'; `parse_delta` reads it back."""
    if atto == 0:
        return "0"
    digits = str(abs(atto))
    fraction = digits[1:].rstrip("0")
    mantissa = digits[0] + (f".{fraction}" if fraction else "")
    exponent = len(digits) - 19  # power of 10, with one digit before the point
    return ("-" if atto < 0 else "") + mantissa + (f"e{exponent}" if exponent else "")


def exp_epsilon(epsilon_nano: int) -> Fraction:
    """Return a lower bound of e^epsilon with 80 digits, as an exact fraction."""
    with localcontext(Context(prec=_DIGITS)):
        return Fraction((Decimal(epsilon_nano) / NANO).exp().next_minus())


def realised_epsilon(ratio: Fraction) -> int:
    """Return the cost of a channel with the largest probability ratio `ratio`.

    Parameters
    ----------
    ratio : Fraction
        Largest P(output | one input) / P(output | another), at least 1.

    Returns
    -------
    int
        The least integer that is >= ln(ratio) in nano-epsilon: never under-charges.
    """
    if ratio < 1:
        raise InvalidEpsilon("a probability ratio must be at least 1")
    if ratio == 1:
        return 0
    with localcontext(Context(prec=_DIGITS)):
        upper = Decimal(ratio.numerator).ln().next_plus() - Decimal(ratio.denominator).ln().next_minus()
        scaled = (upper.next_plus() * NANO).next_plus()
        floor = scaled.to_integral_value(rounding=ROUND_FLOOR)
        return int(floor) if scaled == floor else int(floor) + 1


def cost(rounds: Iterable[tuple[tuple[int, int], int]]) -> int:
    """Return the maximum cost of a collection for one device, in nano-epsilon.

    A device makes one secret uniform draw and answers the rounds with an interval that contains
    it, so rounds with disjoint intervals compose in parallel and overlapping ones in
    sequence.

    Parameters
    ----------
    rounds : iterable of ((lo, hi), epsilon_nano)
        The interval [lo, hi) of draws that answer, 0 <= lo < hi <= 2**64, and the cost.

    Returns
    -------
    int
        The maximum over draws of the sum of the costs of the rounds that hold it.

    Examples
    --------
    Two rounds for disjoint halves of the devices, and a third for all of them:

    >>> from sfumato.privacy.accounting import DRAW_SPAN, NANO, cost
    >>> half = DRAW_SPAN // 2
    >>> cost([((0, half), NANO), ((half, DRAW_SPAN), 2 * NANO), ((0, DRAW_SPAN), NANO)]) / NANO
    3.0
    """
    steps: list[tuple[int, int]] = []
    for (lo, hi), epsilon_nano in rounds:
        steps += [(lo, epsilon_nano), (hi, -epsilon_nano)]
    steps.sort()  # at equal places negative steps come first, because intervals are half open
    highest = running = 0
    for _, step in steps:
        running += step
        highest = max(highest, running)
    return highest
