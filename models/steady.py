"""Many small transactions, one after the other: a connection that is kept, without the ORM's unit of work.

What a group commit does is two statements. To take a connection from the pool for each, and to
make a session for it, costs as much as both of them and the commit's own computing.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection

from models.db import FRESH_SECONDS, Database

T = TypeVar("T")


class SteadyConnection:
    """Transactions of one thread.

    A connection that was idle for a moment is given back: the pool looks whether its server is
    still there before it hands it out again.

    Parameters
    ----------
    database : Database
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._used_at = 0.0

    def run(self, name: str, work: Callable[[Connection], T]) -> T:
        """As `Database.run`, which says what `name` and `work` are."""
        return self._database.run_in(self._transaction, name, work)

    def close(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        if time.monotonic() > self._used_at + FRESH_SECONDS:
            self.close()
        if self._connection is None:
            self._connection = self._database.engine.connect()
        try:
            with self._connection.begin():
                self._database.follow_clock(self._connection)
                yield self._connection
        except BaseException:
            self.close()  # in whatever state it is
            raise
        self._used_at = time.monotonic()
        self._database.look_after_wal()
