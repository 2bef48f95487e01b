"""Uploads of reports: acknowledged reports are stored, rejected ones are not, and no request hangs."""

import asyncio
import gzip
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from connections.connection import PACE_BYTES
from models.collection import report_log
from models.database.engine import Database
from models.tables.rounds import ReportBatch
from runtime.job_signal import PipeJobSignal, RedisJobSignal
from service.context import GatewayContext
from service.http.middleware import BodyLimit
from service.http.problems import RequestTimeout
from service.http.route_table import enter
from service.ingestion.upload_memory import MemoryLimit
from tests.service.api import Api, packed, refused, single, unknown
from tests.service.ingestion.test_report_formats import arrow

OCTETS = {"content-type": "application/octet-stream"}
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def stored(database: Database, round_id: str) -> list[bytes]:
    """Return the packed reports in the log."""
    with database.reading() as session:
        held = b"".join(data for _, data in report_log.batches(session, round_id))
    return [held[place : place + 21] for place in range(0, len(held), 21)]


class TestAcceptedReport:
    def test_is_stored_unchanged(self, api: Api, database: Database) -> None:
        opened = api.round(api.dataset()["id"])
        one = single(slot=0, value=b"\x03")
        answer = api.post(f"/rounds/{opened['id']}/reports", one)
        assert (answer.status_code, answer.json()) == (202, {"round_id": opened["id"], "accepted": 1})
        assert stored(database, opened["id"]) == [bytes.fromhex(one["report_id"]) + b"\0\0\0\0\x03"]
        assert api.n_received(opened["id"]) == 1

    def test_that_is_repeated_is_stored_again(self, api: Api, database: Database) -> None:
        opened = api.round(api.dataset()["id"])
        one = single()
        for _ in range(2):
            assert api.post(f"/rounds/{opened['id']}/reports", one).status_code == 202
        assert len(set(stored(database, opened["id"]))) == 1
        assert api.n_received(opened["id"]) == 2

    def test_is_stored_from_every_format(self, api: Api, database: Database) -> None:
        opened = api.round(api.dataset()["id"], target_reports=10**6)
        path = f"/rounds/{opened['id']}/reports"
        body = packed(5000)
        assert api.post(path, content=body, headers=OCTETS).json()["accepted"] == 5000
        rows = [(body[at : at + 16], 0, body[at + 20 : at + 21]) for at in range(0, 21 * 30, 21)]
        assert api.post(path, content=arrow(rows), headers=ARROW).json()["accepted"] == 30
        columns = {"report_ids": [row[0].hex() for row in rows], "slots": [0] * 30, "values": ["AQ=="] * 30}
        assert api.post(path, columns).json()["accepted"] == 30
        assert b"".join(stored(database, opened["id"])) == body + body[: 21 * 30] * 2

    def test_is_stored_without_time_and_sender(self) -> None:
        assert set(ReportBatch.__table__.columns.keys()) == {"id", "round_id", "n_reports", "packed"}

    def test_is_not_logged(self, api: Api, capsys: pytest.CaptureFixture[str]) -> None:
        opened = api.round(api.dataset()["id"])
        capsys.readouterr()
        api.report(opened["id"])
        refused(api.report(opened["id"], slot=9), 422, "report_malformed")
        written = capsys.readouterr()
        assert (written.out + written.err).count("/reports") == 1


class TestRejectedReport:
    @pytest.mark.parametrize(
        ("sent", "code", "status"),
        [
            ({"json": single(slot=1)}, "report_malformed", 422),
            ({"json": single(value=b"\x05")}, "report_malformed", 422),
            ({"json": single(value=b"\0\0")}, "report_malformed", 422),
            ({"json": single(report_id="x")}, "report_malformed", 422),
            ({"json": {}}, "validation_failed", 422),
            ({"content": b"{", "headers": {"content-type": "application/json"}}, "bad_request", 400),
            ({"content": packed(2)[:-1], "headers": OCTETS}, "report_malformed", 422),
            ({"content": packed(2000) + packed(1, slot=7), "headers": OCTETS}, "report_malformed", 422),
            ({"content": b"", "headers": OCTETS}, "validation_failed", 422),
            ({"content": packed(50_001), "headers": OCTETS}, "payload_too_large", 413),
            ({"content": b"\0" * ((4 << 20) + 1), "headers": OCTETS}, "payload_too_large", 413),
            ({"content": b"no arrow", "headers": ARROW}, "bad_request", 400),
            ({"content": b"a,b", "headers": {"content-type": "text/csv"}}, "unsupported_media_type", 415),
            ({"content": packed(1)}, "unsupported_media_type", 415),
        ],
    )
    def test_has_a_problem_and_stores_nothing(
        self, api: Api, database: Database, sent: dict[str, Any], code: str, status: int
    ) -> None:
        opened = api.round(api.dataset()["id"])
        answer = api.post(f"/rounds/{opened['id']}/reports", **sent)
        refused(answer, status, code)
        assert stored(database, opened["id"]) == []
        assert api.n_received(opened["id"]) == 0
        assert api.report(opened["id"]).status_code == 202

    @pytest.mark.parametrize("kind", [OCTETS, ARROW])
    @pytest.mark.parametrize("packs", [False, True])
    def test_that_is_too_long_is_not_kept(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, kind: dict[str, str], packs: bool
    ) -> None:
        reserved: list[int] = []
        monkeypatch.setattr(MemoryLimit, "reserve", lambda _limit, n_bytes: reserved.append(n_bytes))
        opened, device = api.round(api.dataset()["id"]), api.key("device")
        body = os.urandom(1 << 20)  # a device sends at most 16 reports
        content, headers = (gzip.compress(body), kind | {"content-encoding": "gzip"}) if packs else (body, kind)
        problem = refused(
            device.post(f"/rounds/{opened['id']}/reports", content=content, headers=headers), 413, "payload_too_large"
        )
        assert "at most 16 reports" in problem["detail"]
        assert sum(reserved) < 100_000

    def test_is_named_by_its_index(self, api: Api) -> None:
        opened = api.round(api.dataset()["id"])
        body = packed(2000) + packed(1, slot=7) + packed(1)
        answer = api.post(f"/rounds/{opened['id']}/reports", content=body, headers=OCTETS)
        assert refused(answer, 422, "report_malformed")["index"] == 2000

    def test_of_an_unknown_or_foreign_round_is_not_found(self, api: Api, other: Api) -> None:
        for round_id in (unknown("rnd"), "x", "rnd_%00", other.round(other.dataset()["id"])["id"]):
            refused(api.report(round_id), 404, "not_found")

    def test_of_a_foreign_cached_round_is_not_found(self, api: Api, other: Api) -> None:
        opened = other.round(other.dataset()["id"])
        assert other.report(opened["id"]).status_code == 202
        refused(api.report(opened["id"]), 404, "not_found")
        assert other.n_received(opened["id"]) == 1


class TestFullRound:
    def test_closes_and_notifies_a_worker(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        notified = threading.Event()
        ids: list[str] = []

        def notify(_self: object, job_id: str) -> None:
            ids.append(job_id)
            notified.set()

        for kind in (PipeJobSignal, RedisJobSignal):
            monkeypatch.setattr(kind, "notify", notify)
        opened = api.round(api.dataset()["id"], target_reports=3)
        path = f"/rounds/{opened['id']}/reports"
        assert api.post(path, content=packed(2), headers=OCTETS).status_code == 202
        assert not notified.is_set()
        assert api.post(path, content=packed(2), headers=OCTETS).status_code == 202
        assert notified.wait(60)
        assert ids == [opened["id"]]
        seen = api.get(f"/rounds/{opened['id']}").json()
        assert (seen["state"], seen["n_received"]) == ("closed", 4)
        refused(api.report(opened["id"]), 409, "round_closed")
        assert api.n_received(opened["id"]) == 4

    def test_rejects_late_reports_without_a_query_each(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = api.round(api.dataset()["id"])
        api.made(f"/rounds/{opened['id']}/close?allow_empty=true", None)
        refused(api.report(opened["id"]), 409, "round_closed")
        monkeypatch.setattr("models.collection.report_intake.receive", lambda *_, **__: 1 / 0)
        refused(api.report(opened["id"]), 409, "round_closed")


class TestConcurrentReports:
    def test_are_all_counted_exactly_once(self, api: Api, database: Database) -> None:
        made = api.dataset(epsilon=32)
        opened = [api.round(made["id"], target_reports=10**6)["id"] for _ in range(3)]
        sent = [(opened[n % 3], single()) for n in range(300)]

        def send(one: tuple[str, dict[str, Any]]) -> int:
            return api.post(f"/rounds/{one[0]}/reports", one[1]).status_code

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(send, sent)) == {202}
        for round_id in opened:
            ids = {bytes.fromhex(one["report_id"]) for to, one in sent if to == round_id}
            held = stored(database, round_id)
            assert len(held) == len(ids) == api.n_received(round_id) == 100
            assert {each[:16] for each in held} == ids

    def test_to_a_closing_round_are_either_stored_or_rejected(self, api: Api, database: Database) -> None:
        made = api.dataset(epsilon=32)
        closing, open_ = api.round(made["id"], target_reports=40)["id"], api.round(made["id"])["id"]

        def send(n: int) -> tuple[int, str]:
            one = single()
            answer = api.post(f"/rounds/{open_ if n % 2 else closing}/reports", one)
            return answer.status_code, one["report_id"]

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(send, range(200)))
        assert {status for status, _ in answers[1::2]} == {202}  # the other round is not affected
        assert {status for status, _ in answers[0::2]} == {202, 409}
        taken = {report_id for status, report_id in answers[0::2] if status == 202}
        assert {each[:16].hex() for each in stored(database, closing)} == taken
        assert api.n_received(closing) == len(taken) >= 40
        assert api.n_received(open_) == 100


class TestFailingDatabase:
    def test_is_reported_as_unavailable_until_it_works(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened = api.round(api.dataset()["id"])
        one = single()

        def fail(*_: object, **__: object) -> None:
            raise OperationalError("COMMIT", {}, Exception("gone"))

        with monkeypatch.context() as patched:
            patched.setattr("models.collection.report_intake.receive", fail)
            answer = api.post(f"/rounds/{opened['id']}/reports", one)
        refused(answer, 503, "unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert stored(database, opened["id"]) == []
        assert api.post(f"/rounds/{opened['id']}/reports", one).status_code == 202
        assert len(stored(database, opened["id"])) == 1

    def test_does_not_end_the_writer(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = api.round(api.dataset()["id"])
        with monkeypatch.context() as patched:
            patched.setattr("models.collection.report_intake.receive", lambda *_, **__: 1 / 0)
            refused(api.report(opened["id"]), 503, "unavailable")
        assert api.report(opened["id"]).status_code == 202


class TestBackPressure:
    def test_rejects_reports_beyond_the_memory_limit_and_recovers(self, started: Any) -> None:
        api: Api = started(max_pending_bytes=100_000)
        opened = api.round(api.dataset()["id"], target_reports=10**6)
        path = f"/rounds/{opened['id']}/reports"
        refused(api.post(path, content=packed(5000), headers=OCTETS), 503, "unavailable")
        assert api.n_received(opened["id"]) == 0
        for _ in range(40):  # each time the memory is released
            assert api.post(path, content=packed(2000), headers=OCTETS).status_code == 202
        assert api.n_received(opened["id"]) == 80_000


class TestIncompleteBody:
    """The client disconnects before its body is complete. These tests call the ASGI application directly."""

    def _send(self, http: httpx.Client, api: Api, path: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        app = http._transport._asgi.app  # type: ignore[attr-defined]
        loop = http._transport._loop  # type: ignore[attr-defined]
        sent: list[dict[str, Any]] = []

        async def run() -> None:
            left = iter(messages)

            async def receive() -> dict[str, Any]:
                return next(left, {"type": "http.disconnect"})

            async def send(message: Any) -> None:
                sent.append(message)

            headers = [
                (b"authorization", f"Bearer {api.secret}".encode()),
                (b"content-type", OCTETS["content-type"].encode()),
            ]
            scope = {
                "type": "http",
                "method": "POST",
                "path": path,
                "raw_path": path.encode(),
                "headers": headers,
                "query_string": b"",
            }
            await app(scope, receive, send)

        asyncio.run_coroutine_threadsafe(run(), loop).result(120)
        return sent

    def test_stores_nothing_and_releases_its_memory(self, http: httpx.Client, api: Api, database: Database) -> None:
        opened = api.round(api.dataset()["id"])
        services: GatewayContext = http._transport._asgi.app.state.context  # type: ignore[attr-defined]
        assert services.settings.max_pending_bytes < 300 * (1 << 20)
        for _ in range(300):
            part = {"type": "http.request", "body": packed(1) * 50_000, "more_body": True}
            assert self._send(http, api, f"/v1/rounds/{opened['id']}/reports", [part]) == []
        assert stored(database, opened["id"]) == []
        assert api.report(opened["id"]).status_code == 202

    def test_of_a_client_that_leaves_after_the_body_is_stored(self, http: httpx.Client, api: Api) -> None:
        opened = api.round(api.dataset()["id"])
        whole = {"type": "http.request", "body": packed(3), "more_body": False}
        answered = self._send(http, api, f"/v1/rounds/{opened['id']}/reports", [whole])
        assert answered[0]["status"] == 202
        assert api.n_received(opened["id"]) == 3

    def test_without_a_declared_length_is_limited_as_it_arrives(self, http: httpx.Client, api: Api) -> None:
        opened = api.round(api.dataset()["id"])
        part = {"type": "http.request", "body": b"\0" * (1 << 20), "more_body": True}
        answered = self._send(http, api, f"/v1/rounds/{opened['id']}/reports", [part] * 50)
        assert answered[0]["status"] == 413

    @pytest.mark.parametrize("slow_seconds", [0.05, 3600.0])
    def test_that_stops_times_out(self, monkeypatch: pytest.MonkeyPatch, slow_seconds: float) -> None:
        monkeypatch.setattr("service.http.middleware.BODY_SECONDS", 0.05 if slow_seconds > 1 else 3600)

        async def never() -> Any:
            await asyncio.sleep(3600)

        with pytest.raises(RequestTimeout, match="too slowly"):
            limited(never, slow_seconds)

    def test_that_is_too_slow_times_out(self) -> None:
        async def trickle() -> Any:
            await asyncio.sleep(0.01)
            return {"type": "http.request", "body": b"x", "more_body": True}

        with pytest.raises(RequestTimeout, match="at least 20480 bytes per"):
            limited(trickle, 0.3)

    def test_that_keeps_the_pace_may_take_longer(self) -> None:
        parts = iter([True] * 8 + [False])

        async def steady() -> Any:
            await asyncio.sleep(0.3)
            return {"type": "http.request", "body": b"x" * PACE_BYTES, "more_body": next(parts)}

        assert limited(steady, 2.0) == 9 * PACE_BYTES  # in 2.7 s

    def test_does_not_time_out_while_the_service_works(self) -> None:
        parts = iter([True] * 4 + [False])

        async def quick() -> Any:
            return {"type": "http.request", "body": b"x", "more_body": next(parts)}

        assert limited(quick, 0.5, working_seconds=0.3) == 5


def limited(receive: Any, slow_seconds: float, working_seconds: float = 0.0) -> int:
    """Return the bytes that reach an application, which works for a while on each part."""
    n_bytes = 0

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        nonlocal n_bytes
        more = True
        while more:
            message = await receive()
            n_bytes, more = n_bytes + len(message["body"]), message["more_body"]
            await asyncio.sleep(working_seconds)

    async def run() -> None:
        limit = BodyLimit(app, max_bytes=1 << 20, max_records_bytes=1 << 20, slow_seconds=slow_seconds)
        scope: dict[str, Any] = {"type": "http", "path": "/v1/rounds/x/reports", "headers": []}
        enter(scope)
        await limit(scope, receive, receive)

    asyncio.run(run())
    return n_bytes


def test_a_group_is_stored_in_one_row(api: Api, database: Database) -> None:
    opened = api.round(api.dataset()["id"])
    api.post(f"/rounds/{opened['id']}/reports", content=packed(1000), headers=OCTETS)
    with database.reading() as session:
        rows = session.scalars(select(ReportBatch.n_reports).where(ReportBatch.round_id == opened["id"])).all()
    assert rows == [1000]
