"""Metrics on a port of their own, as Prometheus asks for them.

A port and not a path of the API: totals over all tenants are nobody's secret and no tenant's
business, and a port can be kept from strangers by the network, whatever stands in front of
the service.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, disable_created_metrics, make_wsgi_app
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from models.db import Database

PATIENCE_SECONDS = 10  # for a client that says nothing

disable_created_metrics()  # type: ignore[no-untyped-call]

log = structlog.get_logger(__name__)


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_SECONDS

    def log_message(self, *_what: Any) -> None:
        """Say nothing: a scrape is no event."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class RetriedTransactions(Collector):
    """How often this process did a transaction again, by its name and by what the database said."""

    def __init__(self, database: Database | None) -> None:
        self._database = database

    def describe(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(
            "sfumato_transaction_retries",
            "Transactions done again, since the database ended them for others' sake.",
            labels=["transaction", "reason"],
        )

    def collect(self) -> Iterator[CounterMetricFamily]:
        (family,) = self.describe()
        for labels, n in sorted(self._database.retries.copy().items() if self._database else []):
            family.add_metric(labels, n)
        yield family


def expose(registry: CollectorRegistry, host: str, port: int | None) -> Callable[[], None]:
    """Answer `GET /metrics` until the returned function is called, from a thread.

    Where the port cannot be had it says so in the log and nothing else happens: what
    nobody can watch still does its work.

    Parameters
    ----------
    registry : CollectorRegistry
    host : str
        Address to bind.
    port : int, optional
        0 takes a free one; none exposes nothing.
    """
    if port is None:
        return lambda: None
    try:
        server = make_server(
            host, port, make_wsgi_app(registry), _Server6 if ":" in host else _Server, handler_class=_Handler
        )
    except OSError as error:
        log.error("metrics_not_exposed", host=host, port=port, error=error.strerror or type(error).__name__)
        return lambda: None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    log.info("metrics_exposed", host=host, port=server.server_port)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
