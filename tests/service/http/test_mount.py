"""A gateway below a path of a host: nginx passes requests on to it, and removes the path from them or not."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import numpy as np
import pytest

from devservers.loopback import NO_TLS
from devservers.servers import free_port
from sfumato import Client, Device, Feature, MemoryStore
from sfumato.device.outcomes import Outcome
from sfumato.specs import UniformGrid
from tests.service.processes import Running, running, until

pytestmark = pytest.mark.slow
PATIENCE_SECONDS = 120.0  # the first API reference takes several seconds on a busy machine

MOUNT = "/behind/sfumato"
CONFIGURATION = """\
daemon off; worker_processes 1; pid {home}/nginx.pid; error_log stderr;
events {{ }}
http {{
    access_log off; client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;
    server {{
        listen 127.0.0.1:{port}; proxy_read_timeout 120;
        location {mount}/ {{ proxy_pass http://127.0.0.1:{gateway}{end}; proxy_set_header Host $http_host; }}
    }}
}}
"""
LINK = re.compile(r'(?:href|src|action|hx-get|hx-post|data-[a-z]+)="(/[^"]*)"')


REMOVES, KEEPS = "removes the path", "keeps the path"


@pytest.fixture(params=[REMOVES, KEEPS], scope="module")
def mounted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Running]]:
    """Return the public URL of a gateway behind nginx, and the gateway."""
    tmp_path = tmp_path_factory.mktemp("mounted")
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    assert Path(program).exists(), "no nginx: install Debian's package nginx-light"
    port, gateway = free_port(), free_port()
    url = f"http://127.0.0.1:{port}{MOUNT}"
    end = "/" if request.param == REMOVES else ""
    text = CONFIGURATION.format(home=tmp_path, port=port, gateway=gateway, mount=MOUNT, end=end)
    (tmp_path / "nginx.conf").write_text(text)
    with running(tmp_path / "home", "serve", "--port", str(gateway), SFUMATO_PUBLIC_URL=url) as served:
        assert served.url() == url
        nginx = subprocess.Popen([program, "-c", tmp_path / "nginx.conf", "-p", tmp_path])
        try:
            until(lambda: is_open(url))
            yield url, served
        finally:
            nginx.terminate()
            nginx.wait(30)


def is_open(url: str) -> bool:
    """Return whether the gateway answers through nginx."""
    try:
        return httpx.get(f"{url}/healthz", trust_env=False, verify=NO_TLS).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("mounted", [pytest.param(REMOVES, marks=pytest.mark.release), KEEPS], indirect=True)
def test_every_address_stays_below_the_path(mounted: tuple[str, Running]) -> None:
    url, served = mounted
    key = (served.home / "admin.key").read_text().strip()
    with Client(url, key, timeout_seconds=PATIENCE_SECONDS) as client:
        dataset = client.create_dataset("Lunch", [Feature("x", 0, 1)], epsilon=4, min_reports=10)
        job = client.submit_job(dataset.id, UniformGrid(2.0, 2), target_reports=20, min_reports=10)
        job.wait_for_round()
        for value in np.linspace(0, 1, 20):
            with Device(url, key, dataset.id, cap=4, store=MemoryStore()) as device:
                assert device.report({"x": value}).outcome == Outcome.SENT
        job.wait()
    with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS, verify=NO_TLS) as http:
        made = http.post(
            "/v1/datasets",
            headers={"authorization": f"Bearer {key}"},
            json={"name": "n", "trust": "local", "epsilon": 1, "features": [{"name": "x", "lower": 0, "upper": 1}]},
        )
        assert made.headers["location"].startswith(f"{MOUNT}/v1/datasets/ds_")
        document = http.get("/openapi.json").json()
        assert [each["url"] for each in document["servers"]] == [MOUNT]
        signed_in = http.post("/console/login", data={"key": key}, headers={"origin": url.removesuffix(MOUNT)})
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, f"{MOUNT}/console/")
        assert f"Path={MOUNT}/console" in signed_in.headers["set-cookie"]
        pages = crawl(http, url)
    kinds = {re.sub(r"(ds|job|rnd|key|whk)_[0-9a-z]{26}", r"\1", urlsplit(page).path) for page in pages}
    assert {
        *(f"{MOUNT}/console{path}" for path in ("/", "/jobs", "/keys", "/webhooks", "/audit", "/datasets/new")),
        *(f"{MOUNT}/console{path}" for path in ("/datasets/ds", "/jobs/job", "/jobs/job/result", "/rounds/rnd")),
        *(f"{MOUNT}/console{path}" for path in ("/jobs/job/plot.svg", "/static/console.css", "/static/console.js")),
    } <= kinds


def crawl(http: httpx.Client, url: str) -> set[str]:
    """Open all pages that the overview and the reference lead to. Return their addresses."""
    waiting, seen = [f"{url}/console/", f"{url}/docs"], set[str]()
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        answer = http.get(page)
        assert answer.status_code == 200, (page, answer.status_code)
        if "html" not in answer.headers["content-type"]:
            continue
        for address in LINK.findall(answer.text):
            assert address.startswith(f"{MOUNT}/"), (page, address)
        for address in re.findall(r'(?:href|src|hx-get)="([^"#][^"]*)"', answer.text):
            linked = urljoin(page, unescape(address)).partition("#")[0]
            if linked.startswith(url) and "/live" not in linked and "/events" not in linked:
                waiting.append(linked)
    return seen


def test_the_event_stream_of_a_page_is_below_the_path(mounted: tuple[str, Running]) -> None:
    url, served = mounted
    key = (served.home / "admin.key").read_text().strip()
    with Client(url, key) as client:
        dataset = client.create_dataset("Lunch", [Feature("x", 0, 1)], epsilon=4)
        job = client.submit_job(dataset.id, UniformGrid(2.0, 2), target_reports=2000)
    with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS, verify=NO_TLS) as http:
        http.post("/console/login", data={"key": key}, headers={"origin": url.removesuffix(MOUNT)})
        page = http.get(f"/console/jobs/{job.id}").text
        assert f"{MOUNT}/console/jobs/{job.id}/events" in page
        events = http.get(f"/v1/jobs/{job.id}/events", headers={"authorization": f"Bearer {key}"}).text
        (data,) = [line for line in events.splitlines() if line.startswith("data: ")]  # nginx uses HTTP/1.0
        assert json.loads(data.removeprefix("data: "))["id"] == job.id
