"""Broken queues of the shuffler."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from audit.checks.check import Leak
from audit.mechanisms.shuffled_batches import ORDERS, TERMS, check_orders, check_terms
from shuffler.queue import Queue, Released, Submission, Verdict
from shuffler.rounds import Round, parse_round


class Unpermuted(Queue):
    """Releases the reports in the order of the database."""

    def release_due(self, now: float) -> list[Released]:
        rows = self._database.execute("SELECT round_id, sealed FROM reports").fetchall()
        released = super().release_due(now)
        for each in released:
            sealed = b"".join(report for round_id, report in rows if round_id == each.round_id)
            self._database.execute("UPDATE batches SET sealed = ? WHERE round_id = ?", (sealed, each.round_id))
        return released


class InOrderOfArrival(Queue):
    """Stores the reports in the order of their arrival, from which a reader of the database links them."""

    def store(self, submissions: Sequence[Submission], now: float) -> list[Verdict]:
        verdicts = super().store(submissions, now)
        for number, each in enumerate(submissions):
            place = number.to_bytes(8, "big")
            self._database.execute("UPDATE reports SET place = ? WHERE sealed = ?", (place, each.sealed))
        return verdicts


class WithTimes(Queue):
    """Stores the time of each report."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._database.execute("CREATE TABLE arrivals (place BLOB, received_at REAL)")


class ReleasesTwice(Queue):
    """Keeps the reports of a round after its release."""

    def _release(self, round_id: str) -> Released:
        with self._writing() as database:
            rows = database.execute("SELECT * FROM reports WHERE round_id = ?", (round_id,)).fetchall()
            (secret,) = database.execute("SELECT secret FROM rounds WHERE id = ?", (round_id,)).fetchone()
            database.execute("DELETE FROM batches WHERE round_id = ?", (round_id,))
        released = super()._release(round_id)
        with self._writing() as database:
            database.executemany("INSERT INTO reports VALUES (?, ?, ?)", rows)
            database.execute("UPDATE rounds SET state = 'open', secret = ? WHERE id = ?", (secret, round_id))
        return released


class WithoutMinimum(Queue):
    """Releases a round with one report."""

    def add_round(self, dataset_id: str, found: Round) -> bytes:
        document = json.dumps(json.loads(found.document) | {"min_batch": 1}).encode()
        return super().add_round(dataset_id, replace(parse_round(document), document=document))


class AnyLength(Queue):
    """Accepts reports of any length."""

    def _store(self, database: sqlite3.Connection, submission: Submission, now: float) -> Verdict:
        row = database.execute("SELECT document FROM rounds WHERE id = ?", (submission.round_id,)).fetchone()
        length = parse_round(row[0]).sealed_bytes
        stored = super()._store(database, submission._replace(sealed=submission.sealed.ljust(length)[:length]), now)
        query = "UPDATE reports SET sealed = ? WHERE round_id = ? AND substr(sealed, 1, 1) = ?"
        database.execute(query, (submission.sealed, submission.round_id, submission.sealed[:1]))
        return stored


LEAKS: tuple[Leak, ...] = (
    Leak("an unpermuted release", ORDERS, partial(check_orders, Unpermuted)),
    Leak("reports in the order of arrival", ORDERS, partial(check_orders, InOrderOfArrival)),
    Leak("a time of each report", ORDERS, partial(check_orders, WithTimes)),
    Leak("a second release", TERMS, partial(check_terms, ReleasesTwice)),
    Leak("min_batch not enforced", TERMS, partial(check_terms, WithoutMinimum)),
    Leak("unequal lengths", TERMS, partial(check_terms, AnyLength)),
)
