"""Neighbours chosen to hurt: datasets that differ by one person, each where a careless curator would tell.

Records are lattice places. A pair's `more` holds one record more than its `less`, or all records
of one user more; each is taken as the data in turn, so that adding and removing are both looked at.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clustering.curator import Records
from sfumato.specs import LATTICE

LAST, MIDDLE = LATTICE - 1, LATTICE // 2
MANY = 5  # records of one user, where a user has several
CROWD = 24  # records of the others: few, so that one more weighs


class Pair(NamedTuple):
    """Two neighbours.

    Attributes
    ----------
    name : str
        What of it hurts.
    more, less : Records
        With a person, and without.
    """

    name: str
    more: Records
    less: Records


def pairs(n_features: int) -> tuple[Pair, ...]:
    """All pairs in so many features.

    - *nobody, one record*: whatever divides by a count, or asks nothing of an empty dataset.
    - *an empty cluster*: the one record of the upper half, in the middle of it: whether a cluster is
      empty is what its record is.
    - *a tie at a border*: at the lattice place where every halved cell and every pair of centres
      about the middle part, and one below it.
    - *one far point*: at the corner across from all others: least and largest, spread, the widest
      cluster and the longest residual change at once.
    - *off the centre*: everybody in a small box at the upper corner, where a coordinate is far longer
      than a residual.
    - *all equal*: every distance is zero, so that nothing can be divided by one.
    - *at the lattice's ends*: corners in turn, the record at the head, so that places in a list move.
    - *two of a size*: clusters of equal number and spread; one more decides which is the wider one.
    - *one of few*: two records, fewer than clusters.
    - *a user's records in one corner*, *a user's records everywhere*: all that one user may have,
      where a sum moves the farthest, and where most cells change.
    - *one record of a user*: the bound is more than is held.
    """
    d = n_features
    rng = np.random.default_rng(d)  # public: the same pairs in every run
    scattered = rng.integers(0, LATTICE, (CROWD, d))
    tight = np.full((CROWD, d), LATTICE // 8) + rng.integers(0, LATTICE // 64, (CROWD, d))
    offset = rng.integers(0, LATTICE // 32, (CROWD // 2, d))
    ends = LAST * ((np.arange(CROWD)[:, None] >> (np.arange(d) % 4)) & 1)
    border = MIDDLE - (np.arange(CROWD) % 2)[:, None] * np.ones(d, dtype=np.int64)
    aside = np.where(np.arange(d) == 0, 3 * LATTICE // 4, MIDDLE)
    corner, middle = np.full(d, LAST), np.full(d, MIDDLE)
    nobody = np.zeros((0, d))
    everywhere = np.linspace(0, LAST, MANY)[:, None] * np.ones(d)
    return (
        _pair("nobody", nobody, middle),
        _pair("one record", nobody, corner),
        _pair("an empty cluster", tight, aside),
        _pair("a tie at a border", border, middle),
        _pair("one far point", tight, corner),
        _pair("off the centre", LAST - tight + LATTICE // 8, corner),
        _pair("all equal", np.repeat(middle[None], CROWD, axis=0), middle),
        _pair("at the lattice's ends", ends, np.where(np.arange(d) % 2, 0, LAST), at_head=True),
        _pair("two of a size", np.concatenate([offset, LAST - offset]), LAST - offset[0]),
        _pair("one of few", scattered[:2], scattered[2]),
        _pair("a user's records in one corner", scattered, np.repeat(corner[None], MANY, axis=0), MANY),
        _pair("a user's records everywhere", scattered, everywhere, MANY, at_head=True),
        _pair("one record of a user", tight, corner, MANY),
    )


def _pair(name: str, others: ArrayLike, one: ArrayLike, max_per_user: int = 1, *, at_head: bool = False) -> Pair:
    others, person = _places(others), np.atleast_2d(_places(one))
    more = np.concatenate([person, others] if at_head else [others, person])
    return Pair(name, Records(more, max_per_user), Records(others, max_per_user))


def _places(places: ArrayLike) -> NDArray[np.int32]:
    return np.asarray(np.clip(places, 0, LAST), dtype=np.int32)
