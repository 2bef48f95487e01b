"""The demo as in production: what is killed is not missed, and the demo would say so if it were."""

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
from clustering.plan import Collected, Tally
from demo import production, show
from demo.fleet import Fleet
from demo.production import Accident, EitherGateway, Production, Proof, twin
from demo.servers import ServerMissing
from demo.story import Scene
from sfumato.specs import Feature, ShiftedGrid, to_wire
from tests.demo.test_demo import SECONDS, assert_nothing_left, demo

PROOF = Proof(
    accidents=(Accident(1.0, "gateway-1", "here"), Accident(2.0, "worker-2", "there")),
    n_claims=3,
    n_broken=4,
    same_clusters=True,
    same_ledger=True,
    n_reports=1000,
    n_devices=1000,
)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory whose parents everybody may enter: PostgreSQL, begun by root, runs as nobody."""
    with tempfile.TemporaryDirectory(prefix="sfumato-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class Network(httpx.BaseTransport):
    """Answers as told, by the port that is asked."""

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


class TestEitherGateway:
    def either(self, first: Callable[[], httpx.Response]) -> tuple[EitherGateway, Network]:
        gateways = EitherGateway(["http://127.0.0.1:1", "http://127.0.0.1:2"])
        gateways._network.close()
        network = Network({1: first, 2: lambda: httpx.Response(200)})
        gateways._network = network  # type: ignore[assignment]
        return gateways, network

    def test_takes_them_in_turn(self) -> None:
        gateways, network = self.either(lambda: httpx.Response(200))
        with httpx.Client(transport=gateways, base_url="http://127.0.0.1:1") as client:
            for _ in range(4):
                client.post("/v1/x", content=b"same")
        assert network.asked == 2 * [("127.0.0.1:1", 1, b"same"), ("127.0.0.1:2", 2, b"same")]

    def test_passes_one_where_nobody_listens(self) -> None:
        gateways, network = self.either(failing(httpx.ConnectError))
        with httpx.Client(transport=gateways, base_url="http://127.0.0.1:1") as client:
            assert client.post("/v1/x", content=b"same").status_code == 200
        assert [port for _, port, _ in network.asked] == [1, 2]
        assert (gateways.n_broken, gateways.n_elsewhere) == (0, 1)

    def test_leaves_a_request_that_broke_off_to_who_knows_whether_it_may_be_sent_again(self) -> None:
        gateways, network = self.either(failing(httpx.ReadError))
        with httpx.Client(transport=gateways, base_url="http://127.0.0.1:1") as client, pytest.raises(httpx.ReadError):
            client.post("/v1/x", content=b"same")
        assert [port for _, port, _ in network.asked] == [1]
        assert gateways.n_broken == 1

    def test_says_so_where_nobody_listens_anywhere(self) -> None:
        gateways = EitherGateway(["http://127.0.0.1:1", "http://127.0.0.1:2"])
        failed = Network({1: failing(httpx.ConnectError), 2: failing(httpx.ConnectError)})
        gateways._network.close()
        gateways._network = failed  # type: ignore[assignment]
        with httpx.Client(transport=gateways) as client, pytest.raises(httpx.ConnectError):
            client.get("http://127.0.0.1:1/v1/x")
        assert len(failed.asked) == 2


class TestProof:
    def test_of_a_promise_kept_complains_of_nothing(self) -> None:
        assert PROOF.complaints == []

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"accidents": PROOF.accidents[:1]}, "not one gateway and one worker were killed"),
            ({"accidents": (PROOF.accidents[0],) * 2}, "not one gateway and one worker were killed"),
            ({"n_claims": 2}, "had done its work before"),
            ({"n_reports": 999}, "1000 devices reported and 999 reports count"),
            ({"n_reports": 1001}, "1000 devices reported and 1001 reports count"),
            ({"same_clusters": False}, "clusters are not those"),
            ({"same_ledger": False}, "ledger is not that"),
        ],
        ids=["no worker", "no gateway either", "too late", "lost", "twice", "clusters", "ledger"],
    )
    def test_of_a_promise_broken_says_which(self, change: dict[str, object], complaint: str) -> None:
        (said,) = dataclasses.replace(PROOF, **change).complaints  # type: ignore[arg-type]
        assert complaint in said

    def test_is_shown(self) -> None:
        console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
        show.accidents(console, dataclasses.replace(PROOF, same_ledger=False))
        text = console.export_text()
        console.file.close()
        for shown in ("gateway-1", "worker-2", "4 requests broke off", "the same clusters", "not the same entries"):
            assert shown in text


@pytest.mark.slow
@pytest.mark.ci
class TestTwin:
    def test_does_the_job_over_the_tally_it_is_given(self, tmp_path: Path) -> None:
        features = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
        algorithm = ShiftedGrid(epsilon=2, clusters=2, cells=6)
        scene = Scene("twin", features, np.full((5000, 2), 0.5), algorithm, singles=1)
        spec = next(registry.start(algorithm, features, 5000))
        rng = np.random.default_rng(3)
        empty = Tally.empty(spec)
        reports = np.full(len(empty.reports), 5000 // len(empty.reports), dtype=np.int64)
        counts = np.minimum(rng.integers(0, 40, size=empty.counts.shape), reports[:, None])
        tally = Tally(counts, reports)
        model, ledger = twin(tmp_path, scene, ((tally.to_bytes(), tally.n_reports),))
        plan = registry.start(algorithm, features, 5000)
        next(plan)
        with pytest.raises(StopIteration) as done:
            plan.send(Collected(spec, tally))
        assert model == done.value.value.to_wire()
        assert [kind for kind, _ in ledger][:3] == ["grant", "reserve", "post"]
        assert ledger[0][1] == ledger[1][1] == 2_000_000_000
        assert 0 < ledger[2][1] <= 2_000_000_000
        assert to_wire(algorithm)["type"] == "shifted_grid"


@pytest.mark.slow
@pytest.mark.ci
class TestProduction:
    def test_ends_as_the_embedded_demo_does(self, tmp_path: Path, temporary: Path) -> None:
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
        assert "stamina" not in stderr
        assert_nothing_left(temporary)


class TestMissing:
    def test_binaries_are_told_of_and_nothing_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("demo.servers.redis_installations", list)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(ServerMissing, match="Redis is missing: install it"):
            Production(1).__enter__()
        assert list(tmp_path.iterdir()) == []

    def test_process_that_ends_is_told_of_with_its_last_lines(self, tmp_path: Path) -> None:
        settings = {"SFUMATO_LEASE_SECONDS": "never"}
        with pytest.raises(production.ServiceFailed, match="SFUMATO_LEASE_SECONDS"):
            Fleet(tmp_path, n_gateways=1, n_workers=1, settings=settings).__enter__()
