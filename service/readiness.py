"""Whether this gateway can do what it is asked: the database, the writer, the keys of records.

Whoever asks how often: the database is asked once a second, and what it said is told until
then. That the service is ending is told at once, by the route.
"""

import asyncio
import time

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from models import record_key, sealing
from models.db import Database, is_migrated
from models.errors import RecordsKeyMissing
from models.settings import Settings
from service.writer import ReportWriter

HOLD_SECONDS = 1.0


class Readiness:
    """What a gateway lacks, looked at again after a second.

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
        self._lacks: str | None = None
        self._until = 0.0
        self._looking: asyncio.Task[str | None] | None = None

    async def lacks(self) -> str | None:
        """What is missing, for people; None where everything is there."""
        if not self._writer.is_alive:
            return "reports cannot be stored"
        if time.monotonic() >= self._until:
            if self._looking is None:  # one look, however many wait for it
                self._looking = asyncio.create_task(run_in_threadpool(self._look))
                self._looking.add_done_callback(self._seen)
            return await asyncio.shield(self._looking)
        return self._lacks

    def _seen(self, looked: "asyncio.Task[str | None]") -> None:
        self._looking = None
        if not looked.cancelled() and looked.exception() is None:
            self._lacks, self._until = looked.result(), time.monotonic() + HOLD_SECONDS

    def _look(self) -> str | None:
        try:
            if not is_migrated(self._database):
                return "the database has another schema"
            with self._database.reading() as session:
                in_use = record_key.masters_in_use(session)
        except SQLAlchemyError:
            return "the database cannot be reached"
        # Where one key of several is missing the service stays up: only the jobs of some datasets fail.
        if in_use and in_use.isdisjoint(self._own_masters()):
            return "the database holds records and SFUMATO_RECORDS_KEY none of their keys"
        return None

    def _own_masters(self) -> set[str]:
        try:
            return {sealing.key_id(key) for key in sealing.keyring_of(self._settings).keys}
        except RecordsKeyMissing:
            return set()
