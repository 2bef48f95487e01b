"""`python -m demo` as a person runs it: real service, real devices, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from sfumato.cluster_model import model_from_wire

SECONDS = 800


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the demo puts what is to be gone when it ends."""
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
    """Processes whose home is in there: the service, its worker, the worker's child."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("SFUMATO_HOME", "").startswith(str(temporary)):
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


def assert_ended(temporary: Path) -> None:
    deadline = time.monotonic() + 120  # the worker's child ends with its parent, a moment after it
    while list(services(temporary)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(services(temporary)) == []


def assert_nothing_left(temporary: Path) -> None:
    assert_ended(temporary)
    assert list(temporary.glob("sfumato-demo-*")) == []


@pytest.mark.slow
@pytest.mark.ci
class TestWorld:
    def test_ends_with_clusters_a_ledger_and_pictures(self, tmp_path: Path, temporary: Path) -> None:
        out = tmp_path / "out"
        process = demo("--reports", "20000", "--singles", "20", "--json", "--out", str(out), temporary=temporary)
        stdout, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, stderr
        (line,) = stdout.splitlines()
        told = json.loads(line)
        assert told["reports"] == 20_000
        assert told["singles"] == 20
        assert told["epsilon"] == told["epsilon_granted"] == 2.0
        assert 1.99 < told["epsilon_posted"] <= 2.0
        assert told["ledger_verified"] is True
        assert told["n_clusters"] == 6
        assert -1 <= told["ari_vs_unperturbed"] <= 1
        assert told["seconds"] > 0
        assert "Single devices report" in stderr
        document = json.loads((out / "result.json").read_text())
        model = model_from_wire(document["model"])
        assert model.n_clusters == 6
        assert [entry["kind"] for entry in document["ledger"]][:3] == ["grant", "reserve", "post"]
        assert (out / "map.svg").read_text().startswith("<?xml")
        assert (out / "map.png").read_bytes().startswith(b"\x89PNG")
        assert_nothing_left(temporary)


@pytest.mark.slow
@pytest.mark.ci
class TestFile:
    def test_clusters_of_its_own_are_found_again(self, tmp_path: Path, temporary: Path) -> None:
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
        told = json.loads(stdout.splitlines()[-1])
        assert told["reports"] == 6000
        assert told["epsilon_granted"] == 3.0
        assert told["ari_vs_labels"] > 0.95
        assert_nothing_left(temporary)


@pytest.mark.slow
@pytest.mark.ci
class TestInterruption:
    @pytest.mark.parametrize(("order", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_ends_the_service_too(self, tmp_path: Path, temporary: Path, order: int, status: int) -> None:
        process = demo("--out", str(tmp_path / "out"), temporary=temporary)
        deadline = time.monotonic() + SECONDS
        while not list(temporary.glob("sfumato-demo-*/url")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(order)
        _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == status
        assert "Traceback" not in stderr
        assert_nothing_left(temporary)


class TestKilled:
    def test_takes_its_service_along(self, temporary: Path) -> None:
        script = (
            "import time\n"
            "from demo.own_service import OwnService\n"
            "with OwnService():\n"
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
        assert len(before) >= 2  # the service and its worker at least
        assert_ended(temporary)


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (("--data", "nowhere.csv"), "there is no file nowhere.csv"),
            (("--bounds", "0:1"), "--bounds goes with --data"),
            (("--epsilon", "0"), "epsilon must lie in"),
            (("--clusters", "many"), "--clusters is a number or auto"),
        ],
    )
    def test_is_answered_by_a_sentence(self, temporary: Path, arguments: tuple[str, ...], sentence: str) -> None:
        process = demo(*arguments, "--json", temporary=temporary)
        stdout, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert stdout == ""
        assert sentence in stderr
        assert "Traceback" not in stderr

    def test_too_few_records_are_refused_before_anything_starts(self, tmp_path: Path, temporary: Path) -> None:
        (tmp_path / "few.csv").write_text("a,b\n" + "1,2\n" * 99)
        process = demo("--data", str(tmp_path / "few.csv"), "--bounds", "0:9,0:9", temporary=temporary)
        _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "99 records" in stderr
        assert list(temporary.iterdir()) == []
