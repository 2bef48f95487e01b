"""The command line: its imports, texts and exit status."""

import importlib.metadata
import json
import socket
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from devservers.inprocess import InProcess
from models.database.engine import Database
from models.identity import keys
from service.app import create_app
from service.cli import main, report, serve
from service.cli.connection import Unusable
from service.schemas.features import Feature, features_to_domain
from sfumato.api.resources import AttributeCounts
from sfumato.forecast import (
    forecast,
    forecast_records,
    forecast_releases,
    forecast_to_wire,
    records_forecast_to_wire,
    reports_needed,
)
from sfumato.privacy.accounting import NANO, format_epsilon
from sfumato.privacy.gaussian_privacy import epsilon_of
from sfumato.specs import Algorithm, Auto, PhaseSketch, PrivateKmeans, ShiftedGrid, UniformGrid
from sfumato.specs.attributes import Categorical, Numeric
from tests.service.api import FEATURES, stranger
from tests.service.commands import Run, run_command
from tests.service.processes import ROOT


@pytest.fixture
def home(tmp_path: Path, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a home that does not exist yet, and select it for all commands."""
    home = tmp_path / "home"
    monkeypatch.setenv("SFUMATO_HOME", str(home))
    monkeypatch.delenv("SFUMATO_URL", raising=False)
    return home


@pytest.fixture
def run(home: Path) -> Run:
    """Return a function that runs `sfumato ...` in this process."""
    return run_command


@pytest.fixture
def migrated(home: Path, run: Run) -> Database:
    """Return a migrated database in the home."""
    run("migrate")
    return Database(f"sqlite:///{home / 'sfumato.db'}")


class TestStarting:
    def test_with_help_lists_the_commands(self, run: Run) -> None:
        output = run("--help").output
        for command in ("serve", "gateway", "worker", "migrate", "keys", "ledger", "report", "forecast", "demo"):
            assert command in output

    @pytest.mark.slow
    def test_of_the_demo_passes_the_options_on(self) -> None:
        command = [sys.executable, "-m", "service.cli", "demo", "--help"]
        assert "--clusters" in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    def test_on_a_port_in_use_fails_with_a_sentence(self, run: Run) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            assert f"cannot bind 127.0.0.1:{port}" in run("gateway", "--port", port, status=1).output

    def test_with_invalid_arguments_exits_with_status_2(self, run: Run) -> None:
        for command in (["gateway", "--port", "70000"], ["keys", "nonsense"], ["ledger", "verify", "a", "b"]):
            assert "Error" in run(*command, status=2).output

    def test_with_an_invalid_setting_prints_only_its_name(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_MAX_PAGE", "many-4711")
        output = run("keys", "list", status=2).output
        assert "SFUMATO_MAX_PAGE" in output
        assert "many-4711" not in output


class TestMigrate:
    def test_creates_the_schema_and_checks_it(self, run: Run, home: Path) -> None:
        run("migrate", "--check", status=1)
        assert not home.exists()
        run("migrate")
        run("migrate")
        assert "newest" in run("migrate", "--check").output

    def test_reports_another_schema(self, run: Run, migrated: Database) -> None:
        with migrated.transaction() as session:
            session.execute(text("DELETE FROM alembic_version"))
        run("migrate", "--check", status=1)
        for command in (["keys", "list"], ["ledger", "verify"]):
            assert "sfumato migrate" in run(*command, status=2).output


class TestKeys:
    def test_are_created_listed_and_revoked(self, run: Run, migrated: Database) -> None:
        result = run("keys", "create", "app", "--scope", "device", "--scope", "jobs", "--expires-days", "30")
        secret = result.stdout.strip()
        with migrated.reading() as session:
            caller = keys.authenticate(session, keys.hash_secret(secret), now=migrated.clock())
        assert caller is not None
        assert caller.scopes == {"device", "jobs"}
        assert caller.expires_at is not None
        assert abs(caller.expires_at - migrated.clock() - 30 * 86_400 * 1_000_000) < 60_000_000
        listed = run("keys", "list").stdout
        assert caller.key_id in listed
        assert "device jobs" in listed
        assert secret not in listed
        run("keys", "revoke", caller.key_id)
        with migrated.reading() as session:
            assert keys.authenticate(session, keys.hash_secret(secret), now=migrated.clock()) is None

    def test_belong_to_a_tenant(self, run: Run, migrated: Database) -> None:
        run("keys", "create", "a", "--scope", "admin", "--tenant", "acme")
        (row,) = run("keys", "list", "--tenant", "acme").stdout.splitlines()[1:]
        assert "admin" in row
        assert len(run("keys", "list").stdout.splitlines()) == 1
        run("keys", "revoke", row.split()[0], status=1)  # the key of another tenant
        run("keys", "revoke", row.split()[0], "--tenant", "unknown", status=1)

    def test_with_invalid_properties_are_refused(self, run: Run, migrated: Database) -> None:
        for name, more in (
            ("a", ["--scope", "root"]),
            ("", ["--scope", "device"]),
            ("a\nb", ["--scope", "device"]),
            ("a", ["--scope", "device", "--dataset", "ds_" + "0" * 26]),
        ):
            run("keys", "create", name, *more, status=1)
        assert len(run("keys", "list").stdout.splitlines()) == 1

    def test_do_not_start_a_new_service_in_place_of_a_lost_database(self, run: Run, home: Path) -> None:
        home.mkdir()
        (home / "admin.key").write_text("sfk_x")
        for empty in (False, True):
            if empty:
                (home / "sfumato.db").touch()
            for command in (["serve", "--port", "0"], ["migrate"]):
                output = run(*command, status=2).output
                assert f"its database is {'empty' if empty else 'missing'}: restore a backup" in output
        assert not (home / "records.key").exists()

    def test_need_a_database(self, run: Run, home: Path) -> None:
        assert "sfumato serve" in run("keys", "list", status=2).output
        assert not home.exists()


@pytest.fixture
def dataset_ids(migrated: Database, home: Path) -> tuple[str, str]:
    """Return two datasets with a ledger; the first has two entries. The gateway has stopped."""
    from runtime.settings import Settings

    with InProcess(create_app(Settings(home=home), migrated)) as gateway:
        api = stranger(gateway.client, migrated)
        first, second = (api.dataset(epsilon=8)["id"] for _ in range(2))
        api.round(first)
    return first, second


class TestLedgerVerify:
    def test_verifies_every_chain_or_one(self, run: Run, dataset_ids: tuple[str, str]) -> None:
        listed = run("ledger", "verify").stdout.splitlines()
        assert [line.partition(": ok; ")[2] for line in sorted(listed, key=lambda line: ": 2 entries" in line)] == [
            "all charges together certify ε 0 at δ 0",
            "all charges together certify ε 1 at δ 0",
        ]
        document = json.loads(run("ledger", "verify", dataset_ids[0], "--json").stdout)
        assert (document["ok"], document["certified_epsilon"], document["certified_delta"]) == (True, 1.0, 0.0)
        assert run("ledger", "verify", dataset_ids[0]).stdout.startswith(f"{dataset_ids[0]}: 2 entries")

    def test_finds_an_older_copy_with_the_heads_that_were_noted(
        self, run: Run, dataset_ids: tuple[str, str], migrated: Database, tmp_path: Path
    ) -> None:
        first, second = dataset_ids
        assert "--noted" in run("ledger", "verify").output
        noted = tmp_path / "heads.jsonl"
        noted.write_text(run("ledger", "verify", "--json").output)
        assert "--noted" not in run("ledger", "verify", "--noted", str(noted)).output
        for head, words in (('"n_entries":2', "noted head"), ('"n_entries":9', "noted head")):
            noted.write_text(noted.read_text().replace('"n_entries":1', head))
            assert words in run("ledger", "verify", "--noted", str(noted), status=1).output
        noted.write_text(run("ledger", "verify", "--json").output.replace(second, "ds_" + "0" * 26))
        assert "MISSING" in run("ledger", "verify", "--noted", str(noted), status=1).output
        assert run("ledger", "verify", first, "--noted", str(noted)).output.count(": ok") == 1
        noted.write_text("".join(line for line in noted.read_text().splitlines(keepends=True) if first in line))
        assert "no head of 1 of the ledgers" in run("ledger", "verify", "--noted", str(noted)).output
        noted.write_text("no head")
        assert "sfumato ledger verify --json" in run("ledger", "verify", "--noted", str(noted), status=2).output

    def test_prints_the_position_of_a_changed_entry(
        self, run: Run, dataset_ids: tuple[str, str], migrated: Database
    ) -> None:
        broken, _ = dataset_ids
        with migrated.engine.begin() as connection:
            triggers = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
            for name in triggers:
                connection.execute(text(f"DROP TRIGGER {name}"))
            change = text("UPDATE ledger_entries SET epsilon_nano = 1 WHERE dataset_id = :id AND seq = 2")
            connection.execute(change, {"id": broken})
        output = run("ledger", "verify", status=1).stdout
        assert f"{broken}: 1 entries" in output
        assert "BROKEN at entry 2: an entry was changed" in output
        assert output.count(": ok") == 1
        run("ledger", "verify", broken, status=1)

    def test_of_an_unknown_dataset_fails(self, run: Run, migrated: Database) -> None:
        assert ": ok" not in run("ledger", "verify", "ds_" + "0" * 26, status=1).output


class TestReport:
    FEATURES = features_to_domain([Feature.model_validate(feature) for feature in FEATURES])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "header row is missing"),
            ("x\n1\n", "column y is missing"),
            ("x,y\n", "no records"),
            ("x,y\n1\n", "record 1: the line must have 2 cells"),
            ("x,y\n0,0\n1,nan\n", "record 2: y must be a finite number"),
            ("x,y\n1_0,2\n", "record 1: x must be a finite number"),
            ("x,y,x\n1,2,9\n", "column x occurs more than once"),
            ("x,y,name\n1,2,a\n", "column name is not declared"),
            ("x;y\n1;2\n", "separated by semicolons"),
            ("x,y\n\xff,2\n", "not valid UTF-8"),
        ],
    )
    def test_refuses_a_file_that_an_upload_refuses(self, tmp_path: Path, content: str, message: str) -> None:
        path = tmp_path / "file.csv"
        path.write_text(content, encoding="latin-1")
        with pytest.raises(Unusable, match=f"{message}.*; nothing was sent$"):
            report.read_csv(path, self.FEATURES)

    def test_counts_the_records_that_are_clipped(self, tmp_path: Path) -> None:
        path = tmp_path / "file.csv"
        path.write_text("y,x\n0.5,0.25\n-7,0.5\n1e9,1e9\n1,0\n")
        people = report.read_csv(path, self.FEATURES)
        assert people.points.tolist() == [[0.25, 0.5], [0.5, -7], [1e9, 1e9], [0, 1]]
        assert people.n_clipped == 2

    def test_reads_the_category_of_each_attribute(self, tmp_path: Path) -> None:
        path = tmp_path / "file.csv"
        path.write_text("y,plan,x,age\n.5,pro,.25,31\n.5, free ,.5,\n.5,gold,.5,99\n")
        plan = Categorical("plan", ("free", "pro"), unknown="other")
        people = report.read_csv(path, self.FEATURES, (plan, Numeric("age", (0.0, 30.0, 60.0), missing="category")))
        assert {name: codes.tolist() for name, codes in people.codes.items()} == {"plan": [1, 0, 2], "age": [1, 2, 1]}
        assert people.counts == [AttributeCounts("plan", n_other=1), AttributeCounts("age", n_missing=1, n_outside=1)]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("x,y\n1,2\n", "column plan is missing"),
            ("x,y,plan\n1,2,pro\n1,2,gold\n", "record 2: plan must be one of its declared values"),
            ("x,y,plan\n1,2,pro\n1,no,gold\n", "record 2: y must be a finite number"),
            ("x,y,plan\n1,2,\n1,no,pro\n", "record 1: plan is missing"),
        ],
    )
    def test_refuses_a_file_that_does_not_fit_the_attributes(self, tmp_path: Path, content: str, message: str) -> None:
        path = tmp_path / "file.csv"
        path.write_text(content)
        with pytest.raises(Unusable, match=f"{message}.*; nothing was sent$") as refused:
            report.read_csv(path, self.FEATURES, (Categorical("plan", ("free", "pro")),))
        assert "gold" not in str(refused.value)

    def test_without_a_service_names_the_setting(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "people.csv"
        file.write_text("x,y\n1,1\n")
        assert "SFUMATO_URL" in run("report", "--from", str(file), "ds_x", status=1).output


class TestForecast:
    ARGUMENTS = ("forecast", "--epsilon", "1", "--features", "2", "--clusters", "3")

    def test_prints_a_table_or_json(self, run: Run) -> None:
        arguments = (*self.ARGUMENTS, "--reports", "50000")
        output = run(*arguments, "--size-error", "0.01").stdout
        words = ["shifted_grid", "ε = 1", "effective reports", "verdict", "reports on a cluster's size is known"]
        assert [word for word in words if word not in output] == []
        document = json.loads(run(*arguments, "--algorithm", "uniform_grid", "--json").stdout)
        assert document == forecast_to_wire(forecast(UniformGrid(1.0, 3), n_features=2, expected_reports=50_000))
        for more, message in (
            (("--algorithm", "magic"), "unknown algorithm"),
            (("--epsilon", "99"), "epsilon must lie"),
            (("--quality", "0.5", "--size-error", "0.5"), "exactly one"),
            (("--features", "65"), "1 to 64 features"),
            (("--features", "1000000000"), "1 to 64 features"),
            (("--periodic", "3"), "--periodic must be at most 2"),
            (("--periodic", "1", "--algorithm", "uniform_grid"), "does not take periodic features"),
            (("--records", "1000"), "exactly one of --reports and --records"),
            (("--delta", "1e-6"), "--records"),
            (("--min-batch", "100"), "must come with --honest-share"),
            (("--honest-share", "1", "--shuffled-epsilon", "0.5"), "exactly one of --epsilon and --shuffled-epsilon"),
            (("--honest-share", "2"), "honest share"),
        ):
            assert message in run(*arguments, *more, status=1).output

    def test_of_shuffled_reports_prints_both_figures_and_the_inverse(self, run: Run) -> None:
        terms = ("--features", "2", "--clusters", "3", "--algorithm", "uniform_grid", "--reports", "100000")
        terms = (*terms, "--honest-share", "0.5")
        inverse = json.loads(run("forecast", *terms, "--shuffled-epsilon", "0.5", "--json").stdout)
        epsilon = inverse["algorithm"]["epsilon"]
        assert inverse["shuffled"]["delta"] == 1e-6
        assert inverse["shuffled"]["epsilon"] <= 0.5
        forward = json.loads(run("forecast", *terms, "--epsilon", str(epsilon), "--json").stdout)
        assert forward == inverse
        table = run("forecast", *terms, "--epsilon", str(epsilon), "--min-batch", "50000").stdout
        assert f"ε = {epsilon}" in table
        assert "cost of its releases towards the service" in table
        assert "δ = 1e-6" in table
        mu2 = round(forward["shuffled"]["mu2"] * 1e12)
        together = epsilon_of(10 * mu2, 10**13)
        assert together is not None
        shown = run("forecast", *terms, "--epsilon", str(epsilon)).stdout
        assert f"ε = {format_epsilon(together)}, δ = 2e-5" in shown
        assert together < 10 * NANO * forward["shuffled"]["epsilon"] / 3

    def test_of_circles_has_their_symbols(self, run: Run) -> None:
        arguments = (*self.ARGUMENTS, "--algorithm", "shifted_grid", "--reports", "50000", "--periodic", "1", "--json")
        document = json.loads(run(*arguments).stdout)
        over: dict[str, Any] = {"n_features": 2, "expected_reports": 50_000}
        assert document == forecast_to_wire(forecast(ShiftedGrid(1.0, 3), **over, circles=(0,)))
        plain = forecast_to_wire(forecast(ShiftedGrid(1.0, 3), **over))
        assert document["rounds"][0]["n_symbols"] < plain["rounds"][0]["n_symbols"]
        released = json.loads(run(*arguments, "--honest-share", "1").stdout)["shuffled"]["epsilon"]
        terms = over | {"min_batch": 50_000, "honest_share": Fraction(1), "delta_atto": 10**12}
        assert released == forecast_releases(ShiftedGrid(1.0, 3), **terms, circles=(0,))[0] / NANO
        over_records = (*self.ARGUMENTS, "--records", "50000", "--periodic", "1")
        assert "private_kmeans" in run(*over_records).stdout
        assert "does not take periodic" in run(*over_records, "--algorithm", "dp_kmeans", status=1).output

    @pytest.mark.parametrize(
        ("algorithm", "n_categories"),
        [(ShiftedGrid(1.0, 3), (2,)), (PhaseSketch(1.0, 3), (5, 4)), (Auto(1.0, 3), (2,))],
    )
    def test_of_attributes_has_their_symbols(
        self, run: Run, algorithm: Algorithm, n_categories: tuple[int, ...]
    ) -> None:
        named = [part for n in n_categories for part in ("--categories", str(n))]
        arguments = (*self.ARGUMENTS, "--algorithm", algorithm.type, "--reports", "50000", *named)
        document = json.loads(run(*arguments, "--json").stdout)
        attributes = tuple(
            Categorical(f"attribute {number}", [f"value {place}" for place in range(n)], use="cluster")
            for number, n in enumerate(n_categories, 1)
        )
        over: dict[str, Any] = {"n_features": 2, "expected_reports": 50_000, "attributes": attributes}
        assert document == forecast_to_wire(forecast(algorithm, **over))
        released = json.loads(run(*arguments, "--honest-share", "1", "--json").stdout)["shuffled"]["epsilon"]
        terms = over | {"min_batch": 50_000, "honest_share": Fraction(1), "delta_atto": 10**12}
        assert released == forecast_releases(algorithm, **terms)[0] / NANO
        needed = reports_needed(algorithm, 2, size_error=0.01, attributes=attributes)
        assert needed.reason in run(*arguments, "--size-error", "0.01").stdout

    def test_of_attributes_refuses_what_no_round_has(self, run: Run) -> None:
        for more, message in (
            (("--reports", "50000", "--categories", "1"), "2"),
            (("--reports", "50000", "--algorithm", "uniform_grid", "--categories", "2"), "attribute"),
            (("--records", "50000", "--categories", "2"), "count each category as a feature"),
        ):
            assert message in run(*self.ARGUMENTS, *more, status=2 if more[-1] == "1" else 1).output

    def test_over_records_prints_a_table_or_json(self, run: Run) -> None:
        arguments = (*self.ARGUMENTS, "--records", "50000")
        output = run(*arguments).stdout
        for word in (
            "private_kmeans",
            "at most ε = 1 of the dataset's budget",
            "squared error",
            "if clusters are curved",
        ):
            assert word in output
        gated = (*arguments, "--algorithm", "private_kmeans")
        document = json.loads(run(*gated, "--json").stdout)
        expected = forecast_records(PrivateKmeans(1.0, 3), n_features=2, expected_records=50_000)
        assert document == json.loads(json.dumps(records_forecast_to_wire(expected)))
        assert "0.02 of the bounds" in run(*gated, "--occupied-share", "0.02").stdout
        assert "at most ε = 1 and δ = 1e-6 of the dataset's budget" in run(*gated, "--delta", "1e-6").stdout
        assert "delta" in run(*gated, "--delta", "0.1", status=1).output
        assert "not available with --records" in run(*arguments, "--quality", "0.5", status=1).output
        assert "over records" in run(*arguments, "--algorithm", "uniform_grid", status=1).output
        assert "δ = 1e-6" in run(*arguments, "--delta", "1e-6").stdout

    def test_auto_takes_a_shape(self, run: Run) -> None:
        for over, shape, chosen in (
            ("--records", "any", "density_map"),
            ("--records", "round", "private_kmeans"),
            ("--reports", "any", "shifted_grid"),
            ("--reports", "round", "grid_kmeans"),
        ):
            assert chosen in run(*self.ARGUMENTS, over, "50000", "--shape", shape).stdout
        arguments = (*self.ARGUMENTS, "--records", "50000", "--shape", "square")
        assert "shape" in run(*arguments, status=1).output
        assert "unknown shape" in run(*arguments, "--algorithm", "private_kmeans", status=1).output


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version").output == f"sfumato {importlib.metadata.version('sfumato-server')}\n"


class TestTheFirstKey:
    @pytest.mark.parametrize("is_terminal", [False, True])
    def test_is_printed_to_a_terminal_only(
        self, tmp_path: Path, is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
        main._welcome("http://127.0.0.1:1", tmp_path, None)
        assert "not in" in capsys.readouterr().out  # a backup was restored without it
        (tmp_path / "admin.key").write_text("sfk_secret")
        main._welcome("http://127.0.0.1:1", tmp_path, "sfk_secret")
        shown = capsys.readouterr().out
        assert ("sfk_secret" in shown) is is_terminal
        assert f"in {tmp_path}/admin.key" in shown
        assert "http://127.0.0.1:1/console" in shown

    def test_is_created_once_and_stored_in_the_home(self, migrated: Database, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("a file")
        with pytest.raises(OSError, match=r"."):
            serve.create_first_key(migrated, tmp_path / "file")
        with migrated.reading() as session:
            assert not keys.has_any_key(session)  # a key without a stored secret would be useless
        secret = serve.create_first_key(migrated, tmp_path)
        assert (tmp_path / "admin.key").read_text() == f"{secret}\n"
        assert serve.create_first_key(migrated, tmp_path) is None
