"""Seeded randomness: entropy for simulations, and public random numbers for fits and random projections.

Devices and the service draw privacy noise from the operating system instead (`sfumato.privacy.entropy`).
"""

import numpy as np
from numpy.typing import NDArray

_STREAM = 0x5F756D61  # separates simulated devices' randomness from points drawn with the same seed


class SeededEntropy:
    """A seeded source of random words (PCG64) for simulations and tests."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64([_STREAM, seed])

    def words(self, n: int) -> NDArray[np.uint64]:
        """Draw `n` words, uniform in [0, 2**64), as an ndarray of shape (n,), uint64."""
        return np.asarray(self._bits.random_raw(n), dtype=np.uint64)


class PublicWords:
    """Uniform numbers from a public seed.

    They come from raw PCG64 words, which are the same in every version of numpy. They choose public
    values only, such as projection frequencies and the starting points of fits.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Draw numbers in [0, 1), multiples of 2^-53, as a float64 ndarray of the given shape."""
        words = np.asarray(self._bits.random_raw(int(np.prod(shape))), dtype=np.uint64)
        return np.asarray((words >> np.uint64(11)) * 2.0**-53, dtype=np.float64).reshape(shape)
