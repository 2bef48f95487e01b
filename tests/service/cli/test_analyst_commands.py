"""`sfumato datasets`, `rounds`, `jobs`, `plot` and `report` against a gateway."""

import inspect
import io
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console

from models.database.engine import Database
from models.tables.datasets import Dataset
from service.cli import main, output, tables
from service.cli.connection import service_address
from service.cli.report_receipt import ReceiptUnusable, open_receipt
from sfumato.api import datasets, parsers
from sfumato.api.client import Client
from sfumato.errors import Unreachable
from sfumato.model.precision import Verdict
from sfumato.privacy.accounting import NANO, format_epsilon
from sfumato.privacy.shuffling import TRUST_STATEMENT
from sfumato.specs import Feature, Place
from tests.service.api import SQLITE_ONLY, Api, a_model, finish, unknown
from tests.service.api.test_ceilings import set_ceilings
from tests.service.commands import Run, connect_commands, run_command
from tests.service.shuffler import SHUFFLER, shuffled_dataset


@pytest.fixture
def run(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_settings: None) -> Run:
    """Return a function that runs `sfumato ...` against the gateway, in a directory of the test."""
    connect_commands(api, monkeypatch)
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return run_command


PROCESSES = {"serve", "gateway", "worker", "shuffler", "demo", "audit", "conformance", "migrate"}


def read_lines(text: str) -> list[dict[str, Any]]:
    """Return the objects that a command printed as JSON. Other lines are logs of the gateway in this process."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def leaves(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that is no group, with its path."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from leaves((*path, name), each)
    else:
        yield path, command


@SQLITE_ONLY
class TestSources:
    def test_are_shown_with_their_limit(self, api: Api, run: Run) -> None:
        set_ceilings(api, max_source_epsilon="4")
        first = api.dataset(name="lunch", epsilon=4, source="staff")["id"]
        api.round(first)
        output = run("datasets", "source", "staff").output
        assert first in output
        assert "ε 1 charged and 0 reserved in 1 datasets." in output
        assert "Limit: ε 4, set by the operator; 75.0% remains." in output
        (document,) = read_lines(run("datasets", "source", "staff", "--json").output)
        assert (document["source"], document["charged"]) == ("staff", 1.0)

    def test_are_warned_of_at_creation(self, api: Api, run: Run) -> None:
        create = ("datasets", "create", "lunch", "--epsilon", "2", "--feature", "x:0:1")
        assert "same people" not in run(*create).output
        assert "1 other dataset of this name" in run(*create).output


@SQLITE_ONLY
class TestDatasets:
    def test_are_listed_with_a_bar_of_the_budget_if_the_key_may_read_it(
        self, api: Api, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "no datasets yet" in run("datasets", "list").output
        dataset_id = api.dataset()["id"]
        with api.database.transaction() as session:  # the API refuses such a name
            session.get_one(Dataset, dataset_id).name = "[bold]odd[/] \N{RIGHT-TO-LEFT OVERRIDE}name"
        api.round(dataset_id, epsilon=2)
        text = run("datasets", "list").output
        assert dataset_id in text
        assert "[bold]odd[/] \ufffdname" in text
        assert "█" * 6 + "░" * 18 in text.replace("▒", "█") or "█" * 7 + "░" * 17 in text
        assert f" {api.budget(dataset_id)['remaining']:g} " in text
        monkeypatch.setenv("SFUMATO_KEY", api.key("datasets").secret)
        assert dataset_id in run("datasets", "list").output
        monkeypatch.setenv("SFUMATO_KEY", "sfk_wrong")
        text = run("datasets", "list", status=1).output
        assert "\nsfumato: " in f"\n{text}"
        assert "Traceback" not in text


@SQLITE_ONLY
class TestLedger:
    def test_is_listed_by_kind(self, api: Api, run: Run) -> None:
        dataset_id = api.dataset()["id"]
        job_id = api.job(dataset_id)["id"]
        assert job_id in run("ledger", "list", dataset_id).output
        only = run("ledger", "list", dataset_id, "--kind", "grant").output
        assert ("grant" in only, job_id in only) == (True, False)
        (line,) = read_lines(run("ledger", "list", dataset_id, "--kind", "reserve", "--json").output)
        assert (line["kind"], line["reference"]) == ("reserve", job_id)


class TestJobs:
    def test_are_listed(self, api: Api, run: Run) -> None:
        assert "no jobs yet" in run("jobs", "list").output
        dataset_id = api.dataset()["id"]
        ids = [api.job(dataset_id)["id"], api.job(api.dataset()["id"])["id"]]
        assert all(each in run("jobs", "list").output for each in ids)
        only = run("jobs", "list", "--dataset", dataset_id).output
        assert ids[0] in only
        assert ids[1] not in only

    def test_are_watched_until_they_end(self, api: Api, run: Run) -> None:
        job_id = api.finished_job()
        text = run("jobs", "watch", job_id).output
        bar = "█" * tables.BAR_CELLS
        for part in (
            f"{job_id} succeeded",
            "25.0 ± 1.0 %",
            "75.0 ± 1.0 %",
            bar,
            "a warning",
            "Verdict: uncertain",
            "agree with these clusters to about 0.75 (80 % interval: 0.50 to 1.00)",
            "ε = 1",
        ):
            assert part in text
        job_id = api.job(api.dataset()["id"])["id"]
        assert f"{job_id} queued" in run("jobs", "watch", job_id, "--timeout-seconds", "0", status=1).output
        api.post(f"/jobs/{job_id}/cancel")
        assert "canceled" in run("jobs", "watch", job_id, status=1).output
        assert "not_found" in run("jobs", "watch", unknown("job"), status=1).output


@SQLITE_ONLY
class TestTheWholePath:
    def test_of_a_local_dataset_leads_from_its_creation_to_a_job(self, api: Api, run: Run, tmp_path: Path) -> None:
        features = ("--feature", "x:0:1:km", "--feature", "y:0:1")
        dataset_id = run("datasets", "create", "Lunch", "--epsilon", "4", *features).output.splitlines()[-1]
        assert [each["unit"] for each in api.get(f"/datasets/{dataset_id}").json()["features"]] == ["km", ""]
        circle = ("--feature", "hour:0:24:h:periodic", "--epsilon", "1")
        of_clock = run("datasets", "create", "Hours", *circle).output.splitlines()[-1]
        assert api.get(f"/datasets/{of_clock}").json()["features"][0]["periodic"] is True
        assert "circle" in run("datasets", "show", of_clock).output
        place = ("--feature", "lat:58:71.2:deg:latitude", "--feature", "lon:170:-170:deg:longitude", "--epsilon", "1")
        of_place = run("datasets", "create", "Places", *place).output.splitlines()[-1]
        assert api.get(f"/datasets/{of_place}").json()["features"][1]["upper"] == 190
        assert "longitude" in run("datasets", "show", of_place).output
        encoding = '{"type": "shifted_grid", "cells": 4, "shifts": 2}'
        opening = ("rounds", "open", dataset_id, "--encoding", encoding, "--epsilon", "2", "--target-reports", "900")
        round_id = run(*opening).output.splitlines()[-1]
        text = run("rounds", "close", round_id, status=1).output
        assert "has no reports" in text
        np.savetxt(tmp_path / "p.csv", np.full((700, 2), 0.5), delimiter=",", header="x,y", comments="")
        (sent,) = read_lines(run("report", "--from", "p.csv", dataset_id, "--json").stdout)
        assert sent == {"round_id": round_id, "n_sent": 700, "n_received": 700, "n_clipped": 0}
        assert f"{round_id} is closed with 700 reports" in run("rounds", "close", round_id).output
        assert "700 of 900" in run("rounds", "list", dataset_id).output
        given = ("--epsilon", "2", "--algorithm", "shifted_grid", "--clusters", "2", "--parameter", "cells=4")
        job_id = run("jobs", "submit", dataset_id, *given, "--round", round_id).output.splitlines()[-1]
        (job,) = read_lines(run("jobs", "list", "--json").output)
        assert (job["id"], job["algorithm"]["cells"], job["used"]["n_reports"]) == (job_id, 4, 700)
        shown = run("datasets", "show", dataset_id).output
        for part in ("Lunch", "km", round_id, "ε 2 of 4 free", "700 of 900"):
            assert part in shown

    def test_over_records_take_names_of_features(self, api: Api, run: Run) -> None:
        three = [{"name": name, "lower": 0.0, "upper": 1.0} for name in ("x", "y, km", "z")]
        dataset_id = api.dataset(trust="central", features=three)["id"]
        api.made(f"/datasets/{dataset_id}/records", {"columns": ["x", "y, km", "z"], "rows": [[0, 0, 0]] * 9})
        given = ("--epsilon", "1", "--algorithm", "private_kmeans", "--clusters", "2", "--features", 'z, "y, km"')
        job_id = run("jobs", "submit", dataset_id, *given).output.splitlines()[-1]
        assert api.get(f"/jobs/{job_id}").json()["features"] == ["y, km", "z"]
        assert "use 'z'" in run("jobs", "submit", dataset_id, *given[:-1], "zz", status=1).output

    def test_of_a_shuffled_dataset_prints_the_trust_statement_and_both_budgets(self, api: Api, run: Run) -> None:
        shuffler = ("--shuffler-name", SHUFFLER["name"], "--shuffler-url", SHUFFLER["url"])
        shuffler += ("--shuffler-key", SHUFFLER["public_key"])
        given = ("--epsilon", "4", "--trust", "shuffled", "--shuffled-epsilon", "2", *shuffler)
        created = run("datasets", "create", "Lunch", *given, "--feature", "x:0:1", "--feature", "y:0:1")
        assert TRUST_STATEMENT in created.stderr
        dataset_id = created.stdout.splitlines()[-1]
        encoding = ("--encoding", '{"type": "grid", "cells": [2, 2]}', "--epsilon", "1", "--target-reports", "20")
        terms = ("--min-batch", "20", "--honest-share", "0.5")
        round_id = run("rounds", "open", dataset_id, *encoding, *terms).output.splitlines()[-1]
        opened = api.get(f"/rounds/{round_id}").json()
        assert (opened["min_batch"], opened["honest_share"]) == (20, 0.5)
        cells = ("--algorithm", "uniform_grid", "--parameter", "cells=2", "--target-reports", "1000")
        run("jobs", "submit", dataset_id, "--epsilon", "2", *cells, *terms, "--allow-insufficient")
        nano = api.budget(dataset_id)["remaining_shuffled_nano"]
        assert 0 < nano < 2 * NANO
        free = format_epsilon(nano)
        shown = run("datasets", "show", dataset_id).output
        for part in (SHUFFLER["public_key"], SHUFFLER["url"], f"ε {free} of 2, δ 9e-6 of 1e-5 free", " of 4 free"):
            assert part in shown
        assert free in run("datasets", "list").output

    def test_of_a_shuffled_dataset_states_gaussian_accounting(self, api: Api, run: Run) -> None:
        shuffler = ("--shuffler-name", SHUFFLER["name"], "--shuffler-url", SHUFFLER["url"])
        shuffler += ("--shuffler-key", SHUFFLER["public_key"], "--accounting", "gaussian")
        given = ("--epsilon", "4", "--trust", "shuffled", "--shuffled-epsilon", "20", *shuffler)
        created = run("datasets", "create", "Lunch", *given, "--feature", "x:0:1", "--feature", "y:0:1")
        dataset_id = created.stdout.splitlines()[-1]
        api.round(dataset_id, target_reports=20, min_batch=20, honest_share=0.5)
        budget = api.budget(dataset_id)
        shown = run("datasets", "show", dataset_id).output
        assert f"{budget['remaining_shuffled_share']:.1%} of ε 20, δ 1e-5 free towards the service" in shown
        certified = f"ε {budget['spent']['certified_shuffled_epsilon']:g}"
        assert f"All releases together certify {certified} at δ 1e-5 towards the service." in shown
        assert f"{budget['remaining_shuffled_share']:.1%}" in run("datasets", "list").output
        verified = run("ledger", "verify", dataset_id, "--url", "http://gateway").output
        assert f"and all releases {certified} towards the service" in verified
        assert (
            f"{certified.removeprefix('ε ')}"
            in run("ledger", "verify", dataset_id, "--json", "--url", "http://gateway").output
        )

    def test_lists_of_jobs_show_the_use_of_earlier_rounds_and_the_verdict(self, api: Api, run: Run) -> None:
        opened = api.round(api.dataset()["id"])
        api.report(opened["id"])
        api.post(f"/rounds/{opened['id']}/close")
        job_id = api.job(opened["dataset_id"], round_ids=[opened["id"]], target_reports=None)["id"]
        (line,) = [each for each in run("jobs", "list").output.splitlines() if job_id in each]
        assert line.split()[:6] == [job_id, "queued", "uniform_grid", "1", "1", "1"]  # cost, rounds, reports
        assert "earlier rounds: 1 with 1 reports, already charged ε = 1" in " ".join(
            run("jobs", "watch", job_id, "--timeout-seconds", "0", status=1).output.split()
        )
        doubtful = api.finished_job(replace(a_model(), verdict=Verdict.DOUBTFUL))
        (line,) = [each for each in run("jobs", "list").output.splitlines() if doubtful in each]
        assert line.split()[1:3] == ["succeeded", "doubtful"]

    def test_ends_with_the_result_in_the_format_of_the_api(self, api: Api, run: Run) -> None:
        job_id = api.finished_job()
        assert read_lines(run("jobs", "result", job_id, "--json").output) == [api.get(f"/jobs/{job_id}/result").json()]
        assert read_lines(run("jobs", "watch", job_id, "--json").output) == [api.get(f"/jobs/{job_id}").json()]
        assert "Verdict: uncertain" in run("jobs", "result", job_id).output

    def test_prints_longitudes_of_places_within_180_degrees(self, api: Api, run: Run) -> None:
        centroids = np.array([[-18.0, 187.3], [-15.0, 175.2]])
        places = replace(a_model(), features=Place(-21.0, 170.0, -12.0, -160.0).features, centroids=centroids)
        told = run("jobs", "result", api.finished_job(places)).output
        assert "-172.7" in told
        assert "187.3" not in told

    def test_takes_its_address_and_key_from_options(self, api: Api, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("SFUMATO_URL", "SFUMATO_KEY"):
            monkeypatch.delenv(name)
        assert "set SFUMATO_URL or --url" in run("jobs", "list", status=1).output
        options = ("--url", "http://gateway", "--key", api.secret)
        assert "no jobs yet" in run("jobs", "list", *options).output
        assert "unauthenticated" in run("jobs", "list", *options[:3], "sfk_wrong", status=1).output

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            (("datasets", "create", "d", "--epsilon", "1"), "either --feature"),
            (
                ("datasets", "create", "d", "--epsilon", "1", "--feature", "x:0:1", "--trust", "shuffled"),
                "--shuffler-url",
            ),
            (
                ("datasets", "create", "d", "--epsilon", "1", "--feature", "x:0:1", "--shuffler-url", "u"),
                "none of them",
            ),
            (("datasets", "create", "d", "--epsilon", "1", "--feature", "x:0"), "name:lower:upper"),
            (("datasets", "create", "d", "--epsilon", "1", "--feature", "x:0:1:m:round"), "[:unit[:shape]]"),
            (("rounds", "open", "ds_x", "--encoding", "{", "--epsilon", "1", "--target-reports", "9"), "must be JSON"),
            (("jobs", "submit", "ds_x", "--epsilon", "1", "--parameter", "cells"), "NAME=VALUE"),
        ],
    )
    def test_refuses_malformed_arguments(self, run: Run, command: tuple[str, ...], message: str) -> None:
        assert message in run(*command, status=2).output


@SQLITE_ONLY
class TestLedgerVerify:
    def test_reads_the_ledgers_through_the_api_with_a_key_of_the_scope_ledger(
        self, api: Api, run: Run, tmp_path: Path
    ) -> None:
        first, second = (api.dataset(epsilon=8)["id"] for _ in range(2))
        api.round(first)
        options = ("--url", "http://gateway", "--key", api.key("ledger").secret)
        every = run("ledger", "verify", *options).output
        assert (f"{first}: 2 entries" in every, f"{second}: 1 entries" in every, every.count(": ok")) == (True, True, 2)
        (found,) = read_lines(run("ledger", "verify", first, *options, "--json").output)
        budget = api.budget(first)
        assert (found["ok"], found["n_entries"], found["head_hash"]) == (
            True,
            budget["ledger_seq"],
            budget["ledger_hash"],
        )
        assert list(tmp_path.iterdir()) == []  # no database of this machine was needed

    def test_finds_an_entry_that_the_service_changed(self, api: Api, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset_id = api.dataset(epsilon=8)["id"]
        api.round(dataset_id)

        def parse_changed(document: dict[str, Any]) -> Any:
            entry = parse(document)
            return replace(entry, epsilon_nano=1) if entry.seq == 2 else entry

        parse = parsers.parse_ledger_entry
        monkeypatch.setattr(parsers, "parse_ledger_entry", parse_changed)
        output = run("ledger", "verify", dataset_id, "--url", "http://gateway", status=1).output
        assert f"{dataset_id}: 1 entries" in output
        assert "BROKEN at entry 2: an entry was changed" in output

    def test_refuses_a_key_without_a_url(self, run: Run) -> None:
        assert "--key needs --url" in run("ledger", "verify", "--key", "sfk_x", status=2).output


# Parameters of the SDK that a command takes in another form, with its options.
IN_OTHER_WORDS = {
    "datasets create": {
        "features": {"--feature", "--dimensions", "--norm"},
        "shuffled": {"--shuffled-epsilon", "--shuffled-delta"},
        "shuffler": {"--shuffler-name", "--shuffler-url", "--shuffler-key"},
        "attributes": {"--category", "--bins", "--unknown", "--missing"},
    },
    "jobs submit": {"algorithm": {"--algorithm", "--parameter"}, "round_ids": {"--round"}},
    "rounds open": {},
}
METHODS = {
    "datasets create": Client.create_dataset,
    "jobs submit": Client.submit_job,
    "rounds open": Client.open_round,
}
IDS = {"self", "dataset_id", "idempotency_key", "name", "participation"}  # arguments, or not offered


class TestOptions:
    @pytest.mark.parametrize("command", METHODS)
    def test_are_those_of_the_sdk(self, command: str) -> None:
        (found,) = (each for path, each in leaves((), typer.main.get_command(main.app)) if " ".join(path) == command)
        options = {option for each in found.params for option in each.opts if option.startswith("--")}
        for name in inspect.signature(METHODS[command]).parameters.keys() - IDS:
            wanted = IN_OTHER_WORDS[command].get(name, {f"--{name.replace('_', '-')}"})
            assert wanted <= options, name


class TestHelp:
    def test_has_one_style_and_the_options_of_a_service(self) -> None:
        unlike, commands = list[str](), dict[str, set[str]]()
        for path, command in leaves((), typer.main.get_command(main.app)):
            name = " ".join(path)
            options = {option for each in command.params for option in each.opts if option.startswith("--")}
            commands[name] = options
            texts = [(name, command.help or "")]
            texts += [(f"{name} {each.name}", getattr(each, "help", "") or "") for each in command.params]
            unlike += [where for where, text in texts if not re.fullmatch(r"[A-Z`].*[.]", text, re.DOTALL)]
            unlike += [where for where, text in texts[1:] if "None" in text]
        assert unlike == []
        of_service, with_both = (
            {"datasets", "rounds", "jobs", "series", "profile", "report", "plot"},
            {"records upload", "records delete", "ledger list", "ledger verify"},
        )
        for name, options in commands.items():
            if name not in PROCESSES:
                assert "--json" in options, name
            assert ({"--url", "--key"} <= options) == (name.split()[0] in of_service or name in with_both), name

    @pytest.mark.parametrize(
        ("words", "expected"), [("da", "datasets"), ("jobs wa", "watch"), ("jobs list --u", "--url")]
    )
    def test_the_shell_completes(
        self, words: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("_SFUMATO_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", f"sfumato {words}")
        monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
        with pytest.raises(SystemExit):
            main.app(prog_name="sfumato")
        assert expected in capsys.readouterr().out.split()


@SQLITE_ONLY
class TestPlot:
    def test_saves_the_plots_of_the_service(self, api: Api, run: Run, tmp_path: Path) -> None:
        job_id = api.finished_job()
        assert run("plot", job_id).output.splitlines()[-1] == f"{job_id}.svg"
        run("plot", job_id, "--out", "picture.png")
        for name, path in ((f"{job_id}.svg", "plot.svg"), ("picture.png", "plot.png")):
            assert (tmp_path / name).read_bytes() == api.get(f"/jobs/{job_id}/{path}").content
        assert "has no places" in run("plot", job_id, "--out", "places.geojson", status=1).output
        features = (Feature("lon", 0.0, 360.0, "deg"), Feature("lat", -60.0, 60.0, "deg"))
        run("plot", api.finished_job(replace(a_model(), features=features)), "--out", "places.geojson")
        assert json.loads((tmp_path / "places.geojson").read_text("utf-8"))["type"] == "FeatureCollection"
        run("plot", job_id, "--out", "picture.html")
        assert (tmp_path / "picture.html").read_text("utf-8").startswith("<!doctype html>")
        assert ".svg, .png, .html or .geojson" in run("plot", job_id, "--out", "picture.pdf", status=2).output
        assert "cannot be written" in run("plot", job_id, "--out", "no/such/place.svg", status=1).output
        assert "job_not_finished" in run("plot", api.job(api.dataset()["id"])["id"], status=1).output


@SQLITE_ONLY
class TestReport:
    def test_prints_the_reports_sent_and_received_per_round(self, api: Api, run: Run, tmp_path: Path) -> None:
        dataset_id = api.dataset()["id"]
        opened = api.round(dataset_id, target_reports=400)
        rows = np.random.default_rng(1).uniform(0, 1, (100, 2))
        np.savetxt(tmp_path / "people.csv", rows, delimiter=",", header="x,y", comments="")
        result = run("report", "--from", "people.csv", dataset_id)
        assert result.stdout.strip().splitlines()[-1] == "100 reports are stored"
        assert api.n_received(opened["id"]) == 100
        for part in (opened["id"], "100 of 400", "█" * 6 + " "):
            assert part in result.stderr

    def test_resumes_an_interrupted_run_with_identical_bytes_and_refuses_a_finished_one(
        self, api: Api, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sfumato.api.datasets.BATCH_REPORTS", 10)
        dataset_id, source = api.dataset()["id"], tmp_path / "people.csv"
        halves = [{"lo": "0", "hi": str(1 << 63)}, {"lo": str(1 << 63), "hi": str(1 << 64)}]
        opened = api.round(dataset_id, target_reports=400, participation=halves[0])["id"]
        np.savetxt(source, np.random.default_rng(1).uniform(0, 1, (100, 2)), delimiter=",", header="x,y", comments="")
        send, batches = datasets._batch, list[bytes]()

        def fail_at_third(round_id: str, batch: np.ndarray, first: int) -> Any:
            batches.append(batch.tobytes())
            if len(batches) == 3:
                raise Unreachable("the connection broke")
            return send(round_id, batch, first)

        monkeypatch.setattr(datasets, "_batch", fail_at_third)
        run("report", "--from", "people.csv", dataset_id, status=1)
        assert api.n_received(opened) == 20
        receipt = tmp_path / "people.csv.receipt"
        assert stat.S_IMODE(receipt.stat().st_mode) == 0o600
        with open_receipt(source):
            assert "another run uses it" in run("report", "--from", "people.csv", dataset_id, status=1).output
        run("report", "--from", "people.csv", dataset_id)
        assert batches[3:6] == batches[:3]
        n_sent = sum(map(len, batches[3:])) // (len(batches[0]) // 10)
        assert api.n_received(opened) == 20 + n_sent  # the tally drops the 20 repeated ids
        text = run("report", "--from", "people.csv", dataset_id, status=1).output
        for part in (opened, "people.csv.receipt", "nothing was sent", "double the epsilon"):
            assert part in " ".join(text.split())
        assert api.n_received(opened) == 20 + n_sent
        with open_receipt(source) as kept:
            draws = kept.get_draws(opened)
            assert draws is not None
            assert (draws < 1 << 63).sum() == n_sent  # a later round of the collection uses the same draws
        source.write_text("x,y\n1,1\n")
        with open_receipt(source) as kept, pytest.raises(ReceiptUnusable, match="the file was changed"):
            kept.get_draws(opened)

    def test_fails_without_an_open_round(self, api: Api, run: Run, tmp_path: Path) -> None:
        (tmp_path / "people.csv").write_text("x,y\n1,1\n")
        text = run("report", "--from", "people.csv", api.dataset()["id"], status=1).output
        assert "no open round" in text


class TestBars:
    @pytest.mark.parametrize(
        ("part", "bar"),
        [(0, ""), (1, "█" * 24), (2, "█" * 24), (0.5, "█" * 12), (1 / 192, "▏"), (-1, ""), (float(1 / 24), "█")],
    )
    def test_have_a_resolution_of_an_eighth_of_a_cell(self, part: float, bar: str) -> None:
        assert tables.share_bar(part, 1) == bar.ljust(tables.BAR_CELLS)

    @pytest.mark.parametrize("width", [60, 80, 200])
    @SQLITE_ONLY
    def test_leave_ids_uncut_on_a_narrow_terminal(self, api: Api, run: Run, width: int) -> None:
        dataset_id, out = api.dataset(name="a name that is longer than what is left")["id"], io.StringIO()
        with Client(*service_address(Path(os.environ["SFUMATO_HOME"]))) as client:
            output.print_datasets(Console(file=out, force_terminal=True, width=width), client)
        assert dataset_id in out.getvalue()

    def test_are_empty_for_a_total_of_zero(self) -> None:
        assert tables.share_bar(1, 0).strip() == ""
        assert tables.budget_bar(0, 0, 0) == "░" * 24

    @pytest.mark.parametrize(
        ("amounts", "bar"),
        [
            ((24, 0, 0), "░" * 24),
            ((24, 1, 1), "█▒" + "░" * 22),
            ((1000, 1, 0), "█" + "░" * 23),
            ((24, 24, 0), "█" * 24),
            ((24, 20, 4), "█" * 20 + "▒" * 4),
        ],
    )
    def test_of_a_budget_show_the_smallest_charge(self, amounts: tuple[int, int, int], bar: str) -> None:
        assert tables.budget_bar(*amounts) == bar

    @SQLITE_ONLY
    def test_on_a_terminal_end_with_the_clusters(self, api: Api, run: Run, database: Database) -> None:
        job_id = api.job(api.dataset()["id"])["id"]
        finish(database, job_id, a_model())
        out = io.StringIO()
        with Client(*service_address(Path(os.environ["SFUMATO_HOME"]))) as client:
            assert output.watch_job(Console(file=out, force_terminal=True, width=160), client, job_id, None)
        assert "succeeded" in out.getvalue()
        assert "75.0 ± 1.0 %" in out.getvalue()


@SQLITE_ONLY
class TestSeries:
    def test_are_created_listed_paused_and_ended(self, api: Api, run: Run) -> None:
        assert "no series yet" in run("series", "list").output
        dataset_id = api.dataset()["id"]
        plan = ("--every", "week", "--time-zone", "Europe/Berlin", "--count", "26", "--cycle", "13")
        cost = ("--epsilon", "1", "--target-reports", "1300000", "--epsilon-total", "3", "--clusters", "3")
        series_id = run("series", "create", dataset_id, "--name", "lunch", *plan, *cost).output.strip().splitlines()[-1]
        (made,) = api.get("/series").json()["items"]
        assert (made["id"], made["epsilon_total"], made["algorithm"]["clusters"]) == (series_id, 3.0, 3)
        shown = run("series", "show", series_id).output
        assert "week in Europe/Berlin" in shown
        assert shown.split().count("4") == 1  # per person and year
        assert "planned" in run("series", "windows", series_id).output
        (window,) = read_lines(run("series", "windows", series_id, "--json").output)
        assert (window["index"], window["state"]) == (0, "planned")
        for command, state in (("pause", "paused"), ("continue", "active"), ("end", "ended")):
            run("series", command, series_id)
            assert api.get(f"/series/{series_id}").json()["state"] == state
        assert "There are no windows." in run("series", "windows", series_id).output
        assert series_id in run("series", "list", "--dataset", dataset_id).output

    def test_are_revised_from_the_next_cycle_on(self, api: Api, run: Run) -> None:
        plan = ("--epsilon", "1", "--count", "26", "--cycle", "13", "--target-reports", "1300000")
        series_id = run("series", "create", api.dataset()["id"], "--name", "s", *plan).output.split()[-1]
        told = run("series", "revise", series_id, "--epsilon", "0.5", "--clusters", "4", "--season", "2").output
        assert told.splitlines()[-1] == "revision 1 begins with window 0"
        listed = read_lines(run("series", "revisions", series_id, "--json").output)
        assert [each["number"] for each in listed] == [1, 0]
        assert listed[0]["algorithm"]["clusters"] == 4
        assert "0.5" in run("series", "revisions", series_id).output
        assert "give both" in run("series", "revise", series_id, "--clusters", "4", status=1).output

    def test_a_shuffled_series_states_its_cost_towards_the_service(self, api: Api, run: Run) -> None:
        of = shuffled_dataset(api)
        plan = ("--epsilon", "2", "--cycle", "13", "--target-reports", "1300000")
        terms = ("--min-batch", "90000", "--honest-share", "0.8", "--shuffled-delta", "1e-7")
        predicted = run("series", "forecast", of, *plan, *terms).output
        run("series", "create", of, "--name", "lunch", "--count", "26", *plan, *terms)
        (made,) = api.get("/series").json()["items"]
        found = made["releases"]
        assert (found["min_batch"], found["honest_share"], found["delta_per_cycle"]) == (90_000, 0.8, 1e-7)
        text = f"per cycle, ε {found['epsilon_per_year']:g} and δ 4e-07 per year"
        assert text in run("series", "show", made["id"]).output
        assert "towards the service" in predicted

    def test_a_refusal_is_a_sentence(self, api: Api, run: Run) -> None:
        plan = ("--epsilon", "1", "--count", "2", "--cycle", "3", "--target-reports", "1000000")
        refused = run("series", "create", api.dataset()["id"], "--name", "s", *plan, status=1)
        assert "at most as many as the series" in refused.output
