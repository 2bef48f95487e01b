"""Named pipes next to the embedded database: a line wakes the reader at once, and a writer never waits."""

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from runtime.change_publisher import PipePublisher, change_pipe, open_change_publisher
from runtime.job_signal import PipeJobSignal, PollingJobSignal, open_job_signal
from runtime.named_pipe import NamedPipe
from runtime.settings import Settings
from tests.models.world import Thread


def seconds(call: Callable[[], Any]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[NamedPipe]:
    """A pipe that is open for reading."""
    created = NamedPipe(tmp_path / "pipe")
    assert created.open() is not None
    yield created
    created.close()


class TestNamedPipe:
    def test_lines_reach_the_reader(self, pipe: NamedPipe, tmp_path: Path) -> None:
        writer = NamedPipe(tmp_path / "pipe")
        writer.write_line("one two")
        writer.write_line("three")
        assert pipe.read_lines() == ["one two", "three"]
        assert pipe.read_lines() == []

    def test_is_accessible_to_its_owner_only(self, pipe: NamedPipe, tmp_path: Path) -> None:
        status = (tmp_path / "pipe").stat()
        assert stat.S_ISFIFO(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600

    def test_line_wakes_a_waiting_reader(self, pipe: NamedPipe, tmp_path: Path) -> None:
        waiting = Thread(lambda: seconds(lambda: pipe.wait(100)))
        time.sleep(0.1)
        NamedPipe(tmp_path / "pipe").write_line("")
        assert waiting.outcome() < 50

    def test_wait_discards_all_lines(self, pipe: NamedPipe) -> None:
        pipe.write_line("")
        pipe.write_line("")
        assert pipe.wait(100)
        assert not pipe.wait(0.05)

    def test_writer_does_not_wait_without_a_reader_or_for_a_full_pipe(self, tmp_path: Path) -> None:
        missing, path = NamedPipe(tmp_path / "none"), tmp_path / "pipe"
        assert seconds(lambda: missing.write_line("x")) < 50
        assert not (tmp_path / "none").exists()
        os.mkfifo(path)
        assert seconds(lambda: NamedPipe(path).write_line("x")) < 50
        full = NamedPipe(path)
        full.open()
        assert seconds(lambda: [full.write_line("x" * 4000) for _ in range(100)]) < 50
        assert 1 <= len(full.read_lines()) < 100
        full.close()

    def test_existing_pipe_is_used_again(self, pipe: NamedPipe, tmp_path: Path) -> None:
        pipe.close()
        again = NamedPipe(tmp_path / "pipe")
        again.open()
        pipe.write_line("x")
        assert again.read_lines() == ["x"]
        again.close()

    @pytest.mark.parametrize("kind", ["file", "folder", "link", "nowhere"])
    def test_failure_to_create_it_is_logged_once_and_changes_no_file(self, tmp_path: Path, kind: str) -> None:
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
        with capture_logs() as lines:
            assert [other.open(), other.open()] == [None, None]
            other.write_line("x")
        assert [line["event"] for line in lines] == ["named_pipe_failed"]
        assert (other.read_lines(), other.wait(100)) == ([], False)
        assert all(each.read_text() == "mine" for each in tmp_path.iterdir() if each.is_file())


class TestPipeJobSignal:
    def test_wakes_a_worker_of_the_same_database(self, tmp_path: Path) -> None:
        file = tmp_path / "sfumato.db"
        signal, other = open_job_signal(None, 60, file), open_job_signal(None, 60, file)
        assert isinstance(signal, PipeJobSignal)
        signal.wait(0)  # creates the pipe
        waiting = Thread(lambda: seconds(lambda: signal.wait(60)))
        other.notify("job_1")
        assert waiting.outcome() < 30

    @pytest.mark.parametrize("folder", ["", "no"])
    def test_wait_lasts_one_polling_interval(self, tmp_path: Path, folder: str) -> None:
        signal = open_job_signal(None, 0.05, tmp_path / folder / "sfumato.db")
        assert 0.05 <= seconds(lambda: signal.wait(100)) < 50
        if folder:  # no pipe can be created there
            assert seconds(lambda: signal.notify("job_1")) < 50

    def test_workers_of_a_remote_database_poll(self) -> None:
        assert isinstance(open_job_signal(None, 0.05, None), PollingJobSignal)


class TestPipePublisher:
    def test_ids_reach_the_gateway(self, tmp_path: Path) -> None:
        file = tmp_path / "sfumato.db"
        reader = change_pipe(file)
        reader.open()
        publisher = open_change_publisher(None, file)
        assert isinstance(publisher, PipePublisher)
        assert publisher.is_available
        publisher.publish("job_1", "ds_1")
        assert [line.split(" ")[1:] for line in reader.read_lines()] == [["job_1", "ds_1"]]
        reader.close()

    def test_many_ids_arrive_in_whole_lines(self, tmp_path: Path) -> None:
        reader = change_pipe(tmp_path / "sfumato.db")
        reader.open()
        ids = [f"job_{n:026d}" for n in range(950)]
        writing = threading.Thread(target=open_change_publisher(None, tmp_path / "sfumato.db").publish, args=ids)
        writing.start()
        writing.join()
        assert [each for line in reader.read_lines() for each in line.split(" ")[1:]] == ids
        reader.close()


class TestDatabaseFile:
    def test_exists_for_an_embedded_database_only(self, tmp_path: Path) -> None:
        assert Settings(home=tmp_path).database_file == tmp_path.resolve() / "sfumato.db"
        assert Settings(database_url="sqlite:////a/b.db?x=1").database_file == Path("/a/b.db")
        assert Settings(database_url="sqlite:///:memory:").database_file is None
        assert Settings(database_url="sqlite://").database_file is None
        assert Settings(database_url="postgresql+psycopg://u@h/d").database_file is None
