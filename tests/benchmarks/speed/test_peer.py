"""Other people's functions in a process of their own: what goes there, what comes back, how it ends."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.peer import COMMAND, Peer, PeerFailed
from benchmarks.speed.row import Missing

FUNCTIONS = """
import os, sys, time
import numpy as np

held = []

def both(a, b, *, scale=1.0):
    print("this is no answer")
    return scale * (a + b)

def parts(a):
    return a[:1], np.asarray(len(a))

def plain(a, *, seconds):
    time.sleep(seconds)
    held.append(len(a))
    return {"calls": held, "threads": os.environ["OMP_NUM_THREADS"]}

def wrong(a):
    raise ValueError("no such thing")

def gone():
    os._exit(3)
"""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    """This Python's own, with a few functions."""
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    with Peer(path, threads=2, python=Path(sys.executable)) as started:
        yield started


class TestAPeer:
    def test_is_sent_arrays_once_and_answers_with_arrays(self, peer: Peer) -> None:
        peer.send("a", np.arange(3.0))
        peer.send("b", np.ones(3, dtype=np.float32))
        assert peer.call("both", "a", "b", scale=2.0).value.tolist() == [2.0, 4.0, 6.0]
        first, n = peer.call("parts", "a").value
        assert (first.tolist(), int(n)) == ([0.0], 3)
        peer.send("a", np.zeros(1))
        assert peer.call("both", "a", "a").value.tolist() == [0.0]

    def test_measures_the_function_and_keeps_its_state(self, peer: Peer) -> None:
        peer.send("a", np.zeros(5))
        peer.call("plain", "a", seconds=0.0)
        answer = peer.call("plain", "a", seconds=0.2)
        assert answer.value == {"calls": [5, 5], "threads": "2"}
        assert answer.seconds >= 0.2

    def test_says_what_was_raised_and_goes_on(self, peer: Peer) -> None:
        peer.send("a", np.zeros(2))
        with pytest.raises(PeerFailed, match="ValueError: no such thing"):
            peer.call("wrong", "a")
        with pytest.raises(PeerFailed, match="KeyError"):
            peer.call("no_such_function")
        assert peer.call("both", "a", "a").value.tolist() == [0.0, 0.0]

    def test_that_ended_says_so(self, peer: Peer) -> None:
        with pytest.raises(PeerFailed, match=r"functions\.py ended with status 3"):
            peer.call("gone")

    def test_tells_versions(self, peer: Peer) -> None:
        assert peer.version("numpy") == np.__version__

    def test_leaves_no_process_and_no_file(self, tmp_path: Path) -> None:
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

    def test_whose_environment_was_not_made_says_what_makes_it(self, tmp_path: Path) -> None:
        with pytest.raises(Missing, match=COMMAND):
            Peer(tmp_path / "functions.py", python=tmp_path / "python")
