"""The webhook sender: a thread of each gateway that claims due deliveries, sends them and stores the outcomes.

The gateways share the work by leases (`models.webhooks.deliveries`). Without due deliveries, the thread only polls the
database once a second; it loads httpx and starts an event loop with the first delivery.
"""

import asyncio
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog
from sqlalchemy.orm import Session

from connections.log_records import describe
from models.database.engine import Database
from models.database.types import SECOND
from models.encryption import Keyring, load_keyring
from models.errors import RecordsKeyMissing
from models.webhooks import deliveries
from models.webhooks.deliveries import SECRET_UNREADABLE, DeliveryLease, DeliveryOutcome
from runtime.settings import Settings
from service.http.metrics import GatewayMetrics

if TYPE_CHECKING:
    from service.webhooks.delivery import DeliveryClient

POLL_SECONDS = 1.0
MAX_CONCURRENT = 64  # attempts of one gateway; more than all webhooks of a tenant use with the default limits
PRUNE_SECONDS = 3600.0
PRUNE_BATCH = 1000
_RANDOM_STEPS = 1 << 30

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


def _random() -> float:
    """Return a uniform number in [0, 1)."""
    return secrets.randbelow(_RANDOM_STEPS) / _RANDOM_STEPS


class WebhookSender:
    """Sends due deliveries.

    Parameters
    ----------
    settings : Settings
    database : Database
    metrics : GatewayMetrics
    """

    def __init__(self, settings: Settings, database: Database, metrics: GatewayMetrics) -> None:
        self._settings = settings
        self._database = database
        self._metrics = metrics
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._resolver_pool: ThreadPoolExecutor | None = None
        self._client: DeliveryClient | None = None
        self._prune_at = 0.0  # seconds on the database's clock

    @property
    def lease_microseconds(self) -> int:
        """Return the duration of a lease: enough for an attempt and for storing its outcome."""
        return int((2 * self._settings.webhook_seconds + 2) * SECOND)

    def start(self) -> None:
        """Start the thread."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="webhook-sender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Claim no more deliveries and return after the current attempts, within `webhook_seconds`. Blocks."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._resolver_pool is not None:
            self._resolver_pool.shutdown(wait=False)
            self._resolver_pool = self._client = None

    def _run(self) -> None:
        has_failed = False
        while not self._stopping.wait(POLL_SECONDS):
            try:
                self._prune()
                if self._read(partial(deliveries.is_any_due, now=self._database.clock())):
                    asyncio.run(self._send_all())
                has_failed = False
            except Exception as error:  # the thread must not end, for example while the database is unavailable
                if not has_failed:
                    log.warning("webhook_sender_failed", reason=self._database.failure_reason(error), **describe(error))
                has_failed = True

    async def _send_all(self) -> None:
        """Send until no delivery is due."""
        client = self._open_client()
        running: set[asyncio.Task[None]] = set()
        try:
            while True:
                for lease in await self._claim(MAX_CONCURRENT - len(running)):
                    running.add(asyncio.create_task(self._deliver(client, lease)))
                if not running:
                    return
                done, running = await asyncio.wait(running, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            # After an error of the database, let the other attempts finish and store their outcomes if possible.
            await asyncio.gather(*running, return_exceptions=True)

    def _open_client(self) -> "DeliveryClient":
        if self._client is None:
            from service.webhooks.delivery import DeliveryClient, make_resolver  # takes 0.25 s, mostly for httpx

            self._resolver_pool = ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="webhook-resolver")
            self._client = DeliveryClient(
                make_resolver(self._resolver_pool),
                self._settings.allowed_webhook_networks,
                self._settings.webhook_seconds,
            )
        return self._client

    async def _claim(self, limit: int) -> list[DeliveryLease]:
        if limit == 0 or self._stopping.is_set():
            return []
        return await asyncio.to_thread(
            self._write,
            lambda session: deliveries.claim(
                session,
                self._keyring(),
                now=self._database.clock(),
                lease_microseconds=self.lease_microseconds,
                limit=limit,
            ),
        )

    async def _deliver(self, client: "DeliveryClient", lease: DeliveryLease) -> None:
        outcome = await client.attempt(lease, now=self._database.clock())
        result = await asyncio.to_thread(self._write, lambda session: self._settle(session, lease, outcome))
        if result is not None:
            self._metrics.webhook_deliveries.labels(result).inc()
        if outcome.error == SECRET_UNREADABLE:
            log.error("webhook_secret_unreadable", delivery_id=lease.delivery_id)

    def _settle(self, session: Session, lease: DeliveryLease, outcome: DeliveryOutcome) -> str | None:
        return deliveries.settle(session, lease, outcome, now=self._database.clock(), random=_random)

    def _keyring(self) -> Keyring:
        try:
            return load_keyring(self._settings)
        except RecordsKeyMissing:
            return Keyring(())  # has no keys, so deliveries end as SECRET_UNREADABLE

    def _prune(self) -> None:
        now = self._database.clock()
        if now / SECOND < self._prune_at:
            return
        keep = self._settings.webhook_retention_days * 86_400 * SECOND
        is_any_old = partial(deliveries.is_any_old, now=now, keep_microseconds=keep)
        prune = partial(deliveries.prune, now=now, keep_microseconds=keep, limit=PRUNE_BATCH)
        while self._read(is_any_old) and not self._stopping.is_set():
            self._write(prune)
        self._prune_at = now / SECOND + PRUNE_SECONDS

    def _read(self, query: Callable[[Session], Result]) -> Result:
        with self._database.reading() as session:
            return query(session)

    def _write(self, change: Callable[[Session], Result]) -> Result:
        return self._database.run("send_webhooks", change)
