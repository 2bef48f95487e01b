"""Repository checks: tracked files, the lock, the image, Compose, wheels and import contracts."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from redis import Redis
from sqlalchemy.engine import make_url

import sfumato
from connections.server import STOP_SECONDS
from runtime.settings import Settings

ROOT = Path(__file__).parents[1]
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {
    "benchmarks",
    "tests",
}  # the server installs these


def list_tracked_files() -> list[Path]:
    """Return the files under version control, and new files that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def read_projects() -> dict[Path, dict[str, Any]]:
    """Return the content of both pyproject.toml files."""
    paths = (ROOT / "pyproject.toml", ROOT / "sdk" / "python" / "pyproject.toml")
    return {path: tomllib.loads(path.read_text()) for path in paths}


def list_requirements() -> list[Requirement]:
    """Return every requirement of both projects, including extras."""
    names_found: list[str] = []
    for project in read_projects().values():
        names_found += project["project"]["dependencies"] + project["build-system"]["requires"]
        for extra in project["project"]["optional-dependencies"].values():
            names_found += extra
    return [Requirement(line) for line in names_found]


def read_lock() -> dict[str, list[str]]:
    """Return the locked versions by name."""
    pins: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", (ROOT / "requirements.lock").read_text(), re.M):
        pins.setdefault(canonicalize_name(name), []).append(version)
    return pins


class TestTrackedFiles:
    # The patterns are concatenated, because this file must not match them.
    FORBIDDEN = (
        "|".join(("py" + "pi", "files.python" + "hosted")) + r")\.(?:org|io)",
        r"registry\." + "npm" + r"js\.)",
        r"deb\." + "debian" + r"\.org)",
        "/".join(("", "(?:work|root)", "")) + r"[a-z.])",
        "/".join(("", "home", "")) + r"\w+/)",
        "file:" + r"//)",
        "(?<!emit)-index" + r"-url\s)",
    )

    def test_no_file_names_a_package_index_or_a_local_path(self) -> None:
        pattern = re.compile("|".join("(?:" + part for part in self.FORBIDDEN))
        for positive in ("https://py" + "pi.org/simple", "/wo" + "rk/x", "fi" + "le:///opt", "/ho" + "me/me/x"):
            assert pattern.search(positive), "the pattern finds nothing"
        names_found = []
        for path in list_tracked_files():
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue  # a binary file
            names_found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in pattern.finditer(text)]
        assert names_found == []

    def test_every_python_file_has_a_docstring(self) -> None:
        undocumented = [
            str(path.relative_to(ROOT))
            for path in list_tracked_files()
            if path.suffix == ".py" and (text := path.read_text()) and not text.startswith(('"""', 'r"""', "#!"))
        ]
        assert undocumented == []

    def test_every_package_has_the_same_version(self) -> None:
        """These are the files of docs/publishing.md."""
        places = {
            "pyproject.toml": r'^version = "(.+)"$',
            "sdk/python/pyproject.toml": r'^version = "(.+)"$',
            "sdk/python/sfumato/__init__.py": r'^__version__ = "(.+)"$',
            "sdk/typescript/package.json": r'^  "version": "(.+)",$',
            "sdk/kotlin/device/pom.xml": r"^  <version>(.+)</version>$",
            "openapi/generators/kotlin/pom.xml": r"^  <version>(.+)</version>$",
            "deploy/kubernetes/kustomization.yaml": r"^ +newTag: (.+)$",
        }
        found = {
            name: re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)[:1] for name, pattern in places.items()
        }
        assert found == {name: [sfumato.__version__] for name in places}
        page = (ROOT / "docs" / "publishing.md").read_text()
        assert [name for name in places if f"`{name}`" not in page] == []

    def test_both_projects_have_the_licence(self) -> None:
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

    def test_every_folder_is_under_the_import_contracts_and_the_type_check(self) -> None:
        tools = read_projects()[ROOT / "pyproject.toml"]["tool"]
        linter = tools["importlinter"]
        assert set(tools["mypy"]["files"]) >= PACKAGES | {"benchmarks", "sdk/python/sfumato", "tools"}
        roots = PACKAGES | {"benchmarks", "sfumato"}
        layers, *_others, acyclic = linter["contracts"]
        assert set(linter["root_packages"]) == roots
        assert {name for layer in layers["layers"] for name in layer.split(" | ")} == roots
        assert set(acyclic["ancestors"]) == roots - {"migrations"}


class TestLock:
    def test_every_requirement_is_locked_at_a_version_it_allows(self) -> None:
        pins = read_lock()
        own = {project["project"]["name"] for project in read_projects().values()}
        for requirement in list_requirements():
            name = canonicalize_name(requirement.name)
            if name in own:
                continue
            assert name in pins, f"{name} is not locked: make lock"
            wrong = [version for version in pins[name] if version not in requirement.specifier]
            assert wrong == [], f"{name}: make lock"

    def test_our_own_packages_are_not_locked(self) -> None:
        pins = read_lock()
        assert len(pins) > 50
        assert not any(name.startswith("sfumato") for name in pins)

    def test_every_pin_has_hashes(self) -> None:
        blocks = re.split(r"^(?=[a-z0-9])", (ROOT / "requirements.lock").read_text(), flags=re.M | re.I)[1:]
        assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []

    def test_the_lock_has_the_installer(self) -> None:
        assert "uv" in read_lock()  # tools/venv.sh cuts its lines out
        assert "setuptools" in read_lock()  # the editable installs build without isolation


class TestImage:
    def lines(self) -> list[str]:
        return (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()

    def test_it_copies_existing_files_that_the_ignore_file_allows(self) -> None:
        copied = {
            source
            for line in self.lines()
            if line.startswith("COPY ") and "--from" not in line
            for source in line.split()[1:-1]
        }
        assert set(PACKAGES) <= copied
        assert [source for source in copied if not (ROOT / source).exists()] == []
        allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
        assert allowed <= copied
        assert all({source, *map(str, Path(source).parents)} & allowed for source in copied)

    def test_its_settings_exist(self) -> None:
        names = set(re.findall(r"SFUMATO_([A-Z_]+)=", "\n".join(self.lines())))
        assert names
        assert {name.lower() for name in names} <= set(Settings.model_fields)

    def test_its_port_and_health_check_are_those_of_the_gateway(self) -> None:
        text = "\n".join(self.lines())
        port = re.search(r"SFUMATO_PORT=(\d+)", text)
        assert port
        assert f"\nEXPOSE {port[1]}\n" in text
        health_path = re.search(r"HEALTHCHECK .*os\.environ\['SFUMATO_PORT'\]\}(/\w+)", text)
        assert health_path
        assert "get" in json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"][health_path[1]]

    def test_it_does_not_run_as_root(self) -> None:
        last_stage = self.lines()[max(i for i, line in enumerate(self.lines()) if line.startswith("FROM")) :]
        assert "USER 10001" in last_stage
        assert not any(line.startswith("RUN") for line in last_stage[last_stage.index("USER 10001") :])


def read_compose(**variables: str) -> dict[str, Any]:
    """Return compose.yaml with variables or their defaults. Compose replaces variables after it has parsed the file."""

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: fill(each) for name, each in value.items()}
        if isinstance(value, list):
            return [fill(each) for each in value]
        if isinstance(value, str):
            return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1], found[2]), value)
        return value

    filled: dict[str, Any] = fill(yaml.safe_load((ROOT / "compose.yaml").read_text()))
    return filled


class TestCompose:
    @pytest.fixture
    def compose(self) -> dict[str, Any]:
        return read_compose()

    def built_services(self, compose: dict[str, Any]) -> dict[str, Any]:
        return {name: service for name, service in compose["services"].items() if "build" in service}

    def test_its_settings_exist(self, compose: dict[str, Any]) -> None:
        services = self.built_services(compose)
        assert set(services) == {"migrate", "gateway", "worker"}
        for service in services.values():
            names = {name.removeprefix("SFUMATO_").lower() for name in service["environment"]}
            assert {"database_url", "redis_url"} <= names <= set(Settings.model_fields)

    def test_its_settings_are_right(self, compose: dict[str, Any]) -> None:
        for service in self.built_services(compose).values():
            assert Settings.model_validate(
                {name.removeprefix("SFUMATO_").lower(): value for name, value in service["environment"].items()}
            )

    def test_its_processes_have_no_privileges(self, compose: dict[str, Any]) -> None:
        for service in self.built_services(compose).values():
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]

    def test_a_gateway_has_time_to_stop(self, compose: dict[str, Any]) -> None:
        seconds = float(compose["services"]["gateway"]["stop_grace_period"].removesuffix("s"))
        assert seconds > STOP_SECONDS + Settings.model_fields["drain_seconds"].default

    def test_metrics_are_not_published(self, compose: dict[str, Any]) -> None:
        gateway = compose["services"]["gateway"]
        assert gateway["environment"]["SFUMATO_METRICS_PORT"] not in [p.split(":")[-1] for p in gateway["ports"]]

    def test_its_addresses_name_its_services(self, compose: dict[str, Any]) -> None:
        for service in self.built_services(compose).values():
            for url in (value for name, value in service["environment"].items() if name.endswith("_URL")):
                host = re.search(r"[@/]([a-z]+):(\d+)/", url)
                assert host
                assert host[1] in compose["services"]

    @pytest.mark.parametrize("password", ["p/w@rd#1", "a b:c%?&=+", "'\"\\{}"])
    def test_its_passwords_may_have_any_characters(self, password: str) -> None:
        compose = read_compose(SFUMATO_POSTGRES_PASSWORD=password, SFUMATO_REDIS_PASSWORD=password)
        assert compose["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"] == password
        assert compose["services"]["redis"]["command"][-1] == password
        for service in self.built_services(compose).values():
            given = {name.removeprefix("SFUMATO_").lower(): value for name, value in service["environment"].items()}
            settings = Settings.model_validate(given)
            url = make_url(settings.resolved_database_url)
            assert (url.username, url.password, url.host, url.port) == ("sfumato", password, "postgres", 5432)
            assert settings.redis_url is not None
            with closing(Redis.from_url(settings.redis_url.get_secret_value())) as client:
                found = client.connection_pool.connection_kwargs
            assert (found["host"], found["port"], found["db"], found["password"]) == ("redis", 6379, 0, password)

    def test_a_worker_has_time_to_finish_its_job(self, compose: dict[str, Any]) -> None:
        worker = compose["services"]["worker"]
        seconds = float(worker["stop_grace_period"].removesuffix("s"))
        assert seconds > float(worker["environment"]["SFUMATO_WORKER_DRAIN_SECONDS"]) > 0

    def test_services_wait_only_for_services_with_a_health_check(self, compose: dict[str, Any]) -> None:
        services = compose["services"]
        for service in services.values():
            for name, wait in service.get("depends_on", {}).items():
                checked = "test" in services[name].get("healthcheck", {})
                assert checked == (wait["condition"] == "service_healthy")

    def test_the_installed_program_has_the_command_of_a_gateway(self, tmp_path: Path) -> None:
        command = [Path(sys.executable).parent / "sfumato", "gateway", "--help"]
        shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert shown.returncode == 0, shown.stderr
        assert "--help" in shown.stdout

    def test_it_publishes_only_on_the_loopback_address(self, compose: dict[str, Any]) -> None:
        ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
        assert ports
        assert all(port.startswith("127.0.0.1:") for port in ports)

    def test_it_has_no_unmarked_secret(self) -> None:
        text = re.sub(
            r"\$\{SFUMATO_\w+_PASSWORD:-for-development-only\}", "<marked>", (ROOT / "compose.yaml").read_text()
        )
        secrets = re.findall(r"(?:PASSWORD|AUTH): \"?([^\s\"]+)|\w://\w*:([^@\s]*)@|requirepass\", \"([^\"]+)", text)
        assert len(secrets) == 5
        assert {"".join(names_found) for names_found in secrets} == {"<marked>"}


class TestDemoCheck:
    GOOD: ClassVar[dict[str, Any]] = {
        "reports": 200_000,
        "ari_vs_unperturbed": 0.97,
        "ledger_verified": True,
        "epsilon_charged": 2.0,
        "epsilon_granted": 2.0,
        "seconds": 30.0,
    }

    def check(self, summary: dict[str, Any], *options: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, ROOT / "tools" / "check_demo.py", *options]
        return subprocess.run(command, input=json.dumps(summary), capture_output=True, text=True, check=False)

    def test_a_good_demo_passes(self) -> None:
        assert self.check(self.GOOD).returncode == 0

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("reports", 199_999),
            ("ari_vs_unperturbed", 0.79),
            ("ledger_verified", False),
            ("epsilon_charged", 2.1),
            ("epsilon_charged", 0.0),
            ("seconds", 181.0),
        ],
    )
    def test_an_incomplete_demo_fails(self, name: str, value: object) -> None:
        checked = self.check(self.GOOD | {name: value})
        assert checked.returncode == 1
        assert "demo problem" in checked.stderr

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
    def test_it_checks_the_faults_of_a_production_demo(
        self, tmp_path: Path, told: dict[str, Any] | None, status: int
    ) -> None:
        killed = [{"what": "worker-2"}, {"what": "gateway-1"}]
        good = {"killed": killed, "same_clusters": True, "same_ledger": True, "complaints": []}
        (tmp_path / "result.json").write_text(json.dumps({} if told is None else {"production": good | told}))
        summary = self.GOOD | {"result": str(tmp_path / "result.json")}
        assert self.check(summary, "--production").returncode == status


class TestDevice:
    def test_the_device_side_needs_only_numpy(self) -> None:
        script = (
            "import sys\n"
            "for name in ('httpx', 'tenacity', 'matplotlib', 'scipy', 'numba', 'pydantic'): sys.modules[name] = None\n"
            "import sfumato.specs, sfumato.records.encodings, sfumato.model.cluster_model\n"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


VIOLATIONS = (
    ("service/http/problems.py", "import workers"),
    ("service/http/problems.py", "import clustering.rounds.plan"),
    ("service/http/problems.py", "import numba"),
    ("workers/aggregation/aggregate.py", "import service.http.problems"),
    ("workers/aggregation/aggregate.py", "import demo"),
    ("models/jobs/jobs.py", "import clustering.rounds.plan"),
    ("models/jobs/jobs.py", "import fastapi"),
    ("clustering/rounds/plan.py", "import models.jobs.jobs"),
    ("clustering/rounds/plan.py", "import sqlalchemy"),
    ("sdk/python/sfumato/specs/rounds.py", "import models.jobs.jobs"),
)


@pytest.mark.slow
class TestSlow:
    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        """Copy all tracked files to a temporary folder."""
        for path in list_tracked_files():
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

    def test_import_contracts_pass_and_detect_violations(self, copy: Path) -> None:
        result = self.lint_imports(copy)
        assert result.returncode == 0, result.stdout
        for name, line in VIOLATIONS:
            source = (copy / name).read_text()
            (copy / name).write_text(f"{source}\n{line}\n")
            broken = self.lint_imports(copy)
            (copy / name).write_text(source)
            assert broken.returncode == 1, f"{line!r} in {name} breaks no contract"
            assert "BROKEN" in broken.stdout

    def test_the_wheels_contain_every_file_of_their_packages(self, copy: Path) -> None:
        for project, packages in ((copy, PACKAGES), (copy / "sdk" / "python", ("sfumato",))):
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
                for package in packages
                for path in (project / package).rglob("*")
                if path.is_file()
            }
            (wheel,) = (copy / "wheels").glob("sfumato-*" if packages == ("sfumato",) else "sfumato_server-*")
            with zipfile.ZipFile(wheel) as archive:
                packed = {name for name in archive.namelist() if ".dist-info/" not in name}
            assert packed == expected


class TestBothDatabases:
    # The fixtures give every test both databases. These files open SQLite themselves.
    EXCEPTIONS: ClassVar[dict[str, str]] = {
        "tests/conftest.py": "the fixtures",
        "tests/service/conftest.py": "the fixtures",
        "tests/faults/deployment.py": "either kind, chosen on its command line",
        "tests/browser/scenes.py": "pages; test_console_production uses PostgreSQL",
        "tests/contract/test_schemathesis.py": "the API description, against `sfumato serve`",
        "tests/sdks/test_browser.py": "the SDK, against `sfumato serve`",
        "tests/sdks/conftest.py": "the generated clients, against `sfumato serve`",
        "tests/sfumato/test_live.py": "the SDK, against `sfumato serve`",
        "tests/service/test_cli.py": "commands of an embedded service, which uses SQLite",
        "tests/service/cli/test_record_commands.py": "commands of an embedded service",
        "tests/runtime/test_private_files.py": "permissions of database files",
        "tests/service/http_fuzz.py": "requests to two gateways, not the database",
        "tests/service/server/test_memory.py": "memory of a gateway process",
        "tests/service/server/test_readiness.py": "a full disk, which SQLite reports",
        "tests/service/server/test_serve.py": "`sfumato serve`, which uses SQLite",
        "tests/service/test_side_channels_records.py": "comparison of identical database files",
        "tests/service/server/test_slow_clients.py": "sockets; the tests do not reach a database",
        "tests/runtime/test_named_pipe.py": "settings only; no database is opened",
        "tests/workers/test_dask.py": "fast part of test_dask_lost.py, which has both",
        "tests/workers/test_dask_lost.py": "both, and a file of another installation",
        "tests/models/test_backup.py": "commands of docs/operations.md per database",
        "tests/models/database/test_db.py": "valid locations of a file",
        "tests/runtime/test_settings.py": "settings only; no database is opened",
        "tests/workers/test_seconds.py": "durations of the embedded service",
    }

    def test_only_listed_test_files_open_sqlite_themselves(self) -> None:
        names_found = {
            path.relative_to(ROOT).as_posix()
            for path in list_tracked_files()
            if path.is_relative_to(ROOT / "tests") and path.suffix == ".py" and "sqlite:" + "///" in path.read_text()
        }
        assert names_found == set(self.EXCEPTIONS)
