"""Write the generated tables of the documentation: `python -m tools.page_tables`.

The tables of docs/scale.md follow from the rates of the file that also fills docs/speed.md, and from the assumptions in
docs/figures/capacity.json. The parameter tables of docs/algorithms.md and the settings in docs/privacy.md follow from
the SDK's declarations. The terms of docs/glossary.md are those of the console.
"""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.output import fill, table
from service.console.rendering import read_glossary
from sfumato.settings import SETTINGS, all_settings
from sfumato.specs import ALGORITHMS
from sfumato.validation import Parameter, parameters_of

ROOT = Path(__file__).parents[1]
ASSUMPTIONS = ROOT / "docs" / "figures" / "capacity.json"
MEASURED = ROOT / "benchmarks" / "results" / "speed" / "rows.csv"
SCALE, ALGORITHMS_PAGE, GLOSSARY, PRIVACY = (
    ROOT / "docs" / f"{name}.md" for name in ("scale", "algorithms", "glossary", "privacy")
)


def fill_scale(text: str) -> str:
    """Return docs/scale.md with current tables. Raise ValueError if it lacks a block."""
    given = json.loads(ASSUMPTIONS.read_text())
    rates = read_rates(given["rows"])
    tables = {"rates": table_of_rates, "day": table_of_days, "round": table_of_rounds}
    return fill(text, {f"capacity-{name}": compute(given, rates) for name, compute in tables.items()})


def fill_algorithms(text: str) -> str:
    """Return docs/algorithms.md with current tables. Raise ValueError if an algorithm has no block."""
    return fill(text, {f"parameters-{tag}": table_of_parameters(tag) for tag in ALGORITHMS})


def fill_glossary(text: str) -> str:
    """Return docs/glossary.md with current terms."""
    rows = [[f"**{term}**", meaning] for term, meaning in read_glossary().items()]
    return fill(text, {"glossary": table(["term", "meaning"], rows, left=["term", "meaning"])})


def fill_privacy(text: str) -> str:
    """Return docs/privacy.md with the settings of datasets."""
    rows = []
    for name, setting in all_settings().items():
        declared, default = setting.parameter, setting.default
        datasets = setting.applies_to if len(setting.trusts) < len(SETTINGS) else "all"
        shown = "none" if default == () else declared.automatic or _format_default(default) or "required"
        values = "" if declared.is_object else _format_values(declared)
        rows.append([f"`{name}`", datasets, shown, values, declared.description])
    heads = ["setting", "datasets", "default", "values", "meaning"]
    return fill(text, {"settings": table(heads, rows, left=heads)})


def read_rates(rows: dict[str, list[str]]) -> dict[str, float]:
    """Return the measured rate of each row in reports per second. Raise KeyError for a row that was not measured."""
    with MEASURED.open(newline="") as file:
        measured = {(row["group"], row["name"]): float(row["ours"]) for row in csv.DictReader(file)}
    return {name: measured[group, row] for name, (group, row) in rows.items()}


def table_of_rates(given: dict[str, Any], rates: dict[str, float]) -> str:
    """Return the rates with the rows of docs/speed.md that they come from."""
    rows = [[": ".join(given["rows"][name]), f"{show(rate)}/s"] for name, rate in rates.items()]
    return _table(["row of [speed](speed.md)", "rate"], rows)


def table_of_days(given: dict[str, Any], rates: dict[str, float]) -> str:
    """Return rates, gateways, waits and shards by the number of reports per day."""
    rows = []
    for per_day in given["reports_per_day"]:
        peak = given["peak_factor"] * per_day / 86_400
        gateways = math.ceil(peak / rates["single"] / given["load"])
        wait = gateways * given["flush_seconds"]
        shards = math.ceil(wait / given["longest_wait_seconds"])
        cores = [f"{peak / rates['single']:.2g}", str(gateways), f"{peak / rates['packed']:.1g}"]
        rows.append([show(per_day), f"{show(peak)}/s", *cores, f"{show(1000 * wait)} ms", str(shards)])
    cores = ["gateway cores, single reports", f"gateways at {given['load']:.0%} load", "gateway cores, packed batches"]
    return _table(["reports per day", "peak", *cores, "commit wait in one round", "shards"], rows)


def table_of_rounds(given: dict[str, Any], rates: dict[str, float]) -> str:
    """Return the temporary space and the seconds of an aggregation by the number of reports of a round."""
    rows = []
    for n in given["reports_per_round"]:
        in_file = max(0.0, n - given["fingerprints_in_memory"]) * given["fingerprint_bytes"]
        times = [f"{float(f'{n / rates[name]:.2g}'):g} s" for name in ("aggregation", "repeats")]
        rows.append([show(n), f"{in_file / 1e9:.1f} GB", *times])
    return _table(["reports of a round", "temporary file", "aggregation", "with 1 % repeats"], rows)


def table_of_parameters(tag: str) -> str:
    """Return the parameters of an algorithm."""
    algorithm = ALGORITHMS[tag]
    defaults = {each.name: each.default for each in fields(algorithm)}
    rows = []
    for name, parameter in parameters_of(algorithm).items():
        values = _format_values(parameter)
        unit = f" Unit: {parameter.unit}." if parameter.unit else ""
        default = parameter.automatic or _format_default(defaults[name])
        rows.append([f"`{name}`", default, values, f"{parameter.description}{unit}"])
    heads = ["parameter", "default", "values", "meaning"]
    return table(heads, rows, left=heads)


def show(number: float) -> str:
    """Return a number with three significant digits and thousands separators."""
    return f"{float(f'{number:.3g}'):,.0f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(heads, rows, left=heads[:1])


def _format_values(parameter: Parameter) -> str:
    by_kind = {bool: "true, false", str: "text"}
    return (
        ", ".join(f"`{each}`" for each in parameter.choices) or parameter.range_text or by_kind.get(parameter.kind, "")
    )


def _format_default(value: object) -> str:
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else ""


PAGES = (
    (SCALE, fill_scale),
    (ALGORITHMS_PAGE, fill_algorithms),
    (GLOSSARY, fill_glossary),
    (PRIVACY, fill_privacy),
)

if __name__ == "__main__":
    for page, current in PAGES:
        page.write_text(current(page.read_text()))
