"""Prometheus metrics of a gateway: sums over all tenants that reveal nothing about records.

Labels are route templates (never request paths), methods, statuses and rate-limit policies.
Durations are measured only on the routes in `TIMED`.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.types import Scope

from models.database.engine import Database
from models.jobs import claims
from models.webhooks import deliveries
from service.http.route_table import ENTRIES

QUEUE_SECONDS = 5.0  # shortest interval between two queries of a queue's depth, at every scrape interval
NO_ROUTE = "none"  # label of requests that were rejected before routing: no key, a rate limit, an unknown path

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
GROUPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})

# Other routes are counted, not timed.
TIMED = frozenset((method, entry.template) for entry in ENTRIES for method in entry.timed)


def route_of(scope: Scope) -> str:
    """Return the route template of a request, or `none` if it reached no route."""
    route: str = scope["state"].get("route") or getattr(scope.get("route"), "path_format", NO_ROUTE)
    return route


class GatewayMetrics:
    """The metrics of one gateway, in a registry of its own so that two gateways in one process stay separate."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        requests, commits = _Requests(), _Commits()
        self.registry.register(requests)
        self.registry.register(commits)
        self.count_request, self.count_commit = requests.add, commits.add
        self.rate_limited = Counter(
            "sfumato_rate_limited", "Requests rejected by a rate limit.", ["policy"], registry=self.registry
        )
        self.webhook_deliveries = Counter(
            "sfumato_webhook_deliveries", "Delivery attempts to webhooks.", ["outcome"], registry=self.registry
        )

    def add_gauge(self, name: str, text: str, read: Callable[[], dict[str, float]], label: str = "") -> None:
        """Expose a gauge that calls `read` at each scrape; its keys are the values of the label."""
        self.registry.register(_Gauge(name, text, read, label))

    def add_queue_gauges(self, database: Database) -> None:
        """Expose how many jobs wait or run, and how many webhook deliveries are pending."""

        def count_jobs(session: Session) -> dict[str, float]:
            n_waiting, n_running = claims.queue_depth(session, now=database.clock())
            return {"waiting": n_waiting, "running": n_running}

        def count_deliveries(session: Session) -> dict[str, float]:
            return {"": deliveries.count_pending(session)}

        jobs = "Unfinished jobs that wait for a worker or run in one."
        self.add_gauge("sfumato_jobs", jobs, _CachedCount(database, count_jobs).read, "state")
        pending = "Webhook deliveries that are neither delivered nor given up."
        self.add_gauge("sfumato_webhook_pending", pending, _CachedCount(database, count_deliveries).read)


class _Buckets:
    """The counts of a histogram for one writing thread. Without locks it takes a fifth of the library's time."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def add_to(self, family: Metric, labels: Sequence[str] = ()) -> None:
        assert isinstance(family, HistogramMetricFamily)  # noqa: S101 - for the type checker
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts.copy()), strict=True))
        family.add_metric(labels, buckets=buckets, sum_value=self._total)


class _Commits(Collector):
    """Group commits of the report writer. Only the writer's thread adds to it."""

    def __init__(self) -> None:
        self._requests, self._seconds, self._n_reports = _Buckets(GROUPS), _Buckets(SECONDS), 0

    def add(self, n_requests: int, n_reports: int, seconds: float) -> None:
        """Count one commit with its requests, stored reports and duration."""
        self._n_reports += n_reports
        self._requests.add(n_requests)
        self._seconds.add(seconds)

    def describe(self) -> Iterator[Metric]:
        yield CounterMetricFamily("sfumato_reports", "Reports stored, summed over all rounds.")
        yield HistogramMetricFamily("sfumato_commit_requests", "Requests in one group commit.")
        yield HistogramMetricFamily("sfumato_commit_seconds", "Duration of one group commit.")

    def collect(self) -> Iterator[Metric]:
        reports, requests, seconds = self.describe()
        assert isinstance(reports, CounterMetricFamily)  # noqa: S101 - for the type checker
        reports.add_metric((), self._n_reports)
        self._requests.add_to(requests)
        self._seconds.add_to(seconds)
        yield from (reports, requests, seconds)


class _RequestCount:
    __slots__ = ("n_requests", "seconds")

    def __init__(self, seconds: _Buckets | None) -> None:
        self.n_requests, self.seconds = 0, seconds


class _Requests(Collector):
    """Requests by route, method and status. Only the event loop's thread adds to it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], _RequestCount] = {}
        self._seconds = {key: _Buckets(SECONDS) for key in sorted(TIMED)}

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request. Status 0 means that the client left before the response started."""
        if method not in METHODS:
            method = "other"
        count = self._counts.get((method, route, status))
        if count is None:
            count = self._counts[method, route, status] = _RequestCount(self._seconds.get((method, route)))
        count.n_requests += 1
        if count.seconds is not None:
            count.seconds.add(seconds)

    def describe(self) -> Iterator[Metric]:
        yield CounterMetricFamily("sfumato_requests", "Requests handled.", labels=["route", "method", "status"])
        yield HistogramMetricFamily(
            "sfumato_request_seconds",
            "Duration of requests, on routes where it reveals nothing private.",
            labels=["route", "method"],
        )

    def collect(self) -> Iterator[Metric]:
        requests, seconds = self.describe()
        assert isinstance(requests, CounterMetricFamily)  # noqa: S101 - for the type checker
        for (method, route, status), count in dict(self._counts).items():
            requests.add_metric([route, method, str(status)], count.n_requests)
        for (method, route), buckets in self._seconds.items():
            buckets.add_to(seconds, [route, method])
        yield requests
        yield seconds


class _Gauge(Collector):
    def __init__(self, name: str, text: str, read: Callable[[], dict[str, float]], label: str) -> None:
        self._name, self._text, self._read, self._label = name, text, read, label

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(self._name, self._text, labels=[self._label] if self._label else [])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        (family,) = self.describe()
        for label, value in self._read().items():
            family.add_metric([label] if self._label else [], value)
        yield family


class _CachedCount:
    """A count read from the database at most every QUEUE_SECONDS. Empty while the database is unavailable."""

    def __init__(self, database: Database, count: Callable[[Session], dict[str, float]]) -> None:
        self._database = database
        self._count = count
        self._lock = threading.Lock()
        self._read_at = -QUEUE_SECONDS
        self._values: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        """Return the values by label."""
        with self._lock:
            if time.monotonic() >= self._read_at + QUEUE_SECONDS:
                try:
                    with self._database.reading() as session:
                        self._values = self._count(session)
                except SQLAlchemyError:
                    self._values = {}
                self._read_at = time.monotonic()
            return self._values
