"""What a gateway process works with, made once and handed to whoever needs it."""

import asyncio
from dataclasses import dataclass, field

from models.db import Database
from models.doorbell import Doorbell
from models.settings import Settings
from service.auth import KeyCache
from service.device_rounds import DeviceRounds
from service.limits import RateLimits
from service.metrics import GatewayMetrics
from service.notices import Notices
from service.problems import RateLimited
from service.readiness import Readiness
from service.report_labels import Labellers
from service.uploads import Uploads
from service.watches import Watches
from service.writer import ReportWriter

MAX_WATCHERS = 1000  # a connection each; looks are shared, and paced


class Watchers:
    """How many wait for jobs at once."""

    def __init__(self) -> None:
        self._n = 0

    @property
    def n_waiting(self) -> int:
        """How many there are."""
        return self._n

    @property
    def is_full(self) -> bool:
        """Whether one more would be too many."""
        return self._n >= MAX_WATCHERS

    def check(self) -> None:
        """Raise RateLimited where one more would be too many."""
        if self.is_full:
            raise RateLimited("too many wait for jobs at once; ask without waiting")

    def __enter__(self) -> None:
        self._n += 1

    def __exit__(self, *_error: object) -> None:
        self._n -= 1


@dataclass(frozen=True)
class Services:
    """One of each for a process."""

    settings: Settings
    database: Database
    doorbell: Doorbell
    keys: KeyCache
    writer: ReportWriter
    uploads: Uploads
    metrics: GatewayMetrics
    limits: RateLimits
    readiness: Readiness
    notices: Notices
    watches: Watches
    device_rounds: DeviceRounds
    stopping: asyncio.Event  # set as the server begins to end
    watchers: Watchers = field(default_factory=Watchers)
    labellers: Labellers = field(default_factory=Labellers)
