"""The file of the centroids' results: one row a run; means over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import pstdev
from typing import Any

from benchmarks.quality.rows import mean, read_as

MEASURES = (
    "f_measure",
    "entropy",
    "ari",
    "rmse",
    "nicv_ratio",
    "report_f_measure",
    "report_ari",
    "report_ari_true",
    "seconds",
    "time_ratio",
    "loop_ratio",
    "device_seconds",
)


@dataclass(frozen=True)
class CentroidRun:
    """What is measured: together with the software, what tells rows apart."""

    method: str
    set: str
    n: int
    epsilon: float | None  # None: not private
    seed: int


@dataclass(frozen=True)
class CentroidRow:
    """One line of centroids.csv; measures of a run that was refused are None, see `note`."""

    method: str
    set: str
    n: int
    n_features: int
    clusters: int
    epsilon: float | None
    seed: int
    f_measure: float | None = None  # of the labels devices give their true points, as all down to nicv_ratio
    entropy: float | None = None  # bits
    ari: float | None = None
    rmse: float | None = None  # of a coordinate, a share of its range; against true means, or k-means' centres
    nicv_ratio: float | None = None  # over the NICV of the non-private k-means
    report_f_measure: float | None = None  # of labels that the server gives noisy reports
    report_ari: float | None = None
    report_ari_true: float | None = None  # the same, by the true means or k-means' centres
    seconds: float | None = None  # CPU time of the server
    time_ratio: float | None = None  # over non-private FCM's on the same array: the noisy reports, or the points
    loop_ratio: float | None = None  # the same of the bare iterations: one start, one tolerance, no errors of the fit
    device_seconds: float | None = None  # CPU time of all devices
    bound: float | None = None  # no unbiased private estimate's RMSE is below
    mark: str = ""
    version: str = ""
    note: str = ""

    @property
    def run(self) -> CentroidRun:
        return CentroidRun(self.method, self.set, self.n, self.epsilon, self.seed)


@dataclass(frozen=True)
class CentroidSummary:
    """One line of centroids-summary.csv: means over seeds, and the deviation of what is quoted."""

    method: str
    set: str
    n: int
    n_features: int
    clusters: int
    epsilon: float | None
    mark: str
    runs: int
    refused: int
    f_measure: float | None
    entropy: float | None
    ari: float | None
    rmse: float | None
    nicv_ratio: float | None
    report_f_measure: float | None
    report_ari: float | None
    report_ari_true: float | None
    seconds: float | None
    time_ratio: float | None
    loop_ratio: float | None
    device_seconds: float | None
    bound: float | None
    ari_sd: float | None
    rmse_sd: float | None
    nicv_ratio_sd: float | None


def read(path: Path) -> list[CentroidRow]:
    """Rows of a results file; none where there is no file. Lines that were cut short are left out."""
    return read_as(path, CentroidRow)


def summarise(rows: Iterable[CentroidRow]) -> list[CentroidSummary]:
    """Means over seeds, in the order the rows first appear."""
    groups: dict[tuple[Any, ...], list[CentroidRow]] = {}
    for row in rows:
        groups.setdefault((row.method, row.set, row.n, row.epsilon, row.mark), []).append(row)
    return [_summary(group) for group in groups.values()]


def _summary(group: Sequence[CentroidRow]) -> CentroidSummary:
    first = group[0]
    answered = [row for row in group if row.ari is not None]
    means = {measure: mean([getattr(row, measure) for row in answered]) for measure in MEASURES}
    spread = {f"{name}_sd": _deviation([getattr(row, name) for row in answered]) for name in _SPREAD}
    return CentroidSummary(
        first.method,
        first.set,
        first.n,
        first.n_features,
        first.clusters,
        first.epsilon,
        first.mark,
        len(group),
        len(group) - len(answered),
        bound=first.bound,
        **means,
        **spread,
    )


_SPREAD = ("ari", "rmse", "nicv_ratio")


def _deviation(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return pstdev(known) if known else None
