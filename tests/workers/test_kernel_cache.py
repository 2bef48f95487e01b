"""Kernels that come with an installation: compiled once for a family of machines, found by the worker of another."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.processes import ROOT
from workers import kernel_cache

LEVEL = "x86-64-v3"
FLAGS = sorted(kernel_cache._LEVELS["x86_64"][1])

# As a worker's child: warm up, and say of every kernel how often it was compiled and how often it was loaded.
CHILD = """
import json, sys
from numba.core.dispatcher import Dispatcher
from workers import child
from workers.process import log_to_stderr
log_to_stderr()
child._warm()
kernels = {}
for name, module in sorted(sys.modules.items()):
    if name.split(".")[0] in ("clustering", "workers"):
        for each in vars(module).values():
            if isinstance(each, Dispatcher):
                told = each.stats
                kernels[f"{each.__module__}.{each.__name__}"] = [
                    sum(told.cache_misses.values()), sum(told.cache_hits.values())
                ]
json.dump(kernels, sys.stdout)
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image is built with."""
    folder = tmp_path_factory.mktemp("image") / "kernels"
    done = _run("-P", "-m", "service.cli", "worker", "--warm", "--into", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def _run(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    nobodys = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return subprocess.run([sys.executable, *arguments], env=nobodys | more, cwd=ROOT, capture_output=True, text=True)


class TestShippedKernels:
    def test_a_process_that_begins_with_them_compiles_nothing(self, shipped: Path, tmp_path: Path) -> None:
        environment = {kernel_cache.CACHE: str(tmp_path / "cache")}
        assert kernel_cache.use(environment, shipped)
        done = _run("-c", CHILD, **environment)
        assert done.returncode == 0, done.stderr
        kernels = json.loads(done.stdout)
        assert {name: n for name, (n, _) in kernels.items() if n} == {}
        assert sum(loaded for _, loaded in kernels.values()) > 20

    def test_the_guard_sees_a_kernel_that_is_missing(self, shipped: Path, tmp_path: Path) -> None:
        environment = {kernel_cache.CACHE: str(tmp_path / "cache")}
        assert kernel_cache.use(environment, shipped)
        (lost,) = (folder for folder in (tmp_path / "cache").iterdir() if folder.name.startswith("workers_"))
        shutil.rmtree(lost)
        kernels = json.loads(_run("-c", CHILD, **environment).stdout)
        assert {name.split(".")[0] for name, (n, _) in kernels.items() if n} == {"workers"}

    def test_they_are_for_every_machine_of_the_family(self, shipped: Path) -> None:
        """The index of each kernel names the level alone, nothing of the machine that compiled it."""
        indices = list(shipped.rglob("*.nbi"))
        assert len(indices) > 20
        assert [file.name for file in indices if LEVEL.encode() not in file.read_bytes()] == []


class TestUse:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Something that was shipped, on a machine that can use it."""
        (tmp_path / "kernels" / "a").mkdir(parents=True)
        (tmp_path / "kernels" / "a" / "k.nbi").write_bytes(b"shipped")
        monkeypatch.setattr(kernel_cache.platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(kernel_cache, "_instructions", lambda: frozenset(FLAGS))
        return tmp_path / "kernels"

    def test_they_are_copied_to_where_numba_may_write(self, folder: Path, tmp_path: Path) -> None:
        environment = {kernel_cache.CACHE: str(tmp_path / "cache")}
        assert kernel_cache.use(environment, folder)
        assert environment[kernel_cache.CPU_NAME] == LEVEL
        assert [str(f.relative_to(tmp_path)) for f in (tmp_path / "cache").rglob("*") if f.is_file()] == [
            "cache/a/k.nbi"
        ]

    def test_what_was_compiled_since_stays(self, folder: Path, tmp_path: Path) -> None:
        kept = tmp_path / "cache" / "a" / "k.nbi"
        kept.parent.mkdir(parents=True)
        kept.write_bytes(b"compiled here")
        assert kernel_cache.use({kernel_cache.CACHE: str(tmp_path / "cache")}, folder)
        assert kept.read_bytes() == b"compiled here"

    @pytest.mark.parametrize("lacking", FLAGS)
    def test_a_machine_that_lacks_an_instruction_compiles_its_own(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
    ) -> None:
        monkeypatch.setattr(kernel_cache, "_instructions", lambda: frozenset(FLAGS) - {lacking})
        self.changes_nothing({kernel_cache.CACHE: str(tmp_path / "cache")}, folder)

    def test_so_does_one_of_another_family(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernel_cache.platform, "machine", lambda: "riscv64")
        self.changes_nothing({kernel_cache.CACHE: str(tmp_path / "cache")}, folder)

    @pytest.mark.parametrize("name", [kernel_cache.CPU_NAME, kernel_cache.CPU_FEATURES])
    def test_what_an_operator_chose_holds(self, folder: Path, tmp_path: Path, name: str) -> None:
        self.changes_nothing({kernel_cache.CACHE: str(tmp_path / "cache"), name: "generic"}, folder)

    def test_without_a_cache_of_its_own_nothing_is_copied(self, folder: Path) -> None:
        self.changes_nothing({}, folder)

    def test_without_shipped_kernels_nothing_is_changed(self, folder: Path, tmp_path: Path) -> None:
        self.changes_nothing({kernel_cache.CACHE: str(tmp_path / "cache")}, folder / "none")

    def test_where_they_cannot_be_copied_they_are_compiled(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("a file")
        self.changes_nothing({kernel_cache.CACHE: str(tmp_path / "cache")}, folder)

    @staticmethod
    def changes_nothing(environment: dict[str, str], folder: Path) -> None:
        before = dict(environment)
        assert not kernel_cache.use(environment, folder)
        assert environment == before


class TestCommand:
    def test_into_goes_with_warm(self) -> None:
        done = _run("-P", "-m", "service.cli", "worker", "--into", "x")
        assert (done.returncode, done.stdout) == (2, "")
        assert "--into goes with --warm" in done.stderr

    def test_a_machine_of_no_known_family_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernel_cache, "_instructions", frozenset[str])
        environment: dict[str, str] = {}
        assert not kernel_cache.portable(environment, tmp_path)
        assert environment == {}

    def test_the_image_is_built_with_them(self) -> None:
        text = (ROOT / "Dockerfile").read_text()
        assert "sfumato worker --warm --into /opt/sfumato/share/sfumato/kernels" in text
        assert "NUMBA_CACHE_DIR=" in text.split("FROM")[-1]
        assert kernel_cache.shipped().relative_to(sys.prefix) == Path("share/sfumato/kernels")
