"""Revisions of series over HTTP."""

from typing import Any

import pytest

from tests.service.api import Api, refused, unknown
from tests.service.api.test_series import EVERY_WEEK, advance, body, created
from tests.service.shuffler import shuffled_dataset

HALF = {"type": "shifted_grid", "epsilon": 0.5, "clusters": 4}


def revise(api: Api, series_id: str, **changes: Any) -> dict[str, Any]:
    """Revise a series, which must succeed."""
    return api.made(f"/series/{series_id}/revisions", changes)


def test_a_revision_applies_from_the_next_cycle(api: Api) -> None:
    made = created(api, windows=EVERY_WEEK | {"count": 4}, cycle=2)
    (first,) = advance(api, made["id"], 0)
    found = revise(api, made["id"], algorithm=HALF, season=2)
    assert (found["number"], found["first_window"], found["epsilon_per_cycle"]) == (1, 2, 0.5)
    assert (found["season"], found["target_reports"]) == (2, made["target_reports"])
    assert found["algorithm"].items() >= HALF.items()
    assert found["min_batch"] is None
    assert api.get(f"/series/{made['id']}").json()["revision"] == 0
    opened = [first, *(advance(api, made["id"], 0)[0] for _ in range(2))]
    assert [api.get(f"/jobs/{job_id}").json()["algorithm"]["epsilon"] for job_id in opened] == [1.0, 1.0, 0.5]
    now = api.get(f"/series/{made['id']}").json()
    assert (now["revision"], now["season"], now["epsilon_per_window"]) == (1, 2, 0.5)
    assert (now["epsilon_total"], now["epsilon_pending"]) == (2.0, 0.5)
    windows = api.list_all(f"/series/{made['id']}/windows", limit=20)
    assert [each["revision"] for each in windows] == [0, 0, 1, 1]
    listed = api.list_all(f"/series/{made['id']}/revisions", limit=1)
    assert [each["number"] for each in listed] == [0, 1]
    assert listed[1] == found
    assert listed[0]["algorithm"] == made["algorithm"]


@pytest.mark.parametrize(
    ("change", "pointer", "message"),
    [
        ({"algorithm": HALF | {"epsilon": 2.0}}, "", "the later 2 cycles cost epsilon 4"),
        ({"algorithm": {"type": "ldp_kmeans", "epsilon": 0.5, "clusters": 3}}, "/algorithm", "shifted_grid"),
        ({"season": 27}, "/season", "26"),
        ({}, "", "a revision must change one of them"),
        ({"season": 1, "algorithm": {"type": "shifted_grid", "epsilon": 1.0}}, "", "has these terms already"),
        ({"min_batch": 5, "honest_share": 0.5}, "/min_batch", "valid for a shuffled dataset only"),
        ({"windows": EVERY_WEEK}, "/windows", "unknown"),
    ],
)
def test_a_bad_revision_is_refused(api: Api, change: dict[str, Any], pointer: str, message: str) -> None:
    made = created(api)
    document = refused(api.post(f"/series/{made['id']}/revisions", change), 422, "validation_failed")
    assert pointer in [each["pointer"] for each in document["errors"]]
    texts = " ".join([document["detail"], *(each["message"] for each in document["errors"])])
    assert message in texts or message == "unknown"
    assert len(api.list_all(f"/series/{made['id']}/revisions", limit=20)) == 1


def test_a_revision_needs_a_series_that_goes_on_and_both_scopes(api: Api) -> None:
    made = created(api)
    at = f"/series/{made['id']}/revisions"
    refused(api.key("jobs").post(at, {"season": 2}), 403, "forbidden")
    assert api.key("jobs", "grants").post(at, {"season": 2}).status_code == 201
    few = refused(
        api.post(at, {"target_reports": 1300, "algorithm": HALF | {"epsilon": 0.1}}), 422, "insufficient_reports"
    )
    assert few["reports_needed"] > 1000
    api.patch(f"/series/{made['id']}", {"state": "ended"})
    assert "has ended" in refused(api.post(at, {"season": 3}), 409, "conflict")["detail"]
    refused(api.post(f"/series/{unknown('ser')}/revisions", {}), 404, "not_found")
    refused(api.get(f"/series/{unknown('ser')}/revisions"), 404, "not_found")


def test_a_shuffled_revision_keeps_the_terms_that_it_does_not_change(api: Api) -> None:
    terms = {"min_batch": 50_000, "honest_share": 0.8, "shuffled_delta": 1e-7}
    made = api.made("/series", body({"id": shuffled_dataset(api)}, **terms))
    same = revise(api, made["id"], season=2)
    assert (same["min_batch"], same["honest_share"], same["shuffled_delta_per_cycle"]) == (50_000, 0.8, 1e-7)
    assert same["shuffled_epsilon_per_cycle"] == made["releases"]["epsilon_per_cycle"]
    fewer = revise(api, made["id"], min_batch=10_000)
    assert fewer["honest_share"] == 0.8
    assert fewer["shuffled_epsilon_per_cycle"] > same["shuffled_epsilon_per_cycle"]
    large = refused(api.post(f"/series/{made['id']}/revisions", {"min_batch": 100_000}), 422, "validation_failed")
    assert large["errors"][0]["pointer"] == "/min_batch"
