"""Profiles from reports over HTTP, in the SDK, the command line and the console, from devices to cards."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.database.engine import Database
from models.database.types import canonical_json
from service.schemas.forecasts import ProfileForecast as ForecastSchema
from service.schemas.results import Result as ResultSchema
from service.schemas.rounds import Round as RoundSchema
from sfumato.api.client import Client
from sfumato.api.parsers import parse_result
from sfumato.device.bulk import pack, perturb_records
from sfumato.device.device import Device
from sfumato.device.sealing import seal
from sfumato.device.store import MemoryStore
from sfumato.errors import InvalidPoint, RoundRefused
from sfumato.specs import ProfileEncoding, round_spec_from_wire
from sfumato.specs.attributes import attributes_from_wire
from tests.service.api import SQLITE_ONLY, UNIFORM, Api, a_model, claim_job, finish, refused
from tests.service.commands import connect_commands, run_command
from tests.service.console.session import Console, once, words
from tests.service.ingestion.test_report_labels import send
from tests.service.shuffler import SHUFFLER, TERMS, signed
from tests.service.shuffler import send as send_batch
from tests.workers.archive import KEYRING
from workers.job_runner import ClaimOutcome, run

N = 6_000
PLAN: dict[str, Any] = {"name": "plan", "kind": "categorical", "values": ["free", "pro"], "missing": "category"}
AGE: dict[str, Any] = {"name": "age", "kind": "numeric", "bins": [0, 30, 60, 120], "unit": "years"}
ATTRIBUTES = ["plan", "age"]


def clustered(api: Api, **other: Any) -> tuple[str, str]:
    """Create a dataset with attributes and a job with the clusters left and right. Return the ids."""
    job_id = api.finished_job(a_model(), **{"attributes": [PLAN, AGE], "epsilon": 24} | other)
    return api.get(f"/jobs/{job_id}").json()["dataset_id"], job_id


def people(n: int = N) -> dict[str, Any]:
    """Return records: 70 % of the people on the right have the plan pro, and 20 % of those on the left."""
    chance = np.random.default_rng(0)
    right = np.arange(n) % 4 > 0
    pro = chance.random(n) < np.where(right, 0.7, 0.2)
    return {
        "x": (right + chance.random(n)) / 2,
        "y": chance.uniform(-1, 1, n),
        "plan": np.where(pro, "pro", "free"),
        "age": chance.uniform(0, 120, n),
    }


def profile_of(job_id: str, **other: Any) -> dict[str, Any]:
    return {"type": "profile", "of": job_id, "attributes": ATTRIBUTES, "epsilon": 4} | other


def submit(api: Api, dataset_id: str, job_id: str, **other: Any) -> str:
    body = {"dataset_id": dataset_id, "algorithm": profile_of(job_id), "target_reports": N}
    made: str = api.made("/jobs", body | other)["id"]
    return made


def work(database: Database, job_id: str) -> ClaimOutcome:
    return run(database, claim_job(database, job_id), keyring=lambda: KEYRING)


def open_round(api: Api, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/rounds/{api.get(f'/jobs/{job_id}').json()['progress']['open_round_id']}").json()
    RoundSchema.model_validate(found)
    return found


class TestAProfile:
    def test_collects_a_round_of_its_own_and_names_the_values_that_distinguish_clusters(
        self, api: Api, database: Database
    ) -> None:
        dataset_id, job_id = clustered(api)
        made = submit(api, dataset_id, job_id)
        assert work(database, made) == ClaimOutcome.COLLECTING
        used = open_round(api, made)
        assert (used["spec"]["encoding"]["type"], used["spec"]["encoding"]["labels"]) == ("profile", [0, 1])
        assert api.budget(dataset_id)["charged_nano"] == pytest.approx(4_000_000_000, abs=10)
        sent = perturb_records(round_spec_from_wire(used["spec"]), people())
        send(api, used["id"], pack(sent).tobytes())
        assert work(database, made) == ClaimOutcome.SUCCEEDED
        result = api.get(f"/jobs/{made}/result").json()
        ResultSchema.model_validate(result)
        profile = result["profile"]
        assert [each["name"] for each in profile["attributes"]] == ATTRIBUTES
        assert profile["sizes"] == pytest.approx([0.25, 0.75], abs=0.03)
        first = profile["distinguishing"][0]
        assert first["attribute"] == "plan"
        (pro,) = (each for each in profile["distinguishing"] if (each["cluster"], each["value"]) == (1, "pro"))
        assert pro["share"] == pytest.approx(0.7, abs=0.07)
        assert pro["rest"] == pytest.approx(0.2, abs=0.1)
        assert [each["n_reports"] for each in result["rounds"]] == [N]
        assert result["model"] == api.get(f"/jobs/{job_id}/result").json()["model"]
        assert api.budget(dataset_id)["reserved_nano"] == 0
        labels = refused(api.get(f"/jobs/{made}/labels", params={"of": "reports"}), 409, "conflict")
        assert f"name the job of its clusters, {job_id}" in labels["detail"]
        cards = words(Console(api).get(f"/jobs/{made}/result"))
        assert "What the clusters are" in cards
        assert "plan = pro" in cards
        parsed = parse_result(result).profile
        assert parsed is not None
        assert parsed.table("plan")["pro"].iloc[1] == pytest.approx(0.7, abs=0.07)

    @SQLITE_ONLY
    def test_that_does_not_fit_is_refused_before_a_charge(self, api: Api) -> None:
        dataset_id, job_id = clustered(api)
        before = api.budget(dataset_id)
        for changes, status, pointer, text in (
            ({"target_reports": None}, 422, "/target_reports", "required"),
            ({"algorithm": profile_of(job_id, delta=1e-6)}, 422, "/algorithm/delta", "over records only"),
            ({"algorithm": profile_of(job_id, first_pass=0.1)}, 422, "/algorithm/first_pass", "over records only"),
            ({"algorithm": profile_of(job_id, attributes=["plam"])}, 422, "/algorithm/attributes", "use 'plan'"),
            ({"round_ids": ["rnd_" + "0" * 26]}, 422, "/round_ids", "a round of its own"),
            ({"features": ["x"]}, 422, "/features", "attributes"),
            ({"min_batch": 20}, 422, "/min_batch", "shuffled"),
            ({"algorithm": profile_of(job_id, epsilon=0.1)}, 422, None, "allow_insufficient"),
        ):
            body = {"dataset_id": dataset_id, "algorithm": profile_of(job_id), "target_reports": N} | changes
            answer = api.post("/jobs", {name: value for name, value in body.items() if value is not None})
            assert answer.status_code == status, answer.text
            assert text in answer.text
            if pointer is not None:
                assert answer.json()["errors"][0]["pointer"] == pointer
            else:
                assert refused(answer, status, "insufficient_reports")["reports_needed"] > N
        assert api.budget(dataset_id) == before

    @SQLITE_ONLY
    def test_with_too_many_symbols_is_refused_with_the_limit(self, api: Api) -> None:
        many = {"name": "code", "kind": "categorical", "values": [f"v{place}" for place in range(256)]}
        model = a_model()
        wide = np.arange(20)[:, None] // np.ones(1, dtype=np.int64)
        model = type(model)(
            "label_map", model.features, np.full(20, 0.05), np.zeros(20), label_map=wide, diagnostics={"n_reports": 9}
        )
        job_id = api.finished_job(model, attributes=[many], epsilon=24)
        dataset_id = api.get(f"/jobs/{job_id}").json()["dataset_id"]
        body = {"dataset_id": dataset_id, "algorithm": profile_of(job_id, attributes=["code"]), "target_reports": N}
        problem = refused(api.post("/jobs", body), 422, "validation_failed")
        assert "must be at most 4096, not 5120" in problem["errors"][0]["message"]

    @SQLITE_ONLY
    def test_round_is_not_opened_on_its_own(self, api: Api) -> None:
        dataset_id, _ = clustered(api)
        encoding = {"type": "profile", "attributes": [PLAN], "cells": [2, 1], "starts": [0, 1], "labels": [0, 1]}
        body = {"encoding": encoding, "epsilon": 1, "target_reports": 100}
        problem = refused(api.post(f"/datasets/{dataset_id}/rounds", body), 422, "validation_failed")
        assert "submit a job of the type profile" in problem["errors"][0]["message"]

    @SQLITE_ONLY
    def test_of_a_dataset_without_attributes_describes_features(self, api: Api, database: Database) -> None:
        dataset_id, job_id = clustered(api, attributes=[])
        made = submit(api, dataset_id, job_id, algorithm=profile_of(job_id, attributes=["x", "y"]))
        work(database, made)
        spec = round_spec_from_wire(open_round(api, made)["spec"])
        assert isinstance(spec.encoding, ProfileEncoding)
        assert (spec.attributes, [each.name for each in spec.encoding.attributes]) == ((), ["x", "y"])


@SQLITE_ONLY
class TestShuffledReports:
    def test_give_a_profile_and_charge_the_release(self, api: Api, database: Database) -> None:
        shuffled = {"epsilon": 20, "delta": 1e-3}
        dataset_id = api.dataset(
            trust="shuffled", shuffled=shuffled, shuffler=SHUFFLER, attributes=[PLAN, AGE], epsilon=24
        )["id"]
        job_id = api.job(dataset_id, algorithm=UNIFORM, allow_insufficient=True, **TERMS)["id"]
        finish(database, job_id, a_model())
        terms = {"min_batch": 500, "honest_share": 0.5, "target_reports": 600, "allow_insufficient": True}
        missing = refused(
            api.post("/jobs", {"dataset_id": dataset_id, "algorithm": profile_of(job_id), "target_reports": 600,
                               "allow_insufficient": True}), 422, "validation_failed",
        )  # fmt: skip
        assert {each["pointer"] for each in missing["errors"]} == {"/min_batch", "/honest_share"}
        made = submit(api, dataset_id, job_id, **terms)
        assert work(database, made) == ClaimOutcome.COLLECTING
        (listed,) = api.get(f"/datasets/{dataset_id}/round").json()["rounds"]
        spec = round_spec_from_wire(listed["spec"])
        sent = perturb_records(spec, people(600))
        key = base64.b64decode(listed["hpke_public_key"])
        document = canonical_json(listed).encode()
        sealed = [
            seal(row.tobytes(), int(slot), value.tobytes(), listed["id"], document, key)
            for row, slot, value in zip(*sent, strict=True)
        ]
        assert send_batch(api, listed["id"], signed(listed["id"], sealed).body).status_code == 202
        assert work(database, made) == ClaimOutcome.SUCCEEDED
        result = api.get(f"/jobs/{made}/result").json()
        assert result["profile"]["diagnostics"]["n_reports"] == 600
        assert api.budget(dataset_id)["charged_shuffled_nano"] > 0


@SQLITE_ONLY
class TestADevice:
    def test_reports_its_cluster_and_one_attribute_once(self, api: Api, database: Database) -> None:
        dataset_id, job_id = clustered(api)
        made = submit(api, dataset_id, job_id)
        work(database, made)
        record = {"x": 0.9, "y": 0.0, "plan": None, "age": 44}
        declared = attributes_from_wire(api.get(f"/datasets/{dataset_id}").json()["attributes"])
        options = {"cap": 8, "transport": api.http._transport, "attributes": declared}
        with Device("http://gateway", api.secret, dataset_id, store=MemoryStore(), **options) as device:
            assert device.check(record).outside == ()
            with pytest.raises(InvalidPoint, match="age must be a finite number"):
                device.report(record | {"age": "old"})
            assert str(device.report(record).outcome) == "sent"
            assert str(device.report(record).outcome) == "already_answered"
            assert device.spent == pytest.approx(4, abs=1e-6)
        with Device(
            "http://gateway", api.secret, dataset_id, store=MemoryStore(), **options | {"attributes": declared[:1]}
        ) as old:
            with pytest.raises(RoundRefused, match="does not declare, or declares otherwise: age"):
                old.report({"x": 0.9, "y": 0.0, "plan": "pro"})
            assert old.spent == 0


@SQLITE_ONLY
class TestTheForecast:
    def test_states_errors_and_reports_before_a_cost(self, api: Api) -> None:
        dataset_id, job_id = clustered(api)
        made = api.post("/forecasts/profiles", {"algorithm": profile_of(job_id), "expected_reports": N}).json()
        ForecastSchema.model_validate(made)
        assert made["share_errors"][0] > made["share_errors"][1] > 0
        assert made["reports_needed"][0] > made["reports_needed"][1]
        problem = refused(
            api.post("/forecasts/profiles", {"algorithm": profile_of(job_id), "expected_records": N}),
            422,
            "validation_failed",
        )
        assert problem["errors"][0]["pointer"] == "/expected_reports"
        assert api.budget(dataset_id)["charged_nano"] == 0


@SQLITE_ONLY
class TestTheSurfaces:
    def test_of_sdk_and_command_line_submit_and_forecast(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_settings: None
    ) -> None:
        dataset_id, job_id = clustered(api)
        with Client("http://gateway", api.secret, transport=api.http._transport) as client:
            forecast = client.forecast_profile(job_id, ATTRIBUTES, epsilon=4, expected_reports=N)
            assert len(forecast.reports_needed) == 2
            made = client.profile(job_id, ATTRIBUTES, epsilon=4, target_reports=N)
            assert (made.target_reports, made.dataset_id) == (N, dataset_id)
            made.cancel()
        connect_commands(api, monkeypatch)
        monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
        given = ("profile", job_id, "--attributes", "plan,age", "--epsilon", "4")
        assert "± 2 points need" in run_command(*given, "--forecast", str(N)).output
        made_id = run_command(*given, "--target-reports", str(N)).output.splitlines()[-1]
        assert api.get(f"/jobs/{made_id}").json()["target_reports"] == N
        made_at = ("datasets", "create", "d", "--epsilon", "1", "--feature", "x:0:1", "--category", "plan=free,pro")
        created = run_command(*made_at).output.splitlines()[-1]
        assert api.get(f"/datasets/{created}").json()["attributes"][0]["name"] == "plan"

    def test_of_the_console_forecast_and_submit(self, api: Api) -> None:
        console = Console(api)
        _, job_id = clustered(api)
        path = f"/jobs/{job_id}/profile"
        assert "Expected reports" in console.text(path)
        form = {"attribute": ["plan", "age"], "epsilon": "4", "target_reports": str(N)}
        shown = words(console.post(path, form | {"step": "review"}))
        assert "for each device that reports" in shown
        assert "± 2 points need" in shown
        answer = console.post(path, form | {"step": "submit", "once": once(console.text(path))})
        assert answer.status_code == 303
        few = words(console.post(path, form | {"step": "submit", "target_reports": "10", "epsilon": "0.1"}))
        assert "allow_insufficient" in few
