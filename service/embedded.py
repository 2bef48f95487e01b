"""`sfumato serve`: everything on one machine, in one directory, ended together."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import structlog

from models import sealing, tenant
from models.db import Database
from models.process import PARENT_VARIABLE
from models.settings import Settings
from models.tenant import FIRST_TENANT, Scope

ADMIN_KEY = "admin.key"
URL = "url"
STOP_SECONDS = 20.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_LIVED_SECONDS = 60.0  # a worker that lived so long did not fail to start

log = structlog.get_logger(__name__)


def first_key(database: Database, home: Path) -> str | None:
    """Make the first tenant and its admin key, where there is no key yet.

    The secret is written to `admin.key` in the home, which only its owner may read.

    Returns
    -------
    str or None
        The secret, if it was made now.
    """
    with database.transaction() as session:
        if tenant.has_any_key(session):
            return None
        now = database.clock()
        first = tenant.get_or_create_tenant(session, FIRST_TENANT, now=now)
        _, secret = tenant.create_key(session, first.id, name="first admin", scopes=[Scope.ADMIN], now=now)
        write_private(home / ADMIN_KEY, secret + "\n")  # before the commit: a key nobody has would be the worse
    return secret


def records_key(settings: Settings) -> bool:
    """Make the key that encrypts records, in the home, where neither a setting nor an earlier run has one.

    Returns
    -------
    bool
        Whether it was made now.
    """
    path = settings.home / sealing.KEY_FILE
    if settings.records_key is not None or path.exists():
        return False
    write_private(path, sealing.write_key(sealing.new_secret()) + "\n")
    return True


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)


class WorkerProcess:
    """One `python -m workers`, begun again should it end, ended with this process however that ends.

    The kernel ends a child with the thread that began it, so one thread begins it and stays
    until it is over.
    """

    def __init__(self, settings: Settings) -> None:
        # -P: a folder `workers` where the user happens to be is not taken for ours
        self._command = [sys.executable, "-P", "-m", "workers"]
        self._environment = os.environ | {
            PARENT_VARIABLE: str(os.getpid()),
            "SFUMATO_HOME": str(settings.home.resolve()),
        }
        if settings.metrics_port:  # the gateway has it; its worker takes the next one
            self._environment["SFUMATO_METRICS_PORT"] = str(settings.metrics_port + 1)
        self._stopping = threading.Event()
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="worker-process", daemon=True)

    def start(self) -> None:
        """Begin it."""
        self._thread.start()

    def stop(self) -> None:
        """End it, in good order if it will. Blocks."""
        with self._changing:
            self._stopping.set()
            if self._process is not None:
                self._process.terminate()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
            self._thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            with self._changing:
                if self._stopping.is_set():
                    return
                self._process = subprocess.Popen(
                    self._command, env=self._environment, stdin=subprocess.DEVNULL, cwd=Path.cwd()
                )
            began = time.monotonic()
            status = self._process.wait()
            if self._stopping.is_set():
                return
            pause = _FIRST_PAUSE_SECONDS if time.monotonic() > began + _LIVED_SECONDS else pause
            log.error("worker_ended", status=status, again_in_seconds=pause)
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
