"""Tests of jobs on the console, from the form to the result."""

import ast
import csv
import html
import io
import json
import re
import shlex
import threading
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from models.database.engine import Database
from models.jobs import curator_answers
from models.jobs.claims import Claim
from models.jobs.curator_answers import ChargedQuery
from service.console.forms import SCHEMAS
from service.console.pages.jobs import ENTRIES, phases
from service.console.rendering import amount
from service.console.snippets import job_request, snippets
from sfumato.forecast import forecast_releases
from sfumato.privacy.accounting import NANO
from sfumato.specs import ALGORITHMS, CENTRAL_ALGORITHMS, LOCAL_ALGORITHMS, Feature, ShiftedGrid
from tests.service.api import FEATURES, SQLITE_ONLY, Api, a_model, claim_job, finish
from tests.service.console.session import FORM, ORIGIN, Console, once, words
from tests.service.shuffler import shuffled_dataset
from workers.job_runner import run


@SQLITE_ONLY
class TestANewJob:
    def test_offers_all_algorithms_and_parameters_for_the_dataset(self, api: Api, console: Console) -> None:
        assert set(SCHEMAS) == set(ALGORITHMS)
        for trust, fit in (("local", LOCAL_ALGORITHMS), ("central", CENTRAL_ALGORITHMS)):
            path = f"/datasets/{api.dataset(trust=trust)['id']}/jobs/new"
            tags = re.findall(r"\?type=([a-z_]+)", console.text(path))
            assert (tags[0], set(tags)) == ("auto", set(fit))
            for tag in fit:
                page = console.text(f"{path}?type={tag}")
                assert "`" not in page  # code has an element of its own
                for name in SCHEMAS[tag].model_fields.keys() - {"type"}:
                    assert f'name="{name}"' in page

    @pytest.mark.parametrize("trust", ["local", "central"])
    def test_says_which_algorithms_take_no_circle(self, api: Api, console: Console, trust: str) -> None:
        hours = [{"name": "hour", "lower": 0.0, "upper": 24.0, "unit": "h", "periodic": True}]
        offered = LOCAL_ALGORITHMS if trust == "local" else CENTRAL_ALGORITHMS
        expected = sum(not each.definition.periodic for name, each in offered.items() if name != "auto")
        for features, n_refusing in ((hours, expected), (FEATURES, 0)):
            path = f"/datasets/{api.dataset(trust=trust, features=features)['id']}/jobs/new"
            assert console.text(path).count("does not take the periodic features") == n_refusing

    def test_over_records_offers_a_box_per_feature(self, api: Api, console: Console) -> None:
        three = [{"name": name, "lower": 0.0, "upper": 1.0} for name in ("east", "a, b", "north")]
        dataset_id = api.dataset(trust="central", features=three)["id"]
        api.made(f"/datasets/{dataset_id}/records", {"columns": ["east", "a, b", "north"], "rows": [[0, 0, 0]] * 9})
        path = f"/datasets/{dataset_id}/jobs"
        page = console.text(f"{path}/new?type=private_kmeans")
        assert re.findall(r'name="feature" value="(\d)" checked', page) == ["0", "1", "2"]
        form = {"type": "private_kmeans", "epsilon": "0.5", "clusters": "2", "expected_records": "20000"}
        ticked = form | {"feature": ["", "2", "1"]}
        review = console.post(path, ticked | {"step": "review"})
        assert "Features a, b, north" in words(review)
        (hidden,) = re.findall(r'name="features" value="([\d,]+)"', review.text)
        sent = form | {"features": hidden, "step": "submit", "once": once(review.text)}
        location = console.location(path, sent)
        (job,) = api.get("/jobs").json()["items"]
        assert job["features"] == ["a, b", "north"]
        shown = console.text(location)
        (again,) = re.findall(r'href="([^"]+jobs/new[^"]+)"', shown)
        assert "'features': " not in shown
        assert "features=[&#39;a, b&#39;, &#39;north&#39;]" in shown
        proposed = console.text(html.unescape(again).removeprefix("/console"))
        assert re.findall(r'name="feature" value="(\d)" checked', proposed) == ["1", "2"]
        none = console.post(path, form | {"feature": [""], "step": "review"})
        assert "f-features-wrong" in none.text
        local = api.dataset()["id"]
        assert 'name="feature"' not in console.text(f"/datasets/{local}/jobs/new?type=auto")

    def test_shows_its_cost_before_it_is_submitted(self, api: Api, console: Console) -> None:
        path = f"/datasets/{api.dataset(epsilon=1.2)['id']}/jobs"
        review = console.post(path, FORM | {"step": "review"})
        assert "This job spends at most ε 0.5 of the remaining ε 1.2" in words(review)
        assert api.get("/jobs").json()["items"] == []
        form = FORM | {"step": "submit", "once": once(review.text)}
        first, again = console.location(path, form), console.location(path, form)
        (job,) = api.get("/jobs").json()["items"]
        assert first == again == f"/jobs/{job['id']}"
        assert job["algorithm"] | {"clusters": 3, "epsilon": 0.5, "type": "shifted_grid"} == job["algorithm"]
        assert (job["target_reports"], job["collect_seconds"]) == (100_000, 7 * 86_400)

    def test_shows_the_forecast_of_the_api(self, api: Api, console: Console) -> None:
        dataset_id = api.dataset()["id"]
        algorithm = {"type": "shifted_grid", "epsilon": 0.5, "clusters": 3}
        body = {"algorithm": algorithm, "dataset_id": dataset_id, "expected_reports": 100_000}
        response = console.post(f"/datasets/{dataset_id}/jobs/forecast", FORM, **{"hx-request": "true"})
        assert "<html" not in response.text
        expected = api.made("/forecasts", body)
        text = words(response)
        assert f"{expected['verdict'].capitalize()}." in text
        worst = min(expected["families"], key=lambda each: each["median"])
        assert f"of the least favourable family, with {worst['family']} clusters, half reached" in text
        assert f"half reached an agreement of {expected['quality']['median']:.2f}" in text
        assert (
            text.index(f"{expected['verdict'].capitalize()}.")
            < text.index("Agreement with the true clusters")
            < text.index("All figures")
        )
        median, lower, upper = (f"{expected['quality'][name]:.2f}" for name in ("median", "lower", "upper"))
        for value in ("100,000", "0.5"):
            assert f"{value}: {median} ({lower} to {upper})" in response.text
        assert api.budget(dataset_id)["reserved"] == 0

    def test_is_forecast_for_a_family(self, api: Api, console: Console) -> None:
        path = f"/datasets/{api.dataset()['id']}/jobs"
        whole, compact = (console.post(f"{path}/forecast", FORM | chosen) for chosen in ({}, {"family": "compact"}))
        expected = api.made(
            "/forecasts",
            {
                "algorithm": {"type": "shifted_grid", "epsilon": 0.5, "clusters": 3},
                "n_features": 2,
                "expected_reports": 100_000,
                "family": "compact",
            },
        )
        assert f"{expected['verdict'].capitalize()}." in words(compact)
        assert f"half reached an agreement of {expected['quality']['median']:.2f}" in words(compact)
        assert "least favourable" in words(whole)
        assert "least favourable" not in words(compact)
        assert "family" in words(console.post(f"{path}/forecast", FORM | {"family": "square"}))
        job = console.post(path, FORM | {"family": "compact", "step": "submit"})
        assert job.status_code == 303

    def test_over_records_is_forecast_from_an_estimate(self, api: Api, console: Console) -> None:
        path = f"/datasets/{api.dataset(trust='central', epsilon=2)['id']}/jobs"
        form = {"type": "private_kmeans", "epsilon": "1", "clusters": "3", "expected_records": "10000"}
        assert "Maximum cost ε 1" in words(console.post(f"{path}/forecast", form))
        assert "for each person in the dataset" in words(console.post(path, form | {"step": "review"}))
        assert "upload records first" in words(console.post(path, form | {"step": "submit"}))  # there are none
        for change in ({"epsilon": ""}, {"epsilon": "9" * 400}):
            text = console.post(path, form | {"step": "submit"} | change).text
            assert re.search(r'id="f-epsilon-wrong" role="alert">\w', text), change

    def test_of_a_shuffled_dataset_shows_both_costs(self, api: Api, console: Console) -> None:
        dataset_id = shuffled_dataset(api)
        path = f"/datasets/{dataset_id}/jobs"
        assert f"{path}/new" in console.text(f"/datasets/{dataset_id}")
        form = FORM | {"epsilon": "6", "min_batch": "100000", "honest_share": "0.8"}
        epsilon_nano, _ = forecast_releases(
            ShiftedGrid(epsilon=6, clusters=3),
            n_features=2,
            expected_reports=100_000,
            min_batch=100_000,
            honest_share=Fraction(4, 5),
            delta_atto=10**12,
        )
        gaussian = shuffled_dataset(api, accounting="gaussian")
        shown = words(console.post(f"/datasets/{gaussian}/jobs/forecast", form))
        assert re.search(r"Of 500 such jobs, the budget towards the service allows 500 more\.", shown)
        cost = f"Its releases spend ε {amount(epsilon_nano / NANO)} and δ 1e-6 towards the service."
        assert cost in words(console.post(f"{path}/forecast", form))
        assert cost in words(console.post(path, form | {"step": "review"}))
        for name, value in (("honest_share", "all"), ("honest_share", "1e999999999"), ("min_batch", "9" * 4000)):
            assert "Its releases" not in words(console.post(path, form | {name: value}))
        assert 'id="f-honest_share-wrong"' in console.post(path, form | {"honest_share": "2", "step": "submit"}).text
        assert console.post(path, form | {"step": "submit"}).status_code == 303
        (job,) = api.get("/jobs").json()["items"]
        assert (job["algorithm"]["epsilon"], job["target_reports"]) == (6, 100_000)

    def test_that_is_invalid_shows_errors_next_to_the_fields(self, api: Api, console: Console) -> None:
        path = f"/datasets/{api.dataset()['id']}/jobs"
        for field, value in (
            ("epsilon", "x"), ("epsilon", "-1"), ("epsilon", "nan"), ("epsilon", "1e400"),
            ("clusters", "0"), ("clusters", "2.5"), ("clusters", "9" * 400), ("shifts", "99"),
            ("epsilon", "9" * 400), ("target_reports", "many"), ("target_reports", "0"), ("target_reports", ""),
            ("min_reports", "-1"),
        ):  # fmt: skip
            response = console.post(path, FORM | {field: value, "step": "submit"})
            assert response.status_code == 422, (field, value)
            assert re.search(rf'id="f-{field}-wrong" role="alert">\w', response.text), (field, value)
            (tag,) = re.findall(rf'<input id="f-{field}"[^>]*>', response.text)
            assert 'aria-invalid="true"' in tag
            assert f"f-{field}-wrong" in tag
        assert api.get("/jobs").json()["items"] == []

    def test_that_the_api_refuses_shows_its_error(self, api: Api, console: Console) -> None:
        dataset_id = api.dataset(epsilon=0.25)["id"]
        path = f"/datasets/{dataset_id}/jobs"
        assert "would spend ε 0.5, but 0.25 remains" in words(console.post(path, FORM | {"step": "review"}))
        response = console.post(path, FORM | {"step": "submit"})
        assert response.status_code == 409
        algorithm = {"type": "uniform_grid", "epsilon": 0.5}
        problem = api.post("/jobs", {"dataset_id": dataset_id, "algorithm": algorithm, "target_reports": 100_000})
        assert problem.json()["detail"].split(";")[0][:20] in words(response)
        path, few = f"/datasets/{api.dataset()['id']}/jobs", FORM | {"target_reports": "3", "step": "submit"}
        assert console.post(path, few).status_code == 422
        assert console.post(path, few | {"allow_insufficient": "true"}).status_code == 303
        for tag in ("", "nothing", "dp_kmeans", "../x"):
            assert console.post(path, FORM | {"type": tag, "step": "review"}).status_code == 404


@SQLITE_ONLY
class TestAJob:
    def test_is_cancelled_from_its_page(self, api: Api, console: Console) -> None:
        path = f"/jobs/{api.job(api.dataset()['id'])['id']}"
        page = console.text(path)
        assert f'data-live="/console{path}/events"' in page
        assert console.post(f"{path}/cancel", {"once": once(page)}).status_code == 303
        page = console.text(f"{path}/live")
        assert "canceled" in page
        assert "data-live" not in page
        assert "<html" not in page

    def test_without_a_result_shows_the_problem(self, api: Api, console: Console) -> None:
        job = api.job(api.dataset()["id"])
        paths = ("result", "plot.svg", "plot.png", "map.json", "result.json", "result.html", "result.geojson")
        for path in (*paths, "clusters.csv"):
            response = console.get(f"/jobs/{job['id']}/{path}")
            assert response.status_code == 409
            assert "job_not_finished" in response.text

    def test_is_listed_in_pages_newest_first(self, api: Api, console: Console) -> None:
        dataset_id = api.dataset(epsilon=32)["id"]
        ids = [api.job(dataset_id)["id"] for _ in range(22)]
        first = console.text("/jobs")
        (older,) = re.findall(r'href="/console(/jobs\?cursor=[^"]+)"', first)
        assert re.findall(r">(job_\w{26})</code>", first + console.text(older)) == sorted(ids, reverse=True)

    def test_is_found_by_state_dataset_and_id(self, api: Api, console: Console) -> None:
        dataset_id, other = api.dataset(name="Lunch 50%")["id"], api.dataset(name="Tea")["id"]
        lunch, tea = api.job(dataset_id)["id"], api.job(other)["id"]
        console.post(f"/jobs/{lunch}/cancel", {"once": once(console.text(f"/jobs/{lunch}"))})
        for path, ids in (
            ("/jobs?state=canceled", [lunch]),
            (f"/jobs?dataset_id={other}", [tea]),
            (f"/jobs?dataset_id={other}&state=canceled", []),
            ("/search?q=lunch+50%25", [lunch]),
            ("/search?q=_", []),
            ("/search?q=", []),
        ):
            assert re.findall(r">(job_\w{26})</code>", console.text(path)) == ids, path
        assert console.get("/jobs?state=none").status_code == 422
        assert console.get(f"/search?q={tea}").headers["location"] == f"/console/jobs/{tea}"
        page = console.get(f"/jobs/{tea}")
        assert f'<a href="/console/datasets/{other}"><bdi>Tea</bdi></a>' in page.text
        assert "Overview Tea Uniform grid, ε " in words(page)

    def test_can_be_submitted_again_by_link_and_by_code(self, api: Api, console: Console) -> None:
        algorithm = {"type": "uniform_grid", "epsilon": 0.5, "clusters": 3, "cells": 12}
        job = api.job(api.dataset(name="it's")["id"], algorithm=algorithm, min_reports=200, collect_seconds=43_200)
        page = console.text(f"/jobs/{job['id']}")
        (link,) = re.findall(r'<a class="button quiet" href="/console([^"]+)">Duplicate', page)
        form = console.text(html.unescape(link))
        for name, value in (("epsilon", "0.5"), ("clusters", "3"), ("cells", "12"), ("collect_days", "0.5")):
            assert re.search(rf'name="{name}"[^>]* value="{value}"', form), name
        code = snippets(job)
        request = json.loads(shlex.split(code["curl"].replace("\\\n", ""))[-1])
        assert api.made("/jobs", request)["algorithm"] == job["algorithm"]
        assert job_request(api.made("/jobs", request)) == request
        (call,) = (each for each in ast.walk(ast.parse(code["Python"])) if isinstance(each, ast.Call) and each.keywords)
        assert [ast.literal_eval(each) for each in call.args] == [request["dataset_id"], request["algorithm"]]
        named = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
        assert named == {"target_reports": 1000, "min_reports": 200, "collect_seconds": 43_200}
        assert json.loads(code["TypeScript"].partition("Job(")[2].partition(");")[0]) == request

    def test_has_the_event_stream_of_the_api(self, api: Api, console: Console) -> None:
        path = f"/jobs/{api.finished_job()}/events"
        response = console.get(path)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        assert response.text == api.get(path).text
        assert "event: job" in response.text
        (last,) = re.findall(r"id: (\w+)", response.text)
        assert console.get(path, **{"last-event-id": last}).status_code == 204

    def test_event_stream_ends_with_the_session(self, api: Api, console: Console) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        csrf, responses = console.csrf, []
        watching = threading.Thread(target=lambda: responses.append(console.get(f"/jobs/{job_id}/events")))
        watching.start()
        headers = {"origin": ORIGIN, "cookie": console.cookie}
        assert console.http.post("/console/logout", data={"csrf": csrf}, headers=headers).status_code == 303
        watching.join(60)
        assert not watching.is_alive()
        assert responses[0].status_code in (200, 303, 401)  # the request may arrive after the end of the session


def test_the_phases_of_a_job_have_durations() -> None:
    at = [f"2026-01-01T00:0{minute}:00.000000Z" for minute in range(5)]
    job = {"state": "succeeded", "created_at": at[0], "started_at": at[1], "finished_at": at[4]}
    collected = [{"opened_at": at[1], "closed_at": at[3]}, {"opened_at": at[2], "closed_at": at[2]}]
    shown = [(each["name"], each["seconds"]) for each in phases(job, collected)]
    assert shown == [("Queued", 60), ("Collecting", 120), ("Computing", 60), ("Succeeded", None)]
    shown = [(each["name"], each["seconds"]) for each in phases(job, [])]
    assert shown == [("Queued", 60), ("Computing", 180), ("Succeeded", None)]
    open_round = {"opened_at": at[1], "closed_at": None}
    shown = [(each["name"], each["seconds"]) for each in phases(job | {"finished_at": None}, [open_round])]
    assert shown == [("Queued", 60), ("Collecting", None)]


def charge(database: Database, claim: Claim, index: int, description: str, epsilon_nano: int) -> None:
    """Charge a query as a worker does before it draws noise."""
    with database.transaction() as session:
        curator_answers.charge(session, claim, index, ChargedQuery(description, epsilon_nano, 4), now=database.clock())


def read_entries(page: str) -> list[list[str]]:
    """Return the rows of the ledger entries on the page of a job."""
    (table,) = re.findall(r'id="entries".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall("<td[^>]*>(.*?)</td>", row)]
        for row in re.findall("<tr>(.*?)</tr>", table)
    ]


RESERVATION = ["2", "reserve", "this job", "1", "0", "1"]


@SQLITE_ONLY
class TestLedgerEntries:
    def central(self, api: Api, epsilon: float = 1.0) -> str:
        dataset = api.dataset(trust="central", epsilon=2)
        algorithm = {"type": "private_kmeans", "epsilon": epsilon, "clusters": 2}
        return str(api.key("jobs").made("/jobs", {"dataset_id": dataset["id"], "algorithm": algorithm})["id"])

    def test_over_records_grow_with_each_query_and_end_with_the_release(
        self, api: Api, console: Console, database: Database
    ) -> None:
        job_id = self.central(api)
        path = f"/jobs/{job_id}/live"
        assert read_entries(console.text(path)) == [RESERVATION]
        claim = claim_job(database, job_id)
        charge(database, claim, 0, "gate", NANO // 4)
        charge(database, claim, 1, "cells", NANO // 2)
        page = console.text(path)
        assert read_entries(page) == [
            ["4", "charge", "query #1", "0.5", "0.75", "0.25"],
            ["3", "charge", "query #0", "0.25", "0.25", "0.75"],
            RESERVATION,
        ]
        assert "data-polled" in page  # a query causes no event
        assert "privacy-post_processed" in page
        assert "gate" not in page  # only the result contains the descriptions
        _, log = page.split('id="log"')
        assert re.findall(r"\d\d:\d\d|led_", log) == []  # times would reveal the duration of queries
        finish(database, job_id, a_model(), odometer=[("gate", 4, NANO // 4), ("cells", 4, NANO // 2)])
        page = console.text(path)
        assert read_entries(page) == [
            ["5", "release", "unspent budget", "0.25", "0.75", "0"],
            ["4", "charge", "cells #1", "0.5", "0.75", "0.25"],
            ["3", "charge", "gate #0", "0.25", "0.25", "0.75"],
            RESERVATION,
        ]
        assert "data-polled" not in page

    def test_match_the_ledger_of_the_api(self, api: Api, console: Console, database: Database) -> None:
        job_id = self.central(api, epsilon=0.75)
        claim = claim_job(database, job_id)
        for index in range(ENTRIES + 3):
            charge(database, claim, index, "sums", 1 + index)
        page = console.text(f"/jobs/{job_id}")
        spent, expected = 0, []
        path = f"/datasets/{api.get(f'/jobs/{job_id}').json()['dataset_id']}/ledger"
        for entry in api.list_all(path, limit=20):
            spent += entry["epsilon_nano"] if entry["kind"] == "charge" else 0
            expected.append([entry["seq"], entry["kind"], entry["epsilon_nano"], spent, NANO * 3 // 4 - spent])
        rows = [[int(row[0]), row[1], *(round(float(x) * NANO) for x in row[3:])] for row in read_entries(page)]
        assert rows == expected[: -ENTRIES - 1 : -1]
        assert f"The newest {ENTRIES} ledger entries" in page
        assert f'href="/console{path}.csv"' in page

    def test_over_reports_contain_the_charge_of_each_round(
        self, api: Api, console: Console, database: Database
    ) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        run(database, claim_job(database, job_id))
        page = console.text(f"/jobs/{job_id}/live")
        (opened,) = re.findall(r'<td><a href="/console(/rounds/rnd_\w+)">round 0</a>', page)
        assert api.get(opened).json()["job_id"] == job_id
        assert read_entries(page) == [["3", "charge", "round 0", "1", "1", "0"], RESERVATION]
        assert "data-polled" not in page  # a round that opens is an event
        assert console.post(f"/jobs/{job_id}/cancel").status_code == 303
        assert read_entries(console.text(f"/jobs/{job_id}/live"))[0] == ["3", "charge", "round 0", "1", "1", "0"]

    def test_of_a_cancelled_job_release_the_reservation(self, api: Api, console: Console) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        console.post(f"/jobs/{job_id}/cancel")
        rows = read_entries(console.text(f"/jobs/{job_id}/live"))
        assert rows == [["3", "release", "unspent budget", "1", "0", "0"], RESERVATION]

    def test_over_earlier_rounds_are_empty(self, api: Api, console: Console) -> None:
        opened = api.round(api.dataset()["id"])
        api.report(opened["id"])
        api.post(f"/rounds/{opened['id']}/close")
        job_id = api.job(opened["dataset_id"], round_ids=[opened["id"]], target_reports=None)["id"]
        page = console.text(f"/jobs/{job_id}/live")
        assert 'id="entries"' not in page
        assert "This job reserves and spends nothing" in page
        assert "<dd>1, already charged ε 1</dd>" in page
        assert "<dt>Reports used</dt><dd>1</dd>" in page
        assert "Reservation" not in page

    def test_need_the_scope_ledger(self, api: Api, database: Database) -> None:
        job_id = self.central(api)
        charge(database, claim_job(database, job_id), 0, "gate", NANO // 4)
        analyst, auditor = Console(api.key("jobs")), Console(api.key("jobs", "ledger"))
        for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/live"):
            page = analyst.text(path)
            assert "can read them" in page
            assert not re.search('id="entries"|data-polled|0\\.[27]5(?! s)|query #', page)
            assert len(read_entries(auditor.text(path))) == 2


@SQLITE_ONLY
class TestAResult:
    def test_is_shown_with_errors_and_privacy_and_downloaded_like_from_the_api(
        self, api: Api, console: Console
    ) -> None:
        path = f"/jobs/{api.finished_job()}"
        text = words(console.get(f"{path}/result"))
        for part in (
            "25.0 % ± 1.0 %",
            "sizes post_processed",
            "a warning",
            "Uncertain.",
            "Another run would agree with these clusters to about 0.75 (80 % interval: 0.50 to 1.00).",
        ):
            assert part in text
        assert text.index("Uncertain.") < text.index("a warning") < text.index("Clusters")
        response = console.get(f"{path}/result.json")
        assert response.content == api.get(f"{path}/result").content
        assert response.headers["content-disposition"] == f'attachment; filename="result-{path[6:]}.json"'
        for name, media_type in (("plot.svg", "image/svg+xml"), ("plot.png", "image/png")):
            plot = console.get(f"{path}/{name}")
            assert plot.content == api.get(f"{path}/{name}").content
            assert plot.headers["content-type"].startswith(media_type)
            assert "script-src" not in plot.headers["content-security-policy"]
        rows = list(csv.DictReader(io.StringIO(console.text(f"{path}/clusters.csv"))))
        values = [(row["cluster"], row["size"], row["x"]) for row in rows]
        assert values == [("0", "0.25", "0.25"), ("1", "0.75", "0.75")]

    @pytest.mark.parametrize(("n_features", "n_clusters"), [(1, 0), (64, 3)])
    def test_without_clusters_or_with_many_features_is_shown(
        self, api: Api, console: Console, n_features: int, n_clusters: int
    ) -> None:
        features = [{"name": f"f{i}", "lower": 0.0, "upper": 1.0, "unit": ""} for i in range(n_features)]
        model = replace(
            a_model(labels=False),
            features=tuple(Feature(**feature) for feature in features),  # type: ignore[arg-type]
            sizes=np.full(n_clusters, 0.25),
            size_errors=np.full(n_clusters, 0.01),
            centroids=np.full((n_clusters, n_features), 0.5),
        )
        path = f"/jobs/{api.finished_job(model, features=features)}"
        text = words(console.get(f"{path}/result"))
        assert ("No cluster stands out from the noise" in text) is (n_clusters == 0)
        assert "<svg" in console.text(f"{path}/plot.svg")
        assert console.get(f"{path}/clusters.csv").status_code == 200
