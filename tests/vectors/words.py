"""Words for the vectors: some chosen at the borders, then a reproducible stream."""

import hashlib

import numpy as np
from numpy.typing import NDArray

WORD_BYTES = 8


class PlannedEntropy:
    """The words given, then those of SHAKE-256 over a label; keeps all that were drawn."""

    def __init__(self, label: str, first: tuple[int, ...] = ()) -> None:
        self._hash = hashlib.shake_256(label.encode())
        self._first = first
        self.drawn: list[int] = []

    def words(self, n: int) -> NDArray[np.uint64]:
        end = len(self.drawn) + n
        stream = np.frombuffer(self._hash.digest(WORD_BYTES * end), dtype="<u8").tolist()
        words = [self._first[at] if at < len(self._first) else stream[at] for at in range(len(self.drawn), end)]
        self.drawn += words
        return np.array(words, dtype=np.uint64)

    @property
    def hex(self) -> str:
        """Everything drawn so far: eight little-endian bytes a word, in hex."""
        return b"".join(word.to_bytes(WORD_BYTES, "little") for word in self.drawn).hex()


def words_of(entropy: str) -> list[int]:
    """The words of such a text."""
    raw = bytes.fromhex(entropy)
    return [int.from_bytes(raw[at : at + WORD_BYTES], "little") for at in range(0, len(raw), WORD_BYTES)]
