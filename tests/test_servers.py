"""The servers of the tests start, listen only on 127.0.0.1, and end with their process."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from sqlalchemy import create_engine, inspect, text

from devservers import servers
from devservers.servers import (
    SCRATCH_PREFIX,
    PostgresServer,
    RedisServer,
    ServerMissing,
    free_port,
    postgres_installations,
    redis_installations,
)
from tests.service.processes import is_running

Server = PostgresServer | RedisServer


def listening(pid: int) -> set[str]:
    """Return the addresses on which a process listens."""
    connections = psutil.Process(pid).net_connections(kind="inet")
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


def wait_until_gone(pid: int, seconds: float = 120) -> bool:
    """Wait until a process is gone or a zombie, and return whether it is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not is_running(pid):
            return True
        time.sleep(0.02)
    return False


def query(url: str, statement: str) -> object:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        row = connection.execute(statement).fetchone()
    assert row is not None
    return row[0]


@pytest.fixture(
    params=[
        *[pytest.param((PostgresServer, path), id=f"postgres{i}") for i, path in enumerate(postgres_installations())],
        *[pytest.param((RedisServer, path), id=f"redis{i}") for i, path in enumerate(redis_installations())],
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Return a running server of each installation on this machine."""
    kind, installation = request.param
    running = kind(installation=installation)
    try:
        running.start()
        yield running
    finally:
        running.stop()


class TestServers:
    def test_both_are_installed(self) -> None:
        assert postgres_installations(), "no PostgreSQL: see the message of ServerMissing in devservers/servers.py"
        assert redis_installations(), "no Redis: see the message of ServerMissing in devservers/servers.py"

    def test_listen_on_loopback_require_a_password_and_stop(self, server: Server) -> None:
        assert server.process is not None
        pid, scratch = server.process.pid, server._scratch
        assert listening(pid) == {"127.0.0.1"}
        if isinstance(server, PostgresServer):
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(host="127.0.0.1", port=server.port, user="sfumato", dbname="postgres")
        else:
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
                connection.sendall(b"PING\r\n")
                assert connection.recv(100).startswith(b"-NOAUTH")
        assert scratch is not None
        assert scratch.exists()
        server.stop()
        assert not psutil.pid_exists(pid)
        assert not scratch.exists()

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a parent's death")
    def test_end_with_a_killed_parent(self) -> None:
        script = (
            "import json, time\n"
            "from devservers.servers import PostgresServer, RedisServer\n"
            "started = [PostgresServer(), RedisServer()]\n"
            "for server in started: server.start()\n"
            "print(json.dumps([server.process.pid for server in started]), flush=True)\n"
            "time.sleep(600)\n"
        )
        root = Path(__file__).parents[1]
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=root) as parent:
            assert parent.stdout is not None
            pids = json.loads(parent.stdout.readline())
            alive = [psutil.pid_exists(pid) for pid in pids]
            scratch = list(Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}{parent.pid}-*"))
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait()
        assert alive == [True, True]
        assert [wait_until_gone(pid) for pid in pids] == [True, True]
        assert len(scratch) == 2
        again = RedisServer()  # the next server deletes the folders
        again.start()
        again.stop()
        assert not any(path.exists() for path in scratch)

    def test_use_another_port_if_theirs_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = RedisServer(), RedisServer()
        try:
            first.start()
            ports = chain([first.port], iter(free_port, None))
            monkeypatch.setattr(servers, "free_port", lambda: next(ports))
            second.start()
            assert second.port != first.port
        finally:
            first.stop()
            second.stop()

    def test_a_missing_binary_is_an_error_with_advice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(servers, "postgres_installations", list)
        monkeypatch.setattr(servers, "redis_installations", list)
        with pytest.raises(ServerMissing, match="SFUMATO_TEST_POSTGRES_URL"):
            PostgresServer().start()
        with pytest.raises(ServerMissing, match="SFUMATO_TEST_REDIS_URL"):
            RedisServer().start()


class TestDurable:
    def test_a_commit_survives_a_crash_of_the_server(self, durable_postgres: PostgresServer) -> None:
        assert query(durable_postgres.url(), "SHOW fsync") == "on"
        with psycopg.connect(durable_postgres.url().replace("+psycopg", "")) as connection:
            connection.execute("CREATE TABLE kept (a int)")
            connection.execute("INSERT INTO kept VALUES (42)")
        durable_postgres.kill()
        durable_postgres.start()
        assert query(durable_postgres.url(), "SELECT a FROM kept") == 42


class TestFixtures:
    def test_an_empty_database_has_no_tables(self, empty_database_url: str, database_kind: str) -> None:
        assert empty_database_url.startswith(database_kind)
        assert tables(empty_database_url) == []

    def test_a_database_has_run_the_migrations(self, database_url: str) -> None:
        assert {"alembic_version", "datasets", "jobs"} <= set(tables(database_url))

    @pytest.mark.parametrize("round_", [1, 2])
    def test_no_two_tests_share_a_database(self, empty_database_url: str, round_: int) -> None:
        engine = create_engine(empty_database_url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE mine (a int)"))  # fails if the databases are the same
        engine.dispose()
        assert tables(empty_database_url) == ["mine"]

    @pytest.mark.parametrize("round_", [1, 2])
    def test_no_two_tests_share_entries_of_redis(self, redis_url: str, round_: int) -> None:
        with closing(redis.Redis.from_url(redis_url)) as client:
            assert client.dbsize() == 0
            client.set("mine", round_)


def tables(url: str) -> list[str]:
    engine = create_engine(url)
    try:
        return sorted(inspect(engine).get_table_names())
    finally:
        engine.dispose()
