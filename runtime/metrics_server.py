"""Serve Prometheus metrics on a separate port.

The metrics are totals over all tenants, so no tenant's key may read them. The network can restrict access to a port
regardless of the proxies in front of the API.
"""

from collections.abc import Callable, Iterator, Mapping

import structlog
from prometheus_client import CollectorRegistry, disable_created_metrics, start_http_server
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

CLIENT_SECONDS = 10  # seconds until the server closes the connection of a client that sends nothing

disable_created_metrics()  # type: ignore[no-untyped-call]

log = structlog.get_logger(__name__)


def start_metrics_server(registry: CollectorRegistry, host: str, port: int | None) -> Callable[[], None]:
    """Serve `GET /metrics` in a background thread, and return the function that stops the server.

    If the port cannot be bound, log an error and continue without metrics.

    Parameters
    ----------
    registry : CollectorRegistry
    host : str
        Address to bind.
    port : int, optional
        0 selects a free port. None starts no server.
    """
    if port is None:
        return lambda: None
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        log.error("metrics_server_failed", host=host, port=port, error=error.strerror or type(error).__name__)
        return lambda: None
    server.RequestHandlerClass.timeout = CLIENT_SECONDS  # type: ignore[attr-defined]
    log.info("metrics_server_started", host=host, port=server.server_port)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close


class TransactionRetries(Collector):
    """The number of retried transactions of this process, by name and reason.

    Parameters
    ----------
    retries : mapping of (str, str) to int
        Read at each scrape.
    """

    def __init__(self, retries: Mapping[tuple[str, str], int]) -> None:
        self._retries = retries

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Return the metric without values."""
        yield CounterMetricFamily(
            "sfumato_transaction_retries",
            "Transactions retried after a deadlock, a serialization failure or a busy database.",
            labels=["transaction", "reason"],
        )

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return the current values."""
        (family,) = self.describe()
        for labels, n in sorted(dict(self._retries).items()):
            family.add_metric(labels, n)
        yield family
