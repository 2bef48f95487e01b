"""Shuffled series over HTTP, from their creation to a window that a shuffler released."""

from typing import Any

import pytest

from models.collection import rounds
from models.encryption import load_keyring
from models.tables.rounds import Round
from runtime.settings import Settings
from sfumato.privacy.accounting import ATTO
from tests.service.api import Api, claim_job, refused
from tests.service.api.test_series import EVERY_WEEK, advance, body
from tests.service.shuffler import release, shuffled_dataset
from workers.job_runner import ClaimOutcome, run

TERMS = {"min_batch": 1000, "honest_share": 0.8}
SMALL: dict[str, Any] = {
    "windows": EVERY_WEEK | {"count": 2},
    "cycle": 2,
    "target_reports": 100,
    "min_batch": 20,
    "honest_share": 0.5,
    "algorithm": {"type": "shifted_grid", "epsilon": 3.0, "cells": 4},
    "allow_insufficient": True,
}


def test_a_shuffled_series_states_its_cost_towards_the_service(api: Api) -> None:
    made = api.made("/series", body({"id": shuffled_dataset(api)}, **TERMS))
    found = made["releases"]
    assert (found["min_batch"], found["honest_share"], found["delta_per_cycle"]) == (1000, 0.8, 1e-6)
    assert 0 < found["epsilon_per_cycle"] < made["epsilon_per_cycle"]
    assert found["epsilon_per_year"] == pytest.approx(4 * found["epsilon_per_cycle"])
    assert found["epsilon_total"] == pytest.approx(2 * found["epsilon_per_cycle"])
    assert found["delta_total"] == 2e-6
    wanted = {name: made[name] for name in ("dataset_id", "cycle", "target_reports")}
    asked = wanted | {"algorithm": {"type": "shifted_grid", "epsilon": 1.0}, **TERMS}
    predicted = api.post("/forecasts/series", asked).json()
    # the dataset counts records outside, which adds a symbol
    assert predicted["releases"]["epsilon_per_cycle"] == pytest.approx(found["epsilon_per_cycle"], rel=0.02)
    without = {name: value for name, value in asked.items() if name != "dataset_id"} | {"n_features": 2}
    assert api.post("/forecasts/series", without).json() == predicted
    many = api.post("/forecasts/series", asked | {"min_batch": 99_999}).json()
    assert "empty" in " ".join(many["warnings"])


def test_members_about_releases_are_required_or_refused(api: Api) -> None:
    dataset = {"id": shuffled_dataset(api)}
    missing = refused(api.post("/series", body(dataset, min_batch=1000)), 422, "validation_failed")
    assert [each["pointer"] for each in missing["errors"]] == ["/honest_share"]
    local = refused(api.post("/series", body(api.dataset(), **TERMS)), 422, "validation_failed")
    assert [each["pointer"] for each in local["errors"]] == ["/min_batch", "/honest_share"]
    large = refused(api.post("/series", body(dataset, **TERMS | {"min_batch": 100_000})), 422, "validation_failed")
    assert large["errors"][0]["pointer"] == "/min_batch"
    assert "lower min_batch" in large["errors"][0]["message"]
    alone = {"n_features": 2, "algorithm": {"type": "shifted_grid", "epsilon": 1.0}, "cycle": 1, "target_reports": 9}
    sent = refused(api.post("/forecasts/series", alone | {"shuffled_delta": 1e-7}), 422, "validation_failed")
    assert [each["pointer"] for each in sent["errors"]] == ["/min_batch", "/honest_share"]
    poor = shuffled_dataset(api, shuffled={"epsilon": 1e-3, "delta": 1e-3})
    refused(api.post("/series", body({"id": poor}, **TERMS)), 409, "budget_exhausted")
    assert api.list_all("/series", limit=20) == []


def test_windows_that_a_shuffler_releases_are_pooled(api: Api, settings: Settings) -> None:
    """Two windows of one cycle cost one release, and their clusters have ids."""
    made = api.made("/series", body({"id": shuffled_dataset(api)}, **SMALL))
    for index in range(2):
        (job_id,) = advance(api, made["id"], 0)
        step(api, job_id, settings, ClaimOutcome.COLLECTING)
        opened = round_of(api, job_id)
        assert opened.release == rounds_terms(made)
        release(api, opened.id, 40 + index)
        step(api, job_id, settings, ClaimOutcome.SUCCEEDED)
        assert api.list_all(f"/series/{made['id']}/windows", limit=20)[index]["clusters"]
    found = api.get(f"/series/{made['id']}/map").json()
    assert [each["window"] for each in found["weights"]] == [0, 1]

    assert api.get(f"/series/{made['id']}").json()["epsilon_charged"] == 3.0
    entries = api.list_all(f"/datasets/{made['dataset_id']}/ledger", limit=20)
    amounts = [each["shuffled_nano"] for each in entries if each["kind"] == "charge"]
    assert amounts == [round(made["releases"]["epsilon_per_cycle"] * 1e9), 0]


def step(api: Api, job_id: str, settings: Settings, outcome: ClaimOutcome) -> None:
    """Let a worker work on a job."""
    claim = claim_job(api.database, job_id)
    assert run(api.database, claim, keyring=lambda: load_keyring(settings)) is outcome


def round_of(api: Api, job_id: str) -> Round:
    """Return the round of a window."""
    with api.database.reading() as session:
        (found,) = rounds.list_for_job(session, job_id)
    return found


def rounds_terms(made: dict[str, Any]) -> Any:
    """Return the terms that the rounds of a series must have."""
    from models.tables.rounds import ReleaseTerms

    found = made["releases"]
    return ReleaseTerms(found["min_batch"], round(found["honest_share"] * 1e9), round(found["delta_per_cycle"] * ATTO))
