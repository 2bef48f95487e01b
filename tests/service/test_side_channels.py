"""The side channels of docs/privacy.md: logs, metrics, headers, crashes, uploads, reports and keys."""

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

from connections.log_records import describe
from connections.server import bind
from runtime import logging
from runtime.job_signal import PollingJobSignal
from runtime.settings import Settings
from service.ingestion.open_rounds import RETRY_AFTER_SECONDS
from service.server import server
from sfumato import mechanisms
from sfumato.privacy.accounting import NANO
from tests.service.api import SQLITE_ONLY, Api, refused, single
from tests.service.processes import until
from workers import __main__ as worker
from workers.metrics import WorkerMetrics

ROOT = Path(__file__).parents[2]
GATED = {"type": "private_kmeans", "epsilon": 1.0, "clusters": 3}
LOG_MEMBERS = {"event", "key", "log_level", "method", "path", "status", "request_id"}


class TestLogs:
    @pytest.fixture
    def configured(self) -> Iterator[None]:
        yield
        structlog.reset_defaults()

    def test_have_times_in_whole_seconds(self, capsys: pytest.CaptureFixture[str], configured: None) -> None:
        logging.configure_logging()
        structlog.get_logger("a channel").info("something_happened")
        line = json.loads(capsys.readouterr().err)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["timestamp"])

    @SQLITE_ONLY
    def test_have_no_duration_that_depends_on_the_number_of_records(self, api: Api) -> None:
        dataset = f"/datasets/{api.dataset(trust='central')['id']}"
        body = {"dataset_id": dataset.rpartition("/")[2], "algorithm": GATED}
        job = f"/jobs/{api.key('jobs').made('/jobs', body)['id']}"
        for path in (f"{dataset}/records", job, f"{job}?wait=0.05"):
            assert self.members(api, path) == LOG_MEMBERS
        for path in (f"{job}/result", f"{dataset}/ledger", dataset, "/datasets", "/jobs"):
            assert self.members(api, path) == LOG_MEMBERS | {"ms"}
        assert self.members(api, dataset, "DELETE") == LOG_MEMBERS

    def members(self, api: Api, path: str, method: str = "GET") -> set[str]:
        """Return the members of the log line of a request."""
        with structlog.testing.capture_logs() as lines:
            api.request(method, path)
        (line,) = lines
        return set(line)


class TestMetrics:
    def test_are_all_listed_on_the_page(self, started: Callable[..., Api]) -> None:
        """docs/privacy.md must describe what each metric reveals."""
        registries = (metrics_of(started()), WorkerMetrics(PollingJobSignal(1.0)).registry)
        families = {family.name for registry in registries for family in registry.collect()}
        page = (ROOT / "docs" / "privacy.md").read_text()
        assert len(families) > 5
        assert [name for name in sorted(families) if f"`{name}`" not in page] == []

    def test_have_no_label_that_names_an_object(self, started: Callable[..., Api]) -> None:
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


def metrics_of(api: Api) -> Any:
    """Return the metrics registry of a gateway in this process."""
    return api.http._transport._asgi.app.state.context.metrics.registry  # type: ignore[attr-defined]


@SQLITE_ONLY
class TestHeaders:
    def test_have_random_request_ids(self, http: httpx.Client) -> None:
        """Sequential ids would reveal the number of other requests to clients without a key."""
        ids = [http.get("/healthz").headers["x-request-id"] for _ in range(50)]
        assert all(re.fullmatch("[0-9a-f]{16}", each) for each in ids)
        assert len(set(ids)) == 50
        steps = {int(b, 16) - int(a, 16) for a, b in pairwise(ids)}
        assert min(map(abs, steps)) > 1 << 16  # fails by chance with probability 49 * 2^17 / 2^64

    def test_have_a_constant_retry_after(self, api: Api) -> None:
        made = api.dataset()
        waits = [api.get(f"/datasets/{made['id']}/round").headers["retry-after"]]
        opened = api.round(made["id"], target_reports=2)
        assert "retry-after" not in api.get(f"/datasets/{made['id']}/round").headers
        for _ in range(2):
            assert api.report(opened["id"]).status_code == 202
        waits.append(until(lambda: api.get(f"/datasets/{made['id']}/round").headers.get("retry-after")))
        assert waits == 2 * [str(RETRY_AFTER_SECONDS)]
        body = {"dataset_id": made["id"], "algorithm": {"type": "uniform_grid", "epsilon": 1}, "target_reports": 1000}
        assert {api.post("/jobs", body).headers["retry-after"] for _ in range(3)} == {"1"}

    def test_are_not_compressed(self, api: Api) -> None:
        """The length of compressed data depends on secrets in it."""
        for path in ("/datasets", "/jobs", "/keys"):
            answer = api.get(path, headers={"Accept-Encoding": "gzip, deflate, br, zstd"})
            assert answer.status_code == 200
            assert "content-encoding" not in answer.headers

    def test_etag_of_a_dataset_depends_on_its_declaration_only(self, api: Api) -> None:
        made = api.dataset(trust="central")
        before = api.get(f"/datasets/{made['id']}")
        api.made(f"/datasets/{made['id']}/records", {"columns": ["x", "y"], "rows": [[0.1, 0.2]] * 100})
        api.made("/jobs", {"dataset_id": made["id"], "algorithm": GATED})
        after_it = api.get(f"/datasets/{made['id']}")
        assert (after_it.headers["etag"], after_it.content) == (before.headers["etag"], before.content)


class TestCrash:
    def test_writes_no_core_dump(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limits: list[tuple[int, tuple[int, int]]] = []
        monkeypatch.setattr(resource, "setrlimit", lambda what, limit: limits.append((what, limit)))
        idle = SimpleNamespace(run=lambda *_, **__: None, stop=lambda: None, is_stopping=True)
        monkeypatch.setattr(worker, "Supervisor", lambda *_, **__: idle)
        database = SimpleNamespace(close=lambda: None, retries={})
        monkeypatch.setattr(worker.Database, "from_settings", lambda *_, **__: database)
        monkeypatch.setattr(worker, "configure_logging", lambda: None)
        monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
        worker.main()
        assert limits == [(resource.RLIMIT_CORE, (0, 0))]
        monkeypatch.setattr(server, "Server", lambda *_: idle)
        bound = bind("127.0.0.1", 0)
        services = SimpleNamespace(settings=Settings())
        server.run(SimpleNamespace(state=SimpleNamespace(context=services), reports=None), bound)  # type: ignore[arg-type]
        assert limits == 2 * [(resource.RLIMIT_CORE, (0, 0))]

    def test_is_logged_without_message_and_values(self) -> None:
        def fail(private: float) -> None:
            raise ValueError(f"cannot place {private}")

        try:
            fail(0.2468013579)
        except ValueError as error:
            logged = describe(error)
        assert logged["error"] == "ValueError"
        assert "2468" not in str(logged)


@SQLITE_ONLY
class TestUploads:
    def test_are_not_written_to_temporary_files(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("a temporary file")

        for name in ("SpooledTemporaryFile", "TemporaryFile", "NamedTemporaryFile", "mkstemp", "mkdtemp"):
            monkeypatch.setattr(tempfile, name, refuse)
        path = f"/datasets/{api.dataset(trust='central')['id']}/records"
        rows = [[i / 3000, -i / 3000] for i in range(3000)]
        api.made(path, {"columns": ["x", "y"], "rows": rows})
        text = "x,y\n" + "".join(f"{x},{-y}\n" for x, y in rows)
        assert api.post(path, content=text.encode(), headers={"content-type": "text/csv"}).status_code == 201

    def test_get_responses_of_constant_length(self, api: Api) -> None:
        path = f"/datasets/{api.dataset(trust='central')['id']}/records"
        lengths = set()
        for value in (0.0, 0.123456789, 1.0):
            response = api.post(path, {"columns": ["x", "y"], "rows": [[value, -value]] * 50})
            lengths.add((response.status_code, len(response.content)))
        assert len(lengths) == 1


class Counting:
    """A seeded random stream that counts its words."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)
        self.n_words = 0

    def words(self, n: int) -> Any:
        self.n_words += n
        return np.asarray(self._bits.random_raw(n), dtype=np.uint64)


MECHANISMS = [mechanisms.design(kind, 16, NANO) for kind in ("grr", "ss", "oue", "olh", "hr", "window")]
VECTORS = mechanisms.DiscreteLaplaceMechanism.design(2, 100, NANO)


class TestReports:
    @pytest.mark.parametrize("mechanism", [*MECHANISMS, VECTORS], ids=lambda mechanism: mechanism.type)
    def test_need_the_same_bytes_and_random_words_for_every_record(self, mechanism: Any) -> None:
        symbols: list[Any] = list(range(16)) if mechanism is not VECTORS else [(0, 0), (50, 7), (100, 100), (0, 100)]
        for seed in range(100):
            coins = [Counting(seed) for _ in symbols]
            sent = [mechanism.perturb(*each) for each in zip(symbols, coins, strict=True)]
            assert {len(value) for value in sent} == {mechanism.value_bytes}
            assert len({each.n_words for each in coins}) == 1

    def test_have_a_length_that_depends_on_the_slot_only(self) -> None:
        for slot in (0, 9, 10, 4095):
            bodies = {len(json.dumps(single(None, slot, value))) for value in (b"\x00", b"\x7f", b"\xff")}
            assert len(bodies) == 1

    @SQLITE_ONLY
    def test_that_are_repeated_get_the_same_response(self, api: Api) -> None:
        """A client that repeats a report id of a device does not learn whether the device reported before."""
        opened = api.round(api.dataset()["id"])
        responses = [api.report(opened["id"], report_id=report_id * 16) for report_id in ("ab", "ab", "cd")]
        assert len({(response.status_code, response.content) for response in responses}) == 1

    @SQLITE_ONLY
    def test_do_not_change_the_rounds_that_devices_fetch(self, api: Api) -> None:
        opened = api.round(api.dataset()["id"])
        path = f"/datasets/{opened['dataset_id']}/round"
        before = api.get(path)
        for value in (b"\x00", b"\x01", b"\x03"):
            assert api.report(opened["id"], value=value).status_code == 202
        later = api.get(path)
        assert (later.content, later.headers["etag"]) == (before.content, before.headers["etag"])


@SQLITE_ONLY
class TestKeys:
    def test_that_are_invalid_get_the_same_response(self, api: Api) -> None:
        made = api.made("/keys", {"name": "k", "scopes": ["jobs"]})
        assert api.request("DELETE", f"/keys/{made['id']}").status_code == 204
        bodies = set()
        for secret in (made["secret"], "sfk_" + "0" * 64, made["secret"][:-1] + "0"):
            answer = api.http.get("/v1/jobs", headers={"Authorization": f"Bearer {secret}"})
            refused(answer, 401, "unauthenticated")
            bodies.add(answer.content.replace(answer.headers["x-request-id"].encode(), b""))
        assert len(bodies) == 1
