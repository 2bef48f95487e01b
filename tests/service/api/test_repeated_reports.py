"""Reports that are sent again do not fill a round."""

import time

import pytest

from models.collection import report_intake
from tests.service.api import Api, packed, refused, single

OCTETS = {"Content-Type": "application/octet-stream"}


def send(api: Api, round_id: str, content: bytes) -> int:
    return api.post(f"/rounds/{round_id}/reports", content=content, headers=OCTETS).status_code


@pytest.mark.parametrize("inline_reports", [50_000, 10])
def test_a_round_stays_open_for_what_is_missing(api: Api, inline_reports: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_intake, "INLINE_REPORTS", inline_reports)
    round_id = api.round(api.dataset(min_reports=100)["id"], target_reports=100)["id"]
    first = packed(95)
    assert send(api, round_id, first) == 202
    for _ in range(20):
        assert send(api, round_id, first[:21]) == 202
    found = api.get(f"/rounds/{round_id}").json()
    assert (found["state"], found["n_received"]) == ("open", 115)

    assert send(api, round_id, packed(5)) == 202
    deadline = time.monotonic() + 60
    while (found := api.get(f"/rounds/{round_id}").json())["state"] == "open":
        assert time.monotonic() < deadline
        assert send(api, round_id, first[:21]) in (202, 409)
        time.sleep(0.05)
    refused(api.report(round_id), 409, "round_closed")


def test_one_report_never_closes_a_round(api: Api) -> None:
    round_id = api.round(api.dataset()["id"], target_reports=100)["id"]
    report = single()
    for _ in range(150):
        assert api.post(f"/rounds/{round_id}/reports", report).status_code == 202
    found = api.get(f"/rounds/{round_id}").json()
    assert (found["state"], found["n_received"]) == ("open", 150)
