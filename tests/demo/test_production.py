"""Tests of the demo in production form: kills change nothing, and the demo detects a difference."""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from rich.console import Console

from clustering import registry
from clustering.rounds.law import checking_law
from clustering.rounds.outside import counting_outside
from clustering.rounds.plan import Collected
from clustering.rounds.tally import Tally
from demo import output
from demo.production import AlternatingTransport, Comparison, Kill, Production, run_reference
from demo.scenario import Scene
from devservers.fleet import Fleet
from devservers.servers import ProcessFailed, ServerMissing
from sfumato.records.outside import count_outside
from sfumato.specs import Feature, ShiftedGrid, to_wire
from tests.demo.test_demo import SECONDS, assert_nothing_left, demo

COMPARISON = Comparison(
    kills=(Kill(1.0, "gateway-1", "here"), Kill(2.0, "worker-2", "there")),
    n_claims=3,
    n_broken=4,
    same_clusters=True,
    same_ledger=True,
    n_reports=1000,
    n_devices=1000,
)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Return a directory that all users can enter, because PostgreSQL runs as `nobody` if this process is root."""
    with tempfile.TemporaryDirectory(prefix="sfumato-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class Network(httpx.BaseTransport):
    """Responds with a function per port."""

    def __init__(self, answers: dict[int, Callable[[], httpx.Response]]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, int | None, bytes]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.headers["host"], request.url.port, request.read()))
        return self._answers[request.url.port or 0]()


def failing(error: type[httpx.TransportError]) -> Callable[[], httpx.Response]:
    def fail() -> httpx.Response:
        raise error("no")

    return fail


class TestAlternatingTransport:
    def either(self, first: Callable[[], httpx.Response]) -> tuple[AlternatingTransport, Network]:
        gateways = AlternatingTransport(["http://127.0.0.1:1", "http://127.0.0.1:2"])
        gateways._network.close()
        network = Network({1: first, 2: lambda: httpx.Response(200)})
        gateways._network = network  # type: ignore[assignment]
        return gateways, network

    def test_requests_alternate(self) -> None:
        gateways, network = self.either(lambda: httpx.Response(200))
        with httpx.Client(transport=gateways, base_url="http://127.0.0.1:1") as client:
            for _ in range(4):
                client.post("/v1/x", content=b"same")
        assert network.asked == 2 * [("127.0.0.1:1", 1, b"same"), ("127.0.0.1:2", 2, b"same")]

    def test_a_gateway_that_does_not_listen_is_skipped(self) -> None:
        gateways, network = self.either(failing(httpx.ConnectError))
        with httpx.Client(transport=gateways, base_url="http://127.0.0.1:1") as client:
            assert client.post("/v1/x", content=b"same").status_code == 200
        assert [port for _, port, _ in network.asked] == [1, 2]
        assert (gateways.n_broken, gateways.n_elsewhere) == (0, 1)

    def test_an_interrupted_request_is_not_repeated(self) -> None:
        gateways, network = self.either(failing(httpx.ReadError))
        with httpx.Client(transport=gateways, base_url="http://127.0.0.1:1") as client, pytest.raises(httpx.ReadError):
            client.post("/v1/x", content=b"same")
        assert [port for _, port, _ in network.asked] == [1]
        assert gateways.n_broken == 1

    def test_an_error_is_raised_if_no_gateway_listens(self) -> None:
        gateways = AlternatingTransport(["http://127.0.0.1:1", "http://127.0.0.1:2"])
        failed = Network({1: failing(httpx.ConnectError), 2: failing(httpx.ConnectError)})
        gateways._network.close()
        gateways._network = failed  # type: ignore[assignment]
        with httpx.Client(transport=gateways) as client, pytest.raises(httpx.ConnectError):
            client.get("http://127.0.0.1:1/v1/x")
        assert len(failed.asked) == 2


class TestComparison:
    def test_equal_results_have_no_complaints(self) -> None:
        assert COMPARISON.complaints == []
        assert dataclasses.replace(COMPARISON, n_claims=4).complaints == []  # a lease was lost on a slow machine

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"kills": COMPARISON.kills[:1]}, "the killed processes are not one gateway and one worker"),
            ({"kills": (COMPARISON.kills[0],) * 2}, "the killed processes are not one gateway and one worker"),
            ({"n_claims": 2}, "finished its work before"),
            ({"n_reports": 999}, "1000 devices reported and 999 reports count"),
            ({"n_reports": 1001}, "1000 devices reported and 1001 reports count"),
            ({"same_clusters": False}, "clusters differ from those"),
            ({"same_ledger": False}, "ledger differs from that"),
        ],
        ids=["no worker", "no gateway either", "too late", "lost", "twice", "clusters", "ledger"],
    )
    def test_each_difference_is_a_complaint(self, change: dict[str, object], complaint: str) -> None:
        (found,) = dataclasses.replace(COMPARISON, **change).complaints  # type: ignore[arg-type]
        assert complaint in found

    def test_the_comparison_is_printed(self) -> None:
        console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
        output.print_kills(console, dataclasses.replace(COMPARISON, same_ledger=False))
        text = console.export_text()
        console.file.close()
        for shown in (
            "gateway-1",
            "worker-2",
            "4 requests were interrupted",
            "the same clusters",
            "not the same ledger entries",
        ):
            assert shown in text


@pytest.mark.slow
class TestReferenceRun:
    def test_the_reference_run_uses_the_given_tally(self, tmp_path: Path) -> None:
        features = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
        algorithm = ShiftedGrid(epsilon=2, clusters=2, cells=6)
        scene = Scene("twin", features, np.full((5000, 2), 0.5), algorithm, singles=1)
        spec = count_outside(next(registry.start(algorithm, features, 5000)))
        rng = np.random.default_rng(3)
        empty = Tally.empty(spec)
        reports = np.full(len(empty.reports), 5000 // len(empty.reports), dtype=np.int64)
        counts = np.minimum(rng.integers(0, 40, size=empty.counts.shape), reports[:, None])
        tally = Tally(counts, reports)
        model, ledger = run_reference(tmp_path, scene, ((tally.to_bytes(), tally.n_reports),))
        plan = checking_law(counting_outside(registry.start(algorithm, features, 5000), opens_counting=True))
        next(plan)
        with pytest.raises(StopIteration) as done:
            plan.send(Collected(spec, tally))
        assert model == done.value.value.to_wire()
        assert [kind for kind, _ in ledger][:3] == ["grant", "reserve", "charge"]
        assert ledger[0][1] == ledger[1][1] == 2_000_000_000
        assert 0 < ledger[2][1] <= 2_000_000_000
        assert to_wire(algorithm)["type"] == "shifted_grid"


@pytest.mark.slow
class TestProduction:
    def test_the_result_equals_the_reference_run(self, tmp_path: Path, temporary: Path) -> None:
        told, ledgers = [], []
        for name, more in (("embedded", ()), ("production", ("--production",))):
            out = tmp_path / name
            arguments = ("--reports", "20000", "--singles", "40", "--json", "--out", str(out), *more)
            process = demo(*arguments, temporary=temporary)
            stdout, stderr = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, stderr
            told.append(json.loads(stdout.splitlines()[-1]))
            document = json.loads((out / "result.json").read_text())
            ledgers.append([(entry["kind"], entry["epsilon_nano"]) for entry in document["ledger"]])
        assert list(told[0]) == list(told[1])
        assert ledgers[0] == ledgers[1]
        proof = document["production"]
        assert proof["complaints"] == []
        assert sorted(each["what"].split("-")[0] for each in proof["killed"]) == ["gateway", "worker"]
        assert proof["claims"] == 3
        assert proof["same_clusters"] is proof["same_ledger"] is True
        assert told[1]["reports"] == 20_000
        assert "Killed by SIGKILL" in stderr
        assert "retry" not in stderr
        assert_nothing_left(temporary)


class TestMissing:
    def test_missing_binaries_are_an_error_and_nothing_remains(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("devservers.servers.redis_installations", list)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(ServerMissing, match="Redis is missing: install it"):
            Production(1).__enter__()
        assert list(tmp_path.iterdir()) == []

    def test_the_error_of_an_ended_process_has_its_last_lines(self, tmp_path: Path) -> None:
        settings = {"SFUMATO_LEASE_SECONDS": "never"}
        with pytest.raises(ProcessFailed, match="SFUMATO_LEASE_SECONDS"):
            Fleet(tmp_path, n_gateways=1, n_workers=1, settings=settings).__enter__()
