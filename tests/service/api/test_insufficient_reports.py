"""A job that expects too few reports for any useful result is refused at no cost."""

from typing import Any, ClassVar

import pytest

from sfumato.sizing import planned_rounds
from sfumato.specs import LOCAL_ALGORITHMS
from tests.service.api import SQLITE_ONLY, Api, refused


@SQLITE_ONLY
class TestTooFewExpectedDevices:
    """Jobs with fewer than a tenth of the reports that the forecast requires."""

    SKETCH: ClassVar[dict[str, Any]] = {"type": "phase_sketch", "epsilon": 1.0, "clusters": 4}

    @pytest.mark.parametrize(
        ("tag", "epsilon", "clusters"),
        [
            *(("phase_sketch", 1.0, 4), ("auto", 0.1, 5), ("ldp_kmeans", 0.5, 4), ("grid_kmeans", 0.5, 4)),
            *(("noisy_fcm", 0.5, 4), ("shifted_grid", 0.1, 9)),
        ],
    )
    def test_are_refused_with_the_number_needed(self, api: Api, tag: str, epsilon: float, clusters: int) -> None:
        dataset_id, algorithm = api.dataset()["id"], {"type": tag, "epsilon": epsilon, "clusters": clusters}
        body = {"dataset_id": dataset_id, "algorithm": algorithm}
        problem = refused(api.post("/jobs", body | {"target_reports": 100}), 422, "insufficient_reports")
        insufficient = api.made("/forecasts", body | {"expected_reports": 100})["insufficient"]
        assert problem["reports_needed"] == insufficient["reports_needed"] > 1000
        assert problem["detail"].startswith(insufficient["reason"])
        assert api.budget(dataset_id)["reserved"] == 0
        assert api.get("/jobs").json()["items"] == []

    def test_are_accepted_from_a_tenth_or_with_an_override_or_over_earlier_rounds(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        body = {"dataset_id": dataset_id, "algorithm": self.SKETCH}
        few = body | {"target_reports": 1}
        tenth = -(-refused(api.post("/jobs", few), 422, "insufficient_reports")["reports_needed"] // 10)
        refused(api.post("/jobs", body | {"target_reports": tenth - 1}), 422, "insufficient_reports")
        for more in ({"target_reports": tenth}, few | {"allow_insufficient": True}):
            assert api.post("/jobs", body | more).status_code == 202

    def test_of_earlier_rounds_are_refused_unless_they_can_give_a_result(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        empty, filled = (api.round(dataset_id)["id"] for _ in range(2))
        api.report(filled)
        for each in (empty, filled):
            api.made(f"/rounds/{each}/close?allow_empty=true", None)
        body = {"dataset_id": dataset_id, "algorithm": {"type": "uniform_grid", "epsilon": 8}}
        problem = refused(api.post("/jobs", body | {"round_ids": [filled, empty]}), 422, "validation_failed")
        assert [each["pointer"] for each in problem["errors"]] == ["/round_ids/1"]
        assert f"round {empty} has no reports" in problem["detail"]
        sketch = body | {"algorithm": {"type": "phase_sketch", "epsilon": 8, "clusters": 2}, "round_ids": [filled]}
        problem = refused(api.post("/jobs", sketch), 422, "validation_failed")
        assert "has the encoding grid, but phase_sketch reads phase: use another algorithm" in problem["detail"]
        api.made("/jobs", body | {"round_ids": [filled]})
        for tag, needed in (("ldp_kmeans", "nearest_centroid"), ("auto, which auto selects", "")):
            chosen = {"type": tag.split(",")[0], "epsilon": 8, "clusters": 2}
            problem = refused(api.post("/jobs", sketch | {"algorithm": chosen}), 422, "validation_failed")
            assert problem["errors"][0]["pointer"] == "/round_ids/0"
            assert (f"{tag} reads {needed}" if needed else "which auto selects for 1 reports") in problem["detail"]
        shifted = api.round(
            dataset_id, epsilon=0.1, encoding={"type": "shifted_grid", "cells": 2, "shifts": 2, "n_features": 2}
        )
        api.report(shifted["id"])
        api.made(f"/rounds/{shifted['id']}/close", None)
        many = {"dataset_id": dataset_id, "algorithm": {"type": "shifted_grid", "epsilon": 0.1, "clusters": 9}}
        over = many | {"round_ids": [shifted["id"]]}
        assert refused(api.post("/jobs", over), 422, "insufficient_reports")["reports_needed"] > 1000
        api.made("/jobs", over | {"allow_insufficient": True})

    def test_of_another_number_of_rounds_are_refused(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        ids = [api.round(dataset_id, epsilon=1)["id"] for _ in range(2)]
        for each in ids:
            api.report(each)
            api.made(f"/rounds/{each}/close", None)
        body = {"dataset_id": dataset_id, "algorithm": {"type": "uniform_grid", "epsilon": 2}, "round_ids": ids}
        (error,) = refused(api.post("/jobs", body), 422, "validation_failed")["errors"]
        assert error["pointer"] == "/round_ids"
        assert "uniform_grid uses one round, and round_ids names 2" in error["message"]

    def test_of_two_grids_are_refused(self, api: Api) -> None:
        dataset_id, ids = api.dataset()["id"], []
        for cells in (2, 2, 3):
            encoding = {"type": "shifted_grid", "cells": cells, "shifts": 2, "n_features": 2}
            ids.append(api.round(dataset_id, epsilon=0.1, encoding=encoding)["id"])
            api.report(ids[-1])
            api.made(f"/rounds/{ids[-1]}/close", None)
        body = {"dataset_id": dataset_id, "algorithm": {"type": "shifted_grid", "epsilon": 0.1, "clusters": 2}}
        body |= {"allow_insufficient": True}
        api.made("/jobs", body | {"round_ids": ids[:2]})
        (error,) = refused(api.post("/jobs", body | {"round_ids": ids}), 422, "validation_failed")["errors"]
        assert error["pointer"] == "/round_ids/2"
        assert f"another encoding or mechanism than round {ids[0]}" in error["message"]

    def test_have_another_message_if_no_number_suffices(self, api: Api) -> None:
        algorithm = {"type": "noisy_fcm", "epsilon": 0.000001, "clusters": 4}
        body = {"dataset_id": api.dataset()["id"], "algorithm": algorithm, "target_reports": 1000}
        problem = refused(api.post("/jobs", body), 422, "insufficient_reports")
        assert "reports_needed" not in problem
        assert "No number of reports is enough" in problem["detail"]


def test_earlier_rounds_are_checked_by_the_encodings_that_plans_open() -> None:
    for tag, kind in LOCAL_ALGORITHMS.items():
        if tag != "auto":
            params = {"epsilon": 4} | ({"clusters": 3} if "clusters" in kind.__dataclass_fields__ else {})
            for place, planned in enumerate(planned_rounds(kind(**params), 2, 10**6)):
                read = kind.definition.encodings(is_first=place == 0)
                assert planned.encoding is None or planned.encoding.type in read
