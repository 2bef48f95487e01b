"""How a central algorithm divides its epsilon: whole nano-epsilon whose parts add up to all of it."""

from fractions import Fraction
from itertools import pairwise

from sfumato.errors import InvalidSpec

Weight = int | Fraction


def split(epsilon_nano: int, *weights: Weight) -> tuple[int, ...]:
    """Divide an epsilon in proportion to weights, none of it lost or made.

    Each part is within one nano-epsilon of its proportion. It depends on public numbers alone,
    so an algorithm divides everything before its first question: what cannot be divided is
    refused before anything is drawn.

    Parameters
    ----------
    epsilon_nano : int
    *weights : int or Fraction
        Positive, exact (a float's proportions would be another machine's).

    Returns
    -------
    tuple of int
        Nano-epsilon, one for each weight, at least 1 each, of sum `epsilon_nano`.

    Raises
    ------
    InvalidSpec
        A part would be less than one nano-epsilon.
    """
    total = sum(weights)
    ends = [0]
    so_far: Weight = 0
    for weight in weights:
        so_far += weight
        ends.append(int(epsilon_nano * so_far // total))
    parts = tuple(high - low for low, high in pairwise(ends))
    if min(parts) < 1:
        raise InvalidSpec(f"an epsilon of {epsilon_nano} nano is too small to be divided into {len(parts)} questions")
    return parts


def halving(epsilon_nano: int, steps: int) -> tuple[int, ...]:
    """Half of it, half of what is left, and so on; the last of the steps takes what is left. Raises InvalidSpec.

    (Blum et al. 2005 as paper 003 has it; there the last step too takes half, so that the
    rest is never used.)
    """
    return split(epsilon_nano, *(1 << (steps - 2 - t) for t in range(steps - 1)), 1)
