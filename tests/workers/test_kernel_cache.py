"""An image contains kernels that were compiled for an architecture level. Workers on other machines load them."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.processes import ROOT
from workers.kernels import cache

LEVEL = "x86-64-v3"
FLAGS = sorted(cache._LEVELS["x86_64"][1])

# Warm up as a job process does. Print how often each kernel was compiled, and how often it was loaded.
CHILD = """
import json, sys
from numba.core.dispatcher import Dispatcher
from runtime.logging import configure_logging
from workers import job_process
configure_logging()
job_process._load_algorithms()
for _ in job_process._compile_kernels():
    pass
kernels = {}
for name, module in sorted(sys.modules.items()):
    if name.split(".")[0] in ("clustering", "workers"):
        for each in vars(module).values():
            if isinstance(each, Dispatcher):
                misses, hits = each.stats.cache_misses, each.stats.cache_hits
                kernels[f"{each.__module__}.{each.__name__}"] = [sum(misses.values()), sum(hits.values())]
json.dump(kernels, sys.stdout)
"""

SMALL_KERNEL = """
import numba

@numba.njit(cache=True)
def double(x):
    return x + x

double(1)
"""

# Compile a kernel of this folder into an image's folder, or load it from there. Print the numbers of compilations.
SMALL_CHILD = """
import os, sys
from pathlib import Path
from workers.kernels import cache
getattr(cache, sys.argv[1])(os.environ, folder=Path(sys.argv[2]))
import small_kernel
print(sum(small_kernel.double.stats.cache_misses.values()), sum(small_kernel.double.stats.cache_hits.values()))
"""


def run_python(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run Python without the numba settings of this environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return subprocess.run(
        [sys.executable, *arguments], env=environment | more, cwd=ROOT, capture_output=True, text=True
    )


def foreign_indices(folder: Path) -> list[str]:
    """Return the kernel indices that do not name the level, so that other machines of the family ignore them."""
    indices = list(folder.rglob("*.nbi"))
    assert indices
    return [file.name for file in indices if LEVEL.encode() not in file.read_bytes()]


def test_a_kernel_of_the_image_is_loaded_and_not_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "small_kernel.py").write_text(SMALL_KERNEL)
    image, own = str(tmp_path / "image"), str(tmp_path / "cache")
    path = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "sdk" / "python")])
    for function, expected in (("compile_portably", ["1", "0"]), ("install_kernels", ["0", "1"])):
        process = run_python("-c", SMALL_CHILD, function, image, **{"PYTHONPATH": path, cache.CACHE: own})
        assert process.stdout.split() == expected, process.stderr
    assert foreign_indices(Path(image)) == []


@pytest.mark.parametrize("has_folder", [True, False])
def test_kernels_are_compiled_in_memory_without_a_cache_folder(tmp_path: Path, has_folder: bool) -> None:
    """Root can write to any folder. So the child gives numba no folder to search."""
    (tmp_path / "small_kernel.py").write_text(SMALL_KERNEL)
    path = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "sdk" / "python")])
    locators = "" if has_folder else "numba.core.caching.CacheImpl._locator_classes = []"
    child = f"""
import numba.core.caching
{locators}
from workers.kernels import cache
print(cache.compile_in_memory_without_cache())
import small_kernel
print(small_kernel.double(2))
"""
    process = run_python("-c", child, **{"PYTHONPATH": path, cache.CACHE: str(tmp_path / "cache")})
    *_, in_memory, result = process.stdout.split("\n")[:-1]
    assert (in_memory, result) == (str(not has_folder), "4"), process.stderr
    assert ("kernels_not_cached" in process.stdout + process.stderr) is not has_folder
    assert any((tmp_path / "cache").rglob("small_kernel*.nbi")) is has_folder


@pytest.fixture(scope="module")
def complete_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the kernels as the image does."""
    folder = tmp_path_factory.mktemp("image") / "kernels"
    process = run_python("-P", "-m", "service.cli", "worker", "--warm", "--into", str(folder))
    assert process.returncode == 0, process.stderr
    return folder


@pytest.mark.release
class TestAllKernels:
    def test_a_process_that_installs_them_compiles_nothing(self, complete_image: Path, tmp_path: Path) -> None:
        environment = {cache.CACHE: str(tmp_path / "cache")}
        assert cache.install_kernels(environment, complete_image)
        process = run_python("-c", CHILD, **environment)
        assert process.returncode == 0, process.stderr
        kernels = json.loads(process.stdout)
        assert {name: n_compiled for name, (n_compiled, _) in kernels.items() if n_compiled} == {}
        assert sum(n_loaded for _, n_loaded in kernels.values()) > 20

    def test_a_missing_kernel_is_compiled(self, complete_image: Path, tmp_path: Path) -> None:
        """The test above fails if the image lacks a kernel."""
        environment = {cache.CACHE: str(tmp_path / "cache")}
        assert cache.install_kernels(environment, complete_image)
        (lost,) = (folder for folder in (tmp_path / "cache").iterdir() if folder.name.startswith("aggregation_"))
        shutil.rmtree(lost)
        kernels = json.loads(run_python("-c", CHILD, **environment).stdout)
        assert {name.split(".")[0] for name, (n_compiled, _) in kernels.items() if n_compiled} == {"workers"}

    def test_they_name_the_level_and_not_the_machine_that_compiled_them(self, complete_image: Path) -> None:
        assert len(list(complete_image.rglob("*.nbi"))) > 20
        assert foreign_indices(complete_image) == []


class TestInstallKernels:
    @pytest.fixture
    def image(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Create the kernels of an image, on a machine that supports them."""
        (tmp_path / "kernels" / "a").mkdir(parents=True)
        (tmp_path / "kernels" / "a" / "k.nbi").write_bytes(b"shipped")
        monkeypatch.setattr(cache.platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(cache, "_instructions", lambda: frozenset(FLAGS))
        return tmp_path / "kernels"

    @pytest.fixture
    def environment(self, tmp_path: Path) -> dict[str, str]:
        return {cache.CACHE: str(tmp_path / "cache")}

    @staticmethod
    def assert_unchanged(environment: dict[str, str], folder: Path) -> None:
        before = dict(environment)
        assert not cache.install_kernels(environment, folder)
        assert environment == before

    def test_copies_them_to_the_cache_folder(self, image: Path, environment: dict[str, str], tmp_path: Path) -> None:
        assert cache.install_kernels(environment, image)
        assert environment[cache.CPU_NAME] == LEVEL
        files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
        assert files == [tmp_path / "cache" / "a" / "k.nbi"]

    def test_keeps_kernels_that_this_machine_compiled(
        self, image: Path, environment: dict[str, str], tmp_path: Path
    ) -> None:
        own = tmp_path / "cache" / "a" / "k.nbi"
        own.parent.mkdir(parents=True)
        own.write_bytes(b"compiled here")
        assert cache.install_kernels(environment, image)
        assert own.read_bytes() == b"compiled here"

    def test_changes_nothing_on_a_machine_without_one_of_the_instructions(
        self, image: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for missing in FLAGS:
            monkeypatch.setattr(cache, "_instructions", lambda missing=missing: frozenset(FLAGS) - {missing})
            self.assert_unchanged(environment, image)
        monkeypatch.setattr(cache, "_instructions", frozenset[str])
        assert not cache.compile_portably(environment, image)

    def test_changes_nothing_on_another_architecture(
        self, image: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache.platform, "machine", lambda: "riscv64")
        self.assert_unchanged(environment, image)

    @pytest.mark.parametrize("name", [cache.CPU_NAME, cache.CPU_FEATURES])
    def test_keeps_the_processor_that_the_operator_chose(
        self, image: Path, environment: dict[str, str], name: str
    ) -> None:
        self.assert_unchanged({**environment, name: "generic"}, image)

    def test_changes_nothing_without_kernels_or_without_a_usable_cache_folder(
        self, image: Path, environment: dict[str, str], tmp_path: Path
    ) -> None:
        self.assert_unchanged({}, image)
        self.assert_unchanged(environment, image / "none")
        (tmp_path / "cache").write_text("a file")
        self.assert_unchanged(environment, image)


class TestImage:
    def test_the_option_into_requires_warm(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["workers", "--into", "x"])
        monkeypatch.delitem(sys.modules, "workers.__main__", raising=False)
        with pytest.raises(SystemExit, match="2"):
            runpy.run_module("workers", run_name="__main__")
        assert "--into requires --warm" in capsys.readouterr().err

    def test_is_built_with_the_kernels(self) -> None:
        text = (ROOT / "Dockerfile").read_text()
        assert "sfumato worker --warm --into /opt/sfumato/share/sfumato/kernels" in text
        assert "NUMBA_CACHE_DIR=" in text.split("FROM")[-1]
        assert cache.shipped_folder().relative_to(sys.prefix) == Path("share/sfumato/kernels")
