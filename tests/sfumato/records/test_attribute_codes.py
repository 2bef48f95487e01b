"""Codes of attributes: values in a list, and values that are stored once for many records."""

from typing import Any

import numpy as np
import pytest

from sfumato.records.attribute_codes import AttributeEncoder, DistinctCells, InvalidCell
from sfumato.specs.attributes import Categorical

STRICT = Categorical("plan", values=("free", "pro", "7"))
LOOSE = Categorical("plan", values=("free", "pro", "7"), unknown="other", missing="category")
VALUES: list[Any] = ["pro", None, "gold", " free ", 7, "n/a", "free"]
PLACES = np.array([3, 0, 2, 2, 1, 5, 4, 0])


def encoder(attribute: Categorical) -> AttributeEncoder:
    return AttributeEncoder(attribute, rejects_outside=False)


class TestDistinctValues:
    def test_have_the_codes_and_counts_of_a_list(self) -> None:
        distinct, listed = encoder(LOOSE), encoder(LOOSE)
        codes = distinct.encode(DistinctCells(VALUES, PLACES))
        assert codes.tolist() == [0, 1, 3, 3, 4, 4, 2, 1]
        assert codes.tolist() == listed.encode([VALUES[place] for place in PLACES]).tolist()
        assert distinct.counts == listed.counts
        assert (distinct.counts.n_other, distinct.counts.n_missing) == (2, 2)

    def test_without_a_record_are_neither_counted_nor_refused(self) -> None:
        cells = DistinctCells(VALUES, PLACES)
        loose = encoder(LOOSE)
        assert loose.encode(cells[:2]).tolist() == [0, 1]
        assert (loose.counts.n_other, loose.counts.n_missing) == (0, 0)
        assert encoder(STRICT).encode(cells[6:]).tolist() == [2, 1]

    @pytest.mark.parametrize(
        ("start", "row", "reason"), [(0, 2, "one of its"), (3, 0, "one of its"), (4, 0, "missing")]
    )
    def test_that_are_refused_name_the_first_record(self, start: int, row: int, reason: str) -> None:
        with pytest.raises(InvalidCell, match=reason) as raised:
            encoder(STRICT).encode(DistinctCells(VALUES, PLACES)[start:])
        assert raised.value.row == row
        with pytest.raises(InvalidCell, match=reason) as listed:
            encoder(STRICT).encode([VALUES[place] for place in PLACES[start:]])
        assert listed.value.row == row
