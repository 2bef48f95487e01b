"""Durable queue of sealed reports, in an SQLite database of its own.

    open ──► released ──► acknowledged          the service has the batch
      │          └──────► refused               the service wants no batch of this round
      └────► discarded                          too few reports at `closes_at`

The queue removes the outer layer of a report before it stores it. So a batch contains no bytes that a forwarder saw,
and a report that a device sends again counts once. A copy of a report under another name counts once too: otherwise a
forwarder would recognise the report by its number of copies.

A report is stored under HMAC-SHA256(secret of the round, sender). These keys are random towards everyone without the
secret, so neither they nor the order of the rows contains an order of arrival. The layout of the file does until the
release. The primary key permits one report of a sender in a round. The release permutes the reports, and deletes them,
the secret and the outer key, in one transaction. A batch is deleted when the service has it. Tables contain no times
and no addresses, and SQLite overwrites what it deletes. The rollback journal holds the last transaction only.

A full round is released after a random delay, so that the time of the release does not show the last report. The
release times of a round are the multiples of an interval plus a random phase, which is drawn with the round. They
belong to no report, so they may be stored, and a restart never shortens the delay.
"""

import hashlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from math import floor
from pathlib import Path
from typing import NamedTuple

from sfumato.device.sealing import generate_round_key_pair, public_key_of
from sfumato.errors import SfumatoError
from shuffler.rounds import Round
from shuffler.steps import SCHEMA_VERSION, STEPS, Steps

SECRET_BYTES = 32
BUSY_SECONDS = 2.0  # longest wait for another process that uses the file
PHASES = 1 << 32


class State(StrEnum):
    """The state of a round."""

    OPEN = "open"
    RELEASED = "released"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    DISCARDED = "discarded"


class Verdict(StrEnum):
    """The outcome of a submission."""

    STORED = "stored"  # also if the same bytes are stored already
    UNAUTHENTICATED = "unauthenticated"
    NOT_FOUND = "not_found"
    SENDER_MISSING = "sender_missing"
    WRONG_LENGTH = "sealed_length"
    NOT_WRAPPED = "outer_layer"
    ALREADY_REPORTED = "already_reported"
    CLOSED = "round_closed"


class Sender(NamedTuple):
    """The owner of a bearer key: one device, or an app backend that names its devices."""

    name: str
    dataset_id: str
    is_backend: bool


class Submission(NamedTuple):
    """A sealed report as it arrived, with its outer layer. `person` is the sender that an app backend names."""

    key: str
    person: str | None
    round_id: str
    wrapped: bytes


class QueueUnusable(SfumatoError):
    """The database has another schema than this version."""

    code = "queue_unusable"


class Announced(NamedTuple):
    """A round as devices receive it: its bytes and its outer key. The key is None from the release on."""

    document: bytes
    outer_public_key: bytes | None


class Released(NamedTuple):
    """A round of the queue with the numbers that are public. `n_reports` is 0 unless it was released."""

    round_id: str
    state: State
    n_reports: int


class Queue:
    """The queue. Each method is one transaction, which is durable when the method returns. Safe for threads.

    Parameters
    ----------
    path : Path
        The database file. Created with mode 0600.
    steps : Steps

    Raises
    ------
    QueueUnusable
        Another version of the shuffler wrote the file.
    """

    def __init__(self, path: Path, steps: Steps = STEPS) -> None:
        self._steps = steps
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._lock = threading.Lock()
        self._full_since: dict[str, int] = {}  # number of the release time before the first check of each full round
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
        self._check_schema(path)
        for pragma in ("journal_mode = DELETE", "synchronous = EXTRA", "secure_delete = ON", "temp_store = MEMORY"):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.executescript(steps.schema)
        self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _check_schema(self, path: Path) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        (n_tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if n_tables and version != SCHEMA_VERSION:
            self._database.close()
            age = "an unreleased" if version < SCHEMA_VERSION else "a newer"
            raise QueueUnusable(f"{path} was written by {age} version: use that version, or start with another --home")

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    # ---- senders ----

    def add_sender(self, sender: Sender) -> str | None:
        """Return a new bearer key of a sender, or None if the name exists."""
        key = f"sfs_{secrets.token_urlsafe(32)}"
        with self._writing() as database:
            added = database.execute(
                "INSERT OR IGNORE INTO senders (key_hash, name, dataset_id, is_backend) VALUES (?, ?, ?, ?)",
                (_hash_key(key), *sender),
            )
            return key if added.rowcount else None

    def replace_key(self, name: str) -> str | None:
        """Return a new bearer key of a known sender, which remains the same sender, or None. The old key ends."""
        key = f"sfs_{secrets.token_urlsafe(32)}"
        with self._writing() as database:
            changed = database.execute("UPDATE senders SET key_hash = ? WHERE name = ?", (_hash_key(key), name))
            return key if changed.rowcount else None

    def find_sender(self, key: str) -> Sender | None:
        """Return the owner of a bearer key, or None."""
        with self._lock:
            return _find_sender(self._database, key)

    # ---- rounds ----

    def add_round(self, dataset_id: str, found: Round) -> bytes:
        """Store a round unless it is known, and return its stored document. Later documents change nothing."""
        with self._lock:
            known = self._find_document(found.id)
        if known is not None:
            return known
        with self._writing() as database:
            database.execute(
                "INSERT OR IGNORE INTO rounds VALUES (?, ?, ?, ?, 0, ?, ?, ?)",
                (
                    found.id,
                    dataset_id,
                    found.document,
                    State.OPEN,
                    secrets.token_bytes(SECRET_BYTES),
                    generate_round_key_pair().private_key,
                    secrets.randbelow(PHASES),
                ),
            )
            return self._find_document(found.id) or found.document

    def _find_document(self, round_id: str) -> bytes | None:
        row = self._database.execute("SELECT document FROM rounds WHERE id = ?", (round_id,)).fetchone()
        return None if row is None else row[0]

    def find_announced(self, round_id: str, dataset_id: str) -> Announced | None:
        """Return the stored document of a round of a dataset and its outer key, or None."""
        query = "SELECT document, outer_key FROM rounds WHERE id = ? AND dataset_id = ?"
        with self._lock:
            row = self._database.execute(query, (round_id, dataset_id)).fetchone()
        return None if row is None else Announced(row[0], None if row[1] is None else public_key_of(row[1]))

    def list_open(self, dataset_id: str, now: float) -> list[str]:
        """Return the ids of the rounds of a dataset that accept reports."""
        query = "SELECT document, n_reports FROM rounds WHERE dataset_id = ? AND state = ? ORDER BY id"
        with self._lock:
            rows = self._database.execute(query, (dataset_id, State.OPEN)).fetchall()
        found = [(self._steps.parse(document), n_reports) for document, n_reports in rows]
        return [each.id for each, n_reports in found if not _is_due(each, n_reports, now)]

    def list_released(self) -> list[Released]:
        """Return all rounds with public numbers only."""
        query = "SELECT id, state, iif(state IN ('open', 'discarded'), 0, n_reports) FROM rounds ORDER BY id"
        with self._lock:
            return [Released(*row) for row in self._database.execute(query)]

    # ---- reports ----

    def store(self, submissions: Sequence[Submission], now: float) -> list[Verdict]:
        """Store sealed reports and return the outcome of each. A repeated submission of the same bytes is stored."""
        with self._writing() as database:
            group = Group(database, now, self._steps)
            verdicts = [group.store(each) for each in submissions]
            group.count()
            return verdicts

    # ---- releases ----

    def release_due(self, now: float, interval_seconds: float) -> list[Released]:
        """Permute each due round into a batch, or discard it if it is too small. Return these rounds.

        A full round is due at its first release time after a check that finds it full, and every round at `closes_at`.

        Parameters
        ----------
        now : float
            Seconds since the epoch.
        interval_seconds : float
            Time between two release times of a round: the longest delay of a full round. 0 releases it at once.
        """
        query = "SELECT document, n_reports, phase FROM rounds WHERE state = ?"
        with self._lock:
            rows = self._database.execute(query, (State.OPEN,)).fetchall()
            due = []
            for document, n_reports, phase in rows:
                found = self._steps.parse(document)
                if now >= found.closes_at or (
                    n_reports >= found.target_reports
                    and self._is_release_time(found.id, now, phase / PHASES, interval_seconds)
                ):
                    due.append(found.id)
        return [self._release(round_id) for round_id in due]

    def _is_release_time(self, round_id: str, now: float, phase: float, interval_seconds: float) -> bool:
        """Return whether a release time of a full round has passed since the first check of the full round."""
        if not interval_seconds:
            return True
        period = floor(now / interval_seconds - phase)
        first = min(period, self._full_since.get(round_id, period))  # the clock may go back
        self._full_since[round_id] = first
        return period > first

    def _release(self, round_id: str) -> Released:
        with self._writing() as database:
            query = "SELECT document, state, n_reports FROM rounds WHERE id = ?"
            document, state, n_reports = database.execute(query, (round_id,)).fetchone()
            if state != State.OPEN:  # another process released it
                return Released(round_id, State(state), n_reports)
            state = State.DISCARDED if n_reports < self._steps.parse(document).min_batch else State.RELEASED
            if state == State.RELEASED:
                query = "SELECT sealed FROM reports WHERE round_id = ? ORDER BY place"
                sealed = [row[0] for row in database.execute(query, (round_id,))]
                self._steps.permute(sealed)
                database.execute("INSERT INTO batches VALUES (?, ?)", (round_id, b"".join(sealed)))
            database.execute("DELETE FROM reports WHERE round_id = ?", (round_id,))
            query = "UPDATE rounds SET state = ?, secret = NULL, outer_key = NULL WHERE id = ?"
            database.execute(query, (state, round_id))
            self._full_since.pop(round_id, None)
            return Released(round_id, state, n_reports if state == State.RELEASED else 0)

    def list_waiting(self) -> list[Round]:
        """Return the rounds with a batch that the service does not have yet."""
        query = "SELECT document FROM rounds WHERE state = ? ORDER BY id"
        with self._lock:
            return [self._steps.parse(row[0]) for row in self._database.execute(query, (State.RELEASED,))]

    def load_batch(self, found: Round) -> list[bytes]:
        """Return the permuted sealed reports of a released round; an empty list after its end."""
        query = "SELECT sealed FROM batches WHERE round_id = ?"
        with self._lock:
            row = self._database.execute(query, (found.id,)).fetchone()
        sealed = b"" if row is None else row[0]
        return [sealed[at : at + found.sealed_bytes] for at in range(0, len(sealed), found.sealed_bytes)]

    def end(self, round_id: str, state: State) -> None:
        """Delete the batch of a released round, which the service has or refuses finally."""
        with self._writing() as database:
            database.execute("DELETE FROM batches WHERE round_id = ?", (round_id,))
            query = "UPDATE rounds SET state = ? WHERE id = ? AND state = ?"
            database.execute(query, (state, round_id, State.RELEASED))

    def check_write(self) -> None:
        """Commit a transaction that changes nothing. Raise sqlite3.Error if the database cannot be written."""
        with self._writing() as database:
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # SQLite ends it itself after some errors
                    self._database.execute("ROLLBACK")
                raise


class _StoredRound:
    """A round as the transaction of a group found it, with the number of reports that the group adds."""

    def __init__(
        self,
        steps: Steps,
        dataset_id: str,
        document: bytes,
        state: str,
        n_reports: int,
        secret: bytes | None,
        key: bytes | None,
    ) -> None:
        self.dataset_id, self.is_open, self.n_reports = dataset_id, state == State.OPEN, n_reports
        self.found, self.n_added = steps.parse(document), 0
        self.secret = secret or b""  # none from the release on
        self._wrapped: list[bytes] = []
        self._layers = steps.unwrap(iter(self._wrapped.pop, None), self.found.id, key or b"")  # loads the key once

    def unwrap(self, wrapped: bytes) -> bytes | None:
        """Return the sealed report without its outer layer, or None if it has none."""
        self._wrapped.append(wrapped)
        return next(self._layers)


class Group:
    """Submissions of one transaction, which reads each sender and each round once."""

    def __init__(self, database: sqlite3.Connection, now: float, steps: Steps) -> None:
        self._database, self._now, self._steps = database, now, steps
        self._senders: dict[str, Sender | None] = {}
        self._rounds: dict[str, _StoredRound | None] = {}

    def store(self, submission: Submission) -> Verdict:
        """Store a sealed report and return the outcome."""
        if submission.key not in self._senders:
            self._senders[submission.key] = _find_sender(self._database, submission.key)
        sender = self._senders[submission.key]
        if sender is None:
            return Verdict.UNAUTHENTICATED
        if sender.is_backend != bool(submission.person):
            return Verdict.SENDER_MISSING
        if submission.round_id not in self._rounds:
            self._rounds[submission.round_id] = self._find_round(submission.round_id)
        stored = self._rounds[submission.round_id]
        if stored is None or stored.dataset_id != sender.dataset_id:
            return Verdict.NOT_FOUND
        if not stored.is_open:
            return Verdict.CLOSED
        if not self._steps.fits(stored.found, submission.wrapped):
            return Verdict.WRONG_LENGTH
        sealed = stored.unwrap(submission.wrapped)
        if sealed is None:
            return Verdict.NOT_WRAPPED
        return self._insert(stored, self._steps.place(stored.secret, sender.name, submission.person), sealed)

    def _insert(self, stored: _StoredRound, place: bytes, sealed: bytes) -> Verdict:
        round_id = stored.found.id
        is_due = _is_due(stored.found, stored.n_reports + stored.n_added, self._now)
        if not is_due:
            query = "INSERT OR IGNORE INTO reports VALUES (?, ?, ?)"
            if self._database.execute(query, (round_id, place, sealed)).rowcount:
                stored.n_added += 1
                return Verdict.STORED
        query = "SELECT 1 FROM reports WHERE round_id = ? AND sealed = ?"
        if self._database.execute(query, (round_id, sealed)).fetchone() is not None:
            return Verdict.STORED
        query = "SELECT 1 FROM reports WHERE round_id = ? AND place = ?"
        if self._database.execute(query, (round_id, place)).fetchone() is not None:
            return Verdict.ALREADY_REPORTED
        return Verdict.CLOSED

    def count(self) -> None:
        """Add the stored reports to the numbers of their rounds."""
        added = [(each.n_added, each.found.id) for each in self._rounds.values() if each is not None and each.n_added]
        self._database.executemany("UPDATE rounds SET n_reports = n_reports + ? WHERE id = ?", added)

    def _find_round(self, round_id: str) -> _StoredRound | None:
        query = "SELECT dataset_id, document, state, n_reports, secret, outer_key FROM rounds WHERE id = ?"
        row = self._database.execute(query, (round_id,)).fetchone()
        return None if row is None else _StoredRound(self._steps, *row)


def _find_sender(database: sqlite3.Connection, key: str) -> Sender | None:
    query = "SELECT name, dataset_id, is_backend FROM senders WHERE key_hash = ?"
    row = database.execute(query, (_hash_key(key),)).fetchone()
    return None if row is None else Sender(row[0], row[1], bool(row[2]))


def _hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _is_due(found: Round, n_reports: int, now: float) -> bool:
    return n_reports >= found.target_reports or now >= found.closes_at
