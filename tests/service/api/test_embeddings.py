"""Datasets of embeddings and of more than 64 features: declaration, uploads, refused jobs, and a result."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from models.database.engine import Database
from models.records import records
from sfumato.api.client import Client
from sfumato.specs import LATTICE, Embedding
from tests.service.api import FEATURES, SQLITE_ONLY, Api, claim_job, refused
from tests.service.ingestion.test_records import arrow, npy, send
from tests.workers.archive import KEYRING, RECORDS_KEY
from workers.job_runner import run

pytestmark = SQLITE_ONLY

ROWS = np.array([[0.6, -0.8, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, 0.25, -0.5]])
CLIPPED = np.array([[0.6, -0.8, 0.0], [0.0, 0.0, 0.0], [0.6, 0.0, 0.8], [0.0, 0.25, -0.5]])
NAMES = ["x0", "x1", "x2"]
FORMS = {
    "json": ("application/json", json.dumps({"columns": NAMES, "rows": ROWS.tolist()}).encode()),
    "csv": ("text/csv", b"x0,x1,x2\n" + b"".join(b"%r,%r,%r\n" % tuple(row) for row in ROWS.tolist())),
    "npy": ("application/x-npy", npy(ROWS.astype(np.float32))),
    "arrow": ("application/vnd.apache.arrow.stream", arrow(**dict(zip(NAMES, ROWS.T, strict=True)))),
}
PRIVATE = {"type": "private_kmeans", "epsilon": 1.0, "clusters": 2}
DELTA = 1e-6
STREAM = "application/vnd.apache.arrow.stream"
LISTS = [pa.list_(pa.float64(), 3), pa.list_(pa.float64()), pa.large_list(pa.float32())]


def embedding(api: Api, dimensions: int = 3, norm: float = 1.0, **other: Any) -> str:
    given = {"trust": "central", "features": {"dimensions": dimensions, "norm": norm}, "delta": 1e-3}
    return str(api.dataset(**given | other)["id"])


def load(database: Database, dataset_id: str) -> np.ndarray:
    """Return the stored records, in the units of a norm of 1."""
    with database.reading() as session:
        return (records.load(session, dataset_id, KEYRING).points + 0.5) / LATTICE * 2 - 1


class TestDeclaration:
    def test_is_returned_as_it_was_sent(self, api: Api) -> None:
        created = api.dataset(trust="central", features={"dimensions": 1536})
        assert created["features"] == {"dimensions": 1536, "norm": 1.0}
        (listed,) = api.get("/datasets").json()["items"]
        assert listed == created
        assert len(json.dumps(created)) < 1000

    def test_may_list_1536_features(self, api: Api) -> None:
        many = [{"name": f"word {index}", "lower": -1, "upper": 1, "unit": ""} for index in range(1537)]
        problem = refused(api.post("/datasets", self._body(many)), 422, "validation_failed")
        assert [error["pointer"] for error in problem["errors"]] == ["/features"]
        assert len(api.made("/datasets", self._body(many[:1536]))["features"]) == 1536

    @pytest.mark.parametrize(
        ("features", "pointer"),
        [
            ({"dimensions": 1537}, "/features/dimensions"),
            ({"dimensions": 0}, "/features/dimensions"),
            ({"dimensions": 8.5}, "/features/dimensions"),
            ({}, "/features/dimensions"),
            ({"dimensions": 8, "norm": 0}, "/features/norm"),
            ({"dimensions": 8, "norm": 1e301}, "/features/norm"),
            ({"dimensions": 8, "radius": 1}, "/features/radius"),
            ("x", "/features"),
        ],
    )
    def test_that_is_malformed_is_refused_with_a_pointer(self, api: Api, features: Any, pointer: str) -> None:
        problem = refused(api.post("/datasets", self._body(features)), 422, "validation_failed")
        assert [error["pointer"] for error in problem["errors"]] == [pointer]

    def test_of_a_local_dataset_is_refused(self, api: Api) -> None:
        for features, reason in (
            ({"dimensions": 8}, "an embedding needs the trust model central"),
            ([FEATURES[0] | {"name": f"f{index}"} for index in range(65)], "at most 64 features"),
        ):
            body = self._body(features) | {"trust": "local"}
            assert reason in refused(api.post("/datasets", body), 422, "validation_failed")["detail"]

    def test_reserves_the_names_of_the_coordinates(self, api: Api) -> None:
        body = self._body({"dimensions": 8})
        response = api.post("/datasets", body | {"user_feature": "x7"})
        assert "user_feature" in refused(response, 422, "validation_failed")["detail"]
        assert api.made("/datasets", body | {"user_feature": "x8"})

    def _body(self, features: Any) -> dict[str, Any]:
        return {"name": "d", "trust": "central", "features": features, "epsilon": 1.0}


class TestUpload:
    @pytest.mark.parametrize("form", FORMS)
    def test_scales_long_vectors_to_the_norm_and_counts_them(self, api: Api, database: Database, form: str) -> None:
        dataset_id = embedding(api)
        stored = send(api, dataset_id, FORMS[form]).json()
        assert {name: stored[name] for name in ("n_records", "n_clipped", "n_zeros", "n_constant")} == {
            "n_records": 4,
            "n_clipped": 1,
            "n_zeros": 1,
            "n_constant": 0,
        }
        assert np.abs(load(database, dataset_id) - CLIPPED).max() < 2e-6

    @pytest.mark.parametrize("kind", LISTS, ids=str)
    def test_may_have_one_column_of_lists(self, api: Api, database: Database, kind: pa.DataType) -> None:
        users = ["a", "b", "c", "d"]
        for user_feature, more in ((None, {}), ("who", {"who": users})):
            dataset_id = embedding(api, **({"user_feature": user_feature} if user_feature else {}))
            body = arrow(**more, vector=pa.array(ROWS.tolist(), kind))
            assert send(api, dataset_id, (STREAM, body)).json()["n_records"] == 4
            assert np.abs(load(database, dataset_id) - CLIPPED).max() < 2e-6

    @pytest.mark.parametrize(
        ("columns", "reason"),
        [
            ({"v": [[0.1] * 3, [0.1] * 2]}, "record 2: v must have 3 numbers"),
            ({"v": pa.array([[0.1] * 2] * 2, pa.list_(pa.float64(), 2))}, "record 1: v must have 3 numbers"),
            ({"v": [[0.1] * 3, None]}, "record 2: v is missing (null)"),
            ({"v": [[0.1] * 3, [0.1, None, 0.2]]}, "record 2: v is missing (null)"),
            ({"v": [["a", "b", "c"]]}, "column v has the type list: send floats, integers or decimals"),
            ({"v": [[0.1] * 3], "x0": [0.5]}, "column x0 occurs more than once"),
            ({"v": [[0.1] * 3], "w": [[0.1] * 3]}, "column w is not declared"),
        ],
    )
    def test_refuses_a_column_of_other_lists(self, api: Api, columns: dict[str, Any], reason: str) -> None:
        body = arrow(**columns)
        assert reason in refused(send(api, embedding(api), (STREAM, body)), 422, "validation_failed")["detail"]

    def test_refuses_long_vectors_if_declared(self, api: Api) -> None:
        dataset_id = embedding(api, out_of_bounds="refuse")
        problem = refused(send(api, dataset_id, FORMS["csv"]), 422, "validation_failed")
        assert problem["detail"].startswith("record 3: the norm of the vector must be at most 1 ")
        rounded = np.full((1, 3), 1.0004 / 3**0.5)  # within the rounding of 16 bits
        assert send(api, dataset_id, ("application/x-npy", npy(rounded))).json()["n_clipped"] == 0

    @pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "1e999"])
    def test_refuses_a_value_that_is_not_finite(self, api: Api, bad: str) -> None:
        dataset_id = embedding(api)
        body = f"x0,x1,x2\n1,0,0\n0,{bad},0\n".encode()
        problem = refused(send(api, dataset_id, ("text/csv", body)), 422, "validation_failed")
        assert problem["detail"].startswith("record 2: x1 must be a finite number")
        assert bad not in problem["detail"]

    def test_counts_constant_features(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        body = b"x,y\n.5,.25\n.5,.75\n.5,.25\n"
        assert send(api, dataset_id, ("text/csv", body)).json()["n_constant"] == 1
        assert send(api, dataset_id, ("text/csv", body[:11])).json()["n_constant"] == 0  # one record

    def test_takes_a_header_and_records_of_1536_long_columns(self, api: Api) -> None:
        names = [f"{'w' * 58} {index:05d}" for index in range(1536)]
        features = [{"name": name, "lower": -1.0, "upper": 1.0} for name in names]
        dataset_id = api.dataset(trust="central", features=features)["id"]
        values = np.random.default_rng(0).uniform(-1, 1, size=(3, 1536))
        lines = [",".join(names), *(",".join(map(repr, row)) for row in values.tolist())]
        assert send(api, dataset_id, ("text/csv", "\n".join(lines).encode())).json()["n_records"] == 3

    def test_of_many_features_may_have_fewer_records(self, over: Callable[..., Api], database: Database) -> None:
        api = over(database, records_key=RECORDS_KEY, max_dataset_records=40)
        dataset_id = embedding(api, 128)
        problem = refused(
            send(api, dataset_id, ("application/x-npy", npy(np.ones((21, 128))))), 422, "validation_failed"
        )
        assert "a dataset may have at most 20 records of 128 columns" in problem["detail"]
        assert send(api, dataset_id, ("application/x-npy", npy(np.full((20, 128), 0.01)))).status_code == 201


class TestJob:
    @pytest.mark.parametrize(
        ("algorithm", "remedy"),
        [
            (PRIVATE, "set delta"),
            ({"type": "auto", "epsilon": 1.0, "clusters": 2}, "set delta"),
            (PRIVATE | {"epsilon": 1e-6, "delta": 1e-15}, "increase epsilon or delta"),
            ({"type": "dp_kmeans", "epsilon": 1.0, "clusters": 2}, "use private_kmeans with a delta"),
            ({"type": "density_map", "epsilon": 1.0}, "1 to 3 features"),
        ],
    )
    def test_that_does_not_support_65_features_is_refused_before_a_charge(
        self, api: Api, algorithm: dict[str, Any], remedy: str
    ) -> None:
        dataset_id = embedding(api, 65)
        problem = refused(
            api.post("/jobs", {"dataset_id": dataset_id, "algorithm": algorithm}), 422, "validation_failed"
        )
        assert remedy in problem["detail"]
        assert api.budget(dataset_id)["ledger_seq"] == 1
        forecast = {"algorithm": algorithm, "dataset_id": dataset_id, "expected_records": 1000}
        assert remedy in refused(api.post("/forecasts", forecast), 422, "validation_failed")["detail"]

    def test_of_auto_over_reports_takes_no_delta(self, api: Api) -> None:
        algorithm = {"type": "auto", "epsilon": 1.0, "delta": DELTA}
        for more in ({"target_reports": 1000}, {"round_ids": [api.round(api.dataset()["id"])["id"]]}):
            body = {"dataset_id": api.dataset()["id"], "algorithm": algorithm} | more
            problem = refused(api.post("/jobs", body), 422, "validation_failed")
            assert [error["pointer"] for error in problem["errors"]] == ["/algorithm/delta"]

    @pytest.mark.parametrize(
        ("algorithm", "d"),
        [
            ({"type": "auto", "epsilon": 1.0, "clusters": 2}, 65),
            pytest.param(PRIVATE, 1536, marks=pytest.mark.slow),
        ],
    )
    def test_with_a_delta_finds_the_clusters(
        self, api: Api, database: Database, algorithm: dict[str, Any], d: int
    ) -> None:
        n = 2000
        dataset_id = embedding(api, d)
        chance = np.random.default_rng(0)
        centres = np.eye(d)[:2]
        points = centres[np.arange(n) % 2] + chance.normal(0, 0.4 / d**0.5, size=(n, d))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        assert send(api, dataset_id, ("application/x-npy", npy(points.astype(np.float32)))).json()["n_clipped"] == 0
        body = {"dataset_id": dataset_id, "algorithm": algorithm | {"delta": DELTA}}
        job_id = api.made("/jobs", body)["id"]
        assert api.budget(dataset_id)["delta_reserved"] == DELTA
        run(database, claim_job(database, job_id), keyring=lambda: KEYRING)
        model = api.get(f"/jobs/{job_id}/result").json()["model"]
        assert np.shape(model["centroids"]) == (2, d)
        assert np.linalg.norm(model["centroids"], axis=1).max() <= 1 + 1e-9
        labels = api.made(f"/jobs/{job_id}/assign", {"points": points[:100].tolist()})["labels"]
        assert np.bincount(np.array(labels) ^ np.arange(100) % 2, minlength=2).max() >= 99


def test_the_sdk_reads_an_embedding(api: Api) -> None:
    with Client(str(api.http.base_url), api.secret, transport=api.http._transport) as client:
        created = client.create_dataset("d", Embedding(80, 2.0), epsilon=1, delta=DELTA, trust="central")
        assert created.embedding == Embedding(80, 2.0)
        assert created.features == Embedding(80, 2.0).features
        stored = client.upload_records(created.id, np.zeros((2, 80)))
        assert (stored.n_records, stored.n_zeros, stored.n_constant, stored.n_lacking) == (2, 2, 80, 48)
        assert "68 more" in created._repr_html_()
