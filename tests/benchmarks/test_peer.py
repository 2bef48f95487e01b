"""Peers: functions in a process of their own, their arguments, results and failures."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.output import MissingTool
from benchmarks.peers.peer import COMMAND, Peer, PeerFailed

FUNCTIONS = """
import os, sys, time
import numpy as np

stored = []

def both(a, b, *, scale=1.0):
    print("this is no answer")
    return scale * (a + b)

def parts(a):
    return a[:1], np.asarray(len(a))

def plain(a, *, seconds):
    time.sleep(seconds)
    stored.append(len(a))
    return {"calls": stored, "threads": os.environ["OMP_NUM_THREADS"]}

def wrong(a):
    raise ValueError("no such thing")

def gone():
    os._exit(3)
"""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    """Yield a peer in this Python with a few functions."""
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    with Peer(path, threads=2, python=Path(sys.executable)) as started:
        yield started


class TestPeer:
    def test_it_stores_arrays_and_returns_arrays(self, peer: Peer) -> None:
        peer.send("a", np.arange(3.0))
        peer.send("b", np.ones(3, dtype=np.float32))
        assert peer.call("both", "a", "b", scale=2.0).value.tolist() == [2.0, 4.0, 6.0]
        first, n = peer.call("parts", "a").value
        assert (first.tolist(), int(n)) == ([0.0], 3)
        peer.send("a", np.zeros(1))
        assert peer.call("both", "a", "a").value.tolist() == [0.0]

    def test_it_measures_the_function_and_keeps_its_state(self, peer: Peer) -> None:
        peer.send("a", np.zeros(5))
        peer.call("plain", "a", seconds=0.0)
        answer = peer.call("plain", "a", seconds=0.2)
        assert answer.value == {"calls": [5, 5], "threads": "2"}
        assert answer.seconds >= 0.2

    def test_an_exception_is_reported_and_the_process_continues(self, peer: Peer) -> None:
        peer.send("a", np.zeros(2))
        with pytest.raises(PeerFailed, match="ValueError: no such thing"):
            peer.call("wrong", "a")
        with pytest.raises(PeerFailed, match="KeyError"):
            peer.call("no_such_function")
        assert peer.call("both", "a", "a").value.tolist() == [0.0, 0.0]

    def test_the_end_of_the_process_is_reported(self, peer: Peer) -> None:
        with pytest.raises(PeerFailed, match=r"functions\.py ended with status 3"):
            peer.call("gone")

    def test_it_returns_versions(self, peer: Peer) -> None:
        assert peer.version("numpy") == np.__version__

    def test_it_leaves_no_process_and_no_file(self, tmp_path: Path) -> None:
        path = tmp_path / "functions.py"
        path.write_text(FUNCTIONS)
        with Peer(path, python=Path(sys.executable)) as started:
            started.send("a", np.zeros(2))
            process, folder = started._process, Path(started._folder.name)
            assert process is not None
        assert process.returncode == 0
        assert not folder.exists()
        with pytest.raises(PeerFailed, match="within its `with`"):
            started.call("both")

    def test_a_missing_environment_has_the_command_that_creates_it(self, tmp_path: Path) -> None:
        with pytest.raises(MissingTool, match=COMMAND):
            Peer(tmp_path / "functions.py", python=tmp_path / "python")
