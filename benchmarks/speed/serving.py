"""The service's own processes for a measurement: begun on a core, on a database of their own, ended by who began."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

import httpx

from benchmarks.speed.row import Missing
from demo.fleet import until
from demo.servers import PostgresServer, die_with_parent

SERVER_CORE, LOAD_CORE = 0, 1  # the load generator's, and PostgreSQL's, is not the gateway's
SLOW_DISK_SECONDS = 0.005
STOP_SECONDS = 60.0
PATIENCE_SECONDS = 60.0

_LISTENS = "Sfumato listens on "
_SHIM = Path(__file__).with_name("slow_disk.c")


def can_pin() -> bool:
    """Whether processes can have a core each."""
    return shutil.which("taskset") is not None and len(os.sched_getaffinity(0)) > 1


def on_core(core: int | None) -> list[str]:
    """What goes in front of a command, so that it runs on one core; nothing where that cannot be."""
    return ["taskset", "--cpu-list", str(core)] if core is not None and can_pin() else []


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """This thread, and those it starts, on one core."""
    if not can_pin():
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Process:
    """One process that listens."""

    process: "subprocess.Popen[bytes]"
    out: Path
    url: str = ""

    def await_url(self) -> str:
        """Where it listens, once it does."""

        def check() -> None:
            if self.process.poll() is not None:
                raise RuntimeError(f"ended with {self.process.returncode}:\n{self.log()[-2000:]}")

        def told() -> str | None:
            lines = [line for line in self.out.read_text().splitlines() if line.startswith(_LISTENS)]
            return lines[0].removeprefix(_LISTENS) if lines else None

        self.url = until(told, "it does not listen", check)
        return self.url

    def log(self) -> str:
        """What it wrote to stderr."""
        return self.out.with_suffix(".log").read_text(errors="replace")

    def memory_mb(self, which: str = "VmRSS") -> float:
        """What it holds now, or with `VmHWM` what it held at most."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{which}:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the process has ended")

    def cpu_seconds(self) -> float:
        """What it has computed for so far, with the system's work for it."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it, in good order if it will."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def begin(
    home: Path, name: str, arguments: list[str], environment: Mapping[str, str], *, core: int | None = None
) -> Process:
    """Begin `python -P -m ...`; what it prints and logs is kept in the folder."""
    out = home / f"{name}.out"
    with out.open("wb") as said, out.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [*on_core(core), sys.executable, "-P", "-m", *arguments],
            env=dict(environment),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent(SIGTERM),
        )
    return Process(process, out)


def environment(home: Path, database_url: str | None = None, **settings: str) -> dict[str, str]:
    """Nobody's settings but these."""
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("SFUMATO_")}
    own = {"SFUMATO_HOME": str(home), "SFUMATO_RATE_PER_KEY": "0"}
    if database_url is not None:
        own["SFUMATO_DATABASE_URL"] = database_url
    return inherited | own | {f"SFUMATO_{name.upper()}": value for name, value in settings.items()}


def command(environment: Mapping[str, str], home: Path, *arguments: str) -> str:
    """What `sfumato <arguments>` prints. Raises CalledProcessError."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "service.cli", *arguments],
        env=dict(environment),
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@dataclass
class Served:
    """Gateways over one database, and a key for them."""

    home: Path
    key: str
    gateways: list[Process]
    database_url: str | None
    environment: dict[str, str]

    def client(self, gateway: int = 0) -> httpx.Client:
        """A client of one of them, with the key."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.gateways[gateway].url, headers=headers, timeout=PATIENCE_SECONDS)


@contextmanager
def serving(
    database: str, *, n_gateways: int = 1, slow_disk: bool = False, core: int | None = SERVER_CORE, **settings: str
) -> Iterator[Served]:
    """Gateways over a durable database of their own.

    Parameters
    ----------
    database : {'SQLite', 'PostgreSQL'}
    n_gateways : int
    slow_disk : bool
        Whether each flush of whoever commits takes SLOW_DISK_SECONDS longer.
    core : int or None
        The gateways'; PostgreSQL has the other one. None leaves it to the system.
    settings : str
        More `SFUMATO_*`.
    """
    with ExitStack() as opened:
        home = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sfumato-speed-")))
        home.chmod(0o755)  # the shim is loaded by PostgreSQL's user
        slow = _slow_disk(home) if slow_disk else {}
        url: str | None = None
        if database == "PostgreSQL":
            postgres = PostgresServer(durable=True)
            opened.callback(postgres.stop)
            with _changed(slow), pinned(LOAD_CORE) if core is not None else ExitStack():
                postgres.start()
            url = postgres.url()
        ours = environment(home, url, **settings)
        command(ours, home, "migrate")
        key = command(ours, home, "keys", "create", "speed", "--scope", "admin").splitlines()[-1]
        gateways = []
        for number in range(n_gateways):
            arguments = ["service.cli", "gateway", "--host", "127.0.0.1", "--port", "0"]
            theirs = ours | (slow if url is None else {})
            gateways.append(begin(home, f"gateway-{number}", arguments, theirs, core=core))
            opened.callback(gateways[-1].stop)
        for gateway in gateways:
            gateway.await_url()
        yield Served(home, key, gateways, url, ours)


@contextmanager
def bare(core: int | None = SERVER_CORE) -> Iterator[Process]:
    """The bare application (`benchmarks.speed.bare`) on a core."""
    with tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder:
        root = str(Path(__file__).parents[2])
        started = begin(
            Path(folder), "bare", ["benchmarks.speed.bare"], environment(Path(folder)) | {"PYTHONPATH": root}, core=core
        )
        try:
            started.await_url()
            yield started
        finally:
            started.stop()


def _slow_disk(home: Path) -> dict[str, str]:
    """The environment of a slow disk: the shim, compiled into the folder. Raises Missing."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Missing("a C compiler for the slow disk is not there", "apt-get install gcc")
    library = home / "slow_disk.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SHIM), "-ldl"], check=True)
    library.chmod(0o755)
    return {"LD_PRELOAD": str(library), "SLOW_DISK_MICROSECONDS": str(round(SLOW_DISK_SECONDS * 1e6))}


@contextmanager
def _changed(more: Mapping[str, str]) -> Iterator[None]:
    """This process's environment with more in it, for a child that inherits it."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
