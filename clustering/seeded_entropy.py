"""Seeded randomness, for simulations alone: neither a device nor a curator's service ever sees it."""

import numpy as np
from numpy.typing import NDArray

_STREAM = 0x5F756D61  # keeps the devices' coins apart from points that were drawn with the same seed


class SeededEntropy:
    """Words from a seeded PCG64: for simulation only, never on a device."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64([_STREAM, seed])

    def words(self, n: int) -> NDArray[np.uint64]:
        """Draw `n` words, each uniform in [0, 2**64): ndarray of shape (n,), uint64."""
        return np.asarray(self._bits.random_raw(n), dtype=np.uint64)
