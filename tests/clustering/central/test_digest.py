"""Digests of questions: equal for equal parts, and for those alone."""

from itertools import combinations

import numpy as np
import pytest

from clustering.central.cells import GridCells, NearestCells
from clustering.central.digest import DIGITS, digest_of
from clustering.curator import Shares
from tests.clustering.central.journals import KeepingJournal, curator_of

DIFFERENT = [
    (),
    (1,),
    (1, 2),
    ((1, 2),),
    ("1",),
    (12,),
    (1.0,),
    (True,),
    (None,),
    (np.array([1, 2]),),
    (np.array([[1, 2]]),),
    (np.array([1, 2], dtype=np.int32),),
    (np.array([1, 3]),),
    (GridCells((1, 2)),),
    (GridCells((12,)),),
    (NearestCells(np.array([[1, 2]])),),
]


class TestDigest:
    def test_it_differs_wherever_a_part_does(self) -> None:
        digests = [digest_of(*parts) for parts in DIFFERENT]
        for a, b in combinations(range(len(digests)), 2):
            assert digests[a] != digests[b], (DIFFERENT[a], DIFFERENT[b])
        assert {len(digest) for digest in digests} == {DIGITS}

    def test_it_is_the_same_for_equal_parts_however_they_lie_in_memory(self) -> None:
        grid = np.arange(12).reshape(3, 4)
        assert digest_of(grid[:, ::2]) == digest_of(np.array([[0, 2], [4, 6], [8, 10]]))

    def test_what_has_parts_nobody_knows_is_refused(self) -> None:
        with pytest.raises(TypeError, match="a set is no part"):
            digest_of({1})


class TestQuestions:
    def test_about_other_centres_radii_or_cells_are_others(self) -> None:
        def asked(cells: GridCells, place: int, radius: int) -> list[str]:
            journal = KeepingJournal()
            curator = curator_of(np.zeros((3, 2)), journal=journal)
            centres = np.full((cells.n_cells, 2), place)
            curator.sums(cells, centres, np.full(cells.n_cells, radius), Shares(5, 5, 5))
            curator.squares(cells, centres, 5)
            return [question.digest for question in journal.charges]

        first = asked(GridCells((2, 1)), 7, 9)
        assert first == asked(GridCells((2, 1)), 7, 9)
        assert len(set(first)) == 4
        assert [a == b for a, b in zip(first, asked(GridCells((2, 1)), 8, 9), strict=True)] == [
            False,
            True,
            False,
            False,
        ]
        assert [a == b for a, b in zip(first, asked(GridCells((2, 1)), 7, 8), strict=True)] == [
            False,
            True,
            False,
            True,
        ]
        assert not any(a == b for a, b in zip(first, asked(GridCells((1, 2)), 7, 9), strict=True))
