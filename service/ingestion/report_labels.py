"""Labels for the retained reports of a finished job, in pages: the most likely cluster of each report.

The labels follow from the report log and the published model, which no longer change; the labellers of the latest
jobs are cached. A report id counts once, as in the aggregation: the first well-formed report in log order.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from models.collection import report_log
from models.errors import Conflict
from models.tables.rounds import Round
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.posterior import Reader
from sfumato.specs import RoundSpec

MAX_CACHED = 4  # jobs with cached labellers
IDS_AT_ONCE = 1 << 22  # half ids in memory at the same time, 32 MB
REPORTS_PER_MARK = 1000  # reports of a log that are skipped at most to find the first row of a page
SAMPLE_REPORTS = 10_000  # first reports of each round that are used to estimate the expected accuracy

REPORTS_DELETED = (
    "the reports of this job were deleted after the aggregation: let devices label themselves with the published model "
    "(assign), or set keep_reports on the dataset before the next collection"
)
JOB_OVER_RECORDS = (
    "a job over records does not publish labels of records: label points of your own with the published model (assign)"
)

Position = tuple[int, int]  # index of a round of the job, and number of earlier reports in its log


def caution(expected_accuracy: float, baseline: float) -> str:
    """Return a warning with the expected accuracy of the labels."""
    return (
        f"If the model is right, {100 * expected_accuracy:.1f} % of these labels are right. "
        f"The label of the largest cluster is right for {100 * baseline:.1f} %. "
        "A perturbed report reveals little about one person: "
        "for better labels, let devices label themselves with the published model (assign)."
    )


@dataclass(frozen=True, slots=True)
class _Reports:
    """Some reports of one round, in log order."""

    round: Round
    spec: RoundSpec
    positions: NDArray[np.int64]  # number of earlier reports in the log, for each report
    packed: NDArray[np.uint8]  # (n, 20 + value_bytes)

    @property
    def ids(self) -> list[bytes]:
        return [report[: report_log.ID_BYTES].tobytes() for report in self.packed]

    @property
    def slots(self) -> NDArray[np.int64]:
        return _slots(self.packed)

    @property
    def values(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.packed[:, report_log.HEADER_BYTES :])

    def select(self, mask: NDArray[np.bool_]) -> "_Reports":
        return _Reports(self.round, self.spec, self.positions[mask], self.packed[mask])


class ReportLabeller:
    """Labels the reports of one finished job.

    Parameters
    ----------
    model : ClusterModel
        The published model.
    """

    def __init__(self, model: ClusterModel) -> None:
        self._model = model
        self._readers: dict[str, Reader] = {}
        self._repeats: dict[str, NDArray[np.int64]] = {}
        self._marks: dict[str, list[report_log.Mark]] = {}
        self._expected: float | None = None

    @property
    def baseline(self) -> float:
        """Return the share of the largest cluster."""
        return float(self._model.sizes.max())

    def page(
        self, session: Session, rounds: Sequence[Round], after: Position | None, limit: int
    ) -> tuple[list[dict[str, Any]], Position | None]:
        """Return the labels of at most `limit` reports and the position of the next page (None at the end)."""
        items: list[dict[str, Any]] = []
        n_left = limit
        index, first = (0, 0) if after is None else after
        while index < len(rounds):
            reports = self._read(session, rounds[index], first, n_left + 1)
            if len(reports.positions) > n_left:  # another page follows
                page = reports.select(np.arange(len(reports.positions)) < n_left)
                return items + self._labels(session, page), (index, first + n_left)
            items += self._labels(session, reports)
            n_left -= len(reports.positions)
            index, first = index + 1, 0
        return items, None

    def expected_accuracy(self, session: Session, rounds: Sequence[Round]) -> float:
        """Return the mean confidence of the first SAMPLE_REPORTS of each round, weighted by the rounds' reports."""
        if self._expected is None:
            total, n_all = 0.0, 0
            for each in rounds:
                sample = self._counted(session, self._read(session, each, 0, SAMPLE_REPORTS))
                if len(sample.positions):
                    weight = each.n_reports or 0
                    total += weight * float(self._posterior(sample).max(axis=1).mean())
                    n_all += weight
            self._expected = total / n_all if n_all else self.baseline
        return self._expected

    def _read(self, session: Session, row: Round, first: int, n: int) -> _Reports:
        """Return `n` reports of a round's log from position `first` on, whether or not they are well-formed."""
        spec = row.spec
        width = report_log.HEADER_BYTES + spec.mechanism.value_bytes
        parts = [np.zeros((0, width), dtype=np.uint8)]
        n_read = 0
        for n_before, packed in _read_log(session, row, width, after=self._mark(session, row, width, first)):
            part = packed[max(0, first - n_before) :][: n - n_read]
            parts.append(part)
            n_read += len(part)
            if n_read == n:
                break
        return _Reports(row, spec, np.arange(first, first + n_read), np.concatenate(parts))

    def _mark(self, session: Session, row: Round, width: int, first: int) -> report_log.Mark:
        """Return a mark shortly before position `first`, so that a page does not read the log from its start."""
        if first < REPORTS_PER_MARK:
            return report_log.START
        marks = self._marks.get(row.id)
        if marks is None:
            marks = self._marks[row.id] = report_log.marks(session, row.id, width, every=REPORTS_PER_MARK)
        at = bisect_right(marks, first, key=lambda mark: mark.n_before)
        return marks[at - 1] if at else report_log.START

    def _labels(self, session: Session, reports: _Reports) -> list[dict[str, Any]]:
        counted = self._counted(session, reports)
        posterior = self._posterior(counted)
        labels = posterior.argmax(axis=1) if len(posterior) else np.zeros(0, dtype=np.int64)
        return [
            {"report_id": report_id.hex(), "round_id": counted.round.id, "cluster": label, "confidence": confidence}
            for report_id, label, confidence in zip(
                counted.ids, labels.tolist(), posterior.max(axis=1, initial=0.0).tolist(), strict=True
            )
        ]

    def _counted(self, session: Session, reports: _Reports) -> _Reports:
        """Return the reports that the aggregation counted: well-formed ones that are the first with their id."""
        if not len(reports.positions):
            return reports
        repeats = self._repeats.get(reports.round.id)
        if repeats is None:
            repeats = self._repeats[reports.round.id] = _find_repeats(session, reports.round)
        return reports.select(_well_formed(reports.spec, reports.packed) & ~np.isin(reports.positions, repeats))

    def _posterior(self, reports: _Reports) -> NDArray[np.float64]:
        reader = self._readers.get(reports.round.id)
        if reader is None:
            reader = self._readers[reports.round.id] = Reader(self._model, reports.spec)
        return reader.posterior(reports.slots, reports.values)


@dataclass(slots=True)
class ReportLabellers:
    """A cache of the labellers of the latest jobs."""

    _cached: "OrderedDict[str, ReportLabeller]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def get(self, job_id: str, document: dict[str, Any]) -> ReportLabeller:
        """Return the labeller of a finished job. Its result never changes."""
        with self._lock:
            if job_id in self._cached:
                self._cached.move_to_end(job_id)
                return self._cached[job_id]
        labeller = ReportLabeller(model_from_wire(document["model"]))
        with self._lock:
            self._cached[job_id] = labeller
            while len(self._cached) > MAX_CACHED:
                self._cached.popitem(last=False)
        return labeller

    def page(
        self, session: Session, job_id: str, document: dict[str, Any], after: Position | None, limit: int
    ) -> tuple[dict[str, Any], Position | None]:
        """Return a page of labels with their expected accuracy, and the position of the next page.

        Raises
        ------
        Conflict
            The job was over records, its reports were deleted, or its model cannot label reports.
        """
        if not document["rounds"]:
            raise Conflict(JOB_OVER_RECORDS)
        used = [session.get(Round, each["id"]) for each in document["rounds"]]
        rounds = [each for each in used if each is not None and report_log.is_any(session, each.id)]
        if not rounds:
            raise Conflict(REPORTS_DELETED)
        labeller = self.get(job_id, document)
        try:
            items, last = labeller.page(session, rounds, after, limit)
            expected, baseline = labeller.expected_accuracy(session, rounds), labeller.baseline
        except InvalidSpec as error:
            raise Conflict(f"this result cannot label reports: {error}") from None
        return {
            "type": "reports",
            "items": items,
            "expected_accuracy": expected,
            "baseline": baseline,
            "caution": caution(expected, baseline),
        }, last


def _read_log(
    session: Session, row: Round, width: int, *, after: report_log.Mark = report_log.START
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield (number of earlier reports, packed reports) for each row of a round's log.

    A truncated row is skipped and not counted, because the reports in it cannot be separated.
    """
    n_before = after.n_before
    for _, data in report_log.batches(session, row.id, after=after.row):
        if len(data) % width == 0:
            packed = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
            yield n_before, packed
            n_before += len(packed)


def _slots(packed: NDArray[np.uint8]) -> NDArray[np.int64]:
    slots = np.ascontiguousarray(packed[:, report_log.ID_BYTES : report_log.HEADER_BYTES])
    return slots.view("<u4")[:, 0].astype(np.int64)


def _well_formed(spec: RoundSpec, packed: NDArray[np.uint8]) -> NDArray[np.bool_]:
    values = np.ascontiguousarray(packed[:, report_log.HEADER_BYTES :])
    return np.asarray((_slots(packed) < spec.encoding.n_slots) & spec.mechanism.are_values(values))


def _find_repeats(session: Session, row: Round, *, at_once: int = IDS_AT_ONCE) -> NDArray[np.int64]:
    """Return the ascending log positions of well-formed reports with repeated ids, by two passes over the log.

    The first pass finds half ids that occur more than once; it splits the ids of a large log into parts.
    The second pass compares the full ids of the reports with these halves.
    """
    if row.n_received == row.n_reports:  # the aggregation found no repeats
        return np.zeros(0, dtype=np.int64)
    spec = row.spec
    width = report_log.HEADER_BYTES + spec.mechanism.value_bytes
    n_parts = max(1, ceil(row.n_received / at_once))
    repeated_halves = [np.zeros(0, dtype=np.uint64)]
    for part in range(n_parts):
        blocks = (_half_ids(packed) for _, packed in _read_log(session, row, width))
        halves = [block[block % np.uint64(n_parts) == part] for block in blocks]
        values, counts = np.unique(np.concatenate(halves or repeated_halves), return_counts=True)
        repeated_halves.append(values[counts > 1])
    candidates = np.concatenate(repeated_halves)
    seen: set[bytes] = set()
    repeats: list[int] = []
    for n_before, packed in _read_log(session, row, width):
        (hits,) = np.nonzero(np.isin(_half_ids(packed), candidates))
        for hit in hits[_well_formed(spec, packed[hits])].tolist():
            report_id = packed[hit, : report_log.ID_BYTES].tobytes()
            if report_id in seen:
                repeats.append(n_before + hit)
            seen.add(report_id)
    return np.array(repeats, dtype=np.int64)


def _half_ids(packed: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the first half of each id, which excludes nearly all unrepeated ids."""
    return np.ascontiguousarray(packed[:, :8]).view("<u8")[:, 0].astype(np.uint64)
