"""Values arrive exactly, matched by name, or they are refused with a message that names what was wrong."""

import math
import sqlite3
from collections import UserList, deque, namedtuple
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.device.bulk import perturb_records
from sfumato.device.outcomes import Outcome
from sfumato.device.store import MemoryStore
from sfumato.errors import InvalidPoint
from sfumato.records.inputs import named_columns, to_numbers, to_record, to_values
from sfumato.specs import Feature
from tests.sfumato.model.test_cluster_model import FEATURES as MODEL_FEATURES
from tests.sfumato.model.test_cluster_model import label_map
from tests.sfumato.scripted import ScriptedService, open_round, round_spec

FEATURES = (Feature("latitude", -90, 90), Feature("longitude", -180, 180), Feature("age", 0, 120))
NAMES = [feature.name for feature in FEATURES]
Columns = dict[str, list[Any]]


class PolarsFrame:
    """A frame with the methods of polars, which is not installed here."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    columns = property(lambda self: list(self._columns))

    def get_columns(self) -> list[Any]:
        return [np.array(values) for values in self._columns.values()]


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def structured(columns: Columns) -> Any:
    rows = list(zip(*columns.values(), strict=True))
    return np.array(rows, dtype=[(name, "f8") for name in columns])


def named_tuples(columns: Columns) -> list[Any]:
    row = namedtuple("row", list(columns))  # type: ignore[misc]
    return [row(*each) for each in zip(*columns.values(), strict=True)]


def database_rows(columns: Columns) -> list[Any]:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    select = " union all ".join(
        "select " + ", ".join(f"{value!r} as {name}" for name, value in row.items()) for row in rows_of(columns)
    )
    return connection.execute(select).fetchall()


NAMED: dict[str, Callable[[Columns], Any]] = {
    "pandas": pd.DataFrame,
    "pandas with other types": lambda columns: pd.DataFrame(columns).astype("Float64"),
    "arrow table": pa.table,
    "arrow batch": lambda columns: pa.table(columns).to_batches()[0],
    "polars": PolarsFrame,
    "mapping": dict,
    "mapping of arrays": lambda columns: {name: np.array(values) for name, values in columns.items()},
    "structured array": structured,
    "record array": lambda columns: structured(columns).view(np.recarray),
    "list of mappings": rows_of,
    "list of series": lambda columns: [pd.Series(row) for row in rows_of(columns)],
    "list of arrow scalars": lambda columns: list(pa.array(rows_of(columns))),
    "named tuples": named_tuples,
    "rows of a database": database_rows,
}
BARE: dict[str, Callable[[list[list[Any]]], Any]] = {
    "lists": list,
    "tuples": lambda rows: tuple(map(tuple, rows)),
    "array": np.array,
    "array of objects": lambda rows: np.array(rows, dtype=object),
    "column-major array": lambda rows: np.asfortranarray(rows),
    "big-endian array": lambda rows: np.array(rows, dtype=">f8"),
    "list of arrays": lambda rows: list(map(np.array, rows)),
    "list of series": lambda rows: list(map(pd.Series, rows)),
    "list of arrow arrays": lambda rows: list(map(pa.array, rows)),
    "other sequences": lambda rows: UserList(map(deque, rows)),
    "array without masked values": lambda rows: np.ma.array(rows),
}
UNFIT: dict[str, Any] = {
    "text": "1", "a date": date(2026, 1, 2), "a time": datetime(2026, 1, 2), "a span": timedelta(1),
    "true": True, "numpy's true": np.True_, "complex": 1j, "none": None, "nan": math.nan, "infinity": math.inf,
    "pandas.NA": pd.NA, "pandas.NaT": pd.NaT, "a set": {1.0}, "a list": [1.0], "bytes": b"1", "masked": np.ma.masked,
    "a huge integer": 10**400, "a decimal that is not a number": Decimal("sNaN"),
    "a numpy date": np.datetime64("2026-01-02"), "a numpy span": np.timedelta64(1, "s"),
}  # fmt: skip

numbers = st.floats(-1e9, 1e9).map(float) | st.integers(-(2**53), 2**53).map(float)
tables = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=4)
orders = st.permutations(NAMES)


def columns_of(rows: list[tuple[Any, ...]], order: list[str]) -> Columns:
    return {name: [row[NAMES.index(name)] for row in rows] for name in order}


class TestContainers:
    @given(rows=tables, order=orders, kind=st.sampled_from(sorted(NAMED)))
    def test_with_names_arrive_by_name_in_any_order(
        self, rows: list[tuple[float, ...]], order: list[str], kind: str
    ) -> None:
        given_columns = columns_of(rows, order)
        assert to_values(FEATURES, NAMED[kind](given_columns)).tolist() == list(map(list, rows))

    @given(rows=tables, kind=st.sampled_from(sorted(BARE)))
    def test_without_names_arrive_in_the_order_of_the_features(self, rows: list[tuple[float, ...]], kind: str) -> None:
        assert to_values(FEATURES, BARE[kind](list(map(list, rows)))).tolist() == list(map(list, rows))

    @given(rows=tables, order=orders, kind=st.sampled_from(sorted(NAMED)), lost=st.sampled_from(NAMES))
    def test_with_a_missing_or_another_name_are_refused_with_it(
        self, rows: list[tuple[float, ...]], order: list[str], kind: str, lost: str
    ) -> None:
        columns = columns_of(rows, order)
        renamed = {("height" if name == lost else name): values for name, values in columns.items()}
        with pytest.raises(InvalidPoint, match=f"columns {lost} are missing; columns height are not features"):
            to_values(FEATURES, NAMED[kind](renamed))
        with pytest.raises(InvalidPoint, match="columns height are not features"):
            to_values(FEATURES, NAMED[kind](columns | {"height": columns[lost]}))

    @given(
        kind=st.sampled_from(["pandas", "mapping", "list of mappings", "named tuples"]),  # others change the values
        bad=st.sampled_from(sorted(UNFIT)),
        place=st.integers(0, 1),
        name=st.sampled_from(NAMES),
    )
    def test_with_another_value_than_a_number_are_refused_with_its_feature(
        self, kind: str, bad: str, place: int, name: str
    ) -> None:
        columns: Columns = {each: [48.86, 2.35] for each in NAMES}
        columns[name][place] = UNFIT[bad]
        with pytest.raises(InvalidPoint, match=name) as raised:
            to_values(FEATURES, NAMED[kind](columns))
        assert "48.86" not in str(raised.value)

    @given(kind=st.sampled_from(["lists", "tuples", "array of objects"]), bad=st.sampled_from(sorted(UNFIT)))
    def test_without_names_and_with_another_value_are_refused_with_its_record(self, kind: str, bad: str) -> None:
        rows = [[48.86, 2.35, 40.0], [48.86, UNFIT[bad], 40.0]]
        if kind == "array of objects":
            records = np.empty((2, 3), dtype=object)
            records[0], records[1, 0], records[1, 2] = rows[0], 48.86, 40.0
            records[1, 1] = UNFIT[bad]
        else:
            records = BARE[kind](rows)
        with pytest.raises(InvalidPoint, match=r"record 2 \(counted from 1\)") as raised:
            to_values(FEATURES, records)
        assert "48.86" not in str(raised.value)

    @pytest.mark.parametrize(
        ("records", "message"),
        [
            (np.array([[True, False, True]]), "got booleans"),
            (np.array([["1", "2", "3"]]), "got text"),
            (np.array([[1j, 2, 3]]), "got complex numbers"),
            (np.array([["2026-01-02"] * 3], dtype="M8[D]"), "got dates"),
            (np.ma.array([[1.0, 2, 3]], mask=[[0, 1, 0]]), "got masked values"),
            ({1.0, 2.0, 3.0}, "got a value of type set"),
            ("123", "got text"),
            (b"123", "got a value of type bytes"),
            ((row for row in [[1, 2, 3]]), "got a value of type generator"),
            ([1.0, 2.0, 3.0], "got a list of 3 numbers"),
            ([], "got an empty list"),
            ([[1, 2, 3], [1, 2]], r"record 2 .* got 2 values, and 3 in record 1"),
            ([[1, 2, 3], {1, 2, 3}], r"record 2 .* got a value of type set"),
            ([[1, 2, 3], {"age": 1}], "record 2 .* has names"),
            ([{"age": 1}, [1, 2, 3]], "record 2 .* has other names than record 1"),
            (pd.DataFrame([[1, 2, 3]]), "columns number 1, number 2, number 3 are not features"),
            (pd.DataFrame([[1, 2]], columns=["age", "age"]), "columns must be unique: several are named age"),
            ({"age": [1], "latitude": [1], "longitude": [1, 2]}, "different lengths"),
            (dict.fromkeys(NAMES, 1.0), "latitude"),
            (pd.DataFrame(columns_of([("1", "2", "3")], NAMES)), "latitude must be finite numbers; got text"),
            (pa.table(columns_of([(True, False, None)], NAMES)), "latitude must be finite numbers; got booleans"),
        ],
    )
    def test_of_other_kinds_are_refused_with_the_kind(self, records: Any, message: str) -> None:
        with pytest.raises(InvalidPoint, match=message):
            to_values(FEATURES, records)

    @pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i8", "u8", "longdouble"])
    def test_of_numbers_of_each_width_arrive(self, kind: str) -> None:
        assert to_values(FEATURES, np.array([[1, 2, 3]], dtype=kind)).tolist() == [[1, 2, 3]]
        assert to_numbers(np.array([[0.1]], dtype="f4")).dtype == np.float32

    @pytest.mark.parametrize(
        "value",
        [
            Decimal("0.1"), Fraction(1, 3), 2**53 + 1, np.int64(2**53 + 1), np.uint64(2**64 - 1), np.float16(0.1),
            np.float32(0.1),
            np.longdouble("0.1"), pa.scalar(Decimal("0.1")), pa.scalar(0.1, pa.float32()), pa.scalar(7, pa.int8()),
            pd.array([7], dtype="Int8")[0], pd.array([0.1], dtype="Float32")[0], np.array(0.1),
        ],
    )  # fmt: skip
    def test_of_other_types_arrive_as_the_nearest_double(self, value: Any) -> None:
        nearest = float(value.as_py() if hasattr(value, "as_py") else value)
        for records in ([[value, 1, 2]], pd.DataFrame([[value, 1, 2]], columns=NAMES, dtype=object)):
            assert to_values(FEATURES, records).tolist() == [[nearest, 1.0, 2.0]]
        assert to_record(FEATURES, [value, 1, 2]) == [nearest, 1.0, 2.0]

    @pytest.mark.parametrize("dtype", ["Int8", "UInt64", "Float32", "int64[pyarrow]", "decimal", "category"])
    def test_of_each_column_type_of_pandas_arrive(self, dtype: str) -> None:
        column = pd.Series([1, 2], dtype="int64").astype(
            pd.ArrowDtype(pa.decimal128(30, 2)) if "decimal" in dtype else dtype
        )
        frame = pd.DataFrame(dict.fromkeys(NAMES, column))
        assert to_values(FEATURES, frame).tolist() == [[1.0] * 3, [2.0] * 3]

    @pytest.mark.parametrize("value", [True, np.True_, pa.scalar(True), pd.array([True], dtype="boolean")[0]])
    def test_that_are_booleans_are_refused(self, value: Any) -> None:
        with pytest.raises(InvalidPoint, match="got booleans"):
            to_record(FEATURES, [value, 1, 2])

    def test_are_matched_in_every_function_of_the_package(self) -> None:
        points = pd.DataFrame({"y": [-1.0, 1.0], "x": [0.0, 10.0]})
        model = label_map()
        assert [feature.name for feature in MODEL_FEATURES] == ["x", "y"]
        assert model.assign(points).tolist() == model.assign(points[["x", "y"]].to_numpy()).tolist()
        assert named_columns(points) is not None
        assert len(perturb_records(round_spec(), points).slots) == 2
        with pytest.raises(InvalidPoint, match="columns y are missing"):
            perturb_records(round_spec(), points[["x"]])


RECORD = {"latitude": 48.86, "longitude": 2.35, "age": 40.0}
SINGLE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "mapping": dict,
    "series": pd.Series,
    "named tuple": lambda record: named_tuples({name: [value] for name, value in record.items()})[0],
    "element of a structured array": lambda record: structured({n: [v] for n, v in record.items()})[0],
    "frame": lambda record: pd.DataFrame([record]),
    "table": lambda record: pa.Table.from_pylist([record]),
    "arrow scalar": lambda record: pa.array([record])[0],
    "row of a database": lambda record: database_rows({name: [value] for name, value in record.items()})[0],
}


class TestOneRecord:
    @given(order=orders, kind=st.sampled_from(sorted(SINGLE)))
    def test_is_matched_by_name(self, order: list[str], kind: str) -> None:
        assert to_record(FEATURES, SINGLE[kind]({name: RECORD[name] for name in order})) == list(RECORD.values())

    @pytest.mark.parametrize("build", [list, tuple, np.array, pd.Series, pa.array, deque])
    def test_without_names_has_the_order_of_the_features(self, build: Any) -> None:
        assert to_record(FEATURES, build(list(RECORD.values()))) == list(RECORD.values())

    @pytest.mark.parametrize(
        "record",
        [
            {1.0, 2.0}, "12", b"12", 1.0, None, [1.0], [[1.0, 2.0]], {"x": 1.0}, {"x": 1.0, "y": "2"}, iter([1.0, 2.0]),
            {"x": 1.0, "y": 2.0, "z": 3.0}, {"x": 1.0, "y": [2.0]}, {"x": 1.0, "y": True},
            {"x": 1.0, "y": None}.values(), pd.DataFrame({"x": [1.0] * 2, "y": [2.0] * 2}),
            pd.Series({"a": 1.0, "b": 2.0}), pd.Series([1.0, 2.0], index=[1, 0]), [1.0, pd.NA],
            np.ma.array([1.0, 2.0], mask=[0, 1]), np.array(["1", "2"]), [1.0, 1j], [1.0, date(2026, 1, 2)],
        ],
    )  # fmt: skip
    def test_of_another_kind_costs_nothing_on_a_device(self, record: Any) -> None:
        service, store = ScriptedService(open_round()), MemoryStore()
        device = service.device(store=store)
        with pytest.raises(InvalidPoint):
            device.report(record)
        memory = store.read("ds_1")
        assert (memory.memos, service.sent) == ({}, [])  # the device stores its draws before it reads a record
        assert device.report({"y": 7.5, "x": 3.5}).outcome is Outcome.SENT
