"""The console's pages: what they show of what the API answers, and what they refuse in its words."""

import csv
import html
import io
import json
import re

import pytest

from models import ledger, tenant
from models.console_session import find
from models.db import Database
from models.ledger import LedgerEntry
from service.console.datasets import CSV_COLUMNS
from sfumato.cluster_model import ClusterModel
from sfumato.specs import Feature
from tests.service.api import FEATURES, Api, a_model, finish
from tests.service.console import DATASET, FORM, ROUND, UPLOAD, Console, vars_of, words

ODD = '<script>alert("x")</script>&amp;\N{RIGHT-TO-LEFT OVERRIDE}שלום{{ 7 * 7 }}'


@pytest.fixture
def console(api: Api) -> Console:
    """An admin's session."""
    return Console(api)


def everything(api: Api, database: Database) -> dict[str, str]:
    """One of each thing a page is about."""
    dataset_id = api.dataset()["id"]
    job_id = api.job(dataset_id)["id"]
    finish(database, job_id, a_model())
    webhook = {"url": "https://hooks.example.com/", "event_types": ["job.failed"]}
    return {
        "ds": dataset_id,
        "cds": api.dataset(trust="central", name="curated")["id"],
        "rnd": api.round(dataset_id)["id"],
        "job": job_id,
        "key": api.made("/keys", {"name": "k", "scopes": ["device"]})["id"],
        "whk": api.made("/webhooks", webhook)["id"],
    }


# What each scope opens beside `admin`: (method, path, form) -> scopes. Dataset pages show what the scopes reach.
DOORS = [
    ("GET", "/", {}, {"admin", "datasets", "records", "jobs", "ledger", "device"}),
    ("GET", "/datasets/new", {}, {"datasets"}),
    ("POST", "/datasets", DATASET, {"datasets"}),
    ("GET", "/datasets/{ds}", {}, {"datasets", "records", "jobs", "ledger"}),
    ("GET", "/datasets/{ds}/rounds/new", {}, {"datasets"}),
    ("POST", "/datasets/{ds}/rounds", ROUND | {"step": "submit"}, {"datasets"}),
    ("GET", "/datasets/{cds}/records", {}, {"records"}),
    ("POST", "/datasets/{cds}/records", UPLOAD, {"records"}),
    ("POST", "/datasets/{ds}/verify", {}, {"ledger"}),
    ("POST", "/datasets/{ds}/grants", {"epsilon": "1"}, {"datasets"}),
    ("GET", "/datasets/{ds}/ledger.csv", {}, {"ledger"}),
    ("GET", "/datasets/{ds}/jobs/new", {}, {"datasets", "records", "jobs", "ledger"}),
    ("POST", "/datasets/{ds}/jobs/forecast", FORM, {"datasets", "records", "jobs", "ledger"}),
    ("POST", "/datasets/{ds}/jobs", FORM | {"step": "submit"}, {"jobs"}),
    ("GET", "/rounds/{rnd}", {}, {"device", "datasets", "jobs"}),
    ("GET", "/rounds/{rnd}/live", {}, {"device", "datasets", "jobs"}),
    ("POST", "/rounds/{rnd}/close", {}, {"datasets", "jobs"}),
    ("GET", "/jobs", {}, {"jobs"}),
    ("GET", "/jobs/{job}", {}, {"jobs"}),
    ("GET", "/jobs/{job}/live", {}, {"jobs"}),
    ("GET", "/jobs/{job}/events", {}, {"jobs"}),
    ("GET", "/jobs/{job}/result", {}, {"jobs"}),
    ("GET", "/jobs/{job}/plot.svg", {}, {"jobs"}),
    ("GET", "/jobs/{job}/plot.png", {}, {"jobs"}),
    ("GET", "/jobs/{job}/map.json", {}, {"jobs"}),
    ("GET", "/compare?left={job}&right={job}", {}, {"jobs"}),
    ("GET", "/compare.json?left={job}&right={job}", {}, {"jobs"}),
    ("GET", "/jobs/{job}/result.json", {}, {"jobs"}),
    ("GET", "/jobs/{job}/clusters.csv", {}, {"jobs"}),
    ("POST", "/jobs/{job}/cancel", {}, {"jobs"}),
    ("GET", "/keys", {}, set()),
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
    method, path, form, _ = door
    path = path.format_map(ids)
    if form == UPLOAD:
        return console.upload(path, **form).status_code
    return (console.get(path) if method == "GET" else console.post(path, form)).status_code


class TestDoors:
    def test_are_every_page_there_is(self) -> None:
        from service.console.site import PAGES

        named = {(way, re.sub(r"\{[a-z]+\}", "{}", path.partition("?")[0])) for way, path, _, _ in DOORS}
        assert {(m, re.sub(r"\{[a-z_]+\}", "{}", p)) for m, p, _ in PAGES} == named | {("POST", "/logout")}

    @pytest.mark.parametrize("scope", ["datasets", "records", "jobs", "device", "ledger"])
    def test_open_to_the_scopes_of_the_api(self, api: Api, database: Database, scope: str) -> None:
        ids, console = everything(api, database), Console(api.key(scope))
        for door in DOORS:
            assert (enter(console, door, ids) != 403) is (scope in door[3]), door

    def test_open_to_an_admin(self, api: Api, console: Console, database: Database) -> None:
        ids = everything(api, database)
        assert [(door, status) for door in DOORS if (status := enter(console, door, ids)) >= 400] == []

    def test_of_another_tenant_lead_nowhere(self, api: Api, other: Api, database: Database) -> None:
        ids, console = everything(api, database), Console(other)
        foreign = [door for door in DOORS if "{" in door[1]]
        assert len(foreign) > 15
        for door in foreign:
            assert enter(console, door, ids) == 404, door
        names = " ".join(words(console.get(path)) for path in ("/", "/jobs", "/keys", "/webhooks", "/audit"))
        assert not any(each in names for each in ids.values())

    def test_of_another_dataset_lead_nowhere_for_a_bound_key(self, api: Api, database: Database) -> None:
        ids, mine = everything(api, database), api.dataset(name="mine")["id"]
        bound = Console(api.key("admin", dataset_id=mine))
        for door in DOORS:
            if "{" in door[1] and door[1].startswith(("/datasets/", "/rounds/", "/jobs/", "/compare")):
                assert enter(bound, door, ids) == 404, door
        assert ids["job"] not in bound.text("/jobs")
        assert ids["ds"] not in bound.text("/")
        assert bound.get("/audit").status_code == 403
        assert bound.get("/keys").status_code == 403


class TestNames:
    def test_are_shown_as_they_are_and_do_nothing(self, api: Api, console: Console, database: Database) -> None:
        features = [{"name": ODD[:60], "lower": 0, "upper": 1, "unit": ODD[:20]}, FEATURES[1]]
        dataset = api.dataset(name=ODD, features=features)
        api.made("/keys", {"name": ODD, "scopes": ["device"]})
        job = api.job(dataset["id"])
        model = a_model()
        odd = tuple(Feature(**feature) for feature in features)
        finish(database, job["id"], ClusterModel(**(vars_of(model) | {"features": odd, "warnings": (ODD,)})))
        pages = ["/", f"/datasets/{dataset['id']}", "/keys", "/audit", f"/datasets/{dataset['id']}/jobs/new"]
        pages += [f"/jobs/{job['id']}/result", f"/datasets/{dataset['id']}/jobs/new?type=auto"]
        for page in pages:
            text = console.text(page)
            assert "<script>alert" not in text, page
            assert "49" not in re.findall(r"שלום(.{2})", text), page
            if page != "/audit":
                assert html.escape(ODD[:20], quote=False)[:16] in text.replace("&#34;", '"'), page

    def test_stay_by_themselves_whatever_their_direction(self, api: Api, console: Console) -> None:
        dataset = api.dataset(name="\N{RIGHT-TO-LEFT OVERRIDE}abc")
        assert "<bdi>\N{RIGHT-TO-LEFT OVERRIDE}abc</bdi>" in console.text(f"/datasets/{dataset['id']}")

    def test_are_no_formulas_in_a_csv(self, api: Api, console: Console, database: Database) -> None:
        features = [{"name": "=HYPERLINK(1)", "lower": 0, "upper": 1, "unit": ""}, FEATURES[1]]
        job = api.job(api.dataset(features=features)["id"])
        odd = tuple(Feature(**feature) for feature in features)
        finish(database, job["id"], ClusterModel(**(vars_of(a_model()) | {"features": odd})))
        header = console.text(f"/jobs/{job['id']}/clusters.csv").splitlines()[0]
        assert (
            header
            == "cluster,size,size_error,'=HYPERLINK(1),y,'=HYPERLINK(1) error,y error,silhouette,nearest,distance"
        )


class TestTheOverview:
    def test_shows_budgets_rounds_and_jobs(self, api: Api, console: Console) -> None:
        dataset = api.dataset(name="commuters", epsilon=2)
        opened = api.round(dataset["id"], epsilon=0.5)
        job = api.job(dataset["id"], algorithm={"type": "uniform_grid", "epsilon": 1})
        api.report(opened["id"])
        text = words(console.get("/"))
        left = api.get(f"/datasets/{dataset['id']}/budget").json()["remaining"]
        assert "commuters" in text
        assert f"{left:.9f}".rstrip("0") in text
        assert "1 of 1,000 reports" in text
        assert job["id"] in text

    def test_says_where_a_budget_runs_out(self, api: Api, console: Console) -> None:
        plenty = api.dataset(name="plenty")
        short = api.dataset(name="short", epsilon=1)
        api.job(short["id"], algorithm={"type": "uniform_grid", "epsilon": 0.95})
        text = console.text("/")
        (alerts,) = re.findall(r'<ul class="alerts">(.*?)</ul>', text, re.S)
        assert "0.05 of 1 ε is left" in alerts
        assert short["id"] in alerts
        assert plenty["id"] not in alerts

    def test_goes_on_over_pages(self, api: Api, console: Console) -> None:
        made = [api.dataset(name=f"d{i}")["id"] for i in range(14)]
        first = console.text("/")
        (more,) = re.findall(r'href="/console(/\?cursor=[^"]+)"', first)
        second = console.text(more)
        assert [each in first for each in sorted(made)] == [True] * 12 + [False] * 2
        assert [each in second for each in sorted(made)] == [False] * 12 + [True] * 2


class TestADataset:
    def test_shows_its_budget_as_the_ledger_has_it(self, api: Api, console: Console) -> None:
        dataset = api.dataset(epsilon=3)
        api.round(dataset["id"], epsilon=0.5)
        api.job(dataset["id"], algorithm={"type": "uniform_grid", "epsilon": 1})
        page = console.text(f"/datasets/{dataset['id']}")
        course = json.loads(html.unescape(re.findall(r'data-course="([^"]*)"', page)[0]))
        entries = api.get(f"/datasets/{dataset['id']}/ledger").json()["items"]
        assert course["posted"] == [entry["posted_nano"] / 1e9 for entry in entries]
        assert course["granted"] == [3.0] * len(entries)
        assert course["held"][-1] == pytest.approx(1 + course["posted"][-1])

    def test_that_was_deleted_keeps_its_ledger(self, api: Api, console: Console) -> None:
        dataset = api.dataset()
        assert api.request("DELETE", f"/datasets/{dataset['id']}").status_code == 204
        text = words(console.get(f"/datasets/{dataset['id']}"))
        assert "was deleted" in text
        assert "1 entries, newest first" in text
        assert console.get(f"/datasets/{dataset['id']}/jobs/new").status_code == 404
        assert console.post(f"/datasets/{dataset['id']}/grants", {"epsilon": "1"}).status_code == 404

    def test_is_granted_more_and_says_what_is_wrong_beside_the_field(self, api: Api, console: Console) -> None:
        dataset = api.dataset(epsilon=1)
        path = f"/datasets/{dataset['id']}/grants"
        assert console.post(path, {"epsilon": "1.5", "once": "frm_g"}).status_code == 303
        assert console.post(path, {"epsilon": "1.5", "once": "frm_g"}).status_code == 303  # sent twice
        assert api.get(f"/datasets/{dataset['id']}/budget").json()["granted"] == 2.5
        for bad in ("-1", "x", "33", "nan", "1e999", ""):
            answer = console.post(path, {"epsilon": bad})
            assert answer.status_code == 422, bad
            assert "problem" in answer.text or 'id="f-epsilon-wrong"' in answer.text
        assert api.get(f"/datasets/{dataset['id']}/budget").json()["granted"] == 2.5

    def test_of_64_features_is_shown(self, api: Api, console: Console) -> None:
        features = [{"name": f"f{i}", "lower": 0, "upper": 1, "unit": ""} for i in range(64)]
        dataset = api.dataset(features=features)
        assert console.text(f"/datasets/{dataset['id']}").count("<bdi>f") == 64

    def test_verifies_its_ledger_and_says_where_it_broke(
        self, api: Api, console: Console, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = api.dataset()
        assert "Verified: 1 entries" in words(console.post(f"/datasets/{dataset['id']}/verify"))
        monkeypatch.setattr(ledger, "_hash", lambda _entry: "0" * 64)
        assert "does not hold from entry 1 on" in words(console.post(f"/datasets/{dataset['id']}/verify"))


class TestALongLedger:
    N_ENTRIES = 2_000

    @pytest.fixture
    def dataset_id(self, api: Api, database: Database) -> str:
        dataset_id: str = api.dataset()["id"]
        with database.transaction() as session:
            caller = tenant.authenticate(session, tenant.hash_secret(api.secret), now=0)
            assert caller is not None
            first = ledger.page(session, dataset_id, after_seq=0, limit=1)[0]
            columns = {column.key: getattr(first, column.key) for column in LedgerEntry.__table__.columns}
            rows = [
                columns | {"id": f"led_{i:026d}"[:4] + dataset_id[-16:] + f"{i:010d}", "seq": i, "reference": f"g{i}"}
                for i in range(2, self.N_ENTRIES + 1)
            ]
            session.execute(LedgerEntry.__table__.insert(), rows)
            ledger.head(session, dataset_id).seq = self.N_ENTRIES
        return dataset_id

    def test_is_shown_a_page_at_a_time_from_its_end(self, console: Console, dataset_id: str) -> None:
        def seqs(page: str) -> list[int]:
            text = console.text(f"/datasets/{dataset_id}{page}")
            return [int(seq) for seq in re.findall(r'<tr><td class="n">(\d+)</td><td>20', text)]

        assert seqs("") == list(range(2000, 1980, -1))
        assert seqs("?page=2") == list(range(1980, 1960, -1))
        assert seqs("?page=100") == list(range(20, 0, -1))
        assert seqs("?page=999999") == list(range(20, 0, -1))
        for odd in ("0", "-1", "x", "٣", "9" * 50, "1.5", ""):
            assert seqs(f"?page={odd}") == list(range(2000, 1980, -1)), odd

    def test_is_drawn_by_some_of_its_entries(self, console: Console, dataset_id: str) -> None:
        page = console.text(f"/datasets/{dataset_id}")
        course = json.loads(html.unescape(re.findall(r'data-course="([^"]*)"', page)[0]))
        assert 200 <= len(course["x"]) <= 242
        assert (course["x"][0], course["x"][-1]) == (1, self.N_ENTRIES)
        assert len(page.encode()) < 60_000

    def test_is_exported_whole(self, api: Api, console: Console, dataset_id: str) -> None:
        answer = console.get(f"/datasets/{dataset_id}/ledger.csv")
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert [int(row["seq"]) for row in rows] == list(range(1, self.N_ENTRIES + 1))
        first = api.get(f"/datasets/{dataset_id}/ledger").json()["items"][0]
        assert rows[0] == {name: "" if first[name] is None else str(first[name]) for name in CSV_COLUMNS}
        assert answer.headers["content-disposition"] == f'attachment; filename="ledger-{dataset_id}.csv"'


class TestAdministration:
    def test_makes_a_key_that_works_and_shows_its_secret_once(self, api: Api, console: Console) -> None:
        answer = console.post("/keys", {"name": "app", "scopes": ["device", "jobs"], "expires_on": "2099-01-01"})
        (secret,) = re.findall("sfk_[0-9a-f]{64}", answer.text)
        assert Api(api.http, api.database, secret).get("/jobs").status_code == 200
        assert secret not in console.text("/keys")

    def test_offers_a_key_for_a_dataset(self, api: Api, console: Console) -> None:
        dataset_id = api.dataset()["id"]
        href = html.unescape(
            re.findall(r'href="/console(/keys[^"#]*)#new"', console.text(f"/datasets/{dataset_id}"))[0]
        )
        assert f'name="dataset_id" type="text" value="{dataset_id}"' in console.text(href)

    def test_revokes_and_replaces_keys(self, api: Api, console: Console) -> None:
        made = api.made("/keys", {"name": "k", "scopes": ["jobs"]})
        answer = console.post(f"/keys/{made['id']}/rotate", {"overlap_hours": "0.5"})
        assert len(re.findall("sfk_[0-9a-f]{64}", answer.text)) == 1
        assert console.post(f"/keys/{made['id']}/rotate").status_code == 409
        assert console.post(f"/keys/{made['id']}/revoke").status_code == 303
        assert Api(api.http, api.database, made["secret"]).get("/jobs").status_code == 401

    @pytest.mark.parametrize(
        ("form", "field"),
        [
            ({"name": ""}, "name"),
            ({"name": "n"}, "scopes"),
            ({"name": "n", "scopes": "everything"}, "scopes|0|"),
            ({"name": "n", "scopes": "jobs", "expires_on": "yesterday"}, "f-expires_on"),
            ({"name": "n", "scopes": "jobs", "expires_on": "2001-01-01"}, "f-expires_on"),
            ({"name": "n", "scopes": "jobs", "dataset_id": "x"}, "f-dataset_id"),
        ],
        ids=["no name", "no scopes", "no such scope", "no date", "past", "no id"],
    )
    def test_says_what_is_wrong_with_a_key(self, console: Console, form: dict[str, str], field: str) -> None:
        answer = console.post("/keys", form)
        assert answer.status_code == 422
        assert re.search(rf'id="(f-)?({field})-wrong"|class="problem" role="alert"', answer.text)

    def test_makes_switches_and_deletes_a_webhook(self, api: Api, console: Console) -> None:
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

    def test_shows_the_audit_trail_from_its_end(self, api: Api, console: Console) -> None:
        for i in range(30):
            api.made("/keys", {"name": f"k{i}", "scopes": ["device"]})
        seqs = [
            [int(seq) for seq in re.findall(r'<tr><td class="n">(\d+)</td>', console.text(f"/audit?page={page}"))]
            for page in (1, 2)
        ]
        assert seqs[0] + seqs[1] == list(range(31, 0, -1))


class TestAnError:
    def test_of_the_gateway_s_own_is_a_page_that_tells_nothing(
        self, api: Api, console: Console, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_args: object, **_options: object) -> None:
            raise RuntimeError("a private value")

        monkeypatch.setattr("service.routes.datasets.datasets.page", broken)
        answer = console.get("/")
        assert answer.status_code == 500
        assert "a private value" not in answer.text
        assert answer.headers["x-request-id"] in answer.text


def test_a_session_is_of_its_own_tenant(api: Api, other: Api, database: Database) -> None:
    tokens = [Console(each).token for each in (api, other)]
    with database.reading() as session:
        mine, theirs = (find(session, token, now=database.clock()) for token in tokens)
    assert mine is not None
    assert theirs is not None
    assert mine.caller.tenant_id != theirs.caller.tenant_id
    assert mine.csrf != theirs.csrf
