"""The documents are true: everything a user meets is in them, and the README's walk-through runs word for word."""

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from models.settings import Settings
from service import problems
from sfumato.specs import ALGORITHMS, MECHANISMS

ROOT = Path(__file__).parent.parent
START_SECONDS = 600


def read(name: str) -> str:
    return (ROOT / name).read_text()


class TestEverythingIsDocumented:
    @pytest.mark.parametrize("field", sorted(Settings.model_fields))
    def test_every_setting_stands_in_operations(self, field: str) -> None:
        assert f"`SFUMATO_{field.upper()}`" in read("docs/operations.md")

    def test_no_setting_is_documented_that_is_not_there(self) -> None:
        named = set(re.findall(r"`SFUMATO_([A-Z_]+)`", read("docs/operations.md")))
        assert named == {field.upper() for field in Settings.model_fields}

    def test_every_problem_code_stands_in_errors_with_its_status(self) -> None:
        table = dict(re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", read("docs/errors.md"), flags=re.MULTILINE))
        assert table == {code: str(status) for code, status in problem_statuses().items()}

    @pytest.mark.parametrize("tag", sorted(ALGORITHMS))
    def test_every_algorithm_and_parameter_is_described(self, tag: str) -> None:
        sections = re.split(r"^## ", read("docs/algorithms.md"), flags=re.MULTILINE)
        (section,) = [section for section in sections if section.startswith(f"`{tag}`")]
        for parameter in fields(ALGORITHMS[tag]):
            assert f"| `{parameter.name}` |" in section

    @pytest.mark.parametrize("tag", sorted(MECHANISMS))
    def test_every_mechanism_and_what_it_publishes_is_described(self, tag: str) -> None:
        sections = re.split(r"^## ", read("docs/mechanisms.md"), flags=re.MULTILINE)
        (section,) = [section for section in sections if section.startswith(f"`{tag}`")]
        for field in fields(MECHANISMS[tag]):
            assert field.name == "n_symbols" or f"`{field.name}`" in section

    def test_every_command_stands_in_operations(self) -> None:
        text = read("docs/operations.md")
        for command in commands():
            assert re.search(rf"`sfumato {command}[` ]", text)

    @pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
    def test_every_link_leads_somewhere(self, page: str) -> None:
        links = [link for link in re.findall(r"\]\(([^)#]+)\)", read(page)) if "://" not in link]
        missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
        assert missing == []


def problem_statuses() -> dict[str, int]:
    return {kind.code: kind.status for kind in problems.ALL_PROBLEMS}


def commands() -> list[str]:
    out = subprocess.run(
        [sys.executable, "-m", "service.cli", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"},
    ).stdout
    found = re.findall(r"^[│ ] (?:\s*)([a-z]+)\s{2,}\S", out, flags=re.MULTILINE)
    assert len(found) >= 8
    return found


def shell_blocks() -> list[str]:
    """The README's walk-through: every shell block of the curl section but the one that starts the service."""
    section = read("README.md").split("## First steps with curl")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    assert blocks[0].strip() == "make serve"
    return blocks[1:]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    """A directory like a fresh checkout, with the service of `make serve` in it, its worker warm.

    The walk-through waits for a job for half a minute, which does not suffice where its
    worker has everything to compile first, on a machine that others use too.
    """
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    log = tmp_path / "service.log"
    with log.open("wb") as said:
        service = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "serve", "--port", "0"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ((tmp_path / ".sfumato" / "url").exists() and "child_ready" in log.read_text()):
            assert service.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield tmp_path
    finally:
        service.terminate()
        service.wait(timeout=120)


PLACES = [(2, 3), (5, 8), (7, 2)]  # of the walk-through's people


def nearest(centroid: list[float]) -> tuple[int, int]:
    return min(PLACES, key=lambda place: math.dist(place, centroid))


@pytest.mark.timeout(900)
class TestTheReadme:
    def test_its_walk_through_runs_word_for_word(self, served: Path) -> None:
        port = (served / ".sfumato" / "url").read_text().strip().rsplit(":", 1)[1]
        script = "\n".join(shell_blocks()).replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=served, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        result = json.loads((served / "result.json").read_text())
        assert result["rounds"][0]["n_reports"] == 20_001
        assert result["model"]["n_clusters"] == 3
        # The noise is real: no two runs agree, and now and then a centroid is off by a kilometre.
        assert sorted(nearest(place) for place in result["model"]["centroids"]) == PLACES
        assert "of people around" in done.stdout
        central = json.loads((served / "central.json").read_text())
        for place, truth in zip(sorted(central["model"]["centroids"]), PLACES, strict=True):
            assert place == pytest.approx(truth, abs=0.3)
        assert central["epsilon"] == 0.1
        assert (served / "plot.svg").read_text().lstrip().startswith("<?xml")
