"""The only source of randomness on a device: words from the operating system.

Everything random a device does is made of 64-bit words drawn here and compared as
integers. The seam is the `Entropy` protocol, so that published test vectors can replay
words; nothing in this package can be seeded.
"""

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

WORD_SPAN = 1 << 64


class Entropy(Protocol):
    """Uniform, independent 64-bit words."""

    def words(self, n: int) -> NDArray[np.uint64]:
        """Draw `n` words, each uniform in [0, 2**64): ndarray of shape (n,), uint64."""


class SystemEntropy:
    """Words from the operating system's cryptographic generator."""

    def words(self, n: int) -> NDArray[np.uint64]:
        """Draw `n` words, each uniform in [0, 2**64): ndarray of shape (n,), uint64."""
        return np.frombuffer(os.urandom(8 * n), dtype="<u8").astype(np.uint64, copy=False)


def word(entropy: Entropy) -> int:
    """Draw one word."""
    return int(entropy.words(1)[0])


def below(entropy: Entropy, bound: int) -> int:
    """Draw uniformly from 0 .. bound-1, exactly: by rejection, without a remainder.

    The words are cut into `bound` runs of equal length; a word past the last run is
    drawn again.
    """
    run = WORD_SPAN // bound
    while True:
        choice = word(entropy) // run
        if choice < bound:
            return choice


def below_many(entropy: Entropy, bound: int, n: int) -> NDArray[np.int64]:
    """Draw `n` times what `below` draws once: ndarray of shape (n,), int64.

    `bound` lies in 1 .. 2**63. Rejected places are drawn again until none is left.
    """
    if bound == 1:  # the one run is all of 2**64, which a uint64 cannot hold
        entropy.words(n)
        return np.zeros(n, dtype=np.int64)
    run = np.uint64(WORD_SPAN // bound)
    choices = entropy.words(n) // run
    while True:
        (again,) = np.nonzero(choices >= np.uint64(bound))
        if again.size == 0:
            return choices.astype(np.int64)
        choices[again] = entropy.words(again.size) // run
