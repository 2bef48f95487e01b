"""Characters of categories in public waves, chosen from public facts alone.

A wave with character a turns by a c / m for category c of m. The average turn of a cluster's people is the value of the
discrete Fourier transform of its category shares at a. Waves with one attribute determine the shares of that attribute
in each cluster if the clusters' places differ. Clusters with one place need waves with two or three attributes, which
show how the categories occur together. Each further attribute lowers the signal of a wave, so some waves have none.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from clustering.random import PublicWords

# number of attributes in each wave of a block of consecutive waves, by the number of attributes
_BLOCKS = {1: (0, 1), 2: (0, 1, 2)}
_BLOCK = (0, 0, 0, 1, 1, 1, 2, 2, 3, 3)  # with three attributes or more


def characters_for(n_waves: int, categories: Sequence[int], words: PublicWords) -> NDArray[np.int64]:
    """Return the character of each attribute in each wave, 0 where the wave leaves the attribute out.

    Waves are in the order of their frequencies. Each block of consecutive waves has each number of attributes as
    often, in random order. Sets of attributes of one size are equally frequent, and so are the characters from 1 on of
    one attribute.

    Parameters
    ----------
    n_waves : int
    categories : sequence of int
        Number of categories m of each attribute, at least 2.
    words : PublicWords

    Returns
    -------
    ndarray of shape (n_waves, n_attributes), int64, each below m
    """
    n_attributes = len(categories)
    block = np.array(_BLOCKS.get(n_attributes, _BLOCK))
    n_blocks = -(-n_waves // len(block))
    order = np.argsort(words.uniform(n_blocks, len(block)), axis=1, kind="stable")
    per_wave = block[order].ravel()[:n_waves]
    characters = np.zeros((n_waves, n_attributes), dtype=np.int64)
    for size in range(1, block.max() + 1):
        waves, sets = np.flatnonzero(per_wave == size), np.array([*combinations(range(n_attributes), size)])
        characters[waves[:, None], sets[_permutation(len(waves), words) % len(sets)]] = 1
    for place, m in enumerate(categories):
        waves = np.flatnonzero(characters[:, place])
        characters[waves, place] += _permutation(len(waves), words) % (m - 1)
    return characters


def _permutation(n: int, words: PublicWords) -> NDArray[np.int64]:
    return np.argsort(words.uniform(n), kind="stable")
