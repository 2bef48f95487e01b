"""A job process that dies without a task starts again after a growing delay. No process is started here."""

import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from runtime.settings import Settings
from workers import process_handle
from workers.job_process import AggregationTask, Reply
from workers.process_handle import JobProcessDied, JobProcessHandle

TASK = AggregationTask("rnd_1")


class Clock:
    """The module `time` without waiting."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeProcess:
    """A process as its handle sees it."""

    pid = 1

    def __init__(self) -> None:
        self.pipe, self.far_end = multiprocessing.Pipe()
        self.sentinel, self._alive = multiprocessing.Pipe()
        self.exitcode: int | None = None

    def die(self) -> None:
        self.exitcode = -signal.SIGILL
        self.far_end.close()
        self._alive.close()

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        if self.is_alive():
            self.die()

    def join(self, timeout: float | None = None) -> None:
        """Return at once."""

    def close(self) -> None:
        self.sentinel.close()


class Handle(JobProcessHandle):
    """A handle of fake processes. Each is ready at once."""

    process: FakeProcess

    def _spawn(self) -> None:
        self.process = FakeProcess()
        self._silent_since = process_handle.time.monotonic()
        self._process, self._pipe = self.process, self.process.pipe  # type: ignore[assignment]
        self.far_end.send(Reply.READY)

    @property
    def far_end(self) -> Connection:
        return self.process.far_end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(process_handle, "time", found)
    return found


@pytest.fixture
def handle(clock: Clock) -> Iterator[Handle]:
    found = Handle(Settings(database_url="sqlite://"))
    yield found
    found.kill()


def delay_after_death(handle: Handle, clock: Clock) -> float:
    """Let the idle process die, and return the time until another one is ready."""
    handle.process.die()
    with pytest.raises(JobProcessDied, match=f"exit status {-signal.SIGILL}"):
        handle.ensure_ready(0)
    began = clock.now
    while not handle.ensure_ready(0.25):
        pass
    return clock.now - began


class TestDeathWithoutATask:
    def test_delays_the_next_start_longer_each_time_until_a_task_is_done(self, handle: Handle, clock: Clock) -> None:
        assert handle.ensure_ready(0)
        assert [delay_after_death(handle, clock) for _ in range(6)] == [1, 3, 7, 15, 30, 30]
        assert handle.send(TASK)
        handle.far_end.send(Reply.DONE)
        assert handle.receive(0) == Reply.DONE
        assert delay_after_death(handle, clock) == 1

    def test_during_a_task_delays_nothing(self, handle: Handle, clock: Clock) -> None:
        assert handle.ensure_ready(0)
        assert handle.send(TASK)
        handle.process.die()
        with pytest.raises(JobProcessDied):
            handle.receive(0)
        assert handle.ensure_ready(0)
        assert clock.now == 100
