"""No frequent statement scans a large table. Rows are inserted in bulk, as copies of rows of the service."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, insert, inspect, text
from sqlalchemy.orm import Session

from benchmarks.speed.harness.report_log import new_caller, new_dataset
from models import datasets
from models.collection import report_intake, rounds
from models.database.engine import Database
from models.database.types import SECOND, Base, new_id
from models.identity import audit_trail, keys
from models.jobs import claims, jobs, lifecycle
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.identity import Scope
from models.tables.jobs import JobState
from models.tables.ledger import Kind
from models.tables.rounds import CollectionTarget, RoundState
from sfumato import mechanisms
from sfumato.privacy.accounting import NANO
from sfumato.specs import Feature, GridEncoding, Participation, RoundSpec

FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
SPEC = RoundSpec(FEATURES, GridEncoding((2, 2)), mechanisms.design("grr", 4, NANO), Participation.between(0.0, 1.0))
N_DATASETS = 600
LARGE_ROWS = 500  # scans of smaller tables are faster than an index

_SQLITE_SCAN = re.compile(r"^SCAN (?!CONSTANT ROW)(\w+)(?! USING (COVERING )?INDEX)")
_POSTGRES_SCAN = re.compile(r"Seq Scan on (\w+)")


@pytest.fixture
def operations(database: Database) -> dict[str, Callable[[Session], object]]:
    """Fill a database, and return the frequent operations on one of its datasets."""
    now = database.clock()
    with database.transaction() as session:
        caller = new_caller(session, now)
        dataset = new_dataset(session, caller, FEATURES, now)
        _, secret = keys.create_key(session, caller.tenant_id, name="device", scopes=[Scope.DEVICE], now=now)
        opened = rounds.open_standalone(
            session, caller, dataset, SPEC, CollectionTarget(10**9, 1, 10**6), max_open_rounds=1, now=now
        )
        job = lifecycle.submit(
            session,
            caller,
            dataset,
            lifecycle.NewJob({"type": "uniform_grid", "epsilon": 1}, Amounts(NANO), CollectionTarget(100, 1, 3600)),
            max_active_jobs=1,
            now=now,
        )
        session.flush()
        ids = [new_id("ds") for _ in range(N_DATASETS)]
        session.execute(insert(type(dataset)), [_columns(dataset) | {"id": own, "name": own} for own in ids])
        session.execute(
            insert(type(job)),
            [
                _columns(job) | {"id": new_id("job"), "dataset_id": own, "state": JobState.SUCCEEDED.value}
                for own in ids
            ],
        )
        for state in (RoundState.OPEN, RoundState.TALLIED):
            of_round = {own: new_id("rnd") for own in ids}
            session.execute(
                insert(type(opened)),
                [
                    _columns(opened) | {"id": each, "collection_id": each, "dataset_id": own, "state": state.value}
                    for own, each in of_round.items()
                ],
            )
    if not database.is_sqlite:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    own, round_id = ids[N_DATASETS // 2], opened.id
    return {
        "key lookup": lambda s: keys.authenticate(s, keys.hash_secret(secret), now=now),
        "open rounds of a dataset": lambda s: rounds.list_open(s, own, now=now),
        "a page of datasets": lambda s: datasets.page(s, caller, after=own, limit=50),
        "a page of jobs": lambda s: jobs.page(s, caller, dataset_id=None, after="job_0", limit=50),
        "a dataset's rounds": lambda s: rounds.page(s, own, after="", limit=50),
        "a dataset's jobs": lambda s: jobs.page(s, caller, dataset_id=own, after="", limit=50),
        "jobs by state": lambda s: jobs.page(
            s, caller, dataset_id=None, state="queued", after="job_z", limit=50, newest_first=True
        ),
        "jobs by algorithm and time": lambda s: jobs.page(
            s, caller, dataset_id=None, algorithm="x", created_before=now, after="", limit=50, newest_first=True
        ),
        "ledger entries by kind": lambda s: ledger.page(
            s, own, after_seq=0, limit=50, kind=Kind.GRANT, newest_first=True
        ),
        "audit events by actor": lambda s: audit_trail.page(s, caller.tenant_id, limit=50, actor="x"),
        "audit events by act": lambda s: audit_trail.page(s, caller.tenant_id, limit=50, act="x", newest_first=True),
        "audit events by object": lambda s: audit_trail.page(s, caller.tenant_id, limit=50, subject_id="x"),
        "is any job waiting": lambda s: claims.is_any_waiting(s, now=now),
        "claim": lambda s: claims.claim(s, now=now, lease_microseconds=SECOND, max_attempts=3),
        "rounds past their time": lambda s: rounds.close_due(s, now=now),
        "a group commit": lambda s: report_intake.receive(s, round_id, 1, b"r", now=now),
    }


def _columns(row: Base) -> dict[str, Any]:
    columns = {each.key: getattr(row, each.key) for each in inspect(type(row)).column_attrs}
    return {name: value for name, value in columns.items() if value is not None}


@contextmanager
def recorded_statements(database: Database) -> Iterator[dict[str, Any]]:
    """Record every distinct SELECT, UPDATE and DELETE that a database executes, with its values."""
    seen: dict[str, Any] = {}

    def record(_connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, many: bool) -> None:
        if not many and statement.split(maxsplit=1)[0] in ("SELECT", "UPDATE", "DELETE", "WITH"):
            seen.setdefault(statement, values)

    event.listen(database.engine, "before_cursor_execute", record)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", record)


def full_scans(database: Database, statements: dict[str, Any]) -> list[str]:
    """Return the name of each large table that is scanned, with the start of the statement."""
    prefix, pattern = ("EXPLAIN QUERY PLAN ", _SQLITE_SCAN) if database.is_sqlite else ("EXPLAIN ", _POSTGRES_SCAN)
    found = []
    with database.engine.connect() as connection:
        tables = {
            name: connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one()  # noqa: S608 - a table of the schema
            for name in Base.metadata.tables
        }
        for statement, values in statements.items():
            lines = [str(row[-1]) for row in connection.exec_driver_sql(prefix + statement, values)]
            for table in {match[1] for line in lines if (match := pattern.search(line))}:
                if tables.get(table, LARGE_ROWS) >= LARGE_ROWS:  # an alias counts as a large table
                    found.append(f"{table}: {' '.join(statement.split())[:80]}")
        connection.rollback()
    return found


def test_no_frequent_statement_scans_a_large_table(
    database: Database, operations: dict[str, Callable[[Session], object]]
) -> None:
    with recorded_statements(database) as seen:
        for work in operations.values():
            with Session(database.engine, expire_on_commit=False) as session, session.begin() as transaction:
                work(session)
                transaction.rollback()
    assert len(seen) >= 10
    assert full_scans(database, seen) == []


@pytest.mark.usefixtures("operations")
def test_a_scan_is_found(database: Database) -> None:
    with recorded_statements(database) as seen, database.reading() as session:
        session.execute(text("SELECT name FROM datasets WHERE name = :name"), {"name": "d1"})
    (found,) = full_scans(database, seen)
    assert found.startswith("datasets: SELECT name")
