"""`sfumato serve` and `sfumato gateway` as processes: from the first start to any end."""

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

from models import report as log
from models.db import Database, migrate
from service import cli
from sfumato import Auto, Client, Feature
from sfumato.specs import ALGORITHMS
from tests.service.api import Api, packed, refused, single, stranger
from tests.service.conftest import own_database
from tests.service.processes import Running, is_running, running, until


class TestServe:
    def test_lives_and_dies_with_its_worker_and_goes_on_where_it_was(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        with running(home, "serve", "--port", "0") as first:
            url = first.url()
            assert (home / "url").read_text() == url + "\n"
            key_file = home / "admin.key"
            assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
            secret = key_file.read_text().strip()
            records_key = (home / "records.key").read_text()
            assert stat.S_IMODE((home / "records.key").stat().st_mode) == 0o600
            assert first.out.count(secret) == 1
            assert f"{url}/docs" in first.out
            assert "curl" in first.out
            headers = {"Authorization": f"Bearer {secret}"}
            answer = httpx.get(f"{url}/v1/keys", headers=headers, timeout=60)
            assert [key["name"] for key in answer.json()["items"]] == ["first admin"]
            assert "server" not in answer.headers
            (worker,) = until(first.children)
            os.kill(worker, signal.SIGKILL)
            (again,) = until(lambda: [pid for pid in first.children() if pid != worker])
            until(lambda: "worker_started" in first.log.rpartition("worker_ended")[2])
            first.process.kill()
            first.process.wait()
            until(lambda: not is_running(again))
            assert secret not in first.log
        with running(home, "serve", "--port", "0") as second:
            url = second.url()
            assert secret not in second.out
            assert key_file.read_text().strip() == secret
            assert (home / "records.key").read_text() == records_key
            assert len(httpx.get(f"{url}/v1/keys", headers=headers, timeout=60).json()["items"]) == 1
            (worker,) = until(second.children)
            assert second.stop() == 0
            until(lambda: not is_running(worker))
            assert not (home / "url").exists()

    @pytest.mark.slow
    @pytest.mark.ci
    def test_runs_a_job_over_records_with_the_key_it_made(self, tmp_path: Path) -> None:
        features = [Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0)]
        chance = np.random.default_rng(0)
        records = chance.normal(np.where(chance.random(4000) < 0.5, 0.25, 0.75)[:, None], 0.05, size=(4000, 2))
        with running(tmp_path / "home", "serve", "--port", "0", SFUMATO_WARM_KERNELS="true") as served:
            secret = (tmp_path / "home" / "admin.key").read_text().strip() if served.url() else ""
            with Client(served.url(), secret) as client:
                made = client.create_dataset("t", features, epsilon=3, trust="central")
                client.upload_records(made.id, records)
                job = client.wait_for_job(client.submit_job(made.id, Auto(2.0, 2)).id, timeout_seconds=240)
                assert (job.state, job.error) == ("succeeded", None)
                result = client.result(job.id)
                assert result.model.assign([[0.25, 0.25]]) != result.model.assign([[0.75, 0.75]])
                posted = {
                    entry.reference: entry.epsilon_nano for entry in client.ledger(made.id) if entry.kind == "post"
                }
                assert posted == {asked.reference: asked.epsilon_nano for asked in result.odometer}
                balance = client.budget(made.id).balance
                assert (balance.reserved_nano, balance.posted_nano) == (0, sum(posted.values()))
                assert client.verify_ledger(made.id).ok
            assert 4000 not in [value for line in served.lines() for key, value in line.items() if key != "pid"]
            assert [line["warmed"] for line in served.lines() if line["event"] == "child_ready"] == [sorted(ALGORITHMS)]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Api]]:
    """A gateway process over a migrated database, and a way to it."""
    home = tmp_path_factory.mktemp("live")
    with own_database(request.param, request, home) as url:
        database = Database(url)
        settings = {"SFUMATO_DATABASE_URL": url, "SFUMATO_MAX_BODY_BYTES": str(2 << 20)}
        with (
            running(home, "gateway", "--port", "0", **settings) as gateway,
            httpx.Client(base_url=gateway.url(), timeout=120, limits=httpx.Limits(max_connections=64)) as http,
        ):
            yield gateway, stranger(http, database)
        database.close()


@pytest.fixture
def live_api(live: tuple[Running, Api]) -> Api:
    return live[1]


def ids(api: Api, round_id: str) -> list[bytes]:
    """Ids of the reports in the log."""
    with api.database.reading() as session:
        held = b"".join(data for _, data in log.batches(session, round_id))
    return [held[at : at + 16] for at in range(0, len(held), 21)]


def spoken(api: Api, sent: bytes, *, half_close: bool = False, until: bytes = b"") -> bytes:
    """Say these bytes to the gateway; what it answers until it closes, has said this, or is silent for a moment."""
    with socket.create_connection((api.http.base_url.host, api.http.base_url.port or 80), timeout=60) as wire:
        wire.sendall(sent)
        if half_close:
            wire.shutdown(socket.SHUT_WR)
        wire.settimeout(60.0 if until else 1.0)
        heard = b""
        try:
            while part := wire.recv(65536):
                heard += part
                if until and until in heard:
                    break
        except (TimeoutError, ConnectionResetError):
            pass
        return heard


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
    @pytest.mark.ci
    def test_many_clients_at_once_are_counted_exactly(self, live_api: Api) -> None:
        made = live_api.dataset(epsilon=32)
        rounds = [live_api.round(made["id"], target_reports=10**6)["id"] for _ in range(2)]
        sent = [(rounds[n % 2], single()) for n in range(800)]
        with ThreadPoolExecutor(24) as pool:
            statuses = set(pool.map(lambda one: live_api.post(f"/rounds/{one[0]}/reports", one[1]).status_code, sent))
        assert statuses == {202}
        for round_id in rounds:
            expected = {bytes.fromhex(one["report_id"]) for to, one in sent if to == round_id}
            held = ids(live_api, round_id)
            assert len(held) == len(expected) == live_api.n_received(round_id)
            assert set(held) == expected

    def test_a_body_that_breaks_off_stores_nothing(self, live_api: Api) -> None:
        round_id = live_api.round(live_api.dataset()["id"])["id"]
        body = packed(100)
        begun = head(live_api, round_id, f"Content-Length: {len(body)}") + body[: 21 * 50]
        assert b" 202 " not in spoken(live_api, begun, half_close=True, until=b" 202 ")
        chunk = b"%x\r\n" % (21 * 50) + body[: 21 * 50] + b"\r\n"
        assert b" 202 " not in spoken(live_api, head(live_api, round_id, "Transfer-Encoding: chunked") + chunk)
        assert ids(live_api, round_id) == []
        assert live_api.report(round_id).status_code == 202

    def test_a_body_in_chunks_is_taken_whole(self, live_api: Api) -> None:
        round_id = live_api.round(live_api.dataset()["id"])["id"]
        body = packed(100)
        parts = (body[at : at + 1000] for at in range(0, len(body), 1000))
        answer = live_api.post(
            f"/rounds/{round_id}/reports", content=parts, headers={"content-type": "application/octet-stream"}
        )
        assert answer.json()["accepted"] == 100
        assert len(ids(live_api, round_id)) == 100

    def test_a_body_without_end_is_refused(self, live_api: Api) -> None:
        round_id = live_api.round(live_api.dataset()["id"])["id"]
        assert b" 413 " in spoken(live_api, head(live_api, round_id, "Content-Length: 99999999999"), until=b" 413 ")
        chunk = b"100000\r\n" + b"\0" * 0x100000 + b"\r\n"
        endless = head(live_api, round_id, "Transfer-Encoding: chunked") + chunk * 4
        heard = spoken(live_api, endless, until=b"payload_too_large")
        assert b" 413 " in heard
        assert b"payload_too_large" in heard
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
    def test_noise_does_no_harm(self, live_api: Api, noise: bytes) -> None:
        assert b" 2" not in spoken(live_api, noise, until=b"\r\n")[:14]
        assert live_api.get("/datasets").status_code == 200

    @pytest.mark.slow
    @pytest.mark.ci
    @pytest.mark.parametrize("flood", [b"X: y\r\n" * 20_000, b"X: " + b"y" * 200_000])
    def test_a_head_without_end_is_cut_off(self, live_api: Api, flood: bytes) -> None:
        try:
            heard = spoken(live_api, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + flood, until=b" 200 ")
        except (BrokenPipeError, ConnectionResetError):
            heard = b""
        assert b" 200 " not in heard
        assert live_api.get("/datasets").status_code == 200

    def test_the_log_names_paths_and_nothing_private(self, live: tuple[Running, Api]) -> None:
        gateway, api = live
        refused(api.get("/datasets?cursor=private-4711"), 422, "validation_failed")
        api.http.get("/v1/%1b[31mred")
        until(lambda: "[31mred" in gateway.log)
        assert "private-4711" not in gateway.log
        assert api.secret not in gateway.log
        assert "\x1b" not in gateway.log


class TestTheCommandReport:
    def test_sends_one_report_for_each_row_or_none(
        self, live_api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SFUMATO_URL", str(live_api.http.base_url))
        monkeypatch.setenv("SFUMATO_KEY", live_api.secret)
        people = tmp_path / "people.csv"
        people.write_text("name,y,x\n" + "".join(f"p{n},{n / 500 - 1},{n / 1000}\n" for n in range(1000)))
        made = live_api.dataset()
        command = ["report", "--from", str(people), made["id"]]
        closed = CliRunner().invoke(cli.app, command)
        assert (closed.exit_code, "no open round" in closed.output) == (1, True)
        opened = live_api.round(made["id"], epsilon=4, target_reports=1500)
        sent = CliRunner().invoke(cli.app, command)
        assert (sent.exit_code, sent.stdout) == (0, "1000 reports are stored\n")
        held = ids(live_api, opened["id"])
        assert len(set(held)) == len(held) == 1000
        people.write_text("x,y\n1,private-4711\n")
        bad = CliRunner().invoke(cli.app, command)
        assert bad.exit_code == 1
        assert "line 2" in bad.output
        assert "private-4711" not in bad.output
        assert live_api.n_received(opened["id"]) == 1000


class TestTheEnd:
    def test_answers_what_is_under_way_and_stores_what_was_acknowledged(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'sfumato.db'}"
        migrate(url)
        database = Database(url)
        patient = {"SFUMATO_MAX_WAIT_SECONDS": "300"}
        with running(tmp_path, "gateway", "--port", "0", **patient) as gateway, httpx.Client(timeout=400) as http:
            http.base_url = httpx.URL(gateway.url())
            api = stranger(http, database)
            made = api.dataset()
            round_id, job_id = api.round(made["id"], target_reports=10**6)["id"], api.job(made["id"])["id"]
            acknowledged: list[str] = []
            ended = threading.Event()

            def report() -> None:
                with httpx.Client(timeout=120, base_url=http.base_url) as client:
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
                assert time.monotonic() - began < 150  # and not the 300 seconds somebody would wait
                ended.set()
                assert waiting.result(60).json()["state"] == "queued"
                for each in reporting:
                    each.result(60)
        held = ids(Api(http, database, api.secret), round_id)
        assert {bytes.fromhex(each) for each in acknowledged} <= set(held)
        assert len(held) == len(set(held))
        database.close()
