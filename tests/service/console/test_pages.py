"""Tests of the pages of the console: their content and their errors."""

import csv
import html
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from models import hash_chain
from models.database.engine import Database
from models.ledger import ledger
from models.tables.ledger import LedgerEntry
from service.console.app import PAGES
from service.console.pages import datasets as pages
from service.console.pages.datasets import CSV_COLUMNS
from service.console.rendering import read_glossary
from sfumato.specs import Feature
from tests.service.api import SQLITE_ONLY, Api, a_model, finish
from tests.service.console.session import DATASET, FORM, ROUND, UPLOAD, Console, words
from tests.service.followed import follow
from tests.service.shuffler import shuffled_dataset

ODD = '<script>alert("x")</script>&amp;שלום{{ 7 * 7 }}'


SERIES = {
    "name": "weekly",
    "algorithm": {"type": "shifted_grid", "epsilon": 1.0},
    "windows": {"every": "week", "count": 26},
    "cycle": 13,
    "target_reports": 1_000_000,
}


NEW_SERIES = {
    "name": "daily",
    "epsilon": "1",
    "every": "day",
    "count": "30",
    "cycle": "15",
    "target_reports": "2000000",
}


PLACES = (Feature("longitude", -10.0, 30.0, "deg"), Feature("latitude", 35.0, 60.0, "deg"))


def everything(api: Api) -> dict[str, str]:
    """Create one object for each kind of page. Return the ids."""
    dataset_id = api.dataset()["id"]
    job_id = api.job(dataset_id)["id"]
    finish(api.database, job_id, a_model())
    webhook = {"url": "https://hooks.example.com/", "event_types": ["job.failed"]}
    curated = api.dataset(trust="central", name="curated", source="staff")["id"]
    # A key that may not count the records may submit a job over none.
    central_job = api.key("jobs").job(
        curated, algorithm={"type": "private_kmeans", "epsilon": 0.1}, target_reports=None
    )["id"]
    finish(api.database, central_job, a_model())
    series_id = api.made("/series", SERIES | {"dataset_id": dataset_id})["id"]
    return {
        "ds": dataset_id,
        "cds": curated,
        "cjob": central_job,
        "src": "staff",
        "rnd": api.round(dataset_id)["id"],
        "job": job_id,
        "geo": api.finished_job(replace(a_model(), features=PLACES), name="places"),
        "ser": series_id,
        "clu": follow(api, series_id)[0],
        "key": api.made("/keys", {"name": "k", "scopes": ["device"]})["id"],
        "whk": api.made("/webhooks", webhook)["id"],
    }


# The pages of each scope besides `admin`: (method, path, form) -> scopes. Dataset pages show what the scopes permit.
DOORS = [
    ("GET", "/", {}, {"admin", "datasets", "grants", "records", "jobs", "ledger", "device"}),
    ("GET", "/search?q=x", {}, {"admin", "datasets", "grants", "records", "jobs", "ledger", "device"}),
    ("GET", "/glossary", {}, {"admin", "datasets", "grants", "records", "jobs", "ledger", "device"}),
    ("GET", "/datasets/new", {}, {"datasets"}),
    ("POST", "/datasets", DATASET, {"datasets"}),
    ("GET", "/datasets/{ds}", {}, {"datasets", "grants", "records", "jobs", "ledger"}),
    ("GET", "/datasets/{ds}/rounds", {}, {"datasets", "jobs"}),
    ("GET", "/datasets/{ds}/ledger", {}, {"ledger"}),
    ("GET", "/datasets/{ds}/ledger?kind=grant", {}, {"ledger"}),
    ("GET", "/datasets/{ds}/settings", {}, {"datasets", "grants", "records", "jobs", "ledger"}),
    ("GET", "/datasets/{ds}/rounds/new", {}, {"datasets"}),
    ("POST", "/datasets/{ds}/rounds", ROUND | {"step": "submit"}, {"datasets"}),
    ("GET", "/datasets/{cds}/records", {}, {"records"}),
    ("POST", "/datasets/{cds}/records", UPLOAD, {"records"}),
    ("POST", "/datasets/{cds}/records/delete", {"all": "true"}, {"records"}),
    ("POST", "/datasets/{ds}/verify", {}, {"ledger"}),
    ("POST", "/datasets/{ds}/grants", {"epsilon": "1"}, {"grants"}),
    ("GET", "/datasets/{ds}/ledger.csv", {}, {"ledger"}),
    ("GET", "/datasets/{ds}/ledger.json", {}, {"ledger"}),
    ("GET", "/datasets/{ds}/jobs/new", {}, {"datasets", "grants", "records", "jobs", "ledger"}),
    ("POST", "/datasets/{ds}/jobs/forecast", FORM, {"datasets", "grants", "records", "jobs", "ledger"}),
    ("POST", "/datasets/{ds}/jobs", FORM | {"step": "submit"}, {"jobs"}),
    ("GET", "/sources/{src}", {}, {"grants", "ledger"}),
    ("GET", "/rounds/{rnd}", {}, {"device", "datasets", "jobs"}),
    ("GET", "/rounds/{rnd}/live", {}, {"device", "datasets", "jobs"}),
    ("POST", "/rounds/{rnd}/close", {"allow_empty": "true"}, {"datasets", "jobs"}),
    ("GET", "/jobs", {}, {"jobs"}),
    ("GET", "/jobs?dataset_id={ds}", {}, {"jobs"}),
    ("GET", "/jobs/{job}", {}, {"jobs"}),
    ("GET", "/jobs/{job}/live", {}, {"jobs"}),
    ("GET", "/jobs/{job}/events", {}, {"jobs"}),
    ("GET", "/jobs/{job}/result", {}, {"jobs"}),
    ("POST", "/jobs/{job}/names", {"name": ""}, {"jobs"}),
    ("GET", "/jobs/{job}/plot.svg", {}, {"jobs"}),
    ("GET", "/jobs/{job}/plot.png", {}, {"jobs"}),
    ("GET", "/jobs/{job}/map.json", {}, {"jobs"}),
    ("GET", "/jobs/{job}/profile", {}, {"jobs"}),
    ("POST", "/jobs/{cjob}/profile", {"attribute": "x", "epsilon": "0.1", "step": "review"}, {"jobs"}),
    ("GET", "/compare?of={job}&of={job}", {}, {"jobs"}),
    ("GET", "/compare.json?of={job}&of={job}&at=1", {}, {"jobs"}),
    ("GET", "/jobs/{job}/result.json", {}, {"jobs"}),
    ("GET", "/jobs/{job}/result.html", {}, {"jobs"}),
    ("GET", "/jobs/{geo}/result.geojson", {}, {"jobs"}),
    ("GET", "/jobs/{job}/clusters.csv", {}, {"jobs"}),
    ("POST", "/jobs/{job}/cancel", {}, {"jobs"}),
    ("GET", "/series", {}, {"grants", "jobs", "ledger"}),
    ("GET", "/series?dataset_id={ds}", {}, {"grants", "jobs", "ledger"}),
    ("GET", "/series/{ser}", {}, {"grants", "jobs", "ledger"}),
    ("GET", "/series/{ser}/map.svg?window=0", {}, {"jobs"}),
    ("POST", "/series/{ser}/clusters/{clu}", {"name": "west"}, {"jobs"}),
    ("GET", "/datasets/{ds}/series/new", {}, set()),
    ("POST", "/datasets/{ds}/series", NEW_SERIES, set()),
    ("POST", "/series/{ser}/revisions", {"season": "4", "epsilon": ""}, set()),
    ("POST", "/series/{ser}/state", {"state": "paused"}, {"jobs"}),
    ("GET", "/keys", {}, set()),
    ("GET", "/keys?dataset_id={ds}", {}, set()),
    ("POST", "/keys", {"name": "n", "scopes": "device"}, set()),
    ("POST", "/keys/{key}/rotate", {}, set()),
    ("POST", "/keys/{key}/revoke", {}, set()),
    ("GET", "/webhooks", {}, set()),
    ("POST", "/webhooks", {"url": "https://hooks.example.com/", "event_types": "job.failed"}, set()),
    ("GET", "/webhooks/{whk}", {}, set()),
    ("POST", "/webhooks/{whk}/test", {}, set()),
    ("POST", "/webhooks/{whk}/enabled", {"enabled": "false"}, set()),
    ("POST", "/webhooks/{whk}/delete", {}, set()),
    ("GET", "/audit", {}, set()),
]


def enter(console: Console, door: tuple[str, str, dict[str, str], set[str]], ids: dict[str, str]) -> int:
    """Request a page or submit its form. Return the status."""
    method, path, form, _ = door
    path = path.format_map(ids)
    if form == UPLOAD:
        return console.upload(path, **form).status_code
    return (console.get(path) if method == "GET" else console.post(path, form)).status_code


class TestAccess:
    def test_is_tested_for_every_page(self) -> None:
        named = {(method, re.sub(r"\{[a-z]+\}", "{}", path.partition("?")[0])) for method, path, _, _ in DOORS}
        assert {(m, re.sub(r"\{[a-z_]+\}", "{}", p)) for m, p, *_ in PAGES} == named | {("POST", "/logout")}

    @SQLITE_ONLY
    def test_follows_the_scopes_of_the_api(self, api: Api) -> None:
        ids = everything(api)
        for scope in ("datasets", "grants", "records", "jobs", "device", "ledger"):
            console = Console(api.key(scope))
            for door in DOORS:
                assert (enter(console, door, ids) != 403) is (scope in door[3]), (scope, door)

    def test_is_complete_for_an_admin(self, api: Api, console: Console) -> None:
        ids = everything(api)
        assert [(door, status) for door in DOORS if (status := enter(console, door, ids)) >= 400] == []

    @SQLITE_ONLY
    def test_needs_parameters_that_the_page_reads(self, api: Api, console: Console) -> None:
        ids = everything(api)
        for door in DOORS:
            method, path, form, scopes = door
            unknown = f"{path}{'&' if '?' in path else '?'}no_such_name=1"
            assert enter(console, (method, unknown, form, scopes), ids) == 422, door

    @SQLITE_ONLY
    def test_to_another_tenant_is_not_found(self, api: Api, other: Api) -> None:
        ids, console = everything(api), Console(other)
        foreign = [door for door in DOORS if "{" in door[1]]
        assert len(foreign) > 15
        for door in foreign:
            assert enter(console, door, ids) == 404, door
        names = " ".join(
            words(console.get(path)) for path in ("/", "/jobs", "/search?q=c", "/keys", "/webhooks", "/audit")
        )
        assert not any(each in names for each in ids.values())

    @SQLITE_ONLY
    def test_of_a_bound_key_is_limited_to_its_dataset(self, api: Api) -> None:
        ids, mine = everything(api), api.dataset(name="mine")["id"]
        bound = Console(api.key("admin", dataset_id=mine))
        for door in DOORS:
            if "{" in door[1] and door[1].startswith(("/datasets/", "/rounds/", "/jobs/", "/compare", "/series/")):
                assert enter(bound, door, ids) == 404, door
        assert ids["job"] not in bound.text("/jobs")
        assert ids["ds"] not in bound.text("/") + bound.text("/search?q=") + bound.text("/search?q=d")
        assert bound.get("/audit").status_code == bound.get("/keys").status_code == 403


@SQLITE_ONLY
class TestNames:
    def test_are_escaped_and_isolated_and_no_formulas(self, api: Api, console: Console, database: Database) -> None:
        formula = {"name": "=HYPERLINK(1)", "lower": 0, "upper": 1, "unit": ""}
        features = [{"name": ODD[:60], "lower": 0, "upper": 1, "unit": ODD[:20]}, formula]
        at = f"/datasets/{api.dataset(name=ODD, features=features)['id']}"
        api.made("/keys", {"name": ODD, "scopes": ["device"]})
        job_id = api.job(at.rpartition("/")[2])["id"]
        odd = tuple(Feature(**feature) for feature in features)
        finish(database, job_id, replace(a_model(), features=odd, warnings=(ODD,)))
        for page in (
            "/",
            at,
            "/keys",
            "/audit",
            f"{at}/jobs/new",
            f"/jobs/{job_id}/result",
            f"{at}/jobs/new?type=auto",
        ):
            text = console.text(page)
            assert "<script>alert" not in text, page
            assert "49" not in re.findall(r"שלום(.{2})", text), page
            if page != "/audit":
                assert html.escape(ODD[:20], quote=False)[:16] in text.replace("&#34;", '"'), page
        assert "<bdi>&lt;script&gt;alert" in console.text(at)
        header = next(csv.reader(io.StringIO(console.text(f"/jobs/{job_id}/clusters.csv"))))
        columns = [ODD[:60], "'=HYPERLINK(1)", f"{ODD[:60]} error", "'=HYPERLINK(1) error"]
        assert header == ["cluster", "size", "size_error", *columns, "silhouette", "nearest", "distance"]


@SQLITE_ONLY
class TestTheOverview:
    def test_shows_budgets_rounds_jobs_and_an_alert_for_a_low_budget(self, api: Api, console: Console) -> None:
        dataset = api.dataset(name="commuters", epsilon=2)
        opened = api.round(dataset["id"], epsilon=0.5)
        job = api.job(dataset["id"])
        short = api.dataset(name="short", epsilon=1)
        api.job(short["id"], algorithm={"type": "uniform_grid", "epsilon": 0.95})
        api.report(opened["id"])
        page = console.get("/")
        remaining = f"{api.budget(dataset['id'])['remaining']:.9f}".rstrip("0")
        for part in ("commuters", remaining, "1 of 1,000 reports", job["id"]):
            assert part in words(page)
        (alerts,) = re.findall(r'<ul class="alerts">(.*?)</ul>', page.text, re.S)
        assert "only ε 0.05 of 1 remains" in alerts
        assert short["id"] in alerts
        assert dataset["id"] not in alerts

    def test_has_several_pages(self, api: Api, console: Console) -> None:
        ids = sorted(api.dataset(name=f"d{i}")["id"] for i in range(14))
        first = console.text("/")
        (more,) = re.findall(r'href="/console(/\?cursor=[^"]+)"', first)
        second = console.text(more)
        assert [each in first for each in ids] == [False] * 2 + [True] * 12
        assert [each in second for each in ids] == [True] * 2 + [False] * 12


@SQLITE_ONLY
class TestADataset:
    def test_shows_the_budget_of_the_ledger(self, api: Api, console: Console) -> None:
        dataset_id = api.dataset(epsilon=3)["id"]
        api.round(dataset_id, epsilon=0.5)
        api.job(dataset_id)
        entries = api.list_all(f"/datasets/{dataset_id}/ledger", limit=20)
        course = course_of(console.text(f"/datasets/{dataset_id}"))
        assert course["charged"] == [entry["charged_nano"] / 1e9 for entry in entries]
        assert course["granted"] == [3.0] * len(entries)
        assert course["charged_and_reserved"][-1] == pytest.approx(1 + course["charged"][-1])

    def test_links_each_ledger_entry_to_its_cause_and_names_the_key(self, api: Api, console: Console) -> None:
        dataset_id = api.dataset(epsilon=9)["id"]
        made = api.round(dataset_id, epsilon=0.5)
        job = api.job(dataset_id)
        (own, *_) = api.get("/keys").json()["items"]
        text = console.text(f"/datasets/{dataset_id}/ledger").partition('<table class="stack">')[2]
        assert f'href="/console/rounds/{made["id"]}"' in text
        assert re.search(f'href="/console/jobs/{job["id"]}"[^>]*>[^<]*ε 1<', text)
        assert text.count(f"<bdi>{own['name']}</bdi>") == 3
        reader = Console(api.key("ledger"))
        text = reader.text(f"/datasets/{dataset_id}/ledger")
        assert f"<bdi>{own['name']}</bdi>" not in text
        assert own["id"] in text

    def test_has_the_tabs_that_apply(self, api: Api, console: Console) -> None:
        of_reports = ["Overview", "Rounds", "Jobs", "Ledger", "Keys", "Settings"]
        of_records = ["Overview", "Records", *of_reports[2:]]
        of_reports.insert(3, "Series")
        for dataset_id, names in (
            (api.dataset()["id"], of_reports),
            (shuffled_dataset(api), of_reports),
            (api.dataset(trust="central")["id"], of_records),
        ):
            text = console.text(f"/datasets/{dataset_id}")
            tabs = re.findall(r'<li><a href="/console([^"]+)"[^>]*>([^<]+)</a>', text.partition('class="tabs"')[2])
            assert [name for _, name in tabs] == names
            for path, name in tabs:
                page = console.text(path).partition('class="tabs"')[2]
                assert re.findall(r'aria-current="page">([^<]+)<', page) == [name]
        reader = Console(api.key("ledger")).text(f"/datasets/{dataset_id}").partition('class="tabs"')[2]
        assert re.findall(r"<li><a [^>]*>([^<]+)<", reader) == ["Overview", "Ledger", "Settings"]

    def test_lists_its_rounds_newest_first(self, api: Api, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pages, "ROUNDS", 3)
        dataset_id = api.dataset(epsilon=9)["id"]
        made = [api.round(dataset_id, epsilon=0.1)["id"] for _ in range(4)][::-1]
        first = console.text(f"/datasets/{dataset_id}/rounds")
        assert re.findall(r"/console/rounds/(rnd_\w+)", first) == made[:3]
        (older,) = re.findall(r'href="/console(/datasets/[^"]*before=[^"]*)"', first)
        assert re.findall(r"/console/rounds/(rnd_\w+)", console.text(older)) == made[3:]
        assert "No older rounds" in console.text(f"/datasets/{dataset_id}/rounds?before={made[-1]}")

    def test_of_a_shuffler_shows_the_budget_towards_an_observer(self, api: Api, console: Console) -> None:
        text = words(console.get(f"/datasets/{shuffled_dataset(api)}"))
        assert "Remaining towards the service ε 20 of 20, δ 0.001 of 0.001" in text

    def test_keeps_its_ledger_after_deletion(self, api: Api, console: Console) -> None:
        at = f"/datasets/{api.dataset()['id']}"
        assert api.delete(at).status_code == 204
        for page in (at, f"{at}/ledger"):
            assert "was deleted" in words(console.get(page))
        assert "1 entries, newest first" in words(console.get(f"{at}/ledger"))
        assert console.get(f"{at}/settings").status_code == console.get(f"{at}/rounds").status_code == 404
        assert console.get(f"{at}/jobs/new").status_code == 404
        assert console.post(f"{at}/grants", {"epsilon": "1"}).status_code == 404

    def test_receives_a_grant_once_and_shows_errors_next_to_the_fields(self, api: Api, console: Console) -> None:
        dataset_id = api.dataset(epsilon=1)["id"]
        path = f"/datasets/{dataset_id}/grants"
        for _ in range(2):
            assert console.post(path, {"epsilon": "1.5", "once": "frm_g"}).status_code == 303
        for bad in ("-1", "x", "33", "nan", "1e999", ""):
            response = console.post(path, {"epsilon": bad})
            assert response.status_code == 422, bad
            assert "problem" in response.text or 'id="f-epsilon-wrong"' in response.text
        assert api.budget(dataset_id)["granted"] == 2.5

    def test_verifies_its_ledger_and_shows_the_broken_entry(
        self, api: Api, console: Console, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = f"/datasets/{api.dataset()['id']}/verify"
        assert "Verified: 1 entries" in words(console.post(path))
        monkeypatch.setattr(hash_chain, "hash_entry", lambda _entry: "0" * 64)
        assert "hash chain is broken at entry 1" in words(console.post(path))


def course_of(page: str) -> dict[str, Any]:
    """Return the data of the chart on the page of a dataset."""
    course: dict[str, Any] = json.loads(html.unescape(re.findall(r'data-course="([^"]*)"', page)[0]))
    return course


@SQLITE_ONLY
def test_a_long_ledger_has_pages_a_sampled_chart_and_a_complete_export(
    api: Api, console: Console, database: Database
) -> None:
    n_entries = 2_000
    dataset_id = api.dataset()["id"]
    with database.transaction() as session:
        first = ledger.page(session, dataset_id, after_seq=0, limit=1)[0]
        columns = {column.key: getattr(first, column.key) for column in LedgerEntry.__table__.columns}
        rows = [
            columns | {"id": f"led_{dataset_id[-16:]}{i:010d}", "seq": i, "reference": f"g{i}"}
            for i in range(2, n_entries + 1)
        ]
        session.execute(LedgerEntry.__table__.insert(), rows)
        ledger.head(session, dataset_id).seq = n_entries

    def read_page(page: str) -> list[int]:
        text = console.text(f"/datasets/{dataset_id}/ledger{page}")
        found = re.findall(r'<tr id="led_[^"]+"><td class="n">([\d,]+)</td><td><time', text)
        return [int(seq.replace(",", "")) for seq in found]

    for number, newest in (("2", 1980), ("100", 20), ("999999", 20)):
        assert read_page(f"?page={number}") == list(range(newest, newest - 20, -1))
    for odd in ("0", "-1", "x", "٣", "9" * 50, "1.5", ""):
        assert read_page(f"?page={odd}") == read_page("") == list(range(2000, 1980, -1)), odd

    page = console.text(f"/datasets/{dataset_id}")
    course = course_of(page)
    assert 200 <= len(course["seq"]) <= 242
    assert (course["seq"][0], course["seq"][-1]) == (1, n_entries)
    assert len(page.encode()) < 60_000
    grants = f"/datasets/{dataset_id}/ledger?kind=grant"
    assert 'name="kind"' in console.text(grants)
    assert read_page("?kind=grant") == read_page("") == list(range(2000, 1980, -1))
    assert f"{grants}&amp;before=1981" in console.text(grants)
    assert read_page("?kind=grant&before=1981") == list(range(1980, 1960, -1))
    assert read_page("?kind=charge") == []

    response = console.get(f"/datasets/{dataset_id}/ledger.csv")
    exported = list(csv.DictReader(io.StringIO(response.text)))
    assert [int(row["seq"]) for row in exported] == list(range(1, n_entries + 1))
    entry = api.get(f"/datasets/{dataset_id}/ledger?order=oldest").json()["items"][0]
    assert exported[0] == {name: "" if entry[name] is None else str(entry[name]) for name in CSV_COLUMNS}
    assert response.headers["content-disposition"] == f'attachment; filename="ledger-{dataset_id}.csv"'
    response = console.get(f"/datasets/{dataset_id}/ledger.json")
    assert [item["seq"] for item in response.json()] == list(range(1, n_entries + 1))
    assert response.json()[0] == entry


@SQLITE_ONLY
class TestAdministration:
    def test_creates_a_key_and_shows_its_secret_once(self, api: Api, console: Console) -> None:
        form = {"name": "app", "scopes": ["device", "jobs"], "expires_on": "2099-01-01"}
        (secret,) = re.findall("sfk_[0-9a-f]{64}", console.post("/keys", form).text)
        assert Api(api.http, api.database, secret).get("/jobs").status_code == 200
        assert secret not in console.text("/keys")

    def test_offers_a_key_for_a_dataset(self, api: Api, console: Console) -> None:
        dataset_id = api.dataset()["id"]
        key = api.made("/keys", {"name": "only here", "scopes": ["device"], "dataset_id": dataset_id})
        api.made("/keys", {"name": "anywhere", "scopes": ["device"]})
        (href,) = re.findall(r'href="/console(/keys\?[^"]*)"', console.text(f"/datasets/{dataset_id}"))
        text = console.text(html.unescape(href))
        assert f'name="dataset_id" type="text" value="{dataset_id}"' in text
        assert key["id"] in text
        assert "anywhere" not in text

    def test_revokes_and_rotates_keys(self, api: Api, console: Console) -> None:
        key = api.made("/keys", {"name": "k", "scopes": ["jobs"]})
        response = console.post(f"/keys/{key['id']}/rotate", {"overlap_hours": "0.5"})
        assert len(re.findall("sfk_[0-9a-f]{64}", response.text)) == 1
        assert console.post(f"/keys/{key['id']}/rotate").status_code == 409
        assert console.post(f"/keys/{key['id']}/revoke").status_code == 303
        assert Api(api.http, api.database, key["secret"]).get("/jobs").status_code == 401

    def test_shows_errors_of_an_invalid_key(self, console: Console) -> None:
        for form, field in (
            ({"name": ""}, "name"),
            ({"name": "n"}, "scopes"),
            ({"name": "n", "scopes": "everything"}, "scopes"),
            ({"name": "n", "scopes": "jobs", "expires_on": "yesterday"}, "f-expires_on"),
            ({"name": "n", "scopes": "jobs", "expires_on": "2001-01-01"}, "f-expires_on"),
            ({"name": "n", "scopes": "jobs", "dataset_id": "x"}, "f-dataset_id"),
        ):
            response = console.post("/keys", form)
            assert response.status_code == 422, form
            assert re.search(rf'id="(f-)?({field})-wrong" role="alert">\w', response.text), form
            assert 'class="problem"' not in response.text

    def test_creates_disables_and_deletes_a_webhook(self, api: Api, console: Console) -> None:
        form = {"url": "https://hooks.example.com/", "event_types": ["job.failed", "job.succeeded"]}
        assert "whsec_" in console.post("/webhooks", form).text
        (webhook,) = api.get("/webhooks").json()["items"]
        path = f"/webhooks/{webhook['id']}"
        assert console.post(f"{path}/test").status_code == 303
        assert "webhook.ping" in console.text(path)
        assert console.post(f"{path}/enabled", {"enabled": "false"}).status_code == 303
        assert "disabled" in words(console.get(path))
        assert console.post(f"{path}/delete").status_code == 303
        assert console.get(path).status_code == 404

    def test_shows_the_audit_trail_newest_first(self, api: Api, console: Console) -> None:
        for i in range(30):
            api.made("/keys", {"name": f"k{i}", "scopes": ["device"]})
        pages = "".join(console.text(f"/audit?page={page}") for page in (1, 2))
        assert re.findall(r'<tr><td class="n">(\d+)</td>', pages) == [str(seq) for seq in range(31, 0, -1)]
        for fact in (
            "the start of the day (UTC)",
            "stands for one or more uploads",
            "their number and times are private",
        ):
            assert fact in pages


@SQLITE_ONLY
def test_the_glossary_is_linked_and_has_every_term(console: Console) -> None:
    assert 'href="/console/glossary"' in console.text("/")
    page = console.text("/glossary")
    terms = read_glossary()
    assert page.count("<dt>") == len(terms) > 50
    assert all(f"<dt>{term}</dt>" in page for term in terms)
    assert "<code>grr</code>" in page
    assert "`" not in page


def test_an_error_of_the_gateway_is_a_page_without_details(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError("a private value")

    monkeypatch.setattr("service.api.routes.datasets.datasets.page", fail)
    response = console.get("/")
    assert response.status_code == 500
    assert "a private value" not in response.text
    assert response.headers["x-request-id"] in response.text
