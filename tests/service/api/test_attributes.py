"""Attributes of central datasets: declaration, uploads in each format, and what only the uploader learns."""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from models.database.engine import Database
from models.records import records
from models.tables.datasets import Dataset
from service.ingestion.arrow import parse_records
from service.schemas.datasets import Dataset as DatasetSchema
from sfumato.records.attribute_codes import DistinctCells
from sfumato.specs.attributes import Categorical
from tests.service.api import SQLITE_ONLY, Api, refused
from tests.service.console.session import Console, words
from tests.workers.archive import KEYRING

PLAN: dict[str, Any] = {"name": "plan", "kind": "categorical", "values": ["free", "basic", "pré"]}
AGE: dict[str, Any] = {"name": "age", "kind": "numeric", "bins": [0.0, 18.0, 65.0, 120.0]}
LOOSE = [PLAN | {"unknown": "other", "missing": "category"}, AGE | {"missing": "category"}]
ROWS: list[list[Any]] = [
    [0.1, "free", 17.9],
    [0.2, " pre\u0301 ", 18],
    [0.3, "PRO", 400.0],
    [0.4, None, None],
    [0.5, "N/A", "nan"],
]
CODES = [[0, 0], [2, 1], [3, 2], [4, 3], [4, 3]]
COUNTS = [
    {"name": "plan", "n_other": 1, "n_missing": 2, "n_outside": 0},
    {"name": "age", "n_other": 0, "n_missing": 2, "n_outside": 1},
]


def made(api: Api, attributes: list[dict[str, Any]], **other: Any) -> str:
    features = [{"name": "x", "lower": 0.0, "upper": 1.0}]
    return str(api.dataset(trust="central", features=features, attributes=attributes, **other)["id"])


def stored(database: Database, dataset_id: str) -> np.ndarray:
    with database.reading() as session:
        return records.load(session, dataset_id, KEYRING).points


def body(rows: list[list[Any]]) -> dict[str, Any]:
    return {"columns": ["x", "plan", "age"], "rows": rows}


def send(api: Api, dataset_id: str, content: bytes, kind: str) -> Any:
    return api.request("POST", f"/datasets/{dataset_id}/records", content=content, headers={"Content-Type": kind})


def arrow(columns: dict[str, pa.Array]) -> bytes:
    table, sink = pa.table(columns), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


class TestADeclaration:
    def test_is_shown_as_given_with_defaults(self, api: Api, database: Database) -> None:
        dataset_id = made(api, [PLAN, AGE])
        shown = api.get(f"/datasets/{dataset_id}").json()
        DatasetSchema.model_validate(shown)
        strict = {"missing": "refuse", "use": "describe"}
        assert shown["attributes"] == [
            PLAN | strict | {"unknown": "refuse", "weight": 1.0},
            AGE | strict | {"unit": ""},
        ]
        with database.reading() as session:
            assert session.get_one(Dataset, dataset_id).n_columns == 3

    @SQLITE_ONLY
    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (PLAN | {"values": ["free", "free"]}, "unique"),
            (PLAN | {"values": ["free"]}, ""),
            (PLAN | {"values": ["free", "other"], "unknown": "other"}, "other and missing"),
            (PLAN | {"values": ["free", " pro"]}, "without outer spaces"),
            (PLAN | {"values": ["free", "e\u0301"]}, "NFC"),
            (PLAN | {"values": ["free", "a" * 65]}, ""),
            (PLAN | {"values": ["free", "ü" * 33]}, "64 bytes"),
            (PLAN | {"unknown": "drop"}, ""),
            (PLAN | {"use": "both"}, ""),
            (PLAN | {"use": "cluster", "weight": 7.0}, ""),
            (PLAN | {"weight": 2.0}, "needs the use cluster"),
            (PLAN | {"use": "cluster", "values": ["free", "a" * 58]}, "61 characters"),
            (AGE | {"use": "cluster"}, ""),
            (AGE | {"bins": [0.0, 1.0]}, ""),
            (AGE | {"bins": [0.0, 2.0, 1.0]}, "ascending"),
            (AGE | {"kind": "text"}, ""),
        ],
    )
    def test_that_is_wrong_is_refused(self, api: Api, wrong: dict[str, Any], message: str) -> None:
        new = {"name": "d", "trust": "central", "features": [{"name": "x", "lower": 0, "upper": 1}], "epsilon": 1}
        problem = refused(api.post("/datasets", new | {"attributes": [wrong]}), 422, "validation_failed")
        assert all(error["pointer"].startswith("/attributes/0") for error in problem["errors"])
        assert message in json.dumps(problem, ensure_ascii=False)

    @SQLITE_ONLY
    def test_needs_unique_names_and_records(self, api: Api) -> None:
        new = {"name": "d", "trust": "central", "features": [{"name": "x", "lower": 0, "upper": 1}], "epsilon": 1}
        for names, more in ((["x"], {}), (["a", "a"], {}), (["u"], {"user_feature": "u"})):
            attributes = [PLAN | {"name": name} for name in names]
            problem = refused(api.post("/datasets", new | more | {"attributes": attributes}), 422, "validation_failed")
            assert "occurs twice" in json.dumps(problem)
        local = new | {"trust": "local", "attributes": [PLAN]}
        (declared,) = api.made("/datasets", local)["attributes"]
        assert declared == declared | PLAN


class TestAnUpload:
    def test_of_json_stores_codes_and_counts_what_is_not_declared(self, api: Api, database: Database) -> None:
        dataset_id = made(api, LOOSE)
        answer = api.made(f"/datasets/{dataset_id}/records", body(ROWS))
        assert answer["attributes"] == COUNTS
        assert stored(database, dataset_id)[:, 1:].tolist() == CODES
        assert "n_other" not in api.get(f"/datasets/{dataset_id}/records").text

    @SQLITE_ONLY
    def test_of_csv_is_that_of_json(self, api: Api, database: Database) -> None:
        dataset_id = made(api, LOOSE)
        lines = ["age,plan,x"] + [
            f"{'' if age is None else age},{'' if plan is None else plan},{x}" for x, plan, age in ROWS
        ]
        answer = send(api, dataset_id, "\n".join(lines).encode(), "text/csv")
        assert answer.json()["attributes"] == COUNTS
        assert stored(database, dataset_id)[:, 1:].tolist() == CODES

    @SQLITE_ONLY
    @pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
    def test_of_arrow_is_that_of_json(self, api: Api, database: Database, kind: str) -> None:
        dataset_id = made(api, LOOSE)
        plans = pa.array([row[1] for row in ROWS])
        plans = plans.dictionary_encode() if kind == "dictionary" else plans.cast(getattr(pa, kind)())
        ages = pa.array([17.9, 18, 400.0, None, None])
        content = arrow({"plan": plans, "x": pa.array([row[0] for row in ROWS]), "age": ages})
        answer = send(api, dataset_id, content, "application/vnd.apache.arrow.stream")
        assert answer.json()["attributes"] == COUNTS
        assert stored(database, dataset_id)[:, 1:].tolist() == CODES

    @SQLITE_ONLY
    def test_of_a_dictionary_reads_the_entries_in_use(self, api: Api, database: Database) -> None:
        dataset_id = made(api, LOOSE[:1])
        entries = pa.array([None, "never used", "free", "pré"], pa.string_view())
        plans = pa.DictionaryArray.from_arrays(pa.array([3, 0, None, 2, 3], pa.int8()), entries)
        content = arrow({"plan": plans, "x": pa.array([0.1] * 5)})
        answer = send(api, dataset_id, content, "application/vnd.apache.arrow.stream")
        assert answer.json()["attributes"] == [COUNTS[0] | {"n_other": 0}]
        assert stored(database, dataset_id)[:, 1].tolist() == [2, 4, 4, 0, 2]

    @SQLITE_ONLY
    @pytest.mark.parametrize("is_dictionary", [False, True])
    def test_of_arrow_names_the_first_record_with_a_refused_text(self, api: Api, is_dictionary: bool) -> None:
        dataset_id = made(api, [PLAN])
        plans = pa.array(["free", "basic", "basic", "zinc", None, "alu", "zinc"])
        if is_dictionary:
            plans = pa.DictionaryArray.from_arrays(
                pa.array([1, 3, 3, 2, None, 0, 2], pa.uint8()), ["alu", "free", "zinc", "basic"]
            )
        content = arrow({"plan": plans, "x": pa.array([0.1] * 7)})
        problem = refused(
            send(api, dataset_id, content, "application/vnd.apache.arrow.stream"), 422, "validation_failed"
        )
        assert "record 4: plan must be one of its declared values" in problem["detail"]

    def test_of_arrow_reads_each_text_of_a_batch_once(self) -> None:
        plan = Categorical("plan", values=("free", "basic"))
        for plans in (
            pa.array(["free", "basic", None] * 500),
            pa.array(["free", "basic", None] * 500).dictionary_encode(),
        ):
            content = arrow({"x": pa.array([0.1] * 1500), "plan": plans})
            (group,) = parse_records(content, lambda _: [0, 1], 1, attributes=[plan])
            (cells,) = group.cells
            assert isinstance(cells, DistinctCells)
            assert (cells.values, len(cells)) == (["free", "basic", None], 1500)

    @SQLITE_ONLY
    def test_of_integers_takes_their_text(self, api: Api, database: Database) -> None:
        dataset_id = made(api, [PLAN | {"values": ["1", "2"]}, AGE])
        api.made(f"/datasets/{dataset_id}/records", body([[0.1, 2, 70], [0.2, "1", 3]]))
        content = arrow({"plan": pa.array([1, 2]), "x": pa.array([0.3, 0.4]), "age": pa.array([1, 2], pa.int8())})
        assert send(api, dataset_id, content, "application/vnd.apache.arrow.stream").status_code == 201
        assert stored(database, dataset_id)[:, 1:].tolist() == [[1, 2], [0, 0], [0, 0], [1, 0]]
        floats = arrow({"plan": pa.array([1.0]), "x": pa.array([0.3]), "age": pa.array([1])})
        problem = refused(
            send(api, dataset_id, floats, "application/vnd.apache.arrow.stream"), 422, "validation_failed"
        )
        assert "column plan has the type double" in problem["detail"]

    @SQLITE_ONLY
    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ([0.5, "gold plated", 1], "record 2: plan must be one of its declared values"),
            ([0.5, None, 1], "record 2: plan is missing"),
            ([0.5, "", 1], "record 2: plan is missing"),
            ([0.5, 1.5, 1], "record 2: plan must be text or a whole number"),
            ([0.5, "free", None], "record 2: age is missing"),
            ([0.5, "free", "old"], "record 2: age must be a finite number"),
            ([None, "free", 1], "record 2: x must be a number"),
            (["0.5", "free", 1], "record 2: x must be a number"),
            ([0.5, True, 1], "record 2: plan must be text, a number or null"),
        ],
    )
    def test_that_is_wrong_is_refused_with_record_and_column(self, api: Api, row: list[Any], reason: str) -> None:
        dataset_id = made(api, [PLAN, AGE])
        path = f"/datasets/{dataset_id}/records"
        problem = refused(api.post(path, body([[0.5, "free", 1], row])), 422, "validation_failed")
        assert reason in problem["detail"]
        for value in row:
            assert not isinstance(value, str) or len(value) < 4 or value not in json.dumps(problem) or value == "free"
        assert api.get(path).json()["n_records"] == 0

    @SQLITE_ONLY
    def test_names_the_first_wrong_record_of_all_columns(self, api: Api) -> None:
        path = f"/datasets/{made(api, [PLAN, AGE])}/records"
        rows = [[0.5, "free", 1], [0.5, "free", None], [0.5, "x", 1]]
        assert "record 2: age" in refused(api.post(path, body(rows)), 422, "validation_failed")["detail"]
        lines = "x,plan,age\n.5,free,1\nhigh,free,1\n.5,x,1\n"
        dataset_id = path.split("/")[2]
        problem = refused(send(api, dataset_id, lines.encode(), "text/csv"), 422, "validation_failed")
        assert "record 2: x" in problem["detail"]

    @SQLITE_ONLY
    def test_outside_the_bins_is_refused_if_the_dataset_says_so(self, api: Api) -> None:
        dataset_id = made(api, [PLAN, AGE], out_of_bounds="refuse")
        answer = api.post(f"/datasets/{dataset_id}/records", body([[0.5, "free", 120.5]]))
        assert "age must lie in its bins [0, 120]" in refused(answer, 422, "validation_failed")["detail"]
        assert api.made(f"/datasets/{dataset_id}/records", body([[0.5, "free", 120.0]]))["n_records"] == 1

    @SQLITE_ONLY
    def test_of_npy_or_without_a_column_is_refused(self, api: Api) -> None:
        dataset_id = made(api, [PLAN])
        file = io.BytesIO()
        np.save(file, np.zeros((3, 1)))
        assert (
            "attributes"
            in refused(send(api, dataset_id, file.getvalue(), "application/x-npy"), 415, "unsupported_media_type")[
                "detail"
            ]
        )
        problem = refused(send(api, dataset_id, b"x\n0.5\n", "text/csv"), 422, "validation_failed")
        assert "column plan is missing" in json.dumps(problem)

    @SQLITE_ONLY
    def test_with_users_is_counted_and_deleted_by_person(self, api: Api, database: Database) -> None:
        dataset_id = made(api, LOOSE, user_feature="who", max_records_per_user=2)
        columns = {"columns": ["who", "x", "plan", "age"]}
        rows = [["a", 0.1, "free", 1], ["b", 0.2, "basic", 20], ["a", 0.3, "basic", 20], ["a", 0.4, "free", 1]]
        api.made(f"/datasets/{dataset_id}/records", columns | {"rows": rows})
        assert stored(database, dataset_id)[:, 1:].tolist() == [[0, 0], [1, 1], [1, 1]]
        api.request("DELETE", f"/datasets/{dataset_id}/records", params={"user": "a"})
        assert stored(database, dataset_id)[:, 1:].tolist() == [[1, 1]]

    @SQLITE_ONLY
    def test_again_is_recognised_by_features_and_codes(self, api: Api) -> None:
        path = f"/datasets/{made(api, LOOSE)}/records"
        rows = [[place / 40, "free", 1] for place in range(30)]
        api.made(path, body(rows))
        refused(api.post(path, body(rows[::-1])), 409, "duplicate_content")
        assert api.made(path, body([[x, "basic", age] for x, _, age in rows]))["n_records"] == 30


@SQLITE_ONLY
class TestConsole:
    def test_names_the_columns_of_an_upload(self, api: Api) -> None:
        page = words(Console(api).get(f"/datasets/{made(api, LOOSE)}/records"))
        assert "JSON or an Arrow stream" in page
        assert "Columns: x , plan , age ." in page

    def test_states_what_happens_to_unknown_and_missing_values(self, api: Api) -> None:
        loose = words(Console(api).get(f"/datasets/{made(api, LOOSE)}/settings"))
        shown = "unknown values are the category other; missing values are the category missing"
        assert f"free, basic, pré ; {shown}" in loose
        strict = words(Console(api).get(f"/datasets/{made(api, [PLAN, AGE])}/settings"))
        assert "unknown values are refused; missing values are refused" in strict
        assert "bins at 0, 18, 65, 120 ; missing values are refused" in strict
