"""Codes of sides, one bit a cut: those that stand out from noise, joined into groups, and a group for every code."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

JOINED_SHARE = 0.2  # of a denser neighbour's mass; a code below it is the rim of that neighbour (STATISTICS 3.3)


@dataclass(frozen=True)
class CodeGroups:
    """Codes that stand out from noise, in groups.

    Attributes
    ----------
    codes : ndarray of shape (n,), int64
        By descending mass.
    groups : ndarray of shape (n,), int64
        The group of each, 0 .. n_groups-1, by their densest codes.
    masses : ndarray of shape (n,), float64
        Above zero.
    """

    codes: NDArray[np.int64]
    groups: NDArray[np.int64]
    masses: NDArray[np.float64]

    @property
    def n_groups(self) -> int:
        return int(self.groups.max(initial=-1)) + 1

    def largest(self, n_groups: int) -> "CodeGroups":
        """The groups of most mass alone, numbered as they were in order."""
        totals = np.bincount(self.groups, weights=self.masses, minlength=self.n_groups)
        chosen = np.sort(np.argsort(-totals, kind="stable")[:n_groups])
        inside = np.isin(self.groups, chosen)
        return CodeGroups(self.codes[inside], np.searchsorted(chosen, self.groups[inside]), self.masses[inside])


def group_codes(masses: NDArray[np.float64], least: float) -> CodeGroups:
    """The codes above some mass, each with the denser code it is the rim of.

    From the densest down: a code that holds less than 20 % of the densest kept code one bit
    away joins that one's group, else it is a group of its own.

    Parameters
    ----------
    masses : ndarray of shape (2**bits,), float64
        Estimated share of people with each code; noise may be below zero.
    least : float
        Not below zero.
    """
    n_bits = masses.size.bit_length() - 1
    order = np.argsort(-masses, kind="stable")
    kept = order[masses[order] > least]
    group_of: dict[int, int] = {}
    n_groups = 0
    for code in kept.tolist():
        denser = [near for bit in range(n_bits) if (near := code ^ 1 << bit) in group_of]
        densest = max(denser, key=lambda near: float(masses[near]), default=None)
        if densest is not None and masses[code] < JOINED_SHARE * masses[densest]:
            group_of[code] = group_of[densest]
        else:
            group_of[code] = n_groups
            n_groups += 1
    groups = np.array([group_of[code] for code in kept.tolist()], dtype=np.int64)
    return CodeGroups(kept.astype(np.int64), groups, masses[kept])


def label_codes(n_codes: int, groups: CodeGroups) -> NDArray[np.int64]:
    """The group of every code: of the grouped code fewest bits away, the denser where two are as near.

    Where there are no groups, all codes are of group 0.

    Returns
    -------
    ndarray of shape (n_codes,), int64
    """
    if groups.n_groups == 0:
        return np.zeros(n_codes, dtype=np.int64)
    bits_apart = _bits_apart(np.arange(n_codes, dtype=np.int64), groups.codes)
    nearest = bits_apart.argmin(axis=1)  # the first of equals, which is the densest
    return np.asarray(groups.groups[nearest], dtype=np.int64)


def crossed_share(groups: CodeGroups) -> float:
    """Of the people in groups, the share whose code is one bit from a code of another group.

    Between groups that a valley parts, most cuts pass; where cuts run through a crowd
    instead, its pieces are neighbours.
    """
    apart = _bits_apart(groups.codes, groups.codes)
    is_beside = ((apart == 1) & (groups.groups[:, None] != groups.groups[None, :])).any(axis=1)
    total = float(groups.masses.sum())
    return float(groups.masses[is_beside].sum()) / total if total > 0 else 0.0


def _bits_apart(some: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.uint8]:
    differing = some.astype(np.uint16)[:, None] ^ others.astype(np.uint16)[None, :]
    return np.asarray(np.bitwise_count(differing), dtype=np.uint8)
