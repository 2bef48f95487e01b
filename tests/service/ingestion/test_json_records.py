"""JSON records, read in pieces: rows before their columns, long bodies, members given twice, and indices of faults."""

import json
from typing import Any

import numpy as np
import pytest

from service.http.problems import BadRequest, ValidationFailed
from service.ingestion.record_formats import JsonReader

N_ROWS = 20_000  # several pieces


class FakeValidator:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.features, self.user_feature, self.columns = [None, None], None, ["x", "y"]
        self.attributes: tuple[Any, ...] = ()
        self.parts: list[Any] = []

    def reserve_memory(self, n_bytes: int) -> None:
        assert n_bytes > 0

    def add(self, values: Any, users: Any, widths: None, cells: Any) -> None:
        assert (users, widths, len(cells)) == (None, None, 0)
        self.parts.append(values)


def read(body: bytes) -> Any:
    validator: Any = FakeValidator()
    reader = JsonReader(validator)
    for start in range(0, len(body), 100_000):
        reader.feed(body[start : start + 100_000])
    reader.finish()
    return np.concatenate(validator.parts)


ROWS = [[i / 7, -i] for i in range(N_ROWS)]


@pytest.mark.parametrize("order", [("columns", "rows"), ("rows", "columns")])
def test_rows_are_the_same_before_and_after_their_columns(order: tuple[str, str]) -> None:
    document = {"columns": ["y", "x"], "rows": ROWS}
    values = read(json.dumps({name: document[name] for name in order}).encode())
    assert np.array_equal(values, np.array(ROWS)[:, ::-1])


@pytest.mark.parametrize("name", ["columns", "rows"])
def test_a_member_given_twice_is_refused(name: str) -> None:
    body = json.dumps({"columns": ["x", "y"], "rows": ROWS}).encode()
    again = {"columns": b',"columns":["x","y"]}', "rows": b',"rows":[[1,2]]}'}[name]
    with pytest.raises(BadRequest, match="twice"):
        read(body[:-1] + again)


@pytest.mark.parametrize("bad", [["1", 2], [1, 2, 3]])
def test_a_fault_in_a_later_piece_is_named_by_its_place(bad: list[Any]) -> None:
    rows = [*ROWS, bad, *ROWS]
    with pytest.raises(ValidationFailed, match=f"record {N_ROWS + 1}:"):
        read(json.dumps({"columns": ["x", "y"], "rows": rows}).encode())
