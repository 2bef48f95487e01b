"""The named pipe beside the embedded database: wakes at once, and never fails or holds up whoever tells."""

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from models.bulletin import PipeBulletin, open_bulletin, pipe_beside
from models.doorbell import PipeDoorbell, PollingDoorbell, open_doorbell
from models.named_pipe import NamedPipe
from models.settings import Settings
from tests.models.world import Thread


def seconds(call: Callable[[], Any]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[NamedPipe]:
    """Somebody listens at it."""
    made = NamedPipe(tmp_path / "pipe")
    assert made.open() is not None
    yield made
    made.close()


class TestAPipe:
    def test_says_lines_to_who_listens(self, pipe: NamedPipe, tmp_path: Path) -> None:
        other = NamedPipe(tmp_path / "pipe")
        other.tell("one two")
        other.tell("three")
        assert pipe.hear() == ["one two", "three"]
        assert pipe.hear() == []

    def test_is_its_owners_alone(self, pipe: NamedPipe, tmp_path: Path) -> None:
        found = (tmp_path / "pipe").stat()
        assert stat.S_ISFIFO(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600

    def test_wakes_who_waits(self, pipe: NamedPipe, tmp_path: Path) -> None:
        waiting = Thread(lambda: seconds(lambda: pipe.wait(100)))
        time.sleep(0.1)
        NamedPipe(tmp_path / "pipe").tell("")
        assert waiting.outcome() < 50

    def test_heard_in_a_wait_is_heard_once(self, pipe: NamedPipe) -> None:
        pipe.tell("")
        pipe.tell("")
        assert pipe.wait(100)
        assert not pipe.wait(0.05)

    def test_that_nobody_listens_at_or_that_is_full_holds_nobody_up(self, tmp_path: Path) -> None:
        lonely, path = NamedPipe(tmp_path / "none"), tmp_path / "pipe"
        assert seconds(lambda: lonely.tell("x")) < 50
        assert not (tmp_path / "none").exists()
        os.mkfifo(path)
        assert seconds(lambda: NamedPipe(path).tell("x")) < 50
        full = NamedPipe(path)
        full.open()
        assert seconds(lambda: [full.tell("x" * 4000) for _ in range(100)]) < 50
        assert 1 <= len(full.hear()) < 100
        full.close()

    def test_outlives_who_listened_before(self, pipe: NamedPipe, tmp_path: Path) -> None:
        pipe.close()
        again = NamedPipe(tmp_path / "pipe")
        again.open()
        pipe.tell("x")
        assert again.hear() == ["x"]
        again.close()

    @pytest.mark.parametrize("kind", ["file", "folder", "link", "nowhere"])
    def test_that_cannot_be_is_told_once_and_touches_nothing(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "pipe"
        if kind == "file":
            path.write_text("mine")
        elif kind == "folder":
            path.mkdir()
        elif kind == "link":
            (tmp_path / "target").write_text("mine")
            path.symlink_to(tmp_path / "target")
        else:
            path = tmp_path / "no" / "pipe"
        other = NamedPipe(path)
        with capture_logs() as said:
            assert [other.open(), other.open()] == [None, None]
            other.tell("x")
        assert [each["event"] for each in said] == ["no_named_pipe"]
        assert (other.hear(), other.wait(100)) == ([], False)
        assert all(each.read_text() == "mine" for each in tmp_path.iterdir() if each.is_file())


class TestTheDoorbell:
    def test_wakes_a_worker_of_the_same_database(self, tmp_path: Path) -> None:
        file = tmp_path / "sfumato.db"
        bell, other = open_doorbell(None, 60, file), open_doorbell(None, 60, file)
        assert isinstance(bell, PipeDoorbell)
        bell.wait(0)  # from now on it is heard
        waiting = Thread(lambda: seconds(lambda: bell.wait(60)))
        other.ring("job_1")
        assert waiting.outcome() < 30

    def test_that_is_silent_is_one_polling_interval(self, tmp_path: Path) -> None:
        bell = open_doorbell(None, 0.05, tmp_path / "sfumato.db")
        assert 0.05 <= seconds(lambda: bell.wait(100)) < 50

    def test_that_cannot_be_is_polling(self, tmp_path: Path) -> None:
        bell = open_doorbell(None, 0.05, tmp_path / "no" / "sfumato.db")
        assert seconds(lambda: bell.ring("job_1")) < 50
        assert 0.05 <= seconds(lambda: bell.wait(100)) < 50

    def test_of_a_database_elsewhere_is_polling(self) -> None:
        assert isinstance(open_doorbell(None, 0.05, None), PollingDoorbell)


class TestTheBulletin:
    def test_says_ids_to_a_gateway(self, tmp_path: Path) -> None:
        file = tmp_path / "sfumato.db"
        heard = pipe_beside(file)
        heard.open()
        teller = open_bulletin(None, file)
        assert isinstance(teller, PipeBulletin)
        assert not teller.is_away
        teller.tell("job_1", "ds_1")
        assert [line.split(" ")[1:] for line in heard.hear()] == [["job_1", "ds_1"]]
        heard.close()

    def test_of_many_ids_comes_in_whole_lines(self, tmp_path: Path) -> None:
        heard = pipe_beside(tmp_path / "sfumato.db")
        heard.open()
        ids = [f"job_{n:026d}" for n in range(950)]
        told = threading.Thread(target=open_bulletin(None, tmp_path / "sfumato.db").tell, args=ids)
        told.start()
        told.join()
        assert [each for line in heard.hear() for each in line.split(" ")[1:]] == ids
        heard.close()


class TestTheFile:
    def test_is_that_of_an_embedded_database_alone(self, tmp_path: Path) -> None:
        assert Settings(home=tmp_path).database_file == tmp_path.resolve() / "sfumato.db"
        assert Settings(database_url="sqlite:////a/b.db?x=1").database_file == Path("/a/b.db")
        assert Settings(database_url="sqlite:///:memory:").database_file is None
        assert Settings(database_url="sqlite://").database_file is None
        assert Settings(database_url="postgresql+psycopg://u@h/d").database_file is None
