"""Weeks of a series within a minute: real windows, rounds, reports and jobs, with a clock that the demo sets.

Devices at four places report in one secret week of each cycle of four. From the middle on, one place has three times as
many people.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from demo.practice import Practice
from sfumato import Client, Feature, ShiftedGrid, perturb_records
from sfumato.api.series_resources import SeriesHistory
from sfumato.privacy.accounting import DRAW_SPAN

FEATURES = (Feature("east", 0.0, 10.0, "km"), Feature("north", 0.0, 10.0, "km"))
PLACES = np.array([[2.5, 2.5], [7.5, 3.0], [3.0, 7.5], [7.5, 7.5]])
SHARES, LATER = (0.4, 0.3, 0.2, 0.1), (0.31, 0.23, 0.16, 0.3)
SPREAD_KM = 0.6
EPSILON = 2
CYCLE = 4
DEVICES = 80_000
WEEK = timedelta(weeks=1)
START = datetime(2027, 1, 18, tzinfo=UTC)  # a Monday


def run_weeks(n_weeks: int, seed: int, out: Path, console: Console) -> dict[str, object]:
    """Play some weeks, print the shares and the events, and write a picture of the shares.

    Parameters
    ----------
    n_weeks : int
        4 to 52.
    seed : int
        Seed of the people. Noise is never seeded.
    out : Path
        Folder for the picture.
    console : Console

    Returns
    -------
    dict
        The summary, with the path of the picture.
    """
    rng = np.random.default_rng(seed)
    with Practice(START - timedelta(days=1)) as practice:
        client = practice.client
        dataset = client.create_dataset("Lunch", FEATURES, epsilon=1)
        series = client.create_series(
            dataset.id,
            "Lunch, weekly",
            ShiftedGrid(epsilon=EPSILON, cells=16),
            first=START.date(),
            count=n_weeks,
            cycle=min(CYCLE, n_weeks),
            target_reports=DEVICES,
        )
        draws = np.zeros(DEVICES, dtype=np.uint64)
        for week in range(n_weeks):
            practice.set_clock(START + week * WEEK)
            if week % CYCLE == 0:
                draws = rng.integers(0, DRAW_SPAN, DEVICES, dtype=np.uint64, endpoint=False)
            (opened,) = client.rounds(dataset.id, state="open")
            people = _people(rng, LATER if week >= n_weeks // 2 else SHARES)
            client.send_reports(opened.id, *perturb_records(opened.spec, people, draws=draws))
            console.print(f"week {week + 1} of {n_weeks}")
        practice.set_clock(START + n_weeks * WEEK)
        return _summarise(client, dataset.id, series.id, out, console)


def _people(rng: np.random.Generator, shares: tuple[float, ...]) -> NDArray[np.float64]:
    homes = PLACES[rng.choice(len(PLACES), DEVICES, p=shares)]
    return np.clip(homes + rng.normal(0.0, SPREAD_KM, (DEVICES, 2)), 0.0, 10.0)


def _summarise(client: Client, dataset_id: str, series_id: str, out: Path, console: Console) -> dict[str, object]:
    for place, cluster in enumerate(client.series_clusters(series_id, oldest_first=True)):
        client.name_series_cluster(series_id, cluster.id, f"cluster {place}")
    history, charged = client.series_history(series_id), client.get_series(series_id).epsilon_charged
    titles = {each.id: each.name for each in history.clusters}
    console.print(_table(history, titles))
    for event in history.events:
        kinds = event.kinds or ()
        what = [f"{titles[each.cluster_id]} {each.kind} by {100 * each.size:+.1f} points" for each in kinds]
        weeks = f"alarm in week {event.window + 1}, change from week {event.change + 1} on"
        console.print(f"Event: {weeks}: {', '.join(what) or 'not described yet'}")
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "series.svg"
    history.plot().savefig(picture)
    console.print(f"Each person lost at most epsilon {charged:g}. The picture is {picture}.")
    return {
        "weeks": len(history.windows),
        "clusters": len(history.clusters),
        "events": [
            {"window": event.window, "change": event.change, "kinds": [each.kind for each in event.kinds or ()]}
            for event in history.events
        ],
        "epsilon_charged": charged,
        "picture": str(picture),
        "ledger_verified": client.verify_ledger(dataset_id).ok,
    }


def _table(history: SeriesHistory, titles: dict[str, str]) -> Table:
    table = Table("week", *titles.values(), title="Shares of the clusters, in percent")
    for window in history.windows:
        shares = {each.cluster_id: f"{100 * each.share:.1f} ± {100 * each.error:.1f}" for each in window.clusters or ()}
        table.add_row(str(window.index + 1), *(shares.get(name, "") for name in titles))
    return table
