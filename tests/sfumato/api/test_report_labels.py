"""Labels of reports: requests and parsed responses."""

from typing import Any

import httpx
import pytest

from sfumato.api.report_labels import ReportLabel
from sfumato.errors import ApiProblem, InvalidSpec
from tests.sfumato.answers import ok, serving
from tests.sfumato.scripted import refusal

ITEMS = [
    {"report_id": f"{i:032x}", "round_id": "rnd_1", "cluster": i % 2, "confidence": 0.5 + i / 10} for i in range(3)
]
PAGE = {"type": "reports", "expected_accuracy": 0.6, "baseline": 0.55, "caution": "little", "new_field": 1}


def paged(request: httpx.Request) -> httpx.Response:
    """Return pages with two items, or with one if the limit is one."""
    assert request.url.params["of"] == "reports"
    start = int(request.url.params.get("cursor", "0"))
    end = min(start + min(2, int(request.url.params["limit"])), len(ITEMS))
    return ok(PAGE | {"items": ITEMS[start:end], "next_cursor": None if end == len(ITEMS) else str(end)})


class TestReportLabels:
    def test_have_their_accuracy_and_are_fetched_page_after_page(self) -> None:
        service, client = serving({"GET jobs/job_1/labels": paged})
        labels = client.report_labels("job_1")
        assert (labels.expected_accuracy, labels.baseline, labels.caution) == (0.6, 0.55, "little")
        assert len(service.requests) == 1
        expected = [ReportLabel(**item) for item in ITEMS]
        assert list(labels) == expected
        assert list(labels) == expected

    def test_that_were_deleted_are_a_problem(self) -> None:
        _, client = serving({"GET jobs/job_1/labels": refusal(409, "conflict")})
        with pytest.raises(ApiProblem) as caught:
            client.report_labels("job_1")
        assert caught.value.code == "conflict"

    @pytest.mark.parametrize("answer", [{}, {"items": [], "next_cursor": None}, PAGE | {"baseline": "much"}])
    def test_are_refused_if_invalid(self, answer: dict[str, Any]) -> None:
        _, client = serving({"GET jobs/job_1/labels": ok(answer)})
        with pytest.raises(InvalidSpec):
            client.report_labels("job_1")
