"""Result files: rows.csv as a pandas frame, machine.json, the Markdown tables, and the line of JSON.

A row has the group and the fields of `Measurement`.
"""

import json
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.output import table
from benchmarks.speed.harness.measurement import Measurement

RESULTS, MACHINE = "rows.csv", "machine.json"
NUMBERS = ("ours", "theirs", "ratio", "low", "high", "bar")
FLOATS = "%.6g"  # six significant digits, because a kernel takes microseconds
HEADINGS = ("what", "against", "ours", "reference", "ratio", "quartiles", "bar", "")
PACKAGES = (
    "sfumato-server", "numpy", "numba", "scipy", "scikit-learn", "pyarrow", "msgspec", "uvicorn", "uvloop", "httptools",
    "fastapi", "sqlalchemy", "psycopg", "redis", "dask", "distributed",
)  # fmt: skip
_METRIC = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_OF_A_SECOND = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def read(folder: Path) -> pd.DataFrame:
    """Read the rows of a folder in the order in which they were measured."""
    path = folder / RESULTS
    if not path.exists():
        return pd.DataFrame(columns=["group", *Measurement.__dataclass_fields__])
    return pd.read_csv(path, keep_default_na=False, na_values=dict.fromkeys(NUMBERS, ""))


def add(folder: Path, group: str, row: Measurement) -> None:
    """Append a row of a group to the file of the folder."""
    path = folder / RESULTS
    _write(pd.DataFrame([{"group": group, **asdict(row)}]), path, mode="a", header=not path.exists())


def drop_groups(folder: Path, groups: list[str]) -> None:
    """Remove all rows of these groups."""
    rows = read(folder)
    if not rows.empty:
        _write(rows[~rows.group.isin(groups)], folder / RESULTS)


def _write(rows: pd.DataFrame, path: Path, **options: Any) -> None:
    rows.to_csv(path, index=False, float_format=FLOATS, lineterminator="\n", **options)


def json_line(rows: pd.DataFrame) -> str:
    """Return `[{"name", "ratio", "bar"}, ...]`."""
    lines = [
        {
            "name": f"{row.group}: {row.name_}",
            "ratio": round(row.ratio, 4),
            "bar": None if pd.isna(row.bar) else row.bar,
        }
        for row in _tuples(rows)
    ]
    return json.dumps(lines, allow_nan=False)


def markdown(rows: pd.DataFrame) -> str:
    """Return a table, and the numbered notes below it."""
    notes = [note for note in rows.note.unique() if note]
    lines = []
    for row in _tuples(rows):
        mark = f" [{notes.index(row.note) + 1}]" if row.note else ""
        quartiles = f"{_three(row.low)} to {_three(row.high)}" if row.turns > 1 else "one turn"
        figures = [figure(row.ours, row.unit), figure(row.theirs, row.unit), _three(row.ratio), quartiles]
        has_bar = not pd.isna(row.bar)
        bar = [f"{row.bar:g}", "met" if row.ratio >= row.bar else "**not met**"] if has_bar else ["", ""]
        lines.append([row.name_ + mark, row.reference, *figures, *bar])
    numbered = "".join(f"{number}. {note}\n" for number, note in enumerate(notes, 1))
    return table(HEADINGS, lines) + (f"\n{numbered}" if numbered else "")


def missed_bars(rows: pd.DataFrame) -> str:
    """Return a line per row that misses its bar."""
    barred = rows[rows.bar.notna()]
    short = barred[barred.ratio < barred.bar]
    if short.empty:
        return f"All {len(barred)} bars are met.\n"
    lines = [f"- {row.group}, {row.name_}: {row.ratio:.3g}, the bar is {row.bar:g}\n" for row in _tuples(short)]
    return f"{len(barred) - len(short)} of {len(barred)} bars are met; not met:\n\n" + "".join(lines)


def blocks(folder: Path) -> dict[str, str]:
    """Return the content of each block of the page by its name."""
    rows = read(folder)
    if rows.empty:
        return {}
    tables = {f"speed-{group}": markdown(own) for group, own in rows.groupby("group", sort=False)}
    return {"speed-machine": machine_table(folder), **tables, "speed-unmet": missed_bars(rows)}


def figure(value: float, unit: str) -> str:
    """Format a number and its unit with three digits."""
    if unit == "s":
        scale, name = next((pair for pair in _OF_A_SECOND if abs(value) >= pair[0]), _OF_A_SECOND[-1])
        return f"{_three(value / scale)} {name}"
    if unit.endswith("/s") or unit in ("", "bytes"):
        scale, name = next((pair for pair in _METRIC if abs(value) >= pair[0]), _METRIC[-1])
        return f"{_three(value / scale)} {name}{unit}".rstrip()
    return f"{_three(value)} {unit}"


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _tuples(rows: pd.DataFrame) -> Any:
    return rows.rename(columns={"name": "name_"}).itertuples(index=False)  # a tuple of pandas has its own `name`


# ---- the machine ----


def write_machine(folder: Path) -> None:
    """Write processor, memory, kernel and known versions to machine.json, without names and paths."""
    versions = {found.metadata["Name"].lower(): found.version for found in distributions()}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    properties = {
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": str(cores),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load at the beginning": f"{os.getloadavg()[0]:.2f}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {versions[name]}" for name in PACKAGES if name in versions),
    }
    known = {name: text for name, text in properties.items() if text}
    (folder / MACHINE).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def machine_table(folder: Path) -> str:
    """Return machine.json as a table with two columns, empty if the file does not exist."""
    path = folder / MACHINE
    properties = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return table(["machine", ""], [[name, text] for name, text in properties.items()])


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
