"""Pairs of neighbouring datasets that are hard for a curator.

Records are lattice places. The dataset `more` of a pair has one record more than `less`, or all records of one user
more. Checks use each of the two as the data, so that they cover adding and removing a person.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clustering.central.queries import Records
from sfumato.specs import LATTICE

LAST, MIDDLE = LATTICE - 1, LATTICE // 2
USER_RECORDS = 5  # largest number of records per user in pairs that add a user
N_OTHERS = 40  # least number of records of other persons; few, so that one more record has a large effect


class Pair(NamedTuple):
    """Two neighbouring datasets.

    Attributes
    ----------
    name : str
        The difficulty of the pair.
    more, less : Records
        The data with a person, and without.
    """

    name: str
    more: Records
    less: Records


def make_pairs(n_features: int, n_others: int = N_OTHERS) -> tuple[Pair, ...]:
    """Return all pairs for a number of features and a number of records of other persons.

    - *no record, one in the middle*, *no record, one in a corner*: code that divides by a count, or sends no query for
      an empty dataset.
    - *empty cluster*: one record decides whether the cluster in the upper half is empty.
    - *tie at a border*: records at the border between halved cells and between centres on both sides of the middle,
      and one lattice place below it.
    - *one far point*: a record in the corner opposite to all others. It changes the minimum, the maximum, the spread,
      the widest cluster and the longest residual.
    - *off-centre data*: all records in a small box at the upper corner, where a coordinate is much longer than a
      residual.
    - *equal records*: every distance is zero and cannot be a divisor.
    - *ends of the lattice*: records in alternate corners; the added record is first, so that it shifts all positions.
    - *two equal clusters*: clusters of equal size and spread; one more record decides which is wider.
    - *fewer records than clusters*: two records.
    - *user records in one corner*, *user records on the diagonal*: the largest number of records of one user, where a
      sum changes most, and where most cells change.
    - *user with one record*: fewer records than the limit per user.
    """
    d = n_features
    rng = np.random.default_rng(d)  # fixed seed, so that every run uses the same pairs
    scattered = rng.integers(0, LATTICE, (n_others, d))
    tight = np.full((n_others, d), LATTICE // 8) + rng.integers(0, LATTICE // 64, (n_others, d))
    offset = rng.integers(0, LATTICE // 32, (n_others // 2, d))
    extremes = LAST * ((np.arange(n_others)[:, None] >> (np.arange(d) % 4)) & 1)
    tied = MIDDLE - (np.arange(n_others) % 2)[:, None] * np.ones(d, dtype=np.int64)
    aside = np.where(np.arange(d) == 0, 3 * LATTICE // 4, MIDDLE)
    corner, middle = np.full(d, LAST), np.full(d, MIDDLE)
    empty = np.zeros((0, d))
    diagonal = np.linspace(0, LAST, USER_RECORDS)[:, None] * np.ones(d)
    return (
        _make_pair("no record, one in the middle", empty, middle),
        _make_pair("no record, one in a corner", empty, corner),
        _make_pair("empty cluster", tight, aside),
        _make_pair("tie at a border", tied, middle),
        _make_pair("one far point", tight, corner),
        _make_pair("off-centre data", LAST - tight + LATTICE // 8, corner),
        _make_pair("equal records", np.repeat(middle[None], n_others, axis=0), middle),
        _make_pair("ends of the lattice", extremes, np.where(np.arange(d) % 2, 0, LAST), at_head=True),
        _make_pair("two equal clusters", np.concatenate([offset, LAST - offset]), LAST - offset[0]),
        _make_pair("fewer records than clusters", scattered[:2], scattered[2]),
        _make_pair(
            "user records in one corner", scattered, np.repeat(corner[None], USER_RECORDS, axis=0), USER_RECORDS
        ),
        _make_pair("user records on the diagonal", scattered, diagonal, USER_RECORDS, at_head=True),
        _make_pair("user with one record", tight, corner, USER_RECORDS),
    )


def _make_pair(
    name: str, others: ArrayLike, records: ArrayLike, max_per_user: int = 1, *, at_head: bool = False
) -> Pair:
    others, added = _to_lattice(others), np.atleast_2d(_to_lattice(records))
    more = np.concatenate([added, others] if at_head else [others, added])
    return Pair(name, Records(more, max_per_user), Records(others, max_per_user))


def _to_lattice(places: ArrayLike) -> NDArray[np.int32]:
    return np.asarray(np.clip(places, 0, LAST), dtype=np.int32)
