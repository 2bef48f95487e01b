"""Memory of a gateway: its allocator keeps freed memory, and attacks reach only the stated buffers."""

import asyncio
import ctypes
import gzip
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path

import httpx
import pytest

from connections.connection import MAX_FRAMING_BYTES, MAX_HEAD_BYTES, MAX_WAITING_BYTES, WHOLE_BYTES
from devservers.loopback import NO_TLS
from models.database.engine import Database
from models.database.schema import migrate
from runtime import process
from service.http.middleware import CONTROL_BODY_BYTES
from tests.service.api import stranger
from tests.service.processes import running, until
from tests.workers.processes import ROOT

# Page faults of taking and giving back 2 MB twenty times, as checking and packing a body does.
FAULTS = """
import resource, sys
import numpy as np
from runtime.process import GATEWAY_KEPT_BYTES, keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory(GATEWAY_KEPT_BYTES)

def pack():
    np.ones(100_000, dtype="V21").tobytes()

pack()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    pack()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_large_bodies_find_the_memory_of_those_before() -> None:
    assert faults("kept") < 200
    assert faults("as it is") > 1000  # otherwise the setting has no effect with this allocator


def test_another_allocator_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    assert not process.keep_freed_memory(process.GATEWAY_KEPT_BYTES)


# ---- attacks ----

SLOW_SECONDS = 5
MAX_PENDING_BYTES = 16 << 20
BODY_BYTES = 4 << 20  # reports of one request
READ_BYTES = 256 << 10  # largest piece of data that the event loop passes on
OBJECT_BYTES = 16 << 10  # objects of a connection and its request
DATA_BYTES = READ_BYTES + max(MAX_HEAD_BYTES, MAX_FRAMING_BYTES, MAX_WAITING_BYTES, WHOLE_BYTES)
FLOOD_BYTES, FLOOD_SECONDS = 32 << 20, 20.0
ATTACK_SECONDS = 120.0  # on a busy machine

CHUNKED = b"POST /v1/datasets HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
FILL = b"y" * 1000
BOMB_BYTES = 31 << 20
REPORTS, ASSIGN = "/v1/rounds/{round}/reports", "/v1/jobs/{job}/assign"


def post(path: str, secret: str, n_bytes: int) -> Iterator[bytes]:
    """Yield the head of a request with a valid key and all of its body but the last byte."""
    yield (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {n_bytes}\r\n\r\n"
    ).encode()
    yield b" " * (n_bytes - 1)


def post_bomb(path: str, secret: str, parts: tuple[bytes, bytes, bytes], *, packs: bool) -> Iterator[bytes]:
    """Yield a request with a document of BOMB_BYTES, or with a small gzip body that unpacks to it."""
    start, element, end = parts
    body = start + element * (BOMB_BYTES // len(element)) + end
    coding = b"Content-Encoding: gzip\r\n" if packs else b""
    body = gzip.compress(body, 9) if packs else body
    yield (
        (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n"
        ).encode()
        + coding
        + b"\r\n"
    )
    yield from (body[start : start + READ_BYTES] for start in range(0, len(body), READ_BYTES))  # each is counted


def bomb(path: str, *parts: bytes, packs: bool) -> "Attack":
    """Return eight requests at once with a text that a usual parser makes many times larger."""
    start, element, end = parts
    return Attack(
        lambda secret, ids: post_bomb(path.format(**ids), secret, (start, element, end), packs=packs),
        8,
        is_flood=False,
        buffer_bytes=DATA_BYTES + 2 * CONTROL_BODY_BYTES,
        shared_bytes=MAX_PENDING_BYTES,
    )


@dataclass(frozen=True)
class Attack:
    """Connections that send pieces until the gateway closes them.

    Attributes
    ----------
    pieces : callable
        Returns what each connection sends, given a key and the ids of a round and a job.
    n_connections : int
    is_flood : bool
        Whether closed connections are opened again until they have sent FLOOD_BYTES together.
    reads : bool
        Whether the connections read responses.
    buffer_bytes : int
        Memory that the gateway may use for the data of a connection.
    shared_bytes : int
        Memory that the gateway may use for all connections together.
    """

    pieces: Callable[[str, dict[str, str]], Iterable[bytes]]
    n_connections: int = 16
    is_flood: bool = True
    reads: bool = True
    buffer_bytes: int = DATA_BYTES
    shared_bytes: int = 0

    def limit(self, response_bytes: int) -> int:
        """Return the stated size of all buffers; a response that is not read waits beside the next one."""
        own = OBJECT_BYTES + self.buffer_bytes + (0 if self.reads else 2 * response_bytes)
        return self.n_connections * own + self.shared_bytes


ATTACKS = {
    "trailers": Attack(lambda *_: chain([CHUNKED, b"0\r\n"], repeat(b"X: y\r\n" * 150))),
    "long head": Attack(lambda *_: chain([b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: "], repeat(FILL))),
    "head in one segment": Attack(lambda *_: [b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + FILL * 100 + b"\r\n\r\n"]),
    "many fields": Attack(lambda *_: [b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 5000 + b"\r\n"]),
    "chunk extension": Attack(lambda *_: chain([CHUNKED, b"1;x="], repeat(FILL))),
    "small chunks": Attack(lambda *_: chain([CHUNKED], repeat(b"1\r\n \r\n" * 150))),
    "silent connections": Attack(lambda *_: [], 500, is_flood=False, buffer_bytes=0),
    "slow documents": Attack(
        lambda secret, _: post("/v1/datasets", secret, CONTROL_BODY_BYTES),
        is_flood=False,
        buffer_bytes=DATA_BYTES + CONTROL_BODY_BYTES,
    ),
    "slow reports": Attack(
        lambda secret, ids: post(f"/v1/rounds/{ids['round']}/reports", secret, BODY_BYTES),
        is_flood=False,
        shared_bytes=MAX_PENDING_BYTES,
    ),
    "unread responses": Attack(
        lambda *_: repeat(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20), is_flood=False, reads=False
    ),
}
ID = b"0" * 32
BOMBS = {
    "texts": (REPORTS, b'{"report_ids":["%b"' % ID, b',"%b"' % ID, b"]}"),
    "wrong texts": (REPORTS, b'{"report_ids":["a"', b',"a"', b"]}"),
    "values": (REPORTS, b'{"values":["AA=="', b',"AA=="', b"]}"),
    "points": (ASSIGN, b'{"points":[[1.25,2.5]', b",[1.250000000000000,2.500000000000000]", b"]}"),
    "slots": (REPORTS, b'{"slots":[0', b",0", b"]}"),
    "points of one number": (ASSIGN, b'{"points":[[1]', b",[1]", b"]}"),
    "one long point": (ASSIGN, b'{"points":[[1', b",1", b"]]}"),
    "empty points": (ASSIGN, b'{"points":[[]', b",[]", b"]}"),
    "wrong numbers": (ASSIGN, b'{"points":[[""', b',""', b"]]}"),
    "deep lists": (REPORTS, b"[", b"[", b""),
}
for _name, _bomb in BOMBS.items():
    ATTACKS[_name] = bomb(*_bomb, packs=False)
    ATTACKS[f"{_name}, gzip"] = bomb(*_bomb, packs=True)


async def attack_once(address: tuple[str, int], pieces: Iterable[bytes], *, reads: bool) -> int:
    """Send pieces until the gateway closes the connection, and return their bytes."""
    n_bytes = 0
    reader, writer = await asyncio.open_connection(*address, limit=1024)
    with suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            n_bytes += len(piece)
        while reads and await reader.read(1 << 16):
            pass
    writer.close()
    return n_bytes


async def run_attack(attack: Attack, address: tuple[str, int], secret: str, ids: dict[str, str]) -> int:
    """Run an attack to its end, and return the bytes that were sent."""
    n_bytes, deadline = 0, time.monotonic() + FLOOD_SECONDS

    async def run_connection() -> None:
        nonlocal n_bytes
        while True:
            sent_bytes = await attack_once(address, attack.pieces(secret, ids), reads=attack.reads)
            n_bytes += sent_bytes
            if not attack.is_flood or n_bytes > FLOOD_BYTES or time.monotonic() > deadline:
                return

    async with asyncio.timeout(ATTACK_SECONDS), asyncio.TaskGroup() as group:
        for _ in range(attack.n_connections):
            group.create_task(run_connection())
    return n_bytes


def memory_bytes(pid: int, name: str) -> int:
    """Return a size from the status of a process: VmRSS is its memory, VmHWM the highest since its last reset."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


@dataclass
class Target:
    """A running gateway under measurement."""

    http: httpx.Client
    pid: int
    secret: str
    ids: dict[str, str]
    idle_bytes: int
    response_bytes: int

    def run(self, name: str, attack: Attack) -> int:
        """Run an attack to its end. Return the highest memory in bytes."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # resets VmHWM
        address = (self.http.base_url.host, int(self.http.base_url.port or 0))
        n_bytes = asyncio.run(run_attack(attack, address, self.secret, self.ids))
        peak, buffers = memory_bytes(self.pid, "VmHWM"), attack.limit(self.response_bytes)
        assert self.http.get("/healthz").status_code == 200
        print(
            f"{name}: {n_bytes / 1e6:.1f} MB over {attack.n_connections} connections; idle {self.idle_bytes / 1e6:.1f} "
            f"MB, peak {peak / 1e6:.1f} MB, buffers {buffers / 1e6:.1f} MB"
        )
        assert n_bytes > (1 << 20 if attack.is_flood else 0) or name == "silent connections"
        assert peak <= 1.2 * self.idle_bytes + buffers
        return peak


@contextmanager
def measured_gateway(folder: Path) -> Iterator[Target]:
    """Run a gateway that has served some requests."""
    url = f"sqlite:///{folder / 'sfumato.db'}"
    migrate(url)
    settings = {"SFUMATO_SLOW_SECONDS": str(SLOW_SECONDS), "SFUMATO_MAX_PENDING_BYTES": str(MAX_PENDING_BYTES)}
    with (
        running(folder / "gateway", "gateway", "--port", "0", SFUMATO_DATABASE_URL=url, **settings) as gateway,
        closing(Database(url)) as database,
        httpx.Client(base_url=gateway.url(), timeout=60, verify=NO_TLS) as http,
    ):
        api = stranger(http, database)
        ids = {"round": api.round(api.dataset()["id"])["id"], "job": api.finished_job()}
        assert api.report(ids["round"]).status_code == 202
        assert api.post(f"/jobs/{ids['job']}/assign", {"points": []}).status_code == 200
        with ThreadPoolExecutor(8) as pool:  # the memory of busy threads is not that of an attack
            bodies = list(pool.map(lambda _: http.get("/openapi.json").content, range(32)))
        pid = gateway.process.pid
        yield Target(http, pid, api.secret, ids, memory_bytes(pid, "VmRSS"), len(bodies[0]))


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the highest memory from /proc")


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_reaches_only_the_stated_buffers(tmp_path: Path, name: str) -> None:
    with measured_gateway(tmp_path) as target:
        target.run(name, ATTACKS[name])


@on_linux
def test_refused_bodies_are_released_at_once(tmp_path: Path) -> None:
    with measured_gateway(tmp_path) as target:
        headers = {"Authorization": f"Bearer {target.secret}", "Content-Type": "application/octet-stream"}
        for _ in range(20):  # all bytes are read, and the first report is refused
            path = f"/v1/rounds/{target.ids['round']}/reports"
            assert target.http.post(path, content=b"\xff" * BODY_BYTES, headers=headers).status_code == 422
        assert memory_bytes(target.pid, "VmRSS") <= 1.2 * target.idle_bytes + MAX_PENDING_BYTES


@on_linux
def test_memory_returns_after_large_bodies(tmp_path: Path) -> None:
    with measured_gateway(tmp_path) as target:
        peaks = [target.run(name, replace(ATTACKS[name], n_connections=2)) for name in ("points", "texts")]
        assert max(peaks) > 1.05 * target.idle_bytes  # otherwise nothing was kept
        until(lambda: memory_bytes(target.pid, "VmRSS") <= 1.1 * target.idle_bytes)
