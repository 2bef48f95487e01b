"""Kill -9 of the shuffler at each step: no acknowledged report is lost, none counts twice, and there is one release."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from devservers.loopback import NO_TLS
from shuffler.queue import Queue, Sender
from shuffler.rounds import parse_round
from tests.batches import parse_batch
from tests.service.processes import ROOT, until
from tests.shuffler.parties import DATASET, FakeService, numbers, outer_key, published, wrapped_for

pytestmark = pytest.mark.slow

STEPS = (
    "before a commit of reports",
    "after a commit of reports",
    "inside the release",
    "after the release",
    "before the batch is sent",
    "after the batch is sent",
    "after the batch is deleted",
)


@contextmanager
def shuffler(step: str, home: Path, service_url: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a shuffler that dies at a step, and yield it with its URL."""
    log = home / f"{step}.log"
    environment = os.environ | {
        "SFUMATO_URL": service_url,
        "SFUMATO_KEY": "sfk_x",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "sdk" / "python"))),
    }
    command = [sys.executable, "-P", "-m", "tests.shuffler.victim", step, str(home)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=home)
    try:
        found = until(lambda: re.search(r"listens on (http://\S+)", log.read_text()) or process.poll() is not None)
        assert found is not True, log.read_text()
        yield process, found[1]
    finally:
        process.kill()
        process.wait()


def send(url: str, key: str, number: int, sealed: bytes) -> str:
    """Send a report, and return the status or that the connection broke."""
    headers = {"Authorization": f"Bearer {key}", "Sfumato-Sender": f"p{number}"}
    try:
        path = f"{url}/v1/rounds/rnd_1/sealed"
        return str(httpx.post(path, content=sealed, headers=headers, verify=NO_TLS).status_code)
    except httpx.TransportError:
        return "broken"


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_shuffler_loses_nothing_and_releases_once(step: str, tmp_path: Path) -> None:
    service = FakeService(rounds={"rnd_1": published()})
    found = parse_round(service.rounds["rnd_1"])
    with closing(Queue(tmp_path / "shuffler.db")) as queue:
        queue.add_round(DATASET, found)
        sealed = [wrapped_for(found, number, outer_key(queue, found)) for number in range(5)]
        key = queue.add_sender(Sender("app", DATASET, True))
        assert key is not None
    with service.running():
        with shuffler(step, tmp_path, service.url) as (process, url):
            httpx.get(f"{url}/v1/datasets/{DATASET}/rounds", headers={"Authorization": f"Bearer {key}"}, verify=NO_TLS)
            first = [send(url, key, number, sealed[number]) for number in range(5)]
            assert process.wait(60) == -9
        acknowledged = {number for number, status in enumerate(first) if status == "202"}
        with shuffler("never", tmp_path, service.url) as (_, url):
            second = [send(url, key, number, sealed[number]) for number in range(5)]
            until(lambda: 'state="acknowledged"} 1' in httpx.get(f"{url}/metrics", verify=NO_TLS).text, 60)
    bodies = {body for _, body in service.attempts}
    assert len(bodies) == len(service.accepted) == 1
    released = numbers(parse_batch(service.accepted["rnd_1"]).reports, found)
    assert sorted(released) == list(range(5))
    assert acknowledged <= set(released)
    assert set(second) <= {"202", "409"}
