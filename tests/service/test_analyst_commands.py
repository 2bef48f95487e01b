"""`sfumato datasets`, `jobs`, `plot`, `report`: what a service answers, as tables and bars."""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from models.db import Database
from service import cli, reporting, terminal
from sfumato.client import Client
from tests.service.api import Api, a_model, finish, unknown

Run = Callable[..., Result]


@pytest.fixture
def run(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_settings: None) -> Iterator[Run]:
    """Runs `sfumato ...` here, against the gateway of the test."""
    made = Client.__init__

    def init(self: Client, url: str, key: str, **options: object) -> None:
        made(self, url, key, transport=_Through(api.http), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "__init__", init)
    monkeypatch.setenv("SFUMATO_URL", "http://gateway")
    monkeypatch.setenv("SFUMATO_KEY", api.secret)
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli.app, list(arguments), env={"TERM": "dumb", "COLUMNS": "200"})
        assert result.exit_code == status, result.output
        return result

    return invoke


class _Through(httpx.BaseTransport):
    """The gateway in this process."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._http.request(
            request.method, request.url.raw_path.decode(), headers=request.headers.raw, content=request.read()
        )
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


class TestDatasets:
    def test_are_listed_with_what_is_left(self, api: Api, run: Run) -> None:
        made = api.dataset(name="[bold]odd[/] \N{RIGHT-TO-LEFT OVERRIDE}name")
        api.round(made["id"], epsilon=2)
        said = run("datasets").output
        assert made["id"] in said
        assert "[bold]odd[/] \ufffdname" in said
        assert "█" * 6 + "░" * 18 in said.replace("▒", "█") or "█" * 7 + "░" * 17 in said
        posted = api.get(f"/datasets/{made['id']}/budget").json()["remaining"]
        assert f" {posted:g} " in said

    def test_without_the_ledger_are_listed_still(self, api: Api, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        made = api.dataset()
        monkeypatch.setenv("SFUMATO_KEY", api.key("datasets").secret)
        assert made["id"] in run("datasets").output

    def test_of_nobody_are_a_sentence(self, run: Run) -> None:
        assert "no datasets yet" in run("datasets").output

    def test_with_a_key_that_is_none_end_in_a_sentence(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_KEY", "sfk_wrong")
        said = run("datasets", status=1).output
        assert "\nsfumato: " in f"\n{said}"
        assert "Traceback" not in said


class TestJobs:
    def test_are_listed(self, api: Api, run: Run) -> None:
        assert "no jobs yet" in run("jobs", "list").output
        dataset_id = api.dataset()["id"]
        ids = [api.job(dataset_id)["id"], api.job(api.dataset()["id"])["id"]]
        assert all(each in run("jobs", "list").output for each in ids)
        only = run("jobs", "list", "--dataset", dataset_id).output
        assert ids[0] in only
        assert ids[1] not in only

    def test_are_watched_to_their_clusters(self, api: Api, run: Run, database: Database) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        finish(database, job_id, a_model())
        said = run("jobs", "watch", job_id).output
        for part in (
            f"{job_id} succeeded",
            "25.0 ± 1.0 %",
            "75.0 ± 1.0 %",
            "█" * terminal.BAR_CELLS,
            "a warning",
            "ε 1",
        ):
            assert part in said

    def test_that_did_not_succeed_are_exit_status_1(self, api: Api, run: Run) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        api.post(f"/jobs/{job_id}/cancel")
        assert "canceled" in run("jobs", "watch", job_id, status=1).output

    def test_that_go_on_are_left_after_the_time_that_was_given(self, api: Api, run: Run) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        said = run("jobs", "watch", job_id, "--timeout-seconds", "0", status=1).output
        assert f"{job_id} queued" in said

    def test_that_are_not_there_end_in_a_sentence(self, run: Run) -> None:
        assert "not_found" in run("jobs", "watch", unknown("job"), status=1).output


class TestPlot:
    def test_keeps_what_the_service_draws(self, api: Api, run: Run, database: Database, tmp_path: Path) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        finish(database, job_id, a_model())
        assert run("plot", job_id).output.splitlines()[-1] == f"{job_id}.svg"
        assert (tmp_path / f"{job_id}.svg").read_bytes() == api.get(f"/jobs/{job_id}/plot.svg").content
        run("plot", job_id, "--out", "picture.png")
        assert (tmp_path / "picture.png").read_bytes() == api.get(f"/jobs/{job_id}/plot.png").content

    def test_of_what_cannot_be_says_why(self, api: Api, run: Run, database: Database) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        assert ".svg or .png" in run("plot", job_id, "--out", "picture.pdf", status=2).output
        assert "job_not_finished" in run("plot", job_id, status=1).output
        finish(database, job_id, a_model())
        assert "cannot be written" in run("plot", job_id, "--out", "no/such/place.svg", status=1).output


class TestReport:
    def test_says_what_each_round_was_sent_and_how_full_it_is(self, api: Api, run: Run, tmp_path: Path) -> None:
        dataset_id = api.dataset()["id"]
        opened = api.round(dataset_id, target_reports=400)
        rows = np.random.default_rng(1).uniform(0, 1, (100, 2))
        np.savetxt(tmp_path / "people.csv", rows, delimiter=",", header="x,y", comments="")
        result = run("report", "--from", "people.csv", dataset_id)
        assert result.stdout.strip().splitlines()[-1] == "100 reports are stored"
        assert api.n_received(opened["id"]) == 100
        for part in (opened["id"], "100 of 400", "█" * 6 + " "):
            assert part in result.stderr

    def test_without_an_open_round_says_so(self, api: Api, run: Run, tmp_path: Path) -> None:
        (tmp_path / "people.csv").write_text("x,y\n1,1\n")
        said = run("report", "--from", "people.csv", api.dataset()["id"], status=1).output
        assert "no open round" in said


class TestBars:
    @pytest.mark.parametrize(
        ("part", "drawn"),
        [(0, ""), (1, "█" * 24), (2, "█" * 24), (0.5, "█" * 12), (1 / 192, "▏"), (-1, ""), (float(1 / 24), "█")],
    )
    def test_are_exact_to_an_eighth_of_a_cell(self, part: float, drawn: str) -> None:
        assert terminal.bar(part, 1) == drawn.ljust(terminal.BAR_CELLS)

    @pytest.mark.parametrize("width", [60, 80, 200])
    def test_leave_an_id_whole_on_a_narrow_terminal(self, api: Api, run: Run, width: int) -> None:
        made, out = api.dataset(name="a name that is longer than what is left")["id"], io.StringIO()
        with Client(*reporting.service(Path(os.environ["SFUMATO_HOME"]))) as client:
            terminal.datasets(Console(file=out, force_terminal=True, width=width), client)
        assert made in out.getvalue()

    def test_of_nothing_are_empty(self) -> None:
        assert terminal.bar(1, 0).strip() == ""
        assert terminal.budget_bar(0, 0, 0) == "░" * 24

    @pytest.mark.parametrize(
        ("amounts", "drawn"),
        [
            ((24, 0, 0), "░" * 24),
            ((24, 1, 1), "█▒" + "░" * 22),
            ((1000, 1, 0), "█" + "░" * 23),
            ((24, 24, 0), "█" * 24),
            ((24, 20, 4), "█" * 20 + "▒" * 4),
        ],
    )
    def test_of_a_budget_never_hide_what_was_spent(self, amounts: tuple[int, int, int], drawn: str) -> None:
        assert terminal.budget_bar(*amounts) == drawn

    def test_on_a_terminal_are_drawn_anew(self, api: Api, run: Run, database: Database) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        finish(database, job_id, a_model())
        out = io.StringIO()
        with Client(*reporting.service(Path(os.environ["SFUMATO_HOME"]))) as client:
            assert terminal.watch(Console(file=out, force_terminal=True, width=160), client, job_id, None)
        assert "succeeded" in out.getvalue()
        assert "75.0 ± 1.0 %" in out.getvalue()
