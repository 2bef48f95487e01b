"""e^x between two fractions, by its series: a second opinion that shares nothing with the code."""

from fractions import Fraction


def exp_bounds(x: Fraction) -> tuple[Fraction, Fraction]:
    """(low, high) with low <= e^x <= high, 1e-80 apart in relation to their size; 0 <= x <= 64."""
    bits = 512
    scale = 1 << bits
    numerator, denominator = x.numerator, x.denominator
    low_term = high_term = scale
    low = high = scale
    n = 0
    while n < 2 * x or high_term > 1:
        n += 1
        low_term = low_term * numerator // (denominator * n)
        high_term = -(-high_term * numerator // (denominator * n))
        low += low_term
        high += high_term
    high += 2 * high_term  # from there on each term is less than half the one before
    return Fraction(low, scale), Fraction(high, scale)
