"""With PostgreSQL every process has the server's time, and with SQLite the time of its machine."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import event, text

from models.collection import aggregation_leases
from models.database import engine
from models.database.engine import Database
from models.database.types import READ_SECONDS, SECOND, SLOW_SECONDS, ServerClock
from models.jobs import claims, lifecycle
from tests.databases import on_postgresql, on_sqlite
from tests.models.world import LEASE, World

QUARTER = 900 * SECOND
NEAR = 60 * SECOND  # on a machine with much else to do


@contextmanager
def elsewhere(database: Database, monkeypatch: pytest.MonkeyPatch, ahead: int) -> Iterator[Database]:
    """Open the database in a process with a clock that is ahead by the given time."""
    with monkeypatch.context() as patch:
        patch.setattr(engine, "system_clock", lambda: time.time_ns() // 1000 + ahead)
        other = Database(database.engine.url.render_as_string(hide_password=False), pool_size=1)
    with closing(other):
        yield other


def seen(database: Database) -> int:
    """Its clock once it has spoken to the server."""
    with database.reading():
        return database.clock()


class Machine:
    """A monotonic clock that a test moves, by so much at every statement, too."""

    def __init__(self) -> None:
        self.seconds, self.statement_seconds, self.n_asked = 1000.0, 0.0, 0

    def __call__(self) -> float:
        return self.seconds

    def ask(self, *_event: object) -> None:
        self.n_asked += 1
        self.seconds += self.statement_seconds


@pytest.fixture
def machine(database: Database) -> Iterator[Machine]:
    """Return the clock of a database in a process with machine time 0."""
    made = Machine()
    database.clock = ServerClock(lambda: 0, made)
    event.listen(database.engine, "before_cursor_execute", made.ask)
    yield made
    event.remove(database.engine, "before_cursor_execute", made.ask)


class TestTime:
    @on_postgresql
    @pytest.mark.parametrize("ahead", [QUARTER, -QUARTER], ids=["ahead", "behind"])
    def test_is_the_servers_for_every_process(
        self, database: Database, monkeypatch: pytest.MonkeyPatch, ahead: int
    ) -> None:
        with elsewhere(database, monkeypatch, ahead) as other:
            first, between, last = seen(database), seen(other), seen(database)
            assert first - NEAR < between < last + NEAR
            with database.reading() as session:
                told = session.scalar(text("SELECT now()"))
            assert told is not None
            assert abs(told.timestamp() * SECOND - between) < NEAR

    @on_sqlite
    def test_is_the_machines_without_a_server(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        with elsewhere(database, monkeypatch, QUARTER) as other:
            assert seen(database) + QUARTER - NEAR < seen(other) < seen(database) + QUARTER + NEAR

    def test_is_the_one_that_was_given(self, database: Database) -> None:
        given = Database(database.engine.url.render_as_string(hide_password=False), clock=lambda: 7)
        with closing(given):
            assert seen(given) == 7

    @on_postgresql
    @pytest.mark.usefixtures("machine")
    def test_is_the_machines_before_the_server_was_asked(self, database: Database) -> None:
        assert database.clock() == 0
        assert abs(seen(database) - time.time_ns() // 1000) < NEAR


class TestReadings:
    @on_postgresql
    def test_go_on_by_the_monotonic_clock_and_are_renewed(self, database: Database, machine: Machine) -> None:
        first = seen(database)
        machine.seconds += READ_SECONDS * 0.9
        assert (seen(database), machine.n_asked) == (first + round(READ_SECONDS * 0.9 * SECOND), 1)
        machine.seconds += 3600  # this machine slept, or its clock is no good
        assert first <= seen(database) < first + NEAR
        assert machine.n_asked == 2

    @on_postgresql
    def test_that_took_long_are_left_out_where_there_is_a_better_one(
        self, database: Database, machine: Machine
    ) -> None:
        first = seen(database)
        machine.seconds += 3600
        machine.statement_seconds = SLOW_SECONDS * 2
        assert seen(database) == first + 3602 * SECOND
        machine.statement_seconds = 0.0
        assert first <= seen(database) < first + NEAR

    @on_postgresql
    def test_that_took_long_are_better_than_none(self, database: Database, machine: Machine) -> None:
        machine.statement_seconds = SLOW_SECONDS * 2
        assert abs(seen(database) - time.time_ns() // 1000) < NEAR


class TestAProcessWhoseClockIsAhead:
    """Its rows have times of the same clock that readers use."""

    @on_postgresql
    def test_leaves_a_cancelled_jobs_round_to_be_folded_at_once(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.now = seen(world.database)
        queued = world.submit(world.new_dataset())
        opened = world.open_for(world.claimed())
        with elsewhere(world.database, monkeypatch, QUARTER) as gateway, gateway.transaction() as session:
            lifecycle.cancel(session, world.caller, queued.id, now=gateway.clock())

        with world.database.transaction() as session:
            now = world.database.clock() + LEASE
            assert (
                aggregation_leases.claim_aggregation(session, now=now, lease_microseconds=LEASE, max_attempts=5)
                == opened.id
            )

    @on_postgresql
    def test_holds_a_job_no_longer_than_its_lease(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        world.now = seen(world.database)
        queued = world.submit(world.new_dataset())
        with elsewhere(world.database, monkeypatch, QUARTER) as worker, worker.transaction() as session:
            assert claims.claim(session, now=worker.clock(), lease_microseconds=LEASE, max_attempts=5) is not None

        world.now = world.database.clock() + LEASE
        held = world.claimed()
        assert (held.job_id, held.fence) == (queued.id, 2)
