"""Reports answered from memory: as the ordinary way answers them, in any pieces, and nothing else that way."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.db import Database
from models.doorbell import PollingDoorbell
from models.settings import Settings
from service.app import create_app
from service.problems import Unavailable
from service.protocol import Protocol
from service.reports import Packed
from service.writer import ReportWriter
from tests.service.api import Api, refused, single, stranger, unknown
from tests.service.test_ingest import OCTETS, stored
from tests.service.wire import OnTheWire, read_answers

ORIGIN = {"origin": "https://elsewhere.example"}  # sends a request the ordinary way
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def wire(database: Database, settings: Settings) -> Iterator[OnTheWire]:
    with OnTheWire(create_app(settings, database)) as gateway:
        yield gateway


@pytest.fixture
def api(wire: OnTheWire, database: Database) -> Api:
    """An admin key of a fresh tenant."""
    return stranger(wire.client, database)


@pytest.fixture
def round_id(wire: OnTheWire, api: Api) -> str:
    """An open round that the gateway knows, as it does the key; nothing was counted yet."""
    made: str = api.round(api.dataset()["id"], target_reports=10**6)["id"]
    known(api, made)
    wire.taken.clear()
    return made


def known(api: Api, round_id: str) -> None:
    """Have the gateway look key and round up."""
    refused(api.post(f"/rounds/{round_id}/reports", {}), 422, "validation_failed")


def sent(api: Api, round_id: str, *more: bytes, body: bytes | None = None) -> bytes:
    """A whole request with a report."""
    body = json.dumps(single()).encode() if body is None else body
    told = [
        b"POST /v1/rounds/%s/reports HTTP/1.1" % round_id.encode(),
        b"Host: x",
        b"Authorization: Bearer %s" % api.secret.encode(),
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        *more,
    ]
    return b"\r\n".join(told) + b"\r\n\r\n" + body


class TestAPlainReport:
    def test_goes_the_fast_path_and_is_stored(
        self, wire: OnTheWire, api: Api, database: Database, round_id: str
    ) -> None:
        one = single(slot=0, value=b"\x03")
        with wire.connect() as connected:
            connected.sendall(sent(api, round_id, body=json.dumps(one).encode()))
            ((status, _, body),) = read_answers(connected, 1)
        assert wire.taken == [True]
        assert (status, json.loads(body)) == (202, {"round_id": round_id, "accepted": 1})
        assert stored(database, round_id) == [bytes.fromhex(one["report_id"]) + b"\0\0\0\0\x03"]

    def test_is_answered_as_the_ordinary_way_answers(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        with wire.connect() as connected:
            connected.sendall(sent(api, round_id))
            (fast,) = read_answers(connected, 1)
            connected.sendall(sent(api, round_id, b"Origin: https://elsewhere.example"))
            (ordinary,) = read_answers(connected, 1)
        assert wire.taken == [True, False]
        assert fast[0] == ordinary[0] == 202
        assert fast[2] == ordinary[2]
        assert list(fast[1]) == list(ordinary[1])  # the same headers in the same order
        differ = {name for name in fast[1] if fast[1][name] != ordinary[1][name]}
        assert differ - {"date"} == {"x-request-id"}
        assert len(fast[1]["x-request-id"]) == len(ordinary[1]["x-request-id"]) == 16

    def test_may_be_packed_and_many(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        body = b"".join(index.to_bytes(16, "big") + b"\0\0\0\0\x01" for index in range(100))
        octets = sent(api, round_id, body=body).replace(b"application/json", OCTETS["content-type"].encode())
        with wire.connect() as connected:
            connected.sendall(octets)
            ((status, _, told),) = read_answers(connected, 1)
        assert (status, json.loads(told)["accepted"], wire.taken) == (202, 100, [True])
        assert api.n_received(round_id) == 100

    def test_is_counted_like_every_other(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        def answered() -> float:
            registry = wire.app.state.services.metrics.registry
            labels = {"route": "/v1/rounds/{round_id}/reports", "method": "POST", "status": "202"}
            return registry.get_sample_value("sfumato_requests_total", labels) or 0.0

        before = answered()
        with wire.connect() as connected:
            connected.sendall(sent(api, round_id) * 3)
            read_answers(connected, 3)
        assert answered() - before == 3
        assert wire.app.state.fast_path._ingest.pending_bytes == 0

    def test_closes_the_connection_where_that_was_asked(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        with wire.connect() as connected:
            connected.sendall(sent(api, round_id, b"Connection: close"))
            ((status, headers, _),) = read_answers(connected, 1)
            assert connected.recv(1) == b""
        assert (status, headers["connection"], wire.taken) == (202, "close", [True])

    def test_is_stored_though_its_client_left(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        connected = wire.connect()
        connected.sendall(sent(api, round_id))
        connected.close()
        until = time.monotonic() + 60
        while api.n_received(round_id) == 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert api.n_received(round_id) == 1


class TestInPieces:
    @pytest.mark.parametrize(("pause", "taken"), [(10.0, [True]), (0.0, [])])
    def test_a_body_may_come_soon_behind_its_head(
        self,
        wire: OnTheWire,
        api: Api,
        round_id: str,
        pause: float,
        taken: list[bool],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("service.protocol.REST_SECONDS", pause)
        head, _, body = sent(api, round_id).partition(b"\r\n\r\n")
        with wire.connect() as connected:
            connected.sendall(head + b"\r\n\r\n" + body[:9])
            time.sleep(0.3)
            connected.sendall(body[9:])
            ((status, _, _),) = read_answers(connected, 1)
        assert (status, wire.taken, api.n_received(round_id)) == (202, taken, 1)

    def test_a_body_that_never_comes_whole_is_not_waited_for(self, database: Database, settings: Settings) -> None:
        with OnTheWire(create_app(settings.model_copy(update={"slow_seconds": 0.5}), database)) as wire:
            api = stranger(wire.client, database)
            opened = api.round(api.dataset()["id"])
            known(api, opened["id"])
            with wire.connect() as connected:
                connected.sendall(sent(api, opened["id"])[:-5])
                ((status, headers, _),) = read_answers(connected, 1)
            assert (status, headers["connection"]) == (408, "close")
            assert api.n_received(opened["id"]) == 0
            assert wire.app.state.fast_path._ingest.pending_bytes == 0

    def test_a_client_that_waits_to_be_asked_is_asked(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        head, _, body = sent(api, round_id, b"Expect: 100-continue").partition(b"\r\n\r\n")
        with wire.connect() as connected:
            connected.sendall(head + b"\r\n\r\n")
            assert connected.recv(100).startswith(b"HTTP/1.1 100 ")
            connected.sendall(body)
            ((status, _, _),) = read_answers(connected, 1)
        assert (status, wire.taken) == (202, [])

    def test_several_at_once_are_answered_in_order(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        many = b"".join(
            [sent(api, round_id), HEALTH, sent(api, round_id), sent(api, round_id), HEALTH, sent(api, round_id)]
        )
        with wire.connect() as connected:
            connected.sendall(many)
            statuses = [status for status, _, _ in read_answers(connected, 6)]
        assert statuses == [202, 200, 202, 202, 200, 202]
        assert wire.taken == [True]  # what comes behind one that is under way waits in line
        assert api.n_received(round_id) == 4

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        kinds=st.lists(st.sampled_from(["plain", "bad", "health", "other", "octets"]), min_size=1, max_size=5),
        cuts=st.lists(st.floats(0, 1), max_size=4),
    )
    def test_of_any_size_change_no_answer(
        self, wire: OnTheWire, api: Api, round_id: str, kinds: list[str], cuts: list[float]
    ) -> None:
        octets = sent(api, round_id, body=bytes(21)).replace(b"application/json", b"application/octet-stream")
        ways = {
            "plain": (sent(api, round_id), 202),
            "bad": (sent(api, round_id, body=b"{}"), 422),
            "health": (HEALTH, 200),
            "other": (sent(api, unknown("rnd")), 404),
            "octets": (octets, 202),
        }
        stream = b"".join(ways[kind][0] for kind in kinds)
        places = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
        with wire.connect() as connected:
            for begin, end in pairwise(places):
                connected.sendall(stream[begin:end])
                time.sleep(0.005)
            statuses = [status for status, _, _ in read_answers(connected, len(kinds))]
        assert statuses == [ways[kind][1] for kind in kinds]


class TestWhatIsNotPlain:
    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            (b"{", 400, "bad_request"),
            (b"[]", 422, "validation_failed"),
            (b'{"report_id": "zz", "slot": 0, "value": "AQ=="}', 422, "report_malformed"),
            (b'{"report_id": "%s", "slot": 9, "value": "AQ=="}' % (b"0" * 32), 422, "report_malformed"),
            (b'{"report_id": "%s", "slot": 0, "value": "/w=="}' % (b"0" * 32), 422, "report_malformed"),
        ],
    )
    def test_bodies_that_are_refused(
        self, wire: OnTheWire, api: Api, round_id: str, body: bytes, status: int, code: str
    ) -> None:
        answer = api.post(f"/rounds/{round_id}/reports", content=body, headers={"content-type": "application/json"})
        refused(answer, status, code)
        assert True not in wire.taken
        assert api.n_received(round_id) == 0

    def test_keys_that_are_refused(self, wire: OnTheWire, api: Api, database: Database, round_id: str) -> None:
        path = f"/v1/rounds/{round_id}/reports"
        reader, other = api.key("jobs"), stranger(wire.client, database)
        bound = api.key("device", dataset_id=api.dataset()["id"])
        for each, status in ((reader, 403), (other, 404), (bound, 404)):
            for _ in range(2):  # unknown at first, known then
                headers = {"authorization": f"Bearer {each.secret}"}
                assert wire.client.post(path, json=single(), headers=headers).status_code == status
        for header in ("", "Bearer", f"Bearer {'x' * 300}", "Bearer sfk_unknown"):
            answer = wire.client.post(path, json=single(), headers={"authorization": header})
            refused(answer, 401, "unauthenticated")
        assert wire.client.post(path, json=single()).status_code == 401
        assert True not in wire.taken

    def test_a_key_that_was_revoked_is_soon_refused(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        device = api.made("/keys", {"name": "k", "scopes": ["device"]})
        caller = Api(wire.client, api.database, device["secret"])
        for _ in range(2):
            assert caller.report(round_id).status_code == 202
        assert wire.taken[-1]
        assert api.request("DELETE", f"/keys/{device['id']}").status_code in (200, 204)
        refused(caller.report(round_id), 401, "unauthenticated")

    def test_a_round_that_closed_says_so(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        assert api.report(round_id).status_code == 202
        assert wire.taken[-1]
        assert api.post(f"/rounds/{round_id}/close").status_code == 200
        refused(api.report(round_id), 409, "round_closed")  # handed over, refused by the commit, sent again
        refused(api.report(round_id), 409, "round_closed")
        assert api.n_received(round_id) == 1

    def test_a_commit_that_fails_is_tried_the_ordinary_way(
        self, wire: OnTheWire, api: Api, round_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database, real = wire.app.state.services.database, wire.app.state.services.database.run_in
        left = [2]

        def run_in(transaction: Any, name: str, work: Callable[..., Any]) -> Any:
            if name == "receive_reports" and left[0]:
                left[0] -= 1
                raise OSError("the disk is full")
            return real(transaction, name, work)

        monkeypatch.setattr(database, "run_in", run_in)
        refused(api.report(round_id), 503, "unavailable")
        assert left == [0]
        assert wire.taken == [True]
        assert api.report(round_id).status_code == 202
        assert api.n_received(round_id) == 1
        assert wire.app.state.fast_path._ingest.pending_bytes == 0

    def test_no_room_is_a_refusal(
        self, wire: OnTheWire, api: Api, round_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wire.app.state.fast_path._ingest, "max_pending_bytes", 10)
        refused(api.report(round_id), 503, "unavailable")
        assert wire.taken == [False]

    def test_pages_of_other_origins_go_the_ordinary_way(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        assert api.post(f"/rounds/{round_id}/reports", single(), headers=ORIGIN).status_code == 202
        assert wire.taken == [False]

    def test_a_chunked_body_goes_the_ordinary_way(self, wire: OnTheWire, api: Api, round_id: str) -> None:
        body = json.dumps(single()).encode()
        pieces = iter([body[:5], body[5:]])
        headers = {"content-type": "application/json"}
        assert api.post(f"/rounds/{round_id}/reports", content=pieces, headers=headers).status_code == 202
        assert True not in wire.taken


class TestLimits:
    def test_that_are_set_are_counted_the_ordinary_way(self, database: Database, settings: Settings) -> None:
        limited = settings.model_copy(update={"rate_per_device_key": 3})
        with OnTheWire(create_app(limited, database)) as wire:
            api = stranger(wire.client, database)
            opened = api.round(api.dataset()["id"])
            answers = [api.report(opened["id"]) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [202, 202, 202, 429]
        assert 'device-key";r=' in answers[0].headers["ratelimit"]
        assert wire.taken == []

    def test_of_a_body_hold(self, database: Database, settings: Settings) -> None:
        small = settings.model_copy(update={"max_body_bytes": 1024})
        with OnTheWire(create_app(small, database)) as wire:
            api = stranger(wire.client, database)
            opened = api.round(api.dataset()["id"])
            known(api, opened["id"])
            padded = json.dumps(single()) + " " * 1024
            headers = {"content-type": "application/json"}
            answer = api.post(f"/rounds/{opened['id']}/reports", content=padded.encode(), headers=headers)
        refused(answer, 413, "payload_too_large")


class TestAnEnd:
    def test_answers_what_is_under_way_and_sends_clients_elsewhere(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with OnTheWire(create_app(settings, database)) as wire:
            api = stranger(wire.client, database)
            opened = api.round(api.dataset()["id"])
            known(api, opened["id"])
            wire.taken.clear()
            real = wire.app.state.services.database.run_in

            def slow(transaction: Any, name: str, work: Callable[..., Any]) -> Any:
                if name == "receive_reports":
                    time.sleep(1)
                return real(transaction, name, work)

            monkeypatch.setattr(wire.app.state.services.database, "run_in", slow)
            with wire.connect() as connected:
                connected.sendall(sent(api, opened["id"]))
                while not wire.taken:
                    time.sleep(0.01)
                wire.server.should_exit = True
                ((status, headers, _),) = read_answers(connected, 1)
                assert connected.recv(1) == b""
        assert (status, headers["connection"], wire.taken) == (202, "close", [True])

    def test_once_told_nothing_more_is_taken(self, database: Database, settings: Settings) -> None:
        with OnTheWire(create_app(settings, database)) as wire:
            api = stranger(wire.client, database)
            opened = api.round(api.dataset()["id"])
            assert api.report(opened["id"]).status_code == 202
            wire.app.state.services.stopping.set()
            answer = api.report(opened["id"])
            assert (answer.status_code, answer.headers["connection"]) == (202, "close")
            assert True not in wire.taken


class TestIdleConnections:
    def test_are_closed_in_time_and_not_before(self, database: Database, settings: Settings) -> None:
        with OnTheWire(create_app(settings, database), idle_seconds=2) as wire, wire.connect() as connected:
            for _ in range(3):  # each begins the wait anew
                connected.sendall(HEALTH)
                read_answers(connected, 1)
                time.sleep(1.2)
            began = time.monotonic()
            assert connected.recv(1) == b""
            assert time.monotonic() - began < 30

    def test_are_closed_though_empty_lines_come(self, database: Database, settings: Settings) -> None:
        with OnTheWire(create_app(settings, database), idle_seconds=1) as wire, wire.connect() as connected:
            connected.sendall(HEALTH)
            read_answers(connected, 1)
            connected.sendall(b"\r\n")
            connected.settimeout(20)
            assert connected.recv(1) == b""

    def test_are_closed_though_their_last_answer_is_not_read(self) -> None:
        class Stuck:
            """A connection whose client reads nothing."""

            aborted = closed = False

            def get_write_buffer_size(self) -> int:
                return 300

            def is_closing(self) -> bool:
                return False

            def abort(self) -> None:
                self.aborted = True

            def close(self) -> None:
                self.closed = True

        stuck = Stuck()
        one: Any = object.__new__(Protocol)
        one.transport, one.timeout_keep_alive, one._idle_since = stuck, 0, -1.0
        one.loop = asyncio.new_event_loop()
        one._look_whether_idle()
        one.loop.close()
        assert (stuck.aborted, stuck.closed) == (True, False)


def test_the_writer_refuses_once_it_has_ended(database: Database) -> None:
    writer = ReportWriter(database, PollingDoorbell(1))
    told: list[Exception | None] = []

    async def hand_over() -> None:
        writer.hand_over(unknown("rnd"), Packed(1, bytes(21)), told.append)
        while not told:
            await asyncio.sleep(0)

    asyncio.run(hand_over())
    assert isinstance(told[0], Unavailable)


def test_one_who_cannot_be_told_keeps_nobody_waiting(api: Api, database: Database, round_id: str) -> None:
    writer = ReportWriter(database, PollingDoorbell(1))
    writer.start()
    told: list[Exception | None] = []

    def breaks(_error: Exception | None) -> None:
        raise OSError("gone")

    async def hand_over() -> None:
        for stored_ in (breaks, told.append):
            writer.hand_over(round_id, Packed(1, bytes(21)), stored_)
        while not told:
            await asyncio.sleep(0.001)

    asyncio.run(hand_over())
    writer.stop()
    assert told == [None]


def test_the_sdk_s_library_goes_the_fast_path(wire: OnTheWire, api: Api, round_id: str) -> None:
    """It sends head and body apart; whatever way each takes, all are stored."""
    with httpx.Client(base_url=wire.client.base_url) as client:
        for _ in range(20):
            headers = {"authorization": f"Bearer {api.secret}"}
            assert client.post(f"/v1/rounds/{round_id}/reports", json=single(), headers=headers).status_code == 202
    assert api.n_received(round_id) == 20
    assert any(wire.taken)
