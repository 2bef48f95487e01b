"""The load benchmark: event log, figures, connection, and a small run against a real fleet."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.load import report
from benchmarks.load.__main__ import parse
from benchmarks.load.connection import Broken, Connection, EventLog, code, timed
from benchmarks.load.devices import DeviceClient, RoundCache, open_loop
from benchmarks.load.monitor import Monitor

ROOT = Path(__file__).parents[3]
GOOD: dict[str, Any] = {
    "unexpected_errors": 0,
    "reports_lost": 0,
    "reports_too_many": 0,
    "jobs_done": 1,
    "report_tail": 9.9,
}


class TestPercentiles:
    def test_they_are_by_nearest_rank_in_milliseconds(self) -> None:
        found = report.percentiles([n / 1000 for n in range(1000, 0, -1)])
        assert found == {"n": 1000, "p50": 500, "p90": 900, "p99": 990, "p999": 999, "max": 1000}

    def test_one_time_is_every_percentile(self) -> None:
        assert report.percentiles([0.002]) == {"n": 1, "p50": 2, "p90": 2, "p99": 2, "p999": 2, "max": 2}


class TestEventLog:
    def test_limits_and_closed_rounds_are_expected(self) -> None:
        log = EventLog()
        log.errors.update({"409 round_closed": 3, "429 rate_limited": 2, "503 unavailable": 1})
        assert log.unexpected == {"503 unavailable": 1}

    def test_a_reset_keeps_acknowledged_reports(self) -> None:
        log = EventLog()
        log.acknowledged["rnd_1"] += 5
        log.seconds["report"].append(1.0)
        log.errors["500 internal_error"] += 1
        log.reset()
        assert log.acknowledged == {"rnd_1": 5}
        assert not log.seconds
        assert not log.errors


class TestFailures:
    def test_a_good_run_has_none(self) -> None:
        assert report.failures(GOOD, max_tail=report.MAX_TAIL) == []

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("unexpected_errors", 1),
            ("reports_lost", 1),
            ("reports_too_many", 1),
            ("jobs_done", 0),
            ("report_tail", 10.1),
        ],
    )
    def test_each_missed_target_is_one(self, name: str, value: float) -> None:
        assert len(report.failures(GOOD | {name: value}, max_tail=report.MAX_TAIL)) == 1

    def test_times_are_not_checked_without_a_limit(self) -> None:
        assert report.failures(GOOD | {"report_tail": 99.0}, max_tail=None) == []


class TestSummary:
    def summary(self, acknowledged: dict[str, int], counted: dict[str, int]) -> dict[str, Any]:
        log, monitor = EventLog(), Monitor.__new__(Monitor)
        monitor.reset()
        monitor.memory_mb = {"gateway-1": [50.0, 90.0, 100.0, 100.0, 101.0, 102.0, 110.0, 110.0]}
        log.seconds["report"] += [0.001] * 99 + [0.004]
        log.seconds["jobs"] += [0.0, 0.0]
        log.acknowledged.update(acknowledged)
        return report.summarise(log, monitor, {name: {"n_reports": n} for name, n in counted.items()}, {"rate": 1})

    def test_a_surplus_in_one_round_does_not_hide_a_loss_in_another(self) -> None:
        summary = self.summary({"a": 5, "b": 5, "gone": 2}, {"a": 4, "b": 6})
        assert (summary["reports_lost"], summary["reports_too_many"]) == (3, 1)
        assert (summary["reports_acknowledged"], summary["reports_counted"]) == (12, 10)

    def test_growth_excludes_the_warm_up(self) -> None:
        assert self.summary({}, {})["memory_growth_mb"] == {"gateway-1": 10.0}

    def test_the_tail_is_of_reports(self) -> None:
        assert self.summary({}, {})["report_tail"] == 1.0
        assert self.summary({}, {})["jobs_done"] == 2


class TestTable:
    def test_it_has_a_line_per_request_but_not_for_waits(self, capsys: pytest.CaptureFixture[str]) -> None:
        spread = report.percentiles([0.001, 0.0025])
        summary = dict.fromkeys(report.SHOWN, 1) | {"milliseconds": {"report": spread, "behind": spread}}
        report.show(Console(), summary)
        out = capsys.readouterr().out
        assert "2.5" in out
        assert "behind" not in out


class TestConnection:
    """A connection to a server with a fixed response."""

    @staticmethod
    def exchange(response: bytes, *, n: int = 1, close: bool = False) -> tuple[list[Any], EventLog, int]:
        """Send `n` requests; return the responses, the log, and the number of connections."""
        n_connections = 0

        class FixedServer(asyncio.Protocol):
            transport: asyncio.Transport

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal n_connections
                n_connections += 1
                self.transport = transport  # type: ignore[assignment]

            def data_received(self, data: bytes) -> None:
                self.transport.write(response)
                if close:
                    self.transport.close()

        async def ask() -> tuple[list[Any], EventLog]:
            server = await asyncio.get_running_loop().create_server(FixedServer, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            connection, log = Connection(f"http://127.0.0.1:{port}", "key"), EventLog()
            found = [await timed(log, "x", connection, "GET", "/") for _ in range(n)]
            connection.close()
            await asyncio.sleep(0)
            server.close()
            await server.wait_closed()
            return found, log

        found, log = asyncio.run(ask())
        return found, log, n_connections

    def test_it_is_persistent(self) -> None:
        responses, log, n_connections = self.exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", n=3)
        assert [response.body for response in responses] == [b"hi"] * 3
        assert n_connections == 1
        assert len(log.seconds["x"]) == 3

    def test_it_reads_chunks(self) -> None:
        responses, _, _ = self.exchange(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
        )
        assert responses[0].body == b"abc"

    @pytest.mark.parametrize(
        "response",
        [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", b"no HTTP at all\r\n\r\n"],
        ids=["none", "cut short", "something else"],
    )
    def test_an_incomplete_response_is_an_error(self, response: bytes) -> None:
        responses, log, _ = self.exchange(response, close=True)
        assert responses == [None]
        assert sum(log.unexpected.values()) == 1

    def test_a_problem_is_logged_by_its_code_and_not_timed(self) -> None:
        body = b'{"code":"rate_limited"}'
        _, log, _ = self.exchange(b"HTTP/1.1 429 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert log.errors == {"429 rate_limited": 1}
        assert not log.seconds["x"]
        assert code(b"<html>") == code(b"[]") == "without a problem"

    def test_a_refused_connection_is_an_error(self) -> None:
        async def ask() -> None:
            await Connection("http://127.0.0.1:9", "key").request("GET", "/")

        with pytest.raises(Broken):
            asyncio.run(ask())


class TestOpenLoop:
    def test_the_rate_does_not_depend_on_response_times(self) -> None:
        n_visits = 0

        class Slow(DeviceClient):
            async def visit(self) -> bool:
                nonlocal n_visits
                n_visits += 1
                await asyncio.sleep(0.02)
                return True

        log = EventLog()
        clients = [Slow("http://127.0.0.1:9", "", "ds", RoundCache(), log) for _ in range(50)]
        asyncio.run(open_loop(clients, 400.0, 2.0, log))
        assert 650 < n_visits < 950  # Poisson with mean 800, within 5 standard deviations
        assert len(log.seconds["behind"]) == n_visits


class TestCommandLine:
    @pytest.mark.parametrize(
        "arguments",
        [["--clients", "0"], ["--gateways", "0"], ["--workers", "-1"], ["--seconds", "0"], ["--datasets", "0"]],
    )
    def test_invalid_numbers_are_refused(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            parse(arguments)
        assert "must be at least 1" in capsys.readouterr().err


@pytest.mark.release
class TestSmallRun:
    def test_there_are_no_losses_and_no_errors(self) -> None:
        arguments = ["--clients", "100", "--gateways", "2", "--workers", "2", "--datasets", "2", "--seconds", "20"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.load",
                *arguments,
                "--rate",
                "30",
                "--job-seconds",
                "5",
                "--no-tail",
                "--json",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout.splitlines()[-1])
        assert summary["unexpected_errors"] == summary["reports_lost"] == summary["reports_too_many"] == 0
        assert summary["reports_acknowledged"] == summary["reports_counted"] > 200
        assert summary["jobs_done"] >= 1
        assert {"round", "report", "batch", "job", "ledger", "budget", "submit"} <= set(summary["milliseconds"])
        assert {"gateway-1", "gateway-2", "worker-1", "worker-2's child"} <= set(summary["memory_mb"])
