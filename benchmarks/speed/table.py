"""The rows as files: rows.csv as they are made, and from them the Markdown table and the line of JSON."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.quality import rows as files
from benchmarks.speed.row import Row

RESULTS = "rows.csv"
HEADINGS = ("what", "against", "ours", "reference", "ratio", "quartiles", "bar", "")
_SIGNIFICANT = 6
_METRIC = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_OF_A_SECOND = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def read(folder: Path) -> list[Row]:
    """Every row of a folder of results, in the order they were made."""
    return files.read_as(folder / RESULTS, Row)


def add(folder: Path, row: Row) -> None:
    """Put a row at the end of the folder's file."""
    files.add(folder / RESULTS, row, _texts)


def begin_anew(folder: Path, groups: Sequence[str]) -> None:
    """Drop these groups' rows: a group is measured as a whole."""
    path = folder / RESULTS
    kept = [row for row in read(folder) if row.group not in groups]
    path.unlink(missing_ok=True)
    for row in kept:
        add(folder, row)


def json_line(rows: Iterable[Row]) -> str:
    """`[{"name", "ratio", "bar"}, ...]`."""
    told = [{"name": f"{row.group}: {row.name}", "ratio": round(row.ratio, 4), "bar": row.bar} for row in rows]
    return json.dumps(told, allow_nan=False)


def markdown(rows: Sequence[Row], *, notes: bool = True) -> str:
    """A table, and below it what must be known to read it."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---:|---:|---:|---|---:|---|"]
    found: list[str] = []
    for row in rows:
        mark = ""
        if notes and row.note:
            found += [] if row.note in found else [row.note]
            mark = f" [{found.index(row.note) + 1}]"
        lines.append(f"| {' | '.join(_cells(row, mark))} |")
    listed = [f"{number}. {note}" for number, note in enumerate(found, 1)]
    return "\n".join([*lines, *([""] if listed else []), *listed]) + "\n"


def document(rows: Sequence[Row], heads: dict[str, str], machine: str) -> str:
    """Every group's table under its heading, the machine first, what is not met last."""
    parts = [machine]
    for group, head in heads.items():
        ours = [row for row in rows if row.group == group]
        if ours:
            parts.append(f"## {group}\n\n{head}\n\n{markdown(ours)}")
    return "\n".join([*parts, unmet(rows)])


def unmet(rows: Sequence[Row]) -> str:
    """What falls short of its bar, one line each."""
    barred = [row for row in rows if row.bar is not None]
    short = [row for row in barred if not row.is_met]
    if not short:
        return f"All {len(barred)} bars are met.\n"
    lines = [f"- {row.group}, {row.name}: {row.ratio:.3g}, the bar is {row.bar:g}" for row in short]
    return "\n".join([f"{len(barred) - len(short)} of {len(barred)} bars are met; not met:", "", *lines, ""])


def figure(value: float, unit: str) -> str:
    """A number with its unit, as people say it: three digits."""
    if unit == "s":
        scale, name = next((pair for pair in _OF_A_SECOND if abs(value) >= pair[0]), _OF_A_SECOND[-1])
        return f"{_three(value / scale)} {name}"
    if unit.endswith("/s") or unit in ("", "bytes"):
        scale, name = next((pair for pair in _METRIC if abs(value) >= pair[0]), _METRIC[-1])
        return f"{_three(value / scale)} {name}{unit}".rstrip()
    return f"{_three(value)} {unit}"


def _cells(row: Row, mark: str) -> list[str]:
    said = "" if row.bar is None else "met" if row.is_met else "**not met**"
    return [
        row.name + mark,
        row.reference,
        figure(row.ours, row.unit),
        figure(row.theirs, row.unit),
        _three(row.ratio),
        f"{_three(row.low)} to {_three(row.high)}" if row.turns > 1 else "one turn",
        "" if row.bar is None else f"{row.bar:g}",
        said,
    ]


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _texts(values: Iterable[Any]) -> list[Any]:
    """Six digits that count, whatever the size: a kernel takes microseconds."""
    return [
        "" if value is None else f"{value:.{_SIGNIFICANT}g}" if isinstance(value, float) else value for value in values
    ]
