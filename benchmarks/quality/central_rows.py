"""The file of the central results: one row a run; means over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import pstdev

from benchmarks.quality.rows import mean, read_as

MEASURES = (
    "nicv_ratio",
    "rcp",
    "f_measure",
    "ari",
    "silhouette",
    "davies_bouldin",
    "calinski_harabasz",
    "sse",
    "seconds",
)


@dataclass(frozen=True)
class CentralRun:
    """What is measured: together with the software, what tells rows apart."""

    method: str
    set: str
    epsilon: float | None  # None: not private
    seed: int


@dataclass(frozen=True)
class CentralRow:
    """One line of central.csv; measures of a run that was refused are None, see `note`."""

    method: str
    set: str
    n: int
    n_features: int
    clusters: int
    epsilon: float | None
    seed: int
    nicv_ratio: float | None = None  # over the NICV of the best non-private k-means
    rcp: float | None = None  # (NICV of EUGk - NICV) / NICV of EUGk, of the same seed
    f_measure: float | None = None
    ari: float | None = None
    silhouette: float | None = None  # of at most 5,000 points, as the next two
    davies_bouldin: float | None = None
    calinski_harabasz: float | None = None
    sse: float | None = None  # in the box [0, 1]^d
    seconds: float | None = None  # CPU time
    version: str = ""
    note: str = ""

    @property
    def run(self) -> CentralRun:
        return CentralRun(self.method, self.set, self.epsilon, self.seed)


@dataclass(frozen=True)
class CentralSummary:
    """One line of central-summary.csv: means over seeds."""

    method: str
    set: str
    n: int
    n_features: int
    clusters: int
    epsilon: float | None
    runs: int
    refused: int
    nicv_ratio_sd: float | None
    nicv_ratio: float | None
    rcp: float | None
    f_measure: float | None
    ari: float | None
    silhouette: float | None
    davies_bouldin: float | None
    calinski_harabasz: float | None
    sse: float | None
    seconds: float | None


def read(path: Path) -> list[CentralRow]:
    """Rows of a results file; none where there is no file. Lines that were cut short are left out."""
    return read_as(path, CentralRow)


def newest(rows: Iterable[CentralRow]) -> list[CentralRow]:
    """Of each run the last row."""
    return list({row.run: row for row in rows}.values())


def summarise(rows: Iterable[CentralRow]) -> list[CentralSummary]:
    """Means over seeds, in the order the rows first appear."""
    groups: dict[tuple[str, str, float | None], list[CentralRow]] = {}
    for row in rows:
        groups.setdefault((row.method, row.set, row.epsilon), []).append(row)
    return [_summary(group) for group in groups.values()]


def _summary(group: Sequence[CentralRow]) -> CentralSummary:
    first, answered = group[0], [row for row in group if row.nicv_ratio is not None]
    ratios = [row.nicv_ratio for row in answered if row.nicv_ratio is not None]
    return CentralSummary(
        first.method,
        first.set,
        first.n,
        first.n_features,
        first.clusters,
        first.epsilon,
        len(group),
        len(group) - len(answered),
        pstdev(ratios) if ratios else None,
        **{measure: mean([getattr(row, measure) for row in answered]) for measure in MEASURES},
    )
