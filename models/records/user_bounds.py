"""Bound the number of records of each user."""

import numpy as np
from numpy.typing import NDArray

_PART_RECORDS = 1 << 16  # approximate number of records that are sorted by user at once
_MAX_PARTS = 256


def bound_users(pseudonyms: NDArray[np.uint64], max_per_user: int) -> NDArray[np.bool_]:
    """Return a mask of the first `max_per_user` records of each user."""
    kept = np.zeros(len(pseudonyms), dtype=np.bool_)
    n_parts = min(_MAX_PARTS, 1 + len(pseudonyms) // _PART_RECORDS)
    # A part has all records of its users. Pseudonyms are uniform; 16 of their bits are enough for `n_parts`.
    part_of = pseudonyms.view(np.uint16)[:, 0] % np.uint16(n_parts)
    for part in range(n_parts):
        (rows,) = np.nonzero(part_of == part)
        own = pseudonyms[rows]
        order = np.lexsort((own[:, 1], own[:, 0]))  # stable: keeps the order of a user's records
        own = own[order]
        is_first = np.ones(len(own), dtype=np.bool_)
        is_first[1:] = (own[1:] != own[:-1]).any(axis=1)
        place = np.arange(len(own))
        nth = place - np.maximum.accumulate(np.where(is_first, place, 0))
        kept[rows[order]] = nth < max_per_user
    return kept
