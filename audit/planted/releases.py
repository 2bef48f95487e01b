"""Broken releases: sealing, queues of a shuffler, and services that link a report to its sender."""

import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
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
from sfumato.device.sealing import seal, sealed_length, wrap
from shuffler.queue import Queue, Released, State, Submission, Verdict
from shuffler.rounds import Round, parse_round
from shuffler.steps import STEPS


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


def leave_order(_reports: list[bytes]) -> None:
    """Permute nothing."""


def permute_always_alike(reports: list[bytes]) -> None:
    """Permute all releases of one length alike."""
    random.Random(1).shuffle(reports)  # noqa: S311 - the planted fault


def number_arrivals(*_place: Any) -> bytes:
    """Return a key that is greater than those of all reports before."""
    return time.monotonic_ns().to_bytes(8, "big")


def take_any_length(_found: Round, _wrapped: bytes) -> bool:
    """Accept each length."""
    return True


def take_length_without_layer(found: Round, wrapped: bytes) -> bool:
    """Accept the length of a sealed report."""
    return len(wrapped) == found.sealed_bytes


def leave_layer(reports: Iterator[bytes], *_place: Any) -> Iterator[bytes | None]:
    """Remove no outer layer."""
    return reports


def parse_with_small_batches(document: bytes) -> Round:
    """Return the round as if it had no least number of reports."""
    return replace(parse_round(document), min_batch=1)


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


class WrappedQueue(Queue):
    """A queue that releases the bytes that arrived, with their outer layer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, STEPS._replace(unwrap=leave_layer))

    def load_batch(self, found: Round) -> list[bytes]:
        """Return the permuted reports with their outer layer."""
        return super().load_batch(replace(found, sealed_bytes=found.sent_bytes))


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


def _of_queue(name: str, subject: str, check: Callable[..., Any], queue: Callable[[Path], Queue]) -> Leak:
    return _leak(name, subject, check, RELEASE_PATH._replace(queue=queue))


def _with(**steps: Any) -> Callable[[Path], Queue]:
    """Return a queue in which single steps are replaced."""
    return partial(Queue, steps=STEPS._replace(**steps))


_ORDERED = _with(place=number_arrivals, permute=leave_order)
_EAGER = _with(parse=parse_with_small_batches)
_COPYING = _with(schema=STEPS.schema.replace("UNIQUE (round_id, sealed)", "CHECK (true)"))
_UNWRAPPED = _with(fits=take_length_without_layer, unwrap=leave_layer)
_WITH_SMALL = RELEASE_PATH._replace(reader=read_small_batches)

LEAKS: tuple[Leak, ...] = (
    _leak("unequal lengths", "sealed reports", check_lengths, RELEASE_PATH._replace(seal=seal_short_slots)),
    _of_queue("unpermuted release", "shuffler order", check_order, _with(permute=leave_order)),
    _of_queue("permutation with a known seed", "shuffler order", check_order, _with(permute=permute_always_alike)),
    _of_queue("linker by the order of arrival", "shuffler order", check_order, _ORDERED),
    _of_queue("rows in the order of arrival", "shuffler tables", check_tables, _ORDERED),
    _of_queue("linker by the time of arrival", "shuffler tables", check_tables, TimedQueue),
    _leak(
        "missing outer layer",
        "forwarders",
        check_forwarders,
        RELEASE_PATH._replace(wrap=leave_unwrapped, queue=_UNWRAPPED),
    ),
    _of_queue("outer layer kept in the batch", "forwarders", check_forwarders, WrappedQueue),
    _of_queue("copies in the batch", "forwarders", check_forwarders, _COPYING),
    _of_queue("batch in the order of arrival", "forwarders", check_forwarders, _ORDERED),
    _leak("resent outer layer", "forwarders", check_forwarders, RELEASE_PATH._replace(wrap=wrap_always_alike())),
    _leak("unequal outer layers", "sealed reports", check_lengths, RELEASE_PATH._replace(wrap=wrap_unequally)),
    _of_queue("count before the release", "shuffler releases", check_releases, CountingQueue),
    _of_queue("stored reports of unequal lengths", "shuffler releases", check_releases, _with(fits=take_any_length)),
    _of_queue("min_batch ignored by the shuffler", "shuffler releases", check_releases, _EAGER),
    _of_queue("second permutation", "shuffler releases", check_releases, RepeatingQueue),
    _of_queue("second release", "shuffler releases", check_releases, ReopenedQueue),
    _leak("min_batch ignored by the service", "batches", check_batches, _WITH_SMALL),
    _leak("unverified signature", "batches", check_batches, RELEASE_PATH._replace(reader=UnverifiedReader)),
    _leak("second batch", "batches", check_batches, RELEASE_PATH._replace(receive_batch=receive_again)),
)
