"""A service that publishes rounds and receives batches over HTTP, and the processes of a shuffler."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sfumato.device.sealing import RoundKeyPair, generate_round_key_pair, open_sealed, seal, sealed_length, wrap
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE, PROBLEM_TYPE
from shuffler.queue import Queue
from shuffler.rounds import Round, parse_round
from tests.batches import parse_batch, verify_release
from tests.sfumato.scripted import open_round, round_spec

DATASET = "ds_1"
KEYS = generate_round_key_pair()


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def published(round_id: str = "rnd_1", keys: RoundKeyPair = KEYS, seconds: float = 3600, **changes: Any) -> bytes:
    """Return the bytes of a shuffled round that closes in some seconds."""

    members = {
        "target_reports": 5,
        "min_batch": 3,
        "honest_share": 1.0,
        "keep_reports": False,
        "hpke_public_key": base64.b64encode(keys.public_key).decode(),
        "shuffled_epsilon": 0.9,
        "shuffled_delta": 1e-6,
        "closes_at": datetime.fromtimestamp(time.time() + seconds, UTC).isoformat(),
    }
    return canonical(open_round(round_id, round_spec(1.0)) | members | changes)


def parsed(*args: Any, **changes: Any) -> Round:
    return parse_round(published(*args, **changes))


def sealed_for(found: Round, number: int) -> bytes:
    """Return a sealed report with a number as its id."""
    value = bytes(found.sealed_bytes - sealed_length(0))
    return seal(number.to_bytes(16, "big"), 0, value, found.id, found.document, KEYS.public_key)


def wrapped_for(found: Round, number: int, key: bytes) -> bytes:
    """Return a wrapped report with a number as its id. `key` is the outer key of the round."""
    return wrap(sealed_for(found, number), found.id, key)


def outer_key(queue: Queue, found: Round) -> bytes:
    """Return the outer key of a round of the queue."""
    announced = queue.find_announced(found.id, DATASET)
    assert announced is not None
    assert announced.outer_public_key is not None
    return announced.outer_public_key


def numbers(reports: list[bytes], found: Round) -> list[int]:
    """Return the numbers of sealed reports, in their order."""
    contents = open_sealed(reports, found.id, found.document, KEYS.private_key)
    return [int.from_bytes(each.report_id, "big") for each in contents if each is not None]


@dataclass
class FakeService:
    """A service that accepts one batch of each round, and the same batch again."""

    public_key: bytes = b""
    rounds: dict[str, bytes] = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)  # statuses of the next answers to batches; the batch is stored
    attempts: list[tuple[str, bytes]] = field(default_factory=list)
    accepted: dict[str, bytes] = field(default_factory=dict)
    is_down: bool = False
    listing: bytes | None = None  # replaces the list of rounds
    is_frozen: threading.Event = field(default_factory=threading.Event)  # requests of the list wait while it is set
    n_listed: int = 0
    url: str = ""

    def receive(self, round_id: str, body: bytes) -> tuple[int, str]:
        self.attempts.append((round_id, body))
        if round_id not in self.rounds:
            return 409, "round_closed"
        if self.public_key and not verify_release(round_id, parse_batch(body), self.public_key):
            return 422, "batch_refused"
        if self.accepted.setdefault(round_id, body) != body:
            return 409, "conflict"
        return (self.failures.pop(0), "internal_error") if self.failures else (202, "")

    @contextmanager
    def running(self) -> Iterator["FakeService"]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.n_listed += 1
                while service.is_frozen.is_set():
                    time.sleep(0.01)
                document = service.listing or b'{"rounds":[%s]}' % b",".join(service.rounds.values())
                self.answer(500 if service.is_down else 200, document)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, code = service.receive(self.path.split("/")[3], body)
                round_id = self.path.split("/")[3]
                receipt = {"round_id": round_id, "accepted": parse_batch(body).count}
                problem = {"type": f"{PROBLEM_TYPE}{code}", "code": code, "title": code, "status": status}
                self.answer(status, json.dumps(problem if code else receipt).encode())

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json" if status < 300 else PROBLEM_MEDIA_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(BrokenPipeError):  # the shuffler waits no longer
                    self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
