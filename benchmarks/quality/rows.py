"""The file of results: one row a run, added as it is made, so that a run can be taken up again."""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AnyRow = TypeVar("AnyRow", bound="DataclassInstance")

Way = Literal["given", "auto", "tuned"]
MEASURES = ("ari", "accuracy", "purity", "fmi")


@dataclass(frozen=True)
class Run:
    """What is measured: together with the software, what tells rows apart.

    Attributes
    ----------
    epsilon : float or None
        None where it means nothing to the method.
    k : {'given', 'auto', 'tuned'}
        Whether the method was told K; `tuned` saw the truth.
    """

    method: str
    set: str
    n: int
    epsilon: float | None
    seed: int
    k: Way


@dataclass(frozen=True)
class Row:
    """One line of results.csv."""

    method: str
    set: str
    n: int
    epsilon: float | None
    seed: int
    k: Way
    ari: float | None  # None: the run was refused, see `note`
    accuracy: float | None
    purity: float | None
    fmi: float | None
    seconds: float  # of fitting, devices included
    n_clusters: int
    mark: str  # behind the set's name: `*` resampled, `†` scored against exact counts
    version: str
    note: str = ""

    @property
    def run(self) -> Run:
        return Run(self.method, self.set, self.n, self.epsilon, self.seed, self.k)


@dataclass(frozen=True)
class Summary:
    """One line of summary.csv: mean and standard deviation over seeds."""

    method: str
    set: str
    n: int
    epsilon: float | None
    k: Way
    runs: int
    refused: int
    ari: float | None
    ari_sd: float | None
    accuracy: float | None
    accuracy_sd: float | None
    purity: float | None
    purity_sd: float | None
    fmi: float | None
    fmi_sd: float | None
    seconds: float
    n_clusters: float
    mark: str


def read(path: Path) -> list[Row]:
    """Rows of a results file; none where there is no file.

    A line that was cut short by a crash is left out, and its run is made again.
    """
    return [_row(line) for line in whole_lines(path)]


def whole_lines(path: Path) -> list[dict[str, str]]:
    """The lines of a results file by their headings; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [line for line in csv.DictReader(file) if None not in line.values() and None not in line]


def read_as(path: Path, kind: "type[AnyRow]") -> "list[AnyRow]":
    """Rows of a results file as a dataclass of texts, whole and other numbers; lines that lack a field are left out."""
    types = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    return [
        kind(**{name: _value(line[name], types[name]) for name in names})
        for line in whole_lines(path)
        if set(names) <= set(line)
    ]


def _value(text: str, kind: Any) -> Any:
    if kind is str:
        return text
    if kind is int:
        return int(text)
    return float(text) if text else None


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def add(path: Path, row: "DataclassInstance", as_text: Callable[[Iterable[Any]], list[Any]] | None = None) -> None:
    """Put a row at the end of a results file, with its heading where it begins the file; `plain` says what it holds."""
    begins = not path.exists()
    if not begins and not path.read_bytes()[-1:].endswith(b"\n"):
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")  # after a line that was cut short
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if begins:
            writer.writerow(field.name for field in fields(row))
        writer.writerow((as_text or plain)(astuple(row)))


def summarise(rows: Iterable[Row]) -> list[Summary]:
    """Means and standard deviations over seeds, in the order the rows first appear."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.method, row.set, row.n, row.epsilon, row.k, row.mark), []).append(row)
    return [_summary(key, group) for key, group in groups.items()]


def write_summary(path: Path, summaries: Sequence["DataclassInstance"]) -> None:
    """Write summary.csv: a heading, and a line each; nothing where there is none."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([field.name for field in fields(first)] for first in summaries[:1])
        writer.writerows(plain(astuple(summary)) for summary in summaries)


def _summary(key: tuple[Any, ...], group: list[Row]) -> Summary:
    method, name, n, epsilon, k, mark = key
    answered = [row for row in group if row.ari is not None]
    spread: dict[str, float | None] = {}
    for measure in MEASURES:
        values = [getattr(row, measure) for row in answered]
        spread[measure] = fmean(values) if values else None
        spread[f"{measure}_sd"] = pstdev(values) if values else None
    return Summary(
        method,
        name,
        n,
        epsilon,
        k,
        len(group),
        len(group) - len(answered),
        seconds=fmean(row.seconds for row in group),
        n_clusters=fmean(row.n_clusters for row in group),
        mark=mark,
        **spread,
    )


def _row(line: dict[str, str]) -> Row:
    def number(name: str) -> float | None:
        return float(line[name]) if line[name] else None

    return Row(
        method=line["method"],
        set=line["set"],
        n=int(line["n"]),
        epsilon=number("epsilon"),
        seed=int(line["seed"]),
        k=line["k"],  # type: ignore[arg-type]
        ari=number("ari"),
        accuracy=number("accuracy"),
        purity=number("purity"),
        fmi=number("fmi"),
        seconds=float(line["seconds"]),
        n_clusters=int(line["n_clusters"]),
        mark=line["mark"],
        version=line["version"],
        note=line["note"],
    )


def plain(values: Iterable[Any]) -> list[Any]:
    """What a line holds: five decimals, nothing for None."""
    return ["" if value is None else f"{value:.5f}" if isinstance(value, float) else value for value in values]
