"""A worker's metrics are those of its work, on its own port."""

import json
import signal
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from devservers.loopback import NO_TLS
from tests.workers.collection import Collection
from tests.workers.processes import WorkerProcess, worker
from tests.workers.toy import wait_for

pytestmark = pytest.mark.slow


def scraped(running: WorkerProcess) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    port = running.logged("metrics_server_started")[0]["port"]
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60, verify=NO_TLS).text
    return {
        (sample.name.removeprefix("sfumato_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_worker_counts_its_claims_its_children_and_how_long_a_job_waited(
    collection: Collection, database_url: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    toy = json.dumps({"draws": [[0.0, 1.0]], "gate": str(gate)})
    with worker(tmp_path / "log", database_url, TOY=toy, SFUMATO_METRICS_PORT=0) as running:
        running.wait_until_ready()
        job_id = collection.submit()
        collection.answer(wait_for(collection.find_open_round), 200)
        reached = Path(f"{gate}.reached")
        wait_for(lambda: reached.exists() and reached.read_text().strip())
        gate.touch()
        running.child().send_signal(signal.SIGKILL)
        wait_for(lambda: collection.job(job_id).is_final)
        wait_for(lambda: scraped(running).get(("claims_ended_total", "succeeded")) == 1)
        found = scraped(running)
        assert found["claims_ended_total", "continues"] == 1
        assert found["claims_ended_total", "died"] == 1
        assert found["job_processes_ended_total", "died"] == 1
        assert found["claim_seconds_count",] == 3
        assert found["claim_latency_seconds_count",] in (
            0,
            1,
        )  # 0 where it was submitted before the worker's first look
        assert found["redis_unavailable", "job_signal"] == 0
        assert job_id not in json.dumps([list(key) for key in found])


def test_a_worker_shows_nothing_unless_asked(collection: Collection, database_url: str, tmp_path: Path) -> None:
    with worker(tmp_path / "log", database_url, TOY=json.dumps({"draws": []})) as running:
        running.wait_until_ready()
        job_id = collection.submit()
        wait_for(lambda: collection.job(job_id).is_final)
        assert running.logged("metrics_server_started") == []
