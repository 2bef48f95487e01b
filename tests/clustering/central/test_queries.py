"""Test queries: costs are split exactly, and digests are equal exactly for equal inputs."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustering.central.algorithms.dp_kmeans import split_halving
from clustering.central.cells import GridCells, NearestCells
from clustering.central.queries import DIGEST_LENGTH, Shares, compute_digest, split
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from tests.clustering.central.journals import KeepingJournal, curator_of

weights = st.lists(st.integers(1, 1000) | st.fractions(Fraction(1, 50), 50), min_size=1, max_size=40)
DIFFERENT = [
    (),
    (1, 2),
    *((value,) for value in (1, (1, 2), "1", 12, 1.0, True, None)),
    *((array,) for array in (np.array([1, 2]), np.array([[1, 2]]), np.array([1, 2], np.int32), np.array([1, 3]))),
    *((cells,) for cells in (GridCells((1, 2)), GridCells((12,)), NearestCells(np.array([[1, 2]])))),
]


class TestSplit:
    @given(st.integers(10**9, 32 * NANO), weights)
    def test_parts_add_up_and_are_proportional(self, epsilon_nano: int, given_weights: list[Fraction]) -> None:
        parts = split(epsilon_nano, *given_weights)
        assert sum(parts) == epsilon_nano
        for part, weight in zip(parts, given_weights, strict=True):
            assert abs(part - Fraction(epsilon_nano) * weight / sum(given_weights)) < 1

    def test_rejects_parts_below_one_nano(self) -> None:
        assert split(3, 1, 1, 1) == (1, 1, 1)
        with pytest.raises(InvalidSpec, match="too small"):
            split(2, 1, 1, 1)


class TestHalving:
    @given(st.integers(10**9, 32 * NANO), st.integers(1, 20))
    def test_each_step_gets_half_and_the_last_the_remainder(self, epsilon_nano: int, steps: int) -> None:
        parts = split_halving(epsilon_nano, steps)
        assert len(parts) == steps
        assert sum(parts) == epsilon_nano
        left = epsilon_nano
        for part in parts[:-1]:
            assert part == pytest.approx(left / 2, abs=2)
            left -= part
        assert parts[-1] == left


class TestDigest:
    def test_differs_if_any_part_differs(self) -> None:
        digests = [compute_digest(*parts) for parts in DIFFERENT]
        for a, b in combinations(range(len(digests)), 2):
            assert digests[a] != digests[b], (DIFFERENT[a], DIFFERENT[b])
        assert {len(digest) for digest in digests} == {DIGEST_LENGTH}

    def test_ignores_memory_layout(self) -> None:
        grid = np.arange(12).reshape(3, 4)
        assert compute_digest(grid[:, ::2]) == compute_digest(np.array([[0, 2], [4, 6], [8, 10]]))

    def test_rejects_unknown_types(self) -> None:
        with pytest.raises(TypeError, match="cannot depend on a set"):
            compute_digest({1})


class TestQueries:
    def test_other_centres_radii_or_cells_give_other_digests(self) -> None:
        def digests_of(cells: GridCells, place: int, radius: int) -> list[str]:
            journal = KeepingJournal()
            curator = curator_of(np.zeros((3, 2)), journal=journal)
            centres = np.full((cells.n_cells, 2), place)
            curator.sums(cells, centres, np.full(cells.n_cells, radius), Shares(5, 5, 5))
            curator.squares(cells, centres, 5)
            return [query.digest for query in journal.charges]

        first = digests_of(GridCells((2, 1)), 7, 9)
        assert len(set(first)) == 4
        for inputs, equal in (
            ((GridCells((2, 1)), 7, 9), [True, True, True, True]),
            ((GridCells((2, 1)), 8, 9), [False, True, False, False]),
            ((GridCells((2, 1)), 7, 8), [False, True, False, True]),
            ((GridCells((1, 2)), 7, 9), [False, False, False, False]),
        ):
            assert [a == b for a, b in zip(first, digests_of(*inputs), strict=True)] == equal
