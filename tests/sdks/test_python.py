"""Tests of the Python wheel in a new environment against a running service."""

import json
import sys
import zipfile
from pathlib import Path

import pytest

from tests.sdks import packages
from tests.sdks.conftest import Live
from tests.sdks.packages import PYTHON, run

pytestmark = pytest.mark.slow

UV = Path(sys.prefix) / "bin" / "uv"
OF_THE_SERVER = {"numba", "scipy", "sqlalchemy", "fastapi", "uvicorn", "redis", "psycopg", "pyarrow", "pydantic"}

# CPU time, which does not depend on other processes.
MEASURE = """
import json, sys, time
began = time.process_time()
import sfumato
seconds = time.process_time() - began
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""
# The examples that need pandas, and frames of what a service released.
FRAMES = """
import doctest, os, sys
import numpy as np
from sfumato import Client, Feature, GridEncoding, UniformGrid, perturb_records
from sfumato import cells_frame, clusters_frame, labels_frame, ledger_frame
from sfumato.model import frames
ran = doctest.testmod(frames)
assert ran.failed == 0 and ran.attempted >= 8, ran
people = np.repeat([[2.2], [7.7]], 2000, axis=0)
with Client(os.environ["SFUMATO_URL"], os.environ["SFUMATO_KEY"]) as client:
    dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=4)
    opened = client.open_round(dataset.id, GridEncoding((8,)), epsilon=4, target_reports=4000)
    client.send_reports(opened.id, *perturb_records(opened.spec, people))
    job = client.submit_job(dataset.id, UniformGrid(epsilon=4, clusters=2, cells=8), round_ids=[opened.id])
    done = job.wait(timeout_seconds=600)
    assert done.state == "succeeded", done
    model = done.result().model
    ledger = ledger_frame(client.ledger(dataset.id, oldest_first=True))
clusters = clusters_frame(model)
assert abs(clusters["size"].sum() - 1) < 1e-9, clusters
assert sorted(clusters["east"].round()) == [2, 8], clusters
cells = cells_frame(model)
assert len(cells) == 8 and cells["east_upper"].max() == 10, cells
assert labels_frame(model, people).groupby("cluster").size().tolist() == [2000, 2000]
assert list(ledger["kind"]) == ["grant", "charge"] and str(ledger["at"].dt.tz) == "UTC", ledger
assert ledger.index.tolist() == [1, 2] and ledger["epsilon_nano"].dtype == "int64"
print("fine", file=sys.stdout)
"""
MISSING = """
import importlib.util, sys
print([name for name in sys.argv[1:] if importlib.util.find_spec(name)])
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment with the wheel and its extra for clients."""
    home = tmp_path_factory.mktemp("environment")
    run(UV, "venv", "--quiet", "--python", sys.executable, home / "venv", cwd=home)
    python = home / "venv" / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", python, f"{wheel}[client]", cwd=home)
    return python


class TestTheWheel:
    def test_contains_only_the_package_its_types_and_its_licence(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as opened:
            names = set(opened.namelist())
        assert {"sfumato/__init__.py", "sfumato/py.typed", "sfumato/device/device.py", "sfumato/api/client.py"} <= names
        assert {name.split("/")[0].split("-")[0] for name in names} == {"sfumato"}
        assert any(name.endswith("LICENSE") for name in names)
        sources = {str(path.relative_to(PYTHON)) for path in (PYTHON / "sfumato").rglob("*.py")}
        assert {name for name in names if name.endswith(".py")} == sources

    def test_installs_without_the_server(self, environment: Path, tmp_path: Path) -> None:
        assert run(environment, "-c", MISSING, *sorted(OF_THE_SERVER), cwd=tmp_path) == "[]\n"
        where = run(environment, "-c", "import sfumato; print(sfumato.__file__)", cwd=tmp_path)
        assert Path(where.strip()).is_relative_to(environment.parents[1])

    def test_imports_quickly(self, environment: Path, tmp_path: Path) -> None:
        runs = [json.loads(run(environment, "-c", MEASURE, cwd=tmp_path)) for _ in range(5)]
        assert min(each["seconds"] for each in runs) <= 0.15  # the first compiles its modules
        assert not (OF_THE_SERVER | {"numpy", "httpx"}) & set(runs[0]["modules"])

    def test_returns_frames_if_pandas_is_installed(
        self, environment: Path, wheel: Path, live: Live, tmp_path: Path
    ) -> None:
        assert run(environment, "-c", MISSING, "pandas", cwd=tmp_path) == "[]\n"  # only the call imports it
        run(UV, "pip", "install", "--quiet", "--python", environment, f"{wheel}[client,pandas]", cwd=tmp_path)
        assert run(environment, "-c", FRAMES, cwd=tmp_path, **live.environment) == "fine\n"

    def test_a_first_report_takes_ten_lines(self, environment: Path, live: Live, tmp_path: Path) -> None:
        program = packages.block_after(PYTHON / "README.md", "A first report", "python")
        assert len(program.splitlines()) <= 10
        (tmp_path / "first.py").write_text(program)
        assert run(environment, "first.py", cwd=tmp_path, **live.environment) == "sent\n"
        assert (tmp_path / "device.json").stat().st_mode & 0o777 == 0o600
