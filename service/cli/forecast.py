"""Print the cost and accuracy of an algorithm as a table or as JSON, without a service: `sfumato forecast`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from service.cli.common import print_json
from sfumato.errors import InvalidSpec
from sfumato.forecast import (
    Forecast,
    RecordsForecast,
    RoundForecast,
    forecast,
    forecast_records,
    forecast_release_mu2,
    forecast_releases,
    forecast_to_wire,
    local_epsilon_for,
    records_forecast_to_wire,
    reports_needed,
    resolve,
    resolve_central,
)
from sfumato.forecast.families import Family
from sfumato.privacy.accountant import Cost
from sfumato.privacy.accounting import ATTO, NANO, format_delta, format_epsilon, parse_delta, parse_epsilon
from sfumato.privacy.gaussian_privacy import PICO, epsilon_of
from sfumato.specs import (
    Algorithm,
    CentralAlgorithm,
    Feature,
    central_algorithm_from_wire,
    check_periodic,
    circles_of,
    local_algorithm_from_wire,
)
from sfumato.specs.attributes import Categorical

MANY_JOBS = 10  # jobs of which the cost together is printed


@dataclass(frozen=True, slots=True)
class ReleaseOptions:
    """Options about the releases of a shuffler. Without `honest_share`, the reports are not shuffled."""

    honest_share: float | None
    min_batch: int | None
    delta: float
    epsilon: float | None

    def terms(self, n_reports: int) -> dict[str, Any]:
        """Return the terms of the releases as arguments of `forecast_releases`."""
        return {
            "min_batch": n_reports if self.min_batch is None else self.min_batch,
            "honest_share": Fraction(str(self.honest_share)),
            "delta_atto": parse_delta(self.delta),
        }


def print_forecast(
    kind: str,
    epsilon: float | None,
    clusters: int | None,
    n_features: int,
    *,
    n_periodic: int,
    n_categories: Sequence[int],
    n_reports: int | None,
    n_records: int | None,
    delta: float,
    shape: str | None,
    family: Family | None,
    occupied_share: float | None,
    as_json: bool,
    console: Console,
    releases: ReleaseOptions,
    **targets: float | None,
) -> None:
    """Print the forecast of an algorithm with its default parameters, over reports or over records.

    Parameters
    ----------
    kind : str
        Type of the algorithm.
    n_periodic : int
        Number of the features that are periodic. A shifted grid has one cell less along each of them.
    n_categories : sequence of int
        Over reports: number of categories of each clustering attribute.
    n_reports, n_records : int or None
        Expected size; exactly one is not None.
    shape : str or None
        Shape of interest, for `auto`.
    family : {"compact", "elongated", "curved", "many_small"} or None
        Family of the data, if it is known.
    occupied_share : float or None
        Over records: part of the bounds that the data occupy, if it is known.
    releases : ReleaseOptions
        Shuffled reports: terms of the releases, and their cost in place of `epsilon`.
    **targets
        Arguments of `reports_needed`, of which at most one is not None.

    Raises
    ------
    InvalidSpec
        The algorithm or the combination of the arguments is not valid.
    """
    if (epsilon is None) == (releases.epsilon is None):
        raise InvalidSpec("give exactly one of --epsilon and --shuffled-epsilon")
    is_shuffled = releases.honest_share is not None
    if not is_shuffled and (releases.epsilon is not None or releases.min_batch is not None):
        raise InvalidSpec("--shuffled-epsilon and --min-batch must come with --honest-share: add it")
    has_target = any(value is not None for value in targets.values())
    wire: dict[str, object] = {"type": kind, "epsilon": 1.0 if epsilon is None else epsilon}
    if clusters is not None:
        wire["clusters"] = clusters
    if shape is not None:
        wire["shape"] = shape
    if n_reports is not None and n_records is None:
        if delta:
            raise InvalidSpec("--delta must come with --records: add it, or remove --delta")
        local, attributes = local_algorithm_from_wire(wire), _declare_attributes(n_categories)
        circles = _find_circles(resolve(local, n_features, n_reports, attributes)[0], n_features, n_periodic)
        over: dict[str, Any] = {"n_features": n_features, "expected_reports": n_reports}
        over |= {"circles": circles, "attributes": attributes}
        releases_cost = None
        if is_shuffled:
            terms = over | releases.terms(n_reports)
            if releases.epsilon is not None:
                found_nano = local_epsilon_for(local, parse_epsilon(releases.epsilon), **terms)
                local = replace(local, epsilon=found_nano / NANO)
            releases_cost = Cost(*forecast_releases(local, **terms), _forecast_mu2(local, terms))
        if occupied_share is not None:
            raise InvalidSpec("--occupied-share must come with --records: add it, or remove --occupied-share")
        found = forecast(local, family=family, **over)
        if has_target:
            needed = reports_needed(local, n_features, attributes=attributes, **cast(dict[str, Any], targets))
            found = replace(found, needed=needed)
        _print_local(found, releases_cost, as_json=as_json, console=console)
    elif n_records is not None and n_reports is None:
        if is_shuffled:
            raise InvalidSpec("--honest-share is not available with --records")
        if has_target:
            raise InvalidSpec("--quality, --size-error and --detectable-mass are not available with --records")
        if n_categories:
            raise InvalidSpec("--categories must come with --reports: over records, count each category as a feature")
        central = central_algorithm_from_wire(wire | ({"delta": delta} if delta else {}))
        _find_circles(resolve_central(central, n_features)[0], n_features, n_periodic)
        found_records = forecast_records(
            central, n_features=n_features, expected_records=n_records, family=family, occupied_share=occupied_share
        )
        _print_central(found_records, as_json=as_json, console=console)
    else:
        raise InvalidSpec("give exactly one of --reports and --records")


def _declare_attributes(n_categories: Sequence[int]) -> tuple[Categorical, ...]:
    """Return one clustering attribute for each number of categories. Raise InvalidSpec."""
    return tuple(
        Categorical(f"attribute {place}", tuple(map(str, range(n))), use="cluster")
        for place, n in enumerate(n_categories, 1)
    )


def _find_circles(algorithm: Algorithm | CentralAlgorithm, n_features: int, n_periodic: int) -> tuple[int, ...]:
    """Return the indices of the periodic features. Raise InvalidSpec if the algorithm does not take them."""
    algorithm.require_features(n_features)
    if n_periodic > n_features:
        raise InvalidSpec(f"--periodic must be at most {n_features}, the number of --features, not {n_periodic}")
    features = [Feature(f"feature {i}", 0.0, 1.0, periodic=i <= n_periodic) for i in range(1, n_features + 1)]
    check_periodic(algorithm, features)
    return circles_of(features)


def _forecast_mu2(algorithm: Algorithm, terms: dict[str, Any]) -> int:
    """Return mu^2 of a job's releases; 0 if no mu^2 covers them."""
    try:
        return forecast_release_mu2(algorithm, **terms)
    except InvalidSpec:
        return 0


def _print_local(found: Forecast, releases: Cost | None, *, as_json: bool, console: Console) -> None:
    if as_json:
        shuffled = {}
        if releases is not None:
            nano, atto, mu2 = releases
            shuffled = {"shuffled": {"epsilon": nano / NANO, "delta": atto / ATTO, "mu2": mu2 / PICO if mu2 else None}}
        print_json(forecast_to_wire(found) | shuffled)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in _rows(found, releases):
        table.add_row(name, value)
    console.print(table)
    insufficient = [] if found.insufficient is None else [found.insufficient.reason]
    for sentence in (*([found.reason] if found.reason else insufficient), *found.warnings):
        console.print(f"- {sentence}")
    if found.needed is not None:
        console.print(f"- {found.needed.reason}")


def _print_central(found: RecordsForecast, *, as_json: bool, console: Console) -> None:
    if as_json:
        print_json(records_forecast_to_wire(found))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("algorithm", found.algorithm.type)
    delta = f" and δ = {format_delta(found.delta_atto)}" if found.delta_atto else ""
    table.add_row("cost", f"at most ε = {format_epsilon(found.epsilon_nano)}{delta} of the dataset's budget")
    table.add_row("clusters to find", str(found.expected.clusters or "estimated"))
    if found.expected.ratio is not None:
        band = f"{found.expected.lower:.3g} to {found.expected.upper:.3g}"
        table.add_row("squared error relative to k-means without noise", f"{found.expected.ratio:.3g} ({band})")
    for each in found.expected.families:
        band = f"{each.lower:.3g} to {each.upper:.3g}"
        table.add_row(f"  if clusters are {each.family.replace('_', ' and ')}", f"{each.ratio:.3g} ({band})")
    table.add_row("verdict", found.expected.verdict.value)
    console.print(table)
    for sentence in (*([found.reason] if found.reason else []), *found.expected.warnings):
        console.print(f"- {sentence}")


def _rows(found: Forecast, releases: Cost | None) -> Iterator[tuple[str, str]]:
    yield "algorithm", found.algorithm.type
    yield "cost per device", f"ε = {format_epsilon(found.epsilon_nano)}"
    if releases is not None:
        nano, atto, mu2 = releases
        yield "cost of its releases towards the service", f"ε = {format_epsilon(nano)}, δ = {format_delta(atto)}"
        together = epsilon_of(MANY_JOBS * mu2, MANY_JOBS * atto) if mu2 and MANY_JOBS * atto < ATTO else None
        if together is not None:
            amounts = f"ε = {format_epsilon(together)}, δ = {format_delta(2 * MANY_JOBS * atto)}"
            yield f"  {MANY_JOBS} such jobs, with Gaussian accounting", amounts
    for number, each in enumerate(found.rounds, 1):
        yield f"round {number}", _describe_round(each)
    yield "effective reports", f"{found.n_eff:,.0f}"
    if found.detectable_mass is not None:
        yield "smallest detectable cluster", f"{100 * found.detectable_mass:.3g} % of the people"
    yield "smallest gap between two clusters", f"{100 * found.gap_mass:.3g} % of the people"
    if found.size_error is not None:
        yield "error of a cluster's size", f"± {100 * found.size_error:.2g} % of the people"
    if found.centre_error is not None:
        yield "error of a cluster's centre", f"± {100 * found.centre_error:.2g} % of the range"
    if found.quality is not None:
        band = found.quality
        yield "adjusted Rand index", f"{band.median:.2f} (quartiles {band.lower:.2f} to {band.upper:.2f})"
    for row in found.families:
        quartiles = f"{row.median:.2f} (quartiles {row.lower:.2f} to {row.upper:.2f})"
        yield f"  if clusters are {row.family.replace('_', ' and ')}", quartiles
    yield "verdict", found.verdict.value


def _describe_round(each: RoundForecast) -> str:
    limit = "at most " if each.adapts else ""
    over = "vectors" if each.n_symbols is None else f"{limit}{each.n_symbols} symbols"
    return f"{100 * each.share:.3g} % of the devices, {each.mechanism} over {over}, {limit}{each.report_bytes} bytes"
