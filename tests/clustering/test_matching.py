"""Matching of clusters, and maps on another grid."""

import numpy as np
import pytest

from clustering.matching import match, on_grid


@pytest.mark.parametrize(
    ("gains", "pairs"),
    [
        ([[3, 2], [2, 0]], [(0, 1), (1, 0)]),  # the best total, not the best pair
        ([[1.0, 0.0, 0.5]], [(0, 0)]),
        ([[0, 0], [0, 5]], [(1, 1)]),  # a pair without a gain is none
        ([[-1.0, -0.5], [-0.2, 2.0]], [(1, 1)]),
    ],
)
def test_the_total_gain_is_greatest(gains: list[list[float]], pairs: list[tuple[int, int]]) -> None:
    assert match(np.array(gains)) == pairs


def test_a_map_on_another_grid_has_the_labels_at_its_middles() -> None:
    labels = np.array([[0, 1], [2, 3]])
    assert on_grid(labels, (2, 2)) is labels
    finer = on_grid(labels, (4, 6))
    assert finer.shape == (4, 6)
    assert finer[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert finer[:, 0].tolist() == [0, 0, 2, 2]
    assert on_grid(finer, (2, 2)).tolist() == labels.tolist()
