"""Weeks of a series within a minute: real windows, rounds, reports and jobs, with a clock that the demo sets.

Devices at four places report in one secret week of each cycle of four. From the middle on, one place has three times as
many people. The steps are those of the service; the processes and the network are left out.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sqlalchemy import select

from models import datasets
from models.collection import report_intake, rounds
from models.database.engine import Database
from models.database.schema import migrate
from models.database.types import SECOND
from models.identity import keys, tenants
from models.identity.caller import Caller
from models.identity.tenants import TenantLimits
from models.jobs import claims
from models.jobs.claims import Claim
from models.ledger import ledger, sources
from models.series import following, series, windows
from models.tables.datasets import Trust
from models.tables.identity import Scope
from models.tables.rounds import Round, RoundState
from models.tables.series import Series
from sfumato.device.bulk import perturb_records
from sfumato.plotting.series import plot_shares
from sfumato.privacy.accounting import DRAW_SPAN, NANO, format_epsilon
from sfumato.specs import Feature
from workers import job_runner

FEATURES = (Feature("east", 0.0, 10.0, "km"), Feature("north", 0.0, 10.0, "km"))
PLACES = np.array([[2.5, 2.5], [7.5, 3.0], [3.0, 7.5], [7.5, 7.5]])
SHARES, LATER = (0.4, 0.3, 0.2, 0.1), (0.31, 0.23, 0.16, 0.3)
SPREAD_KM = 0.6
EPSILON = 2
CYCLE = 4
DEVICES = 80_000
WEEK = 7 * 86_400 * SECOND
START = 1_800_230_400 * SECOND  # Monday, 2027-01-18, in UTC
LIMITS = TenantLimits(10, 1000, None, 16, 1000, sources.UNLIMITED, sources.UNLIMITED)


class _Clock:
    """A clock that the demo sets, in microseconds since the epoch."""

    now = START - 86_400 * SECOND

    def __call__(self) -> int:
        return self.now


@dataclass(frozen=True)
class _Stage:
    """The database, the clock and the owner of the demo."""

    database: Database
    clock: _Clock
    caller: Caller
    dataset_id: str
    series_id: str


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
    with _stage(n_weeks) as stage:
        draws = np.zeros(DEVICES, dtype=np.uint64)
        for week in range(n_weeks):
            if week % CYCLE == 0:
                draws = rng.integers(0, DRAW_SPAN, DEVICES, dtype=np.uint64, endpoint=False)
            _play(stage, week, draws, _people(rng, LATER if week >= n_weeks // 2 else SHARES))
            console.print(f"week {week + 1} of {n_weeks}")
        return _summarise(stage, out, console)


@contextmanager
def _stage(n_weeks: int) -> Iterator[_Stage]:
    clock = _Clock()
    with tempfile.TemporaryDirectory(prefix="sfumato-demo-") as folder:
        url = f"sqlite:///{folder}/sfumato.db"
        migrate(url)
        database = Database(url, pool_size=2, clock=clock)
        try:
            yield _create(database, clock, n_weeks)
        finally:
            database.close()


def _create(database: Database, clock: _Clock, n_weeks: int) -> _Stage:
    with database.transaction() as session:
        owner = tenants.get_or_create_tenant(session, tenants.FIRST_TENANT, now=clock.now)
        key, _ = keys.create_key(session, owner.id, name="demo", scopes=[Scope.ADMIN], now=clock.now)
        caller = Caller(key.id, owner.id, frozenset(key.scopes), None, None)
        dataset = datasets.create(
            session,
            caller,
            name="Lunch",
            trust=Trust.LOCAL,
            features=FEATURES,
            epsilon_nano=NANO,
            min_reports=100,
            keep_reports=False,
            max_datasets=1,
            now=clock.now,
        )
        made = series.create(
            session,
            caller,
            dataset,
            name="Lunch, weekly",
            algorithm={"type": "shifted_grid", "epsilon": float(EPSILON), "cells": 16},
            every="week",
            time_zone="UTC",
            first=date(2027, 1, 18),
            n_windows=n_weeks,
            cycle=min(CYCLE, n_weeks),
            target_reports=DEVICES,
            min_reports=100,
            epsilon_nano=EPSILON * NANO,
            total_nano=None,
            limits=LIMITS,
            now=clock.now,
        )
        return _Stage(database, clock, caller, dataset.id, made.id)


def _people(rng: np.random.Generator, shares: tuple[float, ...]) -> NDArray[np.float64]:
    homes = PLACES[rng.choice(len(PLACES), DEVICES, p=shares)]
    return np.clip(homes + rng.normal(0.0, SPREAD_KM, (DEVICES, 2)), 0.0, 10.0)


def _play(stage: _Stage, week: int, draws: NDArray[np.uint64], people: NDArray[np.float64]) -> None:
    """Open the window of a week, let the selected devices report, close it, and compute its result."""
    stage.clock.now = START + week * WEEK
    _advance(stage)
    _work(stage)
    with stage.database.reading() as session:
        (opened,) = session.scalars(select(Round).where(Round.state == RoundState.OPEN)).all()
    reports = perturb_records(opened.spec, people, draws=draws)
    n = len(reports.slots)
    parts = [reports.report_ids, reports.slots.astype("<u4").view(np.uint8).reshape(n, 4), reports.values]
    packed = np.concatenate(parts, axis=1).tobytes()
    with stage.database.transaction() as session:
        report_intake.receive(session, opened.id, n, packed, now=stage.clock.now)
    stage.clock.now = START + (week + 1) * WEEK
    with stage.database.transaction() as session:
        rounds.close_due(session, now=stage.clock.now)
    _work(stage)
    _advance(stage)


def _advance(stage: _Stage) -> None:
    """Take all steps of the series that are due."""
    is_done = False
    while not is_done:
        with stage.database.transaction() as session:
            now = stage.clock.now
            is_done = windows.take_step(session, stage.series_id, find_limits=lambda *_: LIMITS, now=now).is_done


def _work(stage: _Stage) -> None:
    """Claim the job of the window, and work on it."""
    with stage.database.transaction() as session:
        claim = claims.claim(session, now=stage.clock.now, lease_microseconds=WEEK, max_attempts=2)
    if claim is not None:
        job_runner.run(stage.database, Claim(claim.job_id, claim.fence))


def _summarise(stage: _Stage, out: Path, console: Console) -> dict[str, object]:
    with stage.database.reading() as session:
        found = session.get_one(Series, stage.series_id)
        rows = windows.list_windows(session, found, after=-1, limit=1000, newest_first=False)
        clusters = following.page_clusters(session, found, after="", limit=1000)
        events = following.page_events(session, found, after="", limit=1000)
        charged = windows.charged_nano(session, found)
        is_verified = ledger.verify(session, stage.dataset_id).ok
    titles = {each.id: f"cluster {place}" for place, each in enumerate(clusters)}
    curves: dict[str, tuple[list[int], list[float], list[float]]] = {}
    table = Table("week", *titles.values(), title="Shares of the clusters, in percent")
    for window, _ in rows:
        shares = {each["cluster_id"]: each for each in window.shares or ()}
        cells = [
            f"{100 * shares[name]['share']:.1f} ± {100 * shares[name]['error']:.1f}" if name in shares else ""
            for name in titles
        ]
        table.add_row(str(window.index + 1), *cells)
        for name, each in shares.items():
            places, sizes, errors = curves.setdefault(titles[name], ([], [], []))
            places.append(window.index)
            sizes.append(each["share"])
            errors.append(each["error"])
    console.print(table)
    for event in events:
        kinds = event.kinds or []
        what = [f"{titles[each['cluster']]} {each['kind']} by {100 * each['size']:+.1f} points" for each in kinds]
        weeks = f"alarm in week {event.window + 1}, change from week {event.change + 1} on"
        console.print(f"Event: {weeks}: {', '.join(what) or 'not described yet'}")
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "series.svg"
    spans = [(event.window, event.change_first, event.change_last) for event in events]
    plot_shares(curves, spans, title="Shares of the clusters").savefig(picture)
    console.print(f"Each person lost at most epsilon {format_epsilon(charged)}. The picture is {picture}.")
    return {
        "weeks": len(rows),
        "clusters": len(clusters),
        "events": [
            {"window": event.window, "change": event.change, "kinds": [each["kind"] for each in event.kinds or []]}
            for event in events
        ],
        "epsilon_charged": charged / NANO,
        "picture": str(picture),
        "ledger_verified": is_verified,
    }
