"""A service on PostgreSQL behind PgBouncer in transaction mode, with one session of the server for all processes."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from devservers.servers import free_port
from sfumato import Client, Device, Feature, MemoryStore
from sfumato.device.outcomes import Outcome
from sfumato.specs import UniformGrid
from tests.service.processes import running, until

pytestmark = [pytest.mark.slow, pytest.mark.release]

CONFIGURATION = """\
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = plain
auth_file = {home}/users
logfile = {home}/log
pool_mode = transaction
default_pool_size = 1
"""


@pytest.fixture
def pooled_url(postgres_url: str) -> Iterator[str]:
    """Return the URL of a new database behind PgBouncer."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    assert Path(program).exists(), "no pgbouncer: install Debian's package pgbouncer"
    server, listen = make_url(postgres_url), free_port()
    name = f"pooled_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "users").write_text(f'"{server.username}" "{server.password}"\n')
        configuration = CONFIGURATION.format(host=server.host, port=server.port, listen=listen, home=home)
        (home / "pgbouncer.ini").write_text(configuration)
        drop: dict[str, Any] = {}
        if os.geteuid() == 0:  # PgBouncer refuses to run as root
            drop = {"user": "nobody", "extra_groups": []}
            for path in (home, *home.iterdir()):
                shutil.chown(path, "nobody")
        pooler = subprocess.Popen([program, "-q", home / "pgbouncer.ini"], **drop)
        url = server.set(host="127.0.0.1", port=listen, database=name).render_as_string(hide_password=False)
        try:
            until(lambda: is_open(url))
            yield url
        finally:
            pooler.terminate()
            pooler.wait(30)


def is_open(url: str) -> bool:
    """Return whether the database answers."""
    try:
        psycopg.connect(url.replace("+psycopg", "")).close()
    except psycopg.OperationalError:
        return False
    return True


def test_clusters_reports(pooled_url: str, tmp_path: Path) -> None:
    settings = {"SFUMATO_DATABASE_URL": pooled_url, "SFUMATO_DATABASE_POOLER": "true"}
    with running(tmp_path / "home", "serve", "--port", "0", **settings) as served:
        url, key = served.url(), (served.home / "admin.key").read_text().strip()
        with Client(url, key) as client:
            dataset = client.create_dataset("Lunch", [Feature("x", 0, 1)], epsilon=4, min_reports=10)
            job = client.submit_job(dataset.id, UniformGrid(2.0, 2), target_reports=20, min_reports=10)
            job.wait_for_round()
            for value in np.linspace(0, 1, 20):
                with Device(url, key, dataset.id, cap=4, store=MemoryStore()) as device:
                    assert device.report({"x": value}).outcome == Outcome.SENT
            assert job.wait().result is not None
            assert client.budget(dataset.id).balance.charged_nano == 2_000_000_000
        assert served.stop() == 0
        errors = [line for line in served.lines() if line["level"] == "error"]
        assert not errors


def test_without_the_setting_the_error_names_it(pooled_url: str, tmp_path: Path) -> None:
    with running(tmp_path / "home", "serve", "--port", "0", SFUMATO_DATABASE_URL=pooled_url) as served:
        assert served.process.wait(120) == 2
        assert "Traceback" not in served.log
        assert "set SFUMATO_DATABASE_POOLER=true" in served.log
