"""Connections limit requests, discard trailers, join writes and time out for pieces of data of any size."""

import asyncio
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from connections import connection
from connections.joined_transport import JOINED_BYTES, JoinedTransport, WriteQueue
from models.database.engine import Database
from runtime.settings import Settings
from service.app import create_app
from tests.service.api import FEATURES, SQLITE_ONLY, Api, single, stranger, unknown
from tests.service.ingestion.test_report_endpoint import stored
from tests.service.ingestion.test_report_front import HEALTH, known, sent
from tests.service.wire import PATIENCE_SECONDS, OnTheWire, read_answers

CHUNKED = (
    b"POST /v1/datasets HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@pytest.fixture(scope="module")
def wire(database: Database, settings: Settings) -> Iterator[OnTheWire]:
    limited = settings.model_copy(update={"trusted_proxies": "127.0.0.0/8", "rate_of_failures": 50})
    with OnTheWire(create_app(limited, database)) as gateway:
        yield gateway


@pytest.fixture
def api(wire: OnTheWire, database: Database) -> Api:
    return stranger(wire.client, database)


def answers(wire: OnTheWire, *pieces: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Send pieces and return the responses until the server closes the connection."""
    received = b""
    with wire.connect() as connected:
        with suppress(ConnectionError):
            for piece in pieces:
                connected.sendall(piece)
        with suppress(ConnectionError):
            while part := connected.recv(1 << 16):
                received += part
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        line, *lines = head.decode().split("\r\n")
        headers = dict(each.split(": ", 1) for each in lines)
        length = int(headers["content-length"])
        found.append((int(line.split()[1]), headers, rest[:length]))
        received = rest[length:]
    return found


# The client of the JDK. It offers HTTP/2 with every request by default.
JAVA_CLIENT = """
import java.net.URI;
import java.net.http.*;

public class Post {
    public static void main(String[] args) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(args[0])).header("Authorization", args[1])
            .header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofString(args[2])).build();
        System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
"""


def closing(request: bytes) -> bytes:
    """Return a request after which the server closes the connection."""
    return request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


@SQLITE_ONLY
class TestTrailers:
    @pytest.mark.parametrize("n_pieces", [1, 400])
    def test_do_not_authenticate(self, wire: OnTheWire, api: Api, n_pieces: int) -> None:
        trailers = b"0\r\nAuthorization: Bearer %s\r\n\r\n" % api.secret.encode()
        request = closing(CHUNKED) + b"2\r\n{}\r\n" + trailers
        step = -(-len(request) // n_pieces)
        pieces = [request[at : at + step] for at in range(0, len(request), step)]
        ((status, _, _),) = answers(wire, *pieces)
        assert status == 401

    def test_do_not_change_the_client_address(self, database: Database, settings: Settings) -> None:
        limited = settings.model_copy(update={"trusted_proxies": "127.0.0.0/8", "rate_of_failures": 3})
        with OnTheWire(create_app(limited, database)) as wire:
            statuses = [
                answers(wire, closing(CHUNKED) + b"0\r\nX-Forwarded-For: 192.0.2.%d\r\n\r\n" % number)[0][0]
                for number in range(5)
            ]
        assert statuses == [401, 401, 401, 429, 429]

    def test_are_dropped_from_a_valid_request(self, wire: OnTheWire, api: Api) -> None:
        head, _, body = sent(api, known(wire, api)).partition(b"\r\n\r\n")
        head = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
        request = head + b'\r\n\r\n%x ; name = "a\\";b" ;c;d=e\r\n%b\r\n0\r\nContent-Length: 1\r\n\r\n' % (
            len(body),
            body,
        )
        statuses = [status for status, _, _ in answers(wire, request + closing(HEALTH))]
        assert statuses == [202, 200]


@SQLITE_ONLY
class TestHead:
    @pytest.mark.parametrize(
        "head",
        [
            b"PRI * HTTP/2.0\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n",
            b"GET /healthz HTTP/3\r\nHost: x\r\n\r\n",
            b"GET /healthz\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nX: y\r\nHost: x\r\nhost: x\r\n\r\n",
            b"GET /healthz HTTP/1.0\r\nHost: x\r\nHOST: y\r\n\r\n",
        ],
    )
    def test_that_starts_no_request_is_answered_400(self, wire: OnTheWire, head: bytes) -> None:
        for first in (b"", HEALTH):
            *before, (status, headers, body) = answers(wire, first + head)
            assert [each[0] for each in before] == ([200] if first else [])
            assert (status, headers["connection"]) == (400, "close")
            assert json.loads(body)["code"] == "bad_request"

    def test_of_http_1_0_needs_no_host(self, wire: OnTheWire) -> None:
        ((status, _, _),) = answers(wire, b"GET /healthz HTTP/1.0\r\n\r\n")
        assert status == 200

    def test_that_the_server_ignores_times_out(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with OnTheWire(create_app(settings, database), slow_seconds=0.5) as wire:
            monkeypatch.setattr(HttpToolsProtocol, "data_received", lambda _self, _data: None)
            ((status, headers, _),) = answers(wire, HEALTH)
        assert (status, headers["connection"]) == (400, "close")

    @pytest.mark.parametrize("n_pieces", [1, 100])
    @pytest.mark.parametrize("fields", [b"X: " + b"y" * 100_000 + b"\r\n", b"X: y\r\n" * 101])
    def test_that_is_too_large_is_answered_431(self, wire: OnTheWire, fields: bytes, n_pieces: int) -> None:
        for first in (b"", HEALTH):
            request = b"GET /healthz HTTP/1.1\r\n" + fields + b"\r\n"
            step = -(-len(request) // n_pieces)
            pieces = [first, *(request[at : at + step] for at in range(0, len(request), step))]
            *before, (status, headers, body) = answers(wire, *pieces)
            assert [each[0] for each in before] == ([200] if first else [])
            assert (status, headers["connection"]) == (431, "close")
            document = json.loads(body)
            assert (document["code"], document["request_id"]) == ("head_too_large", headers["x-request-id"])

    @pytest.mark.parametrize("extra", [0, 1])
    def test_has_exact_limits(self, wire: OnTheWire, extra: int) -> None:
        line = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        many = b"X: y\r\n" * (connection.MAX_FIELDS - 2 + extra)
        large = b"X: " + b"y" * (connection.MAX_HEAD_BYTES - len(line) - 3 + extra) + b"\r\n"
        for fields in (many, large):
            ((status, _, _),) = answers(wire, line + fields + b"\r\n")
            assert status == (431 if extra else 200)


@SQLITE_ONLY
class TestFraming:
    @pytest.mark.parametrize(
        "fields",
        [
            b"Content-Length: 2\r\nContent-Length: 2",
            b"Content-Length: 2\r\nTransfer-Encoding: chunked",
            b"Content-Length: +2",
            b"Content-Length: 2 2",
            b"Content-Length:\r\n 2",
            b"Content-Length: " + b"9" * 30,
            b"Transfer-Encoding: gzip, chunked",
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            b"Transfer-Encoding : chunked",
            b"X: y\n\nGET / HTTP/1.1",
        ],
    )
    def test_that_is_ambiguous_is_rejected(self, wire: OnTheWire, fields: bytes) -> None:
        found = answers(wire, b"POST /v1/datasets HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n\r\n0\r\n\r\n" + HEALTH)
        assert [status for status, _, _ in found] == [400]

    @pytest.mark.parametrize(
        "chunks",
        [
            b"x\r\n",
            b"-1\r\n",
            b"2\r\n{}x\r\n",
            b"2\n{}\r\n",
            b"fffffffffffffffff\r\n",
            b"1;" + b"x" * 20_000,
            b"1\r\n \r\n" * 6_000,
            b"0\r\n" + b"X: y\r\n" * 4_000,
            b"0\r\n\n" + HEALTH,
            b"0\r\nX y\r\n\r\n",
            b'2;x="y\r\n{}\r\n',
            b"2;=y\r\n{}\r\n",
        ],
        ids=[
            "no size",
            "negative",
            "too long",
            "bare LF",
            "huge",
            "extension",
            "small",
            "trailers",
            "bare LF after all",
            "no trailer",
            "open quote",
            "no name",
        ],
    )
    def test_of_chunks_is_limited(self, wire: OnTheWire, api: Api, chunks: bytes) -> None:
        key = b"Authorization: Bearer %s\r\n" % api.secret.encode()
        ((status, headers, _),) = answers(wire, CHUNKED.replace(b"Host: x\r\n", b"Host: x\r\n" + key) + chunks)
        assert (status, headers["connection"]) == (400, "close")

    def test_is_not_read_without_the_scope(self, wire: OnTheWire, api: Api) -> None:
        secret = api.key("device").secret.encode()
        head = b"POST /v1/datasets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n"
        with wire.connect() as connected:
            connected.sendall(head % secret)
            ((status, _, _),) = read_answers(connected, 1)  # the body never arrives
        assert status == 403

    def test_may_be_of_many_small_chunks(self, wire: OnTheWire, api: Api) -> None:
        head, _, body = sent(api, known(wire, api)).partition(b"\r\n\r\n")
        head = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
        for line in (b"1", b"1 ; x", b'1\t;x="y;\t\\""'):  # RFC 9112, section 7.1.1, permits space before an extension
            chunks = b"".join(b"%s\r\n%c\r\n" % (line, byte) for byte in body)
            ((status, _, _),) = answers(wire, closing(head) + b"\r\n\r\n" + chunks + b"0\r\n\r\n")
            assert status == 202


OFFERS = st.lists(
    st.sampled_from(
        [
            (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
            (b"connection: keep-alive, upgrade", b"upgrade:websocket", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
            (b"UPGRADE:\th2c, websocket ", b"Connection: Upgrade"),
            (b"Upgrade: TLS/1.0", b"Upgrade: h2c", b"Connection: upgrade"),
            (b"Upgrade:", b"Connection: upgrade"),
            (b"Connection: upgrade",),
            (b"Upgrade: h2c",),
        ]
    ),
    min_size=1,
    max_size=4,
)


@SQLITE_ONLY
class TestHeadRequests:
    @pytest.mark.parametrize("path", [b"/healthz", b"/readyz", b"/docs", b"/openapi.json", b"/v1/datasets"])
    def test_answers_as_get_does_but_without_a_body(
        self, wire: OnTheWire, api: Api, path: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wire.app.state.context.readiness, "_read", lambda: None)  # tests share the database
        monkeypatch.setattr(wire.app.state.context.readiness, "_until", 0.0)
        key = api.secret.encode()
        (status, headers, body), (asked, head, nothing) = (
            read_one(wire, b"%b %b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b" % (method, path, key))
            for method in (b"GET", b"HEAD")
        )
        assert (status, asked, nothing) == (200, 200, b"")
        assert int(head["content-length"]) == int(headers["content-length"]) == len(body) > 0

    def test_is_not_allowed_for_an_event_stream(self, wire: OnTheWire, api: Api) -> None:
        request = b"HEAD /v1/jobs/job_x/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b" % api.secret.encode()
        assert read_one(wire, request)[0] == 405


def read_one(wire: OnTheWire, head: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send one request without a body. Return status, headers and all bytes behind the head of the answer."""
    received = b""
    with wire.connect() as connected:
        connected.sendall(head + b"\r\nConnection: close\r\n\r\n")
        while part := connected.recv(1 << 16):
            received += part
    lines, body = received.split(b"\r\n\r\n", 1)
    status, *fields = lines.decode().split("\r\n")
    return int(status.split()[1]), {name.lower(): value for name, value in (f.split(": ", 1) for f in fields)}, body


@SQLITE_ONLY
class TestOffersOfAnotherProtocol:
    """Some clients offer HTTP/2 or websockets with every request. Stock uvicorn drops the body of such a request."""

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        offers=OFFERS,
        is_chunked=st.booleans(),
        is_before=st.booleans(),
        is_report=st.booleans(),
        cuts=st.lists(st.floats(0, 1), max_size=4),
    )
    def test_are_ignored_for_any_framing(
        self,
        wire: OnTheWire,
        api: Api,
        offers: list[tuple[bytes, ...]],
        is_chunked: bool,
        is_before: bool,
        is_report: bool,
        cuts: list[float],
    ) -> None:
        if getattr(api, "round_id", None) is None:
            api.round_id = known(wire, api)  # type: ignore[attr-defined]
        dataset = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 8}
        target, body, status = (
            (f"/v1/rounds/{api.round_id}/reports", single(), 202)  # type: ignore[attr-defined]
            if is_report
            else ("/v1/datasets", dataset, 201)
        )
        text = json.dumps(body).encode()
        framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(text)
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text) if is_chunked else text
        stream = b""
        for offer in offers:
            lines = [
                b"POST %b HTTP/1.1\r\nHost: x" % target.encode(),
                b"Authorization: Bearer %b" % api.secret.encode(),
                b"Content-Type: application/json",
                *((*offer, framing) if is_before else (framing, *offer)),
            ]
            stream += b"\r\n".join(lines) + b"\r\n\r\n" + framed
        stream += HEALTH
        with wire.connect() as connected:
            for begin, end in pairwise(sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})):
                connected.sendall(stream[begin:end])
                time.sleep(0.002)
            statuses = [found for found, _, _ in read_answers(connected, len(offers) + 1)]
        assert statuses == [status] * len(offers) + [200]

    @pytest.mark.slow
    def test_of_curl_and_of_the_client_of_java_are_ignored(self, wire: OnTheWire, api: Api, tmp_path: Path) -> None:
        (tmp_path / "Post.java").write_text(JAVA_CLIENT)
        url = "http://{}:{}/v1/rounds/{}/reports".format(*wire.address, known(wire, api))
        key, body = f"Bearer {api.secret}", json.dumps(single())
        curl = ["curl", "-sv", "--http2", url, "-H", f"Authorization: {key}", "--json", body]
        for command in (curl, ["java", str(tmp_path / "Post.java"), url, key, body]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            assert '"accepted":1' in done.stdout, done.stdout + done.stderr


@SQLITE_ONLY
class TestRequests:
    def test_after_the_one_that_closes_the_connection_have_no_effect(
        self, wire: OnTheWire, api: Api, database: Database
    ) -> None:
        round_id = known(wire, api)
        found = answers(wire, closing(HEALTH) + sent(api, round_id))
        assert [status for status, _, _ in found] == [200]
        assert stored(database, round_id) == []

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        kinds=st.lists(
            st.sampled_from(["plain", "bad", "health", "other", "octets", "chunked"]), min_size=1, max_size=5
        ),
        cuts=st.lists(st.floats(0, 1), max_size=4),
    )
    def test_are_answered_in_order_for_any_pieces(
        self, wire: OnTheWire, api: Api, kinds: list[str], cuts: list[float]
    ) -> None:
        if getattr(api, "round_id", None) is None:
            api.round_id = known(wire, api)  # type: ignore[attr-defined]
        round_id: str = api.round_id  # type: ignore[attr-defined]
        octets = sent(api, round_id, body=bytes(21)).replace(b"application/json", b"application/octet-stream")
        head, _, body = sent(api, round_id).partition(b"\r\n\r\n")
        chunked = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
        ways = {
            "plain": (head + b"\r\n\r\n" + body, 202),
            "bad": (sent(api, round_id, body=b"{}"), 422),
            "health": (b"\r\n" + HEALTH, 200),
            "other": (sent(api, unknown("rnd")), 404),
            "octets": (octets, 202),
            "chunked": (chunked + b"\r\n\r\n%x\r\n%b\r\n0\r\nX: y\r\n\r\n" % (len(body), body), 202),
        }
        stream = b"".join(ways[kind][0] for kind in kinds)
        places = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
        with wire.connect() as connected:
            for begin, end in pairwise(places):
                connected.sendall(stream[begin:end])
                time.sleep(0.005)
            statuses = [status for status, _, _ in read_answers(connected, len(kinds))]
        assert statuses == [ways[kind][1] for kind in kinds]

    @pytest.mark.slow
    def test_may_be_pipelined_beyond_the_buffer(self, wire: OnTheWire) -> None:
        n_requests = 20_000
        stream = HEALTH * n_requests
        assert len(stream) > 8 * connection.MAX_WAITING_BYTES
        with wire.connect() as connected:
            connected.settimeout(PATIENCE_SECONDS)
            connected.setblocking(False)
            n_sent, received = 0, b""
            count = 0
            until = time.monotonic() + PATIENCE_SECONDS
            while count < n_requests and time.monotonic() < until:
                with suppress(BlockingIOError):
                    n_sent += connected.send(stream[n_sent : n_sent + 65536]) if n_sent < len(stream) else 0
                with suppress(BlockingIOError):
                    received = received[-14:] + connected.recv(1 << 20)
                    count += received.count(b'"status":"ok"}')
                    received = received[-13:] if not received.endswith(b"}") else b""
        assert count == n_requests


class TestApplications:
    """The parts of the gateway that depend on the transport, on both databases."""

    def test_stream_events_as_they_happen(self, wire: OnTheWire, api: Api) -> None:
        job = api.job(api.dataset()["id"])
        with wire.client.stream(
            "GET", f"/v1/jobs/{job['id']}/events", headers={"authorization": f"Bearer {api.secret}"}
        ) as response:
            received = ""
            for text in response.iter_text():
                received += text
                if '"queued"' in text:
                    assert api.post(f"/jobs/{job['id']}/cancel").status_code == 200
        assert '"state":"canceled"' in received

    def test_send_one_event_to_a_client_of_http_1_0(self, wire: OnTheWire, api: Api) -> None:
        job = api.job(api.dataset()["id"])
        head = b"GET /v1/jobs/%b/events HTTP/1.0\r\nAuthorization: Bearer %b" % (
            job["id"].encode(),
            api.secret.encode(),
        )
        status, headers, body = read_one(wire, head)
        assert (status, "transfer-encoding" in headers) == (200, False)
        assert int(headers["content-length"]) == len(body)
        retry, event, end = body.split(b"\n\n")
        assert (retry, end) == (b"retry: 2000", b"")
        name, kind, data = event.decode().split("\n")
        assert kind == "event: job"
        assert json.loads(data.removeprefix("data: "))["id"] == job["id"]
        seen = b"\r\nLast-Event-ID: %b" % name.removeprefix("id: ").encode()
        assert read_one(wire, head + seen)[2] == b"retry: 2000\n\n"

    def test_answer_reports_after_a_slow_commit_and_other_requests_before(
        self, wire: OnTheWire, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        round_id = known(wire, api)
        real = wire.app.state.context.database.run_in

        def slow(transaction: Any, name: str, work: Callable[..., Any]) -> Any:
            if name == "receive_reports":
                time.sleep(1)
            return real(transaction, name, work)

        monkeypatch.setattr(wire.app.state.context.database, "run_in", slow)
        with wire.connect() as reporter, wire.connect() as other:
            start = time.monotonic()
            reporter.sendall(sent(api, round_id) + HEALTH)
            other.sendall(HEALTH)
            assert read_answers(other, 1)[0][0] == 200
            assert time.monotonic() - start < 1
            assert [status for status, _, _ in read_answers(reporter, 2)] == [202, 200]
            assert time.monotonic() - start >= 1
        assert api.n_received(round_id) == 1

    def test_finish_current_requests_at_shutdown(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with OnTheWire(create_app(settings, database)) as wire:
            api = stranger(wire.client, database)
            round_id = known(wire, api)
            real = wire.app.state.context.database.run_in
            has_begun: list[bool] = []

            def slow(transaction: Any, name: str, work: Callable[..., Any]) -> Any:
                if name == "receive_reports":
                    has_begun.append(True)
                    time.sleep(1)
                return real(transaction, name, work)

            monkeypatch.setattr(wire.app.state.context.database, "run_in", slow)
            with wire.connect() as connected:
                connected.sendall(sent(api, round_id))
                while not has_begun:
                    time.sleep(0.01)
                wire.server.should_exit = True
                ((status, _, _),) = read_answers(connected, 1)
                assert connected.recv(1) == b""
        assert (status, wire.n_regular) == (202, 0)


@SQLITE_ONLY
def test_a_head_that_waits_for_its_body_is_answered_at_shutdown(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WHOLE_SECONDS", 60.0)
    with OnTheWire(create_app(settings, database)) as wire:
        api = stranger(wire.client, database)
        head, _, body = sent(api, known(wire, api)).partition(b"\r\n\r\n")
        with wire.connect() as connected:
            connected.sendall(head + b"\r\n\r\n")
            while not any(each._is_holding for each in wire.server.server_state.connections):
                time.sleep(0.01)
            wire.server.should_exit = True
            time.sleep(0.5)
            connected.sendall(body)
            ((status, headers, _),) = read_answers(connected, 1)
    assert (status, headers["connection"]) == (202, "close")


@SQLITE_ONLY
class TestTimeouts:
    def test_close_idle_connections(self, database: Database, settings: Settings) -> None:
        app = create_app(settings, database)
        with OnTheWire(app, slow_seconds=1, idle_seconds=5) as wire, wire.connect() as idle:
            for _ in range(3):  # each restarts the timeout
                idle.sendall(HEALTH)
                read_answers(idle, 1)
                idle.sendall(b"\r\n")  # an empty line does not
                time.sleep(2)
            with wire.connect() as early:
                early.sendall(b"POST /v1/datasets HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n")
                assert read_answers(early, 1)[0][0] == 401
                early.sendall(bytes(20_000))  # the body of a request that is already answered
                start = time.monotonic()
                assert idle.recv(1) == early.recv(1) == b""
                assert time.monotonic() - start < 30

    def test_close_connections_whose_client_does_not_read(self, database: Database, settings: Settings) -> None:
        with OnTheWire(create_app(settings, database), slow_seconds=1) as wire, socket.socket() as unread:
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            unread.connect(wire.address)
            unread.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20 + closing(HEALTH))
            connections = wire.server.server_state.connections
            until = time.monotonic() + PATIENCE_SECONDS
            while not connections:
                time.sleep(0.01)
            while connections and time.monotonic() < until:
                time.sleep(0.05)
            assert not connections


class Written(asyncio.Transport):
    """A transport that records its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


class TestJoinedTransport:
    def test_writes_once_per_iteration_of_the_event_loop(self) -> None:
        async def run() -> None:
            queue, inner = WriteQueue(), [Written() for _ in range(5)]
            joined = [JoinedTransport(each, queue) for each in inner]
            for transport in joined:
                transport.write(b"head")
                transport.write(b"body")
            joined[1].write(large := bytes(JOINED_BYTES))
            joined[2].close()
            joined[3].abort()
            inner[4].close()
            assert [each.writes for each in inner] == [[], [b"headbody", large], [b"headbody"], [], []]
            await asyncio.sleep(0)
            assert [each.writes for each in inner] == [[b"headbody"], [b"headbody", large], [b"headbody"], [], []]

        asyncio.run(run())
