"""A job that expects so few reports that no result could mean anything is refused before it costs anything."""

from typing import Any, ClassVar

import pytest

from models.db import Database
from tests.service.api import Api, refused


class TestTooFewDevicesExpected:
    """Fewer than a tenth of what the forecast says is needed: refused before anything is reserved."""

    SKETCH: ClassVar[dict[str, Any]] = {"type": "phase_sketch", "epsilon": 1.0, "clusters": 4}

    @pytest.mark.parametrize(
        "algorithm",
        [
            SKETCH,
            {"type": "auto", "epsilon": 0.1, "clusters": 5},
            {"type": "ldp_kmeans", "epsilon": 0.5, "clusters": 4},
            {"type": "grid_kmeans", "epsilon": 0.5, "clusters": 4},
            {"type": "noisy_fcm", "epsilon": 0.5, "clusters": 4},
            {"type": "shifted_grid", "epsilon": 0.1, "clusters": 9},
        ],
        ids=lambda algorithm: algorithm["type"],
    )
    def test_is_refused_with_how_many_would_do(self, api: Api, algorithm: dict[str, Any]) -> None:
        made = api.dataset()
        body = {"dataset_id": made["id"], "algorithm": algorithm, "target_reports": 100}
        problem = refused(api.post("/jobs", body), 422, "insufficient_reports")
        asked = {"algorithm": algorithm, "dataset_id": made["id"], "expected_reports": 100}
        foretold = api.made("/forecasts", asked)["insufficient"]
        assert problem["reports_needed"] == foretold["reports_needed"] > 1000
        assert problem["detail"].startswith(foretold["reason"])
        assert api.get(f"/datasets/{made['id']}/budget").json()["reserved"] == 0
        assert api.get("/jobs").json()["items"] == []

    def test_is_taken_from_a_tenth_on_and_where_the_caller_insists(self, api: Api) -> None:
        made = api.dataset()
        body = {"dataset_id": made["id"], "algorithm": self.SKETCH, "target_reports": 1}
        needed = refused(api.post("/jobs", body), 422, "insufficient_reports")["reports_needed"]
        tenth = -(-needed // 10)
        refused(api.post("/jobs", body | {"target_reports": tenth - 1}), 422, "insufficient_reports")
        assert api.post("/jobs", body | {"target_reports": tenth}).status_code == 202
        assert api.post("/jobs", body | {"allow_insufficient": True}).status_code == 202

    def test_is_not_looked_at_over_earlier_rounds(self, api: Api, database: Database) -> None:
        made = api.dataset()
        earlier = api.round(made["id"])
        api.made(f"/rounds/{earlier['id']}/close", None)
        body = {"dataset_id": made["id"], "algorithm": self.SKETCH, "round_ids": [earlier["id"]]}
        assert api.post("/jobs", body).status_code == 202

    def test_that_no_number_would_mend_says_so(self, api: Api) -> None:
        made = api.dataset()
        algorithm = {"type": "noisy_fcm", "epsilon": 0.000001, "clusters": 4}
        body = {"dataset_id": made["id"], "algorithm": algorithm, "target_reports": 1000}
        problem = refused(api.post("/jobs", body), 422, "insufficient_reports")
        assert "reports_needed" not in problem
        assert "no number of reports would do" in problem["detail"]
