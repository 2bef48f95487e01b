"""A service in this process with a clock that its user sets, so that months of a series take seconds.

Gateway, database, windows, rounds, jobs and ledger are those of the service. Its worker has no process of its own: its
steps are taken when the clock is set. Time passes only then. Requests are not logged. Noise is never seeded.
"""

import logging
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from devservers.inprocess import InProcess
from models.collection import rounds
from models.database.engine import Database
from models.database.schema import migrate
from models.database.types import SECOND
from models.identity import keys, tenants
from models.identity.tenants import TenantLimits
from models.jobs import claims
from models.jobs.claims import Claim
from models.ledger import sources
from models.series import windows
from models.tables.identity import Scope
from runtime.settings import Settings
from service.app import create_app
from sfumato import Client, Device
from workers import job_runner

URL = "http://practice.invalid"  # the transport replaces the network
_LIMITS = TenantLimits(100, 1000, None, 16, 1000, sources.UNLIMITED, sources.UNLIMITED)
_LEASE = 3600 * SECOND


class Practice:
    """A service in this process, with a client and a clock.

    Parameters
    ----------
    start : datetime
        First time of the clock, with a time zone.

    Attributes
    ----------
    client : Client
        A client with an admin key.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> with Practice(datetime(2027, 1, 17, tzinfo=UTC)) as practice:
    ...     practice.set_clock(datetime(2027, 1, 18, tzinfo=UTC))
    ...     practice.clock()
    1800230400.0
    """

    def __init__(self, start: datetime) -> None:
        self._now = _microseconds(start)
        self._logs = structlog.get_config()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        self._folder = tempfile.TemporaryDirectory(prefix="sfumato-practice-")
        url = f"sqlite:///{self._folder.name}/sfumato.db"
        migrate(url)
        self._database = Database(url, pool_size=4, clock=lambda: self._now)
        settings = Settings(home=Path(self._folder.name), source_limit="none", rate_per_key=0)
        self._gateway = InProcess(create_app(settings, self._database)).__enter__()
        with self._database.transaction() as session:
            owner = tenants.get_or_create_tenant(session, tenants.FIRST_TENANT, now=self._now)
            _, self._key = keys.create_key(session, owner.id, name="practice", scopes=[Scope.ADMIN], now=self._now)
        self.client = Client(URL, self._key, transport=self._gateway.transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the service and delete its database."""
        self.client.close()
        self._gateway.__exit__(None, None, None)
        self._database.close()
        self._folder.cleanup()
        structlog.configure(**self._logs)

    def clock(self) -> float:
        """Return the time in seconds since 1970-01-01 UTC."""
        return self._now / SECOND

    def device(self, dataset_id: str, **options: Any) -> Device:
        """Return a device of this service with its clock. `options` are those of `Device`, such as `cap`."""
        key = self.client.create_key("a device", ["device"], dataset_id=dataset_id).secret
        assert key is not None  # noqa: S101 - for the type checker: a new key has its secret
        return Device(URL, key, dataset_id, transport=self._gateway.transport, clock=self.clock, **options)

    def set_clock(self, at: datetime) -> None:
        """Set the clock, and let the service do all that is due then: close rounds, work on jobs, open windows.

        A window is missed if the clock passes its first half at once.
        """
        self._now = _microseconds(at)
        is_done = False
        while not is_done:
            is_done = not (self._close_rounds() + self._work() + self._advance())

    def _close_rounds(self) -> int:
        with self._database.transaction() as session:
            return len(rounds.close_due(session, now=self._now))

    def _work(self) -> int:
        with self._database.transaction() as session:
            claim = claims.claim(session, now=self._now, lease_microseconds=_LEASE, max_attempts=2)
        if claim is None:
            return 0
        job_runner.run(self._database, Claim(claim.job_id, claim.fence))
        return 1

    def _advance(self) -> int:
        n_steps = 0
        with self._database.reading() as session:
            due = windows.list_due(session, now=self._now)
        for series_id in due:
            with self._database.transaction() as session:
                n_steps += not windows.take_step(
                    session, series_id, find_limits=lambda *_: _LIMITS, now=self._now
                ).is_done
        return n_steps


def _microseconds(at: datetime) -> int:
    if at.tzinfo is None:
        raise ValueError("a time must have a time zone, such as datetime(2027, 1, 18, tzinfo=UTC)")
    return round(at.astimezone(UTC).timestamp() * SECOND)
