"""What a gateway counts, for its operators: sums over all tenants, and nothing of records.

Labels are routes as they are written in the code, never paths; methods, statuses and limits.
Seconds are measured on named routes alone: how long an upload, a count, a removal or a wait
for a job took can tell how many records there are.
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
from starlette.types import Scope

from models import delivery as deliveries
from models import job as jobs
from models.db import Database

QUEUE_SECONDS = 5.0  # the queue is looked at so often, whoever asks how often
REPORTS_ROUTE = "/v1/rounds/{round_id}/reports"
NO_ROUTE = "none"  # refused before its route was known: no key, a limit, no such path

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
GROUPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})

# A route that is not here is counted and not timed: whoever adds one decides whether its time tells anything.
# Writes are not here, since they wait for the dataset's row, which an upload holds while it is stored.
TIMED = frozenset(
    {
        ("POST", REPORTS_ROUTE),
        ("POST", "/v1/forecasts"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/v1/datasets"),
        ("GET", "/v1/datasets/{dataset_id}"),
        ("GET", "/v1/datasets/{dataset_id}/budget"),
        ("GET", "/v1/datasets/{dataset_id}/ledger"),
        ("GET", "/v1/datasets/{dataset_id}/round"),
        ("GET", "/v1/datasets/{dataset_id}/rounds"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/jobs/{job_id}/result"),
        ("GET", "/v1/keys"),
        ("GET", "/v1/rounds/{round_id}"),
    }
)


def route_of(scope: Scope) -> str:
    """The route a request came to, as it is written in the code; `none` where it came to none."""
    route: str = scope["state"].get("route") or getattr(scope.get("route"), "path_format", NO_ROUTE)
    return route


class GatewayMetrics:
    """One gateway's counters. A registry of its own: two gateways in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answered, self._committed = _Answered(), _Committed()
        self.registry.register(self._answered)
        self.registry.register(self._committed)
        self.answered, self.committed = self._answered.add, self._committed.add
        self.rate_limited = Counter(
            "sfumato_rate_limited", "Requests refused by a rate limit.", ["policy"], registry=self.registry
        )

        self.webhook_deliveries = Counter(
            "sfumato_webhook_deliveries", "Attempts to deliver to webhooks.", ["outcome"], registry=self.registry
        )

    def watch(self, name: str, text: str, read: Callable[[], dict[str, float]], label: str = "") -> None:
        """Expose numbers that are asked for at each scrape, one for each value of the label."""
        self.registry.register(_Watched(name, text, read, label))

    def watch_queue(self, database: Database) -> None:
        """Expose how many jobs wait for a worker and how many have one."""
        self.watch("sfumato_jobs", "Unfinished jobs that need a worker, or have one.", _Queue(database).read, "state")

    def watch_deliveries(self, database: Database) -> None:
        """Expose how many deliveries to webhooks are not over."""
        self.watch("sfumato_webhook_pending", "Deliveries to webhooks that are not over.", _Pending(database).read)


class _Buckets:
    """A histogram's numbers. One thread alone adds to them, so plain ones do: a fifth of the library's time."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def tell(self, family: Metric, labels: Sequence[str] = ()) -> None:
        assert isinstance(family, HistogramMetricFamily)  # noqa: S101 - for the type checker
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts.copy()), strict=True))
        family.add_metric(labels, buckets=buckets, sum_value=self._total)


class _Committed(Collector):
    """Group commits; the writer's thread alone counts them."""

    def __init__(self) -> None:
        self._requests, self._seconds, self._n_reports = _Buckets(GROUPS), _Buckets(SECONDS), 0

    def add(self, n_requests: int, n_reports: int, seconds: float) -> None:
        """A commit is over; of the reports those that were stored."""
        self._n_reports += n_reports
        self._requests.add(n_requests)
        self._seconds.add(seconds)

    def describe(self) -> Iterator[Metric]:
        yield CounterMetricFamily("sfumato_reports", "Reports stored, of all rounds together.")
        yield HistogramMetricFamily("sfumato_commit_requests", "Requests in one group commit.")
        yield HistogramMetricFamily("sfumato_commit_seconds", "Time of one group commit.")

    def collect(self) -> Iterator[Metric]:
        reports, requests, seconds = self.describe()
        assert isinstance(reports, CounterMetricFamily)  # noqa: S101 - for the type checker
        reports.add_metric((), self._n_reports)
        self._requests.tell(requests)
        self._seconds.tell(seconds)
        yield from (reports, requests, seconds)


class _Count:
    __slots__ = ("n_requests", "timer")

    def __init__(self, timer: _Buckets | None) -> None:
        self.n_requests, self.timer = 0, timer


class _Answered(Collector):
    """Requests by route; the event loop's thread alone counts them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], _Count] = {}
        self._timers = {of: _Buckets(SECONDS) for of in sorted(TIMED)}

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request is over; status 0 where its client left without an answer."""
        if method not in METHODS:
            method = "other"
        count = self._counts.get((method, route, status))
        if count is None:
            count = self._counts[method, route, status] = _Count(self._timers.get((method, route)))
        count.n_requests += 1
        if count.timer is not None:
            count.timer.add(seconds)

    def describe(self) -> Iterator[Metric]:
        yield CounterMetricFamily("sfumato_requests", "Requests answered.", labels=["route", "method", "status"])
        yield HistogramMetricFamily(
            "sfumato_request_seconds",
            "Time to answer, on routes whose time tells nothing private.",
            labels=["route", "method"],
        )

    def collect(self) -> Iterator[Metric]:
        requests, seconds = self.describe()
        assert isinstance(requests, CounterMetricFamily)  # noqa: S101 - for the type checker
        for (method, route, status), count in dict(self._counts).items():
            requests.add_metric([route, method, str(status)], count.n_requests)
        for (method, route), timer in self._timers.items():
            timer.tell(seconds, [route, method])
        yield requests
        yield seconds


class _Watched(Collector):
    def __init__(self, name: str, text: str, read: Callable[[], dict[str, float]], label: str) -> None:
        self.family, self._text, self._read, self._label = name, text, read, label

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(self.family, self._text, labels=[self._label] if self._label else [])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        (family,) = self.describe()
        for label, value in self._read().items():
            family.add_metric([label] if self._label else [], value)
        yield family


class _Queue:
    """The queue's depth by SQL, for all gateways alike. Nothing where the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._asking = threading.Lock()
        self._asked_at = -QUEUE_SECONDS
        self._found: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        with self._asking:
            if time.monotonic() >= self._asked_at + QUEUE_SECONDS:
                try:
                    self._found = self._look()
                except SQLAlchemyError:
                    self._found = {}
                self._asked_at = time.monotonic()
            return self._found

    def _look(self) -> dict[str, float]:
        with self._database.reading() as session:
            n_waiting, n_running = jobs.queue_depth(session, now=self._database.clock())
        return {"waiting": n_waiting, "running": n_running}


class _Pending(_Queue):
    """The same of deliveries to webhooks."""

    def _look(self) -> dict[str, float]:
        with self._database.reading() as session:
            return {"": deliveries.n_pending(session)}
