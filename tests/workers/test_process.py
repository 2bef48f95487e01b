"""A worker's process returns the memory that it frees."""

import ctypes
import os
import subprocess
import sys

import pytest

from runtime.process import WORKER_KEPT_BYTES, keep_freed_memory
from tests.workers.processes import ROOT

PAGES = """
import resource, sys
from runtime.process import WORKER_KEPT_BYTES, keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory(WORKER_KEPT_BYTES)
for _ in range(3):
    bytearray(b"x" * (4 << 20))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    bytearray(b"x" * (4 << 20))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str) -> int:
    """Pages waited for, under the setting that Dask gives its workers."""
    environment = {
        **os.environ,
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/sdk/python",
    }
    done = subprocess.run(
        [sys.executable, "-c", PAGES, way], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


class TestFreedMemory:
    def test_is_kept_for_the_next_page_of_a_log(self) -> None:
        assert faults("keep") < 1000 < faults("leave")

    def test_is_left_alone_where_there_is_another_allocator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[object] = []

        def another(name: object) -> object:
            asked.append(name)
            return object()

        monkeypatch.setattr(ctypes, "CDLL", another)
        keep_freed_memory(WORKER_KEPT_BYTES)
        assert asked == [None]
