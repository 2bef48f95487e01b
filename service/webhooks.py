"""The sender: a gateway's thread that takes due deliveries, sends them, and writes down what came of it.

Every gateway has one; they share the work by leases (`models.delivery`). While nothing is due
the thread looks into the database once a second and does nothing else; httpx is loaded, and
an event loop begun, with the first delivery.
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

from models import delivery as deliveries
from models.db import SECOND, Database
from models.delivery import SECRET_UNREADABLE, Held, Outcome
from models.errors import RecordsKeyMissing
from models.sealing import Keyring, keyring_of
from models.settings import Settings
from service.logs import describe
from service.metrics import GatewayMetrics

if TYPE_CHECKING:
    from service.webhook_delivery import Courier

_SHARES = 1 << 30  # of 1, that jitter is drawn in

POLL_SECONDS = 1.0
AT_ONCE = 64  # of one gateway: more than all webhooks of a tenant may have under way, by the default limit
PRUNE_SECONDS = 3600.0
PRUNE_AT_ONCE = 1000

Found = TypeVar("Found")

log = structlog.get_logger(__name__)


def _share() -> float:
    """Uniform in [0, 1)."""
    return secrets.randbelow(_SHARES) / _SHARES


class WebhookSender:
    """Sends what is due.

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
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._resolving: ThreadPoolExecutor | None = None
        self._courier: Courier | None = None
        self._prune_at = 0.0  # seconds of the database's clock

    @property
    def lease_microseconds(self) -> int:
        """How long a gateway holds a delivery: an attempt, and time to write down what came of it."""
        return int((2 * self._settings.webhook_seconds + 2) * SECOND)

    def start(self) -> None:
        """Begin to send."""
        self._ending.clear()
        self._thread = threading.Thread(target=self._run, name="webhook-sender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more; return once what is under way is over, within `webhook_seconds`. Blocks."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._resolving is not None:
            self._resolving.shutdown(wait=False)
            self._resolving = self._courier = None

    def _run(self) -> None:
        is_away = False
        while not self._ending.wait(POLL_SECONDS):
            try:
                self._prune()
                if self._read(partial(deliveries.is_any_due, now=self._database.clock())):
                    asyncio.run(self._send_all())
                is_away = False
            except Exception as error:  # the database is away, say: the thread goes on
                if not is_away:
                    log.warning("webhooks_held_up", **describe(error))
                is_away = True

    async def _send_all(self) -> None:
        """Send until nothing is due any more."""
        courier = self._open()
        under_way: set[asyncio.Task[None]] = set()
        try:
            while True:
                for held in await self._claim(AT_ONCE - len(under_way)):
                    under_way.add(asyncio.create_task(self._deliver(courier, held)))
                if not under_way:
                    return
                done, under_way = await asyncio.wait(
                    under_way, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
        finally:
            # where the database went away: what was sent is written down as far as that can be
            await asyncio.gather(*under_way, return_exceptions=True)

    def _open(self) -> "Courier":
        if self._courier is None:
            from service.webhook_delivery import Courier, resolver  # a quarter of a second, for those who need it

            self._resolving = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook-resolver")
            self._courier = Courier(
                resolver(self._resolving), self._settings.allowed_webhook_networks, self._settings.webhook_seconds
            )
        return self._courier

    async def _claim(self, limit: int) -> list[Held]:
        if limit == 0 or self._ending.is_set():
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

    async def _deliver(self, courier: "Courier", held: Held) -> None:
        outcome = await courier.attempt(held, now=self._database.clock())
        came = await asyncio.to_thread(self._write, lambda session: self._settle(session, held, outcome))
        if came is not None:
            self._metrics.webhook_deliveries.labels(came).inc()
        if outcome.error == SECRET_UNREADABLE:
            log.error("webhook_secret_unreadable", delivery_id=held.delivery_id)

    def _settle(self, session: Session, held: Held, outcome: Outcome) -> str | None:
        return deliveries.settle(session, held, outcome, now=self._database.clock(), random=_share)

    def _keyring(self) -> Keyring:
        try:
            return keyring_of(self._settings)
        except RecordsKeyMissing:
            return Keyring(())  # opens nothing

    def _prune(self) -> None:
        now = self._database.clock()
        if now / SECOND < self._prune_at:
            return
        keep = self._settings.webhook_retention_days * 86_400 * SECOND
        look = partial(deliveries.is_any_old, now=now, keep_microseconds=keep)
        drop = partial(deliveries.prune, now=now, keep_microseconds=keep, limit=PRUNE_AT_ONCE)
        while self._read(look) and not self._ending.is_set():
            self._write(drop)
        self._prune_at = now / SECOND + PRUNE_SECONDS

    def _read(self, look: Callable[[Session], Found]) -> Found:
        with self._database.reading() as session:
            return look(session)

    def _write(self, change: Callable[[Session], Found]) -> Found:
        return self._database.run("send_webhooks", change)
