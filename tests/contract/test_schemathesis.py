"""Schemathesis sends cases to a gateway with a worker, and checks all responses by the document.

Before a release it also sends the limits of each parameter, thousands of cases. `test_bad_inputs.py` sends thousands of
invalid requests with each change.
"""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from devservers.loopback import NO_TLS
from models.database.engine import Database
from service.schemas.base import EXAMPLE_ULID
from tests.contract import test_openapi
from tests.service.api import GRID, Api, a_model, finish
from tests.service.followed import follow
from tests.service.processes import ROOT, Running, environment, running

# phases, and the least number of their cases
RANDOM_PHASES = ("examples,fuzzing,stateful", 800)
ALL_PHASES = ("examples,coverage,fuzzing,stateful", 3_000)
# random cases per operation and phase, beside 6,600 cases of the limits of each parameter
N_EXAMPLES = int(os.environ.get("SFUMATO_TEST_EXAMPLES", "6"))
PLACES = [
    {"name": "longitude", "lower": -180, "upper": 180, "unit": "degrees"},
    {"name": "latitude", "lower": -90, "upper": 90, "unit": "degrees"},
]
NEVER_SUCCESSFUL = {
    "createProfileForecast",  # needs a job over records with the attributes of the example
    "deleteRecords",  # needs a central dataset, which no link of the document provides
    "releaseRound",  # needs the signature of a shuffler
}
SERIES = {
    "name": "weekly",
    "algorithm": {"type": "shifted_grid", "epsilon": 1.0},
    "windows": {"every": "week", "count": 4},
    "cycle": 2,
    "target_reports": 1_000_000,
}
SIXTEEN_CELLS = GRID | {"cells": [4, 4]}
SETTINGS = {
    "SFUMATO_PORT": "0",
    "SFUMATO_RATE_PER_KEY": "0",
    "SFUMATO_RATE_OF_FAILURES": "0",
    "SFUMATO_MAX_WAIT_SECONDS": "0.1",
    "SFUMATO_SOURCE_LIMIT": "none",
}
CONFIGURATION = """\
hooks = "tests.contract.allowances"
max-stream-events = 1
request-timeout = 60.0
[phases.stateful]
max-steps = 8
[phases.stateful.generation]
max-examples = 60
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    secret = base64.b64encode(b"\x01" * 32).decode()
    with running(tmp_path / "home", "serve", **SETTINGS, SFUMATO_RECORDS_KEY=secret) as started:
        yield started


def create_objects(gateway: Running, api: Api) -> dict[str, Any]:
    """Create one object of each kind over HTTP, with a stored result, and return their ids."""
    local, central = api.dataset(epsilon=32), api.dataset(trust="central", epsilon=32, features=PLACES)
    rows = {"columns": [feature["name"] for feature in PLACES], "rows": [[0.5, 0.5]] * 50}
    api.made(f"/datasets/{central['id']}/records", rows)
    finished = api.job(local["id"])
    finish(api.database, finished["id"], a_model())
    key = api.made("/keys", {"name": "k", "scopes": ["device"]})
    webhook = api.made("/webhooks", {"url": "https://hooks.example.invalid/", "event_types": ["job.succeeded"]})
    series = api.made("/series", SERIES | {"dataset_id": local["id"]})
    delivery = api.made(f"/webhooks/{webhook['id']}/test", None)
    by_prefix = {
        "ds": [local["id"], central["id"]],
        "rnd": [api.round(local["id"], encoding=SIXTEEN_CELLS, target_reports=2**31 - 1)["id"]],
        "job": [finished["id"]],
        "ser": [series["id"]],
        "clu": follow(api, series["id"]),
        "key": [key["id"]],
        "whk": [webhook["id"]],
        "msg": [delivery["id"]],
    }
    *_, own = api.get("/keys").json()["items"]  # the oldest one
    return {"own_key": own["id"], "central": central["id"], "example": EXAMPLE_ULID, "by_prefix": by_prefix}


def run_schemathesis(gateway: Running, directory: Path, *, phases: str, seed: int, n_examples: int) -> dict[str, Any]:
    """Run Schemathesis and return its report."""
    url = gateway.url()
    secret = (gateway.home / "admin.key").read_text().strip()
    database = Database(f"sqlite:///{gateway.home / 'sfumato.db'}")
    with httpx.Client(base_url=url, timeout=60, verify=NO_TLS) as client:
        objects = create_objects(gateway, Api(client, database, secret))
    database.close()
    (directory / "schemathesis.toml").write_text(CONFIGURATION)
    report, answers = directory / "report.json", directory / "answers.har"
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", directory / "schemathesis.toml"),
        *("run", test_openapi.COMMITTED, "--url", url, "--header", f"Authorization: Bearer {secret}"),
        *("--phases", phases, "--checks", "all", "--continue-on-failure"),
        *("--seed", str(seed), "--max-examples", str(n_examples), "--generation-database", "none", "--no-color"),
        *("--report", "json,har", "--report-json-path", report, "--report-har-path", answers),
    ]
    env = environment(gateway.home) | {"SFUMATO_TEST_OBJECTS": json.dumps(objects), "PYTHONPATH": str(ROOT)}
    out = directory / "schemathesis.out"
    with out.open("wb") as written:
        ended = subprocess.run(command, cwd=directory, env=env, stdout=written, stderr=subprocess.STDOUT, check=False)
    assert report.exists(), out.read_text()
    found: dict[str, Any] = json.loads(report.read_text())
    found["text"] = out.read_text()
    entries = json.loads(answers.read_text())["log"]["entries"]
    assert ended.returncode == 0, found["text"] + history(found["text"], entries)
    found["statuses"] = [entry["response"]["status"] for entry in entries]
    found["opened"] = succeeded(entries)
    with httpx.Client(base_url=url, timeout=60, verify=NO_TLS) as client:
        still = client.get("/v1/keys", headers={"Authorization": f"Bearer {secret}"})
        assert still.status_code == 200  # otherwise the last cases ran without a valid key
    return found


def history(text: str, entries: list[dict[str, Any]]) -> str:
    """Return all requests with an id that a failure names, because Schemathesis prints only the failing chain."""
    named = set(re.findall(r"(?:ds|rnd|job|key|whk)_[0-9a-z]{26}", text.partition("= WARNINGS =")[0]))
    return "\n".join(
        f"{entry['startedDateTime']} {sent['method']} {sent['url']} {entry['response']['status']}"
        for entry in entries
        for sent in (entry["request"],)
        if any(name in json.dumps(entry) for name in named)
    )


def succeeded(entries: list[dict[str, Any]]) -> set[str]:
    """Return the operations with at least one successful response."""
    document = json.loads(test_openapi.COMMITTED.read_text())
    paths = {path: re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for path in document["paths"]}
    fine = {
        (entry["request"]["method"].lower(), urlsplit(entry["request"]["url"]).path)
        for entry in entries
        if entry["response"]["status"] < 400
    }
    return {
        operation["operationId"]
        for method, path, operation in test_openapi.operations(document)
        if any(sent == method and paths[path].fullmatch(sent_path) for sent, sent_path in fine)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phases", "min_cases", "seed"),
    [(*RANDOM_PHASES, 7), *(pytest.param(*ALL_PHASES, seed, marks=pytest.mark.release) for seed in (8, 9))],
)
def test_schemathesis_finds_no_failure(
    gateway: Running, tmp_path: Path, phases: str, min_cases: int, seed: int
) -> None:
    found = run_schemathesis(gateway, tmp_path, phases=phases, seed=seed, n_examples=N_EXAMPLES)
    text = found["text"]
    assert found["failures"] == [], text
    assert found["errors"] == [], text
    assert found["complete"], text
    assert found["test_cases"]["generated"] >= min_cases, text
    document = json.loads(test_openapi.COMMITTED.read_text())
    every = {operation["operationId"] for _, _, operation in test_openapi.operations(document)}
    assert found["operations"]["tested"] == found["operations"]["total"] == len(every), text
    ran = [phase["status"] for phase in found["phases"].values() if phase["status"] != "skip"]
    assert ran == ["success"] * len(phases.split(",")), text
    assert len(found["statuses"]) >= min_cases
    assert not [status for status in found["statuses"] if status >= 500]
    assert every - found["opened"] <= NEVER_SUCCESSFUL
    n_fine = sum(status < 400 for status in found["statuses"])
    assert not [line for line in gateway.lines() if line.get("event") in ("request_failed", "database_unavailable")]
    print(f"{found['test_cases']['generated']} cases, {n_fine} of {len(found['statuses'])} answers below 400")
