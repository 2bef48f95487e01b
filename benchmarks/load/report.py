"""Report of a run: figures, missed targets, and a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks.load.connection import EventLog
from benchmarks.load.monitor import Monitor

MAX_TAIL = 10.0  # target: p99 of a report over its p50
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
SHOWN = (
    "saturation_per_second", "rate_per_second", "report_tail", "errors", "reports_acknowledged", "reports_counted",
    "reports_lost", "jobs_done", "memory_mb", "memory_growth_mb", "database_connections", "load_average",
)  # fmt: skip
WAITS = frozenset({"long poll", "jobs", "behind"})  # kinds with times that do not describe the service


def summarise(
    log: EventLog, monitor: Monitor, rounds: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the figures of a run as one JSON object; `rounds` has the final counts of the service."""
    spreads = {kind: percentiles(seconds) for kind, seconds in sorted(log.seconds.items()) if kind != "jobs"}
    lost = {
        round_id: n - (rounds[round_id]["n_reports"] or 0) if round_id in rounds else n
        for round_id, n in log.acknowledged.items()
    }
    return {
        **settings,
        "jobs_done": len(log.seconds["jobs"]),
        "milliseconds": spreads,
        "report_tail": round(spreads["report"]["p99"] / spreads["report"]["p50"], 2),
        "errors": dict(log.errors),
        "unexpected_errors": sum(log.unexpected.values()),
        "reports_acknowledged": sum(log.acknowledged.values()),
        "reports_counted": sum(each["n_reports"] or 0 for each in rounds.values()),
        "reports_lost": sum(max(0, n) for n in lost.values()),
        "reports_too_many": sum(max(0, -n) for n in lost.values()),
        "memory_mb": {name: round(samples[-1], 1) for name, samples in sorted(monitor.memory_mb.items())},
        "memory_growth_mb": {name: round(growth, 1) for name, growth in sorted(monitor.growth_mb().items())},
        "database_connections": max(monitor.connections, default=0),
        "load_average": [round(min(monitor.load, default=0), 1), round(max(monitor.load, default=0), 1)],
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the size of a non-empty sample, and its percentiles in milliseconds by nearest rank."""
    values = 1000 * np.quantile(seconds, list(SHARES.values()), method="inverted_cdf")
    return {"n": len(seconds), **{name: round(float(value), 2) for name, value in zip(SHARES, values, strict=True)}}


def failures(summary: Mapping[str, Any], *, max_tail: float | None) -> list[str]:
    """Return the missed targets; without `max_tail`, times are not checked."""
    checks = {
        f"{summary['unexpected_errors']} errors other than limits": summary["unexpected_errors"] == 0,
        f"{summary['reports_lost']} acknowledged reports were not counted": summary["reports_lost"] == 0,
        f"{summary['reports_too_many']} reports were counted but never sent": summary["reports_too_many"] == 0,
        "no job finished": summary["jobs_done"] > 0,
        f"p99 of a report is {summary['report_tail']} times its p50": max_tail is None
        or summary["report_tail"] <= max_tail,
    }
    return [failure for failure, holds in checks.items() if not holds]


def show(console: Console, summary: Mapping[str, Any]) -> None:
    """Print the figures as a table."""
    spreads = {kind: spread for kind, spread in summary["milliseconds"].items() if kind not in WAITS}
    console.print("Milliseconds")
    console.print(pd.DataFrame(spreads).T.astype({"n": int}).to_string(float_format="%.1f"))
    for name in SHOWN:
        console.print(f"{name.replace('_', ' ')}: {summary[name]}")
