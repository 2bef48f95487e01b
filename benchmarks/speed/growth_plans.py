"""How a database means to carry out statements that were heard: those that read a large table from end to end."""

import re
from types import TracebackType
from typing import Any, Self

from sqlalchemy import event, text

from models.db import Database

LARGE_ROWS = 500  # a smaller table is read from end to end for good reason

_SQLITE_SCAN = re.compile(r"^SCAN (?!CONSTANT ROW)(\w+)(?! USING (COVERING )?INDEX)")
_POSTGRES_SCAN = re.compile(r"Seq Scan on (\w+)")


class Statements:
    """While it is open: every SELECT, UPDATE and DELETE a database is sent, once each, with its values."""

    def __init__(self, database: Database) -> None:
        self._engine = database.engine
        self.seen: dict[str, Any] = {}

    def __enter__(self) -> Self:
        event.listen(self._engine, "before_cursor_execute", self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        event.remove(self._engine, "before_cursor_execute", self._hear)

    def _hear(self, _connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, many: bool) -> None:
        if not many and statement.split(maxsplit=1)[0] in ("SELECT", "UPDATE", "DELETE", "WITH"):
            self.seen.setdefault(statement, values)


def full_scans(database: Database, statements: dict[str, Any]) -> list[str]:
    """Of each table that is read from end to end: its name and how the statement begins."""
    found = []
    with database.engine.connect() as connection:
        sizes: dict[str, int] = {}
        prefix = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
        pattern = _SQLITE_SCAN if database.is_sqlite else _POSTGRES_SCAN
        for statement, values in statements.items():
            lines = [str(row[-1]) for row in connection.exec_driver_sql(prefix + statement, values)]
            for table in {match[1] for line in lines if (match := pattern.search(line))}:
                if table not in sizes:
                    sizes[table] = _n_rows(connection, table)
                if sizes[table] >= LARGE_ROWS:
                    found.append(f"{table}: {' '.join(statement.split())[:80]}")
        connection.rollback()
    return sorted(found)


def _n_rows(connection: Any, table: str) -> int:
    try:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())  # noqa: S608 - a plan's word
    except Exception:  # an alias, or a subquery's name: it is as large as any
        connection.rollback()
        return LARGE_ROWS
