"""The load: what it writes down, what it complains of, and a small one against a real fleet."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load import figures
from benchmarks.load.__main__ import read
from benchmarks.load.connection import Broken, Connection
from benchmarks.load.crowd import Client, Offers, code, open_loop, timed
from benchmarks.load.notes import Notes, Spread
from benchmarks.load.watch import Watch

ROOT = Path(__file__).parents[3]
GOOD: dict[str, Any] = {
    "unexpected_errors": 0,
    "reports_lost": 0,
    "reports_too_many": 0,
    "jobs_done": 1,
    "report_tail": 9.9,
}


class TestSpread:
    def test_is_by_nearest_rank_in_milliseconds(self) -> None:
        spread = Spread.of([n / 1000 for n in range(1000, 0, -1)])
        assert (spread.n, spread.p50, spread.p90, spread.p99, spread.p999, spread.most) == (
            1000, 500, 900, 990, 999, 1000,
        )  # fmt: skip

    def test_of_one_is_that_one(self) -> None:
        assert Spread.of([0.002]) == Spread(1, 2, 2, 2, 2, 2)


class TestNotes:
    def test_limits_and_rounds_that_closed_are_no_errors(self) -> None:
        notes = Notes()
        notes.errors.update({"409 round_closed": 3, "429 rate_limited": 2, "503 unavailable": 1})
        assert notes.unexpected == {"503 unavailable": 1}

    def test_acknowledged_reports_are_never_forgotten(self) -> None:
        notes = Notes()
        notes.acknowledged["rnd_1"] += 5
        notes.seconds["report"].append(1.0)
        notes.errors["500 internal_error"] += 1
        notes.forget()
        assert notes.acknowledged == {"rnd_1": 5}
        assert not notes.seconds
        assert not notes.errors


class TestComplaints:
    def test_there_are_none_of_a_good_run(self) -> None:
        assert figures.complaints(GOOD, max_tail=figures.MAX_TAIL) == []

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
    def test_each_promise_broken_is_one(self, name: str, value: float) -> None:
        assert len(figures.complaints(GOOD | {name: value}, max_tail=figures.MAX_TAIL)) == 1

    def test_times_are_not_judged_where_nobody_asks(self) -> None:
        assert figures.complaints(GOOD | {"report_tail": 99.0}, max_tail=None) == []


class TestFigures:
    def told(self, acknowledged: dict[str, int], counted: dict[str, int]) -> dict[str, Any]:
        notes, watch = Notes(), Watch.__new__(Watch)
        watch.begin_anew()
        watch.memory_mb = {"gateway-1": [50.0, 90.0, 100.0, 100.0, 101.0, 102.0, 110.0, 110.0]}
        notes.seconds["report"] += [0.001] * 99 + [0.004]
        notes.seconds["jobs"] += [0.0, 0.0]
        notes.acknowledged.update(acknowledged)
        return figures.figures(notes, watch, {name: {"n_reports": n} for name, n in counted.items()}, {"rate": 1})

    def test_a_report_that_is_not_counted_is_lost_whatever_others_have_too_many(self) -> None:
        told = self.told({"a": 5, "b": 5, "gone": 2}, {"a": 4, "b": 6})
        assert (told["reports_lost"], told["reports_too_many"]) == (3, 1)
        assert (told["reports_acknowledged"], told["reports_counted"]) == (12, 10)

    def test_growth_leaves_the_warming_up_out(self) -> None:
        assert self.told({}, {})["memory_growth_mb"] == {"gateway-1": 10.0}

    def test_the_tail_is_of_reports(self) -> None:
        assert self.told({}, {})["report_tail"] == 1.0
        assert self.told({}, {})["jobs_done"] == 2


class TestConnection:
    """Against a server that says what it is told to."""

    @staticmethod
    def asked(answer: bytes, *, n: int = 1, close: bool = False) -> tuple[list[Any], Notes, int]:
        """What `n` requests over one connection came to, and how many connections it took."""
        n_connections = 0

        class Told(asyncio.Protocol):
            transport: asyncio.Transport

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal n_connections
                n_connections += 1
                self.transport = transport  # type: ignore[assignment]

            def data_received(self, data: bytes) -> None:
                self.transport.write(answer)
                if close:
                    self.transport.close()

        async def ask() -> tuple[list[Any], Notes]:
            server = await asyncio.get_running_loop().create_server(Told, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            connection, notes = Connection(f"http://127.0.0.1:{port}", "key"), Notes()
            found = [await timed(notes, "x", connection, "GET", "/") for _ in range(n)]
            connection.close()
            await asyncio.sleep(0)
            server.close()
            await server.wait_closed()
            return found, notes

        found, notes = asyncio.run(ask())
        return found, notes, n_connections

    def test_is_kept_alive(self) -> None:
        answers, notes, n_connections = self.asked(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", n=3)
        assert [answer.body for answer in answers] == [b"hi"] * 3
        assert n_connections == 1
        assert len(notes.seconds["x"]) == 3

    def test_reads_chunks(self) -> None:
        answers, _, _ = self.asked(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
        )
        assert answers[0].body == b"abc"

    @pytest.mark.parametrize(
        "answer",
        [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", b"no HTTP at all\r\n\r\n"],
        ids=["none", "cut short", "something else"],
    )
    def test_without_a_whole_answer_is_an_error(self, answer: bytes) -> None:
        answers, notes, _ = self.asked(answer, close=True)
        assert answers == [None]
        assert sum(notes.unexpected.values()) == 1

    def test_a_problem_is_noted_by_its_code_and_not_timed(self) -> None:
        body = b'{"code":"rate_limited"}'
        _, notes, _ = self.asked(b"HTTP/1.1 429 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert notes.errors == {"429 rate_limited": 1}
        assert not notes.seconds["x"]
        assert code(b"<html>") == code(b"[]") == "without a problem"

    def test_to_nobody_is_an_error(self) -> None:
        async def ask() -> None:
            await Connection("http://127.0.0.1:9", "key").ask("GET", "/")

        with pytest.raises(Broken):
            asyncio.run(ask())


class TestOpenLoop:
    def test_sends_as_many_as_it_is_told_however_slow_the_answers(self) -> None:
        n_visits = 0

        class Slow(Client):
            async def visit(self) -> bool:
                nonlocal n_visits
                n_visits += 1
                await asyncio.sleep(0.02)
                return True

        notes = Notes()
        clients = [Slow("http://127.0.0.1:9", "", "ds", Offers(), notes) for _ in range(50)]
        asyncio.run(open_loop(clients, 400.0, 2.0, notes))
        assert 650 < n_visits < 950  # Poisson, 800 on average: 5 deviations
        assert len(notes.seconds["behind"]) == n_visits


class TestCommandLine:
    @pytest.mark.parametrize(
        "arguments",
        [["--clients", "0"], ["--gateways", "0"], ["--workers", "-1"], ["--seconds", "0"], ["--datasets", "0"]],
    )
    def test_refuses_what_is_no_load(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            read(arguments)
        assert "at least one of each" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.ci
class TestSmall:
    def test_loses_nothing_and_errs_in_nothing(self) -> None:
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
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["unexpected_errors"] == told["reports_lost"] == told["reports_too_many"] == 0
        assert told["reports_acknowledged"] == told["reports_counted"] > 200
        assert told["jobs_done"] >= 1
        assert {"round", "report", "batch", "job", "ledger", "budget", "submit"} <= set(told["milliseconds"])
        assert {"gateway-1", "gateway-2", "worker-1", "worker-2's child"} <= set(told["memory_mb"])
