"""Tests of a client without packages, in several event loops, and of retries without output."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sfumato import AsyncClient
from tests.sfumato.answers import JOB

_WITHOUT = """
import sys
sys.modules[{module!r}] = None
from sfumato import Client, Device, MemoryStore
for make in (lambda: Device("http://x", "k", "ds_1", cap=1, store=MemoryStore()), lambda: Client("http://x", "k")):
    try:
        make()
    except ImportError as error:
        print(error)
"""
_RETRYING = """
import asyncio, logging
import httpx
import prometheus_client, structlog
logging.basicConfig(level=logging.DEBUG)
for other in ("asyncio", "httpx"):  # they log each request, with or without retries
    logging.getLogger(other).setLevel(logging.WARNING)
from sfumato import AsyncClient, Client
from sfumato.errors import ApiProblem
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE, PROBLEM_TYPE
TYPE = {"Content-Type": PROBLEM_MEDIA_TYPE}
PROBLEM = {"type": PROBLEM_TYPE + "unavailable", "code": "unavailable", "title": "t", "status": 503}
n_sent = 0

def answer(_):
    global n_sent
    n_sent += 1
    return httpx.Response(503, json=PROBLEM, headers=TYPE)

async def get_job():
    await AsyncClient("http://x", "k", transport=transport, retry_seconds=0.5).get_job("job_1")

transport = httpx.MockTransport(answer)
for run in (
    lambda: Client("http://x", "k", transport=transport, retry_seconds=0.5).get_job("job_1"),
    lambda: asyncio.run(get_job()),
):
    try:
        run()
    except ApiProblem as problem:
        print(problem.code)
assert n_sent > 2
print([metric.name for metric in prometheus_client.REGISTRY.collect() if "retr" in metric.name])
"""


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("module", ["httpx", "tenacity"])
def test_numpy_alone_says_what_to_install(module: str) -> None:
    lines = run(_WITHOUT.format(module=module)).stdout.splitlines()
    assert (
        lines == [f"a device or client that connects to a service needs {module}: pip install anyio httpx tenacity"] * 2
    )


def test_retries_print_log_and_count_nothing() -> None:
    done = run(_RETRYING)
    assert (done.stdout, done.stderr) == ("unavailable\nunavailable\n[]\n", "")


@pytest.fixture
def url() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open

        def do_GET(self) -> None:
            body = json.dumps(JOB).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets of a loop that ended are closed by the collector
def test_an_asynchronous_client_works_in_several_event_loops(url: str) -> None:
    client = AsyncClient(url, "sfk_x", retry_seconds=0)
    for _ in range(3):
        assert asyncio.run(client.get_job("job_1")).id == JOB["id"]
    asyncio.run(client.close())
    del client
    gc.collect()  # now, while their warnings are ignored
