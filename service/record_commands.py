"""`sfumato records`: files uploaded with their progress shown, and keys rotated directly in the database."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from sqlalchemy.orm import Session

from models import record_key, webhook
from models.db import Database
from models.errors import Refused
from models.sealing import Keyring
from sfumato.client import Client
from sfumato.resources import RecordUpload

RETRY_SECONDS = 120.0
KEYS_AT_ONCE = 50  # sealed anew in one transaction


def upload(dataset_id: str, source: Path, url: str, key: str) -> RecordUpload:
    """Upload a file; the progress goes to stderr where that is a terminal. Raises SfumatoError, OSError."""
    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with (
        Client(url, key, retry_seconds=RETRY_SECONDS, timeout_seconds=RETRY_SECONDS) as client,
        Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress,
    ):
        task = progress.add_task("uploading", total=source.stat().st_size)
        return client.upload_file(dataset_id, source, on_progress=lambda done: progress.update(task, completed=done))


def rotate(database: Database, keyring: Keyring, on_progress: Callable[[int], None]) -> tuple[int, list[str]]:
    """Seal every dataset's key and every webhook's secret with the newest master key, some in a transaction.

    What was done stays done, so it can be stopped and begun again; uploads go on meanwhile, and
    what they make with an older key is done too.

    Parameters
    ----------
    on_progress : callable
        Told how many keys are done so far.

    Returns
    -------
    n_done : int
    left : list of str
        Datasets and secrets that could not be opened, and why.
    """
    of_each = [_rotate(database, keyring, on_progress, of) for of in (record_key, webhook)]
    return sum(n_done for n_done, _ in of_each), [reason for _, left in of_each for reason in left]


def _rotate(
    database: Database, keyring: Keyring, on_progress: Callable[[int], None], of: ModuleType
) -> tuple[int, list[str]]:
    n_done = 0
    while True:
        n_before, left, after = n_done, list[str](), ""
        while found := _outdated(database, keyring, after, of):
            with database.transaction() as session:
                refused = [reason for each in found if (reason := _reseal(session, each, keyring, of))]
            n_done += len(found) - len(refused)
            left += refused
            on_progress(n_done)
            after = found[-1]
        if n_done == n_before:  # else a gateway without the newest key may have made another meanwhile
            return n_done, left


def _reseal(session: Session, id_: str, keyring: Keyring, of: ModuleType) -> str:
    """Seal one key anew; says why, where that cannot be."""
    try:
        of.reseal(session, id_, keyring)
    except Refused as error:  # before anything was changed
        return f"{id_}: {error}"
    return ""


def _outdated(database: Database, keyring: Keyring, after: str, of: ModuleType) -> list[str]:
    with database.reading() as session:
        found: list[str] = of.outdated(session, keyring, after=after, limit=KEYS_AT_ONCE)
        return found
