"""End-to-end tests of `python -m demo` with a real service and real devices."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from rich.console import Console

from demo.__main__ import Options, run
from demo.scenario import DemoError
from sfumato.errors import SfumatoError
from sfumato.model.cluster_model import model_from_wire

SECONDS = 800


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Return the folder for temporary files of the demo, which must be empty at its end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def demo(*arguments: str, temporary: Path, **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *arguments],
        env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def services(temporary: Path) -> Iterator[psutil.Process]:
    """Yield the processes with a home in the folder: the service, its worker and the job process."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("SFUMATO_HOME", "").startswith(str(temporary)):
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


def assert_ended(temporary: Path) -> None:
    deadline = time.monotonic() + 120  # the job process ends shortly after its parent
    while list(services(temporary)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(services(temporary)) == []


def assert_nothing_left(temporary: Path) -> None:
    assert_ended(temporary)
    assert list(temporary.glob("sfumato-demo-*")) == []


@pytest.mark.slow
class TestCountry:
    def test_the_demo_writes_clusters_ledger_and_pictures(self, tmp_path: Path, temporary: Path) -> None:
        out = tmp_path / "out"
        process = demo("--reports", "20000", "--singles", "20", "--json", "--out", str(out), temporary=temporary)
        stdout, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, stderr
        (line,) = stdout.splitlines()
        summary = json.loads(line)
        assert summary["reports"] == 20_000
        assert summary["singles"] == 20
        assert summary["epsilon"] == summary["epsilon_granted"] == 3.0
        assert 2.99 < summary["epsilon_charged"] <= 3.0
        assert summary["ledger_verified"] is True
        assert summary["n_clusters"] == 5
        assert -1 <= summary["ari_vs_unperturbed"] <= 1
        assert summary["seconds"] > 0
        assert "Single devices report" in stderr
        document = json.loads((out / "result.json").read_text())
        model = model_from_wire(document["model"])
        assert model.n_clusters == 5
        assert [entry["kind"] for entry in document["ledger"]][:3] == ["grant", "reserve", "charge"]
        assert (out / "map.svg").read_text().startswith("<?xml")
        assert (out / "map.png").read_bytes().startswith(b"\x89PNG")
        assert_nothing_left(temporary)


@pytest.mark.slow
class TestShuffled:
    def test_both_figures_and_a_map_of_both_are_written(self, tmp_path: Path, temporary: Path) -> None:
        out = tmp_path / "out"
        process = demo(
            *("--trust", "shuffled", "--reports", "3000", "--epsilon", "1", "--json", "--out", str(out)),
            temporary=temporary,
        )
        stdout, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, stderr
        summary = json.loads(stdout.splitlines()[-1])
        assert (summary["reports"], summary["reports_before_release"]) == (3000, 0)
        assert 0.5 < summary["shuffled_epsilon"] <= 1 < summary["local_epsilon"]
        assert summary["shuffled_delta"] == 1e-6
        assert summary["ledger_verified"] is True
        assert -1 <= summary["local_ari_vs_unperturbed"] <= 1
        assert summary["compared_epsilon"] == 3
        assert {summary["verdict"], summary["local_verdict"]} <= {"reliable", "uncertain", "doubtful"}
        picture = (out / "map.svg").read_text()
        assert picture.startswith("<?xml")
        assert (out / "map.png").read_bytes().startswith(b"\x89PNG")
        assert "What each party saw" in stderr
        assert_nothing_left(temporary)


@pytest.mark.slow
class TestFile:
    def test_the_clusters_of_a_file_are_found(self, tmp_path: Path, temporary: Path) -> None:
        rng = np.random.default_rng(8)
        labels = rng.integers(0, 2, size=6000)
        places = rng.normal(0, 0.5, size=(6000, 2)) + np.where(labels[:, None] == 1, 3.0, -3.0)
        lines = ["left,right,label", *(f"{x},{y},{name}" for (x, y), name in zip(places, labels, strict=True))]
        (tmp_path / "two.csv").write_text("\n".join(lines))
        process = demo(
            *("--data", str(tmp_path / "two.csv"), "--bounds=-6:6,-6:6", "--epsilon", "3", "--clusters", "2"),
            *("--singles", "5", "--json", "--out", str(tmp_path / "out")),
            temporary=temporary,
        )
        stdout, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, stderr
        summary = json.loads(stdout.splitlines()[-1])
        assert summary["reports"] == 6000
        assert summary["epsilon_granted"] == 3.0
        assert summary["ari_vs_labels"] > 0.95
        assert_nothing_left(temporary)


@pytest.mark.slow
class TestInterruption:
    @pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_an_interrupted_demo_stops_its_service(
        self, tmp_path: Path, temporary: Path, number: int, status: int
    ) -> None:
        process = demo("--out", str(tmp_path / "out"), temporary=temporary)
        deadline = time.monotonic() + SECONDS
        while not list(temporary.glob("sfumato-demo-*/url")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == status
        assert "Traceback" not in stderr
        assert_nothing_left(temporary)


class TestKilled:
    def test_the_service_of_a_killed_demo_ends(self, temporary: Path) -> None:
        script = (
            "import time\n"
            "from demo.service import LocalService\n"
            "with LocalService():\n"
            "    print('ready', flush=True)\n"
            "    time.sleep(3600)\n"
        )
        environment = os.environ | {"TMPDIR": str(temporary)}
        with subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            before = list(services(temporary))
            process.kill()
        assert len(before) >= 2  # at least the service and its worker
        assert_ended(temporary)


class TestBadInput:
    OPTIONS = Options(None, 500, 1, Path("demo-out"), None, None, None, 3.0, "")

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"data": Path("nowhere.csv")}, "there is no file nowhere.csv"),
            ({"bounds": "0:1"}, "--bounds requires --data"),
            ({"epsilon": 0}, "epsilon must lie in"),
            ({"trust": "shuffled", "production": True}, "--production cannot be used"),
            ({"clusters": "many"}, "--clusters must be a number or auto"),
        ],
    )
    def test_invalid_options_are_refused(self, options: dict[str, object], sentence: str) -> None:
        with pytest.raises((DemoError, SfumatoError), match=sentence):
            run(replace(self.OPTIONS, **options), Console(quiet=True))  # type: ignore[arg-type]

    def test_too_few_records_are_reported_in_one_sentence(self, tmp_path: Path, temporary: Path) -> None:
        (tmp_path / "few.csv").write_text("a,b\n" + "1,2\n" * 99)
        process = demo("--data", str(tmp_path / "few.csv"), "--bounds", "0:9,0:9", "--json", temporary=temporary)
        stdout, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert stdout == ""
        assert "99 records" in stderr
        assert "Traceback" not in stderr
        assert list(temporary.iterdir()) == []  # no service was started
