"""Each error of a form is beside the field that it is about."""

import re

import pytest

from tests.service.api import SQLITE_ONLY, Api, a_model, finish
from tests.service.console.session import DATASET, FORM, ROUND, Console
from tests.service.shuffler import SHUFFLER

CENTRAL = DATASET | {"trust": "central"}
SHUFFLED = DATASET | {"trust": "shuffled", "shuffled_epsilon": "1.5", "shuffled_delta": "1e-5"}
SHUFFLED |= {f"shuffler_{name}": value for name, value in SHUFFLER.items()}
KEY = {"name": "app", "scopes": "jobs"}
HOOK = {"url": "https://hooks.example.com/", "event_types": "job.failed"}
PROFILE = {"attribute": "x", "epsilon": "1"}

# form -> (path, valid fields, refused values by (field, value))
FORMS = {
    "local": ("/datasets", DATASET, [
        ("name", ""), ("name", "n" * 300), ("trust", "nobody"), ("epsilon", "0"), ("epsilon", "1e400"),
        ("features", ""), ("features", "x, 1, 0"), ("features", "x, 0, 1\nx, 0, 1"), ("features", "x, 0, many"),
        ("min_reports", "-1"), ("min_reports", "few"), ("out_of_bounds", "refuse"), ("source", "\x07"),
    ]),
    "central": ("/datasets", CENTRAL, [
        ("delta", "1"), ("accounting", "gaussian"), ("user_feature", "x"), ("max_records_per_user", "0"),
        ("attributes", "plan, categorical"), ("attributes", "age, numeric, 9, 3"), ("attributes", "age"),
        ("dimensions", "0"), ("dimensions", "9999"), ("out_of_bounds", "count"),
    ]),
    "shuffled": ("/datasets", SHUFFLED, [
        ("shuffler_name", ""), ("shuffler_url", "shuffler"), ("shuffler_public_key", "x"),
        ("shuffled_epsilon", "0"), ("shuffled_delta", "1"),
    ]),
    "round": ("/datasets/{local}/rounds", ROUND | {"cells": "1000", "step": "submit"}, [
        ("epsilon", "0"), ("target_reports", "0"), ("target_reports", "many"), ("min_reports", "-1"),
        ("cells", "0"), ("cells", "many"), ("encoding", "shifted_grid"), ("mechanism", "none"),
        ("collect_days", "-1"), ("collect_days", "soon"), ("collect_days", "1e308"),
    ]),
    "shifts": ("/datasets/{local}/rounds", ROUND | {"encoding": "shifted_grid", "step": "submit"}, [
        ("cells", "0"), ("shifts", "0"), ("shifts", "many"),
    ]),
    "job": ("/datasets/{local}/jobs", FORM | {"step": "submit"}, [
        ("collect_days", "-1"), ("collect_days", "1e308"), ("collect_days", "soon"),
    ]),
    "central job": ("/datasets/{central}/jobs", {"type": "private_kmeans", "epsilon": "0.5", "step": "submit"}, [
        ("delta", "2"), ("clusters", "0"), ("feature", ""),
    ]),
    "profile": ("/jobs/{job}/profile", PROFILE, [
        ("attribute", ""), ("attribute", "z"), ("epsilon", ""), ("epsilon", "-1"), ("delta", "2"),
        ("expected_records", "0"), ("expected_records", "many"),
    ]),
    "key": ("/keys", KEY, [
        ("name", ""), ("scopes", "everything"), ("dataset_id", "x"), ("expires_on", "yesterday"),
        ("expires_on", "2001-01-01"),
    ]),
    "rotation": ("/keys/{key}/rotate", {}, [
        ("overlap_hours", "-1"), ("overlap_hours", "soon"), ("overlap_hours", "1e308"),
    ]),
    "webhook": ("/webhooks", HOOK, [
        ("url", ""), ("url", "http://hooks.example.com/"), ("event_types", ""), ("event_types", "x"),
        ("dataset_id", "x"), ("description", "d" * 2000),
    ]),
    "grant": ("/datasets/{local}/grants", {"epsilon": "1"}, [("epsilon", "-1"), ("epsilon", "lots")]),
    "user": ("/datasets/{central}/records/delete", {"user": "u"}, [("user", "")]),
}  # fmt: skip
# fields with a message that has an id of another name
OTHER_IDS = {"attribute": "f-attributes", "feature": "f-features", "trust": "trust", "scopes": "scopes"}
OTHER_IDS |= {"event_types": "event_types", "overlap_hours": "overlap"}


@SQLITE_ONLY
class TestErrors:
    @pytest.mark.parametrize("form", FORMS)
    def test_are_beside_their_fields(self, api: Api, console: Console, form: str) -> None:
        path, valid, refused = FORMS[form]
        central = api.dataset(trust="central", user_feature="who", name="curated")["id"]
        ids = {
            "local": api.dataset()["id"],
            "central": central,
            "key": api.made("/keys", {"name": "k", "scopes": ["jobs"]})["id"],
        }
        api.made(f"/datasets/{central}/records", {"columns": ["x", "y", "who"], "rows": [[0.5, 0.5, "u"]]})
        ids["job"] = api.job(central, algorithm={"type": "private_kmeans", "epsilon": 0.1}, target_reports=None)["id"]
        finish(api.database, ids["job"], a_model())
        wrong = {}
        for field, value in refused:
            response = console.post(path.format_map(ids), valid | {field: value})
            shown = re.search(rf'id="{OTHER_IDS.get(field, f"f-{field}")}-wrong" role="alert">\w', response.text)
            elsewhere = re.findall(r'<div class="problem" role="alert">(.*?)</div>', response.text, re.DOTALL)
            if not 400 <= response.status_code < 500 or not shown or elsewhere:
                wrong[field, value] = (
                    response.status_code,
                    elsewhere,
                    re.findall(r'id="([^"]*-wrong)" role[^<]*', response.text),
                )
        assert wrong == {}

    @pytest.mark.parametrize(
        ("name", "content", "field"),
        [
            ("people.txt", b"x,y\n0.5,0.25\n", "file"),
            ("people.csv", b"x,z\n0.5,0.25\n", "file"),
            ("people.csv", b"x,y\n0.5,much\n", "file"),
            ("people.csv", b"", "file"),
            ("people.csv", b"x,y\n" + b"9,9\n" * 20, "accept_clipping"),
            ("people.csv", b"x,y\n" + b"0.5,0.25\n" * 20, "allow_duplicates"),
        ],
    )
    def test_of_an_upload_are_beside_its_controls(
        self, api: Api, console: Console, name: str, content: bytes, field: str
    ) -> None:
        path = f"/datasets/{api.dataset(trust='central')['id']}/records"
        assert console.upload(path, "people.csv", b"x,y\n" + b"0.5,0.25\n" * 20).status_code == 200
        refused = console.upload(path, name, content)
        assert 400 <= refused.status_code < 500
        assert re.findall(r'id="([^"]*)-wrong" role="alert">\w', refused.text) == [f"f-{field}"]
        assert '<div class="problem"' not in refused.text
