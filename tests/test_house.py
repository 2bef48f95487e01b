"""The house: what is tracked, what is locked, what is shipped, and who may import whom."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from models.settings import Settings
from service.server import STOP_SECONDS

ROOT = Path(__file__).parents[1]
ROOMS = ("audit", "clustering", "demo", "migrations", "models", "service", "workers")


def tracked() -> list[Path]:
    """Files under version control, or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def projects() -> dict[Path, dict[str, Any]]:
    """Both pyproject.toml files."""
    paths = (ROOT / "pyproject.toml", ROOT / "sdk" / "python" / "pyproject.toml")
    return {path: tomllib.loads(path.read_text()) for path in paths}


def declared() -> list[Requirement]:
    """Every requirement of both projects, extras included."""
    found: list[str] = []
    for project in projects().values():
        found += project["project"]["dependencies"] + project["build-system"]["requires"]
        for extra in project["project"]["optional-dependencies"].values():
            found += extra
    return [Requirement(line) for line in found]


def locked() -> dict[str, list[str]]:
    """Versions in the lock, by name."""
    pins: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", (ROOT / "requirements.lock").read_text(), re.M):
        pins.setdefault(canonicalize_name(name), []).append(version)
    return pins


class TestTrackedFiles:
    # Each pattern is put together, so that this file does not hold what it looks for.
    FORBIDDEN = (
        "|".join(("py" + "pi", "files.python" + "hosted")) + r")\.(?:org|io)",
        r"registry\." + "npm" + r"js\.)",
        r"deb\." + "debian" + r"\.org)",
        "/".join(("", "(?:work|root)", "")) + r"[a-z.])",
        "/".join(("", "home", "")) + r"\w+/)",
        "file:" + r"//)",
        "(?<!emit)-index" + r"-url\s)",
    )

    def test_no_package_index_and_no_path_of_a_machine_is_named_anywhere(self) -> None:
        pattern = re.compile("|".join("(?:" + part for part in self.FORBIDDEN))
        for positive in ("https://py" + "pi.org/simple", "/wo" + "rk/x", "fi" + "le:///opt", "/ho" + "me/me/x"):
            assert pattern.search(positive), "the pattern finds nothing"
        found = []
        for path in tracked():
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue  # a picture
            found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in pattern.finditer(text)]
        assert found == []

    def test_every_python_file_says_what_it_is_for(self) -> None:
        silent = [
            str(path.relative_to(ROOT))
            for path in tracked()
            if path.suffix == ".py" and (text := path.read_text()) and not text.startswith(('"""', 'r"""', "#!"))
        ]
        assert silent == []

    def test_the_licence_goes_with_both_projects(self) -> None:
        licence = (ROOT / "LICENSE").read_text()
        assert "Apache License" in licence
        assert (ROOT / "sdk" / "python" / "LICENSE").read_text() == licence

    def test_every_decision_is_in_the_index(self) -> None:
        folder = ROOT / "docs" / "decisions"
        index = (folder / "README.md").read_text()
        records = sorted(path.name for path in folder.glob("0*.md"))
        assert len(records) >= 5
        assert [name for name in records if f"({name})" not in index] == []

    def test_every_make_target_is_listed_by_help(self) -> None:
        makefile = (ROOT / "Makefile").read_text()
        phony = set(re.search(r"^\.PHONY: (.+)$", makefile, re.M)[1].split())  # type: ignore[index]
        described = set(re.findall(r"^([a-z-]+):.*## \w", makefile, re.M))
        assert phony == described
        assert {"demo", "serve", "test", "lint", "openapi", "bench"} <= phony


class TestLock:
    def test_every_requirement_is_locked_at_a_version_it_allows(self) -> None:
        pins = locked()
        own = {project["project"]["name"] for project in projects().values()}
        for requirement in declared():
            name = canonicalize_name(requirement.name)
            if name in own:
                continue
            assert name in pins, f"{name} is not locked: make lock"
            wrong = [version for version in pins[name] if version not in requirement.specifier]
            assert wrong == [], f"{name}: make lock"

    def test_our_own_packages_are_not_locked(self) -> None:
        pins = locked()
        assert len(pins) > 50
        assert not any(name.startswith("sfumato") for name in pins)

    def test_every_pin_has_hashes(self) -> None:
        blocks = re.split(r"^(?=[a-z0-9])", (ROOT / "requirements.lock").read_text(), flags=re.M | re.I)[1:]
        assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []

    def test_the_installer_finds_itself_in_the_lock(self) -> None:
        assert "uv" in locked()  # tools/venv.sh cuts its lines out
        assert "setuptools" in locked()  # the editable installs build without isolation


class TestImage:
    def lines(self) -> list[str]:
        return (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()

    def test_it_copies_what_is_there_and_what_the_ignore_file_lets_in(self) -> None:
        copied = {
            source
            for line in self.lines()
            if line.startswith("COPY ") and "--from" not in line
            for source in line.split()[1:-1]
        }
        assert set(ROOMS) <= copied
        assert [source for source in copied if not (ROOT / source).exists()] == []
        allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
        assert allowed == copied

    def test_its_settings_exist(self) -> None:
        names = set(re.findall(r"SFUMATO_([A-Z_]+)=", "\n".join(self.lines())))
        assert names
        assert {name.lower() for name in names} <= set(Settings.model_fields)

    def test_it_listens_and_is_asked_for_its_health_where_the_gateway_is(self) -> None:
        text = "\n".join(self.lines())
        port = re.search(r"SFUMATO_PORT=(\d+)", text)
        assert port
        assert f"\nEXPOSE {port[1]}\n" in text
        asked = re.search(r"HEALTHCHECK .*os\.environ\['SFUMATO_PORT'\]\}(/\w+)", text)
        assert asked
        assert "get" in json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"][asked[1]]

    def test_it_does_not_run_as_root(self) -> None:
        last_stage = self.lines()[max(i for i, line in enumerate(self.lines()) if line.startswith("FROM")) :]
        assert "USER 10001" in last_stage
        assert not any(line.startswith("RUN") for line in last_stage[last_stage.index("USER 10001") :])


class TestCompose:
    @pytest.fixture
    def compose(self) -> dict[str, Any]:
        text = (ROOT / "compose.yaml").read_text()
        return yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))

    def ours(self, compose: dict[str, Any]) -> dict[str, Any]:
        return {name: service for name, service in compose["services"].items() if "build" in service}

    def test_its_settings_exist(self, compose: dict[str, Any]) -> None:
        services = self.ours(compose)
        assert set(services) == {"migrate", "gateway", "worker"}
        for service in services.values():
            names = {name.removeprefix("SFUMATO_").lower() for name in service["environment"]}
            assert {"database_url", "redis_url"} <= names <= set(Settings.model_fields)

    def test_its_settings_are_right(self, compose: dict[str, Any]) -> None:
        for service in self.ours(compose).values():
            assert Settings.model_validate(
                {name.removeprefix("SFUMATO_").lower(): value for name, value in service["environment"].items()}
            )

    def test_its_processes_may_do_nothing_but_their_work(self, compose: dict[str, Any]) -> None:
        for service in self.ours(compose).values():
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]

    def test_a_gateway_has_time_to_end(self, compose: dict[str, Any]) -> None:
        seconds = float(compose["services"]["gateway"]["stop_grace_period"].removesuffix("s"))
        assert seconds > STOP_SECONDS + Settings.model_fields["drain_seconds"].default

    def test_metrics_are_not_published(self, compose: dict[str, Any]) -> None:
        gateway = compose["services"]["gateway"]
        assert gateway["environment"]["SFUMATO_METRICS_PORT"] not in [p.split(":")[-1] for p in gateway["ports"]]

    def test_its_addresses_lead_to_its_services(self, compose: dict[str, Any]) -> None:
        for service in self.ours(compose).values():
            for url in (value for name, value in service["environment"].items() if name.endswith("_URL")):
                host = re.search(r"@([a-z]+):(\d+)/", url)
                assert host
                assert host[1] in compose["services"]

    def test_who_waits_for_health_waits_for_somebody_who_has_it_checked(self, compose: dict[str, Any]) -> None:
        services = compose["services"]
        for service in services.values():
            for name, wait in service.get("depends_on", {}).items():
                checked = "test" in services[name].get("healthcheck", {})
                assert checked == (wait["condition"] == "service_healthy")

    @pytest.mark.parametrize("command", ["serve", "gateway", "worker", "migrate"])
    def test_its_commands_exist(self, command: str, tmp_path: Path) -> None:
        program = Path(sys.executable).parent / "sfumato"
        shown = subprocess.run([program, command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert shown.returncode == 0, shown.stderr
        assert "--help" in shown.stdout

    def test_it_publishes_on_the_loopback_address_alone(self, compose: dict[str, Any]) -> None:
        ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
        assert ports
        assert all(port.startswith("127.0.0.1:") for port in ports)

    def test_no_secret_stands_in_it_but_marked_ones(self) -> None:
        text = re.sub(
            r"\$\{SFUMATO_\w+_PASSWORD:-for-development-only\}", "<marked>", (ROOT / "compose.yaml").read_text()
        )
        secrets = re.findall(r"(?:PASSWORD|AUTH): (\S+)|\w://\w*:([^@]*)@|requirepass\", \"([^\"]+)", text)
        assert len(secrets) == 5
        assert {"".join(found) for found in secrets} == {"<marked>"}


class TestDemoCheck:
    GOOD: ClassVar[dict[str, Any]] = {
        "reports": 200_000,
        "ari_vs_unperturbed": 0.97,
        "ledger_verified": True,
        "epsilon_posted": 2.0,
        "epsilon_granted": 2.0,
        "seconds": 30.0,
    }

    def check(self, summary: dict[str, Any], *options: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, ROOT / "tools" / "check_demo.py", *options]
        return subprocess.run(command, input=json.dumps(summary), capture_output=True, text=True, check=False)

    def test_it_lets_a_good_demo_pass(self) -> None:
        assert self.check(self.GOOD).returncode == 0

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("reports", 199_999),
            ("ari_vs_unperturbed", 0.94),
            ("ledger_verified", False),
            ("epsilon_posted", 2.1),
            ("epsilon_posted", 0.0),
            ("seconds", 61.0),
        ],
    )
    def test_it_stops_one_that_falls_short(self, name: str, value: object) -> None:
        checked = self.check(self.GOOD | {name: value})
        assert checked.returncode == 1
        assert "falls short" in checked.stderr

    @pytest.mark.parametrize(
        ("told", "status"),
        [
            ({}, 0),
            ({"killed": [{"what": "gateway-1"}]}, 1),
            ({"same_clusters": False}, 1),
            ({"same_ledger": False}, 1),
            ({"complaints": ["lost"]}, 1),
            (None, 1),
        ],
        ids=["good", "no worker killed", "clusters", "ledger", "complaint", "none at all"],
    )
    def test_it_looks_at_the_accidents_of_one_as_in_production(
        self, tmp_path: Path, told: dict[str, Any] | None, status: int
    ) -> None:
        killed = [{"what": "worker-2"}, {"what": "gateway-1"}]
        good = {"killed": killed, "same_clusters": True, "same_ledger": True, "complaints": []}
        (tmp_path / "result.json").write_text(json.dumps({} if told is None else {"production": good | told}))
        summary = self.GOOD | {"result": str(tmp_path / "result.json")}
        assert self.check(summary, "--production").returncode == status


class TestDevice:
    def test_the_device_side_needs_numpy_alone(self) -> None:
        script = (
            "import sys\n"
            "for name in ('httpx', 'stamina', 'matplotlib', 'scipy', 'numba', 'pydantic'): sys.modules[name] = None\n"
            "import sfumato.specs, sfumato.mechanisms, sfumato.encodings, sfumato.accounting, sfumato.cluster_model\n"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


VIOLATIONS = (
    ("service/problems.py", "import workers"),
    ("service/problems.py", "import clustering.plan"),
    ("service/problems.py", "import numba"),
    ("workers/fold.py", "import service.problems"),
    ("workers/fold.py", "import demo"),
    ("models/job.py", "import clustering.plan"),
    ("models/job.py", "import fastapi"),
    ("clustering/plan.py", "import models.job"),
    ("clustering/plan.py", "import sqlalchemy"),
    ("sdk/python/sfumato/specs/rounds.py", "import models.job"),
)


@pytest.mark.slow
@pytest.mark.ci
class TestSlow:
    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        """The sources as they are tracked, in a folder of their own."""
        for path in tracked():
            target = tmp_path / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        return tmp_path

    def lint_imports(self, folder: Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [Path(sys.executable).parent / "lint-imports", "--no-cache"],
            cwd=folder,
            env={"PYTHONPATH": f"{folder}:{folder / 'sdk' / 'python'}"},
            capture_output=True,
            text=True,
            check=False,
        )

    def test_the_import_contracts_hold_and_a_violation_breaks_them(self, copy: Path) -> None:
        kept = self.lint_imports(copy)
        assert kept.returncode == 0, kept.stdout
        for name, line in VIOLATIONS:
            source = (copy / name).read_text()
            (copy / name).write_text(f"{source}\n{line}\n")
            broken = self.lint_imports(copy)
            (copy / name).write_text(source)
            assert broken.returncode == 1, f"{line!r} in {name} breaks no contract"
            assert "BROKEN" in broken.stdout

    def test_the_wheels_hold_every_file_of_their_rooms(self, copy: Path) -> None:
        for project, rooms in ((copy, ROOMS), (copy / "sdk" / "python", ("sfumato",))):
            subprocess.run(
                [
                    *(
                        sys.executable,
                        "-m",
                        "pip",
                        "wheel",
                        "--quiet",
                        "--no-deps",
                        "--no-build-isolation",
                        "--no-index",
                    ),
                    *("--wheel-dir", copy / "wheels", project),
                ],
                check=True,
            )
            expected = {
                str(path.relative_to(project))
                for room in rooms
                for path in (project / room).rglob("*")
                if path.is_file()
            }
            (wheel,) = (copy / "wheels").glob("sfumato-*" if rooms == ("sfumato",) else "sfumato_server-*")
            with zipfile.ZipFile(wheel) as archive:
                held = {name for name in archive.namelist() if ".dist-info/" not in name}
            assert held == expected


class TestBothDatabases:
    # Whoever asks the fixtures for a database is given one of each kind. These make a file of SQLite's themselves.
    OF_ONE_ALONE: ClassVar[dict[str, str]] = {
        "tests/conftest.py": "the fixtures",
        "tests/service/conftest.py": "the fixtures",
        "tests/faults/world.py": "either kind, as its command line asks",
        "tests/browser/scenes.py": "about pages; test_console_production walks over PostgreSQL",
        "tests/contract/test_schemathesis.py": "about the description, against one command, `sfumato serve`",
        "tests/sdks/test_browser.py": "about the SDK, against `sfumato serve`",
        "tests/sfumato/test_live.py": "about the SDK, against `sfumato serve`",
        "tests/service/test_cli.py": "the commands of a home, which is where SQLite is",
        "tests/service/test_record_commands.py": "the commands of a home",
        "tests/service/test_serve.py": "`sfumato serve`, which is SQLite's",
        "tests/service/test_side_channels_records.py": "the same bytes twice need the same file twice",
        "tests/service/test_slow_clients.py": "sockets; what they do ends before any database",
        "tests/benchmarks/speed/test_growth.py": "how a file grows; PostgreSQL's rows are measured by the benchmark",
        "tests/models/test_named_pipe.py": "what the setting says, nothing is opened",
        "tests/workers/test_dask.py": "the fast half of test_dask_lost.py, which has both",
        "tests/workers/test_dask_lost.py": "both, and a file that is another's",
        "tests/models/test_backup.py": "the commands of docs/operations.md, one set a database",
        "tests/models/test_db.py": "where a file may be",
        "tests/models/test_settings.py": "what the setting says, nothing is opened",
        "tests/workers/test_seconds.py": "how long the embedded service takes",
    }

    def test_are_what_every_test_of_a_database_has_unless_it_says_why_not(self) -> None:
        found = {
            path.relative_to(ROOT).as_posix()
            for path in tracked()
            if path.is_relative_to(ROOT / "tests") and path.suffix == ".py" and "sqlite:" + "///" in path.read_text()
        }
        assert found == set(self.OF_ONE_ALONE)
