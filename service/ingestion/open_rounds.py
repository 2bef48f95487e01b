"""Cache of the open rounds that devices fetch with `GET /v1/datasets/{dataset_id}/round`.

All devices of a dataset get the same bytes. Each gateway reads them from the database at most once a second, and
drops them when the change feed reports a change of the dataset's rounds. The cache time counts from before the query,
and ends when a round closes by time. Therefore a device sees a closed round for at most one second.
The access to the dataset is checked at each request.
"""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from models import datasets
from models.collection import rounds
from models.database.engine import Database
from models.errors import NotFound
from models.identity.caller import Caller
from models.tables.identity import Scope as KeyScope
from service.http.headers import etag, etag_matches, header
from service.http.route_table import OPEN_ROUNDS, entry_of, path_id
from service.http.unread_input import has_unread_input
from service.live.change_feed import ChangeFeed
from service.schemas import serializers

CACHE_SECONDS = 1.0
MAX_CACHED_BYTES = 64 << 20  # sum over all datasets; the responses read longest ago are evicted
RETRY_AFTER_SECONDS = 30  # wait of devices that find no open round
MAX_AGE_SECONDS = 5  # lifetime in HTTP caches between device and gateway
SCOPES = (KeyScope.DEVICE, KeyScope.DATASETS, KeyScope.JOBS)

_OVERHEAD_BYTES = 1024  # memory of a cached response in addition to its body


@dataclass(frozen=True, slots=True)
class CachedRounds:
    """The cached response for one dataset.

    Attributes
    ----------
    tenant_id, dataset_id : str
    body : bytes
    tag : str
        Its `ETag`.
    has_rounds : bool
    until_seconds : float
        End of its cache time on the monotonic clock.
    until_micros : int or None
        Time on the database's clock when the first of its rounds closes by itself.
    """

    tenant_id: str
    dataset_id: str
    body: bytes
    tag: str
    has_rounds: bool
    until_seconds: float
    until_micros: int | None

    def is_visible_to(self, caller: Caller) -> bool:
        """Return whether the caller may see the dataset."""
        return self.tenant_id == caller.tenant_id and caller.sees(self.dataset_id)

    def response(self, if_none_match: str | None) -> Response:
        """Return the response to one device: 304 without a body if its copy is current."""
        headers = {"etag": self.tag, "cache-control": f"public, max-age={MAX_AGE_SECONDS}"}
        if not self.has_rounds:
            headers["retry-after"] = str(RETRY_AFTER_SECONDS)
        if if_none_match is not None and etag_matches(self.tag, if_none_match):
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers=headers, media_type="application/json")


class OpenRoundsCache:
    """The cached responses of one gateway. Only the event loop's thread may use it.

    Parameters
    ----------
    database : Database
    change_feed : ChangeFeed
        Reports the datasets that changed.
    """

    def __init__(self, database: Database, change_feed: ChangeFeed) -> None:
        self._database = database
        self._cached: OrderedDict[str, CachedRounds] = OrderedDict()
        self._n_bytes = 0
        self._queries: dict[str, asyncio.Task[CachedRounds]] = {}
        change_feed.add_listener(self.drop)

    def cached(self, caller: Caller, dataset_id: str) -> CachedRounds | None:
        """Return the cached response if it is current and the caller may see the dataset."""
        found = self._cached.get(dataset_id)
        if found is None or not found.is_visible_to(caller) or not self._is_current(found):
            return None
        return found

    def _is_current(self, found: CachedRounds) -> bool:
        if time.monotonic() >= found.until_seconds:
            return False
        return found.until_micros is None or self._database.clock() < found.until_micros

    async def get(self, caller: Caller, dataset_id: str) -> CachedRounds:
        """Return the response from the cache or from one query that concurrent requests share. Raise NotFound."""
        found = self.cached(caller, dataset_id)
        if found is None:
            query = self._queries.get(dataset_id)
            if query is None:
                query = asyncio.create_task(run_in_threadpool(self._read, dataset_id))
                self._queries[dataset_id] = query
                query.add_done_callback(lambda done: self._store(dataset_id, done))
            found = await asyncio.shield(query)
        if not found.is_visible_to(caller):
            raise NotFound("dataset")
        return found

    def drop(self, dataset_id: str) -> None:
        """Remove a response, and do not store the result of a running query, which may be outdated."""
        self._queries.pop(dataset_id, None)
        if (found := self._cached.pop(dataset_id, None)) is not None:
            self._n_bytes -= _size(found)

    def _store(self, dataset_id: str, query: "asyncio.Task[CachedRounds]") -> None:
        failed = query.cancelled() or query.exception() is not None
        if self._queries.get(dataset_id) is not query:
            return
        self.drop(dataset_id)
        if failed:
            return
        found = query.result()
        self._cached[dataset_id] = found
        self._n_bytes += _size(found)
        while self._n_bytes > MAX_CACHED_BYTES:
            self._n_bytes -= _size(self._cached.popitem(last=False)[1])

    def _read(self, dataset_id: str) -> CachedRounds:
        start, now = time.monotonic(), self._database.clock()
        with self._database.reading() as session:
            dataset = datasets.get_live(session, dataset_id)
            still_open = rounds.list_open(session, dataset_id, now=now)
            body = serializers.device_rounds(still_open)
        return CachedRounds(
            dataset.tenant_id,
            dataset_id,
            body,
            etag(body),
            bool(still_open),
            start + CACHE_SECONDS,
            min((each.closes_at for each in still_open), default=None),
        )


def _size(found: CachedRounds) -> int:
    return len(found.body) + _OVERHEAD_BYTES


class OpenRoundsMiddleware:
    """Pure ASGI middleware that responds from the cache without the web framework, and forwards all other requests."""

    def __init__(self, app: ASGIApp, *, open_rounds: OpenRoundsCache) -> None:
        self._app = app
        self._open_rounds = open_rounds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["method"] == "GET" and entry_of(scope) is OPEN_ROUNDS:
            caller: Caller = scope["state"]["caller"]
            if any(caller.may(each) for each in SCOPES) and not has_unread_input(scope):
                found = self._open_rounds.cached(caller, path_id(scope))
                if found is not None:
                    scope["state"]["route"] = OPEN_ROUNDS.template
                    tags = header(scope, b"if-none-match")
                    await found.response(None if tags is None else tags.decode("latin-1"))(scope, receive, send)
                    return
        await self._app(scope, receive, send)
