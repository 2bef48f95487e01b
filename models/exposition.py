"""Metrics on a port of their own, as Prometheus asks for them.

A port and not a path of the API: totals over all tenants are nobody's secret and no tenant's
business, and a port can be kept from strangers by the network, whatever stands in front of
the service.
"""

import socket
import threading
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, disable_created_metrics, make_wsgi_app

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
