"""The Python package as its users have it: a wheel, alone in a new environment, talking to a running service."""

import json
import sys
import zipfile
from pathlib import Path

import pytest

from tests.sdks import packages
from tests.sdks.conftest import Live
from tests.sdks.packages import PYTHON, run

pytestmark = [pytest.mark.slow, pytest.mark.ci]

UV = Path(sys.prefix) / "bin" / "uv"
OF_THE_SERVER = {"numba", "scipy", "sqlalchemy", "fastapi", "uvicorn", "redis", "psycopg", "pyarrow", "pydantic"}

# The processor's time: what others do with the core meanwhile does not count.
MEASURE = """
import json, sys, time
began = time.process_time()
import sfumato
seconds = time.process_time() - began
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""
MISSING = """
import importlib.util, sys
print([name for name in sys.argv[1:] if importlib.util.find_spec(name)])
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that holds the wheel, its extra for clients, and what these need."""
    home = tmp_path_factory.mktemp("environment")
    run(UV, "venv", "--quiet", "--python", sys.executable, home / "venv", cwd=home)
    python = home / "venv" / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", python, f"{wheel}[client]", cwd=home)
    return python


class TestTheWheel:
    def test_holds_the_package_its_types_and_its_licence_alone(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as opened:
            names = set(opened.namelist())
        assert {"sfumato/__init__.py", "sfumato/py.typed", "sfumato/device.py", "sfumato/client.py"} <= names
        assert {name.split("/")[0].split("-")[0] for name in names} == {"sfumato"}
        assert any(name.endswith("LICENSE") for name in names)
        sources = {str(path.relative_to(PYTHON)) for path in (PYTHON / "sfumato").rglob("*.py")}
        assert {name for name in names if name.endswith(".py")} == sources

    def test_installs_without_the_server(self, environment: Path, tmp_path: Path) -> None:
        assert run(environment, "-c", MISSING, *sorted(OF_THE_SERVER), cwd=tmp_path) == "[]\n"
        where = run(environment, "-c", "import sfumato; print(sfumato.__file__)", cwd=tmp_path)
        assert Path(where.strip()).is_relative_to(environment.parents[1])

    def test_imports_in_no_time(self, environment: Path, tmp_path: Path) -> None:
        runs = [json.loads(run(environment, "-c", MEASURE, cwd=tmp_path)) for _ in range(5)]
        assert min(each["seconds"] for each in runs) <= 0.15  # the first compiles its modules
        assert not (OF_THE_SERVER | {"numpy", "httpx"}) & set(runs[0]["modules"])

    def test_a_first_report_takes_ten_lines(self, environment: Path, live: Live, tmp_path: Path) -> None:
        program = packages.block_after(PYTHON / "README.md", "A first report", "python")
        assert len(program.splitlines()) <= 10
        (tmp_path / "first.py").write_text(program)
        assert run(environment, "first.py", cwd=tmp_path, **live.environment) == "sent\n"
        assert (tmp_path / "device.json").stat().st_mode & 0o777 == 0o600
