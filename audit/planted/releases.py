"""Broken releases: sealing, queues of a shuffler, and services that link a report to its sender."""

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from audit.checks.check import Leak
from audit.devices.releases import (
    RELEASE_PATH,
    ReleasePath,
    check_batches,
    check_forwarders,
    check_lengths,
    check_order,
    check_releases,
    check_tables,
)
from models.collection import report_intake
from models.tables.datasets import Dataset
from models.tables.rounds import Round as ServiceRound
from service.ingestion.batch_reader import BatchReader
from service.ingestion.upload_memory import MemoryLimit
from sfumato.device.sealing import OUTER_BYTES, seal, sealed_length, wrap
from shuffler.queue import _SCHEMA, Queue, Released, State, Submission, Verdict
from shuffler.rounds import Round, parse_round


def seal_short_slots(report_id: bytes, slot: int, value: bytes, *place: Any) -> bytes:
    """Leave out the zeros in front of a slot, so that the length depends on the slot."""
    surplus = 4 - max(1, (slot.bit_length() + 7) // 8)
    return seal(report_id, slot, value, *place)[: sealed_length(len(value)) - surplus]


def leave_unwrapped(sealed: bytes, *_place: Any) -> bytes:
    """Add no outer layer."""
    return sealed


def wrap_always_alike() -> Callable[..., bytes]:
    """Return a function that resends the bytes of the first outer layer."""
    known: dict[bytes, bytes] = {}
    return lambda sealed, *place: known.setdefault(sealed, wrap(sealed, *place))


def wrap_unequally(sealed: bytes, round_id: str, key: bytes) -> bytes:
    """Add as many bytes as the last byte of the report states."""
    return wrap(sealed, round_id, key) + bytes(sealed[-1] % 4)


class _Unshuffled:
    """A generator that permutes nothing."""

    def shuffle(self, sealed: list[bytes]) -> None:
        """Leave the list as it is."""


class _Seeded(_Unshuffled):
    """A generator with a known seed."""

    def shuffle(self, sealed: list[bytes]) -> None:
        """Permute the list as in each other release of this length."""
        random.Random(1).shuffle(sealed)  # noqa: S311 - the planted fault


class UnpermutedQueue(Queue):
    """A queue that releases the reports in the order of its rows."""

    generator: Callable[[], _Unshuffled] = _Unshuffled

    def _release(self, round_id: str) -> Released:
        with patch("shuffler.queue.secrets.SystemRandom", self.generator):
            return super()._release(round_id)


class SeededQueue(UnpermutedQueue):
    """A queue that permutes all releases alike."""

    generator = _Seeded


class OrderedQueue(UnpermutedQueue):
    """A queue with rows in the order of arrival, which it releases in this order."""

    def store(self, submissions: Sequence[Submission], now: float) -> list[Verdict]:
        """Store sealed reports under their numbers."""
        with self._lock:
            (n_rows,) = self._database.execute("SELECT count(*) FROM reports").fetchone()
        numbers = count(n_rows)
        with patch("shuffler.queue.hmac.digest", lambda *_: next(numbers).to_bytes(4, "big")):
            return super().store(submissions, now)


class TimedQueue(Queue):
    """A queue that keeps the time of each submission."""

    def store(self, submissions: Sequence[Submission], now: float) -> list[Verdict]:
        """Store sealed reports and their time."""
        verdicts = super().store(submissions, now)
        with self._writing() as database:
            database.execute("CREATE TABLE IF NOT EXISTS arrivals (at REAL NOT NULL)")
            database.execute("INSERT INTO arrivals VALUES (?)", (now,))
        return verdicts


class CountingQueue(Queue):
    """A queue with public numbers of open rounds."""

    def list_released(self) -> list[Released]:
        """Return all rounds with their number of reports."""
        with self._lock:
            rows = self._database.execute("SELECT id, state, n_reports FROM rounds").fetchall()
        return [Released(name, State(state), n) for name, state, n in rows]


class EagerQueue(Queue):
    """A queue that releases an expired round of any size."""

    def _release(self, round_id: str) -> Released:
        with patch("shuffler.queue._parse", lambda document: replace(parse_round(document), min_batch=1)):
            return super()._release(round_id)


class TolerantQueue(Queue):
    """A queue that stores sealed reports of each length."""

    def store(self, submissions: Sequence[Submission], now: float) -> list[Verdict]:
        """Store each sealed report as if its length were that of the round."""
        return [self._store(each, now) for each in submissions]

    def _store(self, submission: Submission, now: float) -> Verdict:
        length = len(submission.wrapped) - OUTER_BYTES
        with patch("shuffler.queue._parse", lambda document: replace(parse_round(document), sealed_bytes=length)):
            return super().store([submission], now)[0]


class UnwrappedQueue(Queue):
    """A queue that takes sealed reports without an outer layer."""

    def store(self, submissions: Sequence[Submission], now: float) -> list[Verdict]:
        """Store reports of the length without the outer layer."""
        with (
            patch("shuffler.queue.unwrap", lambda reports, *_: reports),
            patch("shuffler.rounds.OUTER_BYTES", 0),
        ):
            return super().store(submissions, now)


class WrappedQueue(Queue):
    """A queue that releases the bytes that arrived, with their outer layer."""

    def store(self, submissions: Sequence[Submission], now: float) -> list[Verdict]:
        """Store the bytes that arrived."""
        with patch("shuffler.queue.unwrap", lambda reports, *_: reports):
            return super().store(submissions, now)

    def load_batch(self, found: Round) -> list[bytes]:
        """Return the permuted reports with their outer layer."""
        return super().load_batch(replace(found, sealed_bytes=found.sent_bytes))


class CopyingQueue(Queue):
    """A queue that stores a copy of a report under another name once more."""

    def __init__(self, path: Path) -> None:
        with patch("shuffler.queue._SCHEMA", _SCHEMA.replace("UNIQUE (round_id, sealed)", "CHECK (true)")):
            super().__init__(path)


class RepeatingQueue(Queue):
    """A queue that permutes a released round again when the process starts."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._writing() as database:
            for round_id, sealed in database.execute("SELECT round_id, sealed FROM batches").fetchall():
                document = self._find_document(round_id) or b""
                length = parse_round(document).sealed_bytes
                reports = [sealed[at : at + length] for at in range(0, len(sealed), length)]
                secrets.SystemRandom().shuffle(reports)
                database.execute("UPDATE batches SET sealed = ? WHERE round_id = ?", (b"".join(reports), round_id))


class ReopenedQueue(Queue):
    """A queue that accepts reports after the release of a round, and releases it again."""

    def _release(self, round_id: str) -> Released:
        released = super()._release(round_id)
        if released.state == State.RELEASED:
            with self._writing() as database:
                query = "UPDATE rounds SET state = ?, n_reports = 0, secret = ?, outer_key = ? WHERE id = ?"
                database.execute(query, (State.OPEN, bytes(32), bytes(31) + b"1", round_id))
        return released


def read_small_batches(stored: ServiceRound, dataset: Dataset, scratch: MemoryLimit) -> BatchReader:
    """Return a reader that accepts batches of each size."""
    lax = ServiceRound(id=stored.id, min_batch=1, target_reports=stored.target_reports, spec_wire=stored.spec_wire)
    return BatchReader(lax, dataset, scratch)


class UnverifiedReader(BatchReader):
    """A reader that verifies no signature."""

    def finish(self) -> None:
        """Read the batch with the signature check disabled."""
        with patch("service.ingestion.batch_reader.verify_digest", lambda *_: True):
            super().finish()


def receive_again(session: Any, round_id: str, *batch: Any, now: int) -> ServiceRound:
    """Store a further batch of a round as if it was the first."""
    found = session.get_one(ServiceRound, round_id)
    found.release_digest, found.state = None, "open"
    session.flush()
    return report_intake.receive_batch(session, round_id, *batch, now=now)


def _leak(name: str, subject: str, check: Callable[..., Any], path: ReleasePath) -> Leak:
    return Leak(name, subject, partial(check, path))


def _of_queue(name: str, subject: str, check: Callable[..., Any], queue: type[Queue]) -> Leak:
    return _leak(name, subject, check, RELEASE_PATH._replace(queue=queue))


_WITH_SMALL = RELEASE_PATH._replace(reader=read_small_batches)

LEAKS: tuple[Leak, ...] = (
    _leak("unequal lengths", "sealed reports", check_lengths, RELEASE_PATH._replace(seal=seal_short_slots)),
    _of_queue("unpermuted release", "shuffler order", check_order, UnpermutedQueue),
    _of_queue("permutation with a known seed", "shuffler order", check_order, SeededQueue),
    _of_queue("linker by the order of arrival", "shuffler order", check_order, OrderedQueue),
    _of_queue("rows in the order of arrival", "shuffler tables", check_tables, OrderedQueue),
    _of_queue("linker by the time of arrival", "shuffler tables", check_tables, TimedQueue),
    _leak(
        "missing outer layer",
        "forwarders",
        check_forwarders,
        RELEASE_PATH._replace(wrap=leave_unwrapped, queue=UnwrappedQueue),
    ),
    _of_queue("outer layer kept in the batch", "forwarders", check_forwarders, WrappedQueue),
    _of_queue("copies in the batch", "forwarders", check_forwarders, CopyingQueue),
    _of_queue("batch in the order of arrival", "forwarders", check_forwarders, OrderedQueue),
    _leak("resent outer layer", "forwarders", check_forwarders, RELEASE_PATH._replace(wrap=wrap_always_alike())),
    _leak("unequal outer layers", "sealed reports", check_lengths, RELEASE_PATH._replace(wrap=wrap_unequally)),
    _of_queue("count before the release", "shuffler releases", check_releases, CountingQueue),
    _of_queue("stored reports of unequal lengths", "shuffler releases", check_releases, TolerantQueue),
    _of_queue("min_batch ignored by the shuffler", "shuffler releases", check_releases, EagerQueue),
    _of_queue("second permutation", "shuffler releases", check_releases, RepeatingQueue),
    _of_queue("second release", "shuffler releases", check_releases, ReopenedQueue),
    _leak("min_batch ignored by the service", "batches", check_batches, _WITH_SMALL),
    _leak("unverified signature", "batches", check_batches, RELEASE_PATH._replace(reader=UnverifiedReader)),
    _leak("second batch", "batches", check_batches, RELEASE_PATH._replace(receive_batch=receive_again)),
)
