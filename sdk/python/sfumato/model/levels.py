"""Levels of a label map: nested divisions that the data support about as well."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.model.precision import ExpectedAgreement


@dataclass(frozen=True, eq=False, slots=True)
class Level:
    """One of several nested label maps.

    Attributes
    ----------
    clusters : int
    expected_agreement : ExpectedAgreement
    sizes : ndarray of shape (clusters,), float64
        Shares of people, largest first.
    parents : tuple of int
        The cluster of the level before that contains each cluster; empty for the first level.
    label_map : ndarray of shape (cells,) * n_features, int64
        Cluster of each cell, with the numbers of this level.
    """

    clusters: int
    expected_agreement: ExpectedAgreement
    sizes: NDArray[np.float64]
    parents: tuple[int, ...]
    label_map: NDArray[np.int64]


def levels_of(diagnostics: Mapping[str, Any], label_map: NDArray[np.int64] | None) -> tuple[Level, ...]:
    """Return the levels in the diagnostics of a label map, from the fewest clusters on.

    Raises
    ------
    InvalidSpec
        The diagnostics have another form.
    """
    try:
        return tuple(_level(each, label_map) for each in diagnostics.get("levels", ())) if label_map is not None else ()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSpec("these are not the levels of a label map") from error


def _level(wire: Mapping[str, Any], label_map: NDArray[np.int64]) -> Level:
    labels = wire["labels"]
    return Level(
        int(wire["clusters"]),
        ExpectedAgreement(**wire["expected_agreement"]),
        np.asarray(wire["sizes"], dtype=np.float64),
        tuple(map(int, wire["parents"])),
        label_map if labels is None else np.asarray(labels, dtype=np.int64).reshape(label_map.shape),
    )


def describe_levels(levels: Sequence[Level]) -> str:
    """Return several levels as a sentence, or an empty text for fewer than two.

    Examples
    --------
    >>> import numpy as np
    >>> agreement = ExpectedAgreement(0.9, 0.8, 1.0)
    >>> two = Level(2, agreement, np.array([0.7, 0.3]), (), np.array([0, 0, 1]))
    >>> three = Level(3, agreement, np.array([0.4, 0.3, 0.3]), (0, 0, 1), np.array([0, 1, 2]))
    >>> describe_levels([two, three])
    '2 clusters, of which 1 divides: one of 70 % into 2 of 40 % and 30 %.'
    """
    if len(levels) < 2:
        return ""
    parts = [f"{levels[0].clusters} clusters"]
    for before, level in pairwise(levels):
        children = {parent: np.flatnonzero(np.array(level.parents) == parent) for parent in range(before.clusters)}
        divided = {parent: found for parent, found in children.items() if len(found) > 1}
        named = "; ".join(
            f"one of {before.sizes[parent]:.0%} into {len(found)} of {_shares(level.sizes[found])}".replace("%", " %")
            for parent, found in divided.items()
        )
        parts.append(f"of which {len(divided)} divide{'s' if len(divided) == 1 else ''}: {named}")
    return ", ".join(parts) + "."


def _shares(sizes: NDArray[np.float64]) -> str:
    *first, last = (f"{size:.0%}" for size in sizes)
    return f"{', '.join(first)} and {last}"
