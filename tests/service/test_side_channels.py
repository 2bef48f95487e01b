"""Every other channel of docs/privacy.md: logs, headers, crashes, uploads, reports, keys."""

import json
import re
import resource
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import structlog

from models.doorbell import PollingDoorbell
from models.job import Claim, Job
from models.settings import Settings
from service import logs, server
from service.device_rounds import ASK_AGAIN_SECONDS
from service.metrics import TIMED
from sfumato import mechanisms
from sfumato.accounting import NANO
from tests.service.api import Api, refused, single
from tests.service.processes import until
from workers import __main__ as worker
from workers import process
from workers.metrics import WorkerMetrics

ROOT = Path(__file__).parents[2]
GATED = {"type": "gated_grid_kmeans", "epsilon": 1.0, "clusters": 3}


class TestLogs:
    @pytest.fixture
    def configured(self) -> Iterator[None]:
        yield
        structlog.reset_defaults()

    @pytest.mark.parametrize("configure", [logs.configure, process.log_to_stderr], ids=["gateway", "worker"])
    def test_tell_whole_seconds(
        self, configure: Callable[[], None], capsys: pytest.CaptureFixture[str], configured: None
    ) -> None:
        configure()
        structlog.get_logger("a channel").info("something_happened")
        line = json.loads(capsys.readouterr().err)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["timestamp"])

    @pytest.mark.parametrize(
        ("path", "is_timed"),
        [
            ("/datasets/{ds}/records", False),
            ("/datasets/{ds}", False),
            ("/jobs/{job}", False),
            ("/jobs/{job}?wait=0.05", False),
            ("/jobs/{job}/result", True),
            ("/datasets/{ds}/ledger", True),
            ("/datasets", True),
            ("/jobs", True),
        ],
    )
    def test_time_no_request_that_takes_longer_the_more_records_there_are(
        self, api: Api, path: str, is_timed: bool
    ) -> None:
        central = api.dataset(trust="central")["id"]
        job_id = api.made("/jobs", {"dataset_id": central, "algorithm": GATED})["id"]
        with structlog.testing.capture_logs() as lines:
            api.get(path.format(ds=central, job=job_id))
        (line,) = lines
        assert ("ms" in line) is is_timed
        assert set(line) - {"ms"} == {"event", "log_level", "method", "path", "status", "request_id"}


class TestMetrics:
    def test_are_no_path_of_the_api(self, http: httpx.Client) -> None:
        refused(http.get("/metrics"), 404, "not_found")

    def test_stand_in_the_page_one_by_one(self, started: Callable[..., Api]) -> None:
        """Whoever adds one says in docs/privacy.md what it tells."""
        registries = (metrics_of(started()), WorkerMetrics(PollingDoorbell(1.0)).registry)
        families = {family.name for registry in registries for family in registry.collect()}
        page = (ROOT / "docs" / "privacy.md").read_text()
        assert len(families) > 5
        assert [name for name in sorted(families) if f"`{name}`" not in page] == []

    def test_have_no_label_that_names_a_thing(self, started: Callable[..., Api]) -> None:
        api = started()
        made = api.dataset()
        api.report(api.round(made["id"])["id"])
        api.get(f"/datasets/{made['id']}")
        labels = {
            (name, value)
            for family in metrics_of(api).collect()
            for sample in family.samples
            for name, value in sample.labels.items()
        }
        known = {"route", "method", "status", "le", "policy", "state", "part", "outcome", "transaction", "reason"}
        assert {name for name, _ in labels} <= known
        assert ("route", "/v1/datasets/{dataset_id}") in labels
        assert not [value for _, value in labels if re.search("[a-z]+_[0-9a-hjkmnp-tv-z]{26}", value)]

    def test_time_no_request_that_takes_longer_the_more_records_there_are(self) -> None:
        assert len(TIMED) > 5
        telling = [f"/v1/datasets/{{dataset_id}}{end}" for end in ("", "/records")]
        telling += [f"/v1/jobs/{{job_id}}{end}" for end in ("", "/events")]
        assert [of for of in TIMED if of[1] in telling] in ([], [("GET", "/v1/datasets/{dataset_id}")])

    @pytest.mark.parametrize(("target_reports", "times"), [(0, 0), (1, 1)])
    def test_of_a_worker_count_no_time_of_a_job_over_records(self, target_reports: int, times: int) -> None:
        job = Job(algorithm=GATED, round_ids=[], target_reports=target_reports, created_at=0)
        metrics = WorkerMetrics()
        metrics.claimed(job, Claim("job", 1), now=5, idle_since=None).ended("succeeded")
        counted = {sample.name: sample.value for family in metrics.registry.collect() for sample in family.samples}
        assert counted["sfumato_claim_seconds_count"] == times
        assert (
            counted["sfumato_claim_latency_seconds_count"] == 0
        )  # the worker was not idle: what it did took that long
        assert counted["sfumato_claims_ended_total"] == 1


def metrics_of(api: Api) -> Any:
    """The registry of a gateway in this process."""
    return api.http._transport._asgi.app.state.services.metrics.registry  # type: ignore[attr-defined]


class TestHeaders:
    def test_name_requests_at_random(self, http: httpx.Client) -> None:
        """An id that counted would tell anybody, without a key, how many requests others made meanwhile."""
        ids = [http.get("/healthz").headers["x-request-id"] for _ in range(50)]
        assert all(re.fullmatch("[0-9a-f]{16}", each) for each in ids)
        assert len(set(ids)) == 50
        steps = {int(b, 16) - int(a, 16) for a, b in pairwise(ids)}
        assert min(map(abs, steps)) > 1 << 16  # by chance not: 49 * 2^17 / 2^64

    def test_say_to_wait_for_the_same_time_whatever_is_under_way(self, api: Api) -> None:
        made = api.dataset()
        waits = [api.get(f"/datasets/{made['id']}/round").headers["retry-after"]]
        opened = api.round(made["id"], target_reports=2)
        assert "retry-after" not in api.get(f"/datasets/{made['id']}/round").headers
        for _ in range(2):
            assert api.report(opened["id"]).status_code == 202
        waits.append(until(lambda: api.get(f"/datasets/{made['id']}/round").headers.get("retry-after")))
        assert waits == 2 * [str(ASK_AGAIN_SECONDS)]
        body = {"dataset_id": made["id"], "algorithm": {"type": "uniform_grid", "epsilon": 1}, "target_reports": 1000}
        assert {api.post("/jobs", body).headers["retry-after"] for _ in range(3)} == {"1"}

    def test_compress_nothing(self, api: Api) -> None:
        """The length of what is compressed depends on what stands beside a secret in it."""
        for path in ("/datasets", "/jobs", "/keys"):
            answer = api.get(path, headers={"Accept-Encoding": "gzip, deflate, br, zstd"})
            assert answer.status_code == 200
            assert "content-encoding" not in answer.headers

    def test_of_a_dataset_tag_its_declaration_and_nothing_else(self, api: Api) -> None:
        made = api.dataset(trust="central")
        before = api.get(f"/datasets/{made['id']}")
        api.made(f"/datasets/{made['id']}/records", {"columns": ["x", "y"], "rows": [[0.1, 0.2]] * 100})
        api.made("/jobs", {"dataset_id": made["id"], "algorithm": GATED})
        after_it = api.get(f"/datasets/{made['id']}")
        assert (after_it.headers["etag"], after_it.content) == (before.headers["etag"], before.content)


class TestACrash:
    def test_leaves_no_memory_on_the_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limits: list[tuple[int, tuple[int, int]]] = []
        monkeypatch.setattr(resource, "setrlimit", lambda what, limit: limits.append((what, limit)))
        idle = SimpleNamespace(run=lambda *_, **__: None, stop=lambda: None)
        monkeypatch.setattr(worker, "Supervisor", lambda *_, **__: idle)
        monkeypatch.setattr(worker, "Database", lambda *_, **__: SimpleNamespace(close=lambda: None))
        monkeypatch.setattr(worker, "log_to_stderr", lambda: None)
        monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
        worker.main()
        assert limits == [(resource.RLIMIT_CORE, (0, 0))]
        monkeypatch.setattr(server, "Server", lambda *_: idle)
        bound = server.bind("127.0.0.1", 0)
        services = SimpleNamespace(settings=Settings())
        server.run(SimpleNamespace(state=SimpleNamespace(services=services, fast_path=None)), bound)  # type: ignore[arg-type]
        assert limits == 2 * [(resource.RLIMIT_CORE, (0, 0))]

    @pytest.mark.parametrize("describe", [logs.describe, process.describe], ids=["gateway", "worker"])
    def test_is_logged_without_its_message_or_a_value(
        self, describe: Callable[[BaseException], dict[str, Any]]
    ) -> None:
        def fail(private: float) -> None:
            raise ValueError(f"cannot place {private}")

        try:
            fail(0.2468013579)
        except ValueError as error:
            told = describe(error)
        assert told["error"] == "ValueError"
        assert "2468" not in str(told)


class TestUploads:
    def test_are_written_to_no_temporary_file(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("a temporary file")

        for name in ("SpooledTemporaryFile", "TemporaryFile", "NamedTemporaryFile", "mkstemp", "mkdtemp"):
            monkeypatch.setattr(tempfile, name, refuse)
        made = api.dataset(trust="central")
        rows = [[i / 3000, -i / 3000] for i in range(3000)]
        text = "x,y\n" + "".join(f"{x},{y}\n" for x, y in rows)
        for body, kind in ((text.encode(), "text/csv"), (json.dumps({"columns": ["x", "y"], "rows": rows}), "json")):
            kind = kind if "/" in kind else f"application/{kind}"
            answer = api.post(f"/datasets/{made['id']}/records", content=body, headers={"content-type": kind})
            assert answer.status_code == 201, answer.text

    def test_are_answered_at_the_same_length_whatever_they_hold(self, api: Api) -> None:
        made = api.dataset(trust="central")
        lengths = set()
        for value in (0.0, 0.123456789, 1.0):
            rows = [[value, -value]] * 50
            answer = api.post(f"/datasets/{made['id']}/records", {"columns": ["x", "y"], "rows": rows})
            lengths.add((answer.status_code, len(answer.content)))
        assert len(lengths) == 1


class Counting:
    """Words of a seeded stream, counted."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)
        self.n_words = 0

    def words(self, n: int) -> Any:
        self.n_words += n
        return np.asarray(self._bits.random_raw(n), dtype=np.uint64)


MECHANISMS = [mechanisms.design(kind, 16, NANO) for kind in ("grr", "ss", "oue", "olh", "hr", "window")]
VECTORS = mechanisms.discrete_laplace.design(2, 100, NANO)


class TestReports:
    @pytest.mark.parametrize("mechanism", [*MECHANISMS, VECTORS], ids=lambda mechanism: mechanism.type)
    def test_take_as_many_bytes_and_as_many_coins_whatever_the_record(self, mechanism: Any) -> None:
        symbols: list[Any] = list(range(16)) if mechanism is not VECTORS else [(0, 0), (50, 7), (100, 100), (0, 100)]
        for seed in range(100):
            coins = [Counting(seed) for _ in symbols]
            sent = [mechanisms.perturb(mechanism, *each) for each in zip(symbols, coins, strict=True)]
            assert {len(value) for value in sent} == {mechanisms.value_bytes(mechanism)}
            assert len({each.n_words for each in coins}) == 1

    def test_of_a_round_are_as_long_as_their_slot_makes_them(self) -> None:
        for slot in (0, 9, 10, 4095):
            bodies = {len(json.dumps(single(None, slot, value))) for value in (b"\x00", b"\x7f", b"\xff")}
            assert len(bodies) == 1

    def test_that_come_twice_are_answered_alike(self, api: Api) -> None:
        """Who has a device's report id and sends it again is not told whether the device was there before."""
        opened = api.round(api.dataset()["id"])
        answers = [api.report(opened["id"], report_id="ab" * 16) for _ in range(2)]
        other = api.report(opened["id"], report_id="cd" * 16)
        assert len({(answer.status_code, answer.content) for answer in (*answers, other)}) == 1

    def test_change_nothing_that_devices_are_sent(self, api: Api) -> None:
        made = api.dataset()
        opened = api.round(made["id"])
        before = api.get(f"/datasets/{made['id']}/round")
        for value in (b"\x00", b"\x01", b"\x03"):
            assert api.report(opened["id"], value=value).status_code == 202
        later = api.get(f"/datasets/{made['id']}/round")
        assert (later.content, later.headers["etag"]) == (before.content, before.headers["etag"])


class TestKeys:
    def test_that_open_nothing_are_answered_alike(self, api: Api) -> None:
        made = api.made("/keys", {"name": "k", "scopes": ["jobs"]})
        assert api.request("DELETE", f"/keys/{made['id']}").status_code == 204
        told = set()
        for secret in (made["secret"], "sfk_" + "0" * 64, made["secret"][:-1] + "0"):
            answer = api.http.get("/v1/jobs", headers={"Authorization": f"Bearer {secret}"})
            refused(answer, 401, "unauthenticated")
            told.add(answer.content.replace(answer.headers["x-request-id"].encode(), b""))
        assert len(told) == 1
