"""Check what the shuffler's queue releases, and that no order links a released report to its arrival.

The checks use the queue of `shuffler.queue` with reports that are recognised by their first bytes. The service sees the
order of a batch, and a reader of the queue's database sees the order of the stored reports.
"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from audit.checks.check import Check, Finding, Setting
from audit.mechanisms.exact_channels import EXAMPLES, example_round
from sfumato.specs import to_wire
from shuffler.queue import Queue, Sender, State, Submission, Verdict
from shuffler.rounds import Round, parse_round

ORDERS, TERMS = "orders of the shuffler", "releases of the shuffler"  # subjects
N_REPORTS = 6
MIN_BATCH = 4
MIN_P_VALUE = 1e-10  # probability that a sound queue fails one of the three comparisons of orders
COLUMNS = {  # The queue's tables have no time, address or number of an arrival.
    "senders": {"key_hash", "name", "dataset_id", "is_backend"},
    "rounds": {"id", "dataset_id", "document", "state", "n_reports", "secret"},
    "reports": {"round_id", "place", "sealed"},
    "batches": {"round_id", "sealed"},
}
_N_ROUNDS = 300
_DATASET = "ds_1"
_CLOSES_AT = 1_000_000.0  # seconds since the epoch
_CLOSES = "1970-01-12T13:46:40+00:00"


class _Run:
    """A queue with one app backend as its sender."""

    def __init__(self, kind: type[Queue], path: Path) -> None:
        self.queue, self._path = kind(path), path
        self._key = self.queue.add_sender(Sender("app", _DATASET, is_backend=True)) or ""
        self._n_rounds = 0

    def open_round(self) -> Round:
        """Add a round to the queue."""
        self._n_rounds += 1
        spec = example_round(EXAMPLES["grid"], "grr", 1.0)
        members = {
            "id": f"rnd_{self._n_rounds}",
            "spec": to_wire(spec),
            "closes_at": _CLOSES,
            "target_reports": N_REPORTS,
            "min_batch": MIN_BATCH,
        }
        found = parse_round(json.dumps(members).encode())
        self.queue.add_round(_DATASET, found)
        return found

    def send(self, found: Round, n_reports: int, n_more: int = 0, now: float = 0.0) -> list[Verdict]:
        """Send reports in the order of their numbers, each `n_more` bytes too long."""
        reports = [bytes([number]).ljust(found.sealed_bytes + n_more, b"\0") for number in range(n_reports)]
        sent = [Submission(self._key, f"person {report[0]}", found.id, report) for report in reports]
        return self.queue.store(sent, now)

    def stored(self, found: Round) -> list[int]:
        """Return the numbers of the stored reports in the order of the database."""
        with closing(sqlite3.connect(self._path)) as database:
            rows = database.execute("SELECT sealed FROM reports WHERE round_id = ?", (found.id,)).fetchall()
        return [sealed[0] for (sealed,) in rows]

    def columns(self) -> dict[str, set[str]]:
        """Return the columns of each table."""
        query = "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'"
        found: dict[str, set[str]] = {}
        with closing(sqlite3.connect(self._path)) as database:
            for table, column in database.execute(query):
                found.setdefault(table, set()).add(column)
        return found

    def batch(self, found: Round) -> list[int]:
        """Return the numbers of the released reports in order."""
        return [sealed[0] for sealed in self.queue.load_batch(found)]


def check_orders(kind: type[Queue], setting: Setting) -> list[Finding]:
    """Check by chi-square that the orders of arrival, of storage and of the batch are independent."""
    n_rounds = setting.effort.trials(_N_ROUNDS)
    counts = np.zeros((3, N_REPORTS, N_REPORTS), dtype=np.int64)
    why = ""
    with TemporaryDirectory() as folder:
        run = _Run(kind, Path(folder) / "queue.db")
        with closing(run.queue):
            if run.columns() != COLUMNS:
                why = "the queue stores more than sealed reports under keyed hashes of their senders"
            for _ in range(n_rounds):
                found = run.open_round()
                run.send(found, N_REPORTS)
                stored = run.stored(found)
                run.queue.release_due(0.0)
                batch = run.batch(found)
                if sorted(stored) != sorted(batch) or len(batch) != N_REPORTS:
                    why = why or "a batch lacks a report, or has another one"
                    break
                for each, (before, after) in zip(
                    counts, ((range(N_REPORTS), stored), (range(N_REPORTS), batch), (stored, batch)), strict=True
                ):
                    _count(each, before, after)
                run.queue.end(found.id, State.ACKNOWLEDGED)
    names = ("of arrival in the stored one", "of arrival in the batch", "of storage in the batch")
    for name, each in zip(names, counts, strict=True):
        if not why and (p := _p_value(each)) < MIN_P_VALUE:
            why = f"an observer recognises the order {name}: p = {p:.1g}"
    claim = "the orders of arrival, of the stored reports and of the batch are independent"
    return [Finding(ORDERS, claim, "chi-square", n_rounds, holds=not why, why=why)]


def _count(counts: NDArray[np.int64], before: Sequence[int], after: Sequence[int]) -> None:
    """Count each pair of places of a report."""
    places = {number: place for place, number in enumerate(after)}
    for place, number in enumerate(before):
        counts[place, places[number]] += 1


def _p_value(counts: NDArray[np.int64]) -> float:
    """Return the p-value of sums of uniform random permutation matrices.

    For matrices of size k, (k - 1)/k times Pearson's statistic has (k - 1)² degrees of freedom, because all rows and
    columns have equal sums.
    """
    k = len(counts)
    expected = counts.sum() / k**2
    statistic = (k - 1) / k * float(((counts - expected) ** 2).sum()) / expected
    return float(chi2.sf(statistic, (k - 1) ** 2))


def check_terms(kind: type[Queue], _setting: Setting) -> list[Finding]:
    """Check that a round is released once, from `min_batch` reports on, and with reports of one length."""
    findings = []

    def claim(text: str, trials: int, why: str) -> None:
        findings.append(Finding(TERMS, text, "exact", trials, holds=not why, why=why))

    with TemporaryDirectory() as folder:
        run = _Run(kind, Path(folder) / "queue.db")
        with closing(run.queue):
            found = run.open_round()
            run.send(found, N_REPORTS)
            run.queue.release_due(0.0)
            first = run.batch(found)
            again, late = run.queue.release_due(_CLOSES_AT), run.send(found, N_REPORTS)
            is_single = not again and run.batch(found) == first and set(late) == {Verdict.CLOSED}
            claim("a round is released once", 2, "" if is_single else "the round was released again")
            small = [run.open_round() for _ in range(MIN_BATCH)]
            for n_reports, each in enumerate(small):
                run.send(each, n_reports)
            run.queue.release_due(_CLOSES_AT)
            released = [n_reports for n_reports, each in enumerate(small) if run.batch(each)]
            why = f"a batch has {released[0]} reports, fewer than min_batch" if released else ""
            claim("a batch has at least min_batch reports", MIN_BATCH, why)
            found = run.open_round()
            outcomes = {more: run.send(found, 1, more) for more in (-1, 1, 16)}
            wrong = [more for more, (outcome,) in outcomes.items() if outcome != Verdict.WRONG_LENGTH]
            why = f"a report that is {wrong[0]:+d} bytes longer was stored" if wrong else ""
            claim("all reports of a batch have one length", len(outcomes), why)
    return findings


CHECKS: tuple[Check, ...] = (
    Check(ORDERS, partial(check_orders, Queue)),
    Check(TERMS, partial(check_terms, Queue)),
)
