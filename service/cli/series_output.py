"""Print series, their windows, clusters and events as tables."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console

from service.cli.tables import new_table, plain

if TYPE_CHECKING:
    from sfumato.api.series_resources import (
        Series,
        SeriesEvent,
        SeriesHistory,
        SeriesMap,
        SeriesReleases,
        SeriesRevision,
        Window,
    )
    from sfumato.forecast import SeriesForecast
    from sfumato.forecast.series import Delay, ReleaseCosts


def print_series(console: Console, found: Iterable["Series"]) -> None:
    """Print one row per series, with the cost of a window, a year and the total for one person."""
    numbers = ("windows", "cycle", "ε window", "ε year", "ε charged", "ε total")
    table = new_table("id", "name", "state", "every", *numbers, "next window", numbers=numbers)
    for each in found:
        costs = (each.epsilon_per_window, each.epsilon_per_year, each.epsilon_charged, each.epsilon_total)
        following = "" if each.next_window_at is None else f"{each.next_window_at:%Y-%m-%d %H:%M}"
        plan = each.windows
        cells = (f"{plan.every} in {plan.time_zone}", f"{plan.count:,}", f"{each.cycle:,}")
        table.add_row(each.id, plain(each.name), each.state, *cells, *[f"{cost:g}" for cost in costs], following)
    console.print(table if table.row_count else "There are no series yet.")


def _print_release_costs(console: Console, costs: "ReleaseCosts | SeriesReleases | None") -> None:
    """Print what the releases of a series cost one person towards the service, if it has any."""
    if costs is None:
        return
    of_year = "above 32" if costs.epsilon_per_year is None else f"{costs.epsilon_per_year:g}"
    console.print(
        f"towards the service: ε {costs.epsilon_per_cycle:g} and δ {costs.delta_per_cycle:g} per cycle, "
        f"ε {of_year} and δ {costs.delta_per_year:g} per year"
    )


def print_one_series(console: Console, series: "Series") -> None:
    """Print a series, and what its releases cost."""
    print_series(console, [series])
    _print_release_costs(console, series.releases)


def print_series_forecast(console: Console, forecast: "SeriesForecast") -> None:
    """Print what a series costs one person, and which changes it finds."""
    amounts = (forecast.epsilon_per_window, forecast.epsilon_per_cycle, forecast.epsilon_per_year)
    console.print("ε per window {:g}, per cycle {:g}, per year {:g}".format(*amounts))
    _print_release_costs(console, forecast.releases)
    console.print(f"{forecast.reports_per_window:,} reports per window, {forecast.n_eff:,.0f} effective ones")
    for delay in forecast.delays:
        console.print(f"a gain of {100 * delay.share:g} points: {_describe_delay(delay)}")
    for smallest in forecast.smallest_changes:
        gain = "none" if smallest.share is None else f"{100 * smallest.share:.1f} points"
        console.print(f"smallest gain that {smallest.windows} windows find: {gain}")
    for warning in forecast.warnings:
        console.print(f"Warning: {warning}")


def _describe_delay(delay: "Delay") -> str:
    """Return when a gain is found, with the interval of 80 % of the alarms."""
    if delay.earliest is None:
        return "never found"
    if delay.windows is None:
        return f"usually never found, and after {delay.earliest} windows at the earliest"
    last = " or more, or never" if delay.latest is None else f" to {delay.latest}"
    return f"found after {delay.windows} windows; in 4 of 5 series after {delay.earliest}{last}"


def print_revisions(console: Console, revisions: Iterable["SeriesRevision"]) -> None:
    """Print one row per revision of a series, with its terms."""
    numbers = ("#", "first window", "ε cycle", "cells", "clusters", "devices", "season", "least change")
    table = new_table(*numbers, "created (UTC)", numbers=numbers)
    for each in revisions:
        grid = [each.algorithm.get(name) or "estimated" for name in ("cells", "clusters")]
        cells = (f"{each.epsilon_per_cycle:g}", *map(str, grid), f"{each.target_reports:,}", str(each.season))
        table.add_row(
            str(each.number), str(each.first_window), *cells, f"{each.least_change:g}", f"{each.created_at:%Y-%m-%d}"
        )
    console.print(table)


def print_windows(console: Console, windows: Iterable["Window"]) -> None:
    """Print one row per window."""
    table = new_table("#", "cycle", "state", "opens (UTC)", "closes (UTC)", "reports", "job", "reason", numbers=("#",))
    for each in windows:
        times = [f"{at:%Y-%m-%d %H:%M}" for at in (each.opens_at, each.closes_at)]
        reports = "" if each.n_reports is None else f"{each.n_reports:,}"
        reason = plain(each.reason or "")
        table.add_row(str(each.index), str(each.cycle), each.state, *times, reports, each.job_id or "", reason)
    console.print(table if table.row_count else "There are no windows.")


def print_clusters(console: Console, history: "SeriesHistory") -> None:
    """Print one row per cluster of a series, newest first, with its share in the last window that has clusters."""
    last = next((each.clusters for each in reversed(history.windows) if each.clusters is not None), ())
    shares = {each.cluster_id: f"{100 * each.share:.1f} ± {100 * each.error:.1f} %" for each in last}
    table = new_table("id", "name", "share", "born in", "gone in", "part of", numbers=("share", "born in", "gone in"))
    for each in reversed(history.clusters):
        gone = "" if each.gone_in is None else str(each.gone_in)
        name = plain(each.name)
        table.add_row(each.id, name, shares.get(each.id, ""), str(each.born_in), gone, ", ".join(each.parents))
    console.print(table if table.row_count else "There are no clusters yet.")


def print_events(console: Console, events: Iterable["SeriesEvent"]) -> None:
    """Print one row per event of a series, with what changed."""
    table = new_table("id", "alarm", "change", "what changed", numbers=("alarm",))
    for event in events:
        kinds = [
            f"{each.cluster_id} {each.kind} ({100 * each.size:+.1f} ± {100 * each.error:.1f} %)"
            for each in event.kinds or ()
        ]
        what = "\n".join(kinds) or ("not described yet" if event.kinds is None else "no kind is significant")
        change = f"{event.change} ({event.change_first} to {event.change_last})"
        table.add_row(event.id, str(event.window), change, what)
    console.print(table if table.row_count else "There are no events.")


def print_map(console: Console, found: "SeriesMap") -> None:
    """Print one row per cluster of a map of a series."""
    from sfumato.model.geography import shown_values

    kind = f"{len(found.weights)} windows pooled" if found.pooled else "this window alone"
    console.print(f"Window {found.window}, {kind}{'; ids are provisional' if found.is_provisional else ''}")
    table = new_table("id", "name", "share", "centre", numbers=("share",))
    model = found.model
    for place, cluster_id in enumerate(found.cluster_ids):
        share = f"{100 * model.sizes[place]:.1f} ± {100 * model.size_errors[place]:.1f} %"
        centre = ""
        if model.centroids is not None:
            centre = ", ".join(f"{value:.4g}" for value in shown_values(model.features, model.centroids[place]))
        table.add_row(cluster_id or "", plain(model.names[place] if model.names else ""), share, centre)
    console.print(table)
    for warning in model.warnings:
        console.print(f"Note: {warning}", markup=False)
