"""The time that all processes of one PostgreSQL share: its own, read every few seconds and counted on from there.

Leases, closing times and expiries are written by one process and judged by others. Were each to go
by its own machine, one whose clock is ahead could hold a job, or keep a round open, by as much.
"""

import time
from collections.abc import Callable

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

READ_SECONDS = 2.0  # how old a reading gets: what the two clocks drift apart meanwhile is microseconds
SLOW_SECONDS = 1.0  # half of what a reading took is its error at most; a slower one is done again

_READ = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)")


class ServerClock:
    """Microseconds since the epoch, as the database server has it.

    Between two readings it goes on by this machine's monotonic clock, so that nothing that sets the
    machine's time is felt. Before the first one it is what the machine says.

    Parameters
    ----------
    before : callable
        Microseconds since the epoch, until the server was asked.
    monotonic : callable, optional
        Seconds that only ever grow.
    """

    def __init__(self, before: Callable[[], int], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._before, self._monotonic = before, monotonic
        self._known: tuple[int, float] | None = None  # the server's time, and when that was: one value, set at once
        self._read_at = 0.0

    def __call__(self) -> int:
        if self._known is None:
            return self._before()
        told, at = self._known
        return told + round((self._monotonic() - at) * 1_000_000)

    def follow(self, session: Session | Connection) -> None:
        """Ask the server, where that was not done a moment ago."""
        asked = self._monotonic()
        if self._known is not None and asked < self._read_at + READ_SECONDS:
            return
        told = session.scalar(_READ)
        answered = self._monotonic()
        if told is not None and (self._known is None or answered - asked <= SLOW_SECONDS):
            self._known, self._read_at = (int(told), (asked + answered) / 2), answered
