"""A stopping gateway first drains its clients, and no accepted request fails."""

import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from devservers.loopback import NO_TLS
from models.collection import report_log
from models.database.engine import Database
from tests.service.api import Api, packed, single, stranger
from tests.service.processes import Running, running, until

CLIENTS = 6


def is_listening(gateway: Running) -> bool:
    url = httpx.URL(gateway.url())
    try:
        socket.create_connection((url.host, url.port or 80), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def settings(database_url: str, database_kind: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the settings of all gateways: the database, and Redis with PostgreSQL."""
    own = {"SFUMATO_DATABASE_URL": database_url}
    if database_kind == "postgresql":
        own["SFUMATO_REDIS_URL"] = request.getfixturevalue("redis_url")
    return own


class TestDraining:
    @pytest.mark.slow
    def test_no_request_fails_if_clients_reconnect_elsewhere(
        self, tmp_path: Path, database: Database, settings: dict[str, str]
    ) -> None:
        with (
            running(tmp_path / "a", "gateway", "--port", "0", **settings, SFUMATO_DRAIN_SECONDS="300") as first,
            running(tmp_path / "b", "gateway", "--port", "0", **settings, SFUMATO_DRAIN_SECONDS="1") as second,
            httpx.Client(base_url=second.url(), timeout=60, verify=NO_TLS) as steady,
        ):
            api = stranger(steady, database)
            round_id = api.round(api.dataset()["id"], target_reports=10**6)["id"]
            job_id = api.job(api.dataset()["id"])["id"]
            sent: list[str] = []
            moved: list[int] = []
            ended = threading.Event()

            def ask(number: int) -> None:
                """Send over one connection until the gateway closes it, then over one to the other gateway."""
                with (
                    httpx.Client(base_url=first.url(), timeout=60, verify=NO_TLS) as here,
                    httpx.Client(base_url=second.url(), timeout=60, verify=NO_TLS) as there,
                ):
                    client = here
                    while not ended.is_set():
                        one = single()
                        answer = Api(client, database, api.secret).post(f"/rounds/{round_id}/reports", one)
                        assert answer.status_code == 202, answer.text
                        sent.append(one["report_id"])
                        if client is here and answer.headers.get("connection") == "close":
                            client = there
                            moved.append(number)

            with ThreadPoolExecutor(CLIENTS + 1) as pool:
                asking = [pool.submit(ask, number) for number in range(CLIENTS)]
                watching = pool.submit(httpx.get, f"{first.url()}/v1/jobs/{job_id}", params={"wait": 60}, timeout=90,
                                       headers={"Authorization": f"Bearer {api.secret}"})  # fmt: skip
                until(lambda: len(sent) > 10 * CLIENTS)
                assert moved == []
                first.process.send_signal(signal.SIGTERM)
                until(lambda: httpx.get(f"{first.url()}/readyz", verify=NO_TLS).status_code == 503)
                assert watching.result(60).json()["state"] == "queued"
                until(lambda: len(moved) == CLIENTS)
                answer = httpx.get(
                    f"{first.url()}/v1/jobs", headers={"Authorization": f"Bearer {api.secret}"}, verify=NO_TLS
                )
                assert answer.status_code == 200  # new requests are still served
                assert is_listening(first)
                first.process.send_signal(signal.SIGTERM)  # all clients have left, so stop at once
                assert first.process.wait(60) == 0
                n_sent = len(sent)
                until(lambda: len(sent) > n_sent + CLIENTS)
                ended.set()
                for each in asking:
                    each.result(60)
            assert sorted(moved) == list(range(CLIENTS))
            with database.reading() as session:
                held = b"".join(data for _, data in report_log.batches(session, round_id))
            assert len(held) == 21 * len(sent)
            assert httpx.get(f"{second.url()}/readyz", verify=NO_TLS).status_code == 200

    @pytest.mark.parametrize(
        ("database_kind", "how"),
        [("sqlite", signal.SIGINT), ("postgresql", signal.SIGTERM)],
        indirect=["database_kind"],
    )
    def test_a_current_request_is_answered_after_the_port_is_closed(
        self, tmp_path: Path, database: Database, settings: dict[str, str], how: signal.Signals
    ) -> None:
        settings["SFUMATO_DRAIN_SECONDS"] = "0.1"
        with (
            running(tmp_path / "a", "gateway", "--port", "0", **settings) as gateway,
            httpx.Client(base_url=gateway.url(), timeout=60, verify=NO_TLS) as http,
        ):
            api = stranger(http, database)
            round_id = api.round(api.dataset()["id"], target_reports=10**6)["id"]
            body = packed(100)
            head = (
                f"POST /v1/rounds/{round_id}/reports HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.secret}\r\n"
                f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            url = httpx.URL(gateway.url())
            with socket.create_connection((url.host, url.port or 80), timeout=60) as wire:
                wire.sendall(head.encode() + body[:500])
                assert http.get("/healthz").status_code == 200  # earlier data has been read by now
                gateway.process.send_signal(how)
                until(lambda: not is_listening(gateway))
                wire.sendall(body[500:])
                heard = b""
                while part := wire.recv(65536):
                    heard += part
            assert b" 202 " in heard
            assert b"connection: close" in heard.lower()
            assert gateway.process.wait(60) == 0
            with database.reading() as session:
                assert len(b"".join(data for _, data in report_log.batches(session, round_id))) == len(body)
