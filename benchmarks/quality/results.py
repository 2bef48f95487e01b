"""Result files: one row per run, kept as CSV and read as a pandas frame, and means over seeds."""

import ast
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from clustering import registry
from clustering.central import run

RUN = ("method", "set", "n", "k", "epsilon", "seed")  # identifies a run, as the fields of `runs.Run`
SETTING = ("method", "set", "n", "n_features", "clusters", "mark", "k", "epsilon")  # constant over seeds
TEXTS = ("method", "set", "mark", "k", "version", "note")
DEFAULTS = {"mark": "", "k": "given"}  # values of columns that a file lacks
FLOATS = "%.5f"


def read(path: Path, measures: Sequence[str]) -> pd.DataFrame:
    """Read the rows of a result file, none if it does not exist, without a last line that a crash cut short."""
    columns = [*SETTING, "seed", *measures, "version", "note"]
    text = _whole_lines(path)
    if not text:
        return pd.DataFrame(columns=columns)
    numbers = dict.fromkeys(set(_head(text)) - set(TEXTS), "")  # an empty number is missing, an empty text is not
    frame = pd.read_csv(StringIO(text), dtype=dict.fromkeys(TEXTS, str), keep_default_na=False, na_values=numbers)
    return frame.assign(**{name: text for name, text in DEFAULTS.items() if name not in frame}).reindex(columns=columns)


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a result file, in the order of its head; write the head first if the file is new."""
    frame, text = pd.DataFrame([row]), _whole_lines(path)
    if text:
        frame = frame.reindex(columns=_head(text))
        if path.stat().st_size > len(text.encode()):
            path.write_text(text, encoding="utf-8")
    frame.to_csv(path, mode="a", header=not text, index=False, float_format=FLOATS, lineterminator="\n")


def done(frame: pd.DataFrame) -> set[tuple[Any, ...]]:
    """Return the runs and software versions of all rows: the fields of `RUN`, then the version."""
    rows = frame[[*RUN, "version"]].astype(object)
    return set(rows.where(rows.notna(), None).itertuples(index=False, name=None))


def newest(frame: pd.DataFrame, methods: Collection[str], version_of: Callable[[str], str]) -> pd.DataFrame:
    """Return the rows that may be averaged: one per run, and of one software version per setting.

    The version is the current one if it has a row of the setting, else the version of the last row. Rows of
    methods that are no longer in the table are dropped. Settings keep the order in which they first appear.
    """
    frame = frame[frame.method.isin(methods)]
    settings = frame.groupby(list(SETTING), sort=False, dropna=False)
    current = frame.method.map(version_of)
    has_current = (frame.version == current).groupby(settings.ngroup()).transform("any")
    chosen = frame[frame.version == current.where(has_current, settings.version.transform("last"))]
    order = settings.ngroup()[chosen.index].sort_values(kind="stable").index
    return chosen.loc[order].drop_duplicates(list(RUN), keep="last").reset_index(drop=True)


def summarise(frame: pd.DataFrame, measures: Sequence[str], score: str, spread: Sequence[str]) -> pd.DataFrame:
    """Return one row per setting, set by set: runs, refused runs (without a score), means and standard deviations."""
    groups = frame.groupby(list(SETTING), sort=False, dropna=False)
    counts = pd.DataFrame({"runs": groups.size(), "refused": groups.size() - groups[score].count()})
    deviations = groups[list(spread)].std(ddof=0).add_suffix("_sd")
    summary = pd.concat([counts, groups[list(measures)].agg(_mean), deviations], axis=1).reset_index()
    sets = summary.groupby(["set", "n"], sort=False).ngroup()
    return summary.loc[sets.sort_values(kind="stable").index].reset_index(drop=True)


def _mean(values: pd.Series) -> float:
    known = values.dropna()
    return fmean(known) if len(known) else nan  # rounded once: a mean of decimals may be a tie of the next rounding


def _head(text: str) -> list[str]:
    return text.partition("\n")[0].split(",")


def _whole_lines(path: Path) -> str:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1]


# ---- software versions ----

PACKAGES = ("benchmarks", "clustering")  # published test vectors fix the behaviour of the SDK
# A module that imports every method would tie each method to all others, so its imports count only if it is named.
REGISTRIES = (registry.__name__, run.__name__)


@lru_cache(maxsize=256)
def software_version(*modules: str) -> str:
    """Return `<release>+<8 hex digits>`, which differs once one of these modules or of their imports changes."""
    digest = hashlib.sha256()
    for name, path in sorted(imported(modules).items()):
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return f"{version('sfumato-server')}+{digest.hexdigest()[:8]}"


def imported(modules: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of these modules and of all modules of `PACKAGES` that they import, directly or not."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found or name.split(".")[0] not in PACKAGES or (name in REGISTRIES and name not in modules):
            continue
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:
            spec = None  # `from a.b import c`, where c is not a module
        if spec is None or spec.origin is None:
            continue
        found[name] = Path(spec.origin)
        for node in ast.walk(ast.parse(found[name].read_bytes())):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found
