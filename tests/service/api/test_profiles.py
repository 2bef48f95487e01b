"""Profiles of clusters over HTTP, in the SDK, the command line and the console, from upload to cards."""

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from models.database.engine import Database
from models.jobs.claims import Claim
from models.tables.jobs import Job as JobRow
from service.schemas.jobs import Job as JobSchema
from service.schemas.results import Result as ResultSchema
from sfumato.api.client import Client
from sfumato.api.parsers import parse_result
from sfumato.errors import InvalidSpec
from sfumato.profiles.cluster_profile import ClusterProfile
from sfumato.specs.attributes import Categorical, Numeric
from tests.service.api import SQLITE_ONLY, Api, claim_job, refused
from tests.service.commands import connect_commands, run_command
from tests.service.console.session import Console, once, words
from tests.workers.archive import KEYRING
from workers.central_job import JobJournal
from workers.job_runner import ClaimOutcome, run

N = 6_000
PLAN: dict[str, Any] = {"name": "plan", "kind": "categorical", "values": ["free", "pro"], "missing": "category"}
AGE: dict[str, Any] = {"name": "age", "kind": "numeric", "bins": [0, 30, 60, 120], "unit": "years"}
CLUSTERS = {"type": "private_kmeans", "epsilon": 1.0, "clusters": 2}


def people() -> list[list[Any]]:
    """Return two clusters of equal size; 70 % of the second one have the plan pro, and 20 % of the first."""
    chance = np.random.default_rng(0)
    second = np.arange(N) % 2
    x = np.clip(np.where(second, 0.7, 0.3) + chance.normal(0, 0.05, N), 0, 1)
    pro = chance.random(N) < np.where(second, 0.7, 0.2)
    age = chance.uniform(0, 120, N)
    return [[float(a), "pro" if b else "free", float(c)] for a, b, c in zip(x, pro, age, strict=True)]


def clustered(api: Api, database: Database, **other: Any) -> tuple[str, str]:
    """Create a dataset with records and a job with two clusters. Return the ids."""
    features = [{"name": "x", "lower": 0.0, "upper": 1.0}]
    dataset_id = str(api.dataset(trust="central", features=features, attributes=[PLAN, AGE], **other)["id"])
    api.made(f"/datasets/{dataset_id}/records", {"columns": ["x", "plan", "age"], "rows": people()})
    job_id = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": CLUSTERS})["id"]
    assert work(database, job_id) == ClaimOutcome.SUCCEEDED
    return dataset_id, job_id


def work(database: Database, job_id: str) -> ClaimOutcome:
    return run(database, claim_job(database, job_id), keyring=lambda: KEYRING)


def profile_of(job_id: str, **other: Any) -> dict[str, Any]:
    return {"type": "profile", "of": job_id, "attributes": ["plan", "age"], "epsilon": 0.5} | other


class TestAProfile:
    def test_names_the_values_that_distinguish_clusters_and_costs_its_own_budget(
        self, api: Api, database: Database
    ) -> None:
        dataset_id, job_id = clustered(api, database)
        job = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": profile_of(job_id, attributes=["age", "plan"])})
        JobSchema.model_validate(job)
        assert (job["epsilon"], job["algorithm"]["type"], job["features"]) == (0.5, "profile", None)
        assert work(database, job["id"]) == ClaimOutcome.SUCCEEDED
        result = api.get(f"/jobs/{job['id']}/result").json()
        ResultSchema.model_validate(result)
        clusters = api.get(f"/jobs/{job_id}/result").json()
        assert (result["model"], clusters["profile"]) == (clusters["model"], None)
        profile = result["profile"]
        assert [each["name"] for each in profile["attributes"]] == ["plan", "age"]
        second = int(np.argmax([centre[0] for centre in result["model"]["centroids"]]))
        first = profile["distinguishing"][0]
        assert first["attribute"] == "plan"
        (pro,) = (each for each in profile["distinguishing"] if (each["cluster"], each["value"]) == (second, "pro"))
        assert pro["share"] == pytest.approx(0.7, abs=0.06)
        assert pro["rest"] == pytest.approx(0.2, abs=0.06)
        assert [charge["description"] for charge in result["odometer"]] == ["tables"]
        assert result["epsilon"] == 0.5
        assert api.budget(dataset_id)["charged_nano"] == 1_500_000_000
        parsed = parse_result(result)
        assert isinstance(parsed.profile, ClusterProfile)

    @SQLITE_ONLY
    def test_that_does_not_fit_is_refused_before_a_charge(self, api: Api, database: Database) -> None:
        dataset_id, job_id = clustered(api, database)
        waiting = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": CLUSTERS})["id"]
        other = api.dataset(trust="central")["id"]
        before = api.budget(dataset_id)["reserved_nano"]
        for body, status, pointer, text in (
            ({"algorithm": profile_of(job_id, attributes=["plam"])}, 422, "/algorithm/attributes", "use 'plan'"),
            ({"algorithm": profile_of(job_id, attributes=["plan", "plan"])}, 422, "/algorithm", "twice"),
            ({"algorithm": profile_of(waiting)}, 409, None, "is queued"),
            ({"algorithm": profile_of("job_" + "0" * 26)}, 404, None, ""),
            ({"algorithm": profile_of("job_\0")}, 422, "/algorithm/of", ""),
            ({"algorithm": profile_of(job_id), "dataset_id": other}, 422, "/algorithm/of", "another dataset"),
            ({"algorithm": profile_of(job_id), "features": ["x"]}, 422, "/features", "attributes"),
            ({"algorithm": profile_of(job_id), "target_reports": 9}, 422, "/target_reports", "records"),
            ({"algorithm": profile_of(job_id, first_pass=0.6)}, 422, "/algorithm", ""),
        ):
            answer = api.post("/jobs", {"dataset_id": dataset_id} | body)
            assert answer.status_code == status, answer.text
            assert text in answer.text
            if pointer is not None:
                assert answer.json()["errors"][0]["pointer"].startswith(pointer)
        assert api.budget(dataset_id)["reserved_nano"] == before

    @SQLITE_ONLY
    def test_of_a_profile_is_refused_with_the_job_of_its_clusters(self, api: Api, database: Database) -> None:
        dataset_id, job_id = clustered(api, database)
        first = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": profile_of(job_id)})["id"]
        work(database, first)
        problem = refused(
            api.post("/jobs", {"dataset_id": dataset_id, "algorithm": profile_of(first)}), 422, "validation_failed"
        )
        assert f"name the job of its clusters, {job_id}" in problem["errors"][0]["message"]

    def test_of_a_worker_that_died_reads_its_stored_answers_and_charges_once(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset_id, job_id = clustered(api, database)
        profile = profile_of(job_id, delta=0, first_pass=0.2)  # a count, associations, tables
        job = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": profile})["id"]
        keep, kept = JobJournal.keep, []

        def die_after_one(journal: JobJournal, index: int, noisy: Any) -> None:
            if index:
                raise KeyboardInterrupt  # after the second charge, before its answer is stored
            keep(journal, index, noisy)
            kept.append(noisy.tolist())

        monkeypatch.setattr(JobJournal, "keep", die_after_one)
        with pytest.raises(KeyboardInterrupt):
            run(database, claim_job(database, job), keyring=lambda: KEYRING)
        assert api.get(f"/jobs/{job}").json()["state"] == "running"
        assert api.budget(dataset_id)["charged_nano"] == 1_105_000_000  # the count and the associations
        monkeypatch.setattr(JobJournal, "keep", keep)
        charge, read = JobJournal.charge, list[Any]()

        def charge_and_note(journal: JobJournal, index: int, query: Any) -> Any:
            stored = charge(journal, index, query)
            read.append(None if stored is None else stored.tolist())
            return stored

        monkeypatch.setattr(JobJournal, "charge", charge_and_note)
        with database.transaction() as session:  # the lease ends, and another worker claims the job
            session.get_one(JobRow, job).fence = 2
        assert run(database, Claim(job, 2), keyring=lambda: KEYRING) == ClaimOutcome.SUCCEEDED
        result = api.get(f"/jobs/{job}/result").json()
        assert api.budget(dataset_id)["charged_nano"] == 1_500_000_000
        assert [each["description"] for each in result["odometer"]] == ["counts", "scores", "tables"]
        assert read == [kept[0], None, None]  # the second worker draws what the first one did not store


@SQLITE_ONLY
class TestAForecast:
    def test_states_the_error_of_shares_and_costs_nothing(self, api: Api, database: Database) -> None:
        dataset_id, job_id = clustered(api, database)
        body = {"algorithm": profile_of(job_id), "expected_records": N}
        found = api.made("/forecasts/profiles", body)
        assert found["noise_per_count"] == pytest.approx(2**0.5 * 2 / 0.5)
        assert found["share_errors"] == pytest.approx([found["noise_per_count"] / (N / 2)] * 2, rel=0.1)
        assert found["warnings"] == []
        few = api.made("/forecasts/profiles", body | {"expected_records": 20})
        assert few["too_small"] == [0, 1]
        assert "Too few records" in few["warnings"][0]
        assert api.budget(dataset_id)["reserved_nano"] == 0
        for algorithm in (profile_of(job_id, attributes=["nobody"]), profile_of("job_\0"), profile_of("ds_1")):
            refused(api.post("/forecasts/profiles", body | {"algorithm": algorithm}), 422, "validation_failed")


@SQLITE_ONLY
class TestTheSdk:
    def test_uploads_a_frame_and_reads_cards(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attributes = [Categorical("plan", ["free", "pro"], missing="category"), Numeric("age", [0, 30, 60, 120])]
        frame = pd.DataFrame(people(), columns=["x", "plan", "age"])
        frame.loc[3, "plan"] = None
        connect_commands(api, monkeypatch)
        with Client("http://gateway", api.secret) as client:
            dataset = client.create_dataset("people", [("x", 0, 1)], epsilon=4, trust="central", attributes=attributes)
            assert client.get_dataset(dataset.id).attributes == tuple(attributes)
            stored = client.upload_records(dataset.id, frame)
            assert [(each.name, each.n_missing) for each in stored.attributes] == [("plan", 1), ("age", 0)]
            with pytest.raises(InvalidSpec, match="no column age"):
                client.upload_records(dataset.id, frame[["x", "plan"]])
            with pytest.raises(InvalidSpec, match="plan of record 1"):
                client.upload_records(dataset.id, frame.assign(plan=1.5))
            job = client.submit_job(dataset.id, CLUSTERS)
            work(database, job.id)
            made = job.profile(["plan"], epsilon=1.0)
            work(database, made.id)
            profile = made.result().profile
            assert profile is not None
            table = profile.table("plan")
            assert list(table.columns) == ["free", "free ±", "pro", "pro ±", "missing", "missing ±"]
            rounding = table[["free ±", "pro ±", "missing ±"]].sum(axis=1) / 10  # shares have one decimal more
            assert ((table[["free", "pro", "missing"]].sum(axis=1) - 1).abs() <= rounding).all()
            cluster = int(table["pro"].idxmax())
            listed = profile.distinguishing(cluster=cluster)
            assert {each.cluster for each in listed} == {cluster}
            assert re.match(r"plan = (pro|free) \d", str(listed[0]))
            with pytest.raises(InvalidSpec, match="no attribute 'plam': use 'plan'"):
                profile.table("plam")
            with pytest.raises(InvalidSpec, match="clusters are 0 to 1"):
                profile.distinguishing(2)
            assert len(profile.plot().axes) == 2
            assert "1 in 20" in profile._repr_html_()
            forecast = client.forecast_profile(job.id, ["plan"], epsilon=1.0, expected_records=N)
            assert len(forecast.share_errors) == 2


@SQLITE_ONLY
class TestTheCommandLine:
    def test_forecasts_submits_and_prints_a_profile(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_settings: None
    ) -> None:
        connect_commands(api, monkeypatch)
        monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
        _, job_id = clustered(api, database)
        given = ("profile", job_id, "--attributes", "plan,age", "--epsilon", ".5")
        assert "shares ± " in run_command(*given, "--forecast", "6000").output
        made = run_command(*given).output.splitlines()[-1]
        work(database, made)
        shown = run_command("jobs", "result", made).output
        assert "plan = pro" in shown
        assert "About 1 in 20 of the listed values may be chance" in shown

    def test_creates_attributes(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_settings: None
    ) -> None:
        connect_commands(api, monkeypatch)
        monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
        given = ("--epsilon", "1", "--trust", "central", "--feature", "x:0:1", "--category", "plan=free,pro")
        given += ("--bins", "age=0,18,120", "--unknown", "other", "--missing", "category")
        dataset_id = run_command("datasets", "create", "d", *given).output.splitlines()[-1]
        plan, age = api.get(f"/datasets/{dataset_id}").json()["attributes"]
        assert (plan["values"], plan["unknown"], plan["missing"]) == (["free", "pro"], "other", "category")
        assert (age["bins"], age["missing"]) == ([0.0, 18.0, 120.0], "category")
        assert "Attribute plan: free, pro, other, missing" in run_command("datasets", "show", dataset_id).output


@SQLITE_ONLY
class TestTheConsole:
    def test_shows_a_forecast_before_the_profile_and_cards_after_it(self, api: Api, database: Database) -> None:
        console = Console(api)
        dataset_id, job_id = clustered(api, database)
        page = console.text(f"/jobs/{job_id}/result")
        assert f"/console/jobs/{job_id}/profile" in page
        path = f"/jobs/{job_id}/profile"
        assert re.findall(r'name="attribute" value="(\w+)" checked', console.text(path)) == ["plan", "age"]
        form: dict[str, Any] = {"attribute": ["plan"], "epsilon": "0.5", "expected_records": "6000"}
        review = console.post(path, form | {"step": "review"})
        assert "This profile spends at most ε 0.5 of the remaining" in words(review)
        assert api.budget(dataset_id)["reserved_nano"] == 0
        location = console.location(path, form | {"step": "submit", "once": once(review.text)})
        made = location.rpartition("/")[2]
        work(database, made)
        cards = html.unescape(re.sub(r"<[^>]+>", "", console.text(f"/jobs/{made}/result")))
        assert "About 1 in 20 of the listed values may be chance" in cards
        assert re.search(r"plan = pro\s+\d+(\.\d+)? % ± [\d.]+ %, elsewhere \d", cards)
        page = console.get(f"/jobs/{made}/result.html")
        assert "attachment" in page.headers["content-disposition"]
        assert "What the clusters are" in page.text
        job_page = console.text(location)
        assert f"/console/jobs/{job_id}/profile" in job_page
        wrong = console.post(path, form | {"epsilon": "99", "step": "review"})
        assert "f-epsilon-wrong" in wrong.text

    def test_declares_attributes(self, api: Api) -> None:
        console = Console(api)
        form = {"name": "d", "trust": "central", "epsilon": "1", "features": "x, 0, 1"}
        lines = 'plan, categorical, free, "a, b"\nage, numeric, 0, 18, 120'
        location = console.location("/datasets", form | {"attributes": lines, "unknown_other": "true"})
        dataset = api.get(f"/datasets/{location.rpartition('/')[2]}").json()
        plan, age = dataset["attributes"]
        assert (plan["values"], plan["unknown"], age["bins"]) == (["free", "a, b"], "other", [0.0, 18.0, 120.0])
        assert "free, a, b" in html.unescape(console.text(f"{location}/settings"))
        for wrong in ("plan, categorical, free", "plan, words, a, b"):
            assert "f-attributes-wrong" in console.post("/datasets", form | {"attributes": wrong}).text
