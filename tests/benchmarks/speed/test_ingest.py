"""Ingest: request bodies, the load generator, and counts of acknowledged reports."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.output import MissingTool
from benchmarks.speed import ingest
from benchmarks.speed.harness import bodies, wrk
from benchmarks.speed.harness.wrk import Load, LoadFailed
from benchmarks.speed.ingest import Lost, Target
from service.ingestion.report_endpoint import READERS
from service.ingestion.report_formats import ReportFormat
from sfumato.mechanisms import design
from sfumato.specs import Feature, GridEncoding, RoundSpec, to_wire

MECHANISM = design("grr", 200, 10**9)
SPEC = to_wire(RoundSpec((Feature("x", 0.0, 1.0),), GridEncoding((200,)), MECHANISM))


class TestBodies:
    @pytest.mark.parametrize("form", list(bodies.FORMS))
    def test_every_form_has_the_same_reports(self, form: str) -> None:
        these = bodies.make_reports(SPEC, 1000)
        shape = ReportFormat("rnd_x", "ds_x", "ten_x", MECHANISM, 1, 1)
        packed = READERS[bodies.FORMS[form].encode()](shape, bodies.body(form, these), 1000)
        assert packed.n_reports == 1000
        assert packed.data == bodies.body("packed octets", these)

    @pytest.mark.parametrize("form", list(bodies.FORMS))
    def test_bodies_are_written_once_at_least(self, form: str) -> None:
        sent, written = bodies.body(form, bodies.make_reports(SPEC, 10)), []
        assert bodies.per_second(form, sent, 10, written.append, 0.0) > 0
        assert written == [sent]

    def test_a_file_gets_every_byte(self) -> None:
        with bodies.file_writer() as write:
            write(b"x" * (1 << 20))
            write(b"y")


class _FinishedLoad:
    """A load generator that has finished."""

    def __init__(self, out: str, returncode: int = 0) -> None:
        self._out, self.returncode = out, returncode

    def communicate(self) -> tuple[str, str]:
        return self._out, "its error"


def _line(**more: int) -> str:
    result = {"requests": 100, "microseconds": 2_000_000, "refused": 0, "broken": 0, "p50": 1500, "p99": 9000} | more
    return "Running 2s test\n" + str(result).replace("'", '"') + "\n"


class TestLoad:
    def test_times_are_in_seconds(self) -> None:
        result = wrk.end(_FinishedLoad(_line()))  # type: ignore[arg-type]
        assert (result.per_second, result.p50_seconds, result.p99_seconds) == (50.0, 0.0015, 0.009)

    @pytest.mark.parametrize(
        "load",
        [
            _FinishedLoad(_line(refused=1)),
            _FinishedLoad(_line(broken=1)),
            _FinishedLoad("no line"),
            _FinishedLoad(_line(), 1),
        ],
    )
    def test_a_failed_request_makes_the_run_invalid(self, load: Any) -> None:
        with pytest.raises(LoadFailed):
            wrk.end(load)

    def test_a_missing_generator_has_the_command_that_installs_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        with pytest.raises(MissingTool, match="apt-get install wrk"):
            wrk.command()

    def test_the_arguments_have_no_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        load: list[tuple[list[str], dict[str, str]]] = []
        monkeypatch.setattr(wrk, "command", lambda: "wrk")
        monkeypatch.setattr("subprocess.Popen", lambda command, env, **_other: load.append((command, env)))
        wrk.begin(Load("sfk_secret", file=Path("body")), "http://127.0.0.1:1/x", 0.2)
        ((command, environment),) = load
        assert "sfk_secret" not in " ".join(command)
        assert environment["SPEED_KEY"] == "sfk_secret"
        assert environment["SPEED_FILE"] == "body"


class _Service:
    """A service that reports a fixed count."""

    key = "sfk_x"

    def __init__(self, n_received: int) -> None:
        self.n_received = n_received
        self.gateways = [type("Gateway", (), {"url": "http://127.0.0.1:1"})]

    def client(self) -> Any:
        def answer(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/v1/datasets":
                return httpx.Response(201, json={"id": "ds_x"})
            if request.method == "POST":
                return httpx.Response(201, json={"id": "rnd_x", "spec": {}})
            return httpx.Response(200, json={"n_received": self.n_received})

        return nullcontext(httpx.Client(transport=httpx.MockTransport(answer), base_url="http://service"))


class TestTarget:
    @pytest.mark.parametrize(("n_received", "is_lost"), [(299, True), (300, False), (324, False), (325, True)])
    def test_every_acknowledged_report_must_be_counted_and_no_other(
        self, monkeypatch: pytest.MonkeyPatch, n_received: int, is_lost: bool
    ) -> None:
        monkeypatch.setattr(wrk, "begin", lambda *_what, **_how: _FinishedLoad(_line()))
        target = Target(_Service(n_received), connections=8)  # type: ignore[arg-type]
        target.set_load(Load("sfk_x", connections=8), 1)
        for _ in range(3):
            target.run(1.0)
        with pytest.raises(Lost) if is_lost else nullcontext():
            target.check()

    def test_a_run_without_responses_is_repeated_with_more_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lasted: list[float] = []

        def begin(_load: Load, _url: str, seconds: float, **_how: Any) -> _FinishedLoad:
            lasted.append(seconds)
            return _FinishedLoad(_line(requests=0 if len(lasted) < 3 else 7))

        monkeypatch.setattr(wrk, "begin", begin)
        assert Target(_Service(7)).run(1.0).requests == 7  # type: ignore[arg-type]
        assert lasted == [1.0, 2.0, 4.0]
        monkeypatch.setattr(wrk, "begin", lambda *_what, **_how: _FinishedLoad(_line(requests=0)))
        with pytest.raises(Lost, match="no request was answered"):
            Target(_Service(0)).run(1.0)  # type: ignore[arg-type]

    def test_the_bars_are_those_of_the_documentation(self) -> None:
        assert (ingest.SINGLE_RATIO, ingest.COPY_SHARE) == (1.5, 0.8)
        assert (ingest.SLOW_DISK_PER_SECOND, ingest.ARROW_PER_SECOND) == (5_000, 12e6)
