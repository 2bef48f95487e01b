"""Check of the records in the windows of a series: windows are disjoint, and users are bounded in all of them."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from audit.checks.check import Check, Finding, Setting
from audit.ledger.database import START, temporary_database
from models import datasets
from models.database.engine import Database
from models.encryption import Keyring
from models.identity import keys, tenants
from models.identity.caller import Caller
from models.records import record_keys, records, window_records
from models.records.records import Records, Upload
from models.tables.datasets import Trust
from models.tables.identity import Scope
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import Entropy, below
from sfumato.specs import Feature

SUBJECT = "series over records"
DISJOINT = "a record is in one window of a series at most"
BOUNDED = "a user has at most max_records_per_user records in all windows"
OWN_RECORDS = "the records of a user that a window has depend on the records of this user alone"

N_WALKS = 4
N_UPLOADS = 12
N_USERS = 5
N_WINDOWS = 4
PERIOD = 1000  # microseconds of a window
_RING = Keyring((hashlib.sha256(b"audit").digest(),))

LoadWindow = Callable[..., Records]


class _Part(NamedTuple):
    """An upload: the user of each record, and the time of its completion."""

    users: tuple[int, ...]
    completed_at: int


def check_windows(setting: Setting, load: LoadWindow = window_records.load) -> Sequence[Finding]:
    """Upload the records of users at random times, and load them window by window.

    Uploads are completed in another order than they began. One user is left out in a second database.
    """
    entropy = setting.entropy("window records")
    n_walks = setting.effort.trials(N_WALKS)
    faults: dict[str, str] = {}
    for _ in range(n_walks):
        _walk(entropy, load, faults)
    return [
        Finding(SUBJECT, claim, "walk", n_walks, None, None, claim not in faults, faults.get(claim, ""))
        for claim in (DISJOINT, BOUNDED, OWN_RECORDS)
    ]


def _walk(entropy: Entropy, load: LoadWindow, faults: dict[str, str]) -> None:
    parts = [
        _Part(tuple(below(entropy, N_USERS) for _ in range(1 + below(entropy, 4))), below(entropy, N_WINDOWS * PERIOD))
        for _ in range(N_UPLOADS)
    ]
    most = 1 + below(entropy, 4)
    windows = _load_all(parts, most, load)
    seen = Counter(record for window in windows for record in window)
    repeated = [record for record, number in seen.items() if number > 1]
    if repeated:
        faults.setdefault(DISJOINT, f"record {repeated[0]} is in {seen[repeated[0]]} windows")
    users = Counter(user for window in windows for user, _ in window)
    beyond = [user for user, number in users.items() if number > most]
    if beyond:
        faults.setdefault(BOUNDED, f"a user with a limit of {most} has {users[beyond[0]]} records in all windows")
    removed = below(entropy, N_USERS)
    without = _load_all(parts, most, load, removed)
    if without != [{each for each in window if each[0] != removed} for window in windows]:
        faults.setdefault(OWN_RECORDS, "without a user, a window has other records of the other users")


def _load_all(
    parts: Sequence[_Part], most: int, load: LoadWindow, removed: int | None = None
) -> list[set[tuple[int, int]]]:
    """Return the records of each window in a new database: user and number of the record."""
    with temporary_database() as database:
        dataset_id = _create(database, most)
        uploads: list[tuple[int, Upload]] = []
        for place, part in enumerate(parts):
            rows = [(user, 8 * place + number) for number, user in enumerate(part.users) if user != removed]
            with database.transaction() as session:
                upload = Upload(record_keys.open_or_create(session, dataset_id, _RING), 2)
            if rows:
                upload.add(np.array(rows, dtype=np.int32), [b"%d" % user for user, _ in rows], 0)
                uploads.append((part.completed_at, upload))
        for completed_at, upload in sorted(uploads, key=lambda each: each[0]):
            with database.transaction() as session:
                records.append(session, upload, max_records=10**6, now=START + completed_at)
        found = []
        for window in range(N_WINDOWS):
            since = START + window * PERIOD
            with database.reading() as session:
                points = load(session, dataset_id, _RING, since=since, until=since + PERIOD).points
            found.append({(int(user), int(number)) for user, number in points})
    return found


def _create(database: Database, most: int) -> str:
    with database.transaction() as session:
        now = database.clock()
        owner = tenants.get_or_create_tenant(session, tenants.FIRST_TENANT, now=now)
        key, _ = keys.create_key(session, owner.id, name="audit", scopes=[Scope.ADMIN], now=now)
        return datasets.create(
            session,
            Caller(key.id, owner.id, frozenset(key.scopes), None, None),
            name="audit",
            trust=Trust.CENTRAL,
            features=(Feature("user", 0.0, 1.0), Feature("record", 0.0, 1.0)),
            epsilon_nano=NANO,
            min_reports=1,
            keep_reports=False,
            max_datasets=1,
            user_feature="person",
            max_records_per_user=most,
            now=now,
        ).id


CHECKS: tuple[Check, ...] = (Check(SUBJECT, check_windows),)
