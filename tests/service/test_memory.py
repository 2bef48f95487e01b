"""The gateway's allocator keeps what was freed, so that large bodies do not fault in new memory each time."""

import ctypes
import subprocess
import sys

import pytest

from service import memory
from tests.workers.processes import ROOT

# Page faults of taking and giving back 2 MB twenty times, as checking and packing a body does.
FAULTS = """
import resource, sys
import numpy as np
from service import memory
if sys.argv[1] == "kept":
    assert memory.keep_freed()

def pack():
    np.ones(100_000, dtype="V21").tobytes()

pack()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    pack()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_large_bodies_find_the_memory_of_those_before() -> None:
    assert faults("kept") < 200
    assert faults("as it is") > 1000  # else there is nothing to be told to this allocator


def test_another_allocator_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    assert not memory.keep_freed()
