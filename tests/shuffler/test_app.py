"""The shuffler over HTTP: what devices receive, what it refuses, and what it never shows."""

import base64
import logging
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn

from connections.server import address, bind, configuration
from devservers.loopback import NO_TLS
from sfumato.device.sealing import OUTER_KEY_HEADER, SIGNATURE_HEADER, verify_round
from sfumato.transport.batches import generate_signing_key_pair
from sfumato.transport.http import Http, PoolSettings
from shuffler import app as app_module
from shuffler import releases
from shuffler.__main__ import run
from shuffler.app import create_app
from shuffler.queue import Group, Queue, Sender
from shuffler.rounds import Round, parse_round
from tests.batches import parse_batch
from tests.service.processes import until
from tests.shuffler.parties import DATASET, FakeService, numbers, published, sealed_for, wrapped_for

SLOW_SECONDS = 0.5
PRIVATE, PUBLIC = generate_signing_key_pair()


@dataclass
class Parties:
    client: httpx.Client
    service: FakeService
    key: str

    def post(self, person: str, sealed: bytes, round_id: str = "rnd_1", **headers: str) -> httpx.Response:
        own = {"Authorization": f"Bearer {self.key}", "Sfumato-Sender": person}
        return self.client.post(f"/v1/rounds/{round_id}/sealed", content=sealed, headers=own | headers)

    def wrapped(self, number: int, round_id: str = "rnd_1") -> bytes:
        """Return a wrapped report with a number as its id."""
        announced = self.get(f"/v1/rounds/{round_id}")
        return wrapped_for(
            parse_round(announced.content), number, base64.b64decode(announced.headers[OUTER_KEY_HEADER])
        )

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path, headers={"Authorization": f"Bearer {self.key}"})


@contextmanager
def running(
    home: Path, service: FakeService, private_key: bytes = PRIVATE, release_seconds: float = 0.0, **options: Any
) -> Iterator[Parties]:
    """Run a shuffler; the backend `app` has a key from the first run on."""
    pool = Http(service.url, "sfk_x", PoolSettings(60, 0, 1 << 20))
    with closing(Queue(home / "shuffler.db")) as queue, closing(pool):
        key = queue.add_sender(Sender("app", DATASET, True)) or queue.replace_key("app")
        assert key is not None
        app = create_app(queue, pool, private_key, release_seconds=release_seconds, **options)
        server = uvicorn.Server(configuration(app, SLOW_SECONDS))
        with bind("127.0.0.1", 0) as bound:
            thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
            thread.start()
            try:
                until(lambda: server.started, 20)
                with httpx.Client(base_url=address(bound, None), timeout=60, verify=NO_TLS) as client:
                    yield Parties(client, service, key)
            finally:
                server.should_exit = True
                thread.join()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    monkeypatch.setattr("shuffler.directory.CACHE_SECONDS", 0)
    with FakeService(PUBLIC).running() as started:
        started.rounds["rnd_1"] = published()
        yield started


@pytest.fixture
def parties(tmp_path: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parties]:
    monkeypatch.setattr(releases, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(releases, "CHECK_SECONDS", 0.02)
    with running(tmp_path, service) as started:
        assert started.get(f"/v1/datasets/{DATASET}/rounds").json() == {"rounds": ["rnd_1"]}
        yield started


class TestRounds:
    def test_have_the_bytes_of_the_service_and_a_signature(self, parties: Parties, service: FakeService) -> None:
        first = parties.get("/v1/rounds/rnd_1")
        assert first.content == service.rounds["rnd_1"]
        signature = base64.b64decode(first.headers[SIGNATURE_HEADER])
        outer_key = base64.b64decode(first.headers[OUTER_KEY_HEADER])
        assert verify_round("rnd_1", first.content, outer_key, signature, PUBLIC)
        assert not verify_round("rnd_2", first.content, outer_key, signature, PUBLIC)
        assert not verify_round("rnd_1", first.content + b" ", outer_key, signature, PUBLIC)
        assert parties.get("/v1/rounds/rnd_1").headers[OUTER_KEY_HEADER] == first.headers[OUTER_KEY_HEADER]

    def test_remain_the_same_if_the_service_changes_them_or_fails(
        self, parties: Parties, service: FakeService, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = parties.get("/v1/rounds/rnd_1").content
        service.rounds["rnd_1"] = published(min_batch=1)
        parties.get(f"/v1/datasets/{DATASET}/rounds")
        assert "other bytes" in caplog.text
        service.is_down = True
        assert parties.get(f"/v1/datasets/{DATASET}/rounds").json() == {"rounds": ["rnd_1"]}
        assert parties.get("/v1/rounds/rnd_1").content == first

    def test_are_not_listed_while_the_service_never_answered(self, tmp_path: Path, service: FakeService) -> None:
        service.is_down = True
        with running(tmp_path, service) as parties:
            problem = parties.get(f"/v1/datasets/{DATASET}/rounds")
        assert (problem.status_code, problem.json()["code"]) == (503, "service_unavailable")

    @pytest.mark.parametrize("path", ["/v1/datasets/ds_2/rounds", "/v1/rounds/rnd_2", "/v1/rounds/rnd_1/x"])
    def test_of_others_do_not_exist(self, parties: Parties, path: str) -> None:
        assert parties.get(path).json()["code"] == "not_found"

    @pytest.mark.parametrize(
        "path",
        [f"/v1/datasets/{DATASET}/rounds", "/v1/rounds/rnd_1", "/v1/rounds/rnd_1/sealed", "/metrics", "/healthz"],
    )
    def test_refuse_what_they_do_not_read(self, parties: Parties, path: str) -> None:
        method = "POST" if path.endswith("sealed") else "GET"
        refused = parties.client.request(method, path, params={"stat": "private"})
        assert (refused.status_code, refused.json()["code"]) == (422, "validation_failed")
        assert "stat" in refused.json()["detail"]
        assert "private" not in refused.text
        if method == "GET":
            assert parties.client.request("GET", path, content=b"{}").json()["code"] == "validation_failed"

    @pytest.mark.parametrize("path", [f"/v1/datasets/{DATASET}/rounds", "/v1/rounds/rnd_1"])
    def test_need_a_key(self, parties: Parties, path: str) -> None:
        for headers in ({}, {"Authorization": "Bearer sfs_guess"}, {"Authorization": f"Basic {parties.key}"}):
            response = parties.client.get(path, headers=headers)
            assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")

    def test_read_headers_as_proxies_rewrite_them(self, parties: Parties) -> None:
        path = "/v1/rounds/rnd_1"
        for scheme in ("bearer", "BEARER", "Bearer "):
            assert parties.client.get(path, headers={"Authorization": f"{scheme} {parties.key}"}).status_code == 200
        twice = [("Authorization", f"Bearer {parties.key}"), ("Authorization", "Bearer sfs_guess")]
        for headers in (twice, {"Authorization": f"Bearer {parties.key}, Bearer sfs_guess"}):
            refused = parties.client.get(path, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (400, "bad_request")

    @pytest.mark.parametrize(
        "listing",
        [
            b"",
            b"[]",
            b'{"rounds":null}',
            b'{"rounds":[{"id":NaN}]}',
            b'{"rounds":[{"id":"\\ud800"}]}',
            b'{"rounds":[%s]}' % published(target_reports=5).replace(b'"target_reports":5', b'"target_reports":1e999'),
            b'{"rounds":[%s]}' % published().replace(b'"min_batch":3', b'"min_batch":Infinity'),
            b'{"rounds":%s}' % (b"[" * 50_000 + b"]" * 50_000),
            b'{"rounds":[%s]}' % published().replace(b'"min_batch":3', b'"min_batch":' + b"9" * 5000),
            b'{"rounds":[],"x":"' + b"x" * (1 << 20) + b'"}',
            b"\xff\xfe",
        ],
        ids=range(11),
    )
    def test_remain_after_an_odd_answer_of_the_service(
        self, parties: Parties, service: FakeService, listing: bytes
    ) -> None:
        service.listing = listing
        n_listed = service.n_listed
        assert parties.get(f"/v1/datasets/{DATASET}/rounds").json() == {"rounds": ["rnd_1"]}
        assert service.n_listed > n_listed
        service.listing = None
        service.rounds["rnd_2"] = published("rnd_2")
        assert parties.get(f"/v1/datasets/{DATASET}/rounds").json() == {"rounds": ["rnd_1", "rnd_2"]}

    def test_of_a_frozen_service_delay_one_request_and_nothing_else(
        self, parties: Parties, service: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shuffler.directory.WAIT_SECONDS", 60)
        wrapped, n_listed = parties.wrapped(1), service.n_listed
        service.is_frozen.set()
        path, headers = f"/v1/datasets/{DATASET}/rounds", {"Authorization": f"Bearer {parties.key}"}
        url = parties.client.base_url
        answers: list[dict[str, Any]] = []
        try:
            poll = threading.Thread(
                target=lambda: answers.append(
                    httpx.get(f"{url}{path}", headers=headers, timeout=60, verify=NO_TLS).json()
                )
            )
            poll.start()
            until(lambda: service.n_listed > n_listed, 20)
            for _ in range(60):  # more than the threads of a server
                assert parties.get(path).json() == {"rounds": ["rnd_1"]}
            until(lambda: parties.client.get("/healthz").status_code == 200, 20)
            assert parties.post("ann", wrapped).status_code == 202
            assert service.n_listed == n_listed + 1
            assert answers == []
        finally:
            service.is_frozen.clear()
        poll.join()
        assert answers == [{"rounds": ["rnd_1"]}]

    def test_of_a_frozen_service_wait_a_short_time(
        self, parties: Parties, service: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shuffler.directory.WAIT_SECONDS", 0.1)
        service.is_frozen.set()
        try:
            assert parties.get(f"/v1/datasets/{DATASET}/rounds").json() == {"rounds": ["rnd_1"]}
        finally:
            service.is_frozen.clear()


class TestSealedReports:
    def test_are_released_whole_and_opened_by_the_service_alone(self, parties: Parties, service: FakeService) -> None:
        found, reports = parsed_of(service), [parties.wrapped(number) for number in range(10)]
        for number in range(5):
            response = parties.post(f"p{number}", reports[number])
            assert (response.status_code, response.json()) == (202, {"round_id": "rnd_1", "accepted": 1})
        until(lambda: service.accepted, 20)
        assert sorted(numbers(parse_batch(service.accepted["rnd_1"]).reports, found)) == [0, 1, 2, 3, 4]
        late = parties.post("p9", reports[9])
        assert (late.status_code, late.json()["code"]) == (409, "round_closed")

    def test_bad_ones_have_clear_problems(self, parties: Parties, service: FakeService) -> None:
        found, sealed = parsed_of(service), parties.wrapped(1)
        assert parties.post("ann", sealed).status_code == 202
        rejected = [
            (parties.post("ann", parties.wrapped(2)), 409, "already_reported"),
            (parties.post("bob", sealed[1:]), 422, "sealed_length"),
            (parties.post("bob", sealed_for(found, 1)), 422, "sealed_length"),
            (parties.post("bob", sealed_for(found, 1).rjust(len(sealed))), 422, "outer_layer"),
            (parties.post("bob", b""), 422, "sealed_length"),
            (parties.post("bob", bytes((1 << 16) + 1)), 413, "body_too_large"),
            (parties.post("bob", sealed, "rnd_2"), 404, "not_found"),
            (parties.post("bob", sealed, Authorization="Bearer sfs_guess"), 401, "unauthenticated"),
            (parties.post("b" * 201, sealed), 422, "sender_missing"),
            (parties.post("", sealed), 422, "sender_missing"),
            (parties.client.put("/v1/rounds/rnd_1/sealed"), 405, "method_not_allowed"),
        ]
        for response, status, code in rejected:
            assert response.headers["content-type"] == "application/problem+json"
            assert (response.status_code, response.json()["status"], response.json()["code"]) == (status, status, code)
        assert parties.post("ann", sealed).status_code == 202

    def test_are_refused_when_too_many_wait_or_too_slow(
        self, parties: Parties, service: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrapped = parties.wrapped(1)
        monkeypatch.setattr("shuffler.intake.MAX_WAITING", 0)
        overloaded = parties.post("ann", wrapped)
        assert (overloaded.json()["code"], overloaded.headers["Retry-After"]) == ("overloaded", "5")
        monkeypatch.setattr(app_module, "BODY_SECONDS", 0.05)

        def pause() -> Iterator[bytes]:
            yield b"0"
            time.sleep(0.3)
            yield b"1"

        headers = {"Authorization": f"Bearer {parties.key}"}
        slow = parties.client.post("/v1/rounds/rnd_1/sealed", content=pause(), headers=headers)
        assert slow.json()["code"] == "request_timeout"

    def test_a_failed_commit_is_a_problem_and_the_next_one_succeeds(
        self, parties: Parties, service: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sealed = parties.wrapped(1)
        with monkeypatch.context() as patched:
            patched.setattr(Group, "store", lambda *_: 1 / 0)
            assert parties.post("ann", sealed).json()["code"] == "overloaded"
        assert parties.post("ann", sealed).status_code == 202


class TestDatabase:
    def test_a_reader_delays_reports_and_the_health_check_shows_it(
        self, parties: Parties, tmp_path: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A backup or a shell reads the file for longer than a commit waits."""
        monkeypatch.setattr(app_module, "HEALTH_SECONDS", 0.3)
        sealed = parties.wrapped(1)
        until(lambda: parties.client.get("/healthz").json() == {"status": "ok"}, 20)
        with closing(sqlite3.connect(tmp_path / "shuffler.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM reports").fetchone()
            problem = parties.post("ann", sealed)
            assert (problem.status_code, problem.json()["code"]) == (503, "overloaded")
            until(lambda: parties.client.get("/healthz").status_code == 503, 20)
            reader.execute("COMMIT")
        until(lambda: parties.client.get("/healthz").status_code == 200, 20)
        assert parties.post("ann", sealed).status_code == 202

    def test_errors_of_reads_are_problems(self, parties: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(Queue, "find_sender", fail)
        problem = parties.get("/v1/rounds/rnd_1")
        assert (problem.status_code, problem.json()["code"]) == (503, "overloaded")


class TestConnections:
    def test_heads_without_end_are_refused(self, parties: Parties) -> None:
        with socket.create_connection((parties.client.base_url.host, parties.client.base_url.port), 20) as connected:
            connected.sendall(b"GET /healthz HTTP/1.1\r\nA: " + b"x" * (64 << 10))
            assert connected.recv(100).startswith(b"HTTP/1.1 431 ")

    def test_slow_heads_are_closed(self, parties: Parties) -> None:
        with socket.create_connection((parties.client.base_url.host, parties.client.base_url.port), 20) as connected:
            connected.sendall(b"GET /healthz HTTP/1.1\r\n")
            assert connected.recv(100) == b""

    def test_succeed_as_soon_as_the_address_is_printed(
        self, tmp_path: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SFUMATO_URL", service.url)
        monkeypatch.setenv("SFUMATO_KEY", "sfk_x")
        lines: list[str] = []

        def connect(line: str) -> None:
            address = urlsplit(line.rpartition(" ")[2])
            socket.create_connection((address.hostname, address.port), 20).close()
            lines.append(line)

        monkeypatch.setattr("typer.echo", connect)
        monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
        run(home=tmp_path, host="127.0.0.1", port=0, release_seconds=1.0)
        assert len(lines) == 1


class TestReleases:
    def fill(self, parties: Parties, service: FakeService, n: int = 5) -> None:
        for number in range(n):
            assert parties.post(f"p{number}", parties.wrapped(number)).status_code == 202

    def test_resend_the_same_bytes_until_the_service_acknowledges(self, parties: Parties, service: FakeService) -> None:
        service.failures = [500, 503, 429, 200, 404]  # 200 comes from a proxy: the service's receipt has 202
        self.fill(parties, service)
        until(lambda: len(service.attempts) >= 6, 20)
        assert len(set(service.attempts)) == 1
        until(lambda: 'state="acknowledged"} 1' in parties.client.get("/metrics").text, 20)

    def test_end_when_the_service_closed_the_round(self, parties: Parties, service: FakeService) -> None:
        self.fill(parties, service, 4)
        last = parties.wrapped(4)
        del service.rounds["rnd_1"]
        assert parties.post("p4", last).status_code == 202
        until(lambda: 'state="refused"} 1' in parties.client.get("/metrics").text, 20)
        assert len(service.attempts) == 1

    def test_wait_for_a_time_that_the_last_report_does_not_determine(
        self, tmp_path: Path, service: FakeService
    ) -> None:
        """The clock is injected: the time is that of the last report until it passes all release times."""
        now = [1000.0]
        with running(tmp_path, service, release_seconds=600, clock=lambda: now[0]) as parties:
            parties.get(f"/v1/datasets/{DATASET}/rounds")
            self.fill(parties, service)
            assert parties.get(f"/v1/datasets/{DATASET}/rounds").json() == {"rounds": []}
            time.sleep(0.2)
            assert 'state="open"} 1' in parties.client.get("/metrics").text
        with running(tmp_path, service, release_seconds=600, clock=lambda: now[0]) as parties:
            time.sleep(0.2)
            assert service.attempts == []
            now[0] += 601
            until(lambda: service.accepted, 20)

    def test_of_a_wrong_key_wait_for_the_right_one(
        self, tmp_path: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The key is rotated during the round. The service refuses the batch until it has the dataset's key."""
        monkeypatch.setattr(releases, "FIRST_RETRY_SECONDS", 0.01)
        with running(tmp_path, service, generate_signing_key_pair()[0]) as parties:
            parties.get(f"/v1/datasets/{DATASET}/rounds")
            self.fill(parties, service)
            until(lambda: len(service.attempts) >= 2, 20)
            assert service.accepted == {}
        with running(tmp_path, service):
            until(lambda: service.accepted, 20)
        assert {parse_batch(body).sealed for _, body in service.attempts} == {
            parse_batch(service.accepted["rnd_1"]).sealed
        }

    def test_are_deleted_a_day_after_the_end_of_their_round(
        self, tmp_path: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(releases, "KEEP_SECONDS", -3600.0)
        service.failures = [500] * 1000
        with running(tmp_path, service) as parties:
            parties.get(f"/v1/datasets/{DATASET}/rounds")
            self.fill(parties, service)
            until(lambda: 'state="refused"} 1' in parties.client.get("/metrics").text, 20)


class TestSilence:
    def test_metrics_and_logs_contain_no_number_before_the_release_and_never_a_sender(
        self, parties: Parties, service: FakeService, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "shuffler")
        before = parties.client.get("/metrics").text
        for number in range(4):
            parties.post(f"secret-person-{number}", parties.wrapped(number))
        parties.post("secret-person-0", parties.wrapped(9))
        assert parties.client.get("/metrics").text == before
        assert [each for each in caplog.records if each.name.startswith("shuffler")] == []
        parties.post("secret-person-4", parties.wrapped(4))
        until(lambda: 'state="acknowledged"} 1' in parties.client.get("/metrics").text, 20)
        assert "sfumato_shuffler_released_reports_total 5\n" in parties.client.get("/metrics").text
        assert "round rnd_1: released, 5 reports" in caplog.text
        assert "secret-person" not in caplog.text
        assert parties.key not in caplog.text

    def test_the_answer_shows_nothing_of_other_reports(self, parties: Parties, service: FakeService) -> None:
        answers = [parties.post(f"p{number}", parties.wrapped(number)) for number in range(4)]
        for each in answers:
            del each.headers["date"]
        assert len({(each.content, str(each.headers)) for each in answers}) == 1


def parsed_of(service: FakeService) -> Round:
    return parse_round(service.rounds["rnd_1"])
