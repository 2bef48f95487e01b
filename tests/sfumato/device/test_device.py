"""A device reports once to a round, and sends the same bytes until the service acknowledges them."""

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from sfumato import mechanisms
from sfumato.device.outcomes import Outcome, Receipt
from sfumato.device.store import FileStore, MemoryStore
from sfumato.errors import ApiProblem, InvalidPoint, Unreachable
from sfumato.privacy.accounting import NANO
from sfumato.specs import RoundSpec, ShiftedGridEncoding
from tests.sfumato.replay import GeneratorEntropy, ReplayEntropy
from tests.sfumato.scripted import FEATURES, RECORD, ScriptedService, open_round, refusal, round_spec

pytestmark = pytest.mark.usefixtures("three_attempts")


class TestReporting:
    def test_sends_a_value_of_the_mechanism_to_an_open_round(self) -> None:
        service = ScriptedService(open_round())
        receipt = service.device().report(RECORD)
        assert receipt.outcome is Outcome.SENT
        assert [(a.round_id, a.outcome, a.epsilon) for a in receipt.rounds] == [("rnd_1", Outcome.SENT, 1.0)]
        (report,) = service.stored["rnd_1"]
        assert set(report) == {"report_id", "slot", "value"}
        assert len(bytes.fromhex(report["report_id"])) == 16
        assert report["slot"] == 0
        assert round_spec().mechanism.is_value(base64.b64decode(report["value"], validate=True))

    def test_perturbs_the_symbol_of_a_record_given_by_order_or_by_name(self) -> None:
        encoding = ShiftedGridEncoding(n_features=2, cells=4, shifts=2)
        spec = RoundSpec(FEATURES, encoding, mechanisms.design("grr", 25, NANO))
        for record in ([3.5, 7.5], {"y": 7.5, "x": 3.5}):  # fine cells 3 and 7
            service = ScriptedService(open_round(spec=spec))
            words = [0, 2 << 62, 0, 1, 2]  # draw; slot 2, which shifts by (1, 0); keep the symbol; report id
            service.device(entropy=ReplayEntropy(words)).report(record)
            (report,) = service.stored["rnd_1"]
            coarse = ((3 + 1) // 2, (7 + 0) // 2)
            assert report["slot"] == 2
            assert base64.b64decode(report["value"]) == bytes([coarse[0] * 5 + coarse[1]])
            assert report["report_id"] == "01" + "00" * 7 + "02" + "00" * 7

    def test_fetches_the_list_of_rounds_again_only_if_it_changed(self) -> None:
        service = ScriptedService()
        device = service.device()
        receipt = device.report(RECORD)
        assert (receipt.outcome, receipt.rounds, receipt.retry_after_seconds) == (Outcome.NO_OPEN_ROUND, (), 17.0)
        assert device.report(RECORD).retry_after_seconds == 17.0  # stored with the ETag of a 304
        service.rounds = [open_round()]
        assert [device.report(RECORD).outcome for _ in range(2)] == [Outcome.SENT, Outcome.ALREADY_ANSWERED]
        service.rounds = [open_round("rnd_2")]
        assert device.report(RECORD).outcome is Outcome.SENT
        assert "If-None-Match" not in service.requests[0].headers
        assert all("If-None-Match" in request.headers for request in service.requests[1:])

    def test_reports_to_two_open_rounds_and_charges_both(self) -> None:
        service = ScriptedService(open_round("rnd_1"), open_round("rnd_2", round_spec(0.5)))
        device = service.device()
        receipt = device.report(RECORD)
        assert [(a.round_id, a.outcome, a.epsilon) for a in receipt.rounds] == [
            ("rnd_1", Outcome.SENT, 1.0),
            ("rnd_2", Outcome.SENT, 0.5),
        ]
        assert device.spent == 1.5
        assert {len(reports) for reports in service.stored.values()} == {1}

    @pytest.mark.parametrize("record", [[1.0], [1, 2, 3], [1, float("nan")], {"x": 1.0}, {"x": 1, "y": 2, "z": 3}])
    def test_a_record_that_does_not_fit_is_refused_and_costs_nothing(self, record: Any) -> None:
        service = ScriptedService(open_round())
        device = service.device()
        with pytest.raises(InvalidPoint):
            device.report(record)
        assert service.sent == []
        assert device.spent == 0
        assert device.report(RECORD).outcome is Outcome.SENT

    def test_neither_store_nor_requests_contain_the_record(self, tmp_path: Path) -> None:
        service = ScriptedService(open_round())
        service.replies = [refusal(503, "unavailable")] * 3
        with pytest.raises(ApiProblem):
            service.device(store=tmp_path / "device.json").report([3.141592, 2.718281])
        kept = (tmp_path / "device.json").read_text() + str(service.sent)
        assert "3.14" not in kept
        assert "2.71" not in kept


class TestOnce:
    def test_never_perturbs_again_for_the_same_round(self) -> None:
        service = ScriptedService(open_round())
        entropy = GeneratorEntropy(1)
        device = service.device(entropy=entropy)
        device.report(RECORD)
        drawn = entropy.n_drawn
        for record in (RECORD, [0.0, 0.0], [8.0, 8.0]):
            assert device.report(record).outcome is Outcome.ALREADY_ANSWERED
        assert entropy.n_drawn == drawn
        assert len(service.sent) == 1
        assert device.spent == 1.0

    def test_sends_one_report_for_concurrent_calls_of_threads_and_tasks(self) -> None:
        service = ScriptedService(open_round())
        device = service.device(transport=lambda request: (time.sleep(0.01), service(request))[1])
        with ThreadPoolExecutor(5) as pool:
            receipts = list(pool.map(device.report, [RECORD] * 5))

        async def report() -> list[Receipt]:
            return await asyncio.gather(*(asyncio.to_thread(device.report, RECORD) for _ in range(5)))

        receipts += asyncio.run(report())
        outcomes = Counter(receipt.outcome for receipt in receipts)
        assert outcomes == {Outcome.SENT: 1, Outcome.ALREADY_ANSWERED: 9}
        assert len(service.sent) == 1

    @pytest.mark.parametrize(
        "fault", [httpx.ReadTimeout("lost"), httpx.RemoteProtocolError("lost"), refusal(500, "internal_error")]
    )
    def test_repeats_the_same_bytes_after_a_lost_response(self, fault: Any) -> None:
        service = ScriptedService(open_round())
        service.replies = [fault, fault]
        assert service.device().report(RECORD).outcome is Outcome.SENT
        assert len(service.bodies()) == 3
        assert len(set(service.bodies())) == 1
        assert len(service.stored["rnd_1"]) == 1

    def test_keeps_a_report_while_the_service_is_unreachable_and_flushes_it(self) -> None:
        service = ScriptedService(open_round())
        service.replies = [httpx.ConnectTimeout("away")] * 3
        device = service.device()
        with pytest.raises(Unreachable):
            device.report(RECORD)
        assert device.pending() == ("rnd_1",)
        assert device.spent == 1.0  # it may have arrived
        n_requests = len(service.requests)
        assert [(a.round_id, a.outcome) for a in device.flush()] == [("rnd_1", Outcome.SENT)]
        assert device.flush() == ()
        assert len(service.requests) == n_requests  # a flush does not fetch rounds
        assert device.pending() == ()
        assert len(set(service.bodies())) == 1

    @pytest.mark.parametrize("is_stored", [True, False])
    def test_a_new_device_on_the_same_store_resends_after_a_crash(self, tmp_path: Path, is_stored: bool) -> None:
        service = ScriptedService(open_round())

        def crash(request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                service.sent.append(("rnd_1", request.content))
                if is_stored:
                    service.sent.pop()
                    service(request)
                raise KeyboardInterrupt
            return service(request)

        with pytest.raises(KeyboardInterrupt):
            service.device(crash, store=FileStore(tmp_path / "device.json")).report(RECORD)
        again = service.device(store=FileStore(tmp_path / "device.json"))
        assert again.pending() == ("rnd_1",)
        assert again.report([0.0, 0.0]).outcome is Outcome.SENT
        assert len(service.bodies()) == 2
        assert len(set(service.bodies())) == 1
        assert len(service.stored["rnd_1"]) == 1
        assert again.spent == 1.0

    def test_stores_a_report_before_sending_it(self) -> None:
        service = ScriptedService(open_round())
        store = MemoryStore()
        remembered: list[bool] = []

        def check(request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                memo = store.read("ds_1").memos["rnd_1"]
                remembered.append(memo.report_id == json.loads(request.content)["report_id"])
            return service(request)

        service.device(check, store=store).report(RECORD)
        assert remembered == [True]

    def test_eight_devices_on_one_file_report_once(self, tmp_path: Path) -> None:
        service = ScriptedService(open_round())
        start = threading.Barrier(8)

        def run() -> None:
            device = service.device(store=FileStore(tmp_path / "device.json"))
            start.wait()
            device.report(RECORD)

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(service.bodies())) == 1
        assert service.device(store=FileStore(tmp_path / "device.json")).spent == 1.0

    def test_keeps_the_cost_but_not_the_bytes_of_an_acknowledged_report(self) -> None:
        store = MemoryStore()
        ScriptedService(open_round()).device(store=store).report(RECORD)
        memo = store.read("ds_1").memos["rnd_1"]
        assert (memo.state, memo.slot, memo.value, memo.epsilon_nano) == ("acknowledged", None, None, NANO)


KILLED = """
import sys
from sfumato import Device
Device(sys.argv[1], "sfk_device", "ds_1", cap=2, store=sys.argv[2], retry_seconds=0).report([3.5, 7.5])
"""


class TestKilled:
    def test_a_killed_process_resends_the_same_bytes(self, tmp_path: Path) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(180)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = subprocess.Popen([sys.executable, "-c", KILLED, url, str(tmp_path / "device.json")])
        try:
            fetching, _ = listener.accept()
            _receive(fetching)
            body = json.dumps({"rounds": [open_round()]}).encode()
            head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            fetching.sendall(head % len(body) + body)
            fetching.close()
            reporting, _ = listener.accept()
            sent = _receive(reporting)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            listener.close()
        reporting.close()
        service = ScriptedService(open_round())
        assert service.device(store=tmp_path / "device.json").report([0.0, 0.0]).outcome is Outcome.SENT
        assert service.bodies() == [sent]


def _receive(connection: socket.socket) -> bytes:
    """Return the body of one request."""
    connection.settimeout(180)
    seen = b""
    while b"\r\n\r\n" not in seen:
        seen += connection.recv(65536)
    head, _, body = seen.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0].split(b":")[1]):
        body += connection.recv(65536)
    return body


class TestChannelOfDevice:
    def test_values_follow_the_channel_of_the_record(self) -> None:
        """Compare values with the channel of the record's symbol, and of another: chi-square, p > 1e-6."""
        from scipy import stats

        spec = round_spec(1.0, cells=2)
        rows = spec.mechanism.channel()
        values = []
        entropy = GeneratorEntropy(1)
        for _ in range(200):
            service = ScriptedService(open_round(spec=spec))
            service.device(retry_seconds=0, entropy=entropy).report([1.0, 7.0])
            values.append(base64.b64decode(service.stored["rnd_1"][0]["value"]))
        seen = [values.count(value) for value in rows]
        assert stats.chisquare(seen, [200 * float(row[1]) for row in rows.values()]).pvalue > 1e-6
        assert stats.chisquare(seen, [200 * float(row[2]) for row in rows.values()]).pvalue < 1e-6
