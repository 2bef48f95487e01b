"""`sfumato forecast`: an algorithm's cost and quality as a small table, or as JSON; asks no service."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from sfumato.accounting import format_delta, format_epsilon
from sfumato.errors import InvalidSpec
from sfumato.forecast import (
    Forecast,
    RecordsForecast,
    RoundForecast,
    forecast,
    forecast_records,
    forecast_to_wire,
    records_forecast_to_wire,
    reports_needed,
)
from sfumato.specs import Auto, central_algorithm_from_wire, local_algorithm_from_wire


def tell(
    kind: str,
    epsilon: float,
    clusters: int | None,
    n_features: int,
    *,
    n_reports: int | None,
    n_records: int | None,
    delta: float,
    as_json: bool,
    console: Console,
    **wish: Any,
) -> None:
    """Forecast over reports or over records, whichever is given, and print it; raises InvalidSpec as they do."""
    if n_reports is not None and n_records is None:
        if delta:
            raise InvalidSpec("delta is of algorithms over records: give --records")
        show(made(kind, epsilon, clusters, n_features, n_reports, **wish), as_json=as_json, console=console)
    elif n_records is not None and n_reports is None:
        if any(value is not None for value in wish.values()):
            raise InvalidSpec("a wish asks for reports: over records there is no such answer")
        if delta and kind == Auto.type:
            raise InvalidSpec("auto takes no delta: name what does, --algorithm gated_grid_kmeans")
        asked = _asked(kind, epsilon, clusters) | ({"delta": delta} if delta else {})
        algorithm = central_algorithm_from_wire(asked)
        found = forecast_records(algorithm, n_features=n_features, expected_records=n_records)
        show_over_records(found, as_json=as_json, console=console)
    else:
        raise InvalidSpec("exactly one of --reports and --records is needed")


def _asked(kind: str, epsilon: float, clusters: int | None) -> dict[str, object]:
    asked: dict[str, object] = {"type": kind, "epsilon": epsilon}
    return asked if clusters is None else asked | {"clusters": clusters}


def made(kind: str, epsilon: float, clusters: int | None, n_features: int, n_reports: int, **wish: Any) -> Forecast:
    """The forecast of an algorithm with its default parameters.

    Parameters
    ----------
    kind : str
        The algorithm's type.
    **wish
        At most one of quality, size_error, detectable_mass that is not None.

    Raises
    ------
    InvalidSpec
        What the algorithm cannot take, or more than one wish.
    """
    params = local_algorithm_from_wire(_asked(kind, epsilon, clusters))
    found = forecast(params, n_features=n_features, expected_reports=n_reports)
    if all(value is None for value in wish.values()):
        return found
    return replace(found, needed=reports_needed(params, n_features, **wish))


def show(found: Forecast, *, as_json: bool, console: Console) -> None:
    """Print a forecast."""
    if as_json:
        console.print(json.dumps(forecast_to_wire(found), ensure_ascii=False, indent=2))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in _rows(found):
        table.add_row(name, value)
    console.print(table)
    insufficient = [] if found.insufficient is None else [found.insufficient.reason]
    for sentence in (*([found.reason] if found.reason else insufficient), *found.warnings):
        console.print(f"- {sentence}")
    if found.needed is not None:
        console.print(f"- {found.needed.reason}")


def show_over_records(found: RecordsForecast, *, as_json: bool, console: Console) -> None:
    """Print a forecast over records."""
    if as_json:
        console.print(json.dumps(records_forecast_to_wire(found), ensure_ascii=False, indent=2))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("algorithm", found.algorithm.type)
    delta = f" and δ = {format_delta(found.delta_atto)}" if found.delta_atto else ""
    table.add_row("cost", f"at most ε = {format_epsilon(found.epsilon_nano)}{delta} of the dataset's budget")
    table.add_row("clusters looked for", str(found.expected.clusters))
    if found.expected.ratio is not None:
        band = f"{found.expected.lower:.3g} to {found.expected.upper:.3g}"
        table.add_row("squared error, k-means without noise being 1", f"{found.expected.ratio:.3g} ({band})")
    console.print(table)
    for sentence in (*([found.reason] if found.reason else []), *found.expected.warnings):
        console.print(f"- {sentence}")


def _rows(found: Forecast) -> Iterator[tuple[str, str]]:
    yield "algorithm", found.algorithm.type
    yield "cost of a device", f"ε = {format_epsilon(found.epsilon_nano)}"
    for place, each in enumerate(found.rounds):
        yield f"round {place + 1}", _round(each)
    yield "effective reports", f"{found.n_eff:,.0f}"
    if found.detectable_mass is not None:
        yield "least cluster that stands out", f"{100 * found.detectable_mass:.3g} % of the people"
    yield "least gap that parts two", f"{100 * found.gap_mass:.3g} % of the people"
    if found.size_error is not None:
        yield "a size is known to", f"± {100 * found.size_error:.2g} % of the people"
    if found.centre_error is not None:
        yield "a centre is known to", f"± {100 * found.centre_error:.2g} % of the range"
    if found.quality is not None:
        band = found.quality
        yield "adjusted Rand index", f"{band.median:.2f} (quartiles {band.lower:.2f} to {band.upper:.2f})"
    yield "confidence", found.confidence


def _round(each: RoundForecast) -> str:
    most = "at most " if each.adapts else ""
    over = "vectors" if each.n_symbols is None else f"{most}{each.n_symbols} symbols"
    return f"{100 * each.share:.3g} % of the devices, {each.mechanism} over {over}, {most}{each.report_bytes} bytes"
