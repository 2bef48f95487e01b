"""Coins and choices of exact probability, made of integers alone: what exact noise is drawn with.

The coin of probability exp(-a/b) is that of Canonne, Kamath and Steinke 2020 ("The discrete
Gaussian for differential privacy", algorithm 1). `..._many` toss for n at once, in vectors.
"""

import numpy as np
from numpy.typing import NDArray

from sfumato.entropy import Entropy, below, below_many


def pick(entropy: Entropy, bound: int) -> int:
    """Uniform in 0 .. bound-1; where there is one choice no word is drawn."""
    return 0 if bound == 1 else below(entropy, bound)


def pick_many(entropy: Entropy, bound: int, n: int) -> NDArray[np.int64]:
    """What `pick` draws, n times: int64 of shape (n,)."""
    return np.zeros(n, dtype=np.int64) if bound == 1 or n == 0 else below_many(entropy, bound, n)


def bernoulli_exp(a: int, b: int, entropy: Entropy) -> bool:
    """A coin of probability exp(-a/b), 0 <= a <= b: the k-th coin of a/(k b) is one of a/b and one of 1/k."""
    k = 1
    while pick(entropy, b) < a and pick(entropy, k) == 0:
        k += 1
    return k % 2 == 1


def bernoulli_exp_many(a: NDArray[np.int64], b: int, entropy: Entropy) -> NDArray[np.bool_]:
    """What `bernoulli_exp` tosses, for each a: bool of shape (n,)."""
    odd = np.zeros(len(a), dtype=np.bool_)
    going = np.arange(len(a))
    k = 1
    while going.size:
        goes_on = pick_many(entropy, b, going.size) < a[going]
        goes_on[goes_on] = pick_many(entropy, k, int(goes_on.sum())) == 0
        odd[going[~goes_on]] = k % 2 == 1
        going = going[goes_on]
        k += 1
    return odd
