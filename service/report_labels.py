"""Which cluster each kept report of a job came from, in pages: the log, read again, and the published model.

Stateless but for what the newest few jobs' reports are read by, which follows from their
results and logs alone: neither changes any more. A report id counts once, as in the fold:
the first well-formed report in log order.
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

from models import report
from models.errors import Conflict
from models.round import Round
from sfumato import mechanisms
from sfumato.cluster_model import ClusterModel, model_from_wire
from sfumato.errors import InvalidSpec
from sfumato.posterior import Reader
from sfumato.specs import RoundSpec

MAX_HELD = 4  # jobs whose readers are held
IDS_AT_ONCE = 1 << 22  # halves of ids in memory at once, 32 MB
REPORTS_A_MARK = 1000  # of a log, passed over at most to find a page's first row
SUMMED_REPORTS = 10_000  # of each round, the first, that stand for all in the expected accuracy

GONE = (
    "this job's reports were removed once they were counted: let devices label themselves with the published model "
    "(assign), or set keep_reports on the dataset before the next collection"
)
OVER_RECORDS = "a job over records names no record's cluster: label points you hold with the published model (assign)"

Place = tuple[int, int]  # which of the job's rounds, and how many reports of its log come before: no row of the log


def caution(expected_accuracy: float, baseline: float) -> str:
    """How little such labels are worth, in two sentences."""
    return (
        f"Named from a report alone, {100 * expected_accuracy:.1f} % of the people are named right, if the model is; "
        f"always naming the largest cluster is right for {100 * baseline:.1f} %. Reports are blurred so that nobody "
        "can tell: let devices label themselves with the published model (assign)."
    )


@dataclass(frozen=True, slots=True)
class _Reports:
    """Some reports of one round, in log order."""

    of: Round
    spec: RoundSpec
    places: NDArray[np.int64]  # how many reports of the log come before each
    records: NDArray[np.uint8]  # (n, 20 + value_bytes)

    @property
    def ids(self) -> list[bytes]:
        return [record[: report.ID_BYTES].tobytes() for record in self.records]

    @property
    def slots(self) -> NDArray[np.int64]:
        return _slots(self.records)

    @property
    def values(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.records[:, report.HEADER_BYTES :])

    def where(self, mask: NDArray[np.bool_]) -> "_Reports":
        return _Reports(self.of, self.spec, self.places[mask], self.records[mask])


class Labeller:
    """Labels the reports of one finished job.

    Parameters
    ----------
    model : ClusterModel
        As published.
    """

    def __init__(self, model: ClusterModel) -> None:
        self._model = model
        self._readers: dict[str, Reader] = {}
        self._repeats: dict[str, NDArray[np.int64]] = {}
        self._marks: dict[str, list[report.Mark]] = {}
        self._expected: float | None = None

    @property
    def baseline(self) -> float:
        """The share of the largest cluster."""
        return float(self._model.sizes.max())

    def page(
        self, session: Session, rounds: Sequence[Round], after: Place | None, limit: int
    ) -> tuple[list[dict[str, Any]], Place | None]:
        """Labels of the next reports of the log, at most so many, and where to go on; None at its end."""
        items: list[dict[str, Any]] = []
        n_left = limit
        index, first = (0, 0) if after is None else after
        while index < len(rounds):
            taken = self._take(session, rounds[index], first, n_left + 1)
            if len(taken.places) > n_left:  # there is more
                cut = taken.where(np.arange(len(taken.places)) < n_left)
                return items + self._labels(session, cut), (index, first + n_left)
            items += self._labels(session, taken)
            n_left -= len(taken.places)
            index, first = index + 1, 0
        return items, None

    def expected_accuracy(self, session: Session, rounds: Sequence[Round]) -> float:
        """Mean confidence: of the first 10,000 reports of each round, weighted by the rounds' reports."""
        if self._expected is None:
            total, n_all = 0.0, 0
            for each in rounds:
                some = self._counted(session, self._take(session, each, 0, SUMMED_REPORTS))
                if len(some.places):
                    weight = each.n_reports or 0
                    total += weight * float(self._posterior(some).max(axis=1).mean())
                    n_all += weight
            self._expected = total / n_all if n_all else self.baseline
        return self._expected

    def _take(self, session: Session, of: Round, first: int, n: int) -> _Reports:
        """The next `n` reports of a round's log after its first ones, so many; well-formed or not."""
        spec = of.spec
        width = report.HEADER_BYTES + mechanisms.value_bytes(spec.mechanism)
        parts = [np.zeros((0, width), dtype=np.uint8)]
        n_taken = 0
        for n_before, records in _rows(session, of, width, after=self._mark(session, of, width, first)):
            part = records[max(0, first - n_before) :][: n - n_taken]
            parts.append(part)
            n_taken += len(part)
            if n_taken == n:
                break
        return _Reports(of, spec, np.arange(first, first + n_taken), np.concatenate(parts))

    def _mark(self, session: Session, of: Round, width: int, first: int) -> report.Mark:
        """From where on to read a log for what follows its first reports: close before it, however long it is."""
        if first < REPORTS_A_MARK:
            return report.START
        marks = self._marks.get(of.id)
        if marks is None:
            marks = self._marks[of.id] = report.marks(session, of.id, width, every=REPORTS_A_MARK)
        at = bisect_right(marks, first, key=lambda mark: mark.n_before)
        return marks[at - 1] if at else report.START

    def _labels(self, session: Session, taken: _Reports) -> list[dict[str, Any]]:
        reports = self._counted(session, taken)
        chances = self._posterior(reports)
        labels = chances.argmax(axis=1) if len(chances) else np.zeros(0, dtype=np.int64)
        return [
            {"report_id": report_id.hex(), "round_id": reports.of.id, "cluster": label, "confidence": confidence}
            for report_id, label, confidence in zip(
                reports.ids, labels.tolist(), chances.max(axis=1, initial=0.0).tolist(), strict=True
            )
        ]

    def _counted(self, session: Session, taken: _Reports) -> _Reports:
        """Those that the fold counted: well-formed, and the first with their id."""
        if not len(taken.places):
            return taken
        repeats = self._repeats.get(taken.of.id)
        if repeats is None:
            repeats = self._repeats[taken.of.id] = _repeats(session, taken.of)
        return taken.where(_well_formed(taken.spec, taken.records) & ~np.isin(taken.places, repeats))

    def _posterior(self, reports: _Reports) -> NDArray[np.float64]:
        reader = self._readers.get(reports.of.id)
        if reader is None:
            reader = self._readers[reports.of.id] = Reader(self._model, reports.spec)
        return reader.posterior(reports.slots, reports.values)


@dataclass(slots=True)
class Labellers:
    """The labellers of the jobs asked about last."""

    _held: "OrderedDict[str, Labeller]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def of(self, job_id: str, document: dict[str, Any]) -> Labeller:
        """The labeller of a finished job; its result never changes."""
        with self._lock:
            if job_id in self._held:
                self._held.move_to_end(job_id)
                return self._held[job_id]
        made = Labeller(model_from_wire(document["model"]))
        with self._lock:
            self._held[job_id] = made
            while len(self._held) > MAX_HELD:
                self._held.popitem(last=False)
        return made

    def page(
        self, session: Session, job_id: str, document: dict[str, Any], after: Place | None, limit: int
    ) -> tuple[dict[str, Any], Place | None]:
        """A page of labels with what they are worth, and where to go on.

        Raises
        ------
        Conflict
            It was a job over records, no report is kept, or the model cannot label them.
        """
        if not document["rounds"]:
            raise Conflict(OVER_RECORDS)
        used = [session.get(Round, each["id"]) for each in document["rounds"]]
        rounds = [each for each in used if each is not None and report.is_any(session, each.id)]
        if not rounds:
            raise Conflict(GONE)
        labeller = self.of(job_id, document)
        try:
            items, last = labeller.page(session, rounds, after, limit)
            expected, baseline = labeller.expected_accuracy(session, rounds), labeller.baseline
        except InvalidSpec as error:
            raise Conflict(f"reports cannot be labelled by this result: {error}") from None
        return {
            "type": "reports",
            "items": items,
            "expected_accuracy": expected,
            "baseline": baseline,
            "caution": caution(expected, baseline),
        }, last


def _rows(
    session: Session, of: Round, width: int, *, after: report.Mark = report.START
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Rows of the log, and how many reports come before each.

    One that was cut short is left out, and counts for none: no report in it can be told from its neighbour.
    """
    n_before = after.n_before
    for _, packed in report.batches(session, of.id, after=after.row):
        if len(packed) % width == 0:
            records = np.frombuffer(packed, dtype=np.uint8).reshape(-1, width)
            yield n_before, records
            n_before += len(records)


def _slots(records: NDArray[np.uint8]) -> NDArray[np.int64]:
    held = np.ascontiguousarray(records[:, report.ID_BYTES : report.HEADER_BYTES])
    return held.view("<u4")[:, 0].astype(np.int64)


def _well_formed(spec: RoundSpec, records: NDArray[np.uint8]) -> NDArray[np.bool_]:
    values = np.ascontiguousarray(records[:, report.HEADER_BYTES :])
    return np.asarray((_slots(records) < spec.encoding.n_slots) & mechanisms.are_values(spec.mechanism, values))


def _repeats(session: Session, of: Round, *, at_once: int = IDS_AT_ONCE) -> NDArray[np.int64]:
    """Places in the log of well-formed reports whose id came before, ascending: by two looks at it.

    The first finds which halves of ids come more than once, in parts of the log's ids where they are
    many; the second looks at the reports that have one of those.
    """
    if of.n_received == of.n_reports:  # the fold found none
        return np.zeros(0, dtype=np.int64)
    spec = of.spec
    width = report.HEADER_BYTES + mechanisms.value_bytes(spec.mechanism)
    n_parts = max(1, ceil(of.n_received / at_once))
    suspects = [np.zeros(0, dtype=np.uint64)]
    for part in range(n_parts):
        rows = (_heads(records) for _, records in _rows(session, of, width))
        here = [heads[heads % np.uint64(n_parts) == part] for heads in rows]
        heads, counts = np.unique(np.concatenate(here or suspects), return_counts=True)
        suspects.append(heads[counts > 1])
    twice = np.concatenate(suspects)
    seen: set[bytes] = set()
    repeated: list[int] = []
    for n_before, records in _rows(session, of, width):
        (hits,) = np.nonzero(np.isin(_heads(records), twice))
        for place in hits[_well_formed(spec, records[hits])].tolist():
            report_id = records[place, : report.ID_BYTES].tobytes()
            if report_id in seen:
                repeated.append(n_before + place)
            seen.add(report_id)
    return np.array(repeated, dtype=np.int64)


def _heads(records: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The first half of each id: enough to pass over nearly all that come once."""
    return np.ascontiguousarray(records[:, :8]).view("<u8")[:, 0].astype(np.uint64)
