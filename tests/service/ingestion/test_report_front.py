"""The front answers plain uploads of reports as the application does, and leaves all others to it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from models.database.engine import Database
from runtime.settings import Settings
from service.app import create_app
from tests.service.api import SQLITE_ONLY, Api, packed, refused, single, stranger
from tests.service.ingestion.test_report_endpoint import OCTETS, stored
from tests.service.wire import OnTheWire, read_answers

ORIGIN = {"origin": "https://elsewhere.example"}
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def wire(database: Database, settings: Settings) -> Iterator[OnTheWire]:
    with OnTheWire(create_app(settings.model_copy(update={"cors_origins": ORIGIN["origin"]}), database)) as gateway:
        yield gateway


@pytest.fixture
def api(wire: OnTheWire, database: Database) -> Api:
    """An admin key of a fresh tenant."""
    return stranger(wire.client, database)


@pytest.fixture
def round_id(wire: OnTheWire, api: Api) -> str:
    """Return an open round that is cached like the key. The count of the application starts at zero."""
    return known(wire, api)


def known(wire: OnTheWire, api: Api) -> str:
    """Open a round and make the gateway cache it and the key."""
    made: str = api.round(api.dataset()["id"], target_reports=10**6)["id"]
    refused(api.post(f"/rounds/{made}/reports", {}), 422, "validation_failed")
    wire.n_regular = 0
    return made


def sent(api: Api, round_id: str, *more: bytes, body: bytes | None = None) -> bytes:
    """Return the bytes of a request with a report."""
    body = json.dumps(single()).encode() if body is None else body
    lines = [
        b"POST /v1/rounds/%s/reports HTTP/1.1" % round_id.encode(),
        b"Host: x",
        b"Authorization: Bearer %s" % api.secret.encode(),
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        *more,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def report(wire: OnTheWire, api: Api, round_id: str) -> tuple[int, str]:
    """Send a report in one piece. Return the status and the code of the problem, if any."""
    with wire.connect() as connected:
        connected.sendall(sent(api, round_id))
        ((status, _, body),) = read_answers(connected, 1)
    return status, json.loads(body).get("code", "")


@SQLITE_ONLY
class TestPlainReport:
    def test_is_stored_and_gets_the_response_of_the_application(
        self, wire: OnTheWire, api: Api, database: Database, round_id: str
    ) -> None:
        one = single(slot=0, value=b"\x03")
        with wire.connect() as connected:
            connected.sendall(sent(api, round_id, body=json.dumps(one).encode()))
            (plain,) = read_answers(connected, 1)
            assert wire.n_regular == 0
            assert stored(database, round_id) == [bytes.fromhex(one["report_id"]) + b"\0\0\0\0\x03"]
            wire.app.reports._is_enabled = False
            connected.sendall(sent(api, round_id))
            (regular,) = read_answers(connected, 1)
            wire.app.reports._is_enabled = True
        assert wire.n_regular == 1
        assert plain[0] == regular[0] == 202
        assert plain[2] == regular[2]
        assert json.loads(plain[2]) == {"round_id": round_id, "accepted": 1}
        assert list(plain[1]) == list(regular[1])  # same headers, same order
        differ = {name for name in plain[1] if plain[1][name] != regular[1][name]}
        assert differ - {"date"} == {"x-request-id"}
        assert len(plain[1]["x-request-id"]) == 16

    def test_may_be_a_packed_batch(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        body = b"".join(index.to_bytes(16, "big") + b"\0\0\0\0\x01" for index in range(100))
        octets = sent(api, round_id, body=body).replace(b"application/json", OCTETS["content-type"].encode())
        with wire.connect() as connected:
            connected.sendall(octets)
            ((status, _, received),) = read_answers(connected, 1)
        assert (status, json.loads(received)["accepted"], wire.n_regular) == (202, 100, 0)
        assert api.n_received(round_id) == 100

    def test_is_left_to_the_application_if_it_is_chunked_or_waits_for_100_continue(
        self, wire: OnTheWire, api: Api, round_id: str
    ) -> None:
        head, _, body = sent(api, round_id).partition(b"\r\n\r\n")
        chunked = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
        with wire.connect() as connected:
            connected.sendall(chunked + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            ((status, _, _),) = read_answers(connected, 1)
            assert (status, wire.n_regular) == (202, 1)
            connected.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
            assert connected.recv(100).startswith(b"HTTP/1.1 100 ")
            connected.sendall(body)
            ((status, _, _),) = read_answers(connected, 1)
            assert (status, wire.n_regular) == (202, 2)

    def test_is_counted_in_the_metrics(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        def answered() -> float:
            labels = {"route": "/v1/rounds/{round_id}/reports", "method": "POST", "status": "202"}
            return wire.app.state.context.metrics.registry.get_sample_value("sfumato_requests_total", labels) or 0.0

        before = answered()
        with wire.connect() as connected:
            connected.sendall(sent(api, round_id) * 3)
            read_answers(connected, 3)
        assert (answered() - before, wire.n_regular) == (3, 0)
        assert wire.app.reports._endpoint.memory.n_bytes == 0

    def test_may_follow_its_head(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        """The HTTP library of the SDK sends them apart."""
        head, _, body = sent(api, round_id).partition(b"\r\n\r\n")
        with wire.connect() as connected:
            for pause, n_regular in ((0.0, 0), (0.5, 1)):
                connected.sendall(head + b"\r\n\r\n" + body[:9])
                time.sleep(pause)
                connected.sendall(body[9:])
                ((status, _, _),) = read_answers(connected, 1)
                assert (status, wire.n_regular) == (202, n_regular)

    def test_keeps_its_memory_until_its_commit_ends_if_its_client_leaves(
        self, wire: OnTheWire, api: Api, round_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        front, real = wire.app.reports, wire.app.state.context.database.run_in
        has_begun, may_end = threading.Event(), threading.Event()

        def run_in(*given: Any) -> Any:
            has_begun.set()
            assert may_end.wait(60)
            return real(*given)

        monkeypatch.setattr(wire.app.state.context.database, "run_in", run_in)
        connected = wire.connect()
        connected.sendall(sent(api, round_id))
        assert has_begun.wait(60)
        connected.close()
        time.sleep(0.05)
        assert front._memory.n_bytes > 0
        may_end.set()
        until = time.monotonic() + 60
        while front._memory.n_bytes > 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert (front._memory.n_bytes, wire.n_regular, api.n_received(round_id)) == (0, 0, 1)


@SQLITE_ONLY
class TestConnection:
    def test_that_reads_too_slowly_is_left_to_the_application(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        """The application waits until the client has read earlier responses."""
        with wire.connect() as connected:
            connected.sendall(sent(api, round_id))
            read_answers(connected, 1)
            (own,) = (each for each in wire.server.server_state.connections if each._client == connected.getsockname())
            loop, is_paused = own._loop, threading.Event()
            loop.call_soon_threadsafe(own.pause_writing)
            loop.call_soon_threadsafe(is_paused.set)
            assert is_paused.wait(60)
            connected.sendall(sent(api, round_id))
            connected.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connected.recv(1)
            loop.call_soon_threadsafe(own.resume_writing)
            connected.settimeout(60)
            ((status, _, _),) = read_answers(connected, 1)
        assert (status, wire.n_regular) == (202, 1)

    def test_is_closed_after_the_response_if_the_gateway_stops(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, has_begun, may_end = database.run_in, threading.Event(), threading.Event()

        def run_in(transaction: Any, name: str, work: Callable[..., Any]) -> Any:
            if name == "receive_reports":
                has_begun.set()
                assert may_end.wait(60)
            return real(transaction, name, work)

        with OnTheWire(create_app(settings, database)) as wire:
            api = stranger(wire.client, database)
            round_id = known(wire, api)
            monkeypatch.setattr(database, "run_in", run_in)
            with wire.connect() as connected:
                connected.sendall(sent(api, round_id))
                assert has_begun.wait(60)
                wire.server.should_exit = True
                time.sleep(0.5)
                may_end.set()
                ((status, _, _),) = read_answers(connected, 1)
                assert connected.recv(1) == b""
        assert (status, wire.n_regular) == (202, 0)


@SQLITE_ONLY
class TestApplication:
    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            (b"{", 400, "bad_request"),
            (b"[]", 422, "validation_failed"),
            (b'{"report_id": "%s", "slot": 9, "value": "AQ=="}' % (b"0" * 32), 422, "report_malformed"),
        ],
    )
    def test_answers_rejected_bodies(
        self, wire: OnTheWire, api: Api, round_id: str, body: bytes, status: int, code: str
    ) -> None:
        answer = api.post(f"/rounds/{round_id}/reports", content=body, headers={"content-type": "application/json"})
        refused(answer, status, code)
        assert (wire.n_regular, api.n_received(round_id)) == (1, 0)

    def test_answers_rejected_keys(self, wire: OnTheWire, api: Api, database: Database, round_id: str) -> None:
        path = f"/v1/rounds/{round_id}/reports"
        reader, other = api.key("jobs"), stranger(wire.client, database)
        bound = api.key("device", dataset_id=api.dataset()["id"])
        for each, status in ((reader, 403), (other, 404), (bound, 404)):
            for _ in range(2):  # not cached first, then cached
                headers = {"authorization": f"Bearer {each.secret}"}
                assert wire.client.post(path, json=single(), headers=headers).status_code == status
        for header in ("", "Bearer", f"Bearer {'x' * 300}", "Bearer sfk_unknown"):
            answer = wire.client.post(path, json=single(), headers={"authorization": header})
            refused(answer, 401, "unauthenticated")
        assert wire.client.post(path, json=single()).status_code == 401

    @pytest.mark.parametrize("path", ["/v1/rounds/{}/reports", "/v1/datasets"])
    def test_rejects_two_authorization_headers(self, wire: OnTheWire, api: Api, round_id: str, path: str) -> None:
        key = ("Authorization", f"Bearer {api.secret}")
        for headers in ([key, key], [key, ("authorization", "Bearer sfk_x")], [("authorization", ""), key]):
            answer = wire.client.post(path.format(round_id), json=single(), headers=headers)
            refused(answer, 400, "bad_request")
        assert api.n_received(round_id) == 0

    def test_rejects_two_content_types(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        request = sent(api, round_id)
        kinds = {b"": 202, b"application/json;q=1": 202, b"application/octet-stream": 415}
        for n_before, (kind, expected) in enumerate(kinds.items()):
            with wire.connect() as connected:
                connected.sendall(request.replace(b"Host: x", b"Host: x\r\nContent-Type: " + kind))
                ((status, _, _),) = read_answers(connected, 1)
            assert (status, wire.n_regular) == (expected, n_before + 1)

    def test_limits_the_reports_of_a_device_key(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limited = settings.model_copy(update={"device_batch": 3, "reports_per_address": 8})
        with OnTheWire(create_app(limited, database)) as wire:
            api = stranger(wire.client, database)
            path = f"/rounds/{api.round(api.dataset()['id'])['id']}/reports"
            octets: dict[str, str] = {"content-type": "application/octet-stream"}
            device, keeper = api.key("device"), api.key("device", "datasets")
            for _ in range(2):  # not cached first, then cached
                refused(device.post(path, content=packed(4), headers=octets), 413, "payload_too_large")
                assert device.post(path, content=packed(3), headers=octets).status_code == 202
            problem = device.post(path, content=packed(3), headers=octets)
            assert refused(problem, 429, "rate_limited")["detail"].startswith("the rate limit `reports-address`")
            assert 1 <= int(problem.headers["retry-after"]) <= 60
            assert device.post(path, content=packed(2), headers=octets).status_code == 202
            refused(device.post(path, single()), 429, "rate_limited")
            assert keeper.post(path, content=packed(20), headers=octets).status_code == 202

    def test_answers_a_revoked_key(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        device = api.made("/keys", {"name": "k", "scopes": ["device"]})
        caller = Api(wire.client, api.database, device["secret"])
        for _ in range(2):
            assert caller.report(round_id).status_code == 202
        assert wire.n_regular == 1
        assert api.request("DELETE", f"/keys/{device['id']}").status_code == 204
        refused(caller.report(round_id), 401, "unauthenticated")

    def test_answers_for_a_closed_round(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        assert (report(wire, api, round_id)[0], wire.n_regular) == (202, 0)
        assert api.post(f"/rounds/{round_id}/close").status_code == 200
        for _ in range(2):  # rejected by the commit first, then by the cache
            assert report(wire, api, round_id) == (409, "round_closed")
        assert api.n_received(round_id) == 1

    def test_stores_reports_again_after_a_failed_commit(
        self, wire: OnTheWire, api: Api, round_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database, real = wire.app.state.context.database, wire.app.state.context.database.run_in
        left = [2]

        def run_in(transaction: Any, name: str, work: Callable[..., Any]) -> Any:
            if name == "receive_reports" and left[0]:
                left[0] -= 1
                raise OSError("the disk is full")
            return real(transaction, name, work)

        monkeypatch.setattr(database, "run_in", run_in)
        assert report(wire, api, round_id) == (503, "unavailable")
        assert (left, wire.n_regular) == ([0], 1)
        assert api.report(round_id).status_code == 202
        assert api.n_received(round_id) == 1
        assert wire.app.reports._endpoint.memory.n_bytes == 0

    def test_answers_at_the_memory_limit(
        self, wire: OnTheWire, api: Api, round_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wire.app.reports._endpoint.memory, "_max_bytes", 10)
        refused(api.report(round_id), 503, "unavailable")
        assert wire.n_regular == 1

    def test_answers_pages_of_other_origins(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        answer = api.post(f"/rounds/{round_id}/reports", single(), headers=ORIGIN)
        assert (answer.status_code, wire.n_regular) == (202, 1)
        assert answer.headers["access-control-allow-origin"] == ORIGIN["origin"]

    def test_applies_rate_limits_and_body_limits(self, database: Database, settings: Settings) -> None:
        limited = settings.model_copy(update={"rate_per_device_key": 4, "max_body_bytes": 1024})
        with OnTheWire(create_app(limited, database)) as wire:
            api = stranger(wire.client, database)
            round_id = known(wire, api)
            padded = {"content": json.dumps(single()) + " " * 1024, "headers": {"content-type": "application/json"}}
            refused(api.post(f"/rounds/{round_id}/reports", **padded), 413, "payload_too_large")
            answers = [api.report(round_id) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [202, 202, 429]
        assert 'device-key";r=' in answers[0].headers["ratelimit"]

    def test_answers_while_the_gateway_stops(self, database: Database, settings: Settings) -> None:
        with OnTheWire(create_app(settings, database)) as wire:
            api = stranger(wire.client, database)
            round_id = known(wire, api)
            wire.app.state.context.stopping.set()
            answer = api.report(round_id)
            health = wire.client.get("/healthz")
        assert (answer.status_code, answer.headers["connection"], wire.n_regular) == (202, "close", 1)
        assert (health.status_code, health.headers["connection"]) == (200, "close")


@SQLITE_ONLY
def test_healthz_is_answered_as_by_its_route(wire: OnTheWire, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> tuple[int, dict[str, str], bytes]:
        with wire.connect() as connected:
            connected.sendall(HEALTH)
            ((status, headers, body),) = read_answers(connected, 1)
        return status, {name: value for name, value in headers.items() if name not in ("date", "x-request-id")}, body

    direct = answer()
    monkeypatch.setattr("service.app.HEALTH", None)
    status, headers, body = answer()
    assert (status, body) == (direct[0], direct[2]) == (200, b'{"status":"ok"}')
    assert headers == direct[1]
