"""Loops over report ids: their fingerprints into buckets, and which of them came twice."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from clustering.kernels.tally import TAKEN

BLOCK = 256  # fingerprints that a bucket takes room for at once


def _product(typing: Any, a: Any, b: Any) -> Any:  # noqa: ARG001 - as numba calls it
    """Both halves of the product of two words, one laid over the other: numba has no such integers of its own."""

    def generate(context: Any, builder: Any, signature: Any, words: Any) -> Any:  # noqa: ARG001
        word = words[0].type
        pair = type(word)(2 * word.width)
        product = builder.mul(builder.zext(words[0], pair), builder.zext(words[1], pair))
        high = builder.trunc(builder.lshr(product, pair(word.width)), word)
        return builder.xor(builder.trunc(product, word), high)

    return types.uint64(types.uint64, types.uint64), generate


_multiplied = cast(Callable[[np.uint64, np.uint64], np.uint64], intrinsic(_product))


@njit(cache=True, nogil=True)
def _word(octets: NDArray[np.uint8], at: np.uint64) -> np.uint64:  # IN, flat; its compiler makes one load of it
    return (
        np.uint64(octets[at])
        | np.uint64(octets[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(octets[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(octets[at + np.uint64(3)]) << np.uint64(24)
        | np.uint64(octets[at + np.uint64(4)]) << np.uint64(32)
        | np.uint64(octets[at + np.uint64(5)]) << np.uint64(40)
        | np.uint64(octets[at + np.uint64(6)]) << np.uint64(48)
        | np.uint64(octets[at + np.uint64(7)]) << np.uint64(56)
    )


@njit(cache=True, nogil=True)
def _fingerprint(octets: NDArray[np.uint8], at: np.uint64, keys: NDArray[np.uint64]) -> np.uint64:
    folded = _multiplied(_word(octets, at) ^ keys[0], _word(octets, at + np.uint64(8)) ^ keys[1])
    return _multiplied(folded ^ keys[2], np.uint64(0x9E3779B97F4A7C15))  # 2^64 over the golden ratio


@njit(cache=True, nogil=True)
def _bucket(word: np.uint64, begin: np.uint64, n_buckets: np.uint64) -> np.uint64:
    """Counted from the share's first; where it lies before that, a number beyond all."""
    return (((word >> np.uint64(32)) * n_buckets) >> np.uint64(32)) - begin


@njit(cache=True, nogil=True)
def pick(
    records: NDArray[np.uint8],  # IN (n, width), which begin with their ids
    keys: NDArray[np.uint64],  # IN (3,)
    begin: np.uint64,
    n_own: np.uint64,
    n_buckets: np.uint64,
    picked: NDArray[np.uint8],  # OUT (n, width)
) -> int:
    """Copy the records whose ids are of a share; returns how many."""
    octets, into, width = records.reshape(-1), picked.reshape(-1), np.uint64(records.shape[1])
    n_octets = np.uint64(0)
    for i in range(records.shape[0]):  # no branch in here: whose share an id is of, nobody can guess
        start = np.uint64(i) * width
        bucket = _bucket(_fingerprint(octets, start, keys), begin, n_buckets)
        for begun in range(0, width, 8):
            at = min(np.uint64(begun), width - np.uint64(8))
            word = _word(octets, start + at)
            for byte in range(8):  # its compiler makes one store of them
                into[n_octets + at + np.uint64(byte)] = np.uint8(word >> np.uint64(8 * byte))
        n_octets += width * np.uint64(bucket < n_own)
    return int(n_octets // width)


@njit(cache=True, nogil=True)
def scatter(
    records: NDArray[np.uint8],  # IN (n, width), which begin with their ids, all of the share
    said: NDArray[np.uint8],  # IN (n,)
    keys: NDArray[np.uint64],  # IN (3,)
    begin: np.uint64,
    n_buckets: np.uint64,
    pool: NDArray[np.uint64],  # IN OUT (n_blocks BLOCK,), room for all that may come
    at: NDArray[np.uint64],  # IN OUT (n_own,), where each bucket goes on
    owner: NDArray[np.int64],  # IN OUT (n_blocks,), whose each block is
    n_blocks: int,  # IN, that have an owner
) -> int:
    """Put the fingerprints of ids into their buckets; returns how many blocks are taken."""
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    for i in range(records.shape[0]):
        if said[i] == TAKEN:
            word = _fingerprint(octets, np.uint64(i) * width, keys)
            bucket = _bucket(word, begin, n_buckets)
            place = at[bucket]
            pool[place] = word
            place += np.uint64(1)
            if place % np.uint64(BLOCK) == 0:
                owner[n_blocks] = np.int64(bucket)
                place = np.uint64(n_blocks) * np.uint64(BLOCK)
                n_blocks += 1
            at[bucket] = place
    return n_blocks


@njit(cache=True, nogil=True)
def gather(
    pool: NDArray[np.uint64],  # IN (n_blocks BLOCK,)
    blocks: NDArray[np.int64],  # IN (n,), all of one bucket
    at: np.uint64,  # where it would go on: in one of them, the others are full
    words: NDArray[np.uint64],  # OUT (n BLOCK,), its fingerprints
) -> int:
    """The fingerprints of a bucket, one after the other; returns how many."""
    n_words = np.uint64(0)
    for block in blocks:
        start = np.uint64(block) * np.uint64(BLOCK)
        is_last = start == at // np.uint64(BLOCK) * np.uint64(BLOCK)
        for i in range(at - start if is_last else np.uint64(BLOCK)):
            words[n_words + np.uint64(i)] = pool[start + np.uint64(i)]
        n_words += at - start if is_last else np.uint64(BLOCK)
    return int(n_words)


@njit(cache=True, nogil=True)
def look_twice(
    words: NDArray[np.uint64],  # IN (n,)
    tags: NDArray[np.uint32],  # scratch, a power of two of places, at least 2 n
    found: NDArray[np.uint64],  # OUT (n,)
) -> int:
    """Which fingerprints came before; returns how many, and of what came three times there are two.

    The few whose place is taken wait for a second look: in the first nothing has to be guessed.
    """
    mask, none = np.uint64(tags.size - 1), np.uint32(0)
    tags[:] = none
    n_over = np.uint64(0)
    for word in words:
        place = word & mask
        is_free = tags[place] == none
        tags[place] = _tag(word) if is_free else tags[place]
        found[n_over] = word
        n_over += np.uint64(not is_free)
    n_found = np.uint64(0)
    for i in range(n_over):
        word = found[np.uint64(i)]
        place, tag = word & mask, _tag(word)
        while tags[place] != none and tags[place] != tag:
            place = (place + np.uint64(1)) & mask
        if tags[place] == tag:
            found[n_found] = word
            n_found += np.uint64(1)
        tags[place] = tag
    return int(n_found)


@njit(cache=True, nogil=True)
def _tag(word: np.uint64) -> np.uint32:
    return np.uint32(word >> np.uint64(22)) | np.uint32(1)


@njit(cache=True, nogil=True)
def mark(
    suspected: NDArray[np.uint64],  # IN (n,)
    bits: NDArray[np.uint64],  # IN OUT, a power of two of words
) -> None:
    """Set the bit of each fingerprint."""
    mask = np.uint64(64 * bits.size - 1)
    for word in suspected:
        bits[(word & mask) >> np.uint64(6)] |= np.uint64(1) << (word & np.uint64(63))


@njit(cache=True, nogil=True)
def suspects(
    records: NDArray[np.uint8],  # IN (n, width), which begin with their ids
    said: NDArray[np.uint8],  # IN (n,)
    keys: NDArray[np.uint64],  # IN (3,)
    bits: NDArray[np.uint64],  # IN, a power of two of words: `mark`
    chosen: NDArray[np.int64],  # OUT (n,)
) -> int:
    """Which reports that are taken have a fingerprint whose bit is set; returns how many."""
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    mask, n_chosen = np.uint64(64 * bits.size - 1), np.uint64(0)
    for i in range(records.shape[0]):
        word = _fingerprint(octets, np.uint64(i) * width, keys)
        is_set = bits[(word & mask) >> np.uint64(6)] >> (word & np.uint64(63)) & np.uint64(1)
        chosen[n_chosen] = i
        n_chosen += np.uint64((said[i] == TAKEN) & (is_set != 0))
    return int(n_chosen)
