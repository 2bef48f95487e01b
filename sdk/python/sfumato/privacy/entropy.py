"""Random numbers of a device, from the words of the operating system.

Everything random a device does is made of 64-bit words drawn here and compared as
integers. The seam is the `Entropy` protocol, so that published test vectors can replay
words; nothing in this package can be seeded.

Coins and choices of exact probability, made of integers alone: what exact noise is drawn with.

The coin of probability exp(-a/b) is that of Canonne, Kamath and Steinke 2020 ("The discrete
Gaussian for differential privacy", algorithm 1). `..._many` toss for n at once, in vectors.
"""

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

WORD_SPAN = 1 << 64


class Entropy(Protocol):
    """A source of uniform, independent 64-bit words."""

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return `n` words, each uniform in [0, 2**64): ndarray of shape (n,), uint64."""


class SystemEntropy:
    """A source of words from the operating system's cryptographic generator."""

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return `n` words, each uniform in [0, 2**64): ndarray of shape (n,), uint64."""
        return np.frombuffer(os.urandom(8 * n), dtype="<u8").astype(np.uint64, copy=False)


def word(entropy: Entropy) -> int:
    """Return one word."""
    return int(entropy.words(1)[0])


def below(entropy: Entropy, bound: int) -> int:
    """Return an exactly uniform number 0 .. bound-1, by rejection.

    The words are cut into `bound` runs of equal length; a word past the last run is
    drawn again.
    """
    run = WORD_SPAN // bound
    while True:
        choice = word(entropy) // run
        if choice < bound:
            return choice


def below_many(entropy: Entropy, bound: int, n: int) -> NDArray[np.int64]:
    """Return `n` uniform numbers 0 .. bound-1: ndarray of shape (n,), int64.

    `bound` lies in 1 .. 2**63. Rejected places are drawn again until none is left.
    """
    if bound == 1:  # 2**64 exceeds uint64
        entropy.words(n)
        return np.zeros(n, dtype=np.int64)
    run = np.uint64(WORD_SPAN // bound)
    choices = entropy.words(n) // run
    while True:
        (again,) = np.nonzero(choices >= np.uint64(bound))
        if again.size == 0:
            return choices.astype(np.int64)
        choices[again] = entropy.words(again.size) // run


def pick(entropy: Entropy, bound: int) -> int:
    """Return a uniform number 0 .. bound-1. A bound of 1 draws no word."""
    return 0 if bound == 1 else below(entropy, bound)


def pick_many(entropy: Entropy, bound: int, n: int) -> NDArray[np.int64]:
    """Return n uniform numbers as `pick` does: int64 of shape (n,)."""
    return np.zeros(n, dtype=np.int64) if bound == 1 or n == 0 else below_many(entropy, bound, n)


def bernoulli_exp(a: int, b: int, entropy: Entropy) -> bool:
    """Return True with probability exp(-a/b), 0 <= a <= b, from samples of probability a/b and 1/k."""
    k = 1
    while pick(entropy, b) < a and pick(entropy, k) == 0:
        k += 1
    return k % 2 == 1


def bernoulli_exp_many(a: NDArray[np.int64], b: int, entropy: Entropy) -> NDArray[np.bool_]:
    """Return samples as `bernoulli_exp` does, one for each a: bool of shape (n,)."""
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
