"""Compiled loops over report ids: fingerprints, their distribution into buckets, and the search for repeats."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from clustering.kernels.counting import TAKEN

BLOCK = 256  # fingerprints per allocation of a bucket


def _product(typing: Any, a: Any, b: Any) -> Any:  # noqa: ARG001 - required by numba
    """Return the exclusive or of both halves of the 128-bit product of two words. Numba has no 128-bit integers."""

    def generate(context: Any, builder: Any, signature: Any, words: Any) -> Any:  # noqa: ARG001
        word = words[0].type
        pair = type(word)(2 * word.width)
        product = builder.mul(builder.zext(words[0], pair), builder.zext(words[1], pair))
        high = builder.trunc(builder.lshr(product, pair(word.width)), word)
        return builder.xor(builder.trunc(product, word), high)

    return types.uint64(types.uint64, types.uint64), generate


_multiply = cast(Callable[[np.uint64, np.uint64], np.uint64], intrinsic(_product))


@njit(cache=True, nogil=True)
def load_word(octets: NDArray[np.uint8], at: np.uint64) -> np.uint64:  # IN, flat; LLVM merges the loads
    """Return the 64-bit word at a position, little-endian."""
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
    mixed = _multiply(load_word(octets, at) ^ keys[0], load_word(octets, at + np.uint64(8)) ^ keys[1])
    return _multiply(mixed ^ keys[2], np.uint64(0x9E3779B97F4A7C15))  # 2^64 over the golden ratio


@njit(cache=True, nogil=True)
def _bucket(word: np.uint64, begin: np.uint64, n_buckets: np.uint64) -> np.uint64:
    """Return the bucket relative to the range's first. Before the range, it wraps around to a number beyond it."""
    return (((word >> np.uint64(32)) * n_buckets) >> np.uint64(32)) - begin


@njit(cache=True, nogil=True)
def pick(
    records: NDArray[np.uint8],  # IN (n, width); each begins with its id
    keys: NDArray[np.uint64],  # IN (3,)
    begin: np.uint64,
    n_own: np.uint64,
    n_buckets: np.uint64,
    picked: NDArray[np.uint8],  # OUT (n, width)
) -> int:
    """Copy the records in a range of buckets. Return their number."""
    octets, into, width = records.reshape(-1), picked.reshape(-1), np.uint64(records.shape[1])
    n_octets = np.uint64(0)
    for i in range(records.shape[0]):  # no branch on the bucket, because it could not be predicted
        start = np.uint64(i) * width
        bucket = _bucket(_fingerprint(octets, start, keys), begin, n_buckets)
        for begun in range(0, width, 8):
            at = min(np.uint64(begun), width - np.uint64(8))
            word = load_word(octets, start + at)
            for byte in range(8):  # LLVM merges the stores
                into[n_octets + at + np.uint64(byte)] = np.uint8(word >> np.uint64(8 * byte))
        n_octets += width * np.uint64(bucket < n_own)
    return int(n_octets // width)


@njit(cache=True, nogil=True)
def scatter(
    records: NDArray[np.uint8],  # IN (n, width); each begins with its id, which is in the range
    statuses: NDArray[np.uint8],  # IN (n,)
    keys: NDArray[np.uint64],  # IN (3,)
    begin: np.uint64,
    n_buckets: np.uint64,
    pool: NDArray[np.uint64],  # IN OUT (n_blocks BLOCK,), large enough for all records
    at: NDArray[np.uint64],  # IN OUT (n_own,), next free position of each bucket
    owner: NDArray[np.int64],  # IN OUT (n_blocks,), the bucket of each block
    n_blocks: int,  # IN, blocks with an owner
) -> int:
    """Append the fingerprints of ids to their buckets. Return the number of used blocks."""
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    for i in range(records.shape[0]):
        if statuses[i] == TAKEN:
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
    blocks: NDArray[np.int64],  # IN (n,), all blocks of one bucket
    at: np.uint64,  # next free position of the bucket; all other blocks are full
    words: NDArray[np.uint64],  # OUT (n BLOCK,)
) -> int:
    """Copy the fingerprints of a bucket into one array. Return their number."""
    n_words = np.uint64(0)
    for block in blocks:
        start = np.uint64(block) * np.uint64(BLOCK)
        is_last = start == at // np.uint64(BLOCK) * np.uint64(BLOCK)
        for i in range(at - start if is_last else np.uint64(BLOCK)):
            words[n_words + np.uint64(i)] = pool[start + np.uint64(i)]
        n_words += at - start if is_last else np.uint64(BLOCK)
    return int(n_words)


@njit(cache=True, nogil=True)
def find_repeated(
    words: NDArray[np.uint64],  # IN (n,)
    tags: NDArray[np.uint32],  # scratch; its size is a power of two, at least 2 n
    found: NDArray[np.uint64],  # OUT (n,)
) -> int:
    """Find the fingerprints that occurred before. A fingerprint that occurs three times is found twice.

    The first loop has no unpredictable branch. It collects the few fingerprints with a taken entry, and the second
    loop examines them. Return the number found.
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
    bits: NDArray[np.uint64],  # IN OUT; its size is a power of two
) -> None:
    """Set the filter bit of each suspected fingerprint."""
    mask = np.uint64(64 * bits.size - 1)
    for word in suspected:
        bits[(word & mask) >> np.uint64(6)] |= np.uint64(1) << (word & np.uint64(63))


@njit(cache=True, nogil=True)
def find_suspects(
    records: NDArray[np.uint8],  # IN (n, width); each begins with its id
    statuses: NDArray[np.uint8],  # IN (n,)
    keys: NDArray[np.uint64],  # IN (3,)
    bits: NDArray[np.uint64],  # IN; filter from `mark`
    chosen: NDArray[np.int64],  # OUT (n,)
) -> int:
    """Find the reports with status TAKEN and a fingerprint with a set filter bit. Return their number."""
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    mask, n_chosen = np.uint64(64 * bits.size - 1), np.uint64(0)
    for i in range(records.shape[0]):
        word = _fingerprint(octets, np.uint64(i) * width, keys)
        is_set = bits[(word & mask) >> np.uint64(6)] >> (word & np.uint64(63)) & np.uint64(1)
        chosen[n_chosen] = i
        n_chosen += np.uint64((statuses[i] == TAKEN) & (is_set != 0))
    return int(n_chosen)
