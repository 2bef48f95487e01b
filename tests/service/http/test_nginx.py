"""The example of nginx with TLS works as it is in the repository, in front of a real gateway."""

import datetime
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from devservers.loopback import NO_TLS
from devservers.servers import free_port
from tests.service.processes import ROOT, Running, running, until

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "deploy" / "nginx" / "sfumato.conf"
AROUND = """\
daemon off; worker_processes 1; pid {home}/nginx.pid; error_log stderr;
events {{ }}
http {{
    client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;
    {example}
}}
"""


def write_certificate(folder: Path, name: str) -> ssl.SSLContext:
    """Write a certificate and its key, and return a context that trusts it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "sfumato.key").write_bytes(key.private_bytes(*form))
    public = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "sfumato.crt").write_bytes(public)
    return ssl.create_default_context(cadata=public.decode())


@contextmanager
def behind_nginx(folder: Path) -> Iterator[tuple[httpx.Client, Running, int]]:
    """Run a service behind the example, with other ports and names. Yield a client, the service, and the plain port."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    assert Path(program).exists(), "no nginx: install Debian's package nginx-light"
    plain, secure, gateway = free_port(), free_port(), free_port()
    trust = write_certificate(folder, "localhost")
    example = EXAMPLE.read_text()
    for found, replacement in (
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{secure} ssl;"),
        ("127.0.0.1:8000", f"127.0.0.1:{gateway}"),
        ("sfumato.example", "localhost"),
        ("/etc/nginx/tls", str(folder)),
    ):
        assert found in example
        example = example.replace(found, replacement)
    (folder / "nginx.conf").write_text(AROUND.format(home=folder, example=example))
    url = f"https://localhost:{secure}"
    settings = {"SFUMATO_PUBLIC_URL": url, "SFUMATO_TRUSTED_PROXIES": "127.0.0.1", "SFUMATO_RATE_OF_FAILURES": "3"}
    with running(folder / "home", "serve", "--port", str(gateway), **settings) as served:
        assert served.url() == url
        nginx = subprocess.Popen([program, "-c", folder / "nginx.conf", "-p", folder])
        try:
            with httpx.Client(base_url=url, verify=trust, timeout=120, trust_env=False) as client:
                until(lambda: _is_open(client))
                yield client, served, plain
        finally:
            nginx.terminate()
            nginx.wait(30)


def _is_open(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_the_example_serves_the_api_and_the_console_with_tls(tmp_path: Path) -> None:
    with behind_nginx(tmp_path) as (client, served, plain):
        redirected = httpx.get(f"http://127.0.0.1:{plain}/v1/limits?a=1", headers={"host": "localhost"}, verify=NO_TLS)
        assert (redirected.status_code, redirected.headers["location"]) == (308, "https://localhost/v1/limits?a=1")
        secret = (served.home / "admin.key").read_text().strip()
        client.headers["Authorization"] = f"Bearer {secret}"
        answer = client.get("/v1/datasets")
        assert (answer.status_code, answer.headers["strict-transport-security"]) == (200, "max-age=31536000")

        # An upload larger than the 1 MiB that nginx accepts by default.
        features = [{"name": "x", "lower": 0, "upper": 1}, {"name": "y", "lower": 0, "upper": 1}]
        body = {"name": "t", "trust": "central", "epsilon": 1, "features": features}
        dataset = client.post("/v1/datasets", json=body).json()["id"]
        path = tmp_path / "records.npy"
        np.save(path, np.random.default_rng(0).random((200_000, 2)))
        assert path.stat().st_size > 3 << 20
        kind = {"content-type": "application/x-npy"}
        stored = client.post(f"/v1/datasets/{dataset}/records", content=path.read_bytes(), headers=kind)
        assert (stored.status_code, stored.json()["n_records"]) == (201, 200_000)

        # Events of a job arrive as they happen.
        local = client.post("/v1/datasets", json=body | {"trust": "local", "min_reports": 2}).json()["id"]
        wanted = {"dataset_id": local, "algorithm": {"type": "uniform_grid", "epsilon": 1, "clusters": 1}}
        job = client.post("/v1/jobs", json=wanted | {"target_reports": 200_000})
        assert job.status_code == 202, job.text
        with client.stream("GET", f"/v1/jobs/{job.json()['id']}/events") as events:
            line = next(each for each in events.iter_lines() if each.startswith("data: "))
        assert json.loads(line.removeprefix("data: "))["id"] == job.json()["id"]

        # The console accepts the form of its own page.
        origin = str(client.base_url).rstrip("/")
        signed_in = client.post("/console/login", data={"key": secret, "next": ""}, headers={"origin": origin})
        assert signed_in.status_code == 303, signed_in.text
        assert "Secure" in signed_in.headers["set-cookie"]


def test_the_example_passes_the_address_of_the_client_and_no_other(tmp_path: Path) -> None:
    with behind_nginx(tmp_path) as (client, _, _):
        statuses = [
            client.get("/v1/datasets", headers={"authorization": "Bearer x", "x-forwarded-for": f"10.0.0.{number}"})
            for number in range(10)
        ]
        # Three failures a minute and one address: of ten requests in up to three minutes, one at least is refused.
        assert 429 in {each.status_code for each in statuses}
