"""Labels of points and of records that clients send in each format."""

import numpy as np
import pyarrow as pa
import pytest

from service.ingestion import point_formats
from tests.service.api import FEATURES, SQLITE_ONLY, Api, a_model, refused, unknown

OCTETS = {"Content-Type": "application/octet-stream"}
STREAM = {"Content-Type": "application/vnd.apache.arrow.stream"}
CSV = {"Content-Type": "text/csv"}
NAMES = [each["name"] for each in FEATURES]
POINTS = np.random.default_rng(3).random((3000, len(FEATURES)))


def stream(points: np.ndarray, *, names: list[str] | None = None) -> bytes:
    columns = {name: points[:, i] for i, name in enumerate(names or NAMES)}
    return to_stream(pa.table(dict(reversed(columns.items()))))


def to_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def csv(points: np.ndarray) -> bytes:
    return "\n".join([",".join(NAMES), *(",".join(map(repr, row)) for row in points.tolist())]).encode()


@SQLITE_ONLY
class TestPoints:
    def test_in_every_format_get_the_labels_of_the_model(self, api: Api) -> None:
        path, expected = f"/jobs/{api.finished_job()}/assign", a_model().assign(POINTS).tolist()
        answers = [
            api.post(path, {"points": POINTS.tolist()}),
            api.post(path, content=POINTS.astype("<f8").tobytes(), headers=OCTETS),
            api.post(path, content=stream(POINTS), headers=STREAM),
            api.post(path, {"columns": NAMES[::-1], "rows": POINTS[:, ::-1].tolist()}),
            api.post(path, {"rows": POINTS.tolist(), "columns": NAMES}),
            api.post(path, content=csv(POINTS), headers=CSV),
        ]
        assert [each.status_code for each in answers] == [200] * 6, [each.text[:200] for each in answers]
        assert [each.json()["labels"] for each in answers] == [expected] * 6
        for body in ({"content": b"", "headers": OCTETS}, {"json": {"points": []}}):
            assert api.post(path, **body).json() == {"labels": [], "names": []}

    def test_must_be_finite_and_complete(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        path = f"/jobs/{api.finished_job()}/assign"
        nan = np.full((1, len(FEATURES)), np.nan).tobytes()
        for content in (nan, nan[:-1], POINTS.tobytes()[:-8]):
            refused(api.post(path, content=content, headers=OCTETS), 422, "validation_failed")
        for points in ([[1]], [["1"] * len(FEATURES)], [None], "no", {}, [[1.0] * (len(FEATURES) + 1)]):
            problem = refused(api.post(path, {"points": points}), 422, "validation_failed")
            assert [each["pointer"] for each in problem["errors"]] == ["/points"]
        refused(api.post(path, {}), 422, "validation_failed")
        refused(api.post(path, content=stream(POINTS, names=["a", "b"]), headers=STREAM), 422, "validation_failed")
        refused(api.post(path, content=b"", headers=CSV), 422, "validation_failed")
        refused(api.post(path, content=b"", headers={"Content-Type": "text/plain"}), 415, "unsupported_media_type")
        for body in ({"columns": NAMES}, {"rows": []}, {"points": [], "columns": NAMES, "rows": []}):
            problem = refused(api.post(path, body), 422, "validation_failed")
            assert "either `points`, or `columns` and `rows`" in problem["detail"]
        monkeypatch.setattr(point_formats, "MAX_POINTS", 2)
        refused(api.post(path, {"points": POINTS[:3].tolist()}), 413, "payload_too_large")

    def test_of_which_one_is_not_finite_name_its_number(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(point_formats, "_POINTS_AT_ONCE", 100)
        path, points = f"/jobs/{api.finished_job()}/assign", POINTS.copy()
        points[1234, 1] = np.inf
        answers = [
            api.post(path, content=points.tobytes(), headers=OCTETS),
            api.post(path, content=stream(points), headers=STREAM),
            api.post(path, content=csv(points), headers=CSV),
        ]
        for each in answers:
            detail = refused(each, 422, "validation_failed")["detail"]
            assert detail.startswith(f"record 1235: {NAMES[1]} must be a finite number")

    def test_are_read_after_the_job_was_found(self, api: Api) -> None:
        refused(api.post(f"/jobs/{unknown('job')}/assign", content=b"not a document", headers=OCTETS), 404, "not_found")
