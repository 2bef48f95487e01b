"""The console's jobs: from the form that says what is spent to the result."""

import csv
import io
import re
import threading
from typing import Any

import numpy as np
import pytest

from models import answer
from models.answer import Asked
from models.db import Database
from models.job import Claim, Job, JobState
from service.console.forms import SCHEMAS, fields, numeric, offered
from service.console.jobs import DRAWS
from sfumato.accounting import NANO
from sfumato.cluster_model import ClusterModel
from sfumato.specs import ALGORITHMS, CENTRAL_ALGORITHMS, LOCAL_ALGORITHMS, Feature
from tests.service.api import Api, a_model, finish
from tests.service.console import FORM, ORIGIN, Console, once, vars_of, words
from workers.runner import run


@pytest.fixture
def console(api: Api) -> Console:
    """An admin's session."""
    return Console(api)


class TestANewJob:
    def test_is_chosen_among_all_algorithms_that_fit(self, api: Api, console: Console) -> None:
        assert set(SCHEMAS) == set(ALGORITHMS)
        for trust, fit in (("local", LOCAL_ALGORITHMS), ("central", CENTRAL_ALGORITHMS)):
            dataset = api.dataset(trust=trust)
            shown = set(re.findall(r"\?type=([a-z_]+)", console.text(f"/datasets/{dataset['id']}/jobs/new")))
            assert shown == set(fit)

    @pytest.mark.parametrize("tag", sorted(ALGORITHMS))
    def test_has_a_field_for_every_parameter(self, api: Api, console: Console, tag: str) -> None:
        trust = "local" if tag in LOCAL_ALGORITHMS else "central"
        dataset = api.dataset(trust=trust)
        page = console.text(f"/datasets/{dataset['id']}/jobs/new?type={tag}")
        named = {field["name"] for field in fields(tag)}
        assert named == set(SCHEMAS[tag].model_fields) - {"type"}
        for name in named:
            assert f'name="{name}"' in page

    def test_says_what_it_spends_before_it_does_and_then_does(self, api: Api, console: Console) -> None:
        dataset = api.dataset(epsilon=1.2)
        path = f"/datasets/{dataset['id']}/jobs"
        review = console.post(path, FORM | {"step": "review"})
        assert "This spends at most 0.5 of the ε 1.2 left" in words(review)
        assert api.get("/jobs").json()["items"] == []
        answer = console.post(path, FORM | {"step": "submit", "once": once(review.text)})
        again = console.post(path, FORM | {"step": "submit", "once": once(review.text)})
        assert answer.status_code == again.status_code == 303
        assert answer.headers["location"] == again.headers["location"]
        (job,) = api.get("/jobs").json()["items"]
        assert answer.headers["location"] == f"/console/jobs/{job['id']}"
        assert job["algorithm"] | {"clusters": 3, "epsilon": 0.5, "type": "shifted_grid"} == job["algorithm"]
        assert (job["target_reports"], job["collect_seconds"]) == (100_000, 7 * 86_400)

    def test_is_forecast_as_the_api_forecasts_it(self, api: Api, console: Console) -> None:
        dataset = api.dataset()
        body = {"algorithm": {"type": "shifted_grid", "epsilon": 0.5, "clusters": 3}, "dataset_id": dataset["id"]}
        told = api.made("/forecasts", body | {"expected_reports": 100_000})
        answer = console.post(f"/datasets/{dataset['id']}/jobs/forecast", FORM, **{"hx-request": "true"})
        assert "<html" not in answer.text
        assert f"Confidence {told['confidence']}" in words(answer)
        assert api.get(f"/datasets/{dataset['id']}/budget").json()["reserved"] == 0

    def test_over_records_is_forecast_by_a_guess(self, api: Api, console: Console) -> None:
        dataset = api.dataset(trust="central", epsilon=2)
        form = {"type": "gated_grid_kmeans", "epsilon": "1", "clusters": "3", "expected_records": "10000"}
        path = f"/datasets/{dataset['id']}/jobs"
        assert "Spends at most ε 1" in words(console.post(f"{path}/forecast", form))
        review = console.post(path, form | {"step": "review"})
        assert "of everybody in the dataset" in words(review)
        assert console.post(path, form | {"step": "submit"}).status_code == 303

    @pytest.mark.parametrize(
        ("changed", "field"),
        [
            ({"epsilon": "x"}, "epsilon"),
            ({"epsilon": "-1"}, "epsilon"),
            ({"epsilon": "nan"}, "epsilon"),
            ({"epsilon": "1e400"}, "epsilon"),
            ({"clusters": "0"}, "clusters"),
            ({"clusters": "2.5"}, "clusters"),
            ({"clusters": "9" * 400}, "clusters"),
            ({"target_reports": "many"}, "target_reports"),
            ({"target_reports": "0"}, "target_reports"),
            ({"shifts": "99"}, "shifts"),
            ({"min_reports": "-1"}, "min_reports"),
        ],
        ids=lambda value: "-".join(map(str, value.values()))[:12] if isinstance(value, dict) else value,
    )
    def test_that_cannot_be_has_the_words_beside_the_field(
        self, api: Api, console: Console, changed: dict[str, str], field: str
    ) -> None:
        dataset = api.dataset()
        form = FORM | changed | {"step": "submit"}
        answer = console.post(f"/datasets/{dataset['id']}/jobs", form)
        assert answer.status_code == 422, answer.text
        assert re.search(rf'id="f-{field}-wrong" role="alert">\w', answer.text)
        (tag,) = re.findall(rf'<input id="f-{field}"[^>]*>', answer.text)
        assert 'aria-invalid="true"' in tag
        assert f"f-{field}-wrong" in tag
        assert api.get("/jobs").json()["items"] == []

    def test_beyond_the_budget_is_refused_in_the_ledgers_words(self, api: Api, console: Console) -> None:
        dataset = api.dataset(epsilon=0.25)
        path = f"/datasets/{dataset['id']}/jobs"
        assert "would spend ε 0.5, and 0.25 is left" in words(console.post(path, FORM | {"step": "review"}))
        answer = console.post(path, FORM | {"step": "submit"})
        assert answer.status_code == 409
        told = api.post("/jobs", {"dataset_id": dataset["id"], "algorithm": {"type": "uniform_grid", "epsilon": 0.5},
                                  "target_reports": 100_000}).json()  # fmt: skip
        assert told["detail"].split(";")[0][:20] in words(answer)

    def test_that_too_few_can_carry_says_so(self, api: Api, console: Console) -> None:
        dataset = api.dataset()
        path, few = f"/datasets/{dataset['id']}/jobs", FORM | {"target_reports": "3", "step": "submit"}
        assert console.post(path, few).status_code == 422
        assert console.post(path, few | {"allow_insufficient": "true"}).status_code == 303

    @pytest.mark.parametrize("tag", ["", "nothing", "dp_kmeans", "../x"])
    def test_of_no_fitting_algorithm_is_not_there(self, api: Api, console: Console, tag: str) -> None:
        dataset = api.dataset()
        answer = console.post(f"/datasets/{dataset['id']}/jobs", FORM | {"type": tag, "step": "review"})
        assert answer.status_code == 404

    def test_takes_numbers_as_they_are_meant(self) -> None:
        assert [numeric(text) for text in ("3", "0.5", "1e-6", "x", "inf", "")] == [3, 0.5, 1e-6, "x", "inf", ""]

    def test_offers_the_service_s_own_choice_first(self) -> None:
        assert [offered(trust)[0]["tag"] for trust in ("local", "central")] == ["auto", "auto"]


class TestAJob:
    def test_is_cancelled_from_its_page(self, api: Api, console: Console) -> None:
        job = api.job(api.dataset()["id"])
        page = console.text(f"/jobs/{job['id']}")
        assert f'data-live="/console/jobs/{job["id"]}/events"' in page
        assert console.post(f"/jobs/{job['id']}/cancel", {"once": once(page)}).status_code == 303
        page = console.text(f"/jobs/{job['id']}/live")
        assert "canceled" in page
        assert "data-live" not in page
        assert "<html" not in page

    def test_without_a_result_says_so(self, api: Api, console: Console) -> None:
        job = api.job(api.dataset()["id"])
        for path in ("result", "plot.svg", "plot.png", "map.json", "result.json", "clusters.csv"):
            answer = console.get(f"/jobs/{job['id']}/{path}")
            assert answer.status_code == 409
            assert "job_not_finished" in answer.text

    def test_is_listed_newest_first_over_pages(self, api: Api, console: Console) -> None:
        dataset_id = api.dataset(epsilon=32)["id"]
        made = [api.job(dataset_id)["id"] for _ in range(22)]
        first = console.text("/jobs")
        (older,) = re.findall(r'href="/console(/jobs\?before=[^"]+)"', first)
        seen = [re.findall(r">(job_\w{26})</a>", page) for page in (first, console.text(older))]
        assert seen[0] + seen[1] == sorted(made, reverse=True)

    def test_is_streamed_as_the_api_streams_it(self, api: Api, console: Console, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        finish(database, job["id"], a_model())
        answer = console.get(f"/jobs/{job['id']}/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.text == api.get(f"/jobs/{job['id']}/events").text
        assert "event: job" in answer.text
        (last,) = re.findall(r"id: (\w+)", answer.text)
        assert console.get(f"/jobs/{job['id']}/events", **{"last-event-id": last}).status_code == 204

    def test_is_streamed_no_longer_than_the_session_lasts(self, api: Api, console: Console) -> None:
        job = api.job(api.dataset()["id"])
        csrf, answers = console.csrf, []
        watching = threading.Thread(target=lambda: answers.append(console.get(f"/jobs/{job['id']}/events")))
        watching.start()
        out = console.http.post(
            "/console/logout", data={"csrf": csrf}, headers={"origin": ORIGIN, "cookie": console.cookie}
        )
        assert out.status_code == 303
        watching.join(60)
        assert not watching.is_alive()
        assert answers[0].status_code in (200, 303, 401)  # it may have been refused, if it came second


def held(database: Database, job_id: str) -> Claim:
    """A job as its worker holds it."""
    with database.transaction() as session:
        job = session.get_one(Job, job_id)
        job.state, job.fence, job.started_at = JobState.RUNNING.value, 1, database.clock()
    return Claim(job_id, 1)


def ask(database: Database, claim: Claim, index: int, what: str, epsilon_nano: int) -> None:
    """Charge a question, as a worker does before it draws."""
    with database.transaction() as session:
        answer.charge(session, claim, index, Asked(what, epsilon_nano, 4), now=database.clock())


def log_of(page: str) -> list[list[str]]:
    """The rows of a job's log of draws."""
    (table,) = re.findall(r'id="draws".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall("<td[^>]*>(.*?)</td>", row)]
        for row in re.findall("<tr>(.*?)</tr>", table)
    ]


class TestALogOfDraws:
    def central(self, api: Api, epsilon: float = 1.0) -> str:
        dataset = api.dataset(trust="central", epsilon=2)
        algorithm = {"type": "gated_grid_kmeans", "epsilon": epsilon, "clusters": 2}
        return str(api.made("/jobs", {"dataset_id": dataset["id"], "algorithm": algorithm})["id"])

    def test_over_records_grows_with_every_question_and_ends_with_the_rest(
        self, api: Api, console: Console, database: Database
    ) -> None:
        job_id = self.central(api)
        path = f"/jobs/{job_id}/live"
        assert log_of(console.text(path)) == [["2", "reserve", "this job", "1", "0", "1"]]
        claim = held(database, job_id)
        ask(database, claim, 0, "gate", NANO // 4)
        ask(database, claim, 1, "cells", NANO // 2)
        page = console.text(path)
        assert log_of(page) == [
            ["4", "post", "question #1", "0.5", "0.75", "0.25"],
            ["3", "post", "question #0", "0.25", "0.25", "0.75"],
            ["2", "reserve", "this job", "1", "0", "1"],
        ]
        assert "data-polled" in page  # no event tells of a question
        assert "privacy-post_processed" in page
        assert "gate" not in page.replace("gated_grid", "")  # what was asked is told by the result
        finish(database, job_id, a_model(), odometer=[("gate", 4, NANO // 4), ("cells", 4, NANO // 2)])
        page = console.text(path)
        assert log_of(page) == [
            ["5", "release", "what it did not spend", "0.25", "0.75", "0"],
            ["4", "post", "cells #1", "0.5", "0.75", "0.25"],
            ["3", "post", "gate #0", "0.25", "0.25", "0.75"],
            ["2", "reserve", "this job", "1", "0", "1"],
        ]
        assert "data-polled" not in page

    def test_is_what_the_ledger_of_the_api_says(self, api: Api, console: Console, database: Database) -> None:
        job_id = self.central(api, epsilon=0.75)
        claim = held(database, job_id)
        for index in range(DRAWS + 3):
            ask(database, claim, index, "sums", 1 + index)
        page = console.text(f"/jobs/{job_id}")
        shown, spent, expected = log_of(page), 0, []
        dataset_id = api.get(f"/jobs/{job_id}").json()["dataset_id"]
        first = api.get(f"/datasets/{dataset_id}/ledger").json()
        rest = api.get(f"/datasets/{dataset_id}/ledger", params={"cursor": first["next_cursor"]}).json()
        for entry in first["items"] + rest["items"]:
            spent += entry["epsilon_nano"] if entry["kind"] == "post" else 0
            expected.append([entry["seq"], entry["kind"], entry["epsilon_nano"], spent, NANO * 3 // 4 - spent])
        nano = [[int(row[0]), row[1], *(round(float(each) * NANO) for each in row[3:])] for row in shown]
        assert nano == expected[: -DRAWS - 1 : -1]
        assert f"The newest {DRAWS} entries" in page
        assert f'href="/console/datasets/{dataset_id}/ledger.csv"' in page

    def test_tells_no_times(self, api: Api, console: Console, database: Database) -> None:
        job_id = self.central(api)
        ask(database, held(database, job_id), 0, "gate", NANO // 4)
        _, log = console.text(f"/jobs/{job_id}/live").split('id="log"')
        assert re.findall(r"\d\d:\d\d|led_", log) == []

    def test_over_reports_has_what_each_round_added(self, api: Api, console: Console, database: Database) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        run(database, held(database, job_id))
        page = console.text(f"/jobs/{job_id}/live")
        (opened,) = re.findall(r'<td><a href="/console(/rounds/rnd_\w+)">round 0</a>', page)
        assert api.get(opened).json()["job_id"] == job_id
        assert log_of(page) == [
            ["3", "post", "round 0", "1", "1", "0"],
            ["2", "reserve", "this job", "1", "0", "1"],
        ]
        assert "data-polled" not in page  # a round that opens is an event
        assert console.post(f"/jobs/{job_id}/cancel").status_code == 303
        assert log_of(console.text(f"/jobs/{job_id}/live"))[0] == ["3", "post", "round 0", "1", "1", "0"]

    def test_of_a_cancelled_job_gives_everything_back(self, api: Api, console: Console) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        console.post(f"/jobs/{job_id}/cancel")
        assert log_of(console.text(f"/jobs/{job_id}/live")) == [
            ["3", "release", "what it did not spend", "1", "0", "0"],
            ["2", "reserve", "this job", "1", "0", "1"],
        ]

    def test_over_earlier_rounds_is_none(self, api: Api, console: Console) -> None:
        opened = api.round(api.dataset()["id"])
        api.post(f"/rounds/{opened['id']}/close")
        job_id = api.job(opened["dataset_id"], round_ids=[opened["id"]], target_reports=None)["id"]
        page = console.text(f"/jobs/{job_id}/live")
        assert 'id="draws"' not in page
        assert "It holds nothing and spends nothing" in page

    def test_is_not_for_a_key_that_may_not_read_the_ledger(self, api: Api, database: Database) -> None:
        job_id = self.central(api)
        ask(database, held(database, job_id), 0, "gate", NANO // 4)
        dataset_id = api.get(f"/jobs/{job_id}").json()["dataset_id"]
        analyst, auditor = api.key("jobs"), api.key("jobs", "ledger")
        assert analyst.get(f"/datasets/{dataset_id}/ledger").status_code == 403
        for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/live"):
            page = Console(analyst).text(path)
            assert "shown to keys with the scope" in page
            assert not re.search('id="draws"|data-polled|0\\.25|0\\.75|question', page)
            assert len(log_of(Console(auditor).text(path))) == 2


class TestAResult:
    def result(self, api: Api, database: Database, model: ClusterModel) -> str:
        features = [vars_of_feature(feature) for feature in model.features]
        job_id: str = api.job(api.dataset(features=features)["id"])["id"]
        finish(database, job_id, model)
        return job_id

    def test_shows_sizes_with_their_errors_and_what_each_field_is(
        self, api: Api, console: Console, database: Database
    ) -> None:
        job_id = self.result(api, database, a_model())
        text = words(console.get(f"/jobs/{job_id}/result"))
        assert "25.0 % ± 1.0 %" in text
        assert "sizes post_processed" in text
        assert "a warning" in text

    def test_is_downloaded_as_the_api_tells_it(self, api: Api, console: Console, database: Database) -> None:
        job_id = self.result(api, database, a_model())
        answer = console.get(f"/jobs/{job_id}/result.json")
        assert answer.content == api.get(f"/jobs/{job_id}/result").content
        assert answer.headers["content-disposition"] == f'attachment; filename="result-{job_id}.json"'
        picture = console.get(f"/jobs/{job_id}/plot.svg")
        assert picture.content == api.get(f"/jobs/{job_id}/plot.svg").content
        assert "script-src" not in picture.headers["content-security-policy"]
        pixels = console.get(f"/jobs/{job_id}/plot.png")
        assert pixels.content == api.get(f"/jobs/{job_id}/plot.png").content
        assert pixels.headers["content-type"] == "image/png"
        rows = list(csv.DictReader(io.StringIO(console.text(f"/jobs/{job_id}/clusters.csv"))))
        assert [(row["cluster"], row["size"], row["x"]) for row in rows] == [
            ("0", "0.25", "0.25"),
            ("1", "0.75", "0.75"),
        ]

    @pytest.mark.parametrize("n_features", [1, 64])
    def test_of_no_clusters_or_of_many_features_is_shown(
        self, api: Api, console: Console, database: Database, n_features: int
    ) -> None:
        features = tuple(Feature(f"f{i}", 0.0, 1.0, "") for i in range(n_features))
        n_clusters = 0 if n_features == 1 else 3
        model = ClusterModel(
            **vars_of(a_model(labels=False))
            | {
                "features": features,
                "sizes": np.full(n_clusters, 0.25),
                "size_errors": np.full(n_clusters, 0.01),
                "centroids": np.full((n_clusters, n_features), 0.5),
            }
        )
        job_id = self.result(api, database, model)
        text = words(console.get(f"/jobs/{job_id}/result"))
        assert ("No cluster stands out from the noise" in text) is (n_clusters == 0)
        assert "<svg" in console.text(f"/jobs/{job_id}/plot.svg")
        assert console.get(f"/jobs/{job_id}/clusters.csv").status_code == 200


def vars_of_feature(feature: Feature) -> dict[str, Any]:
    return {"name": feature.name, "lower": feature.lower, "upper": feature.upper, "unit": feature.unit}
