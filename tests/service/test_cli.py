"""The command line: light to start, plain in what it says, honest in its exit status."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from models import tenant
from models.db import Database
from service import cli, embedded
from service.app import create_app
from tests.service.api import FEATURES, Api, stranger
from tests.service.inprocess import InProcess
from tests.service.processes import ROOT

Run = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("SFUMATO_HOME", str(home))
    monkeypatch.delenv("SFUMATO_URL", raising=False)
    return home


@pytest.fixture
def run(home: Path) -> Run:
    """Runs `sfumato ...` in this process."""

    def invoke(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli.app, list(arguments), env={"TERM": "dumb", "COLUMNS": "200"})
        assert result.exit_code == status, result.output
        return result

    return invoke


@pytest.fixture
def made(home: Path, run: Run) -> Database:
    """A migrated database in the home."""
    run("migrate")
    return Database(f"sqlite:///{home / 'sfumato.db'}")


class TestStarting:
    def test_loads_nothing_heavy_for_a_word_of_help(self) -> None:
        program = "import sys, service.cli; print(*sorted(sys.modules))"
        out = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        heavy = {"pydantic", "sqlalchemy", "fastapi", "numpy", "uvicorn", "redis", "alembic", "httpx", "structlog"}
        assert heavy.isdisjoint(out.stdout.split())

    def test_a_gateway_loads_no_kernels_no_pictures_and_no_arrow(self, tmp_path: Path) -> None:
        program = (
            "import sys\n"
            "from pathlib import Path\n"
            "from models.settings import Settings\n"
            "from service import app, cli, embedded, ingest, logs, server\n"
            "app.create_app(Settings(home=Path(sys.argv[1])))\n"
            "print(*sorted(sys.modules))"
        )
        command = [sys.executable, "-c", program, str(tmp_path)]
        out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        heavy = {
            "numba",
            "clustering",
            "workers",
            "demo",
            "matplotlib",
            "pyarrow",
            "scipy",
            "httpx",
            "service.reference",
        }
        assert heavy.isdisjoint(out.stdout.split())

    def test_says_what_there_is(self, run: Run) -> None:
        said = run("--help").output
        for command in ("serve", "gateway", "worker", "migrate", "keys", "ledger", "report", "forecast", "demo"):
            assert command in said

    def test_passes_everything_on_to_the_demo(self) -> None:
        command = [sys.executable, "-m", "service.cli", "demo", "--help"]
        out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert "--clusters" in out.stdout

    def test_on_a_port_that_is_taken_says_so(self, run: Run) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            assert f"cannot bind 127.0.0.1:{port}" in run("gateway", "--port", port, status=1).output

    @pytest.mark.parametrize(
        "command", [["gateway", "--port", "70000"], ["keys", "nonsense"], ["ledger", "verify", "a", "b"]]
    )
    def test_with_arguments_that_are_none_is_a_mistake(self, run: Run, command: list[str]) -> None:
        run(*command, status=2)

    def test_with_a_setting_that_is_none_names_it(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_MAX_PAGE", "many-4711")
        said = run("keys", "list", status=2).output
        assert "SFUMATO_MAX_PAGE" in said
        assert "many-4711" not in said


class TestMigrate:
    def test_makes_the_schema_and_says_whether_it_is_there(self, run: Run, home: Path) -> None:
        run("migrate", "--check", status=1)
        assert not home.exists()
        run("migrate")
        run("migrate")
        assert "newest" in run("migrate", "--check").output

    def test_tells_an_old_schema(self, run: Run, made: Database) -> None:
        with made.transaction() as session:
            session.execute(text("DELETE FROM alembic_version"))
        run("migrate", "--check", status=1)
        for command in (["keys", "list"], ["ledger", "verify"]):
            assert "sfumato migrate" in run(*command, status=2).output


class TestKeys:
    def test_are_made_listed_and_revoked(self, run: Run, made: Database) -> None:
        result = run("keys", "create", "app", "--scope", "device", "--scope", "jobs", "--expires-days", "30")
        secret = result.stdout.strip()
        with made.reading() as session:
            caller = tenant.authenticate(session, tenant.hash_secret(secret), now=made.clock())
        assert caller is not None
        assert caller.scopes == {"device", "jobs"}
        assert caller.expires_at is not None
        assert abs(caller.expires_at - made.clock() - 30 * 86_400 * 1_000_000) < 60_000_000
        listed = run("keys", "list").stdout
        assert caller.key_id in listed
        assert "device jobs" in listed
        assert secret not in listed
        run("keys", "revoke", caller.key_id)
        with made.reading() as session:
            assert tenant.authenticate(session, tenant.hash_secret(secret), now=made.clock()) is None

    def test_belong_to_a_tenant(self, run: Run, made: Database) -> None:
        run("keys", "create", "a", "--scope", "admin", "--tenant", "acme")
        (row,) = run("keys", "list", "--tenant", "acme").stdout.splitlines()[1:]
        assert "admin" in row
        assert len(run("keys", "list").stdout.splitlines()) == 1
        run("keys", "revoke", row.split()[0], status=1)  # not of this tenant
        run("keys", "revoke", row.split()[0], "--tenant", "nobody", status=1)

    def test_that_cannot_be_are_refused(self, run: Run, made: Database) -> None:
        run("keys", "create", "a", "--scope", "root", status=1)
        run("keys", "create", "", "--scope", "device", status=1)
        run("keys", "create", "a\nb", "--scope", "device", status=1)
        run("keys", "create", "a", "--scope", "device", "--dataset", "ds_" + "0" * 26, status=1)
        assert len(run("keys", "list").stdout.splitlines()) == 1

    def test_need_a_database(self, run: Run, home: Path) -> None:
        assert "sfumato serve" in run("keys", "list", status=2).output
        assert not home.exists()


@pytest.fixture
def api(made: Database, home: Path) -> Api:
    """A way to a gateway over the home's database, for making things; it is gone when the command runs."""
    from models.settings import Settings

    with InProcess(create_app(Settings(home=home), made)) as gateway:
        way = stranger(gateway.client, made)
        way.first = way.dataset(epsilon=8)  # type: ignore[attr-defined]
        way.second = way.dataset(epsilon=8)  # type: ignore[attr-defined]
        way.round(way.first["id"])  # type: ignore[attr-defined]
    return way


class TestLedgerVerify:
    def test_walks_every_chain(self, run: Run, api: Api) -> None:
        said = run("ledger", "verify").stdout
        assert said.count(": ok") == 2
        said = run("ledger", "verify", api.first["id"]).stdout  # type: ignore[attr-defined]
        assert said.startswith(f"{api.first['id']}: 2 entries")  # type: ignore[attr-defined]

    def test_names_the_place_where_one_is_broken(self, run: Run, api: Api) -> None:
        broken = api.first["id"]  # type: ignore[attr-defined]
        with api.database.engine.begin() as connection:
            triggers = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
            for name in triggers:
                connection.execute(text(f"DROP TRIGGER {name}"))
            changed = text("UPDATE ledger_entries SET epsilon_nano = 1 WHERE dataset_id = :id AND seq = 2")
            connection.execute(changed, {"id": broken})
        said = run("ledger", "verify", status=1).stdout
        assert f"{broken}: 1 entries" in said
        assert "BROKEN at entry 2: an entry was changed" in said
        assert said.count(": ok") == 1
        run("ledger", "verify", broken, status=1)

    def test_of_an_unknown_dataset_fails(self, run: Run, made: Database) -> None:
        run("ledger", "verify", "ds_" + "0" * 26, status=1)


class TestReport:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("", "no column x, y"),
            ("x\n1\n", "no column y"),
            ("x,y\n", "no rows"),
            ("x,y\n1\n", "line 2"),
            ("x,y\n1,nan\n", "line 2"),
        ],
    )
    def test_of_a_file_that_does_not_fit_sends_nothing(self, tmp_path: Path, content: str, said: str) -> None:
        from service import reporting
        from service.spec_schemas import Feature, feature_to_domain

        path = tmp_path / "file.csv"
        path.write_text(content)
        features = [feature_to_domain(Feature.model_validate(feature)) for feature in FEATURES]
        with pytest.raises(reporting.Unusable, match=said):
            reporting.read(path, features)

    def test_without_a_service_says_what_to_set(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "people.csv"
        file.write_text("x,y\n1,1\n")
        assert "SFUMATO_URL" in run("report", "--from", str(file), "ds_x", status=1).output


class TestForecast:
    ASKED = ("forecast", "--epsilon", "1", "--features", "2", "--reports", "50000", "--clusters", "3")

    def test_is_a_table_for_people(self, run: Run) -> None:
        said = run(*self.ASKED, "--size-error", "0.01").stdout
        for word in (
            "shifted_grid",
            "ε = 1",
            "effective reports",
            "confidence",
            "reports on a cluster's size is known",
        ):
            assert word in said

    def test_is_json_for_programs(self, run: Run) -> None:
        from sfumato.forecast import forecast, forecast_to_wire
        from sfumato.specs import UniformGrid

        said = json.loads(run(*self.ASKED, "--algorithm", "uniform_grid", "--json").stdout)
        assert said == forecast_to_wire(forecast(UniformGrid(1.0, 3), n_features=2, expected_reports=50_000))

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (("--algorithm", "magic"), "unknown algorithm"),
            (("--epsilon", "99"), "epsilon must lie"),
            (("--quality", "0.5", "--size-error", "0.5"), "exactly one"),
            (("--features", "65"), "1 to 64 features"),
            (("--records", "1000"), "exactly one of --reports and --records"),
        ],
    )
    def test_of_what_cannot_be_says_why(self, run: Run, more: tuple[str, ...], said: str) -> None:
        assert said in run(*self.ASKED, *more, status=1).output

    def test_over_records_is_a_table_and_json_as_well(self, run: Run) -> None:
        from sfumato.forecast import forecast_records, records_forecast_to_wire
        from sfumato.specs import GatedGridKmeans

        asked = ("forecast", "--epsilon", "1", "--features", "2", "--records", "50000", "--clusters", "3")
        said = run(*asked).stdout
        for word in ("gated_grid_kmeans", "at most ε = 1 of the dataset's budget", "squared error"):
            assert word in said
        here = forecast_records(GatedGridKmeans(1.0, 3), n_features=2, expected_records=50_000)
        found = json.loads(run(*asked, "--algorithm", "gated_grid_kmeans", "--json").stdout)
        assert found == json.loads(json.dumps(records_forecast_to_wire(here)))
        assert "over records" in run(*asked, "--quality", "0.5", status=1).output
        assert "over records" in run(*asked, "--algorithm", "uniform_grid", status=1).output

    def test_over_records_tells_delta_as_well(self, run: Run) -> None:
        asked = ("forecast", "--epsilon", "1", "--features", "2", "--records", "50000", "--clusters", "3")
        said = run(*asked, "--algorithm", "gated_grid_kmeans", "--delta", "1e-6").stdout
        assert "at most ε = 1 and δ = 1e-6 of the dataset's budget" in said
        assert "delta" in run(*asked, "--algorithm", "gated_grid_kmeans", "--delta", "0.1", status=1).output
        assert "--records" in run(*self.ASKED, "--delta", "1e-6", status=1).output
        assert "--algorithm gated_grid_kmeans" in run(*asked, "--delta", "1e-6", status=1).output


class TestTheFirstKey:
    def test_is_made_once_and_kept_for_its_owner_alone(self, database_url: str, tmp_path: Path) -> None:
        database = Database(database_url)
        secret = embedded.first_key(database, tmp_path)
        assert (tmp_path / "admin.key").read_text() == f"{secret}\n"
        assert embedded.first_key(database, tmp_path) is None
        database.close()

    def test_that_could_not_be_kept_is_not_made(self, database_url: str, tmp_path: Path) -> None:
        database = Database(database_url)
        (tmp_path / "home").write_text("a file")
        with pytest.raises(OSError, match=r"."):
            embedded.first_key(database, tmp_path / "home")
        with database.reading() as session:
            assert not tenant.has_any_key(session)
        database.close()
