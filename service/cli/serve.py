"""The parts of `sfumato serve`: lock of the home, first key, record key, and a worker process that ends with it."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import structlog

from models import encryption
from models.database.engine import Database
from models.identity import keys, tenants
from models.identity.tenants import FIRST_TENANT
from models.tables.identity import Scope
from runtime.private_files import restrict_to_owner, write_private
from runtime.process import PARENT_VARIABLE
from runtime.settings import Settings
from service.cli.common import CommandFailed

ADMIN_KEY = "admin.key"
URL = "url"
LOCK = "lock"
STOP_SECONDS = 20.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_START_SECONDS = 60.0  # lifetime after which a worker counts as started

log = structlog.get_logger(__name__)


def open_home(home: Path) -> int:
    """Create the home and lock it until this process ends, however it ends. Return the file descriptor of the lock.

    Raises
    ------
    CommandFailed
        If another process serves this home, or the home cannot be created.
    """
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(home / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CommandFailed(
            f"the home {home} cannot be used: {error.strerror}; choose another with --home", 2
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(lock, 20).decode(errors="replace").strip()
        os.close(lock)
        raise CommandFailed(
            f"the home {home} is already served by process {pid}; stop it, or choose another home", 2
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def create_first_key(database: Database, home: Path) -> str | None:
    """Create the first tenant and its admin key if the database has no key.

    The secret is written to `admin.key` in the home, readable only by its owner.

    Returns
    -------
    str or None
        The secret of a new key; None if the database had a key.
    """
    restrict_to_owner(home / ADMIN_KEY)
    with database.transaction() as session:
        if keys.has_any_key(session):
            return None
        now = database.clock()
        first = tenants.get_or_create_tenant(session, FIRST_TENANT, now=now)
        _, secret = keys.create_key(session, first.id, name="first admin", scopes=[Scope.ADMIN], now=now)
        # Write the file before committing, so that a crash cannot leave a key with a lost secret.
        write_private(home / ADMIN_KEY, secret + "\n")
    return secret


def refuse_emptied_database(settings: Settings) -> None:
    """End the command if the home has keys of an earlier run, but its database is missing or empty.

    Otherwise a lost database would start as a new service, and its ledgers with it.

    Raises
    ------
    CommandFailed
    """
    file = settings.database_file
    if file is None or (file.exists() and file.stat().st_size):
        return
    present = [name for name in (ADMIN_KEY, encryption.KEY_FILE) if (settings.home / name).exists()]
    if present:
        raise CommandFailed(
            f"the home {settings.home} has {' and '.join(present)} of an earlier run, but its database is "
            f"{'empty' if file.exists() else 'missing'}: restore a backup to {file}, or move the keys away to start "
            "a new service",
            2,
        )


def create_records_key(settings: Settings, database: Database) -> bool:
    """Create the key that encrypts records in the home, unless the setting or an earlier run provides one.

    Returns
    -------
    bool
        Whether a key was created.

    Raises
    ------
    CommandFailed
        If the database has secrets that an earlier key encrypted.
    """
    path = settings.home / encryption.KEY_FILE
    restrict_to_owner(path)
    if settings.records_key is not None or path.exists():
        return False
    with database.reading() as session:
        in_use = sorted({each for table in encryption.SEALED for each in encryption.list_master_keys(session, table)})
    if in_use:
        raise CommandFailed(
            f"{path} is missing, and the database has records or secrets that the key {in_use[0]} encrypted: copy the "
            "file back from where you keep it, or set SFUMATO_RECORDS_KEY; without the key they are lost",
            2,
        )
    log.info("records_key_created", path=str(path))
    write_private(path, encryption.encode_key(encryption.new_secret()) + "\n")
    return True


class WorkerProcess:
    """A child process `python -m workers`, restarted when it exits and terminated with this process.

    The kernel signals the child when the thread that started it exits, even if the process continues.
    Therefore one thread starts the child and lives until the child has exited.
    """

    def __init__(self, settings: Settings) -> None:
        # -P excludes the current directory, which may contain another package `workers`.
        self._command = [sys.executable, "-P", "-m", "workers"]
        self._environment = os.environ | {
            PARENT_VARIABLE: str(os.getpid()),
            "SFUMATO_HOME": str(settings.home.resolve()),
            "SFUMATO_WORKER_DRAIN_SECONDS": "0",  # `stop` waits for STOP_SECONDS only
        }
        if settings.metrics_port:  # the gateway uses the port itself
            self._environment["SFUMATO_METRICS_PORT"] = str(settings.metrics_port + 1)
        self._stopping = threading.Event()
        self._process_lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="worker-process", daemon=True)

    def start(self) -> None:
        """Start the process."""
        self._thread.start()

    def stop(self) -> None:
        """Terminate the process and wait for its exit; kill it after STOP_SECONDS."""
        with self._process_lock:
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
            with self._process_lock:
                if self._stopping.is_set():
                    return
                self._process = subprocess.Popen(
                    self._command, env=self._environment, stdin=subprocess.DEVNULL, cwd=Path.cwd()
                )
            started_at = time.monotonic()
            status = self._process.wait()
            if self._stopping.is_set():
                return
            pause = _FIRST_PAUSE_SECONDS if time.monotonic() > started_at + _START_SECONDS else pause
            log.error("worker_ended", status=status, restart_in_seconds=pause)
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
