"""What is sent in the measurement of ingest, and that what was acknowledged is counted."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.speed import bodies, ingest, wrk
from benchmarks.speed.ingest import Lost, Target
from benchmarks.speed.row import Missing
from benchmarks.speed.wrk import Load, LoadFailed
from service.ingest import READERS
from service.reports import Shape
from sfumato.mechanisms import design

SPEC_SLOTS, SPEC_SYMBOLS = 4, 200


class TestBodies:
    @pytest.mark.parametrize("form", list(bodies.FORMS))
    def test_of_every_form_are_the_same_reports_to_the_service(self, form: str) -> None:
        these = bodies.reports(1000, SPEC_SLOTS, SPEC_SYMBOLS)
        shape = Shape("rnd_x", "ds_x", "ten_x", design("grr", SPEC_SYMBOLS, 10**9), SPEC_SLOTS, 1)
        packed = READERS[bodies.FORMS[form].encode()](shape, bodies.body(form, these), 1000)
        assert packed.n_reports == 1000
        assert packed.data == bodies.body("packed octets", these)

    @pytest.mark.parametrize("form", list(bodies.FORMS))
    def test_are_written_as_often_as_the_time_allows_and_once_at_least(self, form: str) -> None:
        sent, written = bodies.body(form, bodies.reports(10, 1, 2)), []
        assert bodies.per_second(form, sent, 10, written.append, 0.0) > 0
        assert written == [sent]

    def test_reach_a_file_whole(self) -> None:
        with bodies.file_writer() as write:
            write(b"x" * (1 << 20))
            write(b"y")


class _Begun:
    """A load generator that has run."""

    def __init__(self, out: str, returncode: int = 0) -> None:
        self._out, self.returncode = out, returncode

    def communicate(self) -> tuple[str, str]:
        return self._out, "its error"


def _line(**more: int) -> str:
    told = {"requests": 100, "microseconds": 2_000_000, "refused": 0, "broken": 0, "p50": 1500, "p99": 9000} | more
    return "Running 2s test\n" + str(told).replace("'", '"') + "\n"


class TestTheLoad:
    def test_is_told_in_seconds(self) -> None:
        told = wrk.end(_Begun(_line()))  # type: ignore[arg-type]
        assert (told.per_second, told.p50_seconds, told.p99_seconds) == (50.0, 0.0015, 0.009)

    @pytest.mark.parametrize(
        "begun",
        [
            _Begun(_line(refused=1)),
            _Begun(_line(broken=1)),
            _Begun("no line"),
            _Begun(_line(), 1),
        ],
    )
    def test_that_was_not_answered_means_nothing(self, begun: Any) -> None:
        with pytest.raises(LoadFailed):
            wrk.end(begun)

    def test_may_be_refused_where_that_is_what_is_measured(self) -> None:
        assert wrk.end(_Begun(_line(refused=3)), may_refuse=True).refused == 3  # type: ignore[arg-type]

    def test_without_its_generator_says_what_installs_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        with pytest.raises(Missing, match="apt-get install wrk"):
            wrk.command()

    def test_has_no_key_in_its_arguments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begun: list[tuple[list[str], dict[str, str]]] = []
        monkeypatch.setattr(wrk, "command", lambda: "wrk")
        monkeypatch.setattr("subprocess.Popen", lambda command, env, **_other: begun.append((command, env)))
        wrk.begin(Load("sfk_secret", file=Path("body")), "http://127.0.0.1:1/x", 0.2)
        ((command, environment),) = begun
        assert "sfk_secret" not in " ".join(command)
        assert environment["SPEED_KEY"] == "sfk_secret"
        assert environment["SPEED_FILE"] == "body"


class _Service:
    """Counts what it says it does."""

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


class TestWhatWasAcknowledged:
    @pytest.mark.parametrize(("n_received", "is_lost"), [(299, True), (300, False), (324, False), (325, True)])
    def test_is_counted_and_nothing_that_was_not_sent(
        self, monkeypatch: pytest.MonkeyPatch, n_received: int, is_lost: bool
    ) -> None:
        monkeypatch.setattr(wrk, "begin", lambda *_what, **_how: _Begun(_line()))
        target = Target(_Service(n_received), connections=8)  # type: ignore[arg-type]
        target.use(Load("sfk_x", connections=8), 1)
        for _ in range(3):
            target.run(1.0)
        with pytest.raises(Lost) if is_lost else nullcontext():
            target.check()

    def test_is_waited_for_where_nothing_was_answered_at_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lasted: list[float] = []

        def begin(_load: Load, _url: str, seconds: float, **_how: Any) -> _Begun:
            lasted.append(seconds)
            return _Begun(_line(requests=0 if len(lasted) < 3 else 7))

        monkeypatch.setattr(wrk, "begin", begin)
        assert Target(_Service(7)).run(1.0).requests == 7  # type: ignore[arg-type]
        assert lasted == [1.0, 2.0, 4.0]
        monkeypatch.setattr(wrk, "begin", lambda *_what, **_how: _Begun(_line(requests=0)))
        with pytest.raises(Lost, match="no request was answered"):
            Target(_Service(0)).run(1.0)  # type: ignore[arg-type]

    def test_is_held_to_the_bars_of_the_documentation(self) -> None:
        assert (ingest.SINGLE_BAR, ingest.SLOW_DISK_PER_SECOND, ingest.ARROW_PER_SECOND) == (0.75, 5_000, 20e6)
