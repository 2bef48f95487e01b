"""The tests' own servers start, listen on 127.0.0.1 alone, and end with whoever began them."""

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

from demo import servers
from demo.servers import (
    SCRATCH_PREFIX,
    PostgresServer,
    RedisServer,
    ServerMissing,
    free_port,
    postgres_installations,
    redis_installations,
)

Server = PostgresServer | RedisServer


def listening(pid: int) -> set[str]:
    """Addresses on which a process listens."""
    connections = psutil.Process(pid).net_connections(kind="inet")
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


def wait_until_gone(pid: int, seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
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
    """Each server this machine can start, begun."""
    kind, installation = request.param
    begun = kind(installation=installation)
    try:
        begun.start()
        yield begun
    finally:
        begun.stop()


class TestServers:
    def test_both_can_be_had(self) -> None:
        assert postgres_installations(), "no PostgreSQL: see the message of ServerMissing in demo/servers.py"
        assert redis_installations(), "no Redis: see the message of ServerMissing in demo/servers.py"

    def test_they_listen_on_loopback_alone_ask_for_a_password_and_end(self, server: Server) -> None:
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

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
    def test_they_end_when_their_parent_is_killed(self) -> None:
        script = (
            "import json, time\n"
            "from demo.servers import PostgresServer, RedisServer\n"
            "begun = [PostgresServer(), RedisServer()]\n"
            "for server in begun: server.start()\n"
            "print(json.dumps([server.process.pid for server in begun]), flush=True)\n"
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
        again = RedisServer()  # the next to begin tidies up
        again.start()
        again.stop()
        assert not any(path.exists() for path in scratch)

    def test_a_taken_port_is_no_obstacle(self, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_a_missing_binary_is_an_error_that_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
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
            connection.execute(text("CREATE TABLE mine (a int)"))  # fails where the other round's is seen
        engine.dispose()
        assert tables(empty_database_url) == ["mine"]

    @pytest.mark.parametrize("round_", [1, 2])
    def test_no_two_tests_share_what_is_in_redis(self, redis_url: str, round_: int) -> None:
        with closing(redis.Redis.from_url(redis_url)) as client:
            assert client.dbsize() == 0
            client.set("mine", round_)


def tables(url: str) -> list[str]:
    engine = create_engine(url)
    try:
        return sorted(inspect(engine).get_table_names())
    finally:
        engine.dispose()
