"""`sfumato serve` and `sfumato gateway` as processes, from the first start to shutdown or kill."""

import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from devservers.loopback import NO_TLS
from models.collection import report_log
from models.database.engine import Database
from models.database.schema import migrate
from service.cli import main
from sfumato import Auto, Client, Feature
from sfumato.specs import ALGORITHMS
from tests.service.api import Api, packed, refused, single, stranger
from tests.service.conftest import own_database
from tests.service.processes import Running, is_running, running, until


def mode(path: Path) -> int:
    """Return the permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


class TestServe:
    def test_locks_its_home_restarts_its_worker_ends_with_it_and_keeps_its_state(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        with running(home, "serve", "--port", "0") as first:
            url = first.url()
            assert (home / "url").read_text() == url + "\n"
            second = CliRunner().invoke(main.app, ["serve", "--port", "0", "--home", str(home)])
            assert (second.exit_code, f"served by process {first.process.pid}" in second.output) == (2, True)
            assert (home / "url").read_text() == url + "\n"
            key_file = home / "admin.key"
            assert mode(key_file) == 0o600
            secret = key_file.read_text().strip()
            records_key = (home / "records.key").read_text()
            assert mode(home / "records.key") == 0o600
            assert secret not in first.out + first.log  # neither is a terminal
            assert f"admin key    in {key_file}" in first.out
            assert f"{url}/docs" in first.out
            assert "curl" in first.out
            headers = {"Authorization": f"Bearer {secret}"}
            answer = httpx.get(f"{url}/v1/keys", headers=headers, timeout=60, verify=NO_TLS)
            assert [key["name"] for key in answer.json()["items"]] == ["first admin"]
            assert "server" not in answer.headers
            (worker,) = until(first.children)
            os.kill(worker, signal.SIGKILL)
            (again,) = until(lambda: [pid for pid in first.children() if pid != worker])
            until(lambda: "worker_started" in first.log.rpartition("worker_ended")[2])
            first.process.kill()
            first.process.wait()
            until(lambda: not is_running(again))
            assert {mode(path) for path in home.glob("sfumato.db*")} == {0o600}
            assert secret not in first.log
        with running(home, "serve", "--port", "0") as second:
            url = second.url()
            assert secret not in second.out
            assert key_file.read_text().strip() == secret
            assert (home / "records.key").read_text() == records_key
            assert len(httpx.get(f"{url}/v1/keys", headers=headers, timeout=60, verify=NO_TLS).json()["items"]) == 1
            (worker,) = until(second.children)
            assert second.stop() == 0
            until(lambda: not is_running(worker))
            assert not (home / "url").exists()

    @pytest.mark.slow
    def test_runs_a_job_over_records_with_the_created_key(self, tmp_path: Path) -> None:
        features = [Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0)]
        chance = np.random.default_rng(0)
        records = chance.normal(np.where(chance.random(4000) < 0.5, 0.25, 0.75)[:, None], 0.05, size=(4000, 2))
        with running(tmp_path / "home", "serve", "--port", "0", SFUMATO_WARM_KERNELS="true") as served:
            secret = (tmp_path / "home" / "admin.key").read_text().strip() if served.url() else ""
            with Client(served.url(), secret) as client:
                dataset = client.create_dataset("t", features, epsilon=3, trust="central")
                client.upload_records(dataset.id, records)
                job = client.wait_for_job(client.submit_job(dataset.id, Auto(2.0, 2)).id, timeout_seconds=240)
                assert (job.state, job.error) == ("succeeded", None)
                result = client.result(job.id)
                assert result.model.assign([[0.25, 0.25]]) != result.model.assign([[0.75, 0.75]])
                charged = {
                    entry.reference: entry.epsilon_nano for entry in client.ledger(dataset.id) if entry.kind == "charge"
                }
                assert charged == {query.reference: query.epsilon_nano for query in result.odometer}
                balance = client.budget(dataset.id).balance
                assert (balance.reserved_nano, balance.charged_nano) == (0, sum(charged.values()))
                assert client.verify_ledger(dataset.id).ok
            assert 4000 not in [value for line in served.lines() for key, value in line.items() if key != "pid"]
            until(lambda: any(line["event"] == "kernels_compiled" for line in served.lines()), 240)
            (compiled,) = [line for line in served.lines() if line["event"] == "kernels_compiled"]
            assert compiled["warmed"] == sorted(ALGORITHMS)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Api]]:
    """Run a gateway process over a migrated database, and yield it with a client."""
    home = tmp_path_factory.mktemp("live")
    with own_database(request.param, request, home) as url:
        database = Database(url)
        settings = {"SFUMATO_DATABASE_URL": url, "SFUMATO_MAX_BODY_BYTES": str(2 << 20), "SFUMATO_SLOW_SECONDS": "5"}
        with (
            running(home, "gateway", "--port", "0", **settings) as gateway,
            httpx.Client(
                base_url=gateway.url(), timeout=120, limits=httpx.Limits(max_connections=64), verify=NO_TLS
            ) as http,
        ):
            yield gateway, stranger(http, database)
        database.close()


@pytest.fixture
def live_api(live: tuple[Running, Api]) -> Api:
    return live[1]


def ids(api: Api, round_id: str) -> list[bytes]:
    """Return the ids of the stored reports of a round."""
    with api.database.reading() as session:
        stored = b"".join(data for _, data in report_log.batches(session, round_id))
    return [stored[at : at + 16] for at in range(0, len(stored), 21)]


def spoken(api: Api, sent: bytes, *, half_close: bool = False, until: bytes = b"") -> bytes:
    """Send bytes to the gateway; return its response up to `until`, the end of the connection, or a pause."""
    with socket.create_connection((api.http.base_url.host, api.http.base_url.port or 80), timeout=60) as wire:
        wire.sendall(sent)
        if half_close:
            wire.shutdown(socket.SHUT_WR)
        wire.settimeout(60.0 if until else 1.0)
        received = b""
        try:
            while part := wire.recv(65536):
                received += part
                if until and until in received:
                    break
        except (TimeoutError, ConnectionResetError):
            pass
        return received


def head(api: Api, round_id: str, *headers: str) -> bytes:
    lines = [
        f"POST /v1/rounds/{round_id}/reports HTTP/1.1",
        "Host: gateway",
        f"Authorization: Bearer {api.secret}",
        "Content-Type: application/octet-stream",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


class TestOverTheNetwork:
    @pytest.mark.slow
    def test_concurrent_clients_are_counted_exactly(self, live_api: Api) -> None:
        dataset = live_api.dataset(epsilon=32)
        rounds = [live_api.round(dataset["id"], target_reports=10**6)["id"] for _ in range(2)]
        sent = [(rounds[n % 2], single()) for n in range(800)]
        with ThreadPoolExecutor(24) as pool:
            statuses = set(pool.map(lambda one: live_api.post(f"/rounds/{one[0]}/reports", one[1]).status_code, sent))
        assert statuses == {202}
        for round_id in rounds:
            expected = {bytes.fromhex(one["report_id"]) for to, one in sent if to == round_id}
            stored = ids(live_api, round_id)
            assert len(stored) == len(expected) == live_api.n_received(round_id)
            assert set(stored) == expected

    def test_an_incomplete_body_stores_nothing(self, live_api: Api) -> None:
        round_id = live_api.round(live_api.dataset()["id"])["id"]
        body = packed(100)
        begun = head(live_api, round_id, f"Content-Length: {len(body)}") + body[: 21 * 50]
        assert b" 202 " not in spoken(live_api, begun, half_close=True, until=b" 202 ")
        chunk = b"%x\r\n" % (21 * 50) + body[: 21 * 50] + b"\r\n"
        assert b" 202 " not in spoken(live_api, head(live_api, round_id, "Transfer-Encoding: chunked") + chunk)
        assert ids(live_api, round_id) == []
        assert live_api.report(round_id).status_code == 202

    def test_a_chunked_body_is_stored_completely(self, live_api: Api) -> None:
        round_id = live_api.round(live_api.dataset()["id"])["id"]
        body = packed(100)
        parts = (body[at : at + 1000] for at in range(0, len(body), 1000))
        answer = live_api.post(
            f"/rounds/{round_id}/reports", content=parts, headers={"content-type": "application/octet-stream"}
        )
        assert answer.json()["accepted"] == 100
        assert len(ids(live_api, round_id)) == 100

    def test_an_endless_body_is_refused(self, live_api: Api) -> None:
        round_id = live_api.round(live_api.dataset()["id"])["id"]
        assert b" 413 " in spoken(live_api, head(live_api, round_id, "Content-Length: 99999999999"), until=b" 413 ")
        chunk = b"100000\r\n" + b"\0" * 0x100000 + b"\r\n"
        endless = head(live_api, round_id, "Transfer-Encoding: chunked") + chunk * 4
        received = spoken(live_api, endless, until=b"payload_too_large")
        assert b" 413 " in received
        assert b"payload_too_large" in received
        assert ids(live_api, round_id) == []
        assert live_api.get("/datasets").status_code == 200

    @pytest.mark.parametrize(
        "noise",
        [
            b"\0" * 1000,
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /v1/datasets HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
        ],
    )
    def test_invalid_requests_are_rejected(self, live_api: Api, noise: bytes) -> None:
        assert b" 2" not in spoken(live_api, noise, until=b"\r\n")[:14]
        assert live_api.get("/datasets").status_code == 200

    @pytest.mark.slow
    @pytest.mark.parametrize("flood", [b"X: y\r\n" * 20_000, b"X: " + b"y" * 200_000])
    def test_an_endless_header_is_rejected(self, live_api: Api, flood: bytes) -> None:
        try:
            received = spoken(live_api, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + flood, until=b" 200 ")
        except (BrokenPipeError, ConnectionResetError):
            received = b""
        assert b" 200 " not in received
        assert live_api.get("/datasets").status_code == 200

    def test_the_log_contains_paths_but_no_private_values(self, live: tuple[Running, Api]) -> None:
        gateway, api = live
        refused(api.get("/datasets?cursor=private-4711"), 422, "validation_failed")
        api.http.get("/v1/%1b[31mred")
        until(lambda: "[31mred" in gateway.log)
        assert "private-4711" not in gateway.log
        assert api.secret not in gateway.log
        listed = {line["path"]: line.get("key") for line in gateway.lines() if line["event"] == "request"}
        assert listed["/v1/datasets"].startswith("key_")
        api.key("device").get("/datasets/ds_of_a_device/round")
        until(lambda: "ds_of_a_device" in gateway.log)
        (of_device,) = (line for line in gateway.lines() if "ds_of_a_device" in line.get("path", ""))
        assert "key" not in of_device
        assert "\x1b" not in gateway.log


class TestHome:
    def test_that_cannot_be_created_is_explained(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        failed = CliRunner().invoke(main.app, ["serve", "--port", "0", "--home", str(tmp_path / "file" / "home")])
        assert (failed.exit_code, "cannot be used: Not a directory" in failed.output) == (2, True)


class TestDatabaseErrors:
    def test_are_shown_without_the_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"postgres://u:hunter2@127.0.0.1:{closed.getsockname()[1]}/hunter2"
            monkeypatch.setenv("SFUMATO_DATABASE_URL", url)
            failed = CliRunner().invoke(main.app, ["migrate"])
        assert failed.exit_code == 2
        assert "Connection refused" in failed.output
        assert "hunter2" not in failed.output

    def test_name_the_setting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SFUMATO_DATABASE_URL", "mysql://u:hunter2@h/x")
        for command in ("serve", "gateway", "worker", "migrate"):
            failed = CliRunner().invoke(main.app, [command])
            assert failed.exit_code == 2
            assert "SFUMATO_DATABASE_URL" in failed.output
            assert "hunter2" not in failed.output


class TestReportCommand:
    def test_sends_one_report_per_row_or_nothing(
        self, live_api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SFUMATO_URL", str(live_api.http.base_url))
        monkeypatch.setenv("SFUMATO_KEY", live_api.secret)
        people = tmp_path / "people.csv"
        people.write_text("y,x\n" + "".join(f"{n / 500 - 1},{n / 1000}\n" for n in range(1000)))
        dataset = live_api.dataset()
        command = ["report", "--from", str(people), dataset["id"]]
        closed = CliRunner().invoke(main.app, command)
        assert (closed.exit_code, "no open round" in closed.output) == (1, True)
        opened = live_api.round(dataset["id"], epsilon=4, target_reports=1500)
        sent = CliRunner().invoke(main.app, command)
        assert (sent.exit_code, sent.stdout) == (0, "1000 reports are stored\n")
        stored = ids(live_api, opened["id"])
        assert len(set(stored)) == len(stored) == 1000
        people.write_text("x,y\n1,private-4711\n")
        bad = CliRunner().invoke(main.app, command)
        assert bad.exit_code == 1
        assert "record 1: y must be a finite number" in " ".join(bad.output.split())
        assert "private-4711" not in bad.output
        assert live_api.n_received(opened["id"]) == 1000


class TestShutdown:
    def test_completes_requests_and_stores_acknowledged_reports(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'sfumato.db'}"
        migrate(url)
        database = Database(url)
        patient = {"SFUMATO_MAX_WAIT_SECONDS": "300"}
        with (
            running(tmp_path, "gateway", "--port", "0", **patient) as gateway,
            httpx.Client(timeout=400, verify=NO_TLS) as http,
        ):
            http.base_url = httpx.URL(gateway.url())
            api = stranger(http, database)
            dataset = api.dataset()
            round_id, job_id = api.round(dataset["id"], target_reports=10**6)["id"], api.job(dataset["id"])["id"]
            acknowledged: list[str] = []
            ended = threading.Event()

            def report() -> None:
                with httpx.Client(timeout=120, base_url=http.base_url, verify=NO_TLS) as client:
                    while not ended.is_set():
                        one = single()
                        try:
                            answer = Api(client, database, api.secret).post(f"/rounds/{round_id}/reports", one)
                        except httpx.TransportError:
                            return
                        if answer.status_code == 202:
                            acknowledged.append(one["report_id"])

            with ThreadPoolExecutor(10) as pool:
                reporting = [pool.submit(report) for _ in range(8)]
                waiting = pool.submit(api.get, f"/jobs/{job_id}", params={"wait": 300})
                until(lambda: len(acknowledged) > 50)
                began = time.monotonic()
                assert gateway.stop() == 0
                assert time.monotonic() - began < 150  # less than the 300 seconds of a long poll
                ended.set()
                assert waiting.result(60).json()["state"] == "queued"
                for each in reporting:
                    each.result(60)
        stored = ids(Api(http, database, api.secret), round_id)
        assert {bytes.fromhex(each) for each in acknowledged} <= set(stored)
        assert len(stored) == len(set(stored))
        database.close()
