"""Ten mistakes of new users, made in the SDK, the command line and the HTTP API against a real service.

Each error must name what is wrong, where, the limit or value, and what to do.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest

from devservers.loopback import NO_TLS
from sfumato.api.client import Client
from sfumato.api.resources import Dataset, Round
from sfumato.device.bulk import perturb_records
from sfumato.errors import ApiProblem, InvalidPoint, InvalidSpec
from sfumato.model.precision import Verdict
from sfumato.specs import Feature, GridEncoding, PhaseSketch, ShiftedGrid, UniformGrid
from tests.service.processes import environment, running, until

FEATURES = (Feature("x", 0, 8, "km"), Feature("y", -4, 4))
TARGET = 100
CSV = "x,y\n1,2\n3,1\n"


@dataclass(frozen=True)
class Live:
    """A running service."""

    url: str
    key: str
    home: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `sfumato ARGUMENTS` as a user does, in a process of its own."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "service.cli", *arguments],
            cwd=self.home,
            env=environment(self.home, SFUMATO_URL=self.url, SFUMATO_KEY=self.key),
            capture_output=True,
            text=True,
            check=False,
        )

    def post(self, path: str, body: str, content_type: str = "application/json") -> httpx.Response:
        """Send a request without the SDK."""
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": content_type}
        return httpx.post(f"{self.url}/v1/{path}", content=body, headers=headers, timeout=60, verify=NO_TLS)

    def post_csv(self, dataset_id: str, text: str) -> httpx.Response:
        """Upload records as CSV."""
        return self.post(f"datasets/{dataset_id}/records", text, "text/csv")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("service") / "home"
    with running(home, "serve", "--port", "0") as service:
        yield Live(service.url(), (home / "admin.key").read_text().strip(), home)


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[Client]:
    with Client(live.url, live.key) as client:
        yield client


@pytest.fixture
def local(client: Client) -> Dataset:
    return client.create_dataset("people", FEATURES, epsilon=8, min_reports=1)


@pytest.fixture
def central(client: Client) -> Dataset:
    return client.create_dataset("records", FEATURES, epsilon=8, trust="central")


@pytest.fixture(scope="module")
def tallied(client: Client) -> Round:
    """Return a round with few reports."""
    dataset = client.create_dataset("few people", FEATURES, epsilon=8, min_reports=1)
    opened = client.open_round(dataset.id, GridEncoding((4, 4)), epsilon=1, target_reports=TARGET)
    client.send_reports(opened.id, *perturb_records(opened.spec, np.tile([1.5, 2.0], (TARGET, 1))))
    until(lambda: client.get_round(opened.id).state == "tallied")
    return opened


def contains(text: str, *parts: str) -> None:
    """Check that a message has all parts, wherever a terminal breaks its lines."""
    text = " ".join(text.split())
    for part in parts:
        assert part in text, (part, text)


def test_1_reporting_a_file_twice(live: Live, client: Client, local: Dataset) -> None:
    opened = client.open_round(local.id, GridEncoding((4, 4)), epsilon=1, target_reports=TARGET)
    (live.home / "people.csv").write_text(CSV)
    assert live.run("report", "--from", "people.csv", local.id).returncode == 0
    again = live.run("report", "--from", "people.csv", local.id)
    assert again.returncode == 1
    contains(
        again.stderr, "people.csv.receipt", opened.id, "nothing was sent", "double the epsilon", "wait for the next"
    )
    assert client.get_round(opened.id).n_received == 2


def test_2_uploading_records_twice(live: Live, client: Client, central: Dataset) -> None:
    assert live.post_csv(central.id, CSV).status_code == 201
    again = live.post_csv(central.id, CSV)
    assert (again.status_code, again.json()["title"]) == (409, "The records are already stored")
    contains(again.json()["detail"], "the same 2 records", "nothing was stored", "Send allow_duplicates=true")
    (live.home / "records.csv").write_text(CSV)
    contains(live.run("records", "upload", central.id, "records.csv").stderr, "2 records", "Send --allow-duplicates if")
    assert client.count_records(central.id).n_records == 2


def test_3_swapping_missing_or_adding_columns(live: Live, client: Client, tallied: Round, central: Dataset) -> None:
    frames = {
        ("x", "age"): "columns y are missing; columns age are not features. Select the columns x, y",
        ("x",): "columns y are missing. Select the columns x, y",
        ("y", "x", "age"): "columns age are not features. Select the columns x, y",
    }
    for columns, message in frames.items():
        frame = pd.DataFrame([[1.0] * len(columns)], columns=list(columns))
        with pytest.raises(InvalidPoint, match=message):
            perturb_records(tallied.spec, frame)
        with pytest.raises(InvalidPoint, match=message):
            client.upload_records(central.id, frame)
    with pytest.raises(InvalidPoint, match=r"shape \(n, 2\) with the columns x, y in this order; got shape \(1, 3\)"):
        perturb_records(tallied.spec, np.ones((1, 3)))
    problem = live.post_csv(central.id, "x,age\n1,2\n").json()
    assert [each["message"] for each in problem["errors"]] == [
        "column y is missing: add it",
        "column age is not declared: remove it",
    ]
    # Columns in another order are matched by name: y = -4 is stored as it is, and would be clipped as x.
    assert live.post_csv(central.id, "y,x\n-4,8\n").json()["n_clipped"] == 0
    assert client.upload_records(central.id, pd.DataFrame({"y": [-3.0], "x": [7.0]})).n_clipped == 0


def test_4_an_algorithm_that_cannot_read_the_round(client: Client, tallied: Round) -> None:
    before = client.budget(tallied.dataset_id).balance
    with pytest.raises(ApiProblem) as raised:
        client.submit_job(tallied.dataset_id, PhaseSketch(epsilon=1, clusters=2), round_ids=[tallied.id])
    assert raised.value.status == 422
    contains(
        str(raised.value), "/round_ids/0", tallied.id, "encoding grid", "phase_sketch reads phase", "use another algo"
    )
    assert client.budget(tallied.dataset_id).balance == before


def test_5_more_clusters_than_the_reports_support(client: Client, tallied: Round) -> None:
    with pytest.raises(ApiProblem) as raised:
        client.submit_job(tallied.dataset_id, UniformGrid(epsilon=1, clusters=40, cells=4), round_ids=[tallied.id])
    assert raised.value.code == "insufficient_reports"
    contains(str(raised.value), "40 clusters", "100 reports", "reports are enough", "or set allow_insufficient")


def test_6_closing_and_using_a_round_without_reports(live: Live, client: Client, local: Dataset) -> None:
    opened = client.open_round(local.id, GridEncoding((4, 4)), epsilon=1, target_reports=TARGET)
    with pytest.raises(ApiProblem) as raised:
        client.close_round(opened.id)
    contains(str(raised.value), "no reports", "releases no epsilon", "Wait for reports, or send allow_empty=true")
    contains(live.run("rounds", "close", opened.id).stderr, "releases no epsilon", "or send --allow-empty")
    assert client.get_round(opened.id).state == "open"
    client.close_round(opened.id, allow_empty=True)
    with pytest.raises(ApiProblem) as raised:
        client.submit_job(local.id, UniformGrid(epsilon=1, clusters=2, cells=4), round_ids=[opened.id])
    contains(str(raised.value), "/round_ids/0", opened.id, "has no reports", "remove it from round_ids")


def test_7_trusting_a_doubtful_result(live: Live, client: Client) -> None:
    dataset = client.create_dataset("noise", FEATURES, epsilon=8, min_reports=1)
    opened = client.open_round(dataset.id, GridEncoding((4, 4)), epsilon=1, target_reports=TARGET)
    records = np.random.default_rng(1).uniform((0, -4), (8, 4), (TARGET, 2))
    client.send_reports(opened.id, *perturb_records(opened.spec, records))
    until(lambda: client.get_round(opened.id).state == "tallied")
    algorithm = UniformGrid(epsilon=1, clusters=2, cells=4)
    job = client.submit_job(dataset.id, algorithm, round_ids=[opened.id], allow_insufficient=True)
    done = job.wait(timeout_seconds=240)
    assert (done.state, done.verdict) == ("succeeded", Verdict.DOUBTFUL)
    # A job over an existing round shows what its result cost and used.
    assert done.used is not None
    assert (done.used.n_rounds, done.used.n_reports, done.used.epsilon) == (1, TARGET, 1.0)
    contains(live.run("jobs", "list", "--dataset", dataset.id).stdout, "doubtful")
    text = live.run("jobs", "result", job.id).stdout
    contains(text, "Verdict: doubtful", "reports are few", "Collect about", "cost ε = 1")
    contains(job.result()._repr_html_(), "doubtful")


def test_8_spending_more_than_the_budget(client: Client, local: Dataset) -> None:
    client.open_round(local.id, GridEncoding((4, 4)), epsilon=2, target_reports=TARGET)
    with pytest.raises(ApiProblem) as raised:
        client.submit_job(local.id, ShiftedGrid(epsilon=7, clusters=2), target_reports=100_000)
    assert raised.value.code == "budget_exhausted"
    contains(str(raised.value), "epsilon 7", "6 is free: 8 granted, 2 charged", "grant more or request less")


def test_9_misspelling_a_field(live: Live, client: Client, local: Dataset) -> None:
    algorithm = {"type": "shifted_grid", "epsilon": 1, "cluster": 3}
    with pytest.raises(InvalidSpec, match="unknown cluster: use epsilon, clusters, "):
        client.submit_job(local.id, algorithm, target_reports=100_000)
    body = {"dataset_id": local.id, "algorithm": algorithm, "target_reports": 100_000}
    problem = live.post("jobs", json.dumps(body)).json()
    (error,) = problem["errors"]
    assert (problem["title"], error["pointer"]) == ("The request is not valid", "/algorithm/cluster")
    contains(error["message"], "unknown field: use type, epsilon, clusters")
    failed = live.run("datasets", "create", "people", "--feature", "x=0", "--epsilon", "1")
    assert failed.returncode == 2
    contains(failed.stderr, "'x=0'", "name:lower:upper")


def test_10_a_value_that_is_no_number(live: Live, client: Client, tallied: Round, central: Dataset) -> None:
    with pytest.raises(InvalidPoint, match=r"record 2 \(counted from 1\): x must be a finite number"):
        perturb_records(tallied.spec, np.array([[1.0, 2.0], [np.nan, 1.0]]))
    problem = live.post_csv(central.id, "x,y\n1,2\n1,secret\n").json()
    contains(
        problem["detail"], "record 2: y must be a finite number", "counted from 1", "nothing of this request was stored"
    )
    assert "secret" not in str(problem)
    assert client.count_records(central.id).n_records == 0
