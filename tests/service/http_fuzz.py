"""Differential fuzzer: two gateways answer mutated requests in the same way.

`python -m tests.service.http_fuzz --requests 100000` compares a gateway with and without the front for reports, and
prints a summary. With `--uvicorn`, the second gateway also runs on uvicorn's own protocol instead of `Connection`.
"""

import argparse
import logging
import random
import re
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import structlog

from models.database.engine import Database
from models.database.schema import migrate
from runtime.settings import Settings
from service.app import create_app
from tests.service.api import Api, packed, stranger
from tests.service.wire import OnTheWire

IDLE_SECONDS = (0.5, 2.0, 8.0)  # end of an exchange; tries after a difference, for a busy machine
N_THREADS, BATCH = 8, 200
SHOWN_BYTES = 3000
# Mutations to which `Connection` answers otherwise on purpose; `test_connection.py` tests each.
UVICORN_DIFFERS = {
    "close": "uvicorn parses requests after the one that closes the connection",
    "flipped extension": "uvicorn accepts an extension without a name",
    "large field": "uvicorn does not limit the size of a head",
    "missing host": "uvicorn accepts it",
    "repeated host": "uvicorn accepts it",
    "repeated transfer-encoding": "uvicorn accepts it",
    "upgrade": "uvicorn drops the body of a request that offers an upgrade",
    "trailer": "uvicorn appends trailers to the headers",
    "space before extension": "uvicorn rejects a space that RFC 9112 (section 7.1.1) permits",
}
_VARYING = re.compile(rb"\r\n(?:date|x-request-id): [^\r]*|\"request_id\":\"[0-9a-f]*\"")
_STATUS_LINE = re.compile(rb"HTTP/1\.1 \d")
_END = b"GET /healthz HTTP/1.1\r\nHost: end\r\nConnection: close\r\n\r\n"


class Fuzzer:
    """Random exchanges over one connection each.

    Parameters
    ----------
    api : Api
        Admin key of a tenant with rounds that both gateways know.
    seed : int
    excluded : collection of str
        Names of mutations to leave out.
    """

    def __init__(self, api: Api, seed: int, excluded: Collection[str] = ()) -> None:
        self._excluded = excluded
        self._random = random.Random(seed)  # noqa: S311 - repeatable
        dataset = api.dataset(epsilon=32)
        self._rounds = [api.round(dataset["id"], target_reports=10**9)["id"] for _ in range(3)]
        api.post(f"/rounds/{self._rounds[2]}/close?allow_empty=true")
        self._secrets = [api.secret, api.key("device").secret, api.key("jobs").secret, "sfk_" + "0" * 64]

    def exchange(self) -> tuple[list[bytes], int]:
        """Return the pieces that a client sends, and their number of requests."""
        chance = self._random
        n_requests = chance.choice((1, 1, 1, 2, 3, 6))
        stream = b"".join(self._request() for _ in range(n_requests)) + _END
        cuts = sorted(chance.randrange(len(stream)) for _ in range(chance.choice((0, 0, 0, 1, 2, 5))))
        return [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)], n_requests

    def _request(self) -> bytes:
        chance = self._random
        is_plain = chance.random() < 0.5
        body, media_type = self._plain_body() if is_plain else self._body()
        is_chunked = chance.random() < 0.25
        fields = [
            (b"Host", b"x"),
            (b"Authorization", b"Bearer " + chance.choice(self._secrets[:1] * 6 + self._secrets).encode()),
            (b"Content-Type", media_type),
            (b"Transfer-Encoding", b"chunked") if is_chunked else (b"Content-Length", b"%d" % len(body)),
        ]
        for mutate in (self._drop, self._repeat, self._respell, self._add, self._reorder):
            if chance.random() < (0.03 if is_plain else 0.12):
                mutate(fields)
        lines = [
            b"POST /v1/rounds/%b/reports HTTP/1.1" % self._rounds[0].encode() if is_plain else self._line(),
            *(self._field(*field) for field in fields),
        ]
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        if chance.random() < 0.02:
            flipped = self._flip(head)
            is_left_out = "missing host" in self._excluded and b"\r\nhost:" not in flipped.lower()
            head = head if is_left_out else flipped
        return chance.choice((b"", b"", b"", b"\r\n")) + head + (self._chunks(body) if is_chunked else body)

    def _line(self) -> bytes:
        round_id = self._random.choice(self._rounds[:1] * 4 + self._rounds + ["rnd_" + "0" * 26, "x"]).encode()
        path = b"/v1/rounds/%b/reports" % round_id
        path = self._random.choice([path] * 12 + [path + b"?x=1", path + b"/", path.replace(b"o", b"%6f"), b"/healthz"])
        method = self._random.choice([b"POST"] * 12 + [b"GET", b"PUT", b"HEAD"])
        versions = [b"HTTP/1.1"] * 12 + [b"HTTP/1.1" if "close" in self._excluded else b"HTTP/1.0", b"HTTP/1.2"]
        return b"%b %b %b" % (method, path, self._random.choice(versions))

    def _plain_body(self) -> tuple[bytes, bytes]:
        report_id = self._random.getrandbits(128)
        return b'{"report_id":"%032x","slot":0,"value":"AQ=="}' % report_id, b"application/json"

    def _body(self) -> tuple[bytes, bytes]:
        chance = self._random
        if chance.random() < 0.2:
            body = packed(chance.choice((0, 1, 3, 900)))
            return body[: len(body) - chance.choice((0, 0, 0, 5))], b"application/octet-stream"
        report_id = chance.choice((b"%032x" % chance.getrandbits(128), b"zz"))
        slot, value = chance.choice((b"0", b"0", b"0", b"9", b"-1")), chance.choice((b"AQ==", b"AQ==", b"/w==", b"?"))
        body = b'{"report_id":"%b","slot":%b,"value":"%b"}' % (report_id, slot, value)
        body = chance.choice((body, body, body, body, body[:-1], b"", body + b" " * chance.choice((9, 20_000))))
        return body, chance.choice([b"application/json"] * 8 + [b"application/json; charset=utf-8", b"text/plain", b""])

    def _field(self, name: bytes, value: bytes) -> bytes:
        chance = self._random
        before, after = chance.choice([b" "] * 9 + [b"", b"\t ", b"  "]), chance.choice([b""] * 9 + [b" ", b"\t"])
        colon = b" :" if chance.random() < 0.004 else b":"
        return name + colon + before + value + after

    def _chunks(self, body: bytes) -> bytes:
        chance = self._random
        # Small chunks of a large body exceed a limit, and the answer to their head may be faster than the 400.
        size = chance.choice((1, 7, 64, 1 << 16)) if len(body) < 2_000 else 1 << 16
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        space = b"" if "space before extension" in self._excluded else b" "
        extension = chance.choice((b"", b"", b";a=b", space + b";" + space + b'a="b"'))
        trailers = chance.choice((b"", b"", b"X: y\r\n", b"Authorization: Bearer %b\r\n" % self._secrets[0].encode()))
        chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
        chunks += b"0\r\n" + (b"" if "trailer" in self._excluded else trailers) + b"\r\n"
        is_flipped = chance.random() < 0.02 and not (extension and "flipped extension" in self._excluded)
        return self._flip(chunks) if is_flipped else chunks

    def _flip(self, data: bytes) -> bytes:
        at = self._random.randrange(len(data))
        return data[:at] + self._random.choice((b"", b"\r", b"\n", b"\0", b" ", b"x")) + data[at + 1 :]

    def _drop(self, fields: list[tuple[bytes, bytes]]) -> None:
        at = self._random.randrange(len(fields))
        if not (fields[at][0] == b"Host" and "missing host" in self._excluded):
            del fields[at]

    def _repeat(self, fields: list[tuple[bytes, bytes]]) -> None:
        name, value = self._random.choice(fields)
        if f"repeated {name.lower().decode()}" not in self._excluded:
            fields.append((name, self._random.choice((value, b"x", b""))))

    def _respell(self, fields: list[tuple[bytes, bytes]]) -> None:
        at = self._random.randrange(len(fields))
        fields[at] = (self._random.choice((fields[at][0].upper(), fields[at][0].lower())), fields[at][1])

    def _add(self, fields: list[tuple[bytes, bytes]]) -> None:
        extra = {
            "origin": (b"Origin", b"https://elsewhere.example"),
            "expect": (b"Expect", b"100-continue"),
            "close": (b"Connection", b"close"),
            "connection": (b"Connection", b"Upgrade"),
            "upgrade": (b"Upgrade", b"h2c"),
            "address": (b"X-Forwarded-For", b"192.0.2.1"),
            "encoding": (b"Content-Encoding", b"gzip"),
            "field": (b"X", b"y" * 10),
            "large field": (b"X", b"y" * 33_000),
        }
        names = [name for name in extra if name not in self._excluded]
        fields.extend(extra[name] for name in self._random.sample(names, self._random.choice((1, 1, 2))))

    def _reorder(self, fields: list[tuple[bytes, bytes]]) -> None:
        self._random.shuffle(fields)


def answer(address: tuple[str, int], pieces: list[bytes], idle_seconds: float) -> tuple[bytes, bool]:
    """Send the pieces over a new connection.

    Returns
    -------
    received : bytes
        All that the server sent, without times and request ids.
    was_reset : bool
        Whether the kernel dropped the connection, because the server closed it before it had read all pieces.
    """
    received, was_reset = b"", False
    with socket.create_connection(address) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(idle_seconds)
        try:
            for piece in pieces:
                connected.sendall(piece)
        except ConnectionError:
            was_reset = True
        try:
            while part := connected.recv(1 << 16):
                received += part
        except TimeoutError:
            pass
        except ConnectionError:
            was_reset = True
    return _VARYING.sub(b"", received), was_reset


def is_same(first: tuple[bytes, bool], second: tuple[bytes, bool]) -> bool:
    """Return whether two answers are equal, as far as the client received them."""
    (long, _), (short, was_reset) = sorted((first, second), key=lambda each: len(each[0]), reverse=True)
    return long == short or (was_reset and long.startswith(short))


def is_rejected_by_both(found: tuple[bytes, bool], by_uvicorn: tuple[bytes, bool]) -> bool:
    """Return whether both answers end with an error that closes the connection, because the parser fails.

    uvicorn answers in plain text, and at once: also before it has answered earlier requests of the connection.
    """
    (answered, error), (answered_by_uvicorn, other) = (
        _split_rejection(received) for received, _ in (found, by_uvicorn)
    )
    return bool(error and other) and answered.startswith(answered_by_uvicorn)


def _split_rejection(received: bytes) -> tuple[bytes, bytes]:
    """Return the answers before a rejected request, and its answer if there is one."""
    begin = max(received.rfind(b"HTTP/1.1 %d " % status) for status in (400, 431))
    is_last = (
        begin >= 0 and not _STATUS_LINE.search(received, begin + 1) and b"\r\nconnection: close\r\n" in received[begin:]
    )
    return (received[:begin], received[begin:]) if is_last else (received, b"")


@contextmanager
def gateways(home: Path, *, is_uvicorn: bool = False) -> Iterator[tuple[OnTheWire, OnTheWire, Api]]:
    """Run a gateway with the front, and one without it and perhaps on uvicorn's own protocol, over one database."""
    url = f"sqlite:///{home / 'sfumato.db'}"
    migrate(url)
    settings = Settings(home=home, rate_of_failures=0, rate_per_key=0, cors_origins="https://elsewhere.example")
    with ExitStack() as stack:
        # Both loggers log each invalid request.
        errors = logging.getLogger("uvicorn.error")
        stack.callback(errors.setLevel, errors.level)
        errors.setLevel(logging.CRITICAL)
        stack.callback(structlog.configure, **structlog.get_config())
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        # Each gateway caches closed rounds for a time, which is another difference.
        stack.enter_context(patch("service.ingestion.report_endpoint._CLOSED_SECONDS", 0.0))
        database = Database(url)
        stack.callback(database.close)
        with_front, without = (OnTheWire(create_app(settings, database)) for _ in range(2))
        if is_uvicorn:
            without.server.config.http = "httptools"
        for each in (with_front, without):
            stack.enter_context(each)
        without.app.reports._is_enabled = False
        yield with_front, without, stranger(with_front.client, database)


def run(
    n_requests: int, seed: int, home: Path, *, is_uvicorn: bool = False
) -> tuple[Counter[str], list[tuple[Any, bytes, bytes]], float]:
    """Return the statuses, the differences, and the share of uploads that the front answered."""
    statuses: Counter[str] = Counter()
    differences: list[tuple[Any, bytes, bytes]] = []
    with gateways(home, is_uvicorn=is_uvicorn) as (with_front, without, api):
        fuzzer, n_sent = Fuzzer(api, seed, UVICORN_DIFFERS if is_uvicorn else ()), 0

        def compare(pieces: list[bytes]) -> tuple[list[bytes], bytes, bytes, bool]:
            for seconds in IDLE_SECONDS:
                found, expected = (answer(wire.address, pieces, seconds) for wire in (with_front, without))
                if is_same(found, expected) or (is_uvicorn and is_rejected_by_both(found, expected)):
                    return pieces, found[0], expected[0], True
            return pieces, found[0], expected[0], False

        with ThreadPoolExecutor(N_THREADS) as pool:
            while n_sent < n_requests:
                exchanges = [fuzzer.exchange() for _ in range(BATCH)]
                n_sent += sum(n for _, n in exchanges)
                for pieces, found, expected, is_equal in pool.map(compare, [pieces for pieces, _ in exchanges]):
                    statuses.update(line.decode() for line in re.findall(rb"HTTP/1\.1 (\d{3})", expected))
                    if not is_equal:
                        differences.append((pieces, found, expected))
        share = 1 - with_front.n_regular / max(1, without.n_regular)
    return statuses, differences, share


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="Number of requests.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the mutations.")
    parser.add_argument("--uvicorn", action="store_true", help="Compare with uvicorn's own protocol.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sfumato-fuzz-") as folder:
        statuses, differences, share = run(given.requests, given.seed, Path(folder), is_uvicorn=given.uvicorn)
    for pieces, found, expected in differences[:5]:
        sent = b"".join(pieces)[:SHOWN_BYTES]
        sys.stdout.write(f"{sent!r}\n with: {found[:SHOWN_BYTES]!r}\n without: {expected[:SHOWN_BYTES]!r}\n")
    counts = ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items()))
    sys.stdout.write(f"statuses {counts}; the front answered {share:.0%} of the uploads\n")
    sys.stdout.write(f"{given.requests} requests, {len(differences)} differences\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
