"""The shared objects of a gateway process, which the routes get as a dependency, and its readiness.

The readiness check covers the database, the report writer and the keys for records. A small committed write shows that
the disk has space and that the database is not read-only. The database is checked at most once a second; the result is
cached. The route itself reports a server that is stopping.
"""

import asyncio
import sqlite3
import time
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from models import encryption
from models.database.checks import WrongSettings, check_settings
from models.database.engine import Database
from models.database.schema import check_writes, find_schema_problem
from models.errors import RecordsKeyMissing
from models.tables.datasets import RecordKey
from runtime.job_signal import JobSignal
from runtime.settings import Settings
from service.http.auth import KeyCache
from service.http.metrics import GatewayMetrics
from service.http.rate_limits import RateLimits
from service.ingestion.open_rounds import OpenRoundsCache
from service.ingestion.report_labels import ReportLabellers
from service.ingestion.report_writer import ReportWriter
from service.ingestion.upload_memory import MemoryLimit
from service.live.change_feed import ChangeFeed
from service.live.job_watcher import JobWatchers

CACHE_SECONDS = 1.0


class Readiness:
    """Cached readiness check of a gateway.

    Parameters
    ----------
    settings : Settings
    database : Database
    writer : ReportWriter
    """

    def __init__(self, settings: Settings, database: Database, writer: ReportWriter) -> None:
        self._settings = settings
        self._database = database
        self._writer = writer
        self._problem: str | None = None
        self._until = 0.0
        self._has_checked_settings = False
        self._check: asyncio.Task[str | None] | None = None

    async def find_problem(self) -> str | None:
        """Return why the gateway is not ready, as a sentence, or None if it is ready."""
        if not self._writer.is_alive:
            return "the report writer has stopped: reports cannot be stored"
        if time.monotonic() >= self._until:
            if self._check is None:  # concurrent requests share one check
                self._check = asyncio.create_task(run_in_threadpool(self._read))
                self._check.add_done_callback(self._store)
            return await asyncio.shield(self._check)
        return self._problem

    def _store(self, done: "asyncio.Task[str | None]") -> None:
        self._check = None
        if not done.cancelled() and done.exception() is None:
            self._problem, self._until = done.result(), time.monotonic() + CACHE_SECONDS

    def _read(self) -> str | None:
        try:
            if (problem := find_schema_problem(self._database)) is not None:
                return problem.text
            if not self._has_checked_settings:
                check_settings(self._database)
                self._has_checked_settings = True
            with self._database.reading() as session:
                in_use = encryption.list_master_keys(session, RecordKey)
        except WrongSettings as wrong:
            return str(wrong)
        except SQLAlchemyError:
            return "the database cannot be reached"
        try:
            check_writes(self._database)
        except (SQLAlchemyError, sqlite3.Error):
            return "the database accepts no write: its disk is full, it is read-only, or another program has locked it"
        # A gateway that lacks only some of the keys stays ready, because only the jobs of some datasets fail.
        if in_use and in_use.isdisjoint(self._own_masters()):
            return "the database has encrypted records, and SFUMATO_RECORDS_KEY has none of their keys"
        return None

    def _own_masters(self) -> set[str]:
        try:
            return {encryption.key_id(key) for key in encryption.load_keyring(self._settings).keys}
        except RecordsKeyMissing:
            return set()


@dataclass(frozen=True)
class GatewayContext:
    """One instance of each shared object."""

    settings: Settings
    database: Database
    job_signal: JobSignal
    keys: KeyCache
    writer: ReportWriter
    body_memory: MemoryLimit  # limits the memory of reports and points
    upload_memory: MemoryLimit  # limits the memory of records
    scratch: MemoryLimit
    metrics: GatewayMetrics
    rate_limits: RateLimits
    readiness: Readiness
    change_feed: ChangeFeed
    job_watchers: JobWatchers
    open_rounds: OpenRoundsCache
    stopping: asyncio.Event  # set when the server starts to stop
    labellers: ReportLabellers = field(default_factory=ReportLabellers)
